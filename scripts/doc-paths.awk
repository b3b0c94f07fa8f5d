# doc-paths.awk - checks that every path that the documentation names, and every link and anchor, exists.
# usage: LIST-OF-FILES | awk -v roots="src docs ..." -f doc-paths.awk - PAGE.md ...
#
# A path is a word in backticks or in a fenced block that begins with a folder of the root or ends
# like a source file.  A source file may be named from the root, from src, include or kernels, or by its
# name alone.  <name> and * stand for any text, and at least one file must match; _cpu.c stands for the
# end of a name.  A path of the public runtimes' repository, ExFold-MoE/..., or one from the system's root, is not looked for.
# The target of a relative link is a file, its anchor a heading of that file.
# Exit status 1 if something was printed.

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
    if (path != "" && path !~ /^\// && !found(path)) { print FILENAME ":" FNR ": " path " does not exist"; bad = 1 }
}
function is_rooted(word,    top) { top = word; sub(/\/.*/, "", top); return index(word, "/") && (top in is_root) }
function is_source(word) { return word ~ /^[A-Za-z0-9_\/<>*-]+\.(c|h|cu|cuh|awk|sh)$/ }
function words(text,    w, n, i) {
    gsub(/[^\/ ]+\/\.\.\//, "", text)
    n = split(text, w, /[ ()|"',:;=]+/)
    for (i = 1; i <= n; i++) if (w[i] !~ /^ExFold-MoE\// && (is_rooted(w[i]) || is_source(w[i]))) check(w[i])
}
# The name that a heading gets as an anchor: small letters, digits and hyphens.
function anchor_of(heading) {
    sub(/^#+ */, "", heading)
    gsub(/`/, "", heading)
    while (match(heading, /\]\([^)]*\)/)) heading = substr(heading, 1, RSTART - 1) substr(heading, RSTART + RLENGTH)
    heading = tolower(heading)
    gsub(/[^a-z0-9_ -]/, "", heading)
    gsub(/ /, "-", heading)
    return heading
}
# What is linked to is looked at when all pages have been read.
function want(page, anchor) { wanted[++n_wanted] = page "#" anchor; wanted_at[n_wanted] = FILENAME ":" FNR }
function links(text,    target, folder, anchor) {
    while (match(text, /\]\([^)]*\)/)) {
        target = substr(text, RSTART + 2, RLENGTH - 3)
        text = substr(text, RSTART + RLENGTH)
        if (target ~ /^[a-z]+:/) continue
        anchor = target
        if (sub(/^[^#]*#/, "", anchor) == 0) anchor = ""
        sub(/#.*/, "", target)
        folder = FILENAME ~ /\// ? "docs/" : ""
        if (sub(/^\.\.\//, "", target)) folder = ""
        sub(/\/$/, "", target)
        if (target != "" && !(folder target in exists)) {
            print FILENAME ":" FNR ": a link to " folder target ", which does not exist"
            bad = 1
        }
        else if (anchor != "") want(target == "" ? FILENAME : folder target, anchor)
    }
}
BEGIN {
    n = split(roots, r, " ")
    for (i = 1; i <= n; i++) is_root[r[i]] = 1
    n_below = split("src include kernels", below, " ")
}
FILENAME == "-" || FILENAME == "" { exists[$0] = 1; name = $0; sub(/.*\//, "", name); named[name] = 1; next }
FNR == 1 { fenced = 0 }
!fenced && /^#+ / { anchors[FILENAME "#" anchor_of($0)] = 1 }
/^```/ { fenced = !fenced; next }
fenced { words($0); next }
{
    links($0)
    n_parts = split($0, part, "`")
    for (i = 2; i <= n_parts; i += 2) words(part[i])
}
END {
    for (i = 1; i <= n_wanted; i++)
        if (!(wanted[i] in anchors)) { print wanted_at[i] ": a link to " wanted[i] ", where no such heading is"; bad = 1 }
    exit bad
}
