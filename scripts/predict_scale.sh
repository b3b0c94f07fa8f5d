#!/bin/sh
# predict_scale.sh - what --dry-run predicts for models of scale on 1, 8 and 64 GPUs, as a table of Markdown.
# usage: predict_scale.sh [RATES]      RATES as of --rates; default: compute=400T,read=20G,copy=50G,network=12.5G
# BUILD=build; SEQUENCES=8192 TOKENS=4096: the corpus; MODELS: folders of tests/configs; RANKS="1 8 64"; PER_NODE=8
# Compute is the rate that a whole run attains on one GPU, read that at which a node reads and hashes weights, copy that
# at which they reach a GPU, network that of a node.  Only configs are read; nothing is written.
set -eu
cd "$(dirname "$0")/.."
bin=${BUILD:-build}/bin rates=${1:-compute=400T,read=20G,copy=50G,network=12.5G}
sequences=${SEQUENCES:-8192} tokens=${TOKENS:-4096} per_node=${PER_NODE:-8} ranks=${RANKS:-1 8 64}
dir=$(mktemp -d "${TMPDIR:-/tmp}/exfold-predict.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

number() { # NAME FILE : a member of the JSON object
    sed -n "s/.*\"$1\": *\([-+.0-9e]*\).*/\1/p" "$2" | tail -n 1
}

printf 'schema: exfold-manifest/1\nsources: [{path: assumed.safetensors, format: tokens, sequences: %s}]\n' "$sequences" >"$dir/manifest.yaml"
echo "| model | weights | work of all tokens |$(for n in $ranks; do printf ' %s GPUs |' "$n"; done)"
echo "|---|---|---|$(for n in $ranks; do printf -- '---|'; done)"
for model in ${MODELS:-deepseek-v4-flash glm-4.5 kimi-k2}; do
    cat >"$dir/recipe.yaml" <<END
schema: exfold-recipe/1
model: {path: $PWD/tests/configs/$model}
data: {manifest: manifest.yaml, max_tokens: $tokens}
output: {directory: out}
END
    row=
    for n in $ranks; do
        "$bin/exfold-calibrate" "$dir/recipe.yaml" --dry-run --quiet --json - --ranks "$n" --nodes $(((n + per_node - 1) / per_node)) \
            --rates "$rates" >"$dir/plan"
        row="$row$(awk -v s="$(sed 's/.*"scale"//' "$dir/plan" | sed -n 's/.*"seconds": *\([-+.0-9e]*\), "most.*/\1/p')" \
            'BEGIN { if (s < 120) printf " %.0f s |", s; else if (s < 7200) printf " %.0f min |", s / 60; else printf " %.1f h |", s / 3600 }')"
    done
    awk -v m="$model" -v b="$(number weight_bytes "$dir/plan")" -v f="$(number flops "$dir/plan")" -v row="$row" \
        'BEGIN { printf "| %s | %.0f GB | %.3g EFLOP |%s\n", m, b / 1e9, f / 1e18, row }'
done
