#!/bin/sh
# make_pictures.sh - draws the pictures of the documentation from the demo: docs/pictures/losses.png,
# norms.png and frontier.png.  usage: [BUILD=dir] make_pictures.sh    (after make; a few seconds)
set -eu
cd "$(dirname "$0")/.."
bin=${BUILD:-build}/bin
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-pictures.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$bin/exfold-calibrate" -q recipes/demo.yaml --output "$work"
"$bin/exfold-inspect" heatmap "$work/tables.h5" --what loss --force -o docs/pictures/losses.png
"$bin/exfold-inspect" heatmap "$work/tables.h5" --what norms --force -o docs/pictures/norms.png
"$bin/exfold-validate" -q recipes/demo.yaml --output "$work" --frontier --force --picture docs/pictures/frontier.png | tail -n 3
