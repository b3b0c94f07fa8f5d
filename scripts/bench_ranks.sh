#!/bin/sh
# bench_ranks.sh - a calibration or a validation on 1, 2, ... GPUs of this machine: whole run, forward, bytes read by each rank,
# the digest of what it computed, and what --dry-run predicts, which does not count solving.
# usage: bench_ranks.sh [CONFIG_DIR LAYERS SEQUENCES TOKENS]     default: Qwen3-30B-A3B's shape, 48 512 2048
#        (BUILD=build; MEMORY=/dev/shm; RANKS="1 2"; RUNS=3; BACKEND=cuda, or cpu: ranks then share the cores;
#        MPIRUN="mpirun --bind-to none"; MODEL: a checkpoint to take instead of writing one;
#        WHAT=calibrate, lowrank: with sums of rank 8, validate: eight variants; KILL=1: one rank of a calibration is killed
#        in the middle, and half as many go on)
# A checkpoint of random weights and random tokens are written into the RAM disk.  Runs of one rank and of several take
# turns.  The last lines are medians, and how many times as fast they are as one process.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build} ranks=${RANKS:-1 2} runs=${RUNS:-3} backend=${BACKEND:-cuda} mpirun=${MPIRUN:-mpirun --bind-to none}
what=${WHAT:-calibrate}
[ $# -eq 4 ] || set -- tests/configs/qwen3-30b-a3b 48 512 2048
case $what in
calibrate) sums='{projectors: [pair]}' result=out/statistics.h5 ;;
lowrank) sums='{projectors: [pair, lowrank], ranks: [8]}' result=out/statistics.h5 ;;
validate) sums='{projectors: [pair]}' result=scores ;;
*) echo "bench_ranks.sh: WHAT is calibrate, lowrank or validate, not $what" >&2; exit 2 ;;
esac
[ -z "${KILL:-}" ] || [ "${ranks##* }" -gt 1 ] || { echo "bench_ranks.sh: KILL wants two ranks or more, not ${ranks##* }" >&2; exit 2; }
[ -z "${KILL:-}" ] || [ "$what" != validate ] || { echo "bench_ranks.sh: KILL is of a calibration, not of WHAT=validate" >&2; exit 2; }
dir=$(mktemp -d "${MEMORY:-/dev/shm}/exfold-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

number() { # NAME FILE : the last such member of the JSON objects
    sed -n "s/.*\"$1\": *\([-+.0-9e]*\).*/\1/p" "$2" | tail -n 1
}

program() { # NAME RANKS OPTION ...
    name=$1 launcher= && [ "$2" = 1 ] || launcher="$mpirun -n $2"
    shift 2
    # shellcheck disable=SC2086  # words of a command
    exec $launcher "$build/bin/exfold-$name" "$dir/recipe.yaml" --backend "$backend" "$@"
}

run() { # RANKS OPTION ... : what is measured
    on=$1
    shift
    if [ "$what" = validate ]; then
        (program validate "$on" --tables "$dir/out/tables.h5" -o "$dir/scores" --force "$@")
    else
        (program calibrate "$on" --force "$@")
    fi
}

digest() { # FILE OR DIRECTORY : of sums, or of every figure of quality
    if [ -d "$1" ]; then
        tr ',{}[]' '\n' <"$1/validation.json" | grep -E '"(kl|ppl|mean_p)[a-z_]*":' | cksum
    else
        "$build/bin/exfold-inspect" digest "$1" | cut -c 1-16
    fi
}

median() { # COLUMN RANKS
    awk -v c="$1" -v n="$2" '$1 == n { print $c }' "$dir/times" | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

# Prints the child of a process that has the highest number.
child_of() { # PID
    cat /proc/[0-9]*/stat 2>/dev/null |
        awk -v parent="$1" '{ pid = $1 + 0; sub(/.*\) /, ""); if ($2 == parent && pid > last + 0) last = pid } END { print last }'
}

# Kills a rank of the most as soon as a resume point is there; half as many then go on.
kill_one() { # RANKS
    (program calibrate "$1" --set runtime.checkpoint.every_layers=1 -o "$dir/killed" --quiet >"$dir/log" 2>&1) &
    job=$!
    turns=0
    while [ "$turns" -lt 3000 ] && [ ! -f "$dir/killed/.exfold-resume-calibrate/resume.json" ]; do
        turns=$((turns + 1))
        sleep 0.1
    done
    victim=$(child_of "$job")
    [ -z "$victim" ] || kill -9 "$victim"
    wait "$job" && { echo "the run of $1 ranks ended before one of them was killed" >&2; exit 1; }
    (program calibrate "$(($1 / 2))" --resume require -o "$dir/killed" >"$dir/said" 2>"$dir/log") ||
        { cat "$dir/log" >&2; exit 1; }
    sed -n 's/.*\(going on after layer.*\)/    \1/p' "$dir/log" | head -n 1
    echo "one of $1 ranks killed, $(($1 / 2)) went on: $(digest "$dir/killed/statistics.h5")"
}

model=${MODEL:-$dir/model}
[ -n "${MODEL:-}" ] || python3 scripts/make_synthetic_checkpoint.py "$1" "$2" "$model" "$build/bench/make_checkpoint"
model=$(cd "$model" && pwd)
python3 scripts/make_random_tokens.py "$dir" "$3" "$4" "$(number vocab_size "$model/config.json")"
cat >"$dir/recipe.yaml" <<END
schema: exfold-recipe/1
model: {path: "$model"}
data: {manifest: manifest.yaml, max_tokens: $4}
calibrate: $sums
validate:
  manifest: manifest.yaml
  variants: [P4, "P4:projector=joint", "top4:renorm", D64, "D64:projector=joint", "D64:pool=static", P6+D96, reap64]
pools: [64]
output: {directory: out}
END
[ "$what" != validate ] || (program calibrate 1 --quiet)
for n in $ranks; do
    run 1 --dry-run --quiet --json - --ranks "$n" >"$dir/plan"
    echo "$n $(sed -n 's/.*"scale": *{[^}]*"seconds": *\([-+.0-9e]*\), "most.*/\1/p' "$dir/plan")" >>"$dir/plans"
done
i=0
while [ "$i" -lt "$runs" ]; do
    i=$((i + 1))
    for n in $ranks; do
        start=$(date +%s.%N)
        run "$n" --progress=json >"$dir/said" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
        echo "$n $start $(date +%s.%N) $(number seconds "$dir/log")" | awk '{ print $1, $3 - $2, $4 }' >>"$dir/times"
        tail -n 1 "$dir/times" | awk '{ printf "%d ranks: whole %.2f s, forward %.2f s", $1, $2, $3 }'
        echo ", $(digest "$dir/$result")"
        [ "$i" != 1 ] || sed -n 's/.*"text":"\(rank .* of weights read\)".*/    \1/p' "$dir/log"
    done
done
for n in $ranks; do
    echo "$n $(median 2 "$n") $(median 3 "$n") $(awk -v n="$n" '$1 == n { print $2 }' "$dir/plans")"
done | awk '
    NR == 1 { whole = $2; forward = $3 }
    { printf "%d ranks, medians: whole %.2f s (%.2f times), forward %.2f s (%.2f times); predicted %.2f s (%+.0f %%)\n",
             $1, $2, whole / $2, $3, forward / $3, $4, 100 * ($4 / $2 - 1) }'
[ -z "${KILL:-}" ] || kill_one "${ranks##* }"
