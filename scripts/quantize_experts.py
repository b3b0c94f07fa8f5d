#!/usr/bin/env python3
"""Round a checkpoint's routed experts to few bits and back: what a quantized model computes, in a checkpoint that ExFold reads.

    python3 scripts/quantize_experts.py MODEL OUTDIR [--format int4] [--group 128] [--match REGEX]

OUTDIR gets MODEL's files, *.safetensors with the experts' matrices rounded to the nearest number of the format and stored again
in the type that they had.  Formats, and what has a scale of its own:

    int4      integers 0 to 15 with a zero point (AWQ, GPTQ with sym false)    --group columns of a row
    int4-sym  integers -8 to 7 (GPTQ with sym true)                            --group columns of a row
    fp8       E4M3, a block scale of largest magnitude / 448                   --group rows x --group columns
    nvfp4     E2M1 with an E4M3 scale, under one float32 scale of the matrix   16 columns of a row

A row that is shorter than a group is one group.  It rounds to nearest and looks at no text, so it is an upper bound of what AWQ
or GPTQ, which do, change.  BF16, F16 and F32 tensors of two axes [out, in] or, stacked, three [experts, out, in] are rounded; a
matrix in another type is refused.  Needs numpy.  The same input gives the same bytes.
"""
import argparse
import json
import os
import re
import shutil
import struct

from render_chat import Failure, run

EXPERTS = r"\.experts\.(\d+\.)?(gate_proj|up_proj|down_proj|gate_up_proj|w1|w2|w3)(\.weight)?$"


# ---- numbers -------------------------------------------------------------------------------------------------------------

