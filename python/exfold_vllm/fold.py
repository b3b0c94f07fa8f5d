"""Folds the routes of a step: prefill's rows by one part of a variant, decode's by another, in one call.

Traced code sees one opaque operator, exfold::fold, [T, K] to [T, K]; code that runs as it is calls Layer directly.
"""
import torch

LAYERS = []  # of this process, by the number that the operator is given
SCORES = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid,
          "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt()}


class Layer:
    """A MoE layer that is folded.  index: its place in the tables; factor: what the router's weights lack, the runner applying it
    afterwards."""

    def __init__(self, tables, parts, phases, index, factor, router):
        self.tables, self.parts, self.phases, self.index, self.factor, self.router = tables, parts, phases, index, factor, router
        self.place = len(LAYERS)
        LAYERS.append(self)

    def fold(self, weights, ids, logits, hidden, whole=True):
        """Returns weights and ids, [T, K]; not whole: [T, P] where the step is prefill alone and a P keeps that many."""
        kind, n = ids.dtype, len(ids)
        ids = (ids if kind in (torch.int32, torch.int64) else ids.to(torch.int32)).contiguous()
        weights = weights.contiguous()
        present = [True, True] if ids.is_cuda and torch.cuda.is_current_stream_capturing() else self.phases.present
        narrow = not whole and not present[1]
        norms = None
        if any(part and part.predicts and there for part, there in zip(self.parts, present)):
            norms = self.tables.norms(self.index, hidden, logits, ids, weights * self.factor)
        for phase, (part, there) in enumerate(zip(self.parts, present)):
            if part and there:
                mask, of_part = self.phases.rows(phase, n), norms if part.predicts else None
                if part.decodes:
                    ids, weights = ids.clone(), weights.clone()
                    scores = self.scores(logits) if part.by_router else None
                    self.tables.decode(part, self.index, ids, weights, scores, of_part, mask)
                else:  # MoE kernels need not know slots without an expert: in a whole row these name its first one
                    whole_rows = bool(part.budget) or not narrow
                    ids, weights = self.tables.prefill(part, self.index, ids, weights, of_part, mask, self.factor, whole_rows)
        return weights, ids.to(kind)

    def scores(self, logits):
        """What the router chooses by, [T, E]: its probabilities, with the correction bias where there is one."""
        scores, bias = SCORES[getattr(self.router, "scoring_func", "softmax")](logits.float()), correction(self.router)
        return (scores if bias is None else scores + bias.float()).contiguous()


def correction(router):
    return getattr(router, "e_score_correction_bias", None)


@torch.library.custom_op("exfold::fold", mutates_args=())
def fold(weights: torch.Tensor, ids: torch.Tensor, logits: torch.Tensor, hidden: torch.Tensor,
         place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    new_weights, new_ids = LAYERS[place.item()].fold(weights, ids, logits, hidden)
    return tuple(new.clone() if new is old else new for new, old in ((new_weights, weights), (new_ids, ids)))


@fold.register_fake
def _(weights, ids, logits, hidden, place):
    return torch.empty_like(weights), torch.empty_like(ids)
