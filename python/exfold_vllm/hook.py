"""Puts a fold after every router of a model that vLLM loads, and refuses what cannot be folded before a request is taken."""
import functools
import hashlib
import json
import os
import pathlib

from vllm.config import VllmConfig, get_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.v1.worker.gpu_worker import Worker

from . import fold, phase
from .variant import Part, Tables

logger = init_logger("vllm.exfold")
SETTINGS = {"tables": "EXFOLD_TABLES", "prefill": "EXFOLD_PREFILL", "decode": "EXFOLD_DECODE"}
MOST_SLOTS = 65536  # of a decode batch, in fold.h


def refuse(sentence):
    raise ValueError(f"exfold_vllm: {sentence}")


def settings_of(config=None):
    """The settings of --additional-config '{"exfold": {...}}' and of the environment, which must not disagree."""
    given = {name: os.environ[variable] for name, variable in SETTINGS.items() if os.environ.get(variable)}
    extra = config.additional_config if config is not None and isinstance(config.additional_config, dict) else {}
    for name, value in extra.get("exfold", {}).items():
        if name not in SETTINGS:
            refuse(f'"{name}" of --additional-config is no setting; there are {", ".join(SETTINGS)}')
        if given.setdefault(name, value) != value:
            refuse(f'{name} is "{value}" in --additional-config and "{given[name]}" in {SETTINGS[name]}; leave one out')
    return given


def read(given):
    """Tables and the parts for prefill and decode, None where there is none; refuses what is missing or misspelled."""
    if "tables" not in given:
        refuse("no tables are named, so nothing would be folded: set EXFOLD_TABLES to a tables.safetensors, or leave this plugin "
               "out with VLLM_PLUGINS")
    parts = []
    for name, kind in ("prefill", "P"), ("decode", "D"):
        try:
            parts.append(Part(given[name]) if name in given else None)
        except ValueError as error:
            refuse(f'{SETTINGS[name]}="{given[name]}": {error}')
        if parts[-1] and parts[-1].decodes != (kind == "D"):
            refuse(f'{SETTINGS[name]}="{given[name]}" is no variant of {name}, which begins with {kind}')
    if not any(parts):
        refuse("no variant is named: set EXFOLD_PREFILL (P4:projector=joint, say) or EXFOLD_DECODE (D64) or both")
    try:
        tables = Tables(given["tables"], [part for part in parts if part])
        tables.needs_api(105, "this plugin")
        return tables, parts
    except ValueError as error:
        refuse(str(error))


