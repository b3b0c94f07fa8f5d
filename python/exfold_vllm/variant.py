"""Variants as exfold-validate spells them, and libexfold_fold's functions on PyTorch tensors.

    parts = [Part(text) for text in "P4:projector=joint+D64".split("+")]
    tables = Tables("tables.safetensors", parts)
    ids, weights = tables.prefill(parts[0], layer, ids, weights)     # [T, K] to [T, P]
    tables.decode(parts[1], layer, ids, weights)                     # [B, K] in place, one decode batch

examples/transformers and the vLLM plugin share it.  `layer` counts from 0 in the tables; Tables.layers has the model's numbers.
Tensors may be on the CPU or, with a library built with CUDA, on a GPU, where a call is a launch on the current stream.
"""
import ctypes
import os
import pathlib
import re

import torch
from safetensors import safe_open

ABI, NO_LIMIT = 2, 1e30
INNER = {"size", "keep", "pool", "others", "members", "reserved",  # members of the structs that no option names
         "penalty", "share", "bounds", "repeat", "rule", "weights", "factor", "padding"}
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
Arrays = struct("p:coeff p:loss p:expert_norms p:cosine p:rms i:n_experts i:reserved_int p6:reserved")
Prefill = struct("u:size i:rank f:max_loss i:rescale i:confidence f:ridge i:keep i:repeat i8:reserved")
Decode = struct("u:size i:importance f:max_loss i:drop f:ridge i2:others i:pool p:members i6:reserved")
Budget = struct("u:size f:penalty f:share i2:bounds i:repeat f:ridge i:rule f:factor i:padding i6:reserved")
StandIns = struct("u:size i:importance i:weights f:ridge i:pool i11:reserved")
Scores = struct("p:choice p:gate i:type i7:reserved")


class Part:
    """One kind of a variant with its options, as in "D64:rank=energy"."""

    def __init__(self, text):
        kind, _, rest = text.partition(":")
        if not re.fullmatch(r"[PD][1-9]\d*", kind):
            raise ValueError(f'"{kind}" is no P or D with a number')
        self.text, self.decodes, self.size, given = text, kind[0] == "D", int(kind[1:]), rest.split(",")
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

    def width(self, width):
        """How many columns prefill writes of so many."""
        return width if self.budget else self.size


def fold_library(path=None):
    """Loads libexfold_fold: of this path, else of $EXFOLD_FOLD_LIBRARY, else the one beside this file, else the system's."""
    name, beside = f"libexfold_fold.so.{ABI}", pathlib.Path(__file__).with_name(f"libexfold_fold.so.{ABI}")
    path = path or os.environ.get("EXFOLD_FOLD_LIBRARY") or (str(beside) if beside.exists() else name)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be loaded ({error}); make fold-library builds it, EXFOLD_FOLD_LIBRARY names it") from None
    if library.exf_fold_abi() != ABI or not hasattr(library, "exf_fold_api"):
        raise ValueError(f"{path}: ABI {library.exf_fold_abi()}, expected {ABI} with API 1.2 or later")
    library.exf_fold_status_text.restype = ctypes.c_char_p
    return library


