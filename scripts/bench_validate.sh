#!/bin/sh
# bench_validate.sh - what a lane of a validation costs on the GPU beside a calibration's forward.
# usage: bench_validate.sh [CONFIG_DIR LAYERS SEQUENCES TOKENS]     default: Qwen3-30B-A3B's shape, 8 4 4096
#        (BUILD=build; MEMORY=/dev/shm; COMPUTE=bf16; VOCAB=8192, for the head is not what is timed)
# A checkpoint of random weights and random tokens are written into the RAM disk, tables with every
# projector are calibrated from them, and bench_validate runs variants of every kind.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
[ $# -eq 4 ] || set -- tests/configs/qwen3-30b-a3b 8 4 4096
dir=$(mktemp -d "${MEMORY:-/dev/shm}/exfold-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir "$dir/config"
sed "s/\"vocab_size\": *[0-9]*/\"vocab_size\": ${VOCAB:-8192}/" "$1/config.json" >"$dir/config/config.json"
python3 scripts/make_synthetic_checkpoint.py "$dir/config" "$2" "$dir/model" "$build/bench/make_checkpoint"
python3 scripts/make_random_tokens.py "$dir" "$3" "$4" "${VOCAB:-8192}"
cat >"$dir/recipe.yaml" <<END
schema: exfold-recipe/1
model: {path: model}
data: {manifest: manifest.yaml, max_tokens: $4}
calibrate: {projectors: [pair, layer, global, diagonal, lowrank], ranks: [8, 16], samples: 4096}
pools: [64]
output: {directory: out}
END
"$build/bin/exfold-calibrate" "$dir/recipe.yaml" --set runtime.compute="${COMPUTE:-bf16}" --set data.sequences=4 -q
"$build/bench/bench_validate" "$dir/model" "$dir/out/tables.h5" "$3" "$4" compute="${COMPUTE:-bf16}" \
    P4 P4:projector=joint top4:renorm D64 D64:projector=joint D64:pool=static P6+D96 reap64
echo "corrections:"
"$build/bench/bench_validate" "$dir/model" "$dir/out/tables.h5" "$3" "$4" compute="${COMPUTE:-bf16}" P4:projector=diagonal P4:projector=lowrank8 P4:projector=lowrank16
