#!/bin/sh
# run-checks.sh - run every suite of test programs, each in a process of its own and one for
# each processor at a time; then say which failed and which took longest.  What a suite prints
# comes whole, when it ends.
# usage: run-checks.sh PROGRAM ...        (RUNNER="valgrind ..." is put in front of each; JOBS=1)
set -u

# One suite, for the main script below: a line "ROOM.SUITE STATUS" when it has ended.
if [ "${1:-}" = --one ]; then # DIRECTORY PROGRAM SUITE
    name=${3##*/}.$4 status=0
    ${RUNNER:-} "$3" "$4" >"$2/$name" 2>&1 || status=$?
    echo "$name $status"
    exit 0
fi

jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}
outputs=$(mktemp -d "${TMPDIR:-/tmp}/exfold-checks.XXXXXX") || exit 1
trap 'rm -rf "$outputs"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
began=$(date +%s)

for program in "$@"; do
    "$program" --list >"$outputs/names" && [ -s "$outputs/names" ] || { echo "$program: lists no suites" >&2; exit 1; }
    sed "s|^|$program |" "$outputs/names"
done >"$outputs/list" || exit 1

: >"$outputs/failed"
xargs -n 2 -P "$jobs" "$0" --one "$outputs" <"$outputs/list" |
    while read -r name status; do
        cat "$outputs/$name"
        echo >>"$outputs/ended"
        [ "$status" = 0 ] || echo "$name (status $status)" >>"$outputs/failed"
    done

n=$(wc -l <"$outputs/list") ended=$(wc -l <"$outputs/ended")
slowest=$(cat "$outputs"/*.check_* | sed -n 's|^\([a-z0-9_]*/check_[a-z0-9_]*\): \([0-9.]*\) s$|\2 \1|p' | sort -rn | head -n 6 |
    awk '{ printf "%s%s %s s", sep, $2, $1; sep = ", " }')
echo "$((ended)) suites in $(($(date +%s) - began)) s, $jobs at a time; the slowest: ${slowest:-none}"
[ "$n" = "$ended" ] || { echo "FAILED: $n suites, but only $ended ended"; exit 1; }
[ ! -s "$outputs/failed" ] || { echo "FAILED:"; cat "$outputs/failed"; exit 1; }
