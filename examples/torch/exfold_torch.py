"""ExFold's fold functions as operators of PyTorch, through libexfold_fold.

    import exfold_torch
    tables = exfold_torch.Tables("tables.safetensors", device="cuda")
    ids, weights = exfold_torch.prefill(ids, weights, tables[12], keep=4)      # between router and experts
    ids, weights = exfold_torch.decode(ids, weights, tables[12], pool=64, count=real_rows)

They are operators of torch.library (torch.ops.exfold), each with a fake kernel, so that torch.compile and torch.export take
them without a break of the graph.  They run on the CPU, and on a GPU with a library built with CUDA; there they neither allocate
through CUDA nor wait, and belong in CUDA graphs.  ids: int32 or int64, weights: float32, bfloat16 or float16, both [rows, K].
joint=True solves the kept weights together.  count (int32 [1]) or mask (bool [rows]) say which rows are no padding, and are read
when the kernel runs.  include/exfold/fold.h says what each option means.
"""
import ctypes
import os
from typing import Optional, Tuple

import torch
from torch import Tensor

API = 102  # EXF_FOLD_API of include/exfold/fold.h: 1.2
ABI = 2
NO_LIMIT, RIDGE = 1e30, 1e-2
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 0, torch.int64: 1}
RANKS = {"score_norm": 0, "score": 1, "norm": 2}
RESCALES = {"none": 0, "sum": 1, "l2": 2}
IMPORTANCES = {"norm": 0, "energy": 1, "score": 2}
pointer, int_, uint, real, size_t = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_float, ctypes.c_size_t


