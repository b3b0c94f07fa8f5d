#!/bin/sh
# vllm.sh - the plugin python/exfold_vllm in vLLM on the CPU, held to exfold-validate; it is installed from the wheel that pip
# builds of this tree.  last line: "N passed, N failed"
# usage: BUILD=dir vllm.sh [MODEL ...]      (make check-vllm)
# What it needs is installed by scripts/install-interop.sh vllm.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
case $BUILD in
/*) ;;
*) BUILD=$PWD/$BUILD ;;
esac
python=$(BUILD=$BUILD scripts/install-interop.sh vllm) || { echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-vllm.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
pip="$python -m pip install --quiet --disable-pip-version-check --no-deps"
# shellcheck disable=SC2086  # a list of words
BUILD=$BUILD $pip --target "$work/plugin" ./python >"$work/log" 2>&1 || {
    cat "$work/log"
    echo "0 passed, 1 failed"
    exit 1
}
export PYTHONPATH="$work/plugin:$BUILD/vllm-python:$PWD/tests/interop" PYTHONDONTWRITEBYTECODE=1
mkdir "$work/models"
"$python" "tests/interop/${CHECK:-check_vllm.py}" "$BUILD" "$work/models" "$@"
