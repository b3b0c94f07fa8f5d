#!/usr/bin/env python3
"""Cut a released model's config.json to N layers and fill the directory with random weights.

usage: make_synthetic_checkpoint.py CONFIG_DIR LAYERS OUT_DIR [MAKE_CHECKPOINT]

The weights, in the release's names and number formats (BF16, FP8, FP4), are written by
build/bench/make_checkpoint (make build/bench/make_checkpoint).  Standard library only.
"""
import json, os, subprocess, sys

def cut(config, layers):
    """Every list with an entry per layer, or one more per extra prediction layer, is cut as well."""
    text = config.get("text_config", config)
    old, extra = text["num_hidden_layers"], text.get("num_nextn_predict_layers", 0)
    for key, value in list(text.items()):
        if isinstance(value, list) and len(value) in (old, old + extra) and len(value) > 1:
            text[key] = value[: layers + len(value) - old]
    text["num_hidden_layers"] = layers
    return config

def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    source, layers, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    writer = sys.argv[4] if len(sys.argv) == 5 else "build/bench/make_checkpoint"
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = cut(json.load(f), layers)
    os.makedirs(out)  # nothing that is there is written over
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    sys.exit(subprocess.call([writer, out]))

main()
