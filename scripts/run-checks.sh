#!/bin/sh
# run-checks.sh - run test programs one after another; all of them, then say which failed.
# usage: run-checks.sh PROGRAM ...        (RUNNER="valgrind ..." is put in front of each)
set -u
failed=
for program in "$@"; do
    ${RUNNER:-} "$program" || failed="$failed ${program##*/}"
done
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
