#!/bin/sh
# install-dependencies.sh - what a build and its tests need, installed if it is missing.
# usage: install-dependencies.sh [full]      full: also what make check-full needs (clang, valgrind, Chromium, ...)
#
# The Makefile holds the only list (make print-packages).  Debian and Ubuntu: what
# is missing is named and installed with apt-get, through sudo when not root.
# Elsewhere nothing is installed: what is missing is named.
# Exit status: 0 everything is there, 1 apt-get failed, 2 something is missing and must be installed by hand.
set -eu
cd "$(dirname "$0")/.."
for_tests=${1:-}
case $for_tests in
"" | full) ;;
*) echo "usage: install-dependencies.sh [full]" >&2; exit 2 ;;
esac

say() { echo "install-dependencies: $*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@" # nobody is there to type a password
    fi
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        -o Dpkg::Use-Pty=0 "$@" </dev/null
}

updated=
install_packages() { # PACKAGE ...
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        say "not root and no sudo; as root, run: apt-get install $*" >&2
        exit 2
    fi
    say "installing: $*"
    if [ -z "$updated" ]; then
        apt update || say "apt-get update failed; trying with the lists that are there" >&2
        updated=1
    fi
    if ! apt install --yes --no-install-recommends "$@" >/dev/null; then
        say "apt-get could not install: $*" >&2
        exit 1
    fi
}

not_installed() { # PACKAGE ...
    dpkg-query -W -f '${binary:Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
        awk -v want="$*" '{ sub(/:.*/, "", $1); if ($2 == "installed") there[$1] = 1 }
            END { n = split(want, name, " "); for (i = 1; i <= n; i++) if (!(name[i] in there)) printf "%s ", name[i] }'
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
    command -v make >/dev/null || install_packages make
    # shellcheck disable=SC2046  # a list of words
    missing=$(not_installed $(make -s print-packages FOR="$for_tests"))
    if [ -z "$missing" ]; then
        say "nothing is missing"
    else
        # shellcheck disable=SC2086
        install_packages $missing
    fi
elif ! command -v make >/dev/null; then
    say "GNU make is missing; install it and run this again to learn what else is" >&2
    exit 2
else
    missing=$(make -s print-missing FOR="$for_tests")
    [ -n "$missing" ] || { say "nothing is missing"; exit 0; }
    {
        say "this is neither Debian nor Ubuntu; please install: $missing"
        say "(names of pkg-config modules and commands; Debian calls the packages: $(make -s print-packages FOR="$for_tests"))"
    } >&2
    exit 2
fi
