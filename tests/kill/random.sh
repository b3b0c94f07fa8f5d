#!/bin/sh
# random.sh - kills calibrations with SIGKILL at random instants, several times in one run too, and lets
# them go on: every run that ends must have the undisturbed results, and leave nothing behind.
# usage: random.sh KILLS [RECIPE [OPTION ...]]     RECIPE: recipes/demo.yaml; options: --backend cuda
# BUILD: the build folder; SEED=1; WORK: where outputs go (BUILD/kill-random); PROGRAM=capture: captures instead
set -eu
[ $# -ge 1 ] || { echo "usage: random.sh KILLS [RECIPE [OPTION ...]]" >&2; exit 2; }
build=${BUILD:-build}
kills=$1 recipe=${2:-$(dirname "$0")/../../recipes/demo.yaml} seed=${SEED:-1} work=${WORK:-$build/kill-random}
name=${PROGRAM:-calibrate}
shift $(($# < 2 ? $# : 2))
[ -z "${WORK:-}" ] || [ ! -e "$work" ] || { echo "$work: exists; WORK is to be new" >&2; exit 2; }
refused=$("$(dirname "$0")/../../scripts/build-directory.sh" mark "$build")
[ -z "$refused" ] || { echo "$refused" >&2; exit 1; }
[ -n "${WORK:-}" ] || rm -rf "$work"
mkdir -p "$work"

program() { # DIRECTORY OPTION ... ; becomes it
    directory=$1
    shift
    exec "$build/bin/exfold-$name" -q "$recipe" --output "$directory" --set runtime.checkpoint.every_layers=1 "$@"
}
result() { (cd "$1" && find . -name '.*' ! -name . -o -type f ! -name exfold_recipe.yaml -exec sha256sum {} + | sort); }
now() { date +%s%N; }

began=$(now)
(program "$work/undisturbed" "$@") >"$work/log"
took=$(($(now) - began))
result "$work/undisturbed" >"$work/want"

killed=0 runs=0 most=0
while [ "$killed" -lt "$kills" ]; do
    rm -rf "$work/run"
    in_run=0
    while :; do
        # An instant of the undisturbed run's time, and a tenth more so that runs also end.
        seed=$(((seed * 1103515245 + 12345) % 2147483648))
        instant=$(awk -v r="$seed" -v t="$took" 'BEGIN { printf "%.4f", 1.1 * t / 1e9 * r / 2147483648 }')
        (program "$work/run" "$@") >"$work/log" 2>&1 &
        process=$!
        sleep "$instant"
        kill -9 "$process" 2>/dev/null || true
        status=0
        wait "$process" 2>/dev/null || status=$?
        [ "$status" = 137 ] || break
        killed=$((killed + 1)) in_run=$((in_run + 1))
    done
    # A kill between the last output and the end of the resume point leaves complete outputs.
    if [ "$status" = 4 ] && grep -q "exists already; --force" "$work/log"; then status=0; fi
    [ "$status" = 0 ] || { echo "kill: after $in_run kills the run ended with $status" >&2; cat "$work/log" >&2; exit 1; }
    result "$work/run" >"$work/got"
    cmp -s "$work/want" "$work/got" || { echo "kill: after $in_run kills: $(diff "$work/want" "$work/got" | head -3)" >&2; exit 1; }
    runs=$((runs + 1))
    [ "$in_run" -le "$most" ] || most=$in_run
done
rm -rf "$work"
echo "kill: $name, $killed kills at random instants in $runs runs, up to $most in one: results equal, nothing left"
