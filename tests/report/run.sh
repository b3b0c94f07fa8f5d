#!/bin/sh
# run.sh - the page of exfold-inspect report in Chromium without a window: the demo model's with its
# validation, and one of 48 layers of 128 experts.     last line: "N passed, N failed"
# usage: BUILD=dir run.sh [TEST ...]     (make check-report); a TEST is Class.name of in_chromium.py
# Needs Debian's packages chromium, chromium-driver and python3-selenium; no network, no display.
# CHROMIUM and CHROMEDRIVER name other programs, Google's Chrome say, where Chromium is a snap (Ubuntu).
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-report.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

refuse() { # WHAT
    echo "make check-report needs $1; install it with: apt-get install chromium chromium-driver python3-selenium" >&2
    echo "0 passed, 1 failed"
    exit 2
}

# Debian's selenium is for the system's Python, which need not be the first one.
find_python() {
    for p in ${PYTHON:-python3 /usr/bin/python3}; do
        "$p" -c 'import selenium' 2>/dev/null && { echo "$p"; return; }
    done
    return 1
}

CHROMIUM=$(command -v "${CHROMIUM:-chromium}") || refuse chromium
CHROMEDRIVER=$(command -v "${CHROMEDRIVER:-chromedriver}") || refuse chromedriver
export CHROMIUM CHROMEDRIVER
python=$(find_python) || refuse selenium

make_pages() {
    "$BUILD/bin/exfold-calibrate" -q recipes/demo.yaml --output "$work/demo" &&
        "$BUILD/bin/exfold-validate" -q recipes/demo.yaml --output "$work/demo" &&
        "$BUILD/bin/exfold-inspect" report "$work/demo/tables.h5" "$work/demo/statistics.h5" -o "$work/demo/report.html" &&
        mkdir "$work/wide" && "$BUILD/tests/report/make_wide_tables" "$work/wide/tables.h5" &&
        "$BUILD/bin/exfold-inspect" report "$work/wide/tables.h5" -o "$work/wide/report.html"
}

make_pages >/dev/null || { echo "0 passed, 1 failed"; exit 1; }
"$CHROMIUM" --version --no-sandbox 2>/dev/null
PYTHONDONTWRITEBYTECODE=1 "$python" tests/report/in_chromium.py "$work" "$@"
