#!/bin/sh
# test.sh - installs what is missing, builds, and runs every test that needs no GPU.
# The Makefile does the work (make check, check-reference, check-san, check-valgrind, check-fuzz);
# this script calls it and counts.  The last line is "N passed, N failed".
# With INTEROP=1 also make check-interop, which installs PyTorch (about 1 GB).
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
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

step() { # COMMAND ...
    echo "==> $*"
    began=$(date +%s)
    status=$({ { "$@" 2>&1; echo $? >&3; } | tee "$log" >&4; } 3>&1)
    # shellcheck disable=SC2046  # two numbers
    set -- $(count "$status")
    passed=$((passed + $1)) failed=$((failed + $2))
    echo "==> $1 passed, $2 failed in $(($(date +%s) - began)) s"
    return "$status"
}

scripts/install-dependencies.sh || { failed=1; finish; }
for tool in gcc make valgrind; do "$tool" --version | head -n 1; done
step make -s -j"$jobs" BUILD="$BUILD" all checks || finish
step make -s -k BUILD="$BUILD" check
step make -s BUILD="$BUILD" check-reference
step make -s -k -j"$jobs" BUILD="$BUILD" check-san
step make -s BUILD="$BUILD" check-valgrind
step make -s -j"$jobs" BUILD="$BUILD" check-fuzz
[ "${INTEROP:-0}" = 0 ] || step make -s -j"$jobs" BUILD="$BUILD" check-interop
finish
