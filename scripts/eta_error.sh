#!/bin/sh
# eta_error.sh - how right the estimates of the time left were, from logs of --progress=json.
# usage: eta_error.sh LOG ...        (LEAST=0.2 leaves the first fifth out; a log is the stderr of one run)
# For each log: the seconds of its work, the estimates, and the error of "seconds left" after the first
# fifth, in per cent of the seconds that were really left; the last 2 % of the work are left out, where a
# second more or less is any number of per cent.
set -eu
[ $# -gt 0 ] || { echo "usage: eta_error.sh LOG ..." >&2; exit 2; }
printf '%-28s %9s %10s %11s %11s %14s\n' log seconds estimates "mean error" "worst error" "within 30 %"
for log; do
    awk -v least="${LEAST:-0.2}" -v log_name="$(basename "$log")" '
function field(name) {
    return match($0, "\"" name "\":[-+.0-9e]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : -1
}
/"what":"layer"/ || /"event":"layer"/ {
    if (field("eta_seconds") >= 0) { n++; at[n] = field("elapsed_seconds"); eta[n] = field("eta_seconds") }
    else if (!n && field("elapsed_seconds") >= 0) first = field("elapsed_seconds")
}
/"event":"forward"/ { seconds = field("seconds"); end = field("elapsed_seconds") }
END {
    if (!n || end <= 0) { print log_name ": no progress or no end of the work in it" > "/dev/stderr"; exit 1 }
    for (i = 1; i <= n; i++) {
        left = end - at[i]
        if (seconds - left < least * seconds || left < 0.02 * seconds) continue
        error = (eta[i] > left ? eta[i] - left : left - eta[i]) / left
        sum += error; used++; good += error <= 0.3
        if (error > worst) worst = error
    }
    if (!used) { print log_name ": the run is too short, no estimate after its first part" > "/dev/stderr"; exit 1 }
    printf "%-28s %9.2f %10d %9.1f %% %9.1f %% %7d of %d\n", log_name, seconds, used, 100 * sum / used, 100 * worst, good, used
}' "$log"
done
