"""Folds the routes of a step: prefill's rows by one part of a variant, decode's by another, in one call.

Traced code sees one opaque operator, exfold::fold, [T, K] to [T, K]; code that runs as it is calls Layer directly.
"""
import weakref

import torch

LAYERS = weakref.WeakValueDictionary()  # of this process, by the number that the operator is given; a model's routers hold them
SCORES = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid,
          "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt()}


class Layer:
    """A MoE layer that is folded.  number: its number in the model; factor: what the router's weights lack, the runner applying it
    afterwards; narrow: whether its kernels may be given fewer columns than the model's K, decided when they are chosen."""

    places = 0

    def __init__(self, engine, number, factor, router):
        self.engine, self.number, self.factor, self.router, self.narrow = engine, number, factor, router, False
        self.index, self.place = engine.tables.layers[number], Layer.places
        Layer.places += 1
        LAYERS[self.place] = self

    def fold(self, weights, ids, logits, hidden, whole=True):
        """Returns weights and ids, [T, K]; not whole: [T, P] where the step is prefill alone and a P keeps that many."""
        if not self.engine.checked:
            raise RuntimeError("exfold_vllm: this worker loaded its model without the plugin's checks (a worker_cls whose load_model "
                               "does not call vLLM's): phases of rows are unknown, so nothing can be folded")
        tables, phases, kind, n = self.engine.tables, self.engine.phases, ids.dtype, len(ids)
        ids = (ids if kind in (torch.int32, torch.int64) else ids.to(torch.int32)).contiguous()
        weights = weights.contiguous()
        present = [True, True] if ids.is_cuda and torch.cuda.is_current_stream_capturing() else phases.present
        parts = [part if there and part and part.layer in (-1, self.number) else None
                 for part, there in zip(tables.parts, present)]
        norms = None
        if any(part and part.predicts for part in parts):
            norms = tables.norms(self.index, hidden, logits, ids, weights * self.factor)
        for phase, part in enumerate(parts):
            if part:
                mask, of_part = phases.rows(phase, n), norms if part.predicts else None
                if part.decodes:
                    ids, weights = ids.clone(), weights.clone()
                    scores = self.scores(logits) if part.by_router else None
                    tables.decode(part, self.index, ids, weights, scores, of_part, mask)
                else:  # MoE kernels need not know slots without an expert: in a whole row these name its first one
                    whole_rows = whole or present[1] or part.budget or not self.narrow
                    ids, weights = tables.prefill(part, self.index, ids, weights, of_part, mask, self.factor, whole_rows)
        return weights, ids.to(kind)

    def scores(self, logits):
        """What the router chooses by, [T, E]: its probabilities, with the correction bias where there is one."""
        scores, bias = (SCORES[getattr(self.router, "scoring_func", "softmax")](logits.float()),
                        getattr(self.router, "e_score_correction_bias", None))
        return (scores if bias is None else scores + bias.float()).contiguous()


@torch.library.custom_op("exfold::fold", mutates_args=())
def fold(weights: torch.Tensor, ids: torch.Tensor, logits: torch.Tensor, hidden: torch.Tensor,
         place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    new_weights, new_ids = LAYERS[place.item()].fold(weights, ids, logits, hidden)
    return tuple(new.clone() if new is old else new for new, old in ((new_weights, weights), (new_ids, ids)))


@fold.register_fake
def _(weights, ids, logits, hidden, place):
    return torch.empty_like(weights), torch.empty_like(ids)
