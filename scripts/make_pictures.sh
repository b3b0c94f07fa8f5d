#!/bin/sh
# make_pictures.sh - draws the pictures of the documentation from the demo: docs/pictures/losses.png,
# norms.png, frontier.png, and report.png, the page of exfold-inspect report, where Chromium is installed.
# usage: [BUILD=dir] [CHROMIUM=program] make_pictures.sh    (after make; a few seconds)
set -eu
cd "$(dirname "$0")/.."
bin=${BUILD:-build}/bin
chromium=$(command -v "${CHROMIUM:-chromium}") || chromium=
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-pictures.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$bin/exfold-calibrate" -q recipes/demo.yaml --output "$work"
"$bin/exfold-inspect" heatmap "$work/tables.h5" --what loss --force -o docs/pictures/losses.png
"$bin/exfold-inspect" heatmap "$work/tables.h5" --what norms --force -o docs/pictures/norms.png
"$bin/exfold-validate" -q recipes/demo.yaml --output "$work" >/dev/null
"$bin/exfold-inspect" report "$work/tables.h5" "$work/statistics.h5" -o "$work/report.html"
if [ -n "$chromium" ]; then
    "$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/chromium" \
        --window-size=1180,960 --screenshot="$PWD/docs/pictures/report.png" "file://$work/report.html" 2>"$work/said" ||
        { cat "$work/said" >&2; exit 1; }
    echo "wrote docs/pictures/report.png"
else
    echo "docs/pictures/report.png stays as it is: there is no chromium; install it with: apt-get install chromium"
fi
"$bin/exfold-validate" -q recipes/demo.yaml --output "$work" --frontier --force --picture docs/pictures/frontier.png | tail -n 3