class Tables:
    """The tables of a model, tables.safetensors, for some parts of variants; an array is read when a fold asks for it."""

    def __init__(self, path, parts, library=None):
        self.path, self.library, self.arrays = path, fold_library(library), {}
        if any(part.predicts for part in parts):
            self.needs_api(103, "norms=predicted")
        try:
            self.file = safe_open(path, framework="pt")
        except Exception as error:  # safetensors has kinds of its own
            raise ValueError(f"{path}: no tables.safetensors that can be read: {error}") from None
        names, self.facts = set(self.file.keys()), self.file.metadata() or {}
        lacks = sorted({name for part in parts for name in part.needs} - names)
        if "coeff" not in names or "layer_numbers" not in self.facts:
            raise ValueError(f"{path}: not the tables of exfold-export: coeff or layer_numbers is missing")
        if lacks:
            raise ValueError(f"{path}: {' and '.join(part.text for part in parts)} needs {', '.join(lacks)}, which these tables "
                             "lack; calibrate or solve with pools, budgets or calibrate.norm_head for them")
        self.names = {name for part in parts for name in part.needs} & {"coeff", "loss", "expert_norms", "cosine", "rms"}
        self.family = self.facts["model.family"]
        self.layers = {int(number): i for i, number in enumerate(re.findall(r"\d+", self.facts["layer_numbers"]))}
        self.experts = self.file.get_slice("coeff").get_shape()[1]

    def needs_api(self, least, what):
        api = self.library.exf_fold_api()
        if api < least:
            raise ValueError(f"{self.library._name}: {what} needs API {least // 100}.{least % 100} or later, it has "
                             f"{api // 100}.{api % 100}")

    def on(self, name, device):
        """A whole table on the device, where it stays."""
        if (name, device) not in self.arrays:
            self.arrays[name, device] = self.file.get_tensor(name).to(device)
        return self.arrays[name, device]

    def row(self, name, layer, device):
        return self.on(name, device)[layer].data_ptr()

    def norms(self, layer, hidden, logits, ids, weights):
        """The norms of the routes' experts on their tokens, [tokens, K], as fold.h has them of the tables' head."""
        basis, theta = (self.on(f"norm_head.{name}", ids.device)[layer] for name in ("basis", "theta"))
        x, z, ids = hidden.flatten(0, -2)[:, :basis.shape[0]].float(), logits.float(), ids.long()
        own, q = theta[ids], basis.shape[1]  # [tokens, K, q + 4]
        beside = [(z - z.mean(1, keepdim=True)).gather(1, ids), weights.float().clamp(min=1e-6).log(),
                  x.norm(dim=1, keepdim=True).clamp(min=1e-10).log().expand(ids.shape)]
        log_norms = own[..., 0] + (own[..., 1:1 + q] @ (x @ basis)[:, :, None])[..., 0]
        return (log_norms + sum(own[..., 1 + q + i] * feature for i, feature in enumerate(beside))).exp().contiguous()

    def prefill(self, part, layer, ids, weights, norms=None, mask=None, factor=1, whole=False):
        """Returns ids and weights, [T, P], or of a budget [T, K] with empty slots of id -1; factor: see fold.h.  whole: [T, K], rows
        that a mask (uint8) leaves out as they are, and an empty slot with the id of the row's first, for kernels that need one."""
        kept = [x.new_empty(len(x), x.shape[1] if whole else part.width(x.shape[1])) for x in (ids, weights)]
        part.options.repeat = int(whole)
        arguments = [self.routes(ids, weights, norms, mask), self.routes(*kept)]
        if part.budget:
            cpu = torch.device("cpu")
            threshold, scale = self.on(part.price, cpu).item(), self.on(f"{part.budget}.scale", cpu)[layer].item()
            part.options.rule = int(part.top_p)
            part.options.share = min(max(threshold, 1 / NO_LIMIT), 1) if part.top_p else 0
            part.options.penalty = 0 if part.top_p else min(threshold / scale, NO_LIMIT)
            part.options.factor, part.options.padding = factor if factor != 1 else 0, int(whole)
            arguments.append(None)
        self.call("prefill" + "_joint" * part.joint + "_budget" * bool(part.budget), ids.device, *arguments,
                  self.of_layer(layer, ids.device), ctypes.byref(part.options))
        return kept

    def decode(self, part, layer, ids, weights, scores=None, norms=None, mask=None):
        """Folds one decode batch in place; scores: what the router chooses by, [B, E], of targets=router."""
        routes, tables = self.routes(ids, weights, norms, mask), self.of_layer(layer, ids.device)
        options = ctypes.byref(part.options)
        if part.by_router:
            members = ctypes.c_void_p(self.row(part.members, layer, ids.device)) if part.members else None
            of_all = ctypes.byref(Scores(choice=scores.data_ptr(), type=CODES[scores.dtype]))  # scores stay until the call is made
            self.call("decode_stand_ins", ids.device, routes, of_all, members, tables, options)
        elif part.static:
            arrays = [ctypes.c_void_p(self.row(name, layer, ids.device)) for name in part.needs]
            self.call("decode_static", ids.device, routes, *arrays, self.experts)
        else:
            self.call("decode" + "_joint" * part.joint, ids.device, routes, tables, options)

    def of_layer(self, layer, device):
        return ctypes.byref(Arrays(n_experts=self.experts, **{name: self.row(name, layer, device) for name in self.names}))

    def routes(self, ids, weights, norms=None, mask=None):
        norms, mask = (None if x is None else x.data_ptr() for x in (norms, mask))
        return ctypes.byref(Routes(ids.data_ptr(), weights.data_ptr(), CODES[ids.dtype], CODES[weights.dtype], *ids.shape,
                                   norms=norms, mask=mask))

    def call(self, name, device, *arguments):
        if device.type == "cuda":
            torch.cuda.set_device(device)
            arguments += (ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream),)
        status = getattr(self.library, f"exf_fold_{name}_{device.type}")(*arguments)
        if status:
            raise RuntimeError(f"exf_fold_{name}: {self.library.exf_fold_status_text(status).decode()}")
