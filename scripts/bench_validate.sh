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
python3 - "$dir" "$3" "$4" "${VOCAB:-8192}" <<'PYTHON'
import array, json, random, struct, sys
folder, n, length, vocab = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
ids = array.array("i", (random.Random(1).randrange(vocab) for _ in range(n * length)))
head = json.dumps({"ids": {"dtype": "I32", "shape": [n, length], "data_offsets": [0, 4 * n * length]}}).encode()
head += b" " * (-len(head) % 8)
with open(folder + "/tokens.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + ids.tobytes())
with open(folder + "/manifest.yaml", "w") as f:
    f.write("schema: exfold-manifest/1\nsources:\n  - {path: tokens.safetensors, format: tokens, domain: random, sha256: unpinned}\n")
with open(folder + "/recipe.yaml", "w") as f:
    f.write("schema: exfold-recipe/1\nmodel: {path: model}\ndata: {manifest: manifest.yaml, max_tokens: %d}\n"
            "calibrate: {projectors: [pair, layer, global, diagonal, lowrank], ranks: [8, 16], samples: 4096}\n"
            "pools: [64]\noutput: {directory: out}\n" % length)
PYTHON
"$build/bin/exfold-calibrate" "$dir/recipe.yaml" --set runtime.compute="${COMPUTE:-bf16}" --set data.sequences=4 -q
"$build/bench/bench_validate" "$dir/model" "$dir/out/tables.h5" "$3" "$4" compute="${COMPUTE:-bf16}" \
    P4 P4:projector=joint top4:renorm D64 D64:projector=joint D64:pool=static P6+D96 reap64
echo "corrections:"
"$build/bench/bench_validate" "$dir/model" "$dir/out/tables.h5" "$3" "$4" compute="${COMPUTE:-bf16}" P4:projector=diagonal P4:projector=lowrank8 P4:projector=lowrank16
