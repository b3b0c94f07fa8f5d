"""Folds experts in a Hugging Face transformers model, with ExFold's tables, through libexfold_fold.

    import fold_experts
    model = AutoModelForCausalLM.from_pretrained("models/Qwen3-30B-A3B")
    folding = fold_experts.Folding(model, "tables.safetensors", "P4:projector=joint+D64")
    ...                                # generate, score, hand the model to an evaluation harness
    folding.remove()                   # the original model again

A variant is spelled as exfold-validate spells it: P, D and their options, with scalars of pairs or joint weights, a budget per
token (P3:budget=token) where the tables have it, and stand-ins that the router chooses (D64:targets=router).
A call of the model with several tokens a sequence is prefill (P); one with a single token a sequence is a decode step (D),
and all of its rows are the batch.  teacher_forced=True does as exfold-validate: P and D both apply to every position of a call,
and the tokens at equal positions of its sequences are one decode batch.  Routers and expert kernels stay the model's own.
"""
import ctypes
import os
import re

import torch
from safetensors import safe_open

ABI, NO_LIMIT = 2, 1e30
INNER = {"size", "keep", "pool", "others", "members", "reserved",  # members of the structs that no option names
         "penalty", "share", "bounds", "repeat", "rule", "weights"}
TYPES = {"i": ctypes.c_int, "u": ctypes.c_uint32, "f": ctypes.c_float, "p": ctypes.c_void_p}
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 0, torch.int64: 1}
WORDS = {"rank": ["score_norm", "score", "norm"], "rescale": ["none", "sum", "l2"], "confidence": ["off", "on"],
         "importance": ["norm", "energy"], "drop": ["on", "drop"], "projector": ["pair", "joint"], "static": ["dynamic", "static"],
         "targets": ["expert", "router"], "budget": ["none", "token", "topp"], "sensitivity": ["stream", "output", "measured"]}


def struct(fields):
    """A struct of include/exfold/fold.h; "i:keep" is an int, u an unsigned one, f a float, p a pointer, "i8:reserved" an int[8]."""
    pairs = [field.split(":") for field in fields.split()]
    fields = [(name, TYPES[kind[0]] * int(kind[1:]) if kind[1:] else TYPES[kind]) for kind, name in pairs]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


Routes = struct("p:ids p:weights i:id_type i:weight_type i:rows i:width p:count p:mask p:norms i2:reserved")
Tables = struct("p:coeff p:loss p:expert_norms p:cosine p:rms i:n_experts i:reserved_int p6:reserved")
Prefill = struct("u:size i:rank f:max_loss i:rescale i:confidence f:ridge i:keep i9:reserved")
Decode = struct("u:size i:importance f:max_loss i:drop f:ridge i2:others i:pool p:members i6:reserved")
Budget = struct("u:size f:penalty f:share i2:bounds i:repeat f:ridge i:rule i8:reserved")
StandIns = struct("u:size i:importance i:weights f:ridge i:pool i11:reserved")
Scores = struct("p:choice p:gate i:type i7:reserved")


