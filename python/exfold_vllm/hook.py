"""Puts a fold after every router of a model that vLLM loads, and refuses what cannot be folded before a request is taken."""
import contextlib
import difflib
import functools
import hashlib
import json
import os
import weakref

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.worker.gpu_worker import Worker

from . import fold, identity, metrics, phase
from .variant import Tables, fold_library, read_variant

logger = init_logger("vllm.exfold")
SETTINGS = {"tables": "EXFOLD_TABLES", "prefill": "EXFOLD_PREFILL", "decode": "EXFOLD_DECODE"}
VARIABLES = (*SETTINGS.values(), "EXFOLD_VERIFY", "EXFOLD_OFF", "EXFOLD_FOLD_LIBRARY", "EXFOLD_RECORD_LIBRARY")
MOST_SLOTS = 65536  # of a decode batch, in fold.h
# Kernels that were run with fewer columns than the model's K; others are told K elsewhere than by the width of the ids.
NARROW = ("TritonExperts", "CPUUnquantizedExperts", "X86CPUUnquantizedExperts")


@contextlib.contextmanager
def refusing():
    """Names this plugin in what it refuses."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"exfold_vllm: {error}") from None


def refuse_name(name, known, what):
    """Refuses a name that is none of the known ones, with the nearest of them."""
    near = difflib.get_close_matches(name, known, 1, 0)
    raise ValueError(f"{name} is no {what}: did you mean {near[0]}? There are {', '.join(known)}")


def settings_of(config=None):
    """The settings of --additional-config '{"exfold": {...}}' and of the environment, which must not disagree; {}: the plugin is not
    configured."""
    for name in os.environ:
        if name.startswith("EXFOLD_") and not name.startswith("EXFOLD_RECORD_") and name not in VARIABLES:
            refuse_name(name, VARIABLES, "variable of this plugin")
    if os.environ.get("EXFOLD_VERIFY", "strict") not in ("strict", ""):
        raise ValueError(f"EXFOLD_VERIFY is \"{os.environ['EXFOLD_VERIFY']}\", expected strict or nothing")
    given = {name: os.environ[variable] for name, variable in SETTINGS.items() if os.environ.get(variable)}
    extra = config.additional_config if config is not None and isinstance(config.additional_config, dict) else {}
    ours = extra.get("exfold", {})
    if not isinstance(ours, dict):
        raise ValueError(f'"exfold" of --additional-config is {json.dumps(ours)}, expected an object with {", ".join(SETTINGS)}')
    for name, value in ours.items():
        if name not in SETTINGS:
            refuse_name(name, list(SETTINGS), 'setting of "exfold" in --additional-config')
        if not isinstance(value, str):
            raise ValueError(f'"{name}" of --additional-config is {json.dumps(value)}, expected a text')
        if given.setdefault(name, value) != value:
            raise ValueError(f'{name} is "{value}" in --additional-config and "{given[name]}" in {SETTINGS[name]}; leave one out')
    return given


def variant_of(given):
    """The variant of the settings, "P4+D64"; refuses what is missing, misspelled or stands in the wrong place."""
    if "prefill" not in given and "decode" not in given:
        raise ValueError("no variant is named: set EXFOLD_PREFILL (P4:projector=joint, say) or EXFOLD_DECODE (D64) or both")
    if "tables" not in given:
        raise ValueError("no tables are named, so nothing would be folded: set EXFOLD_TABLES to a tables.safetensors")
    for place, name in enumerate(("prefill", "decode")):
        if name in given:
            parts = read_variant(given[name], fold_library())[0]
            if not parts[place] or parts[1 - place]:
                raise ValueError(f'{SETTINGS[name]}="{given[name]}" is no variant of {name} alone, which begins with {"PD"[place]}')
    return "+".join(given[name] for name in ("prefill", "decode") if name in given)


class Engine:
    """The folds of one model.  `checked` once its weights are loaded, its kernels chosen and its steps watched."""

    def __init__(self, config, given):
        self.config, self.checked, self.tables = config, False, Tables(given["tables"], variant_of(given))
        model = config.model_config.hf_text_config
        self.dense = model.num_hidden_layers
        identity.check_config(self.tables, config.model_config.hf_config, model, config.model_config.model)
        self.routers = identity.Routers(self.tables)
        parallel = config.parallel_config
        for wrong, name in ((parallel.use_ubatching, "dual batch overlap (--enable-dbo)"),
                            (parallel.prefill_context_parallel_size > 1, "prefill context parallelism"),
                            (parallel.use_sequence_parallel_moe, "sequence parallelism of experts")):
            if wrong:
                raise ValueError(f"{name} splits a step's rows otherwise than the masks of prefill and decode; leave it off")
        rows = config.scheduler_config.max_num_batched_tokens
        self.phases = phase.Phases(rows, config.device_config.device)
        self.layers, self.by_token = {}, set()  # number: (runner, fold.Layer)

    def add(self, runner):
        """Folds after the router of one MoE layer, whose kernels are chosen only later; see check."""
        number, router, moe = runner.layer_id, runner.router, runner.moe_config
        if number >= self.dense:  # a layer of multi-token prediction, which drafts
            return
        if number not in self.tables.layers:
            raise ValueError(f"{self.tables.path} has no layer {number}, which has experts; it has {sorted(self.tables.layers)}")
        if getattr(router, "_hash_indices_table", None) is not None:  # experts chosen by token id
            self.by_token.add(number)
            return
        rows, kind, decode = self.phases.masks.shape[1], type(router).__name__, self.tables.parts[1]
        custom, top_k = getattr(router, "custom_routing_function", None), self.tables.of_model().get("top_k", router.top_k)
        sizes = [part.size for part in self.tables.parts if part and not part.decodes]
        refusals = (
            (moe.num_logical_experts != self.tables.experts,
             f"{self.tables.path} has {self.tables.experts} experts, the model has {moe.num_logical_experts}"),
            (int(top_k) != router.top_k, f"{self.tables.path} is of a model whose tokens take {top_k} experts, here they take "
             f"{router.top_k}"),
            (sizes and sizes[0] > router.top_k, f"P{sizes and sizes[0]}: a token of the model takes {router.top_k} experts"),
            (kind in ("ZeroExpertRouter", "RoutingSimulatorRouter") or not hasattr(router, "_compute_routing"),
             f"{kind} does not say which experts it chose for which weight"),
            (getattr(router, "num_fused_shared_experts", 0), "shared experts are fused among the routed ones (AITER); turn it off"),
            (runner.routed_experts.apply_router_weight_on_input,
             "apply_router_weight_on_input weighs what experts read, not what they put out"),
            (decode and decode.by_router and custom,
             f"targets=router needs the scores that the router chooses by, and {kind} has a function of the model's own"),
            (decode and not decode.static and rows * router.top_k > MOST_SLOTS,
             f"a step of {rows} tokens has {rows * router.top_k} routes, D takes {MOST_SLOTS}; set --max-num-batched-tokens "
             f"to {MOST_SLOTS // router.top_k} or less"))
        for wrong, sentence in refusals:
            if wrong:
                raise ValueError(f"layer {number}: {sentence}")
        layer = fold.Layer(self, number, runner.routed_scaling_factor, router)
        router._compute_routing = folded(router._compute_routing, layer, runner)
        self.layers[number] = runner, layer

    def check(self, model_runner):
        """Refuses, once weights are loaded and kernels chosen, what would run unfolded or on another model; says what is folded."""
        left = set(self.tables.layers) - set(self.layers) - self.by_token
        if not self.layers or (left and self.config.parallel_config.pipeline_parallel_size == 1):
            raise ValueError(f"layers {sorted(left)} of {self.tables.path} have no router in this model as vLLM runs it, whose experts "
                             "may choose by themselves (mega-MoE, a model of the transformers backend)")
        for number, (runner, layer) in self.layers.items():
            method = runner.routed_experts.quant_method
            name = type(method).__name__
            if runner.is_monolithic:
                raise ValueError(f"layer {number}: the kernels of {name} choose experts by themselves (monolithic); name others "
                                 "with --moe-backend (triton, say)")
            if runner.do_naive_dispatch_combine:
                raise ValueError(f"layer {number}: {name} gathers the rows of all data-parallel ranks before routing; use an "
                                 "all-to-all backend, or one rank")
            kernels = type(getattr(getattr(method, "moe_kernel", None), "fused_experts", None)).__name__
            layer.narrow = kernels in NARROW and runner.moe_config.dp_size == 1
        device = self.phases.masks.device
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"libexfold_fold has no form for {device.type}")
        if device.type == "cuda" and not hasattr(self.tables.library, "exf_fold_prefill_cuda"):
            raise ValueError(f"{self.tables.library._name} was built without CUDA; build it where nvcc is, or name another with "
                             "EXFOLD_FOLD_LIBRARY")
        self.routers.check(self.layers)
        for name in {name for part in self.tables.parts if part for name in part.arrays.values()}:
            self.tables.on(name, device)  # a fold that a graph captures can copy nothing from the host
        if self.tables.unknown and os.environ.get("EXFOLD_VERIFY"):
            raise ValueError(f"{self.tables.path}: EXFOLD_VERIFY=strict, and not verified is {'; '.join(self.tables.unknown)}")
        if not phase.watch(model_runner, self.phases):
            raise ValueError(f"{type(model_runner).__name__} is no model runner whose steps this plugin can read")
        self.checked = True
        self.tell(kernels, layer.narrow)

    def tell(self, kernels, narrow):
        tables = self.tables
        told = [f"{name} {part.text}" for name, part in zip(("prefill", "decode"), tables.parts) if part]
        logger.info("exfold: %s, folding %s in %d layers: %s", tables.path, " and ".join(told), len(self.layers), tables.words)
        logger.info("exfold: tables %.12s of %s tokens, %d experts; %s, %s columns of routes", tables.facts.get("tables_digest", "?"),
                    tables.facts.get("data.tokens", "?"), tables.experts, kernels,
                    "P of K" if narrow and tables.parts[0] and not tables.parts[0].budget else "all K")
        for sentence in tables.unknown:
            logger.warning("exfold: not verified: %s", sentence)
        for sentence in tables.warnings:
            logger.warning("exfold: %s", sentence)


def folded(route, layer, runner):
    """The routing of a router with the fold after it."""
    runner.register_buffer("exfold_place", torch.tensor(layer.place), persistent=False)

    @functools.wraps(route)
    def compute(hidden_states, router_logits, indices_type, *, input_ids=None):
        weights, ids = route(hidden_states, router_logits, indices_type, input_ids=input_ids)
        if torch.compiler.is_compiling():
            return torch.ops.exfold.fold(weights, ids, router_logits, hidden_states, runner.exfold_place)
        return layer.fold(weights, ids, router_logits, hidden_states, whole=layer.router.capture_fn is not None)

    return compute


ENGINES = weakref.WeakValueDictionary()  # by the id of the model's configuration; the routers that they fold hold them


def engine_of(config):
    """The engine of a configuration; None where the plugin is not configured, or the model is one that drafts for another."""
    speculative, model = config.speculative_config, config.model_config
    if speculative is not None and model is speculative.draft_model_config and model is not speculative.target_model_config:
        return None
    given = settings_of(config)
    if not given:
        return None
    engine = ENGINES.get(id(model))
    if engine is None:
        engine = ENGINES[id(model)] = Engine(config, given)
    return engine


def change(place, name, act):
    """Has a method of vLLM's call act(method, self, ...) in its place."""
    method = getattr(place, name)

    @functools.wraps(method)
    def changed(*args, **kwargs):
        return act(method, *args, **kwargs)

    setattr(place, name, changed)


