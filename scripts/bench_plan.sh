#!/bin/sh
# bench_plan.sh - what --dry-run says of a whole run's time beside what the run takes, and how right the estimates
# of the time left were on the way (scripts/eta_error.sh).  A plan does not count what writes, nor solving.
# usage: bench_plan.sh [OPTION ...]     options go to every program: --backend cuda
# BUILD=build; RUNS=3; LAYERS=12 EXPERTS=32 HIDDEN=64: the synthetic model (scripts/make_wide_model.py)
# of the third row; MODEL_RECIPE=recipe.yaml: another run, of a model of your own.
set -eu
cd "$(dirname "$0")/.."
bin=${BUILD:-build}/bin runs=${RUNS:-3}
dir=$(mktemp -d "${TMPDIR:-/tmp}/exfold-plan.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

number() { # NAME FILE : a member of the JSON object
    sed -n "s/.*\"$1\": *\([-+.0-9e]*\).*/\1/p" "$2" | tail -n 1
}

# Plans and runs in turns, since a machine that others use is not as fast from minute to minute.
compare() { # NAME PROGRAM ARGUMENT ...
    name=$1 program=$2
    shift 2
    i=0
    while [ "$i" -lt "$runs" ]; do
        i=$((i + 1))
        "$bin/$program" "$@" --dry-run --force --quiet --json - >"$dir/plan"
        start=$(date +%s.%N)
        "$bin/$program" "$@" --force --progress=json 2>"$dir/$name.$i" >/dev/null || { cat "$dir/$name.$i" >&2; exit 1; }
        took=$(echo "$start $(date +%s.%N)" | awk '{ print $2 - $1 }')
        planned=$(number seconds "$dir/plan")
        awk -v name="$name" -v p="$planned" -v t="$took" \
            'BEGIN { printf "%-20s %10.2f s planned %10.2f s measured %8.2f x\n", name, p, t, p / t }'
    done
}

compare calibrate-demo exfold-calibrate recipes/demo.yaml --output "$dir/demo" "$@"
compare validate-demo exfold-validate recipes/demo.yaml --output "$dir/demo" "$@"
python3 scripts/make_wide_model.py "$dir/wide" "${LAYERS:-12}" "${EXPERTS:-32}" "${HIDDEN:-64}"
compare calibrate-wide exfold-calibrate "$dir/wide/recipe.yaml" --output "$dir/wide/out" "$@"
[ -z "${MODEL_RECIPE:-}" ] || compare calibrate-model exfold-calibrate "$MODEL_RECIPE" --output "$dir/model" "$@"
echo
for log in "$dir"/*-*.[0-9]*; do scripts/eta_error.sh "$log" || true; done | awk 'NR == 1 || !/^log /'
