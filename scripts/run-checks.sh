#!/bin/sh
# run-checks.sh - run test programs, one for each processor at a time; all of them, then say
# which failed.  What they print comes whole and in the order they are named in.
# usage: run-checks.sh PROGRAM ...        (RUNNER="valgrind ..." is put in front of each; JOBS=1)
set -u
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}
outputs=$(mktemp -d "${TMPDIR:-/tmp}/exfold-checks.XXXXXX") || exit 1
trap 'rm -rf "$outputs"' EXIT
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT
trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
failed='' running=''

# The oldest of those that run.
end_one() {
    # shellcheck disable=SC2086 # words
    set -- $running
    ended=${1%%=*}
    wait "${1#*=}" || failed="$failed $ended"
    cat "$outputs/$ended"
    shift
    running=$*
}

for program in "$@"; do
    # shellcheck disable=SC2086 # words
    set -- $running
    [ $# -lt "$jobs" ] || end_one
    name=${program##*/}
    ${RUNNER:-} "$program" >"$outputs/$name" 2>&1 &
    running="$running $name=$!"
done
while [ -n "$running" ]; do end_one; done
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
