#!/bin/sh
# run.sh - scripts/slurm on a Slurm of one node that this script starts and stops: Debian's slurmctld, slurmd, munge.
# usage: [BUILD=dir] run.sh                      last line: "N passed, N failed", or "not run: ..."
#
# All that it writes, keys and logs too, is in one temporary directory; ports are free ones; nothing of it is left.
set -u
export LC_ALL=C
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
case ${BUILD:-build} in
/*) bin=$BUILD/bin ;;
*) bin=$root/${BUILD:-build}/bin ;;
esac
for program in slurmctld slurmd munged sbatch srun scontrol; do
    command -v "$program" >/dev/null || { echo "not run: no $program"; exit 0; }
done
[ -x "$bin/exfold-calibrate" ] || { echo "$bin: no programs; run make first"; exit 1; }
[ "$(id -u)" = 0 ] || { echo "not run: slurmd starts jobs as root only"; exit 0; }
export PATH="$bin:$PATH"

# ---- the cluster ---------------------------------------------------------------------------

work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-slurm.XXXXXX") || exit 1
started=

stop_cluster() {
    [ -z "$started" ] || timeout 10 scancel --user="$(id -un)" 2>/dev/null
    [ -z "$started" ] || sleep 1
    for pid in $started; do kill "$pid" 2>/dev/null; done
    for pid in $started; do
        for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null && sleep 0.5; done
        kill -9 "$pid" 2>/dev/null
    done
    wait 2>/dev/null
    rm -rf "$work"
}
trap stop_cluster EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() { # LOG COMMAND ...
    log=$1
    shift
    "$@" >"$work/$log" 2>&1 &
    started="$! $started" # the last is stopped first
}

configure() { # PORT
    node=$(hostname -s)
    cat >"$work/slurm.conf" <<END
ClusterName=exfold
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
SlurmctldPort=$1
SlurmdPort=$(($1 + 1))
SrunPortRange=$(($1 + 2))-$(($1 + 60))
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=2
MinJobAge=300
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(getconf _NPROCESSORS_ONLN) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
}

idle() {
    for _ in $(seq 40); do
        timeout 5 sinfo -h -o %T 2>/dev/null | grep -q '^idle' && return 0
        sleep 0.5
    done
    return 1
}

start_cluster() {
    mkdir "$work/state" "$work/spool" "$work/munge" && chmod 755 "$work" && chmod 700 "$work/munge" || return 1
    head -c 1024 /dev/urandom >"$work/munge/key" && chmod 400 "$work/munge/key" || return 1
    start munged.out munged --foreground --force --num-threads=2 --key-file="$work/munge/key" --socket="$work/munge/socket" \
        --pid-file="$work/munge/pid" --log-file="$work/munge/log" --seed-file="$work/munge/seed"
    for _ in $(seq 40); do [ -S "$work/munge/socket" ] && break; sleep 0.25; done
    echo 'CgroupPlugin=cgroup/v1' >"$work/cgroup.conf" # read, and not used
    configure $((20000 + $$ % 400 * 100))
    export SLURM_CONF="$work/slurm.conf"
    start slurmctld.out slurmctld -D -f "$SLURM_CONF"
    start slurmd.out slurmd -D -f "$SLURM_CONF"
    idle
}

# ---- checks ---------------------------------------------------------------------------------

passed=0 failed=0

check() { # NAME COMMAND ...
    name=$1
    shift
    if (set -e; "$@") >"$work/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: $(tail -n 3 "$work/said" | tr '\n' ' ')"
        cat "$work"/*/slurm-*.txt 2>/dev/null | tail -n 20
    fi
}

# Waits for a job; it must have ended in this state.
ended() { # JOB STATE
    for _ in $(seq 240); do
        state=$(timeout 10 scontrol -o show job "$1" 2>/dev/null | sed 's/.*JobState=\([A-Z_]*\).*/\1/' | sort -u | tr '\n' ' ')
        case $state in *PENDING* | *RUNNING* | *COMPLETING* | *CONFIGURING* | '') sleep 0.5 ;; *) break ;; esac
    done
    [ "$state" = "$2 " ] || { echo "job $1 is $state, expected $2"; return 1; }
}

number() { # WORD: of what array.sh printed
    sed -n "s/^$1 //p" "$work/jobs"
}

whole() { # NAME RECIPE
    exfold-calibrate "$2" --output "$work/$1" --quiet
}

array() { # NAME N RECIPE
    "$root/scripts/slurm/array.sh" "$2" "$3" "$work/$1" --cpus-per-task=1 >"$work/jobs"
    ended "$(number merge)" COMPLETED
    cmp "$work/$1/tables.h5" "$work/whole-$1/tables.h5"
    cmp "$work/$1/tables.safetensors" "$work/whole-$1/tables.safetensors"
    [ "$(exfold-inspect digest "$work/$1/statistics.h5")" = "$(exfold-inspect digest "$work/whole-$1/statistics.h5")" ]
}

# A shard that fails keeps the merge from running; it alone is submitted again, then the merge.
failing() { # NAME RECIPE
    mkdir -p "$work/$1/shard-2-of-3"
    echo mine >"$work/$1/shard-2-of-3/statistics.h5"
    "$root/scripts/slurm/array.sh" 3 "$2" "$work/$1" --cpus-per-task=1 >"$work/jobs"
    ended "$(number merge)" CANCELLED
    [ ! -e "$work/$1/tables.h5" ]
    rm "$work/$1/shard-2-of-3/statistics.h5"
    again=$(sbatch --parsable --array=2 --output="$work/$1/slurm-again.txt" "$root/scripts/slurm/array.sh" shard 3 "$2" "$work/$1")
    ended "$again" COMPLETED
    merge=$(sbatch --parsable --output="$work/$1/slurm-merge.txt" "$root/scripts/slurm/array.sh" merge 3 "$2" "$work/$1")
    ended "$merge" COMPLETED
    cmp "$work/$1/tables.h5" "$work/whole-demo/tables.h5"
}

ranks() { # NAME RECIPE RANKS
    mkdir "$work/$1"
    job=$(sbatch --parsable --ntasks="$3" --output="$work/$1/slurm.txt" "$root/scripts/slurm/ranks.sh" exfold-calibrate "$2" \
        --output "$work/$1/out")
    ended "$job" COMPLETED
    cmp "$work/$1/out/tables.h5" "$work/whole-demo/tables.h5"
    [ "$3" = 1 ] || grep -q "ranks: $3 on 1 nodes" "$work/$1/slurm.txt"
}

usage() {
    ! "$root/scripts/slurm/array.sh" 3 no-such-recipe.yaml "$work/none" && ! "$root/scripts/slurm/array.sh" x "$root/recipes/demo.yaml" "$work/none" &&
        ! "$root/scripts/slurm/ranks.sh" && [ ! -e "$work/none" ]
}

start_cluster || { echo "slurm did not start:"; tail -n 5 "$work"/*.out "$work"/*.log; echo "0 passed, 1 failed"; exit 1; }
check usage usage
check whole whole whole-demo "$root/recipes/demo.yaml"
check array array demo 3 "$root/recipes/demo.yaml"
check failing failing failing "$root/recipes/demo.yaml"
check ranks-1 ranks ranks-1 "$root/recipes/demo.yaml" 1
if exfold-calibrate --version | grep -q ', MPI)' && srun --mpi=list 2>&1 | grep -q pmix; then
    export SRUN_OPTIONS=--mpi=pmix
    check ranks-2 ranks ranks-2 "$root/recipes/demo.yaml" 2
else
    echo "not run: two ranks, without MPI in the build or PMIx in Slurm"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