class Part:
    """One kind of a variant with its options, as in "D64:rank=energy"."""

    def __init__(self, text):
        kind, _, rest = text.partition(":")
        if not re.fullmatch(r"[PD][1-9]\d*", kind):
            raise ValueError(f'"{kind}" is no P or D with a number')
        self.decodes, self.size, given = kind[0] == "D", int(kind[1:]), rest.split(",")
        self.by_router, by_budget = self.decodes and "targets=router" in given, not self.decodes and "budget=" in rest
        struct_of = StandIns if self.by_router else Budget if by_budget else Decode if self.decodes else Prefill
        fields = {name for name, _ in struct_of._fields_} - INNER
        spelled = {"rank": "importance", "fold": "drop", "pool": "static"} if self.decodes else {}
        allowed = fields | {"targets", "static"} if self.decodes else fields | ({"budget", "sensitivity"} if by_budget else set())
        allowed |= set() if self.by_router or by_budget else {"projector"}
        values = {"projector": 0, "static": 0, "targets": 0, "budget": 0, "sensitivity": 0, "max_loss": NO_LIMIT, "ridge": 1e-2}
        for option in filter(None, given):
            word, _, value = option.partition("=")
            name = spelled.get(word, word)
            alone = value == "static" and not self.by_router
            if name not in allowed or value not in WORDS.get(name, [value]) or (alone and option != rest):
                raise ValueError(f'"{option}" is no option of {kind} here')
            values[name] = WORDS[name].index(value) if name in WORDS else float(value)
        self.joint, self.static, self.top_p = values["projector"], values["static"], values["budget"] == 2
        values["pool" if self.decodes else "keep"] = self.size
        members = [name for name, _ in struct_of._fields_ if name in values]
        of_struct = {name: values[name] for name in members}
        self.options = struct_of(0x80000000 | ctypes.sizeof(struct_of), **of_struct)  # EXF_FOLD_SIZED
        ranked = "rms" if self.decodes and self.options.importance else "expert_norms"
        self.needs = ["cosine", "rms", ranked] if self.joint or self.by_router else ["coeff", "loss", ranked]
        self.budget = self.members = None
        if self.static and self.by_router:
            self.members = f"pools.{self.size}.members"
            self.needs = ["cosine", "rms", self.members]
        elif self.static:
            self.needs = [f"pools.{self.size}.target_ids", f"pools.{self.size}.target_scale"]
        if values["budget"]:
            self.budget = f"budgets.{self.size}.{'top_p' if self.top_p else WORDS['sensitivity'][values['sensitivity']]}"
            self.needs = ["cosine", "rms", f"{self.budget}.lambda", f"{self.budget}.scale"]


