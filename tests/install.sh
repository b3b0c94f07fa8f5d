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
root=$scratch/root prefix=/opt/exfold
passed=0 failed=0

make_it() { # TARGET VARIABLE=VALUE ...
    "${MAKE:-make}" -s --no-print-directory BUILD="$BUILD" "$@"
}

check() { # NAME : runs test_NAME
    if (set -e; "test_$1") >"$scratch/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL install/$1: $(tail -n 3 "$scratch/said")"
    fi
}

test_install() {
    make_it install DESTDIR="$root" PREFIX="$prefix"
    for program in "$BUILD"/bin/exfold-*; do
        name=${program##*/}
        cmp "$program" "$root$prefix/bin/$name"
        [ -x "$root$prefix/bin/$name" ]
        [ -s "$root$prefix/share/man/man1/$name.1" ]
        [ -s "$root$prefix/share/bash-completion/completions/$name" ]
        [ -s "$root$prefix/share/zsh/site-functions/_$name" ]
    done
    [ -s "$root$prefix/share/man/man5/exfold-recipe.5" ]
    [ -s "$root$prefix/share/doc/exfold/LICENSE" ]
    cmp recipes/demo.yaml "$root$prefix/share/exfold/recipes/demo.yaml"
    # nobody's path of the building machine is in a text that was installed
    ! grep -rlIF "$scratch" "$root" || exit 1
}

test_programs_run() {
    "$root$prefix/bin/exfold-inspect" --version | grep -F "exfold-inspect $(cat VERSION) (commit "
    "$root$prefix/bin/exfold-calibrate" "$root$prefix/share/exfold/recipes/demo.yaml" --dry-run --quiet --output "$scratch/out" |
        grep '^tokens '
    [ ! -e "$scratch/out" ]
}

pkg() { # ARGUMENT ...
    PKG_CONFIG_PATH=$root$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root "${PKG_CONFIG:-pkg-config}" "$@" exfold-fold
}

# Two of four routes are kept; expert 2 goes to expert 0 times 0.5, expert 3 has no target.
write_program() {
    cat <<'END'
#include <exfold/fold.h>
#include <stdio.h>
int main(void)
{
    int32_t ids[4] = {0, 1, 2, 3}, kept[2];
    float weights[4] = {0.4f, 0.3f, 0.2f, 0.1f}, w[2], norms[4] = {1, 1, 1, 1}, coeff[16] = {0}, loss[16];
    for (int i = 0; i < 16; i++) loss[i] = EXF_FOLD_NEVER;
    coeff[2 * 4 + 0] = 0.5f;
    loss[2 * 4 + 0] = 0.1f;
    exf_fold_routes in = {ids, weights, EXF_FOLD_I32, EXF_FOLD_F32, 1, 4}, out = {kept, w, EXF_FOLD_I32, EXF_FOLD_F32, 1, 2};
    exf_fold_tables t = {.coeff = coeff, .loss = loss, .norms = norms, .n_experts = 4};
    exf_fold_prefill_options o = {.keep = 2, .max_loss = EXF_FOLD_NEVER};
    if (exf_fold_prefill_cpu(&in, &out, &t, &o) != EXF_FOLD_OK) return 1;
    printf("%d %.3f %d %.3f\n", (int)kept[0], w[0], (int)kept[1], w[1]);
    return 0;
}
END
}

# CC may be two words, "ccache gcc".
# shellcheck disable=SC2046,SC2086  # lists of words
test_library_links() {
    write_program >"$scratch/t.c"
    [ "$(pkg --modversion)" = "$(cat VERSION)" ]
    ${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Werror $SANFLAGS $(pkg --cflags) -o "$scratch/shared" "$scratch/t.c" $(pkg --libs)
    readelf -d "$scratch/shared" | grep "libexfold_fold\.so\.$(pkg --variable=abi)\]"
    [ "$(LD_LIBRARY_PATH=$root$prefix/lib "$scratch/shared")" = "0 0.500 1 0.300" ]
    # what a static link needs besides lies outside the scratch directory, where pkg-config would look for it
    ${CC:-cc} -std=c11 $SANFLAGS $(pkg --cflags) -o "$scratch/static" "$scratch/t.c" "$root$prefix/lib/libexfold_fold.a" \
        $(sed -n 's/^Libs.private: //p' "$root$prefix/lib/pkgconfig/exfold-fold.pc")
    [ "$("$scratch/static")" = "0 0.500 1 0.300" ]
}

# Exactly what the header declares: in a build without CUDA its _cpu functions.
# shellcheck disable=SC2086  # a list of words
test_library_shows_the_header_alone() {
    only=$([ "$(pkg --variable=cuda)" = 1 ] && echo . || echo _cpu)
    printf '#include <exfold/fold.h>\n' | ${CC:-cc} -E -I "$root$prefix/include" - | tr '\n' ' ' |
        grep -o 'exf_fold_[a-z_]* *([^)]' | sed 's/ *(.*//' | grep -e "$only" | sort >"$scratch/declared"
    nm -D --defined-only "$root$prefix/lib/libexfold_fold.so" | sed -n 's/.* T \([^@]*\).*/\1/p' | sort >"$scratch/shared"
    nm --defined-only -g "$root$prefix/lib/libexfold_fold.a" | sed -n 's/.* [A-Z] //p' | sort >"$scratch/static"
    [ "$(wc -l <"$scratch/declared")" -ge 5 ]
    diff "$scratch/declared" "$scratch/shared"
    diff "$scratch/declared" "$scratch/static"
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
            echo "install: neither mandoc nor groff is here: manual pages are not rendered" >&3
            return 0
        fi
        [ ! -s "$scratch/warnings" ] || { cat "$scratch/warnings"; exit 1; }
        grep -q "NAME" "$scratch/text"
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
    for file in b/exfold-solve l/libexfold_fold.so l/libexfold_fold.a i/exfold/fold.h d/exfold/recipes/demo.yaml m/man7/exfold.7 \
        o/README.md p/exfold-fold.pc bash/exfold-solve zsh/_exfold-solve; do
        [ -s "$root/a/$file" ] || { echo "$file is not there"; exit 1; }
    done
    grep -q '^libdir=/a/l$' "$root/a/p/exfold-fold.pc"
    make_it uninstall "$@"
    find "$root" ! -type d | grep . && exit 1
    : >"$scratch/fine"
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

exec 3>&1
for name in install programs_run library_links library_shows_the_header_alone manual_pages_render uninstall_leaves_nothing \
    every_directory_can_be_named; do
    check "$name"
done
if git rev-parse -q --verify HEAD >/dev/null 2>&1; then
    check dist
else
    echo "install: this is no git repository: make dist is not tried"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
