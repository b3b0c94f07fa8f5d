#!/bin/sh
# run.sh - lets the n-th call of small runs fail, and judges what the program says of it: memory, mappings,
# threads, read, write, fsync, rename, remove, mkdir, open, stat; once and from then on. And lets them have less
# memory than they need, from none to nearly all of it, so that whatever is asked for last fails, in a library or not.
# usage: run.sh [STEP]      about every STEP-th call of a kind (default 3000); BUILD: the build folder
# CALLS=cuda: calls of the CUDA runtime instead, in programs linked with its shared library; STEP is 100 by default;
#             needs a GPU: of calibrate and validate some 150 runs of about a second
#
# A point is wrong if the program is killed by a signal, runs for 20 seconds, ends with 0 and another result, ends
# with a status that does not go with the fault, or names another reason.  What is left under a final name must be
# a whole file of the undisturbed result, and the same command without a fault must give that result.
set -eu
cd "$(dirname "$0")/../.."
root=$(pwd)
build=${BUILD:-build}
case $build in
/*) ;;
*) build=$root/$build ;;
esac
calls_of=${CALLS:-system} bin=$build/bin device=cpu programs="calibrate capture accumulate validate solve merge inspect verify report export"
step=${1:-3000}
if [ "$calls_of" = cuda ]; then
    bin=$build/cudart/bin device=cuda programs="calibrate validate"
    step=${1:-100}
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-faults.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
library=$build/tests/faults/fault_at_call.so
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 OPENBLAS_CORETYPE=Haswell
cp -R tests/bad/base/. "$work"
cd "$work"

# The program's command after a prefix: `run` alone, or `run env NAME=VALUE ...`.
run() {
    case $program in
    calibrate) "$@" "$bin/exfold-calibrate" -q recipe.yaml --backend $device --output out --force \
        --set runtime.checkpoint.every_layers=1 ;;
    capture) "$@" "$bin/exfold-capture" -q recipe.yaml --output out --force ;;
    accumulate) "$@" "$bin/exfold-accumulate" -q capture/capture.h5 --output out --force ;;
    validate) "$@" "$bin/exfold-validate" -q recipe.yaml --backend $device --output out --force --set validate.manifest=manifest.yaml \
        --set validate.tables=ready/tables.h5 --set validate.variants=top1:drop ;;
    solve) "$@" "$bin/exfold-solve" -q ready/statistics.h5 --output out --force ;;
    merge) "$@" "$bin/exfold-merge" -q ready/statistics.h5 other/statistics.h5 --output out/statistics.h5 --force ;;
    inspect) "$@" "$bin/exfold-inspect" ready/tables.h5 ;;
    verify) "$@" "$bin/exfold-inspect" verify ready/statistics.h5 ready/tables.h5 ;;
    report) "$@" "$bin/exfold-inspect" report ready/tables.h5 ready/statistics.h5 -o out/report.html --force ;;
    export) "$@" "$bin/exfold-export" -q ready/tables.h5 --output out --force ;;
    esac
}

# Every file of the result, and what was printed.
result() { mkdir -p out; (cd out && find . -type f ! -path '*/.*' -exec sha256sum {} + | LC_ALL=C sort); cat said; }

fresh() { rm -rf out && mkdir out; }

wrong() { # WHAT
    bad=$((bad + 1))
    echo "faults: $program, $fault: $1: $(tail -n 1 noise | cut -c 1-300)"
}

# The status and the words that go with an error.
judge() {
    case $status in
    0) result | cmp -s want - || wrong "status 0 with another result"; return ;;
    124 | 137) wrong "runs for 20 seconds"; return ;;
    esac
    [ "$status" -lt 128 ] || { wrong "killed, status $status"; return; }
    case ${fault%%:*}:${fault#*:*:} in
    cuda-memory:*) [ "$status" = 7 ] && grep -q 'memory' noise ;;
    cuda-*) [ "$status" = 9 ] && grep -q 'CUDA\|GPU' noise ;;
    *:12*) [ "$status" = 7 ] && grep -qi 'memory\|cannot allocate' noise ;;
    *:28*) [ "$status" = 7 ] && grep -qi 'no space left' noise ;;
    *:11*) [ "$status" = 7 ] && grep -qi 'thread' noise ;;
    *:5*) [ "$status" = 4 ] && grep -qi 'input/output error' noise ;;
    esac || wrong "status $status"
}