def add_fold(init, runner, *args, **kwargs):
    init(runner, *args, **kwargs)
    with refusing():
        engine = engine_of(get_current_vllm_config())
        if engine:
            engine.add(runner)


def check_model(load_model, worker, *args, **kwargs):
    load_model(worker, *args, **kwargs)
    with refusing():
        engine = engine_of(worker.vllm_config)
        if engine:
            engine.check(worker.model_runner)
        else:
            logger.info("exfold: installed and not configured, nothing is folded")


def look_at_weights(all_weights, loader, model_config, *args, **kwargs):
    engine = ENGINES.get(id(model_config))
    for name, tensor in all_weights(loader, model_config, *args, **kwargs):
        if engine:
            engine.routers.look(name, tensor)
        yield name, tensor


def hash_settings(compute_hash, config, *args, **kwargs):
    """A graph that was compiled unfolded must not be taken from the cache."""
    with refusing():
        given = settings_of(config)
    of_vllm = compute_hash(config, *args, **kwargs)
    return hashlib.sha256((of_vllm + json.dumps(given, sort_keys=True)).encode()).hexdigest()[:10] if given else of_vllm


def show_metrics(init, stat_logger, vllm_config, *args, **kwargs):
    init(stat_logger, vllm_config, *args, **kwargs)
    given = settings_of(vllm_config)
    if given:
        metrics.show(stat_logger, read_variant(variant_of(given), fold_library())[0], given)


def install():
    """Changes five methods of vLLM's classes, once; refuses settings that are wrong already."""
    with refusing():
        given = settings_of()
        if "tables" in given and len(given) > 1:
            Tables(given["tables"], variant_of(given))
    if not hasattr(MoERunner, "exfold"):
        MoERunner.exfold = True
        for place, name, act in ((MoERunner, "__init__", add_fold), (Worker, "load_model", check_model),
                                 (DefaultModelLoader, "get_all_weights", look_at_weights),
                                 (VllmConfig, "compute_hash", hash_settings), (PrometheusStatLogger, "__init__", show_metrics)):
            change(place, name, act)
