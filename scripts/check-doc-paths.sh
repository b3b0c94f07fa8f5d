#!/bin/sh
# check-doc-paths.sh - checks that every path of the repository that the documentation names exists.
#
# A path is a word in backticks or in a fenced block that begins with a folder of the root or ends
# like a source file, or the target of a relative link.  A source file may be named from the root,
# from src, include or kernels, or by its name alone.  <name> and * stand for any text, and at
# least one file must match; _cpu.c stands for the end of a name.
set -eu
cd "$(dirname "$0")/.."
roots='src kernels include tests scripts docs examples recipes data-manifests .ci .github'
documents='README.md CONTRIBUTING.md docs/*.md'

# shellcheck disable=SC2086 # both are lists of words
{
    for root in $roots; do [ ! -e "$root" ] || find "$root" -name __pycache__ -prune -o -print; done
    find . -maxdepth 1 -type f | sed 's|^\./||'
} | awk -v roots="$roots" '
function matching(pattern,    path) {
    for (path in exists) if (path ~ pattern) return 1
    return 0
}
# 1 if the path, from the root or below one of the folders that includes start from, exists.
function found(path,    i) {
    if (path ~ /[<*]/ || path ~ /^_/) {
        gsub(/\./, "\\.", path)
        gsub(/<[^>]*>|\*/, "[^/]*", path)
        if (path ~ /^_/) path = "[^/]*" path
        return matching("(^|/)" path "$")
    }
    if (path in exists || path in named) return 1
    for (i = 1; i <= n_below; i++) if ((below[i] "/" path) in exists) return 1
    return 0
}
function check(path) {
    sub(/#.*/, "", path)
    sub(/[\/.,;:]+$/, "", path)
    if (path != "" && !found(path)) { print FILENAME ":" FNR ": " path " does not exist"; bad = 1 }
}
function is_rooted(word,    top) { top = word; sub(/\/.*/, "", top); return index(word, "/") && (top in is_root) }
function is_source(word) { return word ~ /^[A-Za-z0-9_\/<>*-]+\.(c|h|cu|cuh|awk|sh)$/ }
function words(text,    w, n, i) {
    gsub(/[^\/ ]+\/\.\.\//, "", text)
    n = split(text, w, /[ ()|"'"'"',:;=]+/)
    for (i = 1; i <= n; i++) if (is_rooted(w[i]) || is_source(w[i])) check(w[i])
}
function links(text,    target, folder) {
    while (match(text, /\]\([^)]*\)/)) {
        target = substr(text, RSTART + 2, RLENGTH - 3)
        text = substr(text, RSTART + RLENGTH)
        if (target ~ /^([a-z]+:|#)/) continue
        folder = FILENAME ~ /\// ? "docs/" : ""
        if (sub(/^\.\.\//, "", target)) folder = ""
        check(folder target)
    }
}
BEGIN {
    n = split(roots, r, " ")
    for (i = 1; i <= n; i++) is_root[r[i]] = 1
    n_below = split("src include kernels", below, " ")
}
FILENAME == "-" || FILENAME == "" { exists[$0] = 1; name = $0; sub(/.*\//, "", name); named[name] = 1; next }
FNR == 1 { fenced = 0 }
/^```/ { fenced = !fenced; next }
fenced { words($0); next }
{
    links($0)
    n_parts = split($0, part, "`")
    for (i = 2; i <= n_parts; i += 2) words(part[i])
}
END { exit bad }' - $documents
