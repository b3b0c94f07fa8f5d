"""Records statistics.h5 while vLLM runs a model: EXFOLD_RECORD=DIR, of the text that EXFOLD_RECORD_IDS names (docs/any-model.md).

`python3 -m exfold_record --engine vllm` sets both and sends the text.  Rows are told by the prompts of their requests, so that they
come in any chunks and order; decodes, padding and prompts that are not of the text are left out.  Of tensor-parallel ranks all call
their experts, and the first one records.
"""
import functools
import os
import pathlib
import re

import numpy
import torch
import vllm
from exfold_record.library import Recording, RecordError, Rows, Text, general_settings, model_facts
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank, tensor_model_parallel_all_reduce
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.v1.worker.gpu_worker import Worker

logger = init_logger("vllm.exfold")
ENGINE = []


class Engine:
    def __init__(self, config):
        parallel = config.parallel_config
        for wrong, sentence in (
                (not config.model_config.enforce_eager, "graphs cannot be recorded; start with --enforce-eager"),
                (config.cache_config.enable_prefix_caching,
                 "prefix caching leaves out tokens that were seen; start with --no-enable-prefix-caching"),
                (parallel.enable_expert_parallel, "experts of other ranks cannot be called alone; leave --enable-expert-parallel off"),
                (parallel.data_parallel_size > 1, "data-parallel ranks would each record a part; record with one"),
                (parallel.pipeline_parallel_size > 1, "pipeline stages would each record their layers; use tensor parallelism"),
                (parallel.use_ubatching, "dual batch overlap splits a step's rows; leave --enable-dbo off")):
            if wrong:
                raise RecordError(f"exfold_vllm: {sentence}")
        self.config, self.runners, self.rows, self.part, self.requests, self.left = config, {}, None, None, {}, 0
        self.text = Text(os.environ["EXFOLD_RECORD_IDS"], int(os.environ.get("EXFOLD_RECORD_PART_TOKENS", 65536)))
        self.of_prompt = {self.text.ids[i].tobytes(): (part, number) for part, members in enumerate(self.text.parts)
                          for number, i in enumerate(members)}
        self.path = pathlib.Path(os.environ["EXFOLD_RECORD"]) / "statistics.h5"

    def add(self, runner):
        """Records after the router of one MoE layer, whose kernels are chosen only later; see check."""
        number, router = runner.layer_id, runner.router
        if number >= self.config.model_config.hf_text_config.num_hidden_layers:  # of multi-token prediction, which drafts
            return
        route, self.runners[number] = router._compute_routing, runner

        @functools.wraps(route)
        def compute(hidden, logits, kind, *, input_ids=None):
            weights, ids = route(hidden, logits, kind, input_ids=input_ids)
            if self.rows and len(self.rows.at):
                self.rows.outputs(number, ids, weights.float() * runner.routed_scaling_factor,
                                  lambda at, chosen: self.slots(runner, hidden[at], chosen))
            return weights, ids

        router._compute_routing = compute

    def slots(self, runner, hidden, ids):
        """[n, K, H]: what each chosen expert puts out, before router weights."""
        one = torch.ones(len(ids), 1, dtype=torch.float32, device=ids.device)
        y = torch.stack([runner.routed_experts.forward_modular(x=hidden.clone(), topk_weights=one,
                                                               topk_ids=ids[:, k:k + 1].contiguous())
                         for k in range(ids.shape[1])], 1)
        if runner.moe_config.tp_size > 1 and not runner._fused_output_is_reduced:
            y = tensor_model_parallel_all_reduce(y)
        return y

    def check(self, model_runner):
        """Refuses, once weights are loaded and kernels chosen, what cannot be recorded; opens the file."""
        if not self.runners or not hasattr(model_runner, "_build_attention_metadata"):
            raise RecordError("exfold_vllm: this model has no experts whose router could be watched, or vLLM runs it by its second "
                              "model runner (VLLM_USE_V2_MODEL_RUNNER=0 chooses the first)")
        shapes = set()
        for number, runner in self.runners.items():
            method = type(runner.routed_experts.quant_method).__name__
            for wrong, sentence in (
                    (runner.is_monolithic, f"the kernels of {method} choose experts by themselves; name others with --moe-backend"),
                    (runner.do_naive_dispatch_combine, f"{method} gathers the rows of all ranks before routing"),
                    (runner.routed_experts.apply_router_weight_on_input,
                     "apply_router_weight_on_input weighs what experts read, not what they put out")):
                if wrong:
                    raise RecordError(f"exfold_vllm: layer {number}: {sentence}")
            shapes.add((runner.moe_config.num_logical_experts, runner.router.top_k, runner.moe_config.hidden_dim))
        if len(shapes) != 1:
            raise RecordError(f"exfold_vllm: layers have {len(shapes)} shapes of experts ({sorted(shapes)}), statistics have one")
        self.shape, model = shapes.pop(), self.config.model_config
        for name, module in model_runner.model.named_modules():
            layer = re.search(r"(?:^|\.)layers\.(\d+)$", name)
            if layer and int(layer[1]) in self.runners:
                module.register_forward_hook(self.behind(int(layer[1])))
        if get_tensor_model_parallel_rank() == 0:
            facts = general_settings(*self.shape[:2]) | self.text.facts | model_facts(
                model.hf_config, model.model, f"vllm {vllm.__version__}", model.dtype, self.config.device_config.device.type)
            self.rows = Rows(Recording(self.path, sorted(self.runners), *self.shape, facts, bool(os.environ.get("EXFOLD_RECORD_FORCE")),
                                       int(os.environ.get("EXFOLD_RECORD_THREADS", 0))))
            memory = self.rows.recording.memory
            logger.info("exfold: recording layers %s to %s; their sums take %.0f MB", sorted(self.runners), self.path, memory / 1e6)
        else:
            self.rows = Rows(None)
        self.watch(model_runner)

    def behind(self, number):
        def hook(_module, _args, output):
            hidden, residual = output if isinstance(output, tuple) else (output, None)
            if number in self.rows.waiting:
                self.rows.stream(number, hidden if residual is None else hidden + residual)
                self.left -= len(self.rows.at)
                if self.left == 0:
                    self.end()
        return hook

    def begin(self, part):
        if self.part is not None:
            raise RecordError(f"exfold_vllm: a sequence of part {part} comes while {self.left} rows of part {self.part} are missing; send "
                              "the text in its order")
        self.part, there = part, self.rows.recording is not None and self.rows.recording.begin(self.text, self.text.parts[part])
        self.left = 0 if there else int(self.text.lengths[self.text.parts[part]].sum()) * len(self.runners)
        return there

    def end(self):
        recording, last = self.rows.recording, self.part == len(self.text.parts) - 1
        self.part = None
        self.rows.step([], [], [])
        if recording:
            recording.end()
            if last:
                logger.info("exfold: wrote %s, digest %s", self.path, recording.close()[:16])

    def watch(self, model_runner):
        """Has the model runner name the rows of each of its steps."""
        of_runner = model_runner._build_attention_metadata

        def build(*args, **kwargs):
            n, batch = kwargs["num_reqs"], model_runner.input_batch
            ends = model_runner.query_start_loc.np[:n + 1]
            at, sequence, position = [], [], []
            for i, request in enumerate(batch.req_ids[:n]):
                if request not in self.requests:
                    prompt = batch.token_ids_cpu[i, :batch.num_prompt_tokens[i]].astype(numpy.int32)
                    self.requests[request] = *self.of_prompt.get(prompt.tobytes(), (None, None)), len(prompt)
                part, number, length = self.requests[request]
                if part is None or (part != self.part and self.begin(part)):
                    continue
                start = int(batch.num_computed_tokens_cpu[i])
                rows = min(int(ends[i + 1] - ends[i]), length - start)
                at += range(int(ends[i]), int(ends[i]) + rows)
                sequence += [number] * max(0, rows)
                position += range(start, start + rows)
            self.rows.step(at, sequence, position)
            return of_runner(*args, **kwargs)

        model_runner._build_attention_metadata = functools.wraps(of_runner)(build)


