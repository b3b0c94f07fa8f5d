#!/bin/sh
# bench.sh - how fast a calibration is, and how much of the machine that is.
# usage: bench.sh [RECIPE]      (RUNS=7; BUILD=build; default recipe: recipes/demo.yaml)
# Medians over RUNS runs.  The floor is the run's floating-point operations at the
# rate of this machine's matrix product, both as --dry-run --force tells them.
set -eu
cd "$(dirname "$0")/.."
recipe=${1:-recipes/demo.yaml} runs=${RUNS:-7}
calibrate=${BUILD:-build}/bin/exfold-calibrate
dir=$(mktemp -d "${TMPDIR:-/tmp}/exfold-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

i=0
while [ "$i" -lt "$runs" ]; do
    i=$((i + 1))
    "$calibrate" "$recipe" --dry-run --force --quiet >>"$dir/plan"
    "$calibrate" "$recipe" --progress=json --force --output "$dir/out" 2>>"$dir/events" >/dev/null ||
        { cat "$dir/events" >&2; exit 1; }
done
sed -n 's/.*"text":"backend: \(.*\)"}$/\1/p' "$dir/events" | sort -u

awk -v runs="$runs" '
function field(name) { # of the JSON line
    return match($0, "\"" name "\":[-+.0-9e]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : 0
}
function keep(name, value) { v[name, ++n[name]] = value }
function median(name,   i, k, t) {
    for (i = 2; i <= n[name]; i++)
        for (k = i; k > 1 && v[name, k - 1] > v[name, k]; k--) { t = v[name, k]; v[name, k] = v[name, k - 1]; v[name, k - 1] = t }
    return (v[name, int((n[name] + 1) / 2)] + v[name, int(n[name] / 2) + 1]) / 2
}
$1 == "compute" { gflop = $2; threads = $5; keep("rate", $8) }
/"event":"forward"/ {
    tokens = field("tokens"); wall = field("seconds"); rest = wall
    keep("wall", wall); keep("speed", tokens / wall); keep("rss", field("peak_rss_bytes"))
    for (i = 1; i <= steps; i++) { keep(step[i], field(step[i]) / wall); rest -= field(step[i]) }
    keep("waiting", rest / wall)
}
BEGIN { steps = split("read embed mixer router rewrite experts observe head open", step, " ") }
END {
    if (!n["wall"] || !n["rate"]) { print "bench: no figures in the output of exfold-calibrate" > "/dev/stderr"; exit 1 }
    middle = median("wall"); floor = gflop / (threads * median("rate")) # median() sorts
    printf "runs        %d, medians below\n", n["wall"]
    printf "forward     %d tokens in %.3f s on %d threads (fastest %.3f, slowest %.3f)\n", tokens, middle, threads, v["wall", 1], v["wall", n["wall"]]
    printf "speed       %.0f tokens/s\n", median("speed")
    for (i = 1; i <= steps; i++) if (median(step[i]) > 0) printf "  %-8s  %4.1f %%\n", step[i], 100 * median(step[i])
    printf "  %-8s  %4.1f %%   (of threads for the slowest, and saving)\n", "waiting", 100 * median("waiting")
    printf "memory      %.1f MB at its peak\n", median("rss") / 1e6
    printf "floor       %.1f GFLOP / (%d x %.0f GFLOP/s) = %.3f s\n", gflop, threads, median("rate"), floor
    printf "efficiency  %.0f %% of the matrix product ceiling\n", 100 * floor / middle
}' "$dir/plan" "$dir/events"
