#!/usr/bin/env python3
"""Take the tables out of a public plugin's .pt file, as a .safetensors file that the programs read.

    python3 scripts/pt_to_safetensors.py THEIRS.pt THEIRS.safetensors [--set prefill|decode] [--force]
    exfold-validate recipe.yaml --tables THEIRS.safetensors

torch.load(weights_only=True) makes tensors and plain values of the file and runs nothing of it.  docs/inspecting.md
says what becomes of them.  Needs PyTorch 2.0 or newer and NumPy.
"""
import argparse
import collections
import hashlib
import io
import json
import os
import struct
import zipfile

from render_chat import Failure, check_target, run, write_file

torch = None  # main() imports it, so that run() can say where it is missing

QWEN3 = {"coeff": 3, "loss": 3, "expert_norms": 2}  # tensors and their ranks: [M, E, E] or [M, E], M all layers of the model
V4 = {"prefill_coeff": 3, "prefill_selection_loss": 3, "prefill_confidence_loss": 3,
      "decode_coeff": 3, "decode_loss": 3, "norms": 2}
SETS = {"prefill": ("prefill_coeff", "prefill_selection_loss"), "decode": ("decode_coeff", "decode_loss")}


def load(path):
    """What the file holds, and the SHA-256 of its bytes, which are read once."""
    with open(path, "rb") as f:
        data = f.read()
    try:
        entries = zipfile.ZipFile(io.BytesIO(data)).infolist()
        names = [entry.filename.lower() for entry in entries]  # torch finds a name in either case
        name, times = max(collections.Counter(names).items(), key=lambda item: item[1])
        if times > 1:
            raise ValueError(f"it has two entries {ascii(name)}, of which a reader may take either")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it has compressed entries, which torch.save() does not write")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), hashlib.sha256(data).hexdigest()
    except Exception as e:  # of whatever kind: the file says which
        why = str(e).split("WeightsUnpickler error:")[-1].strip().partition("\n")[0].partition(". ")[0]
        raise Failure(5, f"{path}: is not read by torch.load(weights_only=True): {why}") from e


def check(path, held):
    """Which layout the dict has, and its values beside the tensors as text: text as it is, numbers and lists as JSON."""
    if not isinstance(held, dict) or not all(isinstance(key, str) for key in held):
        raise Failure(5, f"{path}: holds no dict of named values")
    layout = V4 if any(key in V4 for key in held) else QWEN3
    missing = [key for key in layout if key not in held]
    if missing:
        raise Failure(5, f"{path}: has no {', '.join(missing)}; it holds {ascii(', '.join(held))[:160]}")
    m, e = (*getattr(held[next(iter(layout))], "shape", ()), 0, 0)[:2]
    for key, rank in layout.items():
        t, shape = held[key], [m, e, e][:rank]
        dense = isinstance(t, torch.Tensor) and t.layout == torch.strided and t.device.type == "cpu" and t.is_contiguous()
        if not dense or t.dtype != torch.float32 or list(t.shape) != shape or 0 in shape:
            found = f"{t.dtype} {list(t.shape)}" if dense else f"a {type(t).__name__} that is not dense and row-major"
            raise Failure(5, f"{path}: {key} is {found}, expected float32 {[n or '?' for n in shape]}")
        if not t.isfinite().all():
            raise Failure(5, f"{path}: {key} has a number that is not finite")
    facts = {}
    for key in held.keys() - layout.keys():
        try:
            facts[f"plugin.{key}"] = text = held[key] if isinstance(held[key], str) else json.dumps(held[key])
            if b"\0" in (key + text).encode():
                raise ValueError("NUL")
        except (TypeError, ValueError, RecursionError) as e:
            kind = type(held[key]).__name__
            raise Failure(5, f"{path}: {ascii(key)}, a {kind}, is no tensor of the plugin and no plain value") from e
    return layout, facts


def tables(path, wanted):
    """The tensors and the metadata to write: layers with evidence, 1 and 1e30 on the diagonal, 0 and 1e30 without evidence."""
    held, digest = load(path)
    layout, facts = check(path, held)
    if layout is QWEN3 and wanted:
        raise Failure(2, f"{path}: is of the Qwen3 plugin, which has one set: leave --set out")
    if layout is V4 and not wanted and any(not held[a].equal(held[b]) for a, b in zip(*SETS.values())):
        raise Failure(2, f"{path}: its tables of prefill and decode differ: give --set prefill or --set decode")
    names = ("coeff", "loss", "expert_norms") if layout is QWEN3 else (*SETS[wanted or "prefill"], "norms")
    coeff, loss, norms = (held[name].detach() for name in names)
    one = torch.eye(coeff.shape[1])
    never = one.bool() | (loss >= 1e30)
    layers = [layer for layer in range(len(loss)) if not never[layer].all()]
    if not layers:
        raise Failure(5, f"{path}: no layer has a pair with evidence")
    out = {"coeff": coeff.where(~never, one)[layers], "loss": loss.masked_fill(never, 1e30)[layers], "expert_norms": norms[layers]}
    facts |= {"exfold_format": "plugin-tables/1", "layer_numbers": json.dumps(layers), "read_from.sha256": digest,
              "read_from": f"a .pt file of the {'Qwen3 plugin' if layout is QWEN3 else 'DeepSeek-V4 plugins'}"}
    return (out if layout is QWEN3 else out | {"frobenius": out["loss"]}), facts | ({"read_from.set": wanted} if wanted else {})


def safetensors(tensors, facts):
    """The bytes of the file: equal tensors and facts, equal bytes."""
    header, data = {"__metadata__": dict(sorted(facts.items()))}, b""
    for name, t in sorted(tensors.items()):
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [len(data), len(data) + 4 * t.numel()]}
        data += t.numpy().astype("<f4").tobytes()
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("pt", metavar="THEIRS.pt")
    p.add_argument("out", metavar="THEIRS.safetensors")
    p.add_argument("--set", choices=sorted(SETS), help="which tables of a DeepSeek-V4 file, where the two differ")
    p.add_argument("--force", action="store_true", help="replace THEIRS.safetensors if it exists")
    args = p.parse_args()
    global torch
    import torch
    try:
        if os.path.realpath(args.pt) == os.path.realpath(args.out):
            raise Failure(4, f"{args.out}: is the file to read")
        check_target(args.out, args.force)
        write_file(args.out, [safetensors(*tables(args.pt, args.set))], args.force)
    except OSError as e:
        raise Failure(4, f"{e.filename2 or e.filename}: {e.strerror}") from e


if __name__ == "__main__":
    run(main)
