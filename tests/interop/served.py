"""A model as vLLM serves it, in this process, so that a test can look at its steps: what check_vllm.py's children run.

It looks into the first model runner, on a CPU or a GPU.
"""
import collections
import os

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  VLLM_CPU_KVCACHE_SPACE="1", TRITON_F32_DEFAULT="ieee", VLLM_CPU_OMP_THREADS_BIND="nobind",
                  OMP_NUM_THREADS="1",  # threads of so small a model wait for each other
                  VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"))

import torch  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402


class Served:
    """path: a checkpoint.  The environment's EXFOLD_... name tables and variants, as for a server."""

    def __init__(self, path, **arguments):
        given = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 32,
                 "max_num_batched_tokens": 2048, "enable_prefix_caching": False, "disable_log_stats": True,
                 "skip_tokenizer_init": True, "async_scheduling": False}
        if torch.cuda.is_available():
            given |= {"attention_backend": "TRITON_ATTN", "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 28}
        self.llm = LLM(str(path), **{**given, **arguments})
        self.engine = self.llm.llm_engine
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner
        self.tokens, self.seen, self.steps = None, collections.defaultdict(list), []
        self.forward, self.logits_of = self.runner._model_forward, self.runner.model.compute_logits
        self.runner._model_forward, self.runner.model.compute_logits = self.watched, self.forced

    def requests(self):
        """The numbers of the requests of this step, in the order of rows."""
        return [int(name.split("-")[0]) for name in self.runner.input_batch.req_ids[:self.runner.input_batch.num_reqs]]

    def watched(self, *args, **kwargs):
        """The model's forward pass; keeps what it puts out for every token."""
        hidden, numbers = self.forward(*args, **kwargs), self.requests()
        starts = self.runner.query_start_loc.np
        self.steps.append([(number, int(starts[i + 1] - starts[i])) for i, number in enumerate(numbers)])
        for i, number in enumerate(numbers):
            self.seen[number].append(hidden[starts[i]:starts[i + 1]].clone())
        return hidden

    def forced(self, hidden, *args, **kwargs):
        """Logits by which every request goes on with the next token of its text."""
        logits = self.logits_of(hidden, *args, **kwargs)
        if self.tokens is not None:
            for row, number in enumerate(self.requests()):
                at, text = sum(map(len, self.seen[number])), self.tokens[number]
                logits[row] = -100
                logits[row, text[min(at, len(text) - 1)]] = 100
        return logits

    def add(self, number, prompt, answer):
        """Adds a request of the first tokens of its text; it takes so many more as an answer."""
        text = [int(x) for x in self.tokens[number][:prompt]]
        options = SamplingParams(temperature=0, max_tokens=answer, min_tokens=answer, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(number), {"prompt_token_ids": text}, options)

    def step(self):
        self.engine.step()
        return self.engine.has_unfinished_requests()

    @torch.no_grad()
    def run(self, tokens, prompt):
        """Log probabilities at every position of texts [B, L], of which so many tokens are the prompt, in double."""
        self.tokens, length = tokens, tokens.shape[1]
        self.seen.clear(), self.steps.clear()
        for number in range(len(tokens)):
            self.add(number, prompt, length - prompt + 1)
        while self.step():
            pass
        hidden = torch.stack([torch.cat(self.seen[number])[:length] for number in range(len(tokens))])
        self.tokens = None
        return self.logits_of(hidden.flatten(0, 1)).double().log_softmax(-1).view(*hidden.shape[:2], -1).cpu()


def scores(ours, original, tokens):
    """Perplexity, and the mean KL from the original to ours, at positions that have a next token."""
    ours, original = ours[:, :-1], original[:, :-1]
    return (-ours.gather(2, tokens[:, 1:, None])).mean().exp().item(), (original.exp() * (original - ours)).sum(-1).mean().item()
