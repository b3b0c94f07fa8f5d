#!/bin/sh
# check-calls.sh - no source files call each other in a circle: two that do are one chapter, or a third lies below both.
# usage: check-calls.sh OBJECT ...        (all of a library; prints the files of each circle)
set -eu
symbols=$(nm -A -P "$@" 2>/dev/null) || { echo "check-calls: nm cannot read all of these objects" >&2; exit 1; }
printf '%s\n' "$symbols" | awk '
    { file = $1; sub(/:$/, "", file); symbol = $2; kind = $3 }
    kind == "U" { user[++n] = file; used[n] = symbol; next }
    kind ~ /^[A-Z]$/ { definer[symbol] = file }
    END {
        for (i = 1; i <= n; i++)
            if ((used[i] in definer) && definer[used[i]] != user[i]) print user[i], definer[used[i]]
    }' | sort -u | tsort >/dev/null
echo "calls: ok ($# files)"
