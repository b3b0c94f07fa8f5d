"""ExFold's folds as operators of PyTorch, through libexfold_fold: any variant, between a router and its experts.

    import exfold_torch
    fold = exfold_torch.Fold("tables.safetensors", "P4:projector=joint+D64:targets=router")
    ids, weights = fold.prefill(12, ids, weights)                                          # layer 12 of the model
    ids, weights = fold.decode(12, ids, weights, scores=probabilities, mask=real_rows)

A variant is spelled as exfold-validate spells it.  prefill applies its P, [T, K] to [T, P], or with a budget or whole=True to [T, K]
with empty slots; decode its D to the rows of one decode batch.  They are operators of torch.library (torch.ops.exfold), each with a
fake kernel, so that torch.compile and torch.export take them without a break of the graph; what goes in is not written to.  They run
on the CPU, and on a GPU with a library built with CUDA; there they neither allocate through CUDA nor wait, and belong in CUDA graphs,
once a call before the capture has put the tables there.  ids: int32 or int64, weights: float32, bfloat16 or float16.

mask (bool [rows]) says which rows are no padding and is read when the kernel runs.  scores (float [rows, E]) are what the router
chooses by, of targets=router; norms (float32 [rows, K]) those of Fold.norms, of norms=predicted; factor is what the weights lack where
a model scales the experts' sum.  include/exfold/fold.h says what each means.
"""
import pathlib
import sys
from typing import Optional, Tuple

import torch
from torch import Tensor

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))  # where it stands in this tree, and installed
from exfold_vllm.variant import ABI, CODES, Tables  # noqa: E402,F401

FOLDS = []  # of this process, by the number that the operators are given


class Fold:
    """A variant of a model.  library: the path of libexfold_fold; default: $EXFOLD_FOLD_LIBRARY, then where libraries are."""

    def __init__(self, tables, variant, library=None):
        self.tables = Tables(tables, variant, library)
        self.parts = self.tables.parts
        self.layers, self.place = self.tables.layers, len(FOLDS)  # a MoE layer that is not among them is not folded
        FOLDS.append(self)

    def prefill(self, layer, ids, weights, norms=None, mask=None, factor=1.0, whole=False):
        return torch.ops.exfold.prefill(ids, weights, norms, mask, self.place, self.layers[layer], factor, whole)

    def decode(self, layer, ids, weights, scores=None, norms=None, mask=None):
        return torch.ops.exfold.decode(ids, weights, scores, norms, mask, self.place, self.layers[layer])

    def norms(self, layer, hidden, logits, ids, weights):
        """Of the routes' experts on their tokens, [rows, K], from the block's input, the router's logits and whole weights."""
        return self.tables.norms(self.layers[layer], hidden, logits, ids, weights)

    def part(self, decodes):
        if not self.parts[decodes]:
            raise ValueError(f"the variant has no {'D' if decodes else 'P'}")
        return self.parts[decodes]


def check(part, experts, ids, weights, **more):
    if ids.dim() != 2 or ids.shape != weights.shape or ids.dtype not in (torch.int32, torch.int64) or \
            weights.dtype not in (torch.float32, torch.bfloat16, torch.float16) or ids.device != weights.device:
        raise ValueError(f"ids {ids.dtype} {list(ids.shape)} and weights {weights.dtype} {list(weights.shape)} are no routes")
    expected = {"mask": (torch.bool, [len(ids)]), "norms": (torch.float32, list(ids.shape)), "scores": (None, [len(ids), experts])}
    needed = {"norms": part.predicts, "scores": part.by_router}
    for name, tensor in more.items():
        dtype, shape = expected[name]
        if tensor is None:
            if needed.get(name):
                raise ValueError(f"{part.text} needs {name}")
        elif tensor.dtype not in (CODES if dtype is None else [dtype]) or list(tensor.shape) != shape or \
                tensor.device != ids.device or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}, expected contiguous "
                             f"{dtype or 'numbers'} {shape} on {ids.device}")


@torch.library.custom_op("exfold::prefill", mutates_args=())
def prefill_op(ids: Tensor, weights: Tensor, norms: Optional[Tensor], mask: Optional[Tensor], place: int, layer: int, factor: float,
               whole: bool) -> Tuple[Tensor, Tensor]:
    part, tables = FOLDS[place].part(False), FOLDS[place].tables
    check(part, tables.experts, ids, weights, norms=norms, mask=mask)
    return tuple(tables.prefill(part, layer, ids.contiguous(), weights.contiguous(), norms if part.predicts else None, mask, factor,
                                whole))


@prefill_op.register_fake
def _(ids, weights, norms, mask, place, layer, factor, whole):
    width = ids.shape[1] if whole else FOLDS[place].part(False).width(ids.shape[1])
    return ids.new_empty(ids.shape[0], width), weights.new_empty(ids.shape[0], width)


@torch.library.custom_op("exfold::decode", mutates_args=())
def decode_op(ids: Tensor, weights: Tensor, scores: Optional[Tensor], norms: Optional[Tensor], mask: Optional[Tensor], place: int,
              layer: int) -> Tuple[Tensor, Tensor]:
    part, tables = FOLDS[place].part(True), FOLDS[place].tables
    check(part, tables.experts, ids, weights, scores=scores, norms=norms, mask=mask)
    ids, weights = (x.clone(memory_format=torch.contiguous_format) for x in (ids, weights))
    tables.decode(part, layer, ids, weights, scores if part.by_router else None, norms if part.predicts else None, mask)
    return ids, weights


@decode_op.register_fake
def _(ids, weights, *rest):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (ids, weights))
