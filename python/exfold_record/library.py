"""libexfold_accumulate, and the text that exfold-calibrate --ids wrote."""
import concurrent.futures
import ctypes
import hashlib
import os
import pathlib
import threading

import numpy
import safetensors
import torch

ABI = 1
P = ctypes.c_void_p


class Fact(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("path", ctypes.c_char_p), ("replace", ctypes.c_int), ("n_layers", ctypes.c_int),
                ("layers", P), ("n_experts", ctypes.c_int), ("top_k", ctypes.c_int), ("d_model", ctypes.c_int),
                ("weighting", ctypes.c_int), ("route_sample", ctypes.c_int64), ("n_facts", ctypes.c_size_t),
                ("facts", ctypes.POINTER(Fact))]


class Block(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("layer", ctypes.c_int32), ("n", ctypes.c_int), ("is_bf16", ctypes.c_int),
                ("sequence", P), ("position", P), ("ids", P), ("weights", P), ("outputs", P), ("stream_sq", P),
                ("is_cuda", ctypes.c_int), ("stream", P)]


class RecordError(RuntimeError):
    pass


def load():
    """The library: of EXFOLD_RECORD_LIBRARY, beside this file, or of the tree's build directory."""
    here, name = pathlib.Path(__file__).resolve().parent, f"libexfold_accumulate.so.{ABI}"
    named = os.environ.get("EXFOLD_RECORD_LIBRARY")
    places = [pathlib.Path(named)] if named else [here / name, here.parents[1] / "build" / name, name]
    for place in places:
        if isinstance(place, str) or place.exists():
            try:
                library = ctypes.CDLL(str(place))
            except OSError as error:
                raise RecordError(f"{name} cannot be loaded ({error}); make record-library builds it, EXFOLD_RECORD_LIBRARY names "
                                  "one elsewhere") from None
            library.exf_record_memory.restype, library.exf_record_free.restype = ctypes.c_uint64, None
            library.exf_record_free.argtypes = [P]
            return library
    raise RecordError(f"{places[0]} is not there")


class Text:
    """Sequences of token ids, dealt to parts, each of which is saved when it is done."""

    def __init__(self, path, part_tokens):
        with safetensors.safe_open(path, "numpy") as f:
            facts = f.metadata() or {}
            names = ("token_ids", "sequence_lengths", "sequence_domains", "sequence_documents")
            if not set(names) <= set(f.keys()) or "data.tokens_digest" not in facts:
                raise RecordError(f"{path} is no text of exfold-calibrate --ids, which makes one of a recipe or of --text")
            ids, self.lengths, domains, self.documents = (f.get_tensor(name) for name in names)
        self.ids = numpy.split(ids.astype(numpy.int32), numpy.cumsum(self.lengths)[:-1])
        self.domains = [facts[f"domain.{d}"] for d in domains]
        added_up = ("data.sequences", "data.tokens", "data.domains", "data.documents")  # by the library, over parts
        self.facts = {k: v for k, v in facts.items() if k not in added_up and not k.startswith("domain.")}
        of_part = (numpy.cumsum(self.lengths) - 1) // part_tokens
        self.parts = [numpy.flatnonzero(of_part == p) for p in numpy.unique(of_part)]


def model_facts(config, directory, engine, dtype, device):
    """What is known of a model that another program runs; its weights are not."""
    path = pathlib.Path(directory) / "config.json"
    data = path.read_bytes() if path.exists() else config.to_json_string().encode()
    text = config.get_text_config()
    return {"model.name": pathlib.Path(directory).resolve().name if path.exists() else str(directory),
            "model.family": config.model_type, "model.layers": str(text.num_hidden_layers),
            "model.config_sha256": hashlib.sha256(data).hexdigest(), "capture.layers": "all", "capture.engine": engine,
            "capture.compute": str(dtype).removeprefix("torch."), "capture.device": device}