def struct(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Routes = struct("Routes", ids=pointer, weights=pointer, id_type=int_, weight_type=int_, rows=int_, width=int_, count=pointer,
                mask=pointer, norms=pointer, reserved=int_ * 2)
LayerTables = struct("LayerTables", coeff=pointer, loss=pointer, norms=pointer, cosine=pointer, rms=pointer, n_experts=int_,
                     reserved_int=int_, reserved=pointer * 6)
Prefill = struct("Prefill", size=uint, rank=int_, max_loss=real, rescale=int_, confidence=int_, ridge=real, keep=int_,
                 reserved=int_ * 9)
Decode = struct("Decode", size=uint, importance=int_, max_loss=real, drop=int_, ridge=real, fallback=int_, candidates=int_,
                pool=int_, members=pointer, reserved=int_ * 6)
Layers = struct("Layers", size=uint, n_layers=int_, n_experts=int_, reserved_int=int_, coeff=pointer, loss=pointer, norms=pointer,
                cosine=pointer, rms=pointer, numbers=ctypes.POINTER(ctypes.c_int32), file=pointer, reserved=pointer * 5)


def options(kind, **values):
    """A struct with its size, which says that every number in it is meant: a limit of 0 is 0."""
    return kind(size=0x80000000 | ctypes.sizeof(kind), **values)


_library = None


def library(path=None):
    """libexfold_fold, from the first of: path, $EXFOLD_FOLD_LIBRARY, where libraries are.  The first call decides."""
    global _library
    if _library is None:
        found = ctypes.CDLL(path or os.environ.get("EXFOLD_FOLD_LIBRARY", f"libexfold_fold.so.{ABI}"))
        if not hasattr(found, "exf_fold_api") or found.exf_fold_api() // 100 != API // 100 or found.exf_fold_api() < API:
            raise OSError(f"{found._name}: not API {API // 100}.{API % 100} of exfold/fold.h or a later 1.x")
        found.exf_fold_status_text.restype = ctypes.c_char_p
        _library = found
    return _library


def call(name, device, *arguments):
    if device.type == "cuda":
        arguments += (pointer(torch.cuda.current_stream(device).cuda_stream),)
    function = getattr(library(), f"exf_fold_{name}_{device.type}", None)
    if function is None:
        raise RuntimeError(f"{library()._name} has no exf_fold_{name}_{device.type}; it was built for the CPU alone")
    with torch.cuda.device(device if device.type == "cuda" else -1):
        status = function(*arguments)
    if status:
        raise ValueError(f"exf_fold_{name}: {library().exf_fold_status_text(status).decode()}")


def address(tensor, dtype, shape, device, what):
    """The address of an optional tensor, which is what the function expects."""
    if tensor is None:
        return None
    if tensor.dtype != dtype or tensor.device != device or not tensor.is_contiguous() or list(tensor.shape) != shape:
        raise ValueError(f"{what} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}, expected contiguous {dtype} {shape} "
                         f"on {device}")
    return tensor.data_ptr()


def routes(ids, weights, count=None, mask=None):
    if ids.dim() != 2 or ids.shape != weights.shape or ids.dtype not in (torch.int32, torch.int64) or \
            weights.dtype not in (torch.float32, torch.bfloat16, torch.float16) or ids.device != weights.device:
        raise ValueError(f"ids {ids.dtype} {list(ids.shape)} and weights {weights.dtype} {list(weights.shape)} are no routes")
    assert ids.is_contiguous() and weights.is_contiguous()
    return Routes(ids.data_ptr(), weights.data_ptr(), CODES[ids.dtype], CODES[weights.dtype], *ids.shape,
                  address(count, torch.int32, [1], ids.device, "count"),
                  address(mask, torch.bool, [len(ids)], ids.device, "mask"))


def layer_tables(device, coeff, loss, norms, cosine, rms):
    named = dict(coeff=coeff, loss=loss, norms=norms, cosine=cosine, rms=rms)
    experts = next(x.shape[-1] for x in named.values() if x is not None)
    matrices = ("coeff", "loss", "cosine")
    return LayerTables(n_experts=experts, **{
        name: address(x, torch.float32, [experts] * (1 + (name in matrices)), device, name) for name, x in named.items()})


# ---- the operators: what goes in is not written to, what comes out is new ---------------------------------------------------

@torch.library.custom_op("exfold::prefill", mutates_args=())
def prefill_op(ids: Tensor, weights: Tensor, coeff: Optional[Tensor], loss: Optional[Tensor], norms: Optional[Tensor],
               cosine: Optional[Tensor], rms: Optional[Tensor], keep: int, rank: int, max_loss: float, rescale: int,
               confidence: bool, ridge: float, joint: bool, count: Optional[Tensor], mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    ids, weights = ids.contiguous(), weights.contiguous()
    out = ids.new_empty(len(ids), keep), weights.new_empty(len(ids), keep)
    o = options(Prefill, keep=keep, rank=rank, max_loss=max_loss, rescale=rescale, confidence=confidence, ridge=ridge)
    call("prefill_joint" if joint else "prefill", ids.device, ctypes.byref(routes(ids, weights, count, mask)),
         ctypes.byref(routes(*out)), ctypes.byref(layer_tables(ids.device, coeff, loss, norms, cosine, rms)), ctypes.byref(o))
    return out


@prefill_op.register_fake
def _(ids, weights, coeff, loss, norms, cosine, rms, keep, *rest):
    return ids.new_empty(ids.shape[0], keep), weights.new_empty(ids.shape[0], keep)


@torch.library.custom_op("exfold::decode", mutates_args=())
def decode_op(ids: Tensor, weights: Tensor, coeff: Optional[Tensor], loss: Optional[Tensor], norms: Optional[Tensor],
              cosine: Optional[Tensor], rms: Optional[Tensor], pool: int, importance: int, max_loss: float, fallback: bool,
              ridge: float, joint: bool, members: Optional[Tensor], count: Optional[Tensor],
              mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    out = ids.clone(memory_format=torch.contiguous_format), weights.clone(memory_format=torch.contiguous_format)
    o = options(Decode, pool=pool, importance=importance, max_loss=max_loss, fallback=fallback, ridge=ridge,
                members=address(members, torch.int32, [pool], ids.device, "members"))
    call("decode_joint" if joint else "decode", ids.device, ctypes.byref(routes(*out, count, mask)),
         ctypes.byref(layer_tables(ids.device, coeff, loss, norms, cosine, rms)), ctypes.byref(o))
    return out


@torch.library.custom_op("exfold::decode_static", mutates_args=())
def decode_static_op(ids: Tensor, weights: Tensor, target_ids: Tensor, target_scale: Tensor, count: Optional[Tensor],
                     mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    out = ids.clone(memory_format=torch.contiguous_format), weights.clone(memory_format=torch.contiguous_format)
    experts = len(target_ids)
    call("decode_static", ids.device, ctypes.byref(routes(*out, count, mask)),
         pointer(address(target_ids, torch.int32, [experts], ids.device, "target_ids")),
         pointer(address(target_scale, torch.float32, [experts], ids.device, "target_scale")), int_(experts))
    return out


@decode_op.register_fake
@decode_static_op.register_fake
def _(ids, weights, *rest):
    return torch.empty_like(ids, memory_format=torch.contiguous_format), \
        torch.empty_like(weights, memory_format=torch.contiguous_format)


# ---- what a model calls -------------------------------------------------------------------------------------------------------

def prefill(ids, weights, tables, keep, rank="score_norm", max_loss=NO_LIMIT, rescale="none", confidence=False, ridge=RIDGE,
            joint=False, count=None, mask=None):
    """[T, K] -> [T, keep]; tables: a layer's, of Tables or a dict of its own."""
    return torch.ops.exfold.prefill(ids, weights, *arguments(tables), keep, RANKS[rank], max_loss, RESCALES[rescale], confidence,
                                    ridge, joint, count, mask)


def decode(ids, weights, tables, pool=None, importance="norm", max_loss=NO_LIMIT, fallback=False, ridge=RIDGE, joint=False,
           members=None, count=None, mask=None):
    """[B, K] -> [B, K] with at most `pool` experts in the batch, or those of `members` (int32 [D])."""
    return torch.ops.exfold.decode(ids, weights, *arguments(tables), len(members) if pool is None else pool,
                                   IMPORTANCES[importance], max_loss, fallback, ridge, joint, members, count, mask)


def decode_static(ids, weights, target_ids, target_scale, count=None, mask=None):
    """[B, K] -> [B, K]: the pool of the tables' pools.<D>, int32 and float32 [E] of a layer."""
    return torch.ops.exfold.decode_static(ids, weights, target_ids, target_scale, count, mask)


def arguments(tables):
    return [tables.get(name) for name in ("coeff", "loss", "norms", "cosine", "rms")]


class Tables:
    """The tables of tables.safetensors, opened by the library and copied to a device; tables[12]: those of the model's layer 12.
    `layers` are the numbers of the layers that have tables; a MoE layer that is not among them is not folded."""

    def __init__(self, path, device="cpu"):
        layers, why = options(Layers), ctypes.create_string_buffer(400)
        if library().exf_fold_layers_load(ctypes.byref(layers), os.fsencode(path), why, size_t(len(why))):
            raise ValueError(why.value.decode())
        try:
            n, e = layers.n_layers, layers.n_experts
            shapes = dict(coeff=(n, e, e), loss=(n, e, e), norms=(n, e), cosine=(n, e, e), rms=(n, e))
            self.stacked = {name: self.copy(getattr(layers, name), shape).to(device) for name, shape in shapes.items()
                            if getattr(layers, name)}
            self.layers = [layers.numbers[i] for i in range(n)] if layers.numbers else list(range(n))
        finally:
            library().exf_fold_layers_free(ctypes.byref(layers))

    @staticmethod
    def copy(at, shape):
        numbers = (ctypes.c_float * torch.Size(shape).numel()).from_address(at)
        return torch.frombuffer(numbers, dtype=torch.float32).reshape(shape).clone()

    def __getitem__(self, layer):
        index = self.layers.index(layer)
        return {name: stacked[index] for name, stacked in self.stacked.items()}
