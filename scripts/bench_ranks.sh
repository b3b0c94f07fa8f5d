#!/bin/sh
# bench_ranks.sh - a calibration on 1, 2, ... GPUs of this machine: whole run, forward, bytes read by each rank, the
# digest of its statistics, and what --dry-run predicts of it, which counts neither writing nor solving.
# usage: bench_ranks.sh [CONFIG_DIR LAYERS SEQUENCES TOKENS]     default: Qwen3-30B-A3B's shape, 48 512 2048
#        (BUILD=build; MEMORY=/dev/shm; RANKS="1 2"; RUNS=3; BACKEND=cuda, or cpu: ranks then share the cores;
#        MPIRUN="mpirun --bind-to none")
# A checkpoint of random weights and random tokens are written into the RAM disk.  Runs of one rank and of several take
# turns.  The last lines are medians, and how many times as fast they are as one process.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build} ranks=${RANKS:-1 2} runs=${RUNS:-3} backend=${BACKEND:-cuda} mpirun=${MPIRUN:-mpirun --bind-to none}
[ $# -eq 4 ] || set -- tests/configs/qwen3-30b-a3b 48 512 2048
dir=$(mktemp -d "${MEMORY:-/dev/shm}/exfold-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

number() { # NAME FILE : the last such member of the JSON objects
    sed -n "s/.*\"$1\": *\([-+.0-9e]*\).*/\1/p" "$2" | tail -n 1
}

calibrate() { # RANKS OPTION ...
    launcher= && [ "$1" = 1 ] || launcher="$mpirun -n $1"
    shift
    # shellcheck disable=SC2086  # words of a command
    $launcher "$build/bin/exfold-calibrate" "$dir/recipe.yaml" --backend "$backend" --force "$@"
}

median() { # COLUMN RANKS
    awk -v c="$1" -v n="$2" '$1 == n { print $c }' "$dir/times" | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

python3 scripts/make_synthetic_checkpoint.py "$1" "$2" "$dir/model" "$build/bench/make_checkpoint"
python3 scripts/make_random_tokens.py "$dir" "$3" "$4" "$(number vocab_size "$dir/model/config.json")"
printf 'schema: exfold-recipe/1\nmodel: {path: model}\ndata: {manifest: manifest.yaml, max_tokens: %s}\noutput: {directory: out}\n' \
    "$4" >"$dir/recipe.yaml"
for n in $ranks; do
    calibrate 1 --dry-run --quiet --json - --ranks "$n" >"$dir/plan"
    echo "$n $(sed -n 's/.*"scale": *{[^}]*"seconds": *\([-+.0-9e]*\), "most.*/\1/p' "$dir/plan")" >>"$dir/plans"
done
i=0
while [ "$i" -lt "$runs" ]; do
    i=$((i + 1))
    for n in $ranks; do
        start=$(date +%s.%N)
        calibrate "$n" --progress=json >"$dir/said" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
        echo "$n $start $(date +%s.%N) $(number seconds "$dir/log")" | awk '{ print $1, $3 - $2, $4 }' >>"$dir/times"
        tail -n 1 "$dir/times" | awk '{ printf "%d ranks: whole %.2f s, forward %.2f s", $1, $2, $3 }'
        echo ", statistics $("$build/bin/exfold-inspect" digest "$dir/out/statistics.h5" | cut -c 1-16)"
        [ "$i" != 1 ] || sed -n 's/.*"text":"\(rank .* of weights read\)".*/    \1/p' "$dir/log"
    done
done
for n in $ranks; do
    echo "$n $(median 2 "$n") $(median 3 "$n") $(awk -v n="$n" '$1 == n { print $2 }' "$dir/plans")"
done | awk '
    NR == 1 { whole = $2; forward = $3 }
    { printf "%d ranks, medians: whole %.2f s (%.2f times), forward %.2f s (%.2f times); predicted %.2f s (%+.0f %%)\n",
             $1, $2, whole / $2, $3, forward / $3, $4, 100 * ($4 / $2 - 1) }'
