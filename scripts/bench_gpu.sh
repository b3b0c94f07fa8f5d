#!/bin/sh
# bench_gpu.sh - a calibration's forward on the GPU beside its ceilings and its peers.
# usage: bench_gpu.sh [CONFIG_DIR [LAYERS [SEQUENCES [TOKENS]]]]
#        (BUILD=build; MEMORY=/dev/shm; LIMIT=bytes of GPU memory; PEERS=0: without them)
# Writes a checkpoint of random weights into the RAM disk, runs bench_forward on it, and
# where python3 has PyTorch and transformers scripts/peer_bench.py at Qwen3-30B-A3B's
# shape: the published method, and a tuned one.  Without a GPU it says so and passes.
set -eu
cd "$(dirname "$0")/.."
config=${1:-tests/configs/qwen3-30b-a3b} layers=${2:-8} sequences=${3:-32} tokens=${4:-4096}
bench=${BUILD:-build}/bench
dir=$(mktemp -d "${MEMORY:-/dev/shm}/exfold-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$bench/bench_kernels" >"$dir/kernels"
cat "$dir/kernels"
case $(cat "$dir/kernels") in bench_kernels:*) exit 0 ;; esac
"$bench/bench_gram"
python3 scripts/make_synthetic_checkpoint.py "$config" "$layers" "$dir/model" "$bench/make_checkpoint"
# shellcheck disable=SC2086 # no limit is no argument
"$bench/bench_forward" "$dir/model" "$sequences" "$tokens" ${LIMIT:-} | tee "$dir/forward"
rm -rf "$dir/model"
[ "${PEERS:-1}" = 1 ] || exit 0
case $config in *qwen3-30b-a3b*) ;; *) exit 0 ;; esac
if ! python3 -c 'import torch, transformers' 2>/dev/null; then
    echo "peers: python3 has no PyTorch or no transformers"
    exit 0
fi
python3 scripts/peer_bench.py 4 4 2>/dev/null | tee "$dir/peers"
awk '
/as it is/ { ours = $4 }
/ms per layer-seq/ { for (i = 1; i <= NF; i++) if ($(i + 1) == "ms" && $(i + 2) == "per") { name = $1 == "PEER" ? "the published method" : "tuned PyTorch"; if (!(name in best) || $i < best[name]) best[name] = $i } }
END { for (name in best) if (ours > 0) printf "%s: %.2f ms per layer and sequence, %.1f times ours\n", name, best[name], best[name] / ours }
' "$dir/forward" "$dir/peers"