class Engine:
    """The folds of one model."""

    def __init__(self, config):
        self.config = config
        self.tables, self.parts = read(settings_of(config))
        model = config.model_config.hf_text_config
        self.family, self.dense = model.model_type, model.num_hidden_layers
        for names in {self.family, config.model_config.hf_config.model_type}:
            if names.startswith(self.tables.family):
                break
        else:
            refuse(f"{self.tables.path} is of a {self.tables.family}, the model is a {self.family}")
        parallel = config.parallel_config
        for wrong, name in ((parallel.use_ubatching, "dual batch overlap (--enable-dbo)"),
                            (parallel.prefill_context_parallel_size > 1, "prefill context parallelism"),
                            (parallel.use_sequence_parallel_moe, "sequence parallelism of experts")):
            if wrong:
                refuse(f"{name} splits a step's rows otherwise than the masks of prefill and decode; leave it off")
        rows = config.scheduler_config.max_num_batched_tokens
        self.phases = phase.Phases(rows, config.device_config.device)
        self.runners, self.by_token = {}, set()

    def add(self, runner):
        """Folds after the router of one MoE layer, whose kernels are chosen only later; see check."""
        number, router, moe = runner.layer_id, runner.router, runner.moe_config
        if number >= self.dense:  # a layer of multi-token prediction, which drafts
            return
        if number not in self.tables.layers:
            refuse(f"{self.tables.path} has no layer {number}, which has experts; it has {sorted(self.tables.layers)}")
        if getattr(router, "_hash_indices_table", None) is not None:  # experts chosen by token id
            self.by_token.add(number)
            return
        part = next((x for x in self.parts if x and x.size > (self.tables.experts if x.decodes else router.top_k)), None)
        rows, kind = self.phases.masks.shape[1], type(router).__name__
        custom = getattr(router, "custom_routing_function", None)
        refusals = (
            (moe.num_logical_experts != self.tables.experts,
             f"{self.tables.path} has {self.tables.experts} experts, the model has {moe.num_logical_experts}"),
            (part, f"{part and part.text}: the model has {self.tables.experts} experts, of which a token takes {router.top_k}"),
            (kind in ("ZeroExpertRouter", "RoutingSimulatorRouter") or not hasattr(router, "_compute_routing"),
             f"{kind} does not say which experts it chose for which weight"),
            (getattr(router, "num_fused_shared_experts", 0), "shared experts are fused among the routed ones (AITER); turn it off"),
            (runner.routed_experts.apply_router_weight_on_input,
             "apply_router_weight_on_input weighs what experts read, not what they put out"),
            (self.parts[1] and self.parts[1].by_router and custom,
             f"targets=router needs the scores that the router chooses by, and {kind} has a function of the model's own"),
            (self.parts[1] and not self.parts[1].static and rows * router.top_k > MOST_SLOTS,
             f"a step of {rows} tokens has {rows * router.top_k} routes, D takes {MOST_SLOTS}; set --max-num-batched-tokens "
             f"to {MOST_SLOTS // router.top_k} or less"))
        for wrong, sentence in refusals:
            if wrong:
                refuse(f"layer {number}: {sentence}")
        layer = fold.Layer(self.tables, self.parts, self.phases, self.tables.layers[number], runner.routed_scaling_factor, router)
        router._compute_routing = folded(router._compute_routing, layer, runner)
        self.runners[number] = runner

    def check(self, model_runner):
        """Refuses, once weights are loaded and kernels chosen, what would run unfolded; says which layers are folded."""
        left = set(self.tables.layers) - set(self.runners) - self.by_token
        if not self.runners or (left and self.config.parallel_config.pipeline_parallel_size == 1):
            refuse(f"layers {sorted(left)} of {self.tables.path} have no router in this model as vLLM runs it, whose experts may "
                   "choose by themselves (mega-MoE, a model of the transformers backend)")
        for number, runner in self.runners.items():
            method = type(runner.routed_experts.quant_method).__name__
            if runner.is_monolithic:
                refuse(f"layer {number}: the kernels of {method} choose experts by themselves (monolithic); name others with "
                       "--moe-backend (triton, say)")
            if runner.do_naive_dispatch_combine:
                refuse(f"layer {number}: {method} gathers the rows of all data-parallel ranks before routing; use an all-to-all "
                       "backend, or one rank")
        device = self.phases.masks.device
        if device.type not in ("cpu", "cuda"):
            refuse(f"libexfold_fold has no form for {device.type}")
        if device.type == "cuda" and not hasattr(self.tables.library, "exf_fold_prefill_cuda"):
            refuse(f"{self.tables.library._name} was built without CUDA; build it where nvcc is, or name another with "
                   "EXFOLD_FOLD_LIBRARY")
        if not phase.watch(model_runner, self.phases):
            refuse(f"{type(model_runner).__name__} is no model runner whose steps this plugin can read")
        for name in {name for part in self.parts if part for name in part.needs}:
            self.tables.on(name, device)  # a fold that a graph captures can copy nothing from the host
        told = [f"{name} {part.text}" for name, part in zip(("prefill", "decode"), self.parts) if part]
        logger.info("exfold: %s, folding %s in layers %s", self.tables.path, " and ".join(told), ranges(sorted(self.runners)))


def folded(route, layer, runner):
    """The routing of a router with the fold after it."""
    import torch

    runner.register_buffer("exfold_place", torch.tensor(layer.place), persistent=False)

    @functools.wraps(route)
    def compute(hidden_states, router_logits, indices_type, *, input_ids=None):
        weights, ids = route(hidden_states, router_logits, indices_type, input_ids=input_ids)
        if torch.compiler.is_compiling():
            return torch.ops.exfold.fold(weights, ids, router_logits, hidden_states, runner.exfold_place)
        return layer.fold(weights, ids, router_logits, hidden_states, whole=layer.router.capture_fn is not None)

    return compute


def ranges(numbers):
    """[0, 1, 2, 5] as "0-2, 5"."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends))


ENGINES = {}  # by the id of the model's configuration


def engine_of(config):
    """The engine of a configuration; None where the model is one that drafts for another."""
    if config.speculative_config is not None and config.model_config is config.speculative_config.draft_model_config:
        return None
    key = id(config.model_config)
    if key not in ENGINES:
        ENGINES[key] = Engine(config)
    return ENGINES[key]


def install():
    """Changes three of vLLM's classes, once; refuses settings that are wrong already."""
    given = settings_of()
    if "tables" in given:
        read(given)
    if hasattr(MoERunner, "exfold"):
        return
    MoERunner.exfold = True
    runner_init, load_model, compute_hash = MoERunner.__init__, Worker.load_model, VllmConfig.compute_hash

    @functools.wraps(runner_init)
    def with_fold(self, *args, **kwargs):
        runner_init(self, *args, **kwargs)
        engine = engine_of(get_current_vllm_config())
        if engine:
            engine.add(self)

    @functools.wraps(load_model)
    def with_check(self, *args, **kwargs):
        load_model(self, *args, **kwargs)
        engine_of(self.vllm_config).check(self.model_runner)

    @functools.wraps(compute_hash)
    def with_settings(self, *args, **kwargs):  # a graph that was compiled unfolded must not be taken from the cache
        mine = json.dumps([settings_of(self), hashlib.sha256(pathlib.Path(fold.__file__).read_bytes()).hexdigest()], sort_keys=True)
        return hashlib.sha256((compute_hash(self, *args, **kwargs) + mine).encode()).hexdigest()[:10]

    MoERunner.__init__, Worker.load_model, VllmConfig.compute_hash = with_fold, with_check, with_settings
