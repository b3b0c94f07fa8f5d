#!/bin/sh
# run-checks.sh - run every suite of test programs, each in a process of its own and one for
# each processor at a time; then say which failed and which took longest.  What a suite prints
# comes whole, when it ends.
# usage: run-checks.sh PROGRAM ...        (RUNNER="valgrind ..." is put in front of each; JOBS=1; WITHOUT=SUITE: one that is left out)
#
# How messages of errors are worded is kept in tests/golden/messages.txt, numbers left out: a suite that meets another wording
# fails.  ACCEPT_MESSAGES=1 writes the file anew from the messages of all programs (make messages).  What only a GPU says, or
# a build without MPI, is in tests/golden/messages_elsewhere.txt.
set -u

# One suite, for the main script below: a line "ROOM.SUITE STATUS" when it has ended.
if [ "${1:-}" = --one ]; then # DIRECTORY PROGRAM SUITE
    name=${3##*/}.$4 status=0
    EXF_TEST_MESSAGES=$2/$name.messages ${RUNNER:-} "$3" "$4" >"$2/$name" 2>&1 || status=$?
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
    grep -vx "${WITHOUT:-}" "$outputs/names" | sed "s|^|$program |"
done >"$outputs/all" || exit 1
# TIER=fast leaves out the suites of tests/slow.txt, TIER=slow runs no others.
case ${TIER:-all} in
all) cp "$outputs/all" "$outputs/list" ;;
*) awk -v tier="$TIER" '
    NR == FNR { slow[$1] = 1; next }
    { room = $1; sub(/.*\//, "", room) }
    ((room "/" $2) in slow) == (tier == "slow")' tests/slow.txt "$outputs/all" >"$outputs/list" ;;
esac
left=$(($(wc -l <"$outputs/all") - $(wc -l <"$outputs/list")))

: >"$outputs/failed"
xargs -n 2 -P "$jobs" "$0" --one "$outputs" <"$outputs/list" |
    while read -r name status; do
        cat "$outputs/$name"
        echo >>"$outputs/ended"
        [ "$status" = 0 ] || echo "$name (status $status)" >>"$outputs/failed"
    done

# Numbers differ from run to run: inodes, sizes, digests.
golden=tests/golden/messages.txt elsewhere=tests/golden/messages_elsewhere.txt
find "$outputs" -name '*.messages' -exec cat {} + |
    sed 's/[0-9a-f]\{12,\}/#/g; s/[0-9][0-9]*/#/g' | LC_ALL=C sort -u >"$outputs/messages"
if [ -n "${ACCEPT_MESSAGES:-}" ]; then
    LC_ALL=C comm -13 "$elsewhere" "$outputs/messages" >"$golden"
else
    LC_ALL=C sort -u "$golden" "$elsewhere" | LC_ALL=C comm -13 - "$outputs/messages" >"$outputs/new"
    if [ -s "$outputs/new" ]; then
        echo "messages that $golden has not (make messages writes it anew):"
        cat "$outputs/new"
        echo "messages" >>"$outputs/failed"
    fi
fi

n=$(wc -l <"$outputs/list") ended=$(wc -l <"$outputs/ended")
slowest=$(cat "$outputs"/*.check_* | sed -n 's|^\([a-z0-9_]*/check_[a-z0-9_]*\): \([0-9.]*\) s$|\2 \1|p' | sort -rn | head -n 6 |
    awk '{ printf "%s%s %s s", sep, $2, $1; sep = ", " }')
echo "$((ended)) suites in $(($(date +%s) - began)) s, $jobs at a time; the slowest: ${slowest:-none}"
[ "${TIER:-all}" != fast ] || echo "$left suites of tests/slow.txt are left to make check-slow"
[ "$n" = "$ended" ] || { echo "FAILED: $n suites, but only $ended ended"; exit 1; }
[ ! -s "$outputs/failed" ] || { echo "FAILED:"; cat "$outputs/failed"; exit 1; }
