#!/bin/sh
# make-deb.sh - a Debian package of a tree that make install has filled for PREFIX=/usr; needs dpkg, and objdump.
# usage: make-deb.sh ROOT LIBDIR VERSION OUT.deb      (make deb)
#        make-deb.sh --depends FILE ...               prints the packages that these programs and libraries need
# Adds to ROOT what a package has besides, and packs it: equal trees of one commit give equal bytes.  The dependencies are those
# of the machine it runs on: a package is built on the release that it is for.
# Environment: DEB_MAINTAINER, DEB_COMPRESS (xz; none is fast), DEB_SHLIBDEPS (dpkg-shlibdeps; "": dpkg -S, as where it is not
# installed), SOURCE_DATE_EPOCH (the commit's time).
set -eu
export LC_ALL=C
umask 022
project=$(cd "$(dirname "$0")/.." && pwd)
maintainer=${DEB_MAINTAINER:-ExFold project <exfold@exfold.invalid>}

# ---- dependencies ------------------------------------------------------------------

# "libyaml-0 2" of libyaml-0.so.2, "libfoo 1.2" of libfoo-1.2.so: the first two fields of a line of shlibs.
name_and_version() { # SONAME
    case $1 in
    *.so.*) echo "${1%%.so.*} ${1#*.so.}" ;;
    *) echo "$1" | sed -n 's/^\(.*\)-\([0-9][0-9.]*\)\.so$/\1 \2/p' ;;
    esac
}

# The package that has a file; /lib and /usr/lib are one directory of which dpkg may know either name.
owner() { # PATH
    for known in "$1" "${1#/usr}" "/usr$1"; do
        dpkg-query -S "$known" 2>/dev/null | sed -n '1s/: .*//p' | sed 's/, .*//' | grep . && return
    done
    echo "make-deb: no package has $1: it is linked, and nothing would install it elsewhere" >&2
    return 1
}

# What a package wants of those that link to its library: its shlibs file says so, since a library may be in several packages.
wanted() { # PACKAGE SONAME
    by_shlibs=$(dpkg-query --control-show "$1" shlibs 2>/dev/null |
        awk -v want="$(name_and_version "$2")" '$1 " " $2 == want { $1 = $2 = ""; sub(/^ */, ""); print; exit }')
    echo "${by_shlibs:-${1%%:*}}"
}

# A library's symbols do not tell its version where dpkg alone reads them; the C library's do.
computed_depends() { # FILE ...
    for file; do objdump -p "$file" | sed -n 's/^ *NEEDED *//p'; done | sort -u >"$work/sonames"
    # a program's own library leads to all others
    for file; do ldd "$file"; done | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u >"$work/paths"
    while read -r soname; do
        case $soname in ld-linux* | libexfold*.so) continue ;; esac
        path=$(awk -v soname="$soname" '$1 == soname { print $2; exit }' "$work/paths")
        [ -n "$path" ] || { echo "make-deb: $soname: is not found" >&2; exit 1; }
        package=$(owner "$(realpath "$path")") || exit 1
        [ "${package%%:*}" != libc6 ] || continue
        wanted "$package" "$soname" || exit 1
    done <"$work/sonames" >"$work/wanted" || exit 1
    for file; do objdump -T "$file"; done | sed -n 's/.*[( ]GLIBC_\([0-9][0-9.]*\)[) ].*/\1/p' | sort -u -V | tail -n 1 |
        sed 's/.*/libc6 (>= &)/' >>"$work/wanted"
    sort -u "$work/wanted" | awk '{ printf "%s%s", sep, $0; sep = ", " } END { print "" }'
}

# dpkg-shlibdeps looks for a library of the package beside a directory DEBIAN, and for debian/control where it runs.
shlibs_depends() { # FILE ...
    mkdir -p "$work/source/debian"
    printf 'Source: exfold\n\nPackage: exfold\nArchitecture: any\n' >"$work/source/debian/control"
    (cd "$work/source" && "$shlibdeps" -O "$@" 2>"$work/said") >"$work/substvars" || { cat "$work/said" >&2; exit 1; }
    sed -n 's/^shlibs:Depends=//p' "$work/substvars"
}

depends() { # FILE ...
    shlibdeps=${DEB_SHLIBDEPS-dpkg-shlibdeps}
    if [ -n "$shlibdeps" ] && command -v "$shlibdeps" >/dev/null; then shlibs_depends "$@"; else computed_depends "$@"; fi
}

