#!/bin/sh
# deb.sh - the package of the last commit in bare roots: it is built in one, which has a compiler, and installed in another, which
# has none, where the demo then runs.
# usage: [ROOTS=DIRECTORY] [MIRROR=URL] deb.sh [SUITE ...]      (make check-deb)      last line: "N passed, N failed"
# SUITE: bookworm and trixie, or others; a bare root that is there as ROOTS/SUITE-bare is taken, else debootstrap makes it, of
# MIRROR.  Needs root and a network; ROOTS ($BUILD/deb-roots) stays for the next run.  A release takes some minutes.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
mkdir -p "${ROOTS:=$BUILD/deb-roots}" && ROOTS=$(cd "$ROOTS" && pwd) || exit 1
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "make check-deb needs root and debootstrap"
    exit 2
fi
passed=0 failed=0

inside() { # ROOT COMMAND
    mountpoint -q "$1/proc" || mount -t proc proc "$1/proc" || return
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        chroot "$1" sh -c "$2"
    ended=$?
    umount "$1/proc"
    return "$ended"
}

bare() { # SUITE ROOT
    [ ! -e "$2" ] || return 0
    rm -rf "$2.new"
    debootstrap --variant=minbase "$1" "$2.new" ${MIRROR:+"$MIRROR"} && cp /etc/resolv.conf "$2.new/etc/" && mv "$2.new" "$2"
}

seconds() { # WHAT COMMAND ... : says how long it took
    what=$1 since=$(date +%s)
    shift
    "$@" >"$ROOTS/said" 2>&1
    ended=$?
    echo "  $suite: $what: status $ended, $(($(date +%s) - since)) s"
    [ "$ended" = 0 ] || tail -n 5 "$ROOTS/said"
    return "$ended"
}

# shellcheck disable=SC2016  # expanded inside the root
try() { # SUITE
    suite=$1 builder=$ROOTS/$1-build user=$ROOTS/$1
    seconds 'a bare root' bare "$suite" "$ROOTS/$suite-bare" || return
    [ -e "$builder" ] || cp -a "$ROOTS/$suite-bare" "$builder"
    rm -rf "$user" "$builder/src"
    cp -a "$ROOTS/$suite-bare" "$user"
    mkdir "$builder/src"
    git archive HEAD | tar -x -C "$builder/src"
    seconds 'what a build needs' inside "$builder" 'cd /src && apt-get -qq update && scripts/install-dependencies.sh' || return
    seconds 'make deb' inside "$builder" 'cd /src && make -s -j2 CUDA=0 deb' || return
    echo "  $suite: $(cd "$builder/src/build" && wc -c exfold_*.deb | awk '{ print $2 ", " $1 " bytes" }'), needs $(dpkg-deb -f "$builder"/src/build/exfold_*.deb Depends)"
    cp "$builder"/src/build/exfold_*.deb "$user/root" || return
    seconds 'apt install' inside "$user" 'apt-get -qq update && apt install -y /root/exfold_*.deb' || return
    inside "$user" 'for c in gcc cc clang make; do ! command -v $c || exit 1; done' || { echo "  $suite: the root has a compiler"; return 1; }
    seconds 'the demo' inside "$user" 'cd /root && sh /usr/share/exfold/scripts/demo.sh && [ -s out/demo/tables.safetensors ]' || return
    seconds 'a picture' inside "$user" 'cd /root && exfold-inspect heatmap out/demo/tables.h5 -o x.pdf' || return
    seconds 'apt remove' inside "$user" 'apt remove -y exfold && ! find /usr /etc -name "*exfold*" | grep .'
}

for suite in "${@:-}"; do
    for one in ${suite:-bookworm trixie}; do
        if try "$one"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    done
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
