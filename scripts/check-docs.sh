#!/bin/sh
# check-docs.sh - checks that README.md, CONTRIBUTING.md and docs/*.md say what is so.
# usage: BUILD=dir check-docs.sh [paths] [generated] [names] [snippets] [PAGE.md ...]     (make docs-check)
#
#   paths      every path that is named, every relative link and its anchor exists
#   generated  every generated part is what its command prints (scripts/make-docs.sh)
#   names      every program, option, recipe key and variant kind stands on some page, and every make target
#              that a page names is one
#   snippets   every block of commands runs, and what is quoted from a program is what it prints
#
# Without a part all are checked; pages restrict the snippets.  Blocks have a language:
#   sh         commands, run with `sh -e`
#   console    "$ COMMAND" and lines of what it prints on standard output and error; "..." stands for any lines
#   python     generated from tests/interop, whose test runs it
#   text, yaml, bibtex   no commands
# A page's blocks run in order in a fresh folder like a checkout whose build/bin holds the programs:
# recipes, data-manifests, examples, scripts and tests/configs are copies; its make and its
# scripts/install-dependencies.sh do nothing.  A comment on the line before says more:
#   <!-- not run: REASON -->        of a block that needs a released checkpoint, a GPU, a server or the network
#   <!-- setup: COMMAND -->         runs at its place, and puts toy files where the page's commands look;
#                                   `toy DIR [EXPERTS]` makes a random Qwen3-MoE of 128 experts and two small layers
#   <!-- quoted from: COMMAND -->   of a table: its lines stand in what the command prints, in order
# Quoted words are compared as text, numbers within 1 %; times, rates, digests and the like are not
# compared (scripts/doc-output.awk).
# Every finding is a line "PAGE:LINE: ...", exit status 1 if there is one.  The last line is "N passed, N failed"
# and counts the parts.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
root=$PWD
case ${BUILD:=build} in
/*) ;;
*) BUILD=$PWD/$BUILD ;;
esac
export BUILD
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-docs.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
all_pages="README.md CONTRIBUTING.md $(echo docs/*.md)"
failed=0

# ---- paths -----------------------------------------------------------------------
# shellcheck disable=SC2086 # lists of words
check_paths() {
    roots='src kernels include tests scripts docs examples recipes data-manifests .ci .github'
    {
        for top in $roots; do [ ! -e "$top" ] || find -H "$top" -name __pycache__ -prune -o -print; done
        find . -maxdepth 1 -type f | sed 's|^\./||'
    } | awk -v roots="$roots" -f scripts/doc-paths.awk - $all_pages
}

# ---- generated ---------------------------------------------------------------------
check_generated() {
    scripts/make-docs.sh --check
}

# ---- names ---------------------------------------------------------------------------
# shellcheck disable=SC2086
named() { # WORD WHAT : the word stands on some page between backticks or blanks
    grep -q -e "[\`( ]$1[\`=,; ]" -e "[\`( ]$1\$" $all_pages || { echo "docs: no page names $2 $1"; return 1; }
}

page() { # NAME : of scripts/make_pages.py
    "$BUILD/bin/exfold" --help-json | "${PYTHON:-python3}" scripts/make_pages.py "$1"
}

# The options of a program's manual page: the words of the lines after .TP.
options_of() { # PROGRAM
    page "${1##*/}.1" | sed 's/\\-/-/g; s/\\f[BIR]//g; s/\[no-\]//' | awk '/^\.SH/ { on = /OPTIONS/ } on && last == ".TP" { print } { last = $0 }' |
        grep -o -e '--[a-z][a-z-]*' | sort -u
}

# shellcheck disable=SC2013,SC2016,SC2086
make_targets() {
    unknown=0
    for target in $(grep -o -h '`make [a-z][a-z-]*' $all_pages | sed 's/.* //' | sort -u); do
        grep -q "^$target:" Makefile install.mk || { echo "docs: make $target is named, and no rule makes it"; unknown=1; }
    done
    return "$unknown"
}

check_names() {
    status=0
    for program in "$BUILD"/bin/exfold*; do
        named "${program##*/}" program || status=1
        for option in $(options_of "$program"); do named "$option" "${program##*/}'s option" || status=1; done
    done
    for key in $(page exfold-recipe.5 | sed -n 's/^\\fB\([a-z_.]*\)\\fR = .*/\1/p'); do
        named "$key" "the recipe key" || status=1
    done
    for kind in $(page exfold-variants.7 | sed -n '/^\.SH KINDS/,$s/^\.SS //p'); do
        grep -q "^## $kind\$" docs/variants.md || { echo "docs: docs/variants.md has no heading for the variant $kind"; status=1; }
    done
    make_targets || status=1
    return "$status"
}

