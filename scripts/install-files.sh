#!/bin/sh
# install-files.sh - copies a tree of files into place and remembers which, and removes those again.
# usage: INSTALL=install install-files.sh install STAGE ROOT LIST    files and links below STAGE go below ROOT (DESTDIR, may be empty)
#        install-files.sh uninstall ROOT LIST
# LIST, a path below ROOT, has a line for each file: its SHA-256, or that of where a link leads, and its path; and its own
# path, since a copy of a directory has a list of what lies elsewhere: nothing is done by that.  What stands in a file's place and is not as a LIST says, or as it would be, was not installed by this script: nothing is installed then,
# and uninstalling leaves it.
set -eu
export LC_ALL=C
title='# exfold-installed/1: what make install put here; make uninstall removes these files if they are unchanged'
place='# this list is '

digest_of() { # PATH
    if [ -h "$1" ]; then readlink "$1" | sha256sum
    elif [ -f "$1" ]; then sha256sum <"$1"
    else echo none
    fi | cut -c 1-64
}

is_there() { [ -e "$1" ] || [ -h "$1" ]; }

# The lines of the list that is there; what make install did not put there as it is ends the script.
read_list() {
    is_there "$list" || return 0
    if [ -h "$list" ] || [ ! -f "$list" ] || [ "$(head -n 1 "$list")" != "$title" ]; then
        echo "$list: was not made by make install" >&2
        exit 1
    fi
    [ "$(sed -n 2p "$list")" = "$place$own" ] ||
        { echo "$list: was copied: it lists what was installed with $(sed -n "2s/^$place//p" "$list"), not here" >&2; exit 1; }
    sed 1,2d "$list"
}

write_list() { # LINES, a file
    new=$(mktemp "$list.XXXXXX")
    { echo "$title"; echo "$place$own"; cat "$1"; } >"$new"
    chmod 644 "$new"
    mv -f "$new" "$list"
}

install_all() { # STAGE
    (cd "$1" && find . ! -type d | sed 's/^\.//' | sort) >"$work/paths"
    while read -r path; do printf '%s  %s\n' "$(digest_of "$1$path")" "$path"; done <"$work/paths" >"$work/new"
    read_list >"$work/old"
    while read -r path; do
        is_there "$root$path" || continue
        grep -Fqx -e "$(digest_of "$root$path")  $path" "$work/old" "$work/new" && continue
        echo "$root$path: is there, and make install did not put it there as it is: move it away, or uninstall the version that did" >&2
        exit 1
    done <"$work/paths"
    mkdir -p "${list%/*}"
    sort -u "$work/old" "$work/new" >"$work/both" # a run that is stopped in between has old files and new ones
    write_list "$work/both"
    while read -r path; do
        mkdir -p "$root${path%/*}"
        if [ -h "$1$path" ]; then
            [ ! -h "$root$path" ] || rm "$root$path"
            ln -s "$(readlink "$1$path")" "$root$path"
        else
            ${INSTALL:-install} -m "$(if [ -x "$1$path" ]; then echo 755; else echo 644; fi)" "$1$path" "$root$path"
        fi
    done <"$work/paths"
    # what an earlier version installed and this one does not have stays listed
    cut -c 65- "$work/new" >"$work/replaced"
    { cat "$work/new"; grep -Fv -f "$work/replaced" "$work/old" || :; } | sort -u >"$work/both"
    write_list "$work/both"
}

uninstall_all() {
    is_there "$list" || { echo "$list: is not there, so nothing tells what make install put here; nothing is removed" >&2; exit 1; }
    read_list >"$work/old"
    cut -c 67- "$work/old" | sort -u >"$work/paths" # an interrupted installation has two lines for a path
    while read -r path; do
        is_there "$root$path" || continue
        if grep -Fqx -e "$(digest_of "$root$path")  $path" "$work/old"; then rm "$root$path"
        else echo "$root$path: is left: it is not as it was installed" >&2
        fi
    done <"$work/paths"
    rm "$list"
}

work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
case ${1:-}-$# in
install-4) root=$3 own=$(echo "$4" | tr -s /) list=$3$4 && install_all "$2" ;;
uninstall-3) root=$2 own=$(echo "$3" | tr -s /) list=$2$3 && uninstall_all ;;
*) sed -n '3,4s/^# //p' "$0" >&2; exit 2 ;;
esac
