#!/bin/sh
# check-shell.sh - shellcheck on every shell script, and on the scripts and tables that tests are made of.
# usage: check-shell.sh      (make check-shell)      last line: "N passed, N failed", of files
set -u
cd "$(dirname "$0")/.." || exit 1
command -v shellcheck >/dev/null || { echo "make check-shell needs shellcheck; install it with: apt-get install shellcheck"; exit 2; }
passed=0 failed=0

count() { # COMMAND ... FILE
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# Found by their first line, so that none needs to be listed.
for file in $(find .ci scripts tests -type f -exec awk 'FNR == 1 { if (/^#!.*sh$/) print FILENAME; nextfile }' {} + | sort); do
    count shellcheck -x "$file"
done

count shellcheck -s bash scripts/completion.bash

# The parts of a case are read by tests/cli/run.sh, under `set -e`, and some of their files are called
# "cut" or "head": SC2148 (no first line), SC2164 (cd that may fail) and SC2238 are of no use there.
case_shell() { # FILE
    shellcheck -s sh -S warning -e SC2148,SC2164,SC2238 "$1"
}
for file in tests/cli/functions.sh tests/foreign/foreign.sh tests/foreign/special.sh \
    $(find tests/cli/cases tests/cli/ranks tests/bad/base -type f \( -name cmd -o -name setup -o -name after \) | sort); do
    count case_shell "$file"
done

# The shell of a table stands in the table's own lines, so that what shellcheck names is found there.
table_shell() { # TABLE
    awk -v mode=shell -f tests/cli/table.awk "$1" >"$scratch/${1##*/}" && case_shell "$scratch/${1##*/}"
}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
for file in tests/bad/*.cases; do
    count table_shell "$file"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 100 ]