def bf16_to_f32(np, bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(np, values):
    """Rounded to nearest, ties to even; the values are finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def float_grid(np, exponent_bits, mantissa_bits, largest):
    """The magnitudes of a small float format, ascending: subnormals, then normals up to the largest."""
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2 ** mantissa_bits
    values = [m / steps * 2.0 ** (1 - bias) for m in range(steps)]
    values += [(1 + m / steps) * 2.0 ** (e - bias) for e in range(1, 2 ** exponent_bits) for m in range(steps)]
    return np.array([v for v in values if v <= largest])


def round_to(np, grid, values):
    """The nearest number of a grid of magnitudes, ties to the even place, saturating."""
    size = np.abs(values)
    high = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
    low = high - 1
    below, above = size - grid[low], grid[high] - size
    place = np.where((below < above) | ((below == above) & (low % 2 == 0)), low, high)
    return np.sign(values) * grid[place]


# ---- formats: each rounds a float64 array [groups, members] -----------------------------------------------------------------

def int4(np, w):
    """Integers 0 to 15 times a float16 scale, with a zero point, between the least and the greatest of a group and 0."""
    least, greatest = np.minimum(w.min(axis=1, keepdims=True), 0), np.maximum(w.max(axis=1, keepdims=True), 0)
    scale = ((greatest - least) / 15).astype(np.float16).astype(np.float64)
    scale[scale == 0] = 1
    zero = np.clip(np.rint(-least / scale), 0, 15)
    return (np.clip(np.rint(w / scale) + zero, 0, 15) - zero) * scale


def int4_sym(np, w):
    """Integers -8 to 7 times a float16 scale."""
    scale = (np.abs(w).max(axis=1, keepdims=True) / 7.5).astype(np.float16).astype(np.float64)
    scale[scale == 0] = 1
    return np.clip(np.rint(w / scale), -8, 7) * scale


def fp8(np, w):
    grid = float_grid(np, 4, 3, 448)
    scale = (np.abs(w).max(axis=1, keepdims=True) / 448).astype(np.float32).astype(np.float64)
    scale[scale == 0] = 1
    return round_to(np, grid, w / scale) * scale


def nvfp4(np, w):
    e2m1, e4m3 = float_grid(np, 2, 1, 6), float_grid(np, 4, 3, 448)
    whole = np.abs(w).max() / (6 * 448) or 1.0
    scale = round_to(np, e4m3, np.abs(w).max(axis=1, keepdims=True) / 6 / whole) * whole
    scale[scale == 0] = 1
    return round_to(np, e2m1, w / scale) * scale


FORMATS = {"int4": int4, "int4-sym": int4_sym, "fp8": fp8, "nvfp4": nvfp4}


def in_groups(np, matrix, form, group):
    """The matrix [out, in] with every group rounded."""
    rows = group if form == "fp8" else 1
    columns = 16 if form == "nvfp4" else group
    out, rounded = matrix.shape, np.empty_like(matrix)
    if form == "nvfp4" and out[1] % columns == 0:  # one scale above all groups
        return nvfp4(np, matrix.reshape(-1, columns)).reshape(out)
    if form == "nvfp4":
        raise Failure(3, f"rows of {out[1]} columns, no multiple of {columns}")
    for r in range(0, out[0], rows if rows > 1 else out[0]):
        for c in range(0, out[1], columns):
            part = matrix[r:r + rows, c:c + columns] if rows > 1 else matrix[:, c:c + columns]
            groups = part.reshape(1, -1) if rows > 1 else part
            result = FORMATS[form](np, groups).reshape(part.shape)
            rounded[r:r + part.shape[0], c:c + part.shape[1]] = result
    return rounded


# ---- checkpoints ------------------------------------------------------------------------------------------------------------

def read_header(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        head = f.read(length)
    try:
        return 8 + length, head, json.loads(head)
    except ValueError as e:
        raise Failure(5, f"{path}: is no .safetensors file: {e}") from e


def round_tensor(np, name, about, data, form, group):
    """The tensor's bytes, rounded; (bytes, sum of squared errors, sum of squares)."""
    kinds = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
    if about["dtype"] not in kinds or len(about["shape"]) not in (2, 3):
        raise Failure(3, f'tensor "{name}" is {about["dtype"]} {about["shape"]}, expected BF16, F16 or F32 of two or three axes')
    stored = np.frombuffer(data, dtype=kinds[about["dtype"]]).reshape(about["shape"])
    values = (bf16_to_f32(np, stored) if about["dtype"] == "BF16" else stored).astype(np.float64)
    stack = values.reshape((-1,) + values.shape[-2:])
    rounded = np.stack([in_groups(np, matrix, form, group) for matrix in stack]).reshape(values.shape)
    again = f32_to_bf16(np, rounded.astype(np.float32)) if about["dtype"] == "BF16" else rounded.astype(stored.dtype)
    return again.tobytes(), float(((rounded - values) ** 2).sum()), float((values ** 2).sum())


def quantize_file(np, source, out, args, sums):
    start, head, tensors = read_header(source)
    wanted = re.compile(args.match)
    with open(source, "rb") as f:
        out.write(struct.pack("<Q", len(head)) + head)
        order = sorted((about["data_offsets"][0], name) for name, about in tensors.items() if name != "__metadata__")
        for at, name in order:
            about = tensors[name]
            f.seek(start + at)
            data = f.read(about["data_offsets"][1] - at)
            if wanted.search(name):
                data, error, energy = round_tensor(np, name, about, data, args.format, args.group)
                sums[0] += 1
                sums[1] += error
                sums[2] += energy
            out.write(data)


def copy_file(np, source, out, args, sums):
    if source.endswith(".safetensors"):
        quantize_file(np, source, out, args, sums)
    else:
        with open(source, "rb") as f:
            shutil.copyfileobj(f, out)


def take_back(directory, written):
    """Deletes the files that were written, [(path, status when it was made)], and the directory unless others put files there."""
    for path, made in written:
        if os.path.lexists(path) and os.path.samestat(os.lstat(path), made):
            os.unlink(path)
    if not os.listdir(directory):
        os.rmdir(directory)


def copy_model(np, args):
    """Writes the new directory, whole or not at all."""
    sums, written = [0, 0.0, 0.0], []
    files = sorted(name for name in os.listdir(args.model) if os.path.isfile(os.path.join(args.model, name)))
    if not any(name.endswith(".safetensors") for name in files):
        raise Failure(4, f"{args.model}: holds no .safetensors file")
    os.makedirs(args.out)
    try:
        for name in files:
            target = os.path.join(args.out, name)
            with open(target, "xb") as out:
                written.append((target, os.fstat(out.fileno())))
                copy_file(np, os.path.join(args.model, name), out, args, sums)
        if not sums[0]:
            raise Failure(3, f"{args.model}: no tensor has a name like {args.match}")
    except BaseException:
        take_back(args.out, written)
        raise
    return sums


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", metavar="MODEL")
    p.add_argument("out", metavar="OUTDIR", help="a directory that does not exist")
    p.add_argument("--format", choices=FORMATS, default="int4")
    p.add_argument("--group", type=int, default=128, help="columns that share a scale; of fp8 rows, too (default 128)")
    p.add_argument("--match", default=EXPERTS, metavar="REGEX", help="names of the tensors that are rounded; default: routed experts")
    args = p.parse_args()
    import numpy as np

    if args.group < 1:
        raise Failure(2, f"--group {args.group}: expected 1 or more")
    try:
        count, error, energy = copy_model(np, args)
    except OSError as e:
        raise Failure(4, f"{e.filename or args.model}: {e.strerror}") from e
    print(f"wrote {args.out}: {count} matrices in {args.format}, relative error {(error / energy) ** 0.5 if energy else 0:.4f}")


if __name__ == "__main__":
    run(main)
