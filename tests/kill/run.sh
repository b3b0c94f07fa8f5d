#!/bin/sh
# run.sh - stops a small calibration, validation and capture with a signal at each of their calls that
# change a file, and lets them go on: the results must be the undisturbed ones, and nothing may be left.
# usage: run.sh [STEP]      STEP: only every STEP-th call (default 1).  BUILD: the build folder
#
# SIGKILL falls between any two calls, once more with all bytes torn that were not synced; SIGTERM lets the program save, so it must end with 0, 75 or 143.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
step=${1:-1}
work=$build/kill
refused=$(scripts/build-directory.sh mark "$build")
[ -z "$refused" ] || { echo "$refused" >&2; exit 1; }
rm -rf "$work"
mkdir -p "$work/tables"
library=$build/tests/kill/kill_at_call.so
export OPENBLAS_NUM_THREADS=1

small="--threads 1 --set runtime.checkpoint.every_layers=1"
# shellcheck disable=SC2086  # words
calibrate() { "$build/bin/exfold-calibrate" -q recipes/demo.yaml --output "$work/run" --set data.sequences=3 \
    --set data.max_tokens=64 --set coverage.fail_below=0 $small "$@"; }
# shellcheck disable=SC2086  # words
validate() { "$build/bin/exfold-validate" -q recipes/demo.yaml --output "$work/run" --set validate.sequences=3 \
    --set validate.max_tokens=64 --set "validate.tables=$work/tables/tables.h5" $small "$@"; }
# shellcheck disable=SC2086  # words
capture() { "$build/bin/exfold-capture" -q recipes/demo.yaml --output "$work/run" --set data.sequences=3 \
    --set data.max_tokens=64 --layers 0,2-3 $small "$@"; }

fail() { echo "kill: $program, signal $signal at call $n: $*" >&2; tail -3 "$work/log" >&2; exit 1; }

# The result: every file but the recipe's, which may hold another option.
result() { (cd "$work/run" && find . -name ".exfold-resume-$program" -o -type f ! -name exfold_recipe.yaml -exec sha256sum {} + | sort); }

# What must be gone: temporaries, and the claims on them.
left() { find "$work/run" \( -name '.*.partial' -o -name '.exfold-*' -type l \) -print; }

# Runs the program until it ends by itself; a run that was complete is refused for its own outputs.
go_on() {
    status=0
    "$program" >"$work/log" 2>&1 || status=$?
    [ $status = 4 ] && grep -q "exists already; --force" "$work/log" && [ ! -d "$work/run/.exfold-resume-$program" ] && return
    [ $status = 0 ] || fail "going on ended with $status"
}

sweep() { # PROGRAM SIGNAL [TORN]
    program=$1 signal=$2 torn=${3:-} stride=$step points=0 resumed=0
    [ -z "$torn" ] || stride=$((3 * step))
    rm -rf "$work/run"
    EXF_KILL_COUNT=$work/count LD_PRELOAD=$library "$program" >"$work/log" 2>&1 || fail "the undisturbed run ended with $?"
    calls=$(cat "$work/count")
    result >"$work/want"
    [ "$program" != calibrate ] || cp "$work/run/tables.h5" "$work/tables/"
    n=1
    while [ "$n" -le "$calls" ]; do
        rm -rf "$work/run"
        status=0
        EXF_KILL_TORN=$torn EXF_KILL_AT=$n EXF_KILL_SIGNAL=$signal LD_PRELOAD=$library "$program" >"$work/log" 2>&1 || status=$?
        case $signal-$status in
        9-137 | 15-0 | 15-75 | 15-143) ;;
        *) fail "ended with $status" ;;
        esac
        if [ -f "$work/run/.exfold-resume-$program/resume.json" ]; then resumed=$((resumed + 1))
        elif [ $status = 75 ]; then fail "promised to go on, without a resume point"; fi
        [ $status = 0 ] || go_on
        # A kill between the outputs and the end of the resume point leaves complete outputs.
        result >"$work/got"
        cmp -s "$work/want" "$work/got" || fail "the result differs: $(diff "$work/want" "$work/got" | head -3)"
        [ -z "$(left)" ] || fail "is left: $(left)"
        points=$((points + 1)) n=$((n + stride))
    done
    [ "$resumed" -gt 0 ] || fail "no run went on from a resume point"
    echo "kill: $program, signal $signal${torn:+ and what was not synced is torn}: $points of $calls calls, $resumed went on from a resume point, results equal, nothing left"
}

for program in calibrate validate capture; do
    sweep "$program" 9
    sweep "$program" 9 torn
    sweep "$program" 15
done

# A run that replaces the results of another one: killed at any call it leaves the old set, the new set, or
# one that verify refuses; it never leaves a mix that verify accepts.
replaced() {
    program=calibrate signal=9 n=1 points=0 refused=0
    rm -rf "$work/run"
    calibrate --set data.seed=9 >"$work/log" 2>&1 || fail "the old run ended with $?"
    result >"$work/old"
    cp -R "$work/run" "$work/before"
    force() { calibrate --force; }
    program=force
    EXF_KILL_COUNT=$work/count LD_PRELOAD=$library "$program" >"$work/log" 2>&1 || fail "the new run ended with $?"
    calls=$(cat "$work/count")
    result >"$work/want"
    while [ "$n" -le "$calls" ]; do
        rm -rf "$work/run" && cp -R "$work/before" "$work/run"
        EXF_KILL_AT=$n LD_PRELOAD=$library "$program" >"$work/log" 2>&1 || true
        if "$build/bin/exfold-inspect" verify "$work/run" >"$work/log" 2>&1; then
            result | grep -v '/[.]' >"$work/got" # temporary files are not of the set; the next run removes them
            cmp -s "$work/old" "$work/got" || cmp -s "$work/want" "$work/got" || fail "verify accepts a mix of two runs"
        else
            refused=$((refused + 1))
            force >"$work/log" 2>&1 || fail "the run again ended with $?"
            result >"$work/got"
            cmp -s "$work/want" "$work/got" || fail "the run again made other results"
            [ -z "$(left)" ] || fail "is left: $(left)"
        fi
        points=$((points + 1)) n=$((n + 4 * step))
    done
    [ "$refused" -gt 0 ] || fail "no kill fell between the renames"
    echo "kill: replacing, $points of $calls calls, $refused refused by verify and made again, the others one whole set"
}
replaced
