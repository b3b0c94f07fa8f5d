#!/bin/sh
# array.sh - a job array of Slurm without MPI: a calibration in N shards, and a job that merges them when all are done.
# usage: scripts/slurm/array.sh N RECIPE OUTPUT_DIRECTORY [SBATCH-OPTION ...]       on the login node; exfold-* are on PATH
#
# Submits tasks 1 to N, of which each runs one shard with the options given (--gpus=1, --time=4:00:00, --partition=...), and
# the merge after them, which also solves and exports; prints the three steps' job numbers.  A recipe with diagonal or
# low-rank projectors on one line gets a first job that makes their basis (BASIS=1: any recipe; BASIS=0: none, the recipe
# names a basis).  A task that failed or was stopped is submitted again by
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

# The basis of all of the data, where the recipe needs one.
needs_basis() { # RECIPE
    [ -z "${BASIS:-}" ] || [ "$BASIS" = 1 ] || return 1
    [ "${BASIS:-}" = 1 ] || grep -Eq '^[^#]*projectors:.*(diagonal|lowrank)' "$1"
}

run_basis() { # RECIPE DIRECTORY
    exec exfold-calibrate "$1" --basis-only --output "$2"
}

run_shard() { # N RECIPE DIRECTORY
    n=$1 recipe=$2 directory=$3
    set -- "$recipe" --output "$directory" --shard "$SLURM_ARRAY_TASK_ID/$n"
    ! needs_basis "$recipe" || set -- "$@" --basis "$directory/basis.h5"
    exec exfold-calibrate "$@"
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
    after=
    mkdir -p "$directory"
    log=$directory/slurm-%x-%A-%a.txt
    if needs_basis "$recipe"; then
        basis=$(sbatch --parsable --output="$directory/slurm-%x-%j.txt" "$@" "$0" basis "$n" "$recipe" "$directory")
        after=--dependency=afterok:${basis%%;*}
        echo "basis ${basis%%;*}"
    fi
    # shellcheck disable=SC2086  # no word or one
    shards=$(sbatch --parsable --array=1-"$n" $after --kill-on-invalid-dep=yes --output="$log" "$@" \
        "$0" shard "$n" "$recipe" "$directory")
    echo "shards ${shards%%;*}"
    merge=$(sbatch --parsable --dependency=afterok:"${shards%%;*}" --kill-on-invalid-dep=yes --output="$directory/slurm-%x-%j.txt" \
        "$0" merge "$n" "$recipe" "$directory")
    echo "merge ${merge%%;*}"
}

step=submit
case ${1:-} in basis | shard | merge) step=$1; shift ;; esac
[ $# -ge 3 ] || usage
case $1 in *[!0-9]* | '' | 0*) usage ;; esac
[ -f "$2" ] || { echo "$2: no such recipe" >&2; exit 2; }
case $step in
submit) submit "$@" ;;
basis) run_basis "$2" "$3" ;;
*) "run_$step" "$@" ;;
esac