# ---- snippets --------------------------------------------------------------------------
# A folder like a checkout; see above.
make_tree() { # FOLDER
    mkdir -p "$1/build" "$1/tests" "$1/docs" || return
    cp -R recipes data-manifests examples scripts "$1" && cp -R tests/configs tests/interop "$1/tests" || return
    ln -s "$BUILD/bin" "$1/build/bin" && ln -s "$root/src" "$1/src" || return
    printf 'all:\n' >"$1/Makefile"
    printf '#!/bin/sh\n' >"$1/scripts/install-dependencies.sh"
}

# toy DIR [EXPERTS], for setups: a random Qwen3-MoE with the demo's tokenizer, in the layout of a release.
cat >"$work/prelude" <<'END'
toy() {
    mkdir -p "$1"
    sed 's/\("hidden_size":\) [0-9]*/\1 32/; s/\("head_dim":\) [0-9]*/\1 8/; s/\("num_attention_heads":\) [0-9]*/\1 4/
        s/\("num_key_value_heads":\) [0-9]*/\1 2/; s/\("num_hidden_layers":\) [0-9]*/\1 2/; s/\("moe_intermediate_size":\) [0-9]*/\1 16/
        s/\("vocab_size":\) [0-9]*/\1 2048/; s/\("num_experts":\) [0-9]*/\1 '"${2:-128}"'/' tests/configs/qwen3-30b-a3b/config.json >"$1/config.json"
    "$BUILD/bench/make_checkpoint" "$1" >/dev/null
    cp examples/demo-model/tokenizer.json "$1"
}
END

finding() { # PAGE LINE TEXT
    echo "$1:$2: $3"
    touch "$work/found"
}

run_part() { # FILE OUTPUT : in the page's folder
    (cd "$work/tree" && PATH="$BUILD/bin:$PATH" sh -e -c '. "$0"; . "$1"' "$work/prelude" "$1") >"$2" 2>&1 </dev/null
}

# Each "$ COMMAND" of a console block with what is quoted of it.
run_console() { # PAGE LINE FILE
    awk -v out="$3" '/^\$ / { n++; print substr($0, 3) >(out "." n ".cmd"); next } { print NR "\t" $0 >(out "." n ".want") }' "$3"
    for command in "$3".*.cmd; do
        printed=${command%.cmd}.out want=${command%.cmd}.want
        run_part "$command" "$printed" || { finding "$1" "$2" "this command fails: $(cat "$command"): $(tail -n 1 "$printed")"; return; }
        [ ! -e "$want" ] || compare "$1" "$2" "$want" "$printed"
    done
}

compare() { # PAGE LINE WANT PRINTED
    awk -v page="$1" -v first="$2" -f scripts/doc-output.awk "$3" "$4" || touch "$work/found"
}

run_quoted() { # PAGE LINE FILE : its first line is the command
    sed 1q "$3" >"$3.cmd"
    awk 'NR == 1 { print "0\t..." } NR > 1 { print NR - 1 "\t" $0; print NR - 1 "\t..." }' "$3" >"$3.want"
    run_part "$3.cmd" "$3.out" || { finding "$1" "$2" "this command fails: $(cat "$3.cmd"): $(tail -n 1 "$3.out")"; return; }
    compare "$1" "$2" "$3.want" "$3.out"
}

check_page() { # PAGE
    rm -rf "$work/tree" "$work/parts"
    mkdir "$work/parts" && make_tree "$work/tree" || exit 1
    awk -v page="$1" -v parts="$work/parts" -f scripts/doc-parts.awk "$1" >"$work/list" || touch "$work/found"
    while read -r kind line file; do
        case $kind in
        said) cat "$file" ;;
        setup | sh) run_part "$file" "$file.out" || finding "$1" "$line" "this does not run: $(tail -n 1 "$file.out")" ;;
        console) run_console "$1" "$line" "$file" ;;
        quoted) run_quoted "$1" "$line" "$file" ;;
        esac
    done <"$work/list"
}

check_snippets() {
    [ -x "$BUILD/bench/make_checkpoint" ] || { echo "check-docs: $BUILD/bench/make_checkpoint is not built; run: make docs-check"; return 1; }
    rm -f "$work/found"
    for page in ${pages:-$all_pages}; do check_page "$page"; done
    [ ! -e "$work/found" ]
}

# ---- what is asked for --------------------------------------------------------------------
parts='' pages=''
for word; do
    case $word in
    paths | generated | names | snippets) parts="$parts $word" ;;
    *.md) pages="$pages $word" ;;
    *) echo "check-docs: \"$word\" is no part and no page; usage: check-docs.sh [paths] [generated] [names] [snippets] [PAGE.md ...]"
       exit 2 ;;
    esac
done
[ -n "$parts" ] || parts="paths generated names snippets"
passed=0
for part in $parts; do
    case $part in
    paths) check_paths ;;
    generated) check_generated ;;
    names) check_names ;;
    snippets) check_snippets ;;
    esac
    # shellcheck disable=SC2181  # the status of a case
    if [ $? = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
