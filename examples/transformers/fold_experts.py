"""Folds experts in a Hugging Face transformers model, with ExFold's tables, through libexfold_fold.

    import fold_experts
    model = AutoModelForCausalLM.from_pretrained("models/Qwen3-30B-A3B")
    folding = fold_experts.Folding(model, "tables.safetensors", "P4:projector=joint+D64")
    ...                                # generate, score, hand the model to an evaluation harness
    folding.remove()                   # the original model again

A variant is spelled as exfold-validate spells it: P, D and their options, with scalars of pairs or joint weights, a budget per
token (P3:budget=token) where the tables have it, stand-ins that the router chooses (D64:targets=router), and norms that the
tables' head predicts for each token (norms=predicted), which are folded on the host.
A call of the model with several tokens a sequence is prefill (P); one with a single token a sequence is a decode step (D),
and all of its rows are the batch.  teacher_forced=True does as exfold-validate: P and D both apply to every position of a call,
and the tokens at equal positions of its sequences are one decode batch.  Routers and expert kernels stay the model's own.
"""
import pathlib
import re
import sys

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python"))  # where it stands in this tree, and installed
from exfold_vllm import identity  # noqa: E402
from exfold_vllm.variant import ABI, Tables  # noqa: E402,F401  # variants, and libexfold_fold on tensors


class Folding:
    """Hooks between the routers and the experts of a model.  Layers that the tables lack, and those that choose experts by
    token id, are not folded.  library: the path of libexfold_fold; default: $EXFOLD_FOLD_LIBRARY, then where libraries are."""

    def __init__(self, model, tables, variant, teacher_forced=False, library=None):
        self.teacher_forced, self.hooks, self.layer, self.gate, self.correction = teacher_forced, [], {}, {}, {}
        self.tables = Tables(tables, variant, library)
        self.parts = [part for part in self.tables.parts if part]
        self.experts, index = self.tables.experts, self.tables.layers
        identity.check_config(self.tables, model.config, model.config.get_text_config())
        modules = dict(model.named_modules())
        for name, module in modules.items():  # a MoE block calls its experts with hidden states, ids and weights
            number = re.search(r"layers\.(\d+)\.\w+\.experts$", name)
            if number and int(number[1]) in index and not getattr(modules[name.rpartition(".")[0]], "is_hash", False):
                self.layer[module] = int(number[1])
                block, bias = modules[name.rpartition(".")[0]], "e_score_correction_bias"
                gate = self.gate[module] = block.router if hasattr(block, "router") else block.gate
                self.correction[module] = getattr(gate, bias, getattr(block, bias, None))
                self.hooks.append(module.register_forward_pre_hook(self.fold))
        if not self.layer or {module.num_experts for module in self.layer} != {self.experts}:
            raise ValueError(f"{tables}: layers {list(index)} of {self.experts} experts are not this model's")
        self.hooks.append(model.register_forward_pre_hook(self.look, with_kwargs=True))

    def remove(self):
        for hook in self.hooks:
            hook.remove()

    def look(self, model, args, kwargs):
        """Notes the shape of a call, [sequences, tokens], and which of its tokens are no padding."""
        tokens, mask = args[0] if args else kwargs.get("input_ids"), kwargs.get("attention_mask")
        shape = (kwargs["inputs_embeds"] if tokens is None else tokens).shape[:2]
        self.mask = mask.bool() if mask is not None and mask.shape == shape else torch.ones(shape, dtype=torch.bool)

    def fold(self, module, args):
        hidden, ids, weights = args
        predicts, number = any(part.predicts for part in self.parts), self.layer[module]
        layer = self.tables.layers[number]
        by_host = ids.is_cuda and (predicts or not hasattr(self.tables.library, "exf_fold_prefill_cuda"))
        routes = [x.cpu() if by_host else x.contiguous() for x in (ids, weights)]
        norms = self.tables.norms(layer, hidden, self.logits(module, hidden), ids, weights) if predicts else None
        chosen = routes[0]
        for part in self.parts:
            if part.layer in (-1, number) and (self.teacher_forced or part.decodes == (self.mask.shape[1] == 1)):
                extra = {"scores": self.scores(module, hidden).to(routes[0].device)} if part.by_router else {}
                if part.predicts:  # of the same experts, wherever a fold before this one has put them
                    at = (routes[0][:, :, None] == chosen[:, None]).int().argmax(2)
                    extra["norms"] = norms.to(at.device).gather(1, at).contiguous()
                routes = (self.decode if part.decodes else self.tables.prefill)(part, layer, *routes, **extra)
        ids, empty = routes[0], routes[0] < 0  # of a budget: slots without an expert, which experts here cannot skip
        routes = ids.where(~empty, ids[:, :1].clamp(min=0)), routes[1]
        return hidden, *(x.to(args[1].device) for x in routes)

    def logits(self, module, hidden):
        gate = self.gate[module]
        logits = torch.nn.functional.linear(hidden.flatten(0, -2).float(), gate.weight.float())
        return logits if getattr(gate, "bias", None) is None else logits + gate.bias.float()

    def scores(self, module, hidden):
        """What the router chooses by, [tokens, experts]: its probabilities, with the correction bias where there is one."""
        gate, bias = self.gate[module], self.correction[module]
        score = getattr(gate, "score_fn", torch.sigmoid if bias is not None else lambda x: x.softmax(-1))
        score = score(self.logits(module, hidden))
        return (score if bias is None else score + bias.float()).contiguous()

    def decode(self, part, layer, ids, weights, **extra):
        mask = self.mask.to(ids.device)
        at = (mask.cumsum(1) - 1)[mask], mask.nonzero()[:, 0]  # of every token its position and its sequence
        rows = {"ids": ids, "weights": weights, **extra}
        steps = {name: x.new_full((*mask.T.shape, x.shape[1]), -1) for name, x in rows.items()}  # id -1: no expert
        for name, x in rows.items():
            steps[name][at] = x[mask.flatten()]
        for q in range(mask.shape[1]):
            self.tables.decode(part, layer, **{name: x[q] for name, x in steps.items()})
        return [rows[name].masked_scatter(mask.flatten()[:, None], steps[name][at]) for name in ("ids", "weights")]
