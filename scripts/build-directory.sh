#!/bin/sh
# build-directory.sh - marks the directory that make builds in, and removes it by that mark.
# usage: build-directory.sh mark DIR          prints why not, if the directory is somebody else's
#        build-directory.sh remove DIR ...
# A directory is make's if it did not exist or was empty when make first built in it: then it got the file .exfold-build.
# One of a version that made no mark is known by what it generated.  Another one is neither built in nor removed.
set -u
title='exfold-build/1: make builds in this directory; make clean removes it'

is_ours() { # DIR
    if [ -f "$1/.exfold-build" ] && [ ! -h "$1/.exfold-build" ]; then
        [ "$(cat "$1/.exfold-build")" = "$title" ]
    else
        [ -f "$1/libexfold.a" ] && [ ! -h "$1/gen" ] && grep -qs '^#define EXF_RELEASE ' "$1/gen/version.h"
    fi
}

mark() { # DIR
    if [ -e "$1" ] || [ -h "$1" ]; then
        if is_ours "$1"; then :
        elif [ ! -d "$1" ]; then echo "BUILD=$1 is no directory"; return
        elif [ -n "$(ls -A "$1")" ]; then
            echo "BUILD=$1 holds files and was not made by make (it has no .exfold-build): name a directory that does not exist"
            return
        fi
    fi
    [ -e "$1/.exfold-build" ] || { mkdir -p "$1" && (set -C && echo "$title" >"$1/.exfold-build"); } || echo "BUILD=$1 cannot be made"
}

failed=0
case ${1:-} in
mark) mark "$2" ;;
remove)
    shift
    for dir; do
        if [ ! -e "$dir" ] && [ ! -h "$dir" ]; then continue; fi
        if [ ! -h "$dir" ] && is_ours "$dir"; then
            echo "rm -rf $dir"
            rm -rf "$dir" || failed=1
        else
            echo "$dir: is left: make did not make it (a link, or no .exfold-build in it)" >&2
            failed=1
        fi
    done
    ;;
*) sed -n '3,4s/^# //p' "$0" >&2; failed=2 ;;
esac
exit "$failed"
