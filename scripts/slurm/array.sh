#!/bin/sh
# array.sh - a job array of Slurm without MPI: a calibration in N shards, and a job that merges them when all are done.
# usage: scripts/slurm/array.sh N RECIPE OUTPUT_DIRECTORY [SBATCH-OPTION ...]       on the login node; exfold-* are on PATH
#
# Submits tasks 1 to N, of which each runs one shard with the options given (--gpus=1, --time=4:00:00, --partition=...), and
# the merge after them, which also solves and exports; prints the two steps' job numbers.  A recipe with diagonal or low-rank
# projectors, or a norm head, has no shards: ranks.sh runs it.  A task that failed or was stopped is submitted again by
#   sbatch --array=TASK [SBATCH-OPTION ...] scripts/slurm/array.sh shard N RECIPE OUTPUT_DIRECTORY
# and goes on where it was; then the merge by   sbatch scripts/slurm/array.sh merge N RECIPE OUTPUT_DIRECTORY
#SBATCH --job-name=exfold
#SBATCH --ntasks=1
#SBATCH --signal=B:TERM@300
set -eu

usage() {
    sed -n '3s/^# //p' "$0"
    exit 2
}

run_shard() { # N RECIPE DIRECTORY
    n=$1 recipe=$2 directory=$3
    exec exfold-calibrate "$recipe" --output "$directory" --shard "$SLURM_ARRAY_TASK_ID/$n"
}

run_merge() { # N RECIPE DIRECTORY
    n=$1 recipe=$2 directory=$3
    set --
    for i in $(seq "$n"); do set -- "$@" "$directory/shard-$i-of-$n/statistics.h5"; done
    exfold-merge "$@" -o "$directory/statistics.h5"
    exfold-solve "$recipe" --output "$directory"
    exec exfold-export "$recipe" --output "$directory"
}

submit() { # N RECIPE DIRECTORY [SBATCH-OPTION ...]
    n=$1 recipe=$2 directory=$3
    shift 3
    mkdir -p "$directory"
    log=$directory/slurm-%x-%A-%a.txt
    shards=$(sbatch --parsable --array=1-"$n" --output="$log" "$@" "$0" shard "$n" "$recipe" "$directory")
    echo "shards ${shards%%;*}"
    merge=$(sbatch --parsable --dependency=afterok:"${shards%%;*}" --kill-on-invalid-dep=yes --output="$directory/slurm-%x-%j.txt" \
        "$0" merge "$n" "$recipe" "$directory")
    echo "merge ${merge%%;*}"
}

step=submit
case ${1:-} in shard | merge) step=$1; shift ;; esac
[ $# -ge 3 ] || usage
case $1 in *[!0-9]* | '' | 0*) usage ;; esac
[ -f "$2" ] || { echo "$2: no such recipe" >&2; exit 2; }
case $step in
submit) submit "$@" ;;
*) "run_$step" "$@" ;;
esac
