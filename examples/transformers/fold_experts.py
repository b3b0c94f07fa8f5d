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
         "targets": ["expert", "router"], "budget": ["none", "token", "topp"], "sensitivity": ["stream", "output", "measured"],
         "norms": ["mean", "predicted"]}


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
        allowed |= {"norms"} if self.by_router or by_budget else {"norms", "projector"}
        words = ("norms", "projector", "static", "targets", "budget", "sensitivity")
        values = {**dict.fromkeys(words, 0), "max_loss": NO_LIMIT, "ridge": 1e-2}
        for option in filter(None, given):
            word, _, value = option.partition("=")
            name = spelled.get(word, word)
            alone = value == "static" and not self.by_router
            if name not in allowed or value not in WORDS.get(name, [value]) or (alone and option != rest):
                raise ValueError(f'"{option}" is no option of {kind} here')
            values[name] = WORDS[name].index(value) if name in WORDS else float(value)
        self.joint, self.static, self.top_p = values["projector"], values["static"], values["budget"] == 2
        self.predicts = bool(values["norms"])
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
            self.price = self.budget + ".predicted" * self.predicts + ".lambda"
            self.needs = ["cosine", "rms", self.price, f"{self.budget}.scale"]
        self.needs += ["norm_head.basis", "norm_head.theta"] if self.predicts else []


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
        if any(part.predicts for part in self.parts) and self.library.exf_fold_api() < 103:
            raise ValueError(f"{self.library._name}: norms=predicted needs API 1.3 or later")
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
        by_host = ids.is_cuda and (any(part.predicts for part in self.parts) or not hasattr(self.library, "exf_fold_prefill_cuda"))
        routes = [x.cpu() if by_host else x.contiguous() for x in (ids, weights)]
        norms = self.norms(module, hidden, ids, weights).to(routes[0].device) if any(part.predicts for part in self.parts) else None
        chosen = routes[0]
        for part in self.parts:
            if self.teacher_forced or part.decodes == (self.mask.shape[1] == 1):
                extra = {"scores": self.scores(module, hidden).to(routes[0].device)} if part.by_router else {}
                if part.predicts:  # of the same experts, wherever a fold before this one has put them
                    at = (routes[0][:, :, None] == chosen[:, None]).int().argmax(2)
                    extra["norms"] = norms.gather(1, at).contiguous()
                routes = (self.decode if part.decodes else self.prefill)(part, self.layer[module], *routes, **extra)
        ids, empty = routes[0], routes[0] < 0  # of a budget: slots without an expert, which experts here cannot skip
        routes = ids.where(~empty, ids[:, :1].clamp(min=0)), routes[1]
        return hidden, *(x.to(args[1].device) for x in routes)

    def logits(self, module, hidden):
        gate = self.gate[module]
        logits = torch.nn.functional.linear(hidden.flatten(0, -2).float(), gate.weight.float())
        return logits if getattr(gate, "bias", None) is None else logits + gate.bias.float()

    def norms(self, module, hidden, ids, weights):
        """The norms of the routes' experts on their tokens, [tokens, K], as fold.h has them of the tables' head."""
        basis, theta = (self.whole(f"norm_head.{name}", ids.device)[self.layer[module]] for name in ("basis", "theta"))
        x, z, ids = hidden.flatten(0, -2).float(), self.logits(module, hidden), ids.long()
        own = theta[ids]  # [tokens, K, q + 4]
        q = basis.shape[1]
        beside = [(z - z.mean(1, keepdim=True)).gather(1, ids), weights.float().clamp(min=1e-6).log(),
                  x.norm(dim=1, keepdim=True).clamp(min=1e-10).log().expand(ids.shape)]
        log_norms = own[..., 0] + (own[..., 1:1 + q] @ (x @ basis)[:, :, None])[..., 0]
        return (log_norms + sum(own[..., 1 + q + i] * feature for i, feature in enumerate(beside))).exp().contiguous()

    def scores(self, module, hidden):
        """What the router chooses by, [tokens, experts]: its probabilities, with the correction bias where there is one."""
        gate, bias = self.gate[module], self.correction[module]
        score = getattr(gate, "score_fn", torch.sigmoid if bias is not None else lambda x: x.softmax(-1))
        score = score(self.logits(module, hidden))
        return (score if bias is None else score + bias.float()).contiguous()

    def prefill(self, part, layer, ids, weights, norms=None):
        kept = [x.new_empty(len(x), x.shape[1] if part.budget else part.size) for x in (ids, weights)]
        arguments = [self.routes(ids, weights, norms), self.routes(*kept)]
        if part.budget:
            threshold = self.tables[part.price].item()
            part.options.rule = int(part.top_p)
            part.options.share = min(max(threshold, 1 / NO_LIMIT), 1) if part.top_p else 0
            part.options.penalty = 0 if part.top_p else min(threshold / self.tables[f"{part.budget}.scale"][layer].item(), NO_LIMIT)
            arguments.append(None)
        self.call("prefill" + "_joint" * part.joint + "_budget" * bool(part.budget), ids.device, *arguments,
                  self.of_layer(layer, ids.device), ctypes.byref(part.options))
        return kept

    def decode(self, part, layer, ids, weights, **extra):
        mask = self.mask.to(ids.device)
        at = (mask.cumsum(1) - 1)[mask], mask.nonzero()[:, 0]  # of every token its position and its sequence
        rows = {"ids": ids, "weights": weights, **extra}
        steps = {name: x.new_full((*mask.T.shape, x.shape[1]), -1) for name, x in rows.items()}  # id -1: no expert
        for name, x in rows.items():
            steps[name][at] = x[mask.flatten()]
        of_layer, options = self.of_layer(layer, ids.device), ctypes.byref(part.options)
        members = ctypes.c_void_p(self.row(part.members, layer, ids.device)) if part.members else None
        for q in range(mask.shape[1]):
            step = {name: x[q] for name, x in steps.items()}
            choice = step.pop("scores", None)
            arguments = [self.routes(**step)]
            if part.by_router:
                scores = ctypes.byref(Scores(choice=choice.data_ptr(), type=CODES[choice.dtype]))
                arguments += [scores, members, of_layer, options]
                name = "decode_stand_ins"
            elif part.static:
                arguments += [ctypes.c_void_p(self.row(name, layer, ids.device)) for name in part.needs] + [self.experts]
                name = "decode_static"
            else:
                arguments += [of_layer, options]
                name = "decode" + "_joint" * part.joint
            self.call(name, ids.device, *arguments)
        return [rows[name].masked_scatter(mask.flatten()[:, None], steps[name][at]) for name in ("ids", "weights")]

    def whole(self, name, device):
        """A table on the device, where it stays."""
        if (name, device) not in self.tables:
            self.tables[name, device] = self.tables[name].to(device)
        return self.tables[name, device]

    def row(self, name, layer, device):
        return self.whole(name, device)[layer].data_ptr()

    def of_layer(self, layer, device):
        names = [name for name in ("coeff", "loss", "expert_norms", "cosine", "rms") if name in self.tables]
        return ctypes.byref(Tables(n_experts=self.experts, **{name: self.row(name, layer, device) for name in names}))

    def routes(self, ids, weights, norms=None):
        return ctypes.byref(Routes(ids.data_ptr(), weights.data_ptr(), CODES[ids.dtype], CODES[weights.dtype], *ids.shape,
                                   norms=None if norms is None else norms.data_ptr()))

    def call(self, name, device, *arguments):
        if device.type == "cuda":
            torch.cuda.set_device(device)
            arguments += (ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream),)
        status = getattr(self.library, f"exf_fold_{name}_{device.type}")(*arguments)
        if status:
            raise RuntimeError(f"exf_fold_{name}: {self.library.exf_fold_status_text(status).decode()}")
