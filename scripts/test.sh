#!/bin/sh
# test.sh - installs what is missing, builds, and runs tests that need no GPU: a few minutes.
# usage: test.sh [full]         The last line is "N passed, N failed".
#
# The Makefile does the work; this script calls it and counts.  Without an argument: make check.
# full: the steps of make check-full, about forty minutes; INTEROP=1 adds make check-interop, which
# installs PyTorch and vLLM (about 9 GB).  GPU code is not compiled (CUDA=0), unless CUDA=1 or CUDA=auto is set.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build} CUDA=${CUDA:-0}
case "$# ${1:-}" in
"0 ") tier=fast ;;
"1 full") tier=full ;;
*) echo "usage: test.sh [full]" >&2; exit 2 ;;
esac
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
log=$(mktemp "${TMPDIR:-/tmp}/exfold-test.XXXXXX") || exit 1
trap 'rm -f "$log"' EXIT
exec 4>&1 # standard output, also inside $( )
trap 'exit 130' INT
trap 'exit 143' TERM
passed=0 failed=0

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit
}

# Cases that a step's output tells of: "Checks: N, Failures: N, Errors: N" of a unit
# test program, "N passed, N failed" of the others.  A step that tells of none, or
# fails without telling, is one case itself.
count() { # STATUS
    awk -v status="$1" '
        /^[0-9]+%: Checks: / { bad = $5 + $7; good += $3 - bad; fail += bad; next }
        match($0, /[0-9]+ passed, [0-9]+ failed/) {
            split(substr($0, RSTART, RLENGTH), n, / passed, | failed/); good += n[1]; fail += n[2]
        }
        END { if (status && !fail) fail = 1; if (!status && !good) good = 1; print good + 0, fail + 0 }' "$log"
}

step() { # TARGET ... of make
    echo "==> make $*"
    began=$(date +%s)
    status=$({ { make_it "$@" 2>&1; echo $? >&3; } | tee "$log" >&4; } 3>&1)
    # shellcheck disable=SC2046  # two numbers
    set -- $(count "$status")
    passed=$((passed + $1)) failed=$((failed + $2))
    echo "==> $1 passed, $2 failed in $(($(date +%s) - began)) s"
    return "$status"
}

make_it() { # TARGET ...
    make -s BUILD="$BUILD" CUDA="$CUDA" "$@"
}

scripts/install-dependencies.sh "$@" || { failed=1; finish; }
for tool in gcc make; do "$tool" --version | head -n 1; done
whole=$(date +%s)
step -j"$jobs" all checks || finish
if [ "$tier" = full ]; then
    # shellcheck disable=SC2046 # words
    set -- $(make_it print-full)
else
    set -- check
fi
for target; do
    case $target in
    check-san | check-fuzz | check-tsan | check-cuda) step -k -j"$jobs" "$target" ;; # these build first
    *) step -k "$target" ;;
    esac
done
echo "==> all steps: $(($(date +%s) - whole)) s on $jobs processors"
finish
