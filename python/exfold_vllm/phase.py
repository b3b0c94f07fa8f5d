"""Which rows of a step are prefill and which decode, as vLLM's scheduler has it.

A request is in prefill until its prompt is computed, also where its last chunk is one token; from then on it decodes, also where
speculation gives it several tokens a step.  Tokens that are computed again after a preemption are prefill up to the prompt's
end, and after it what the runner calls them: decode in the first model runner, prefill in the second.

The answer lies in two masks in the memory of the device, written before each step: a captured graph reads what stands there when
it is replayed.  Rows of padding are in neither.
"""
import functools

import numpy
import torch


class Phases:
    def __init__(self, rows, device):
        self.masks = torch.zeros(2, rows, dtype=torch.uint8, device=device)  # of prefill, of decode
        # Whether the step has such rows.  A step that is captured counts as having both, and so does what runs before the first step:
        # the run that measures memory measures the folds.
        self.present = [True, True]

    def write(self, lengths, prefilling):
        """Notes a step: the tokens of each request, and whether it is in prefill, in the order of rows."""
        rows, of_prefill = int(lengths.sum()), numpy.repeat(numpy.asarray(prefilling, dtype=numpy.uint8), lengths)
        step = torch.zeros(self.masks.shape, dtype=torch.uint8, pin_memory=self.masks.is_cuda)
        step[0, :rows], step[1, :rows] = torch.from_numpy(of_prefill), torch.from_numpy(1 - of_prefill)
        self.masks.copy_(step, non_blocking=True)
        self.present = [bool(of_prefill.any()), not of_prefill.all()]

    def rows(self, phase, n):
        """The mask of the first n rows; phase 0 is prefill, 1 decode."""
        if n > self.masks.shape[1]:
            raise RuntimeError(f"exfold_vllm: a step of {n} rows, the masks were made for {self.masks.shape[1]}")
        return self.masks[phase, :n]


def watch(runner, phases):
    """Has a model runner write each of its steps; returns False where it is of no kind that is known."""
    if hasattr(runner, "_build_attention_metadata"):  # the first model runner, and the one of CPUs
        of_runner = runner._build_attention_metadata

        @functools.wraps(of_runner)
        def build(*args, **kwargs):
            if not kwargs.get("for_cudagraph_capture"):
                n, batch = kwargs["num_reqs"], runner.input_batch
                phases.write(numpy.diff(runner.query_start_loc.np[:n + 1]),
                             batch.num_computed_tokens_cpu[:n] < batch.num_prompt_tokens[:n])
            return of_runner(*args, **kwargs)

        runner._build_attention_metadata = build
    elif hasattr(runner, "prepare_attn"):  # the second
        prepare_of_runner = runner.prepare_attn

        @functools.wraps(prepare_of_runner)
        def prepare(batch):
            phases.write(numpy.diff(batch.query_start_loc_np[:batch.num_reqs + 1]), batch.is_prefilling_np[:batch.num_reqs])
            return prepare_of_runner(batch)

        runner.prepare_attn = prepare
    else:
        return False
    return True