class Folding:
    """Hooks between the routers and the experts of a model.  Layers that the tables lack, and those that choose experts by
    token id, are not folded.  library: the path of libexfold_fold; default: $EXFOLD_FOLD_LIBRARY, then where libraries are."""

    def __init__(self, model, tables, variant, teacher_forced=False, library=None):
        self.parts, self.teacher_forced, self.hooks, self.layer = [Part(x) for x in variant.split("+")], teacher_forced, [], {}
        self.gate, self.correction = {}, {}
        self.library = ctypes.CDLL(library or os.environ.get("EXFOLD_FOLD_LIBRARY", f"libexfold_fold.so.{ABI}"))
        self.library.exf_fold_status_text.restype = ctypes.c_char_p
        if self.library.exf_fold_abi() != ABI or not hasattr(self.library, "exf_fold_api"):
            raise ValueError(f"{self.library._name}: ABI {self.library.exf_fold_abi()}, expected {ABI} with API 1.2 or later")
        with safe_open(tables, framework="pt") as file:
            self.tables, facts = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
        self.experts, family = self.tables["coeff"].shape[1], model.config.model_type
        missing = {name for part in self.parts for name in part.needs} - set(self.tables)
        if missing or not family.startswith(facts["model.family"]):
            raise ValueError(f"{tables}: of a {facts['model.family']}, the model is a {family}; lacks {missing or 'nothing'}")
        index = {int(number): i for i, number in enumerate(re.findall(r"\d+", facts["layer_numbers"]))}
        modules = dict(model.named_modules())
        for name, module in modules.items():  # a MoE block calls its experts with hidden states, ids and weights
            number = re.search(r"layers\.(\d+)\.\w+\.experts$", name)
            if number and int(number[1]) in index and not getattr(modules[name.rpartition(".")[0]], "is_hash", False):
                self.layer[module] = index[int(number[1])]
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
        by_host = ids.is_cuda and not hasattr(self.library, "exf_fold_prefill_cuda")
        routes = [x.cpu() if by_host else x.contiguous() for x in (ids, weights)]
        for part in self.parts:
            if self.teacher_forced or part.decodes == (self.mask.shape[1] == 1):
                extra = (self.scores(module, hidden).to(routes[0].device),) if part.by_router else ()
                routes = (self.decode if part.decodes else self.prefill)(part, self.layer[module], *routes, *extra)
        ids, empty = routes[0], routes[0] < 0  # of a budget: slots without an expert, which experts here cannot skip
        routes = ids.where(~empty, ids[:, :1].clamp(min=0)), routes[1]
        return hidden, *(x.to(args[1].device) for x in routes)

    def scores(self, module, hidden):
        """What the router chooses by, [tokens, experts]: its probabilities, with the correction bias where there is one."""
        gate = self.gate[module]
        logits = torch.nn.functional.linear(hidden.flatten(0, -2).float(), gate.weight.float())
        if getattr(gate, "bias", None) is not None:
            logits = logits + gate.bias.float()
        bias = self.correction[module]
        score = getattr(gate, "score_fn", torch.sigmoid if bias is not None else lambda x: x.softmax(-1))(logits)
        return (score if bias is None else score + bias.float()).contiguous()

    def prefill(self, part, layer, ids, weights):
        kept = [x.new_empty(len(x), x.shape[1] if part.budget else part.size) for x in (ids, weights)]
        arguments = [self.routes(ids, weights), self.routes(*kept)]
        if part.budget:
            threshold = self.tables[f"{part.budget}.lambda"].item()
            part.options.rule = int(part.top_p)
            part.options.share = min(max(threshold, 1 / NO_LIMIT), 1) if part.top_p else 0
            part.options.penalty = 0 if part.top_p else min(threshold / self.tables[f"{part.budget}.scale"][layer].item(), NO_LIMIT)
            arguments.append(None)
        self.call("prefill" + "_joint" * part.joint + "_budget" * bool(part.budget), ids.device, *arguments,
                  self.of_layer(layer, ids.device), ctypes.byref(part.options))
        return kept

    def decode(self, part, layer, ids, weights, *scores):
        mask = self.mask.to(ids.device)
        at = (mask.cumsum(1) - 1)[mask], mask.nonzero()[:, 0]  # of every token its position and its sequence
        rows = (ids, weights, *scores)
        steps = [x.new_full((*mask.T.shape, x.shape[1]), -1) for x in rows]  # id -1: no expert
        for step, x in zip(steps, rows):
            step[at] = x[mask.flatten()]
        of_layer, options = self.of_layer(layer, ids.device), ctypes.byref(part.options)
        members = ctypes.c_void_p(self.row(part.members, layer, ids.device)) if part.members else None
        for step in zip(*steps):
            arguments = [self.routes(*step[:2])]
            if part.by_router:
                scores = ctypes.byref(Scores(choice=step[2].data_ptr(), type=CODES[step[2].dtype]))
                arguments += [scores, members, of_layer, options]
                name = "decode_stand_ins"
            elif part.static:
                arguments += [ctypes.c_void_p(self.row(name, layer, ids.device)) for name in part.needs] + [self.experts]
                name = "decode_static"
            else:
                arguments += [of_layer, options]
                name = "decode" + "_joint" * part.joint
            self.call(name, ids.device, *arguments)
        return [x.masked_scatter(mask.flatten()[:, None], step[at]) for step, x in zip(steps, (ids, weights))]

    def row(self, name, layer, device):
        """A table's part of a layer, on the device, where the whole table stays."""
        if (name, device) not in self.tables:
            self.tables[name, device] = self.tables[name].to(device)
        return self.tables[name, device][layer].data_ptr()

    def of_layer(self, layer, device):
        names = [name for name in ("coeff", "loss", "expert_norms", "cosine", "rms") if name in self.tables]
        return ctypes.byref(Tables(n_experts=self.experts, **{name: self.row(name, layer, device) for name in names}))

    def routes(self, ids, weights):
        return ctypes.byref(Routes(ids.data_ptr(), weights.data_ptr(), CODES[ids.dtype], CODES[weights.dtype], *ids.shape))

    def call(self, name, device, *arguments):
        if device.type == "cuda":
            torch.cuda.set_device(device)
            arguments += (ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream),)
        status = getattr(self.library, f"exf_fold_{name}_{device.type}")(*arguments)
        if status:
            raise RuntimeError(f"exf_fold_{name}: {self.library.exf_fold_status_text(status).decode()}")