# ---- what a package has besides ------------------------------------------------------

commit_time() {
    git -C "$project" log -1 --format=%ct 2>/dev/null || stat -c %Y "$project/VERSION"
}

add_documents() {
    doc=$root/usr/share/doc/exfold
    find "$root/usr/share/man" -type f ! -name '*.gz' -exec gzip -9n {} +
    rm -f "$root/usr/share/exfold/installed.sha256" # dpkg's list takes its place
    rm -f "$doc/LICENSE"
    ln -s ../../common-licenses/Apache-2.0 "$doc/LICENSE"
    [ -e "$doc/examples" ] || ln -s ../../exfold/examples "$doc/examples"
    cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ExFold

Files: *
Copyright: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y) the ExFold authors
License: Apache-2.0
 On Debian systems the whole license is in /usr/share/common-licenses/Apache-2.0.
END
    gzip -9n >"$doc/changelog.gz" <<END
exfold ($version) unstable; urgency=medium

  * ExFold $(cat "$project/VERSION"), commit $("$project/scripts/source-commit.sh").

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
    mkdir -p "$root/usr/share/lintian/overrides"
    # One package for programs, library and headers: it is built where it is used.
    printf 'exfold: %s\n' package-name-doesnt-match-sonames no-symbols-control-file link-to-shared-library-in-wrong-package \
        >"$root/usr/share/lintian/overrides/exfold"
}

add_control() { # FILE ... : the programs and libraries
    needs=$(depends "$@")
    [ -n "$needs" ] || { echo "make-deb: no dependencies were found" >&2; exit 1; }
    cat >"$root/DEBIAN/control" <<END
Package: exfold
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: $maintainer
Installed-Size: $(find "$root/usr" ! -type d -printf '%s\n' | awk '{ kb += int(($1 + 1023) / 1024) } END { print kb }')
Depends: $needs, fonts-dejavu-core
Suggests: python3$(echo "$needs" | grep -q libopenmpi && echo ', openmpi-bin')
Section: science
Priority: optional
Description: folding tables for mixture-of-experts language models
 ExFold measures, in one pass of text through a checkpoint, how well each
 expert's output predicts another's, and solves that into small tables with
 which a runtime serves the model with fewer experts: it folds the routes it
 leaves out into those that it runs.
 .
 The package has the programs, the libraries libexfold_fold and
 libexfold_accumulate for runtimes with their headers, manual pages, recipes, scripts, and a small model with its text, on
 which sh /usr/share/exfold/scripts/demo.sh shows all of it.
END
    find "$root$libdir" -maxdepth 1 -name 'libexfold_*.so.*' -printf '%f\n' | sort |
        sed "s/\\(.*\\)\\.so\\.\\(.*\\)/\\1 \\2 exfold (>= $version)/" >"$root/DEBIAN/shlibs"
    echo 'activate-noawait ldconfig' >"$root/DEBIAN/triggers"
    (cd "$root" && find usr -type f | sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"
}

make_package() {
    : "${SOURCE_DATE_EPOCH:=$(commit_time)}"
    export SOURCE_DATE_EPOCH
    mkdir "$root/DEBIAN" # it is there in a tree that was packed
    set -- "$root"/usr/bin/exfold* "$root$libdir/exfold/libexfold.so" "$root$libdir"/libexfold_*.so.*
    strip --remove-section=.comment "$@"
    chmod 644 "$root$libdir/exfold/libexfold.so" "$root$libdir"/libexfold_*.so.*
    add_documents
    add_control "$@"
    find "$root" -type d -exec chmod 755 {} +
    find "$root" ! -type l -newermt "@$SOURCE_DATE_EPOCH" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
    # the bytes do not depend on the number of processors
    DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Z"${DEB_COMPRESS:-xz}" --build "$root" "$out.new" >/dev/null
    mv "$out.new" "$out"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-deb.XXXXXX")
trap 'rm -rf "$work"' EXIT
case ${1:-}-$# in
--depends-1) sed -n '3,4s/^# //p' "$0" >&2; exit 2 ;;
--depends-*)
    shift
    for file; do set -- "$@" "$(realpath "$file")"; shift; done
    depends "$@"
    ;;
/*-4 | [!-]*-4) root=$(cd "$1" && pwd) libdir=$2 version=$3 out=$4 && make_package ;;
*) sed -n '3,4s/^# //p' "$0" >&2; exit 2 ;;
esac
