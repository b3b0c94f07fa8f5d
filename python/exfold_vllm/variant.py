"""Variants, and libexfold_fold's functions on PyTorch tensors.

    tables = Tables("tables.safetensors", "P4:projector=joint+D64")
    ids, weights = tables.prefill(tables.parts[0], layer, ids, weights)     # [T, K] to [T, P]
    tables.decode(tables.parts[1], layer, ids, weights)                     # [B, K] in place, one decode batch

examples/transformers, examples/torch and the vLLM plugin share it.  The library reads the variant, by the grammar of exfold-validate,
and says which of its calls, options and arrays that is.  `layer` counts from 0 in the tables; Tables.layers has the model's numbers.
Tensors may be on the CPU or, with a library built with CUDA, on a GPU, where a call is a launch on the current stream.
"""
import ctypes
import hashlib
import os
import pathlib
import re

import torch
from safetensors import safe_open

ABI, API, NO_LIMIT, SIZE = 2, 106, 1e30, ctypes.c_size_t
TYPES = {"i": ctypes.c_int, "u": ctypes.c_uint32, "f": ctypes.c_float, "p": ctypes.c_void_p, "s": ctypes.c_char, "q": ctypes.c_uint64}
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 0, torch.int64: 1}


def struct(fields):
    """A struct of include/exfold/fold.h; "i:keep" is an int, u an unsigned one, f a float, p a pointer, "i8:reserved" an int[8]."""
    pairs = [field.split(":") for field in fields.split()]
    fields = [(name, TYPES[kind[0]] * int(kind[1:]) if kind[1:] else TYPES[kind]) for kind, name in pairs]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


Routes = struct("p:ids p:weights i:id_type i:weight_type i:rows i:width p:count p:mask p:norms i2:reserved")
Arrays = struct("p:coeff p:loss p:norms p:cosine p:rms i:n_experts i:reserved_int p:relative_norms p5:reserved")
Prefill = struct("u:size i:rank f:max_loss i:rescale i:confidence f:ridge i:keep i:repeat i8:reserved")
Decode = struct("u:size i:importance f:max_loss i:drop f:ridge i2:others i:pool p:members i6:reserved")
Budget = struct("u:size f:penalty f:share i2:bounds i:repeat f:ridge i:rule f:factor i:padding i6:reserved")
StandIns = struct("u:size i:importance i:weights f:ridge i:pool i11:reserved")
Scores = struct("p:choice p:gate i:type i7:reserved")
Layers = struct("u:size i:n_layers i:n_experts i:reserved_int p5:arrays p:numbers p:file p5:reserved")
PartRead = struct("i:call i:number i:predicts i:layer s96:text s512:arrays q32:options i8:reserved")
CALLS = (None, ("prefill", Prefill), ("prefill_joint", Prefill), ("prefill_budget", Budget), ("decode", Decode),
         ("decode_joint", Decode), ("decode_static", None), ("decode_stand_ins", StandIns))  # exf_fold_part_call


class VariantRead(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("reserved", ctypes.c_int), ("prefill", PartRead), ("decode", PartRead),
                ("words", ctypes.c_char * 256)]


def sized(kind):
    return kind(0x80000000 | ctypes.sizeof(kind))  # EXF_FOLD_SIZED


class Part:
    """One part of a variant, as exf_fold_variant_read gives it."""

    def __init__(self, read):
        self.call, options = CALLS[read.call]
        self.text, self.size, self.predicts = read.text.decode(), read.number, bool(read.predicts)
        self.layer = read.layer  # the only one that folds, by the model's number; -1: all
        self.arrays = dict(word.split("=") for word in read.arrays.decode().split())
        self.options = options and options.from_buffer_copy(bytes(read.options)[:ctypes.sizeof(options)])
        self.decodes, self.by_router = self.call.startswith("decode"), self.call == "decode_stand_ins"
        self.static, self.budget = "target_ids" in self.arrays, self.call == "prefill_budget"
        self.by_correlation = "cosine" in self.arrays
        if self.by_router and self.options.weights:
            raise ValueError(f'"{self.text}": weights=route and weights=gate are for comparison alone; leave weights out')

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
    api = library.exf_fold_api() if hasattr(library, "exf_fold_api") else 101
    if library.exf_fold_abi() != ABI or api < API:
        raise ValueError(f"{path}: ABI {library.exf_fold_abi()}, API {api // 100}.{api % 100}, expected ABI {ABI} with API "
                         f"{API // 100}.{API % 100} or later; make fold-library builds it")
    library.exf_fold_status_text.restype = ctypes.c_char_p
    return library


def read_variant(variant, library, experts=0, top_k=0):
    """The parts for prefill and decode, None where the variant has none, and what it does in words; ValueError says what is wrong.
    experts, top_k: of the model that it is for, if it is known."""
    read, why = sized(VariantRead), ctypes.create_string_buffer(1024)
    if library.exf_fold_variant_read(ctypes.byref(read), variant.encode(), experts, top_k, why, SIZE(len(why))):
        raise ValueError(why.value.decode())
    return [Part(part) if part.call else None for part in (read.prefill, read.decode)], read.words.decode()


