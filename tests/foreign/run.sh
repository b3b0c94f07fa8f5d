#!/bin/sh
# run.sh - shows that no program and no script unlinks, renames, truncates, or opens for writing, what others made.
# usage: [BUILD=dir] [SOURCE=tree] [TRACER=trace_calls.so] [JOBS=2] run.sh [NAME ...]       last line: "N passed, N failed"
#
# Every row of runs.txt runs in a directory of foreign files under our own names (foreign.sh), below a tracer (trace_calls.c):
#   clean    in an empty directory, which tells what it writes; the other stages are nothing if this one fails
#   around   beside foreign files under every name but those
#   points   beside foreign resume points, too: it may be refused
#   guessed  beside foreign files under the names that its next temporaries and claims have
#   killed   around, and killed at some of its calls that change a file, and run again
#   taken    with one of its outputs' names taken: by a file; with --force, where it takes that, by a link to a model, a link to
#            a folder, a folder that holds a model, a named pipe
#   forced   --force over a regular file of an output's very name: that file, which the user ordered to be replaced, is the
#            only foreign one that may be renamed onto
# A stage passes if the foreign files are as they were before (type, inode, mode, size, time, SHA-256, where links lead), if
# the tracer saw no call on one of them that unlinks, renames, truncates, opens for writing or changes mode or time, undone
# or not, and if the status is documented and, where it is no success, standard error names the path in the way.
# What no row can say is in special.sh.  SOURCE and BUILD may be another tree's, to see what the test finds there.
set -u
export LC_ALL=C MALLOC_PERTURB_=165 PYTHONDONTWRITEBYTECODE=1
ROOT=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
SOURCE=${SOURCE:-$ROOT} BUILD=${BUILD:-build}
case $BUILD in /*) ;; *) BUILD=$SOURCE/$BUILD ;; esac
BIN=$BUILD/bin
tracer=${TRACER:-$BUILD/tests/foreign/trace_calls.so}
killer=${tracer%/foreign/*}/kill/kill_at_call.so
rows=$ROOT/tests/foreign/runs.txt
weights=$ROOT/tests/bad/base/model/model-00001-of-00002.safetensors
export ROOT SOURCE BUILD BIN PYTHONPATH="$BUILD/scripts-python"
. "$ROOT/tests/foreign/foreign.sh"

# ---- one traced run -------------------------------------------------------------------------

unprepared() {
    echo "FAIL foreign/$name: its directory cannot be made"
    echo "$name" >>"$results/$name.failed"
    exit 1
}

# A fresh $D: an empty directory H, outside, where links lead, and inputs, which a command may have to write beside.
empty() {
    chmod -R u+rwx "$D" 2>/dev/null
    {
        rm -rf "$D" && mkdir -p "$D/H" "$D/outside" && cp -R "$I/beside" "$D/inputs" &&
            cp "$weights" "$D/outside/model.safetensors"
    } || unprepared
}

# The same, with H full of foreign files, but for the names given.
full() { # NAME ...
    chmod -R u+rwx "$D" 2>/dev/null
    {
        rm -rf "$D" && cp -a "$work/template" "$D" && cp -R "$I/beside" "$D/inputs" &&
            (cd "$D/H" && not_copied && { [ $# = 0 ] || rm -rf -- "$@"; })
    } || unprepared
}

without_points() {
    (cd "$D/H" && rm -rf .exfold-resume-* calibrate calibrate-0123456789ab capture validate exfold-resume-point \
        .capture.h5.unfinished)
}

# What lies below the directories: all that must stay.  A directory's size and time change with what is put into it.
inventory() { # DIRECTORY ...
    {
        find "$@" -type d -printf '%y %D:%i %m %p\n' -o -printf '%y %D:%i %m %s %T@ %p -> %l\n'
        find "$@" -type f -exec sha256sum {} + 2>/dev/null
    } | sort
}

# Runs a command of $H under the tracer; then $status, $D.log, $D.out and $D.err are of it.
traced() { # COMMAND
    : >"$D.log"
    status=0
    (cd "$D/H" && H=$D/H && export H && exec env TMPDIR="$H" EXF_TRACE="$D.log" LD_PRELOAD="$tracer" \
        timeout 60 sh -c "$1") >"$D.out" 2>"$D.err" </dev/null || status=$?
} 2>/dev/null # a shell says "Killed"

before() {
    inventory "$D" "$I" >"$D.before"
    find "$D" "$I" -printf '%D:%i\n' >"$D.theirs"
}

# Prints what is wrong after a run; the file $allowed of H, with that inode, is one that the user ordered to be replaced.
wrong() { # [INODE]
    case $status in
    0 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 75 | 137) ;;
    1) [ "$program" = script ] || printf ' status 1;' ;;
    *) printf ' status %s is none that is documented;' "$status" ;;
    esac
    inventory "$D" "$I" >"$D.after"
    changed=$(grep -v " $D/H/${allowed:-no name}\( ->.*\)*\$" "$D.before" | comm -23 - "$D.after" | head -n 1)
    [ -z "$changed" ] || printf ' is not as it was: %s;' "$changed"
    # to remove a directory if it is empty, and to find that it is not (39), is no harm
    touched=$(awk -v ordered="${1:-}" 'FNR == NR { theirs[$1] = 1; next }
        $1 == "start" || !($3 in theirs) || $3 == ordered || ($1 == "unlink" && $2 == 39) { next }
        { print $1, $2, $4; exit }' "$D.theirs" "$D.log")
    [ -z "$touched" ] || printf ' was touched: %s;' "$touched"
    grep -q "^start 0 - " "$D.log" || printf ' the tracer saw no process;'
}

verdict() { # STAGE WRONG
    if [ -z "$2" ]; then
        echo "$name/$1" >>"$results/$name.passed"
    else
        echo "$name/$1" >>"$results/$name.failed"
        printf 'FAIL foreign/%s/%s: status %s:%s it said: %s\n' "$name" "$1" "$status" "$2" \
            "$(grep -v '^make' "$D.err" | tail -n 1 | cut -c 1-300)"
    fi
}

left_out() { # REASON
    echo "not run: $name: $1"
    : >"$results/$name.passed"
}

refused() { # [STATUS]
    [ "$status" = "${1:-$status}" ] && [ "$status" != 0 ] || printf ' is not refused;'
}

# A refusal names a path in the way.
unnamed() { # PATH
    [ "$status" = 0 ] || [ "$status" = 137 ] || grep -qF -e "$1" "$D.err" || printf ' the refusal does not name %s;' "$1"
}

# ---- the stages of a row --------------------------------------------------------------------

as_clean() {
    [ "$status" = "$expected" ] || printf ' status %s, in an empty directory %s;' "$status" "$expected"
}

stage_clean() {
    empty && before && traced "$command"
    expected=$status
    (cd "$D/H" && find . -mindepth 1 -maxdepth 1 | sed 's|^\./||' | sort) >"$D.made"
    case $flags in
    *o*) said=$([ ! -s "$D.made" ] || printf ' left %s;' "$(head -n 1 "$D.made")") ;;
    *) said=$([ -s "$D.made" ] || [ -e "$D/made" ] || printf ' wrote nothing;') ;;
    esac
    [ "$status" = 0 ] || said="$said status $status;"
    said="$said$(grep '^\.' "$D.made" | sed 's/^/ left /; s/$/;/')"
    verdict clean "$said$(wrong)"
    [ -z "$said" ]
}

# shellcheck disable=SC2046  # names without blanks, which our programs write
without_outputs() {
    full $(cat "$work/$name.made")
}

stage_around() {
    without_outputs && without_points && before && traced "$command"
    case $flags in
    *x*) verdict around "$(unnamed "$D/H/"; wrong)" ;;
    *) verdict around "$(as_clean; wrong)" ;;
    esac
}

stage_points() {
    without_outputs && before && traced "$command"
    verdict points "$(unnamed "$D/H/"; wrong)"
}

stage_guessed() {
    without_outputs && without_points && (cd "$D/H" && guessed_claims) && before && EXF_TRACE_RANDOM=$work/random traced "$command"
    verdict guessed "$(unnamed "$D/H/"; wrong)"
}

# A script's processes count their calls apart.
kill_points() {
    case $program in script) echo 2 5 9 30; return ;; esac
    without_outputs && without_points
    EXF_TRACE='' traced "exec env LD_PRELOAD=$killer EXF_KILL_COUNT=$D.count $command"
    read -r calls <"$D.count" || return
    [ "$calls" -lt 4 ] || echo 4 $((calls / 2)) $((calls / 2 + 1)) $((calls - 2))
}

stage_killed() {
    points=$(kill_points)
    [ -n "$points" ] || { verdict killed " there is nothing to kill it at;"; return; }
    for at in $points; do
        without_outputs && without_points && before
        traced "exec env LD_PRELOAD=$tracer:$killer EXF_KILL_AT=$at $command"
        said=$(wrong)
        traced "$command"
        verdict "killed-$at" "$said$(unnamed "$D/H/"; wrong)" # what was complete is in the way now
    done
}

# takes WAY NAME : takes an output's name in another's way.
takes() {
    case $1 in
    file) cp "$weights" "$D/H/$2" ;;
    link) ln -s ../outside/model.safetensors "$D/H/$2" ;;
    link-to-folder) ln -s ../outside "$D/H/$2" ;;
    folder) (cd "$D/H" && folder_of_theirs "$2" && theirs "$2/exfold-files.sha256") ;;
    pipe) mkfifo "$D/H/$2" ;;
    esac
}

stage_taken() { # NAME OPTION
    for way in file link link-to-folder folder pipe; do
        empty && takes $way "$1" && before
        if [ $way = file ]; then traced "$command"; else traced "$command $2"; fi
        verdict "taken-$1-$way" "$(unnamed "$1"; [ $way != file ] || refused; wrong)"
    done
}

stage_forced() { # NAME
    [ -f "$work/$name.clean/$1" ] || return 0
    empty && takes file "$1" && before
    inode=$(stat -c %d:%i "$D/H/$1")
    traced "$command --force"
    allowed=$1
    verdict "forced-$1" "$(as_clean; wrong "$inode"; [ "$(stat -c %d:%i "$D/H/$1")" != "$inode" ] || printf ' is not replaced;')"
    allowed=
}

run_row() {
    stage_clean || return
    cp -R "$D/H" "$work/$name.clean" && cp "$D.made" "$work/$name.made"
    stage_around
    case $flags in *r*) stage_points ;; esac
    case $flags in *o*) ;; *) stage_guessed ;; esac
    case $flags in *k*) stage_killed ;; esac
    while read -r output; do
        case $flags in
        *o*) ;;
        *f*) stage_taken "$output" --force; stage_forced "$output" ;;
        *) stage_taken "$output" '' ;;
        esac
    done <"$work/$name.made"
}

# ---- one row or special case, for the main part below ---------------------------------------

if [ "${1:-}" = --one ]; then # WORK NAME
    work=$2 name=$3 allowed='' expected=0
    I=$work/inputs D=$work/runs/$name results=$work/results
    export I PYTHONPATH="$I/stand-in:$PYTHONPATH"
    . "$ROOT/tests/foreign/special.sh"
    case $name in
    special_*) program=script command='' && "$name" ;;
    *)
        row=$(grep "^$name|" "$rows")
        row=${row#*|}
        flags=${row%%|*} command=${row#*|} program=script
        case $command in *"BIN/"*) program=program ;; esac
        run_row
        ;;
    esac
    chmod -R u+rwx "$D" 2>/dev/null
    rm -rf "$D" "$D".*
    exit 0
fi

# ---- the main part --------------------------------------------------------------------------

[ -x "$BIN/exfold-calibrate" ] || { echo "$BIN: no programs; run make first"; exit 1; }
for library in "$tracer" "$killer"; do [ -f "$library" ] || { echo "$library: is not there; run make check-foreign"; exit 1; }; done
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-foreign.XXXXXX") || exit 1
trap 'chmod -R u+rwx "$work" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work/results" "$work/runs" "$work/template" "$work/template/H" || exit 1

# What the commands read: the smallest run, and what was made of it.
make_inputs() {
    cp -R "$ROOT/tests/bad/base" "$work/inputs" && cd "$work/inputs" || return
    printf 'validate: {manifest: manifest.yaml, variants: [P1]}\n' >>recipe.yaml
    "$BIN/exfold-calibrate" -q recipe.yaml -o made && "$BIN/exfold-capture" -q recipe.yaml -o made || return
    for i in 1 2; do "$BIN/exfold-calibrate" -q recipe.yaml -o made --shard $i/2 || return; done
    "$BIN/exfold-calibrate" recipe.yaml -o log-of --progress=json 2>log && rm -r log-of
    "$BIN/exfold-export" -q recipe.yaml made/tables.h5 -o made --set output.targets=exfold-qwen3 || return
    mkdir beside chat stand-in
    printf '%s\n' 'def load_dataset(name, *arguments, **named):' '    return [{"text": "one"}, {"text": "two"}]' \
        >stand-in/datasets.py
    printf '%s\n' 'schema: exfold-manifest/1' 'sources:' '  - path: ../H/corpus.jsonl' '    format: jsonl' '    origin:' \
        '      dataset: ./rows' '      split: train' '      text: text' >beside/origin.yaml
    python3 -c 'import pyarrow, pyarrow.parquet as p; p.write_table(pyarrow.table({"text": ["a"]}), "rows.parquet")' 2>/dev/null || :
    echo '{"chat_template": "{{ messages[0].content }}"}' >chat/tokenizer_config.json
    echo '{"messages": [{"role": "user", "content": "a"}]}' >chats.jsonl
    printf '#!/bin/sh\ncase $* in --list) echo check_nothing ;; esac\n' >a-suite && chmod +x a-suite
    printf '\253\211\147\105\043\001\000\000' >"$work/random" # 0123456789ab, as file_temporary.c reads it
}
(make_inputs) >"$work/said" 2>&1 || { echo "the inputs cannot be made: $(tail -n 1 "$work/said")"; exit 1; }
(cd "$work/template/H" && foreign) || { echo "the foreign files cannot be made"; exit 1; }

# What is not run is said, and a program or script that nobody wrote a row for fails the test.
is_left_out() { # NAME FLAGS COMMAND
    case $2 in
    *-*) echo "not run: $1 $3" ;;
    *p*)
        module=
        case $1 in
        materialize*) module=yaml ;;
        render_chat.py) module=jinja2 ;;
        table_lines.py) module=pyarrow.parquet ;;
        make_saved_models.py) module='torch, transformers, safetensors' ;;
        pt_to_safetensors.py) module='torch, numpy' ;;
        quantize_experts.py) module=numpy ;;
        esac
        said=$(python3 -c "import ${module:-sys}" 2>&1) && return 1
        echo "not run: $1 needs python3 with ${module:-nothing more}: $(echo "$said" | tail -n 1)"
        ;;
    *) return 1 ;;
    esac
}

missing=0
for file in "$BIN"/* "$SOURCE"/scripts/*.sh "$SOURCE"/scripts/*.py "$SOURCE"/scripts/*/*.sh "$SOURCE"/scripts/regenerate-tables; do
    grep -v '^#' "$rows" | cut -d '|' -f 1,3 | grep -qE "(/|^)${file##*/}([ |]|\$)" ||
        { echo "FAIL foreign: $file has no row in tests/foreign/runs.txt"; missing=$((missing + 1)); }
done

grep -v '^#' "$rows" | while IFS='|' read -r name flags command; do
    is_left_out "$name" "$flags" "$command" >&2 || echo "$name"
done >"$work/list"
sed -n 's/^\(special_[a-z_]*\)() .*/\1/p' "$ROOT/tests/foreign/special.sh" >>"$work/list"
if [ $# -gt 0 ]; then
    printf '%s\n' "$@" >"$work/named"
    grep -Fx -f "$work/named" "$work/list" >"$work/some"
    mv "$work/some" "$work/list"
fi
xargs -n 1 -P "${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}" "$0" --one "$work" <"$work/list"
cat "$work"/results/*.failed >"$work/failed" 2>/dev/null
passed=$(cat "$work"/results/*.passed 2>/dev/null | wc -l) failed=$(($(wc -l <"$work/failed") + missing))
while read -r name; do # one that did not end has failed
    if [ -e "$work/results/$name.passed" ] || [ -e "$work/results/$name.failed" ]; then continue; fi
    echo "FAIL foreign/$name: did not run"
    failed=$((failed + 1))
done <"$work/list"
echo "foreign: $(wc -l <"$work/list") commands and cases in a directory of $(find "$work/template" | wc -l) foreign files"
echo "$((passed)) passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