def install():
    """Changes two of vLLM's classes, once."""
    if hasattr(MoERunner, "exfold"):
        return
    MoERunner.exfold = True
    runner_init, load_model = MoERunner.__init__, Worker.load_model

    @functools.wraps(runner_init)
    def with_record(self, *args, **kwargs):
        runner_init(self, *args, **kwargs)
        config = get_current_vllm_config()
        if not ENGINE:
            ENGINE.append(Engine(config))
        if ENGINE[0].config.model_config is config.model_config:
            ENGINE[0].add(self)

    @functools.wraps(load_model)
    def with_check(self, *args, **kwargs):
        load_model(self, *args, **kwargs)
        ENGINE[0].check(self.model_runner)

    MoERunner.__init__, Worker.load_model = with_record, with_check


def run(options, text):
    """Sends the text to an engine in this process, part by part; returns when statistics.h5 is there."""
    os.environ |= {"EXFOLD_RECORD": options.output, "EXFOLD_RECORD_IDS": options.ids, "EXFOLD_RECORD_FORCE": "1" if options.force else "",
                   "EXFOLD_RECORD_PART_TOKENS": str(options.part_tokens), "EXFOLD_RECORD_THREADS": str(options.threads),
                   "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    install()  # in this process; in those of other ranks vLLM loads it as a plugin
    longest = int(max(text.lengths))
    llm = vllm.LLM(options.model, dtype=options.dtype, enforce_eager=True, enable_prefix_caching=False, max_model_len=longest + 1,
                   max_num_batched_tokens=max(options.step_tokens, 256), tensor_parallel_size=options.tensor_parallel,
                   skip_tokenizer_init=True, trust_remote_code=options.trust_remote_code, async_scheduling=False)
    once = vllm.SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    for part in text.parts:
        llm.generate([{"prompt_token_ids": text.ids[i].tolist()} for i in part], once)
    if not (pathlib.Path(options.output) / "statistics.h5").exists():
        raise RecordError(f"{options.output}: the engine ended and statistics.h5 is not there; is the plugin installed (pip "
                          "install ./python), which --tensor-parallel needs?")
