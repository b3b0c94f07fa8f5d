#!/bin/sh
# bench_gpu.sh - a calibration's forward on the GPU beside its ceilings and its peers.
# usage: bench_gpu.sh                                         everything below
#        bench_gpu.sh CONFIG_DIR LAYERS SEQUENCES [SETTING...]  one shape (settings: bench_forward.c)
#        (BUILD=build; MEMORY=/dev/shm; TOKENS=4096)
# For every shape a checkpoint of random weights is written into the RAM disk and
# bench_forward run on it.  Everything: the parts of an MoE layer and the sums of common
# input alone; the five families' released shapes; Qwen3-30B-A3B's by mma.sync, inside 8 GiB, and with
# too little; and, where python3 has PyTorch and transformers, scripts/peer_bench.py at
# that shape: the published method, and a tuned one.  Without a GPU it says so and passes.
set -eu
cd "$(dirname "$0")/.."
bench=${BUILD:-build}/bench tokens=${TOKENS:-4096}
dir=$(mktemp -d "${MEMORY:-/dev/shm}/exfold-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

write() { # CONFIG_DIR LAYERS
    rm -rf "$dir/model"
    python3 scripts/make_synthetic_checkpoint.py "$1" "$2" "$dir/model" "$bench/make_checkpoint"
}

forward() { # SEQUENCES [SETTING...]
    sequences=$1
    shift
    "$bench/bench_forward" "$dir/model" "$sequences" "$tokens" "$@"
}

peers() {
    if ! python3 -c 'import torch, transformers' 2>/dev/null; then
        echo "peers: python3 has no PyTorch or no transformers"
        return
    fi
    python3 scripts/peer_bench.py 4 4 2>/dev/null | tee "$dir/peers"
    awk '
    /as it is/ { ours = $4 }
    /ms per layer-seq/ { for (i = 1; i <= NF; i++) if ($(i + 1) == "ms" && $(i + 2) == "per") { name = $1 == "PEER" ? "the published method" : "tuned PyTorch"; if (!(name in best) || $i < best[name]) best[name] = $i } }
    END { for (name in best) if (ours > 0) printf "%s: %.2f ms per layer and sequence, %.1f times ours\n", name, best[name], best[name] / ours }
    ' "$dir/forward" "$dir/peers"
}

"$bench/bench_kernels" >"$dir/kernels"
case $(cat "$dir/kernels") in bench_kernels:*) cat "$dir/kernels"; exit 0 ;; esac
if [ $# -gt 0 ]; then
    [ $# -ge 3 ] || { echo "usage: bench_gpu.sh [CONFIG_DIR LAYERS SEQUENCES [SETTING...]]" >&2; exit 2; }
    write "$1" "$2"
    shift 2
    forward "$@"
    exit
fi
cat "$dir/kernels"
"$bench/bench_gram"
write tests/configs/qwen3-30b-a3b 8
forward 32 | tee "$dir/forward"
echo "by the kernels of GPUs that are no Hopper (mma.sync):"
forward 32 cores=mma
echo "vectors of 1024 pairs a layer:"
forward 32 what=diagonal
forward 32 what=lowrank
forward 32 what=vectors
echo "inside 8 GiB:"
forward 32 limit=8589934592
echo "inside 100 MB:"
forward 32 limit=100000000 || echo "  (refused, as it should be)"
for shape in deepseek-v2-lite:4:32 qwen3.5-35b-a3b:4:32 glm-4.5-air:3:32 deepseek-v4-flash:4:8; do
    rest=${shape#*:}
    write "tests/configs/${shape%%:*}" "${rest%:*}"
    forward "${rest#*:}"
done
echo "float32:"
write tests/configs/qwen3-30b-a3b 4
forward 16 compute=f32
rm -rf "$dir/model"
echo "lanes of a validation:"
sh scripts/bench_validate.sh tests/configs/qwen3-30b-a3b 8 32 "$tokens" 2>/dev/null
peers