class Tables:
    """The tables of a model, tables.safetensors, and a variant; an array is read when a fold asks for it.  ValueError: the file is
    damaged, no tables, or lacks what the variant needs.  `unknown` has what could not be verified, `warnings` what an operator
    should read, in sentences."""

    def __init__(self, path, variant, library=None):
        self.path, self.library, self.arrays, self.structs = path, fold_library(library), {}, {}
        self.unknown, self.warnings = [], []
        layers, why = sized(Layers), ctypes.create_string_buffer(1024)
        if self.library.exf_fold_layers_load(ctypes.byref(layers), os.fsencode(path), why, SIZE(len(why))):  # shapes, finite numbers
            raise ValueError(why.value.decode())
        self.library.exf_fold_layers_free(ctypes.byref(layers))
        self.file = safe_open(path, framework="pt")
        names, self.facts = set(self.file.keys()), self.file.metadata() or {}
        if "layer_numbers" not in self.facts or "model.family" not in self.facts:
            raise ValueError(f"{path}: not the tables of exfold-export: its metadata lack layer_numbers or model.family")
        self.layers = {int(number): i for i, number in enumerate(re.findall(r"\d+", self.facts["layer_numbers"]))}
        self.names, self.experts = names, self.file.get_slice("coeff").get_shape()[1]
        self.family = self.facts["model.family"]
        self.check_content(sorted(names))
        self.use(variant)

    def use(self, variant):
        """Another variant of the same tables."""
        self.parts, self.words = read_variant(variant, self.library, self.experts, int(self.of_model().get("top_k", self.experts)))
        parts = [part for part in self.parts if part]
        lacks = sorted({name for part in parts for name in part.arrays.values()} - self.names)
        if lacks:
            raise ValueError(f"{self.path}: {variant} needs {', '.join(lacks)}, which these tables lack; calibrate or solve with pools, "
                             "budgets or calibrate.norm_head for them")
        for part in parts:
            if part.by_correlation:  # norms of G, and scalars where a system has no solution; earlier programs' tables lack the norms
                part.arrays |= {name: name for name in ("relative_norms", "coeff") if name in self.names}
        self.warnings = [f"{self.path} was solved by an earlier build, whose correlations need not be those of any experts, and weights "
                         f"that {part.text} solves from them can be far too large: exfold-solve on the same statistics, and "
                         "exfold-export, make it anew" for part in parts
                         if part.by_correlation and self.facts.get("solve.correlations") != "valid"]
        top_k = int(self.of_model().get("top_k", 0))
        self.warnings += [f"{part.text} leaves a decode batch fewer experts than the {top_k} that one token takes" for part in parts
                          if part.decodes and part.size < top_k]
        return self

    def of_model(self):
        """What the calibration read of config.json, by name: {"n_experts": "128", ...}; empty in files of earlier programs."""
        return dict(word.split("=", 1) for word in self.facts.get("model.architecture", "").split())

    def check_content(self, names):
        """Compares the file with its content_digest (src/export/writer_safetensors.c)."""
        said = self.facts.get("content_digest")
        if said is None:
            self.unknown.append("the content of the file, which has no content_digest (an earlier exfold-export wrote it)")
            return
        found = hashlib.sha256()
        for key in sorted(self.facts.keys() - {"content_digest"}):
            found.update(f"{key}\0{self.facts[key]}\0".encode())
        for name in names:
            found.update(name.encode() + b"\0")
            found.update(memoryview(self.file.get_tensor(name).view(torch.uint8).numpy()))
        if found.hexdigest() != said:
            raise ValueError(f"{self.path} is damaged: the digest of its content is {found.hexdigest()[:12]}..., content_digest says "
                             f"{said[:12]}...; export it again (exfold-export)")

    def on(self, name, device):
        """A whole table on the device, where it stays."""
        if (name, device) not in self.arrays:
            array = self.file.get_tensor(name)
            if array.is_floating_point() and not array.isfinite().all():
                raise ValueError(f'{self.path}: array "{name}" has numbers that are not finite')
            self.arrays[name, device] = array.to(device)
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
            threshold = self.on(part.arrays["threshold"], cpu).item()
            scale = self.on(part.arrays["scale"], cpu)[layer].item()
            top_p = part.options.rule == 1
            part.options.share = min(max(threshold, 1 / NO_LIMIT), 1) if top_p else 0
            part.options.penalty = 0 if top_p else min(threshold / scale, NO_LIMIT)
            part.options.factor, part.options.padding = factor if factor != 1 else 0, int(whole)
            arguments.append(None)
        self.call(part.call, ids.device, *arguments, self.of_layer(part, layer, ids.device), ctypes.byref(part.options))
        return kept

    def decode(self, part, layer, ids, weights, scores=None, norms=None, mask=None):
        """Folds one decode batch in place; scores: what the router chooses by, [B, E], of targets=router."""
        arguments, options = [self.routes(ids, weights, norms, mask)], part.options and ctypes.byref(part.options)
        if part.by_router:
            members = ctypes.c_void_p(self.row(part.arrays["members"], layer, ids.device)) if "members" in part.arrays else None
            of_all = ctypes.byref(Scores(choice=scores.data_ptr(), type=CODES[scores.dtype]))  # scores stay until the call is made
            arguments += [of_all, members]
        if part.static:
            arguments += [ctypes.c_void_p(self.row(name, layer, ids.device)) for name in part.arrays.values()]
            arguments.append(self.experts)
        else:
            arguments += [self.of_layer(part, layer, ids.device), options]
        self.call(part.call, ids.device, *arguments)

    def of_layer(self, part, layer, device):
        """The tables of a layer that the part reads, as fold.h has them; they are made once, since arrays stay where they are."""
        key = part.text, layer, device
        if key not in self.structs:
            rows = {member: self.row(name, layer, device) for member, name in part.arrays.items()
                    if member in ("coeff", "loss", "norms", "cosine", "rms", "relative_norms")}
            self.structs[key] = Arrays(n_experts=self.experts, **rows)
        return ctypes.byref(self.structs[key])

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