def general_settings(experts, top_k):
    """The settings of tables that exfold-calibrate takes without a recipe; a recipe's come with the text."""
    pools, budgets = [max(1, experts // 2), experts // 4], [top_k // 2, top_k // 4]
    return {"setting.pools": ",".join(str(n) for n in pools if n), "setting.budgets": ",".join(str(n) for n in budgets if n)}


class Recording:
    """A statistics.h5 in the making.  Blocks are added by threads beside the engine."""

    def __init__(self, path, layers, experts, top_k, width, facts, replace=False, threads=0, route_sample=4096):
        self.lib, self.handle = load(), P()
        layers = numpy.asarray(sorted(layers), dtype=numpy.int32)
        pairs = [Fact(k.encode(), v.encode()) for k, v in sorted(facts.items())]
        options = Options(ctypes.sizeof(Options), str(path).encode(), replace, len(layers), layers.ctypes.data, experts, top_k,
                          width, 0, route_sample, len(pairs), (Fact * len(pairs))(*pairs))
        self.call("exf_record_open", ctypes.byref(self.handle), ctypes.byref(options))
        self.memory = int(self.lib.exf_record_memory(len(layers), experts))
        threads = threads or min(16, os.cpu_count() or 1)
        self.pool, self.slots, self.failure = concurrent.futures.ThreadPoolExecutor(threads), threading.Semaphore(threads), None

    def call(self, name, *arguments):
        message = ctypes.create_string_buffer(1024)
        if getattr(self.lib, name)(*arguments, message, ctypes.c_size_t(len(message))):
            raise RecordError(message.value.decode(errors="replace"))

    def begin(self, text, part):
        """Begins a part of a text; returns True if it was recorded before."""
        lengths = numpy.ascontiguousarray(text.lengths[part], dtype=numpy.int32)
        ids = numpy.concatenate([text.ids[i] for i in part])
        documents = numpy.ascontiguousarray(text.documents[part])
        names, there = [text.domains[i] for i in part], ctypes.c_int()
        domains = "; ".join(f"{name}: {names.count(name)} sequences, {sum(n for n, x in zip(lengths, names) if x == name)} tokens"
                            for name in dict.fromkeys(names))
        self.call("exf_record_begin", self.handle, ctypes.c_size_t(len(part)), P(lengths.ctypes.data), P(ids.ctypes.data),
                  domains.encode(), P(documents.ctypes.data), ctypes.byref(there))
        return bool(there.value)

    def add(self, layer, sequence, position, ids, weights, outputs, stream_sq=None):
        """Adds rows [n] of a layer, [n, K] and [n, K, H] of any device, soon; a failure is raised by a later call."""
        self.check()
        rows = [ids.int(), weights.float(), outputs if outputs.dtype == torch.bfloat16 else outputs.float()]
        rows = [x.contiguous() for x in (*rows, *([] if stream_sq is None else [stream_sq.double()]))]
        stream = None
        if outputs.is_cuda and self.lib.exf_record_reads_cuda():  # multiplied there, on a stream beside the engine's
            stream = torch.cuda.Stream(outputs.device)
            stream.wait_stream(torch.cuda.current_stream(outputs.device))
        else:
            rows = [x.cpu() for x in rows]
        self.slots.acquire()
        self.pool.submit(self.add_now, layer, sequence, position, rows, stream)

    def add_now(self, layer, sequence, position, rows, stream):
        try:
            ids, weights, outputs, stream_sq = *(x.data_ptr() for x in rows), *([None] * (4 - len(rows)))
            self.call("exf_record_add", self.handle, ctypes.byref(Block(
                ctypes.sizeof(Block), layer, len(rows[0]), rows[2].dtype == torch.bfloat16, sequence.ctypes.data, position.ctypes.data,
                ids, weights, outputs, stream_sq, stream is not None, stream and stream.cuda_stream)))
        except RecordError as error:
            self.failure = self.failure or error
        finally:
            self.slots.release()

    def check(self):
        if self.failure:
            raise self.failure

    def wait(self):
        """Returns when all rows that came are added."""
        self.pool.shutdown()
        self.pool = concurrent.futures.ThreadPoolExecutor(self.pool._max_workers)
        self.check()

    def end(self):
        self.wait()
        self.call("exf_record_end", self.handle)

    def close(self):
        """Moves statistics.h5 into place; returns the digest of its payload."""
        digest = ctypes.create_string_buffer(65)
        self.call("exf_record_close", self.handle, digest)
        return digest.value.decode()

    def __del__(self):
        if getattr(self, "handle", None):
            self.pool.shutdown() if hasattr(self, "pool") else None
            self.lib.exf_record_free(self.handle)


class Rows:
    """The rows of an engine's step, and what its layers put out until their residual stream is known."""

    def __init__(self, recording):
        self.recording, self.waiting = recording, {}
        self.step([], [], [])

    def step(self, at, sequence, position):
        """Rows `at` of the step are those tokens of those sequences; all others, of padding and of decodes, are left out."""
        for layer in list(self.waiting):
            self.stream(layer, None)
        self.at = torch.as_tensor(numpy.asarray(at, dtype=numpy.int64))
        self.sequence, self.position = numpy.asarray(sequence, numpy.int32), numpy.asarray(position, numpy.int32)

    def outputs(self, layer, ids, weights, slots):
        """slots(rows, ids) gives the outputs [n, K, H] of rows of the step; a token's experts go by falling weight."""
        if len(self.at):
            at = self.at = self.at.to(ids.device)
            weights, order = weights[at].sort(dim=-1, descending=True, stable=True)
            ids = ids[at].gather(-1, order)
            self.waiting[layer] = ids, weights, slots(at, ids)

    def stream(self, layer, hidden):
        if layer in self.waiting:
            if hidden is not None:
                hidden = hidden.reshape(-1, hidden.shape[-1])[self.at.to(hidden.device)].double().square().sum(-1)
            rows = self.waiting.pop(layer)
            if self.recording:
                self.recording.add(layer, self.sequence, self.position, *rows, hidden)
