#!/bin/sh
# check-boundaries.sh - every constant that a CUDA file of kernels/ defines is crossed by a test, or has a reason not to be.
#
# A test crosses a constant by a row of its table of boundaries (tests/support/pairwise.h):
#     {"statistics/layer_sums_cuda.cu", "SEGMENT", H, 2048},
# tests/cuda/no-boundaries.txt has the others, a line each: FILE NAME REASON.  Told are:
#   - a constant of an enum of kernels/*/*.cu or *.cuh that neither has;
#   - a row or line whose text does not stand in the file that it names.
set -eu
cd "$(dirname "$0")/.."
scratch=$(mktemp -d "${TMPDIR:-/tmp}/exfold-boundaries.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# FILE NAME of every enumerator; comments are cut, an enum may have several lines.
for file in kernels/*/*.cu kernels/*/*.cuh; do
    awk -v file="${file#kernels/}" '
        { gsub(/\/\*[^*]*\*\//, ""); sub(/\/\/.*/, ""); text = text " " $0 }
        END {
            while (match(text, /enum [A-Za-z_0-9]*[ ]*{[^}]*}/)) {
                body = substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH)
                sub(/^[^{]*{/, "", body); sub(/}$/, "", body)
                depth = 0; name = ""; skip = 0
                for (i = 1; i <= length(body); i++) {
                    c = substr(body, i, 1)
                    if (c == "(") depth++
                    if (c == ")") depth--
                    if (c == "," && depth == 0) { print file, name; name = ""; skip = 0 }
                    else if (c == "=") skip = 1
                    else if (!skip && c ~ /[A-Za-z_0-9]/) name = name c
                }
                if (name != "") print file, name
            }
        }' "$file"
done | sort -u >"$scratch/constants"

# FILE<tab>TEXT of the rows, then of the lines.
sed -n 's/^ *{"\([^"]*\)", *"\([^"]*\)", *[A-Z_0-9a-z]*, .*/\1\t\2/p' tests/cuda/check_cuda_*.c >"$scratch/rows"
grep -v '^#' tests/cuda/no-boundaries.txt | sed -n 's/^\([^ ]*\) \([^ ]*\) ..*/\1\t\2/p' >"$scratch/excused"
cat "$scratch/rows" "$scratch/excused" >"$scratch/known"

bad=0
tr '\t' ' ' <"$scratch/known" | sort -u >"$scratch/named"
comm -23 "$scratch/constants" "$scratch/named" >"$scratch/uncrossed"
if [ -s "$scratch/uncrossed" ]; then
    echo "constants of kernels/ without a row of boundaries in tests/cuda, and without a line in tests/cuda/no-boundaries.txt:"
    cat "$scratch/uncrossed"
    bad=1
fi
while IFS="$(printf '\t')" read -r file text; do
    path=kernels/$file
    [ -f "$path" ] || path=src/$file
    if [ ! -f "$path" ]; then
        echo "a boundary names $file, which is no file of kernels/"
        bad=1
    elif ! grep -qF -e "$text" "$path"; then
        echo "a boundary names \"$text\", which $file does not have"
        bad=1
    fi
done <"$scratch/known"
[ "$bad" = 0 ] && echo "boundaries: $(wc -l <"$scratch/constants") constants, $(wc -l <"$scratch/rows") rows"
exit "$bad"
