#!/usr/bin/env python3
"""make_wide_model.py - a checkpoint of random weights with many layers and experts.

usage: python3 scripts/make_wide_model.py OUTDIR [LAYERS [EXPERTS [HIDDEN]]]

Writes OUTDIR/model (qwen3_moe without a tokenizer; default 48 layers of 128 experts, top-8,
hidden 16), OUTDIR/tokens.safetensors, manifest.yaml and recipe.yaml, in the layout of a
released checkpoint and small enough to calibrate in a minute.  It says nothing about any
language: it is there to see what inspection makes of files as wide as real ones.

Within a layer experts are scaled mixtures of a few prototypes, so that some are alike
and norms differ; how alike changes from layer to layer, and one expert of one layer is
far louder than the rest.  Deterministic; only the standard library is used.
"""
import array
import json
import os
import random
import struct
import sys

LAYERS, EXPERTS, HIDDEN = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((2, 48), (3, 128), (4, 16)))
TOP_K, HEADS, WIDTH = min(8, EXPERTS), 2, HIDDEN
VOCABULARY, SEQUENCES, LENGTH = 256, 32, 128


def normal(rng, n, scale):
    return array.array("f", (rng.gauss(0, scale) for _ in range(n)))


def layer_tensors(rng, layer):
    prefix = "model.layers.%d." % layer
    head = HIDDEN // HEADS
    yield prefix + "input_layernorm.weight", [HIDDEN], array.array("f", [1.0] * HIDDEN)
    yield prefix + "post_attention_layernorm.weight", [HIDDEN], array.array("f", [1.0] * HIDDEN)
    for name in ("q", "k"):
        yield prefix + "self_attn.%s_norm.weight" % name, [head], array.array("f", [1.0] * head)
    for name in ("q", "k", "v", "o"):
        yield prefix + "self_attn.%s_proj.weight" % name, [HIDDEN, HIDDEN], normal(rng, HIDDEN * HIDDEN, HIDDEN ** -0.5)
    yield prefix + "mlp.gate.weight", [EXPERTS, HIDDEN], normal(rng, EXPERTS * HIDDEN, 1.5)
    n, families = HIDDEN * WIDTH, 3 + layer % 5
    own = 0.25 + 0.5 * ((layer * 7) % 11) / 10
    prototypes = [[normal(rng, n, HIDDEN ** -0.5) for _ in range(3)] for _ in range(families)]
    for e in range(EXPERTS):
        family = prototypes[e * families // EXPERTS]
        loud = 2.0 ** rng.gauss(0, 0.5) * (9.0 if (layer, e) == (LAYERS * 3 // 4, EXPERTS // 3) else 1.0)
        sign = -1 if rng.random() < 0.15 else 1
        for part, name, shape in ((0, "gate", [WIDTH, HIDDEN]), (1, "up", [WIDTH, HIDDEN]), (2, "down", [HIDDEN, WIDTH])):
            scale = sign * loud if part == 2 else 1.0
            noise = normal(rng, n, own * HIDDEN ** -0.5)
            yield prefix + "mlp.experts.%d.%s_proj.weight" % (e, name), shape, array.array("f", (scale * (a + b) for a, b in zip(family[part], noise)))


def tensors(rng):
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN], normal(rng, VOCABULARY * HIDDEN, 1.0)
    for layer in range(LAYERS):
        yield from layer_tensors(rng, layer)
    yield "model.norm.weight", [HIDDEN], array.array("f", [1.0] * HIDDEN)
    yield "lm_head.weight", [VOCABULARY, HIDDEN], normal(rng, VOCABULARY * HIDDEN, HIDDEN ** -0.5)


def write_safetensors(path, items):
    header, data = {}, bytearray()
    for name, shape, values in items:
        raw = values.tobytes()
        header[name] = {"dtype": "I32" if values.typecode == "i" else "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main():
    out, rng = sys.argv[1], random.Random(7)
    os.makedirs(out)  # nothing that is there is written over
    os.mkdir(os.path.join(out, "model"))
    config = {"model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "num_experts": EXPERTS, "num_experts_per_tok": TOP_K,
              "moe_intermediate_size": WIDTH, "intermediate_size": WIDTH, "norm_topk_prob": True, "decoder_sparse_step": 1,
              "mlp_only_layers": [], "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
              "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "float32"}
    write_safetensors(os.path.join(out, "model", "model.safetensors"), tensors(rng))
    with open(os.path.join(out, "model", "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    ids = array.array("i", (rng.randrange(VOCABULARY) for _ in range(SEQUENCES * LENGTH)))
    write_safetensors(os.path.join(out, "tokens.safetensors"), [("ids", [SEQUENCES, LENGTH], ids)])
    with open(os.path.join(out, "manifest.yaml"), "w", encoding="utf-8") as f:
        f.write("schema: exfold-manifest/1\nsources:\n  - {path: tokens.safetensors, format: tokens}\n")
    with open(os.path.join(out, "recipe.yaml"), "w", encoding="utf-8") as f:
        f.write("schema: exfold-recipe/1\nmodel: {path: model}\ndata: {manifest: manifest.yaml, max_tokens: %d}\n"
                "pools: [%d, %d]\noutput: {directory: out}\n" % (LENGTH, EXPERTS // 2, EXPERTS // 4))


main()
