#!/bin/sh
# check-layers.sh - the house's rules that a compiler cannot check:
#   - no #include points up or sideways in scripts/layers.txt;
#   - a foreign header is included by its wrapper only;
#   - no modules include each other in a circle (scripts/include-circles.awk);
#   - what a header declares is defined in its own module (scripts/declared-elsewhere.awk);
#   - no two source files share a name (a file is found by its name alone);
#   - nothing below src/recipe prints, exits or aborts (src/base/log.c is the stderr user);
#   - no address stands anywhere but of $hosts: what is installed comes from where apt and pip are configured to look;
#   - no file is over 800 lines, no line over $columns columns, none holds a tab;
#   - no .c file is under $least lines but rows of registries ($registries) and those of scripts/small-files.txt.
set -eu
cd "$(dirname "$0")/.."
files=$(find src kernels -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
headers=$(find include -name '*.h' | sort)
tests=$(find tests -name '*.[ch]' -o -name '*.cu' | sort)
columns=132
least=60
registries='artifact_ exfold family_ mixer_ projector_ runtime_ writer_'
hosts='github.com git-lfs.github.com json-schema.org www.apache.org www.debian.org example.org'
bad=0

includes=$(echo "$files $headers" | xargs grep -Hno '^ *# *include *["<][^">]*[">]')

echo "$includes" |
awk -F: '
function glob(pat, s) { gsub(/\./, "\\.", pat); gsub(/\*/, "[^/]*", pat); return s ~ ("^" pat "$") }
FNR == NR {
    if ($0 ~ /^#/ || $0 ~ /^ *$/) next
    key = $1; gsub(/ /, "", key); allow[key] = " " $2 " "; next
}
{
    file = $1; line = $2; inc = $3; sub(/^[^"<]*["<]/, "", inc); sub(/[">].*/, "", inc)
    from = file; sub(/^src\//, "", from); sub(/\/.*/, "", from)
    if (("@" inc) in allow) {
        ok = 0; n = split(allow["@" inc], p, " ")
        for (i = 1; i <= n; i++) if (glob(p[i], file)) ok = 1
        if (!ok) { print file ":" line ": <" inc "> may only be included by" allow["@" inc]; bad = 1 }
        next
    }
    if (inc !~ /\//) next
    to = inc; sub(/\/.*/, "", to)
    if (to == "gen" || to == from || !(to in allow)) next
    if (!(from in allow)) { print file ": module \"" from "\" is not in layers.txt"; bad = 1; next }
    if (index(allow[from], " " to " ") == 0) { print file ":" line ": " from " may not include " to; bad = 1 }
}
END { exit bad }' scripts/layers.txt - || bad=1

# FILE INCLUDED, both as paths from the root.
{ echo "$files" "$headers" | tr ' ' '\n'; echo "$includes"; } | awk -F: '
NF == 1 { is_file[$0] = 1; next }
/"/ {
    split($3, quoted, "\"")
    n = split("src/ include/", root, " ")
    path = quoted[2]
    for (i = 1; i <= n; i++) if ((root[i] quoted[2]) in is_file) path = root[i] quoted[2]
    if (path in is_file) print $1, path
}' | awk -f scripts/include-circles.awk || bad=1

# shellcheck disable=SC2086 # words
elsewhere=$(awk -f scripts/declared-elsewhere.awk $headers $files || true)
[ -z "$elsewhere" ] || { echo "$elsewhere"; bad=1; }

twice=$(echo "$files" | sed 's|.*/||' | sort | uniq -d)
[ -z "$twice" ] || { echo "same name twice: $twice"; bad=1; }

loud=$(echo "$files" | grep -v -e '^src/cli/' -e '^src/run/' -e '^src/recipe/' -e '^src/base/log\.c$' |
    xargs grep -nE '(^|[^a-z_])(printf|puts|putchar|perror|exit|_exit|abort)\(|stderr|stdout' | grep -v '^[^:]*:[0-9]*: *\(\*\|/\*\|//\)' || true)
[ -z "$loud" ] || { echo "below src/recipe nothing prints, exits or aborts:"; echo "$loud"; bad=1; }

elsewhere=$(grep -rsIoE '([a-z]+://[A-Za-z0-9.-]+|--(extra-)?index-url)' ./*.md Makefile install.mk .ci .github data-manifests docs \
    examples include kernels recipes scripts src tests |
    awk -v "hosts=$hosts" '
        BEGIN { n = split(hosts, host, " "); for (i = 1; i <= n; i++) known["http://" host[i]] = known["https://" host[i]] = 1 }
        { found = $0; sub(/^[^:]*:/, "", found) }
        !(found in known) { print }' || true)
[ -z "$elsewhere" ] || { echo "an address or an index of packages that check-layers.sh does not know:"; echo "$elsewhere"; bad=1; }

long=$(echo "$files" | xargs wc -l | awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines, at most 800" }')
[ -z "$long" ] || { echo "$long"; bad=1; }

# shellcheck disable=SC2086 # words
small=$(echo "$files" | grep '\.c$' | xargs wc -l | awk -v least="$least" -v registries="$registries" '
BEGIN { n = split(registries, prefix, " ") }
FILENAME != "-" { if ($0 !~ /^#/ && NF) listed[$1] = 1; next }
$2 == "total" { next }
{ lines[$2] = $1 }
END {
    for (path in lines) {
        if (lines[path] >= least) continue
        name = path; sub(/.*\//, "", name)
        row = 0
        for (i = 1; i <= n; i++) row = row || index(name, prefix[i]) == 1
        used[path] = !row
        if (row || path in listed) continue
        print path ": " lines[path] " lines, at least " least ": a paragraph of a neighbour, or a row of scripts/small-files.txt"
    }
    for (path in listed) if (!used[path]) print "scripts/small-files.txt: " path " needs no row"
}' scripts/small-files.txt - | sort)
[ -z "$small" ] || { echo "$small"; bad=1; }

# A character of UTF-8 is one column, however many bytes it has.
# shellcheck disable=SC2086 # words
wide=$(LC_ALL=C awk -v most="$columns" '
/\t/ { print FILENAME ":" FNR ": a tab; indent with spaces" }
length($0) > most { gsub(/[\200-\277]/, "") }
length($0) > most { print FILENAME ":" FNR ": " length($0) " columns, at most " most }' $files $headers $tests)
[ -z "$wide" ] || { echo "$wide"; bad=1; }

[ "$bad" = 0 ] && echo "layers: ok ($(echo "$files" | wc -l) files)"
exit "$bad"
