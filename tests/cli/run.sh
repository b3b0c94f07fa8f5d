#!/bin/sh
# run.sh - the programs from the outside: every case of tests/cli/cases, tests/cli/ranks and of the tables
# tests/bad/*.cases.
# usage: [BUILD=dir] [JOBS=2] [CASE_SECONDS=180] run.sh [DIRECTORY | TABLE.cases | TABLE.cases:NAME ...]
# last line: "N passed, N failed"
# As many cases run at a time as there are processors.
#
# A case runs in a fresh copy of tests/bad/base (a valid tiny model, corpus and recipe), with $BIN and $ROOT
# set, and functions.sh loaded.  It is a directory, whose own files are laid over the copy.  All but one are optional:
#   setup    makes what is not worth a file, before anything is compared
#   cmd      the test, a sh script under `set -e`; default: base's, a calibration
#   status   of cmd; default 0
#   stdout   of cmd, exactly
#   stderr   fixed strings that must occur in cmd's standard error, one a line
#   after    must succeed afterwards
# Or it is a paragraph of a table of bad inputs, whose top says what it is made of (table.awk reads it); the programs
# are on its PATH.  There moreover nothing may be printed on stdout, standard error holds log lines only and ends with
# its one error, and every file is afterwards as it was before.
set -u
export LC_ALL=C
export CASE_SECONDS="${CASE_SECONDS:-180}" # a case that runs longer has failed; sanitized programs need more
export MALLOC_PERTURB_=165 # memory that nobody set is never 0 by luck
ROOT=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
BUILD=${BUILD:-build}
case $BUILD in
/*) BIN=$BUILD/bin ;;
*) BIN=$ROOT/$BUILD/bin ;;
esac
export ROOT BIN
[ -x "$BIN/exfold-calibrate" ] || { echo "$BIN: no programs; run make first"; exit 1; }
one=
if [ "${1:-}" = --one ]; then # RESULTS CASE: for the main script below
    one=$2 test_case=$3
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-cli.XXXXXX") || exit 1
trap 'chmod -R u+rwx "$work"; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
. "$ROOT/tests/cli/functions.sh"

table() { # MODE TABLE OPTION ...
    table_mode=$1 table_file=$2
    shift 2
    awk -v "mode=$table_mode" "$@" -f "$ROOT/tests/cli/table.awk" "$table_file"
}

# One of the case's scripts in its directory; a hang is a failure of the case, a slow machine is not.
# shellcheck disable=SC2016  # expanded by the inner shell
script() { # NAME
    (cd "$work/case" && exec timeout "$CASE_SECONDS" sh -c '. "$ROOT/tests/cli/functions.sh"; set -e; . "./$0"' "$1")
}

differences() { # CASE-DIRECTORY
    expected=0
    [ ! -f "$1/status" ] || read -r expected <"$1/status"
    [ "$status" = "$expected" ] || printf ' status %s, expected %s;' "$status" "$expected"
    [ ! -f "$1/stdout" ] || cmp -s "$1/stdout" "$work/stdout" || printf ' stdout is %s;' "$(head -n 1 "$work/stdout")"
    if [ -f "$1/stderr" ]; then
        while read -r line; do grep -qF -e "$line" "$work/stderr" || printf ' stderr lacks "%s";' "$line"; done <"$1/stderr"
    fi
}

# Whether the message starts with the first of the words and goes on with the others in this order, "..." between them.
says() { # MESSAGE WORDS
    awk '
        BEGIN {
            message = ARGV[1]
            n = split(" " ARGV[2] " ", word, / [.][.][.] /)
            for (i = 1; i <= n; i++) {
                gsub(/^ | $/, "", word[i])
                if (word[i] == "") continue
                at = index(message, word[i])
                if (at == 0 || (i == 1 && at != 1)) exit 1
                message = substr(message, at + length(word[i]))
            }
        }' "$1" "$2"
}

bad_differences() { # CASE-DIRECTORY
    [ ! -s "$work/stdout" ] || printf ' stdout: %s;' "$(head -n 1 "$work/stdout")"
    [ "$(grep -c '^exfold-[a-z]*: error: ' "$work/stderr")" = 1 ] || printf ' not one error on stderr;'
    ! grep -qv '^exfold-[a-z]*: ' "$work/stderr" || printf ' stderr has a line that is no message;'
    read -r words <"$1/error"
    says "$(tail -n 1 "$work/stderr" | sed -n 's/^exfold-[a-z]*: error: //p')" "$words" || printf ' the last line is not the error "%s";' "$words"
    (cd "$work/case" && snapshot) >"$work/later"
    cmp -s "$work/before" "$work/later" ||
        printf ' files: %s;' "$(diff "$work/before" "$work/later" | sed -n 's/^[<>] \([0-9]* [0-9]* \)\{0,1\}//p' | sort -u | tr '\n' ' ')"
}

run_case() { # CASE
    chmod -R u+rwx "$work"
    case_dir=$1
    case $1 in
    *.cases:*)
        case_dir=$work/unpacked
        mkdir "$case_dir"
        table unpack "${1%:*}" -v "name=${1##*:}" -v "into=$case_dir" || { printf ' cannot be unpacked;'; return; }
        PATH=$BIN:$PATH
        ;;
    esac
    if ! cp -R "$ROOT/tests/bad/base" "$work/case" || ! cp -R "$case_dir/." "$work/case"; then
        printf ' cannot be copied;'
        return
    fi
    [ ! -f "$case_dir/setup" ] || script setup >"$work/stdout" 2>"$work/stderr" || { printf ' setup failed;'; cat "$work/stderr"; return; }
    (cd "$work/case" && snapshot) >"$work/before"
    script cmd >"$work/stdout" 2>"$work/stderr" </dev/null
    status=$?
    said=$(differences "$case_dir"; [ ! -f "$case_dir/error" ] || bad_differences "$case_dir")
    [ ! -f "$case_dir/after" ] || script after >"$work/after" 2>&1 || said="$said after: $(tail -n 1 "$work/after");"
    [ -z "$said" ] || printf '%s it said: %s' "$said" "$(tail -n 1 "$work/stderr")"
}

# A case that passes leaves an empty file in the folder of results, one that fails what it said.
if [ -n "$one" ]; then
    name=${test_case#"$ROOT/tests/"}
    result=$(run_case "$test_case")
    said=$(grep '^SKIPPED' "$work/stderr") && printf '%s %s\n' "$name" "$said"
    [ -z "$result" ] || printf 'FAIL %s:%s\n' "$name" "$result"
    printf '%s' "$result" >"$one/$(echo "$name" | tr / =)"
    exit 0
fi

absolute() { # FILE
    (cd "$(dirname "$1")" && printf '%s/%s\n' "$(pwd)" "$(basename "$1")")
}

mkdir "$work/results" || exit 1
[ $# -gt 0 ] || set -- "$ROOT"/tests/cli/cases/* "$ROOT"/tests/cli/ranks/* "$ROOT"/tests/bad/*.cases
for test_case; do
    case $test_case in
    *.cases | *.cases:*)
        path=$(absolute "${test_case%.cases*}.cases") && names=$(table list "$path") || exit 1
        name=${test_case##*.cases}
        [ -z "$name" ] || names=$(echo "$names" | grep -xF -e "${name#:}") || { echo "$test_case: no such case" >&2; exit 1; }
        for name in $names; do echo "$path:$name"; done
        ;;
    *) (cd "$test_case" && pwd) || exit 1 ;;
    esac
done >"$work/all" || exit 1
# TIER=fast leaves out what tests/slow.txt has, TIER=slow runs nothing else.
awk -v tier="${TIER:-all}" -v "from=$ROOT/tests/" '
    NR == FNR { slow[$1] = 1; next }
    { name = substr($0, length(from) + 1); sub(/[.]cases:.*/, ".cases", name) }
    tier == "all" || (name in slow) == (tier == "slow")' "$ROOT/tests/slow.txt" "$work/all" >"$work/list"
[ "${TIER:-all}" != fast ] ||
    echo "$(($(wc -l <"$work/all") - $(wc -l <"$work/list"))) cases of tests/slow.txt are left to make check-slow"
cp -R "$ROOT/tests/bad/base" "$work/base" || exit 1
(cd "$work/base" && "$BIN/exfold-calibrate" -q recipe.yaml) >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
export CALIBRATED="$work/base/out"
xargs -n 1 -P "${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}" "$0" --one "$work/results" <"$work/list"
passed=$(find "$work/results" -type f -size 0 | wc -l)
failed=$(($(wc -l <"$work/list") - passed)) # one that did not end has failed
echo "$((passed)) passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
