#!/bin/sh
# install.sh - installs into a scratch directory, uses what is there as a stranger would, uninstalls.
# usage: BUILD=dir MAKE=make CC=cc SANFLAGS= PKG_CONFIG=pkg-config install.sh      last line: "N passed, N failed"
set -u
export LC_ALL=C
BUILD=${BUILD:-build} SANFLAGS=${SANFLAGS:-}
cd "$(dirname "$0")/.." || exit 1
scratch=$(mktemp -d "${TMPDIR:-/tmp}/exfold-install.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
top=$PWD
root=$scratch/root prefix=/opt/exfold
passed=0 failed=0

make_it() { # TARGET VARIABLE=VALUE ...
    "${MAKE:-make}" -s --no-print-directory BUILD="$BUILD" "$@"
}

check() { # NAME : runs test_NAME
    (set -e; "test_$1") >"$scratch/log" 2>&1 # not in a condition, where `set -e` does not hold
    ended=$?
    if [ "$ended" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL install/$1: $(tail -n 3 "$scratch/log")"
    fi
}

test_install() {
    make_it install DESTDIR="$root" PREFIX="$prefix"
    for program in "$BUILD"/bin/exfold*; do
        name=${program##*/}
        cmp "$program" "$root$prefix/bin/$name"
        [ -x "$root$prefix/bin/$name" ]
        [ -s "$root$prefix/share/man/man1/$name.1" ]
        [ -s "$root$prefix/share/bash-completion/completions/$name" ]
        [ -s "$root$prefix/share/zsh/site-functions/_$name" ]
    done
    cmp "$BUILD/lib/exfold/libexfold.so" "$root$prefix/lib/exfold/libexfold.so"
    grep -Fqx "$(sha256sum <"$BUILD/lib/exfold/libexfold.so" | cut -c 1-64)  $prefix/lib/exfold/libexfold.so" \
        "$root$prefix/share/exfold/installed.sha256"
    for page in man5/exfold-recipe.5 man5/exfold-manifest.5 man7/exfold-variants.7 man7/exfold.7; do
        [ -s "$root$prefix/share/man/$page" ]
    done
    [ -s "$root$prefix/share/doc/exfold/LICENSE" ]
    share=$root$prefix/share/exfold
    cmp recipes/demo.yaml "$share/recipes/demo.yaml"
    cmp examples/torch/exfold_torch.py "$share/examples/torch/exfold_torch.py"
    cmp examples/transformers/fold_experts.py "$share/examples/transformers/fold_experts.py"
    cmp python/exfold_vllm/variant.py "$share/python/exfold_vllm/variant.py"
    for job in scripts/slurm/*.sh; do
        cmp "$job" "$share/$job"
        [ -x "$share/$job" ]
    done
    for kind in recipe manifest; do cmp "$BUILD/share/exfold/schema/$kind.json" "$share/schema/$kind.json"; done
    # nobody's path of the building machine is in a text that was installed
    ! grep -rlIF "$scratch" "$root" || exit 1
}

# What a page links to, files and pictures, is installed where the link says.
test_links_of_the_pages() {
    doc=$root$prefix/share/doc/exfold
    for page in docs/*.md README.md CONTRIBUTING.md; do cmp "$page" "$doc/$page"; done
    find "$doc" -name '*.md' | while read -r page; do
        grep -o '](\([^)#:]*\)[)#]' "$page" | sed 's/^](//; s/[)#]$//' | grep . | sort -u | while read -r target; do
            [ -e "${page%/*}/$target" ] || { echo "${page#"$doc/"}: $target is not installed"; exit 1; }
            echo "$page" >>"$scratch/links"
        done || exit 1
    done
    [ "$(wc -l <"$scratch/links")" -ge 20 ]
}

symbols() { # FILE : its debugging sections
    readelf -S "$1" | grep -c '\.debug_info'
}

# Without symbols for a debugger programs run, and the libraries still link.
test_install_strip() {
    for file in bin/exfold-inspect lib/exfold/libexfold.so; do [ "$(symbols "$root$prefix/$file")" = 1 ]; done
    make_it install-strip DESTDIR="$root" PREFIX="$prefix"
    for file in bin/exfold-inspect bin/exfold-calibrate lib/exfold/libexfold.so lib/libexfold_fold.so; do [ "$(symbols "$root$prefix/$file")" = 0 ]; done
    [ "$(symbols "$root$prefix/lib/libexfold_fold.a")" = 0 ]
    [ "$(wc -c <"$root$prefix/lib/exfold/libexfold.so")" -lt "$(wc -c <"$BUILD/lib/exfold/libexfold.so")" ]
    (set -e; test_programs_run; test_library_links; test_library_shows_the_header_alone)
}

test_programs_run() {
    "$root$prefix/bin/exfold-inspect" --version | grep -F "exfold-inspect $(cat VERSION) (commit "
    "$root$prefix/bin/exfold-calibrate" "$root$prefix/share/exfold/recipes/demo.yaml" --dry-run --quiet --output "$scratch/out" |
        grep '^tokens '
    [ ! -e "$scratch/out" ]
}

# An editor is sent to the schemas that were installed.
test_init_names_the_schemas() {
    "$root$prefix/bin/exfold-calibrate" --quiet --init "$scratch/r.yaml" --model examples/demo-model --text examples/demo-corpus.jsonl
    for kind in recipe manifest; do
        file=$scratch/r$([ "$kind" = recipe ] || echo -manifest).yaml
        [ "$(head -n 1 "$file")" = "# yaml-language-server: \$schema=$(realpath "$root$prefix")/share/exfold/schema/$kind.json" ]
    done
}

# The file that a program takes its functions from.
library_of() { # PROGRAM
    realpath "$(LD_TRACE_LOADED_OBJECTS=1 "$1" | sed -n 's/.*libexfold\.so => \(.*\) (.*/\1/p')"
}

# A program finds its library from where it lies itself: in a tree that was moved, by a link, whatever LD_LIBRARY_PATH says.
test_programs_find_their_library() {
    wanted=$("$root$prefix/bin/exfold-inspect" --version)
    cp -RP "$root$prefix" "$scratch/one place"
    mv "$scratch/one place" "$scratch/another place"
    ln -s "$scratch/another place" "$scratch/here"
    ln -s "$scratch/here/bin/exfold-inspect" "$scratch/inspect"
    mkdir "$scratch/foreign" "$scratch/alone"
    echo 'int exf_foreign(void); int exf_foreign(void) { return 1; }' >"$scratch/foreign.c"
    # shellcheck disable=SC2086  # CC may be two words
    ${CC:-cc} -shared -fPIC -Wl,-soname,libexfold.so -o "$scratch/foreign/libexfold.so" "$scratch/foreign.c"
    for program in "$scratch/another place/bin/exfold-inspect" "$scratch/here/bin/exfold-inspect" "$scratch/inspect"; do
        [ "$("$program" --version)" = "$wanted" ]
        [ "$(library_of "$program")" = "$scratch/another place/lib/exfold/libexfold.so" ]
        (
            export LD_LIBRARY_PATH="$scratch/foreign"
            [ "$("$program" --version)" = "$wanted" ]
            [ "$(library_of "$program")" = "$scratch/another place/lib/exfold/libexfold.so" ]
        )
    done
    # a copy without the library does not run
    cp "$root$prefix/bin/exfold-inspect" "$scratch/alone"
    status=0
    "$scratch/alone/exfold-inspect" --version 2>"$scratch/alone/said" || status=$?
    [ "$status" = 127 ]
    grep -F 'libexfold.so' "$scratch/alone/said"
}

# What OpenBLAS asks while it is loaded, before main (src/cli/main.c, kernels/linear/blas_threads_cpu.c), ExFold answers.
test_functions_stand_before_those_of_openblas() {
    LD_BIND_NOW=1 LD_DEBUG=bindings "$root$prefix/bin/exfold-inspect" --version 2>&1 |
        sed -n 's/.*file [^ ]*libopenblas[^ ]* \[0\] to \([^ ]*\) .* symbol .\(openblas_[a-z_]*_env\).*/\2 \1/p' | sort -u >"$scratch/bound"
    grep '^openblas_omp_num_threads_env .*/bin/exfold-inspect$' "$scratch/bound"
    grep '^openblas_num_threads_env .*/libexfold\.so$' "$scratch/bound"
}

# Random addresses, a table of functions that is read-only from the start, no stack that runs, canaries and checked copies.
test_programs_are_hardened() {
    for file in bin/exfold-calibrate bin/exfold-inspect lib/exfold/libexfold.so lib/libexfold_fold.so; do
        file=$root$prefix/$file
        readelf -hW "$file" | grep 'Type: *DYN'
        readelf -lW "$file" | grep 'GNU_RELRO'
        readelf -lW "$file" | grep 'GNU_STACK.* RW '
        readelf -dW "$file" | grep 'FLAGS.*NOW'
        [ -n "$SANFLAGS" ] || readelf -sW --dyn-syms "$file" | grep '__stack_chk_fail'
    done
    readelf -dW "$root$prefix/bin/exfold-calibrate" | grep 'FLAGS_1.* PIE'
    [ -n "$SANFLAGS" ] || readelf -sW --dyn-syms "$root$prefix/lib/exfold/libexfold.so" | grep '__snprintf_chk'
    case $(${CC:-cc} -dumpmachine) in
    x86_64*) readelf -nW "$BUILD/src/base/err.o" | grep 'IBT, SHSTK' ;;
    esac
}

pkg() { # ARGUMENT ...
    PKG_CONFIG_PATH=$root$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root "${PKG_CONFIG:-pkg-config}" "$@" exfold-fold
}

# What examples/fold.c prints, worked out by hand from its tables.
folded() {
    cat <<'END'
routed
  0: 0.40  1: 0.10  2: 0.30  3: 0.20
  5: 0.40  4: 0.26  1: 0.14  0: 0.20
prefill, 2 routes a token
  0: 0.53  2: 0.47
  5: 0.61  4: 0.39
the first token
  expert 0: kept
  expert 1: folded into the target 0, times 0.50
  expert 2: kept
  expert 3: folded into the target 2, times 0.50
decode, 3 experts in the batch
  0: 0.40  0: 0.05  2: 0.30  2: 0.10
  5: 0.40  5: 0.13  0: 0.07  0: 0.20
END
}

# CC may be two words, "ccache gcc".
# shellcheck disable=SC2046,SC2086  # lists of words
test_library_links() {
    example=$root$prefix/share/exfold/examples/fold.c
    folded >"$scratch/folded"
    [ "$(pkg --modversion)" = "$(cat VERSION)" ]
    ${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Werror $SANFLAGS $(pkg --cflags) -o "$scratch/shared" "$example" $(pkg --libs)
    readelf -d "$scratch/shared" | grep "libexfold_fold\.so\.$(pkg --variable=abi)\]"
    LD_LIBRARY_PATH=$root$prefix/lib "$scratch/shared" | diff - "$scratch/folded"
    # what a static link needs besides lies outside the scratch directory, where pkg-config would look for it
    ${CC:-cc} -std=c11 $SANFLAGS $(pkg --cflags) -o "$scratch/static" "$example" "$root$prefix/lib/libexfold_fold.a" \
        $(sed -n 's/^Libs.private: //p' "$root$prefix/lib/pkgconfig/exfold-fold.pc")
    "$scratch/static" | diff - "$scratch/folded"
}

# Exactly what the header declares: in a build without CUDA all but its _cuda functions.
# shellcheck disable=SC2086  # a list of words
test_library_shows_the_header_alone() {
    without=$([ "$(pkg --variable=cuda)" = 1 ] && echo '^$' || echo '_cuda$')
    printf '#include <exfold/fold.h>\n' | ${CC:-cc} -E -I "$root$prefix/include" - | tr '\n' ' ' |
        grep -o 'exf_fold_[a-z_]* *([^)]' | sed 's/ *(.*//' | grep -v -e "$without" | sort >"$scratch/declared"
    nm -D --defined-only "$root$prefix/lib/libexfold_fold.so" | sed -n 's/.* T \([^@]*\).*/\1/p' | sort >"$scratch/shared"
    nm --defined-only -g "$root$prefix/lib/libexfold_fold.a" | sed -n 's/.* [A-Z] //p' | sort >"$scratch/static"
    [ "$(wc -l <"$scratch/declared")" -ge 8 ]
    diff "$scratch/declared" "$scratch/shared"
    diff "$scratch/declared" "$scratch/static"
    # the ABI is in the name and in every symbol's version; in a plain build nothing but C is needed at run time
    abi=$(pkg --variable=abi)
    nm -D --defined-only "$root$prefix/lib/libexfold_fold.so" | sed -n 's/.* T //p' | grep -v "@@EXFOLD_FOLD_$abi\$" && exit 1
    readelf -d "$root$prefix/lib/libexfold_fold.so" | grep "SONAME.*\[libexfold_fold\.so\.$abi\]"
    [ -n "$SANFLAGS" ] || [ "$(pkg --variable=cuda)" = 1 ] ||
        ! readelf -d "$root$prefix/lib/libexfold_fold.so" | grep NEEDED | grep -v -e '\[libc\.so' -e '\[libm\.so' || exit 1
}

# A status that nobody looks at is a warning.
# shellcheck disable=SC2046,SC2086  # lists of words
test_header_wants_its_statuses_looked_at() {
    printf '#include <exfold/fold.h>\nvoid f(void);\nvoid f(void) { %s exf_fold_decode_cpu(0, 0, 0); }\n' '(void)!' >"$scratch/looks.c"
    printf '#include <exfold/fold.h>\nvoid f(void);\nvoid f(void) { %s exf_fold_decode_cpu(0, 0, 0); }\n' '' >"$scratch/forgets.c"
    ${CC:-cc} -std=c11 -Wall -Werror $(pkg --cflags) -c -o "$scratch/looks.o" "$scratch/looks.c"
    ! ${CC:-cc} -std=c11 -Wall -Werror $(pkg --cflags) -c -o "$scratch/forgets.o" "$scratch/forgets.c" 2>"$scratch/warned" || exit 1
    grep -e '-Werror=unused-result' "$scratch/warned"
}

# With whatever renderer is there; that there is none is said.
test_manual_pages_render() {
    for page in "$root$prefix"/share/man/man?/*; do
        : >"$scratch/warnings"
        if command -v mandoc >/dev/null; then
            mandoc -T lint -W error "$page" >"$scratch/warnings"
            mandoc "$page" >"$scratch/text"
        elif command -v groff >/dev/null; then
            groff -man -ww -T utf8 "$page" >"$scratch/text" 2>"$scratch/warnings"
        else
            echo "install: neither mandoc nor groff is here: manual pages are not rendered" >&9
            return 0
        fi
        [ ! -s "$scratch/warnings" ] || { cat "$scratch/warnings"; exit 1; }
        grep -q '^N.*A.*M.*E' "$scratch/text" # each letter twice where the renderer strikes bold ones over
    done
    if command -v man >/dev/null && command -v groff >/dev/null; then
        for page in "$root$prefix"/share/man/man?/*; do
            LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -Tutf8 -l "$page" >"$scratch/text" 2>"$scratch/warnings" || exit 1
            [ ! -s "$scratch/warnings" ] || { cat "$scratch/warnings"; exit 1; }
        done
    fi
}

test_uninstall_leaves_nothing() {
    make_it uninstall DESTDIR="$root" PREFIX="$prefix"
    find "$root" ! -type d | grep . && exit 1
    find "$root$prefix" -name '*exfold*' | grep exfold/ && exit 1
    : >"$scratch/fine"
}

test_every_directory_can_be_named() {
    set -- DESTDIR="$root" PREFIX=/nowhere BINDIR=/a/b LIBDIR=/a/l INCLUDEDIR=/a/i DATADIR=/a/d MANDIR=/a/m DOCDIR=/a/o \
        PKGCONFIGDIR=/a/p BASHCOMPDIR=/a/bash ZSHCOMPDIR=/a/zsh
    make_it install "$@"
    [ ! -e "$root/nowhere" ]
    for file in b/exfold-solve l/exfold/libexfold.so l/libexfold_fold.so l/libexfold_fold.a i/exfold/fold.h d/exfold/recipes/demo.yaml m/man7/exfold.7 \
        o/README.md p/exfold-fold.pc bash/exfold-solve zsh/_exfold-solve; do
        [ -s "$root/a/$file" ] || { echo "$file is not there"; exit 1; }
    done
    grep -q '^libdir=/a/l$' "$root/a/p/exfold-fold.pc"
    "$root/a/b/exfold-solve" --version
    [ "$(library_of "$root/a/b/exfold-solve")" = "$root/a/l/exfold/libexfold.so" ]
    make_it uninstall "$@"
    find "$root" ! -type d | grep . && exit 1
    : >"$scratch/fine"
}

# A name that a shell takes for more, or a command for an option, is refused in one sentence, before anything is run or built.
test_names_that_a_shell_obeys_are_refused() {
    newline='
'
    tick=\` dollar='$$' # of which make leaves one
    mkdir "$scratch/names"
    refused() { # GOAL VARIABLE NAME
        status=0
        (cd "$scratch/names" && "${MAKE:-make}" -s -C "$top" BUILD="$BUILD" "$1" "$2=$3") >"$scratch/said" 2>&1 || status=$?
        if [ "$status" = 2 ] && [ "$(grep -c . "$scratch/said")" = 1 ] && grep -F "$2" "$scratch/said" && [ ! -e pwned ]; then return; fi
        echo "$*: status $status: $(cat "$scratch/said")"
        exit 1
    }
    for name in "x${tick}touch pwned${tick}" "x${dollar}(touch pwned)" "it's" 'a"b' "a${newline}b" 'a\b' -x ' -x'; do
        refused install DESTDIR "$name"
        refused uninstall DESTDIR "$name"
    done
    refused install-strip DESTDIR "it's"
    for variable in PREFIX BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR DOCDIR PKGCONFIGDIR BASHCOMPDIR ZSHCOMPDIR; do
        refused uninstall "$variable" "/x${tick}touch pwned${tick}"
    done
    refused install PREFIX '/a b' # whose pieces uninstalling would take for directories of its own
    [ -z "$(ls -A "$scratch/names")" ]
}

# Others are names: of files below them too.
test_other_names_are_taken() {
    make_it install DESTDIR="$scratch/a b; touch pwned" PREFIX='/p&q;(r)'
    [ -x "$scratch/a b; touch pwned/p&q;(r)/bin/exfold" ]
    make_it uninstall DESTDIR="$scratch/a b; touch pwned" PREFIX='/p&q;(r)'
    [ ! -e "$scratch/a b; touch pwned/p&q;(r)/share/exfold" ]
    [ ! -e pwned ]
    find "$scratch/a b; touch pwned" ! -type d | grep . && exit 1
    rm -rf "$scratch/a b; touch pwned"
}

# What stands in a file's place and was not installed stays, by installing and by uninstalling; what was changed since stays.
test_what_others_made_stays() {
    set -- DESTDIR="$scratch/theirs" PREFIX=/p
    for file in bin/exfold lib/libexfold_fold.so share/exfold/installed.sha256; do
        mkdir -p "$scratch/theirs/p/${file%/*}" "$scratch/weights"
        case $file in
        lib/*) ln -s "$scratch/weights" "$scratch/theirs/p/$file" ;;
        *) echo mine >"$scratch/theirs/p/$file" ;;
        esac
        cp -RP "$scratch/theirs" "$scratch/before"
        status=0
        make_it install "$@" >"$scratch/said" 2>&1 || status=$?
        [ "$status" = 2 ]
        grep -F "$scratch/theirs/p/$file: " "$scratch/said"
        [ "$(find "$scratch/theirs" ! -type d)" = "$scratch/theirs/p/$file" ]
        status=0
        make_it uninstall "$@" >"$scratch/said" 2>&1 || status=$?
        [ "$status" = 2 ]
        [ "$(find "$scratch/theirs" ! -type d)" = "$scratch/theirs/p/$file" ]
        rm -rf "$scratch/theirs" "$scratch/before"
    done
    make_it install "$@"
    make_it install "$@"
    echo mine >"$scratch/theirs/p/bin/theirs"
    echo mine >"$scratch/theirs/p/share/exfold/recipes/mine.yaml"
    echo mine >>"$scratch/theirs/p/share/exfold/recipes/demo.yaml"
    ! make_it install "$@" 2>"$scratch/said" || exit 1
    grep -F "$scratch/theirs/p/share/exfold/recipes/demo.yaml: " "$scratch/said"
    make_it uninstall "$@" 2>"$scratch/said"
    grep -F "$scratch/theirs/p/share/exfold/recipes/demo.yaml: is left" "$scratch/said"
    [ "$(find "$scratch/theirs" ! -type d | sort | tr '\n' ' ')" = "$scratch/theirs/p/bin/theirs \
$scratch/theirs/p/share/exfold/recipes/demo.yaml $scratch/theirs/p/share/exfold/recipes/mine.yaml " ]
}

# A copy of what was installed has a list of what lies elsewhere: nothing is removed or written by it, nor by one that is a link.
test_a_list_counts_where_it_was_made() {
    make_it install PREFIX="$scratch/first"
    mkdir "$scratch/second"
    cp -RP "$scratch/first/." "$scratch/second"
    mkdir -p "$scratch/third/share/exfold"
    ln -s "$scratch/first/share/exfold/installed.sha256" "$scratch/third/share/exfold"
    (cd "$scratch" && find first second third ! -type d -exec ls -di {} + | sort) >"$scratch/before"
    for place in second third; do
        for target in uninstall install; do
            status=0
            make_it "$target" PREFIX="$scratch/$place" >"$scratch/said" 2>&1 || status=$?
            [ "$status" = 2 ]
            grep -F "$scratch/$place/share/exfold/installed.sha256: " "$scratch/said"
            (cd "$scratch" && find first second third ! -type d -exec ls -di {} + | sort) | cmp - "$scratch/before"
        done
    done
    make_it uninstall PREFIX="$scratch//first"
    find "$scratch/first" ! -type d | grep . && exit 1
    rm -rf "$scratch/first" "$scratch/second" "$scratch/third"
}

# A directory that make did not make is neither built in nor removed.
test_clean_removes_what_make_made() {
    mkdir -p "$scratch/home/reference" "$scratch/weights" "$scratch/clean" "$scratch/old/gen"
    echo mine >"$scratch/home/reference/weights"
    echo mine >"$scratch/weights/w"
    ln -s weights "$scratch/link"
    for dir in home weights link; do
        for target in all clean check-reference; do
            status=0
            make_it "$target" BUILD="$scratch/$dir" >"$scratch/said" 2>&1 || status=$?
            [ "$status" = 2 ]
            grep -F "$scratch/$dir" "$scratch/said"
        done
    done
    [ "$(find "$scratch/home" "$scratch/weights" "$scratch/link" ! -type d | wc -l)" = 3 ]
    make_it dist BUILD="$scratch/clean/build" >"$scratch/said" || [ ! -d .git ]
    mkdir "$scratch/clean/build-san"
    echo mine >"$scratch/clean/build-san/mine"
    ! make_it clean BUILD="$scratch/clean/build" 2>"$scratch/said" || exit 1
    grep -F "$scratch/clean/build-san: is left" "$scratch/said"
    [ ! -e "$scratch/clean/build" ]
    [ "$(find "$scratch/clean" ! -type d)" = "$scratch/clean/build-san/mine" ]
    # one of before there were marks
    cp "$BUILD/gen/version.h" "$scratch/old/gen"
    : >"$scratch/old/libexfold.a"
    make_it clean BUILD="$scratch/old"
    [ ! -e "$scratch/old" ]
}

# The demo of an installation takes the programs beside it and writes below the working directory.
test_installed_demo() {
    mkdir -p "$scratch/demo/bin" "$scratch/demo/share/exfold/scripts" "$scratch/demo/here"
    cp "$root$prefix/share/exfold/scripts/demo.sh" "$scratch/demo/share/exfold/scripts"
    for program in calibrate inspect validate; do
        # shellcheck disable=SC2016  # expanded by the program
        printf '#!/bin/sh\necho "${0##*/} $*" >>ran\n' >"$scratch/demo/bin/exfold-$program"
        chmod +x "$scratch/demo/bin/exfold-$program"
    done
    (cd "$scratch/demo/here" && sh ../share/exfold/scripts/demo.sh >said && sh ../share/exfold/scripts/demo.sh "my out" >>said)
    recipe=$scratch/demo/share/exfold/recipes/demo.yaml
    for out in out/demo 'my out'; do
        printf 'exfold-%s\n' "calibrate $recipe --output $out" "inspect $out/tables.h5" "validate $recipe --output $out"
    done | diff - "$scratch/demo/here/ran"
    grep -F "$scratch/demo/bin/exfold-calibrate --help" "$scratch/demo/here/said"
}

# The package has what was installed, strangers' names nowhere, and what it is linked to among its dependencies, however those are
# found; the same tree makes the same bytes.
test_deb() {
    make_it deb DEB="$scratch/exfold.deb" DEB_COMPRESS=none >"$scratch/said"
    dpkg-deb -R "$scratch/exfold.deb" "$scratch/deb"
    [ "$(dpkg-deb -f "$scratch/exfold.deb" Package Version)" = "$(printf 'Package: exfold\nVersion: %s' "$(cat VERSION)")" ]
    dpkg-deb -c "$scratch/exfold.deb" | awk '$2 != "root/root" { print; bad = 1 } END { exit bad }'
    (cd "$scratch/deb" && md5sum --quiet -c DEBIAN/md5sums && [ "$(find usr -type f | wc -l)" = "$(wc -l <DEBIAN/md5sums)" ])
    ! grep -rlIF -e "$scratch" -e "$PWD" "$scratch/deb" || exit 1
    (cd "$root$prefix" && find . ! -type d ! -name 'libexfold*' ! -name '*.pc' ! -name installed.sha256) | sed 's|\(/man/.*\)|\1.gz|' |
        while read -r file; do
            [ -e "$scratch/deb/usr/$file" ] || [ -h "$scratch/deb/usr/$file" ] || { echo "$file is not in the package"; exit 1; }
        done
    "$scratch/deb/usr/bin/exfold-calibrate" "$scratch/deb/usr/share/exfold/recipes/demo.yaml" -n -q -o "$scratch/out" | grep '^tokens '
    "$scratch/deb/usr/bin/exfold" inspect schema recipe | cmp - "$scratch/deb/usr/share/exfold/schema/recipe.json"
    package_names() { tr ',' '\n' | sed 's/^ *//; s/ .*//' | grep . | sort -u; }
    dpkg-deb -f "$scratch/exfold.deb" Depends | package_names >"$scratch/depends"
    grep -x libc6 "$scratch/depends"
    # shellcheck disable=SC2046  # a list of files
    DEB_SHLIBDEPS='' scripts/make-deb.sh --depends "$scratch/deb/usr/bin/exfold" $(find "$scratch/deb/usr/lib" -name 'lib*.so') >"$scratch/needs"
    { cat "$scratch/needs" && echo ', fonts-dejavu-core'; } | package_names | diff "$scratch/depends" -
    rm -r "$scratch/deb/DEBIAN"
    DEB_COMPRESS=none scripts/make-deb.sh "$scratch/deb" "$(cd "$scratch/deb" && echo usr/lib/*-* | sed "s|^|/|")" "$(cat VERSION)" "$scratch/again.deb"
    cmp "$scratch/exfold.deb" "$scratch/again.deb"
}

test_build_with_a_blank_is_refused() {
    status=0
    "${MAKE:-make}" --no-print-directory BUILD="$scratch/a build" >"$scratch/blank" 2>&1 || status=$?
    [ "$status" = 2 ]
    [ "$(grep -c . "$scratch/blank")" = 1 ]
    grep -F "BUILD is \"$scratch/a build\"" "$scratch/blank"
    [ ! -e "$scratch/a" ]
}

# The tarball: the commit's files, the same bytes twice, and a commit that is known without git.
test_dist() {
    make_it dist BUILD="$scratch/dist" DIST_GZIP="gzip -1n" >"$scratch/one"
    make_it dist BUILD="$scratch/dist" DIST_GZIP="gzip -1n" >"$scratch/two"
    diff "$scratch/one" "$scratch/two"
    name=exfold-$(cat VERSION)
    (cd "$scratch" && tar -xzf "dist/$name.tar.gz")
    git ls-tree -r --name-only HEAD | sort >"$scratch/listed"
    (cd "$scratch/$name" && find . ! -type d | sed 's|^\./||' | sort) >"$scratch/packed"
    diff "$scratch/listed" "$scratch/packed"
    tar -tvzf "$scratch/dist/$name.tar.gz" | awk '$2 != "root/root" { print; bad = 1 } END { exit bad }'
    commit=$(GIT_DIR=/nonexistent "$scratch/$name/scripts/source-commit.sh")
    [ "$commit" = "$(git rev-parse HEAD | cut -c 1-12)" ]
}

package=deb
command -v dpkg-deb >/dev/null || { package='' && echo "install: there is no dpkg-deb: make deb is not tried"; }
exec 9>&1 # 3 and 4 are the pipe of `make -j`, which the makes below take part in
for name in install links_of_the_pages programs_are_hardened programs_run init_names_the_schemas programs_find_their_library \
    functions_stand_before_those_of_openblas library_links library_shows_the_header_alone \
    header_wants_its_statuses_looked_at manual_pages_render install_strip installed_demo $package uninstall_leaves_nothing \
    every_directory_can_be_named names_that_a_shell_obeys_are_refused other_names_are_taken what_others_made_stays a_list_counts_where_it_was_made clean_removes_what_make_made \
    build_with_a_blank_is_refused; do
    check "$name"
done
if git rev-parse -q --verify HEAD >/dev/null 2>&1; then
    check dist
else
    echo "install: this is no git repository: make dist is not tried"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