# Files that were left are whole, and the next run makes all of them.
look_at_rest() {
    mkdir -p out
    (cd out && find . -type f ! -path '*/.*' -exec sha256sum {} + | LC_ALL=C sort) >left
    [ -z "$(comm -23 left want.files)" ] || wrong "another result is left"
    [ -n "$(ls -A out)" ] || return 0
    run >said 2>noise || wrong "the next run fails"
    result | cmp -s want - || wrong "the next run gives another result"
    [ -z "$(find out -path '*/.*' -type f)" ] || wrong "a hidden file is left"
}

point() { # CALL NUMBER ERROR [:on]
    fault=$1:$2:$3${4:-} status=0
    fresh
    run timeout -s KILL 20 env EXF_FAULT="$fault" LD_PRELOAD="$library" >said 2>noise || status=$?
    points=$((points + 1))
    judge
    look_at_rest
}

# About every STEP-th call, but each of the first 8 of a kind.
sweep_kind() { # CALL ERROR [:on]
    calls=$(sed -n "s/^$1 //p" count)
    n=1
    while [ "$n" -le "$calls" ]; do
        point "$1" "$n" "$2" "${3:-}"
        if [ "$n" -lt 8 ] && [ "$step" -lt 100 ]; then n=$((n + 1)); else n=$((n + step)); fi
    done
}

# The program's addresses end N pages after what it has when it begins.
sweep_limits() {
    pages=$(sed -n 's/^limit //p' count)
    n=0
    while [ "$n" -le "$pages" ]; do
        point limit "$n" 12
        n=$((n + pages * step / 120000 + 1))
    done
}

# The first calls of a kind and about every STEP-th after them; 2 and 719: no memory, a launch that failed.
sweep_cuda() { # CALL ERROR [:on]
    calls=$(sed -n "s/^$1 //p" count)
    [ "$calls" -gt 0 ] || wrong "no call of $1 was seen"
    n=1
    while [ "$n" -le "$calls" ]; do
        point "$1" "$n" "$2" "${3:-}"
        if [ "$n" -lt 3 ]; then n=$((n + 1)); else n=$((n + step)); fi
    done
    fresh
    run >said 2>noise || wrong "a run without a fault fails"
    result | cmp -s want - || wrong "a run without a fault gives another result"
}

sweep_all_cuda() {
    for when in '' :on; do
        sweep_cuda cuda-memory 2 $when
        for call in copy make wait launch; do sweep_cuda cuda-$call 719 $when; done
    done
}

sweep_system() {
    for when in '' :on; do
        sweep_kind malloc 12 $when
        small=$step step=$((step / 40 + 1))
        sweep_kind mmap 12 $when
        sweep_kind thread 11 $when
        for call in read write fsync open rename remove mkdir; do sweep_kind $call 5 $when; done
        few=$step step=4 # from a failing look-up on, nothing can be proved any more
        sweep_kind stat 5 $when
        step=$few
        for call in write fsync open rename mkdir; do sweep_kind $call 28 $when; done
        step=$small
    done
    sweep_limits
}

bad=0 total=0 program=calibrate fault=none
run >said
cp -R out ready
for i in 1 2 3 4; do echo '{"text": "Another text than the corpus has, to be merged with it: number '$i'."}'; done >other.jsonl
printf '%s\n' 'schema: exfold-manifest/1' 'sources:' '  - {path: other.jsonl, format: jsonl}' >other.yaml
"$bin/exfold-calibrate" -q recipe.yaml --backend $device --set data.manifest=other.yaml --output other >said
"$bin/exfold-capture" -q recipe.yaml --output capture >said
for program in ${PROGRAMS:-$programs}; do
    points=0
    fresh
    run env EXF_FAULT_COUNT=count LD_PRELOAD="$library" >said 2>noise || { cat noise >&2; exit 1; }
    result >want
    (cd out && find . -type f ! -path '*/.*' -exec sha256sum {} + | LC_ALL=C sort) >want.files
    if [ "$calls_of" = cuda ]; then sweep_all_cuda; else sweep_system; fi
    echo "faults: $program: $points points"
    total=$((total + points))
done
echo "faults: $total points, $bad wrong"
[ "$bad" = 0 ]
