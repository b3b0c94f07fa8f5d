# doc-output.awk - compares lines quoted in a page with what a program printed.
# usage: awk -v page=NAME -v first=LINE -f doc-output.awk QUOTED PRINTED      (scripts/check-docs.sh)
#
# QUOTED has "NUMBER<tab>LINE", numbered from the block's first line; a line "..." stands for any number of
# lines.  The other lines must be printed in this order, one after the other.  Words are
# compared as text and numbers within 1 % (other processors round otherwise); what differs from run to
# run is replaced by # on both sides: digests, times, rates, memory, shares of time, the processor.
# Exit status 1 and a finding at the first line that is not printed.

function plain(line) {
    gsub(/[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]*(\.\.\.)?/, "#", line)
    gsub(/[0-9][0-9]:[0-9][0-9]:[0-9][0-9]/, "#", line)
    gsub(/[0-9.]+k? tok(ens)?\/s/, "# tokens/s", line)
    gsub(/[0-9.e+]+ GFLOP\/s/, "# GFLOP/s", line)
    gsub(/(rss|memory|RAM +about) [0-9.]+ [kMG]B/, "memory #", line)
    gsub(/in [0-9.]+ s/, "in # s", line)
    if (line ~ /^ +start /) gsub(/ [-+0-9.e]+ s/, " # s", line) # terms of a plan
    gsub(/on [0-9]+ threads/, "on # threads", line)
    sub(/backend: .*/, "backend: #", line)
    sub(/share: .*/, "share: #", line)
    gsub(/[0-9.]+ (B|kB)  /, "#  ", line) # of files that hold digests or commits
    if (line ~ /^wrote /) sub(/[0-9.]+ (B|kB)$/, "#", line)
    gsub(/[ \t]+/, " ", line)
    sub(/ $/, "", line)
    return line
}
function close_to(a, b,    d) {
    d = a - b
    if (d < 0) d = -d
    a = a < 0 ? -a : a
    return d <= 0.01 * a || d <= 1.5e-4
}
# Punctuation and all, but for the digits of numbers.
function same(quoted, printed,    q, p, n, i, a, b) {
    n = split(plain(quoted), q, " ")
    if (n != split(plain(printed), p, " ")) return 0
    for (i = 1; i <= n; i++) {
        if (q[i] == p[i]) continue
        a = q[i]; b = p[i]
        gsub(/[0-9][0-9.]*/, "N", a); gsub(/[0-9][0-9.]*/, "N", b)
        if (a != b) return 0
        a = q[i]; b = p[i]
        gsub(/[^0-9.]/, "", a); gsub(/[^0-9.]/, "", b)
        if (!close_to(a + 0, b + 0)) return 0
    }
    return 1
}
# The printed line that begins as the quoted one does, for the message.
function nearest(quoted,    i, word, q) {
    split(quoted, q, " ")
    for (i = 1; i <= n_printed; i++) if (index(printed[i], q[1]) && (q[2] == "" || index(printed[i], q[2]))) return printed[i]
    return at < n_printed ? printed[at + 1] : "nothing more"
}
FNR == NR { number[++n_quoted] = $0 + 0; sub(/^[0-9]+\t/, ""); quoted[n_quoted] = $0; next }
{ printed[++n_printed] = $0 }
END {
    at = 0
    for (i = 1; i <= n_quoted; i++) {
        if (quoted[i] == "...") { skips = 1; continue }
        for (k = at + 1; k <= n_printed && !same(quoted[i], printed[k]); k++) if (!skips) break
        if (k > n_printed || !same(quoted[i], printed[k])) {
            print page ":" first + number[i] ": quoted is \"" quoted[i] "\", printed \"" nearest(quoted[i]) "\""
            exit 1
        }
        at = k; skips = 0
    }
}
