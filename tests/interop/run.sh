#!/bin/sh
# run.sh - the exports, read by the libraries that others read them with: PyTorch,
# safetensors, h5py, NumPy.  Of the demo model, and of tables in the shape of
# DeepSeek-V4-Flash.  Then examples/torch, examples/transformers in transformers' own models and in lm-evaluation-harness, and the
# plugin for vLLM in vLLM.
# last line: "N passed, N failed"
# usage: BUILD=dir run.sh      (make check-interop)
# What it needs is installed by scripts/install-interop.sh, which says which Python.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
case $BUILD in
/*) ;;
*) BUILD=$PWD/$BUILD ;;
esac
interop=$PWD/tests/interop
python=$(BUILD=$BUILD scripts/install-interop.sh) || { echo "0 passed, 1 failed"; exit 1; }
export PYTHONPATH="$BUILD/interop-python:$interop" PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d "${TMPDIR:-/tmp}/exfold-interop.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
passed=0 failed=0

note() { # STATUS WHAT
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
        echo "  ok      $2"
    else
        failed=$((failed + 1))
        echo "  FAILED  $2"
    fi
}

# The counts of a program that ends with "N passed, N failed".
count() { # COMMAND ...
    "$@" >"$work/log" 2>&1
    status=$?
    counts=$(sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$work/log")
    sed '$d' "$work/log"
    if [ -z "$counts" ] || { [ "$status" != 0 ] && [ "${counts#* }" = 0 ]; }; then
        tail -n 1 "$work/log"
        counts="0 1"
    fi
    passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
}

# A snippet in a directory of exports, its last line compared with the others'.
line=
snippet() { # DIRECTORY NAME
    said=$(cd "$work/$1" && "$python" "$interop/old_torch.py" "$interop/load_$2.py" 2>&1)
    status=$?
    [ "$status" = 0 ] || echo "$said"
    echo "          $said"
    note "$status" "load_$2.py"
    [ "$1" = demo ] || return
    [ -z "$line" ] || [ "$line" = "$said" ] || note 1 "load_$2.py says another thing than the ones before"
    line=$said
}

"$python" -c '
import sys, torch, numpy, h5py, safetensors
print("python", sys.version.split()[0], "torch", torch.__version__, "numpy", numpy.__version__, "h5py", h5py.__version__,
      "safetensors", safetensors.__version__)'
"$BUILD/bin/exfold-calibrate" recipes/demo.yaml -q -o "$work/demo" --set card.base_model=org/base \
    --set calibrate.projectors=pair,layer,global,diagonal,lowrank \
    --set output.targets=safetensors,exfold-qwen3,npy,csv,card >"$work/log" 2>&1
note $? "calibrate the demo model"
count "$python" "$interop/check_files.py" "$work/demo" qwen3_moe
for name in safetensors pt_qwen3 hdf5 npy csv; do snippet demo "$name"; done
mkdir "$work/v4" && "$BUILD/tests/interop/make_deepseek_v4" "$work/v4/tables.h5" &&
    "$BUILD/bin/exfold-export" -q -o "$work/v4" --accept small-calibration --set card.base_model=org/base --set serve.unobserved_layers=accept \
        --set output.targets=safetensors,exfold-deepseek-v4,npy,csv,card >"$work/log" 2>&1
note $? "export tables in the shape of DeepSeek-V4-Flash"
count "$python" "$interop/check_files.py" "$work/v4" deepseek_v4
snippet v4 pt_deepseek_v4

BUILD=$BUILD scripts/install-interop.sh vllm >/dev/null # which has transformers too
if python=$(BUILD=$BUILD scripts/install-interop.sh transformers); then
    export PYTHONPATH="$BUILD/transformers-python:$BUILD/vllm-python:$interop" HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
    mkdir "$work/transformers"
    count "$python" "$interop/check_torch_op.py" "$BUILD" "$work/demo/tables.safetensors"
    count "$python" "$interop/check_pt_to_safetensors.py" "$BUILD" "$work"
    count "$python" "$interop/check_transformers.py" "$BUILD" "$work/transformers"
    mkdir -p "$work/checkout/out" && ln -s "$work/demo" "$work/checkout/out/demo"
    ln -s "$BUILD" "$work/checkout/build" && ln -s "$PWD/examples" "$work/checkout/examples"
    (cd "$work/checkout" && "$python" "$interop/generate_folded.py") >"$work/log" 2>&1 &&
        grep -qF 'static int compare(const void *a,' "$work/log"
    note $? "generate_folded.py"
    if BUILD=$BUILD scripts/install-interop.sh tasks >/dev/null; then
        count env PYTHONPATH="$PYTHONPATH:$BUILD/tasks-python" "$python" "$interop/check_task_scores.py" "$BUILD" "$work/tasks" \
            "$work/demo/tables.safetensors"
    else
        note 1 "lm-evaluation-harness is not there"
    fi
else
    note 1 "transformers is not there"
fi
count env BUILD="$BUILD" "$interop/vllm.sh"
count env BUILD="$BUILD" CHECK=check_record.py "$interop/vllm.sh"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
