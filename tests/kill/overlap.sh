#!/bin/sh
# overlap.sh - two calibrations with different weightings, into different output directories, share one
# runtime.checkpoint.directory and are killed, stopped by SIGTERM, halted and continued at random moments, on a
# file system that is sometimes slow: each goes on until it ends, with the undisturbed result.
# usage: overlap.sh OVERLAPS [slow]      slow: every run, not some, on a slow file system (slow_names.c)
# BUILD: the build folder; SEED=1: the first overlap's number, from which its moments follow; WORK: where outputs go
# (BUILD/kill-overlap); BIN: other programs than BUILD's
#
# Of each overlap: every run ends with 0 by its command, given again as often as it was stopped; a run that finds its
# point says that it goes on; results are the undisturbed ones; outputs have no hidden file and the shared directory is
# empty.  Then the same output directory twice: the second run is refused with 4, the first does not notice.
set -eu
[ $# -ge 1 ] || { echo "usage: overlap.sh OVERLAPS [slow]" >&2; exit 2; }
build=${BUILD:-build}
overlaps=$1 slow=${2:-} number=${SEED:-1} work=${WORK:-$build/kill-overlap} bin=${BIN:-$build/bin}
here=$(dirname "$0")
case $build in
/*) library=$build/tests/kill/slow_names.so ;;
*) library=$PWD/$build/tests/kill/slow_names.so ;;
esac
[ -f "$library" ] || { echo "overlap: $library is not built; run: make check-overlap" >&2; exit 2; }
export OPENBLAS_NUM_THREADS=1
[ -z "${WORK:-}" ] || [ ! -e "$work" ] || { echo "$work: exists; WORK is to be new" >&2; exit 2; }
refused=$("$here/../../scripts/build-directory.sh" mark "$build")
[ -z "$refused" ] || { echo "$refused" >&2; exit 1; }
[ -n "${WORK:-}" ] || rm -rf "$work"
mkdir -p "$work"
work=$(cd "$work" && pwd -P)

# program RUN OUTPUT SLOW ; becomes the run
program() {
    case $1 in
    a) set -- "$2" "$3" source_norm ;;
    b) set -- "$2" "$3" none ;; # files of the same sizes, other sums
    esac
    if [ "$2" -gt 0 ]; then export LD_PRELOAD="$library" EXF_SLOW_SEED="$2"; fi
    exec "$bin/exfold-calibrate" "$here/../../recipes/demo.yaml" --output "$1" --set data.sequences=12 --set data.max_tokens=128 --set coverage.fail_below=0 \
        --set calibrate.weighting="$3" --threads 1 --set runtime.checkpoint.every_layers=1 --set runtime.checkpoint.directory="$work/shared"
}
result() { (cd "$1" && find . -type f ! -name exfold_recipe.yaml -exec sha256sum {} + | sort); }
point() { echo "$work/shared/calibrate-$(printf %s "$work/$1" | sha256sum | cut -c 1-12)"; }
now() { date +%s%N; }

# draw N : sets drawn to one of 0 .. N-1
draw() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    drawn=$((seed / 65536 % $1))
}
rest() { sleep "$(awk -v ms="$1" 'BEGIN { printf "%.3f", ms / 1000 }')"; } # MILLISECONDS

fail() {
    echo "overlap $number: $*" >&2
    exit 1
}

# life RUN SLOW : starts the run, and again after each end that a signal made, until it ends by itself.  In RUN.counts:
# how often it was stopped, and how often it went on from its point.
life() {
    stops=0 resumed=0
    while :; do
        found=0
        [ ! -f "$(point "$1")/resume.json" ] || found=1
        (program "$1" "$work/$1" "$2") >"$work/$1.log" 2>&1 &
        echo $! >"$work/$1.pid"
        status=0
        wait $! 2>/dev/null || status=$?
        rm "$work/$1.pid"
        says=0
        ! grep -q 'resume: going on' "$work/$1.log" || says=1
        [ "$says" = 0 ] || resumed=$((resumed + 1))
        case $status in
        0) break ;;
        137 | 143 | 75) stops=$((stops + 1)) ;;
        4) # complete, and killed before it removed its point
            if [ $stops -gt 0 ] && grep -q 'exists already; --force' "$work/$1.log" && [ ! -e "$(point "$1")" ]; then break; fi
            fail "run $1, after $stops stops, ended with 4: $(tail -n 1 "$work/$1.log")" ;;
        *) fail "run $1, after $stops stops, ended with $status: $(tail -n 1 "$work/$1.log")" ;;
        esac
        # One that is killed may not come to say it.
        case $found$says$status in 1075) fail "run $1 has a point and does not go on from it" ;; esac
        if [ $status = 75 ] && [ ! -f "$(point "$1")/resume.json" ]; then fail "run $1 ended with 75 without a point"; fi
        [ $stops -lt 50 ] || fail "run $1 was stopped 50 times"
    done
    case $found$says$status in 100) fail "run $1 has a point and does not go on from it" ;; esac
    echo "$stops $resumed" >"$work/$1.counts"
}

# signal RUN NAME : to the run's process, if there is one
signal() { if process=$(cat "$work/$1.pid" 2>/dev/null) && [ -n "$process" ]; then kill -s "$2" "$process" 2>/dev/null || :; fi; }

# One signal, or a halt, to one run or to both.
disturb() { # RUN ...
    draw 10
    case $drawn in
    0 | 1 | 2 | 3) for run; do signal "$run" KILL; done ;;
    4 | 5 | 6) for run; do signal "$run" TERM; done ;;
    *)
        for run; do signal "$run" STOP; done
        draw "$took"
        rest "$drawn"
        for run; do signal "$run" CONT; done ;;
    esac
}

judge() { # RUN
    result "$work/$1" >"$work/$1.got"
    cmp -s "$work/$1.want" "$work/$1.got" || fail "run $1: $(diff "$work/$1.want" "$work/$1.got" | head -n 3)"
    [ -z "$(find "$work/$1" -name '.*')" ] || fail "run $1 leaves $(find "$work/$1" -name '.*' | head -n 1)"
}

is_empty() { [ -z "$(ls -A "$work/shared")" ] || fail "left in the shared directory: $(cd "$work/shared" && find . -mindepth 1 | sort | tr '\n' ' ')"; }

overlap() {
    seed=$((number * 69069)) && draw 2 && draw 2
    draw 4
    case $slow$drawn in # 0 none, 1 a, 2 b, 3 both
    slow*) slow_a=$number slow_b=$((number + 500)) ;;
    0) slow_a=0 slow_b=0 ;;
    1) slow_a=$number slow_b=0 ;;
    2) slow_a=0 slow_b=$number ;;
    3) slow_a=$number slow_b=$((number + 500)) ;;
    esac
    rm -rf "$work/a" "$work/b" "$work/shared" "$work"/*.counts
    mkdir "$work/shared"
    life a "$slow_a" & life_a=$!
    life b "$slow_b" & life_b=$!
    # Moments of the time that the pair takes, and some more, since runs start over.
    draw 4
    for _ in $(seq 0 $drawn); do
        draw "$took"
        rest "$drawn"
        draw 3
        case $drawn in
        0) disturb a ;;
        1) disturb b ;;
        2) disturb a b ;;
        esac
    done
    ended=0
    wait $life_a || ended=1
    wait $life_b || ended=1
    [ $ended = 0 ] || exit 1
    judge a
    judge b
    is_empty
    read -r stops_a resumed_a <"$work/a.counts"
    read -r stops_b resumed_b <"$work/b.counts"
    stops=$((stops + stops_a + stops_b)) resumed=$((resumed + resumed_a + resumed_b))
    [ "$slow_a$slow_b" = 00 ] || slowed=$((slowed + 1))
    if [ "$resumed_a" -gt 0 ] && [ "$resumed_b" -gt 0 ]; then both=$((both + 1)); fi
}

# The same output directory twice, the second time by another name of it.
twice() {
    rm -rf "$work/a" "$work/shared"
    mkdir "$work/shared" "$work/a"
    ln -sf a "$work/name"
    (program a "$work/a" "$number") >"$work/a.log" 2>&1 & first=$!
    tries=0
    while [ -z "$(ls -A "$work/shared")" ]; do # its point is made when its output directory is locked
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || fail "the first of two runs into one directory makes no point: $(tail -n 1 "$work/a.log")"
        sleep 0.01
    done
    status=0
    (program a "$work/name" 0) >"$work/b.log" 2>&1 || status=$?
    grep -q 'another exfold program' "$work/b.log" || status="$status for another reason"
    [ "$status" = 4 ] || fail "the second of two runs into one directory ended with $status: $(tail -n 1 "$work/b.log")"
    status=0
    wait $first || status=$?
    [ $status = 0 ] || fail "the first of two runs into one directory ended with $status: $(tail -n 1 "$work/a.log")"
    judge a
    is_empty
}

# Undisturbed; their time is that of a pair, as they will run.
mkdir "$work/shared"
began=$(now)
(program a "$work/a" 0) >"$work/a.log" 2>&1 & first=$!
(program b "$work/b" 0) >"$work/b.log" 2>&1 || fail "the undisturbed run b ended with $?: $(tail -n 1 "$work/b.log")"
wait $first || fail "the undisturbed run a ended with $?: $(tail -n 1 "$work/a.log")"
took=$((($(now) - began) / 1000000))
for run in a b; do result "$work/$run" >"$work/$run.want"; done
is_empty

stops=0 resumed=0 both=0 slowed=0
last=$((number + overlaps - 1))
while [ "$number" -le $last ]; do
    overlap
    number=$((number + 1))
done
[ "$resumed" -gt 0 ] || { echo "overlap: no run went on from a point" >&2; exit 1; }
twice
rm -rf "$work"
echo "overlap: $overlaps pairs in one directory, $slowed on a slow file system: runs stopped $stops times, went on from a point $resumed times," \
    "both of a pair in $both; results equal, nothing left"
