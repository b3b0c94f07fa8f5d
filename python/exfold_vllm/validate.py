"""What variants do to a model, measured in vLLM: python3 -m exfold_vllm.validate MODEL IDS.safetensors --tables FILE -o DIR P4 D64 ...

One load.  The original's last hidden states stay in host memory; a variant's lie beside them, and both give logits of the whole
vocabulary, a sequence at a time.  P variants run on whole prompts, D variants on batches of sequences that go on in step, each by the
tokens of its text.  Writes validation.json (schema exfold-validation/1), which exfold-inspect and its report read.
"""
import argparse
import collections
import json
import os
import pathlib
import sys

import numpy

if __name__ == "__main__":  # in this process, whose steps are looked at; before vLLM is imported
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}


class Served:
    """A model as vLLM serves it, and the folds of its layers."""

    def __init__(self, o, text):
        import torch
        from vllm import LLM

        from . import fold, hook

        self.torch, self.text = torch, text
        os.environ |= {"EXFOLD_TABLES": o.tables, "EXFOLD_PREFILL": "P1"}
        self.llm = LLM(o.model, dtype=o.dtype, enforce_eager=True, enable_prefix_caching=False, skip_tokenizer_init=True,
                       max_model_len=int(max(text.lengths)) + 2, max_num_batched_tokens=max(o.step_tokens, o.decode_batch),
                       trust_remote_code=o.trust_remote_code, async_scheduling=False, disable_log_stats=True)
        self.engine = self.llm.llm_engine
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner
        (self.folds,) = hook.ENGINES.values()
        self.folds.phases.write = self.every_row
        self.forward, self.logits_of = self.runner._model_forward, self.runner.model.compute_logits
        self.runner._model_forward, self.runner.model.compute_logits = self.watched, self.forced
        of_layer = fold.Layer.fold
        self.routes = collections.Counter()

        def counted(layer, *arguments, **named):
            weights, ids = of_layer(layer, *arguments, **named)
            if any(layer.engine.tables.parts):
                used = ids.masked_fill(weights == 0, -1).sort(-1).values  # a token that has an expert twice runs it once
                slots = (used[:, :1] >= 0).sum() + ((used[:, 1:] != used[:, :-1]) & (used[:, 1:] >= 0)).sum()
                experts = len(used.unique()) - int((used < 0).any())
                self.routes.update(tokens=len(ids), slots=int(slots), steps=1, experts=experts)
            return weights, ids

        fold.Layer.fold = counted

    def every_row(self, lengths, _prefilling):
        """Each row is prefill and decode: a variant applies to every position, as in exfold-validate."""
        phases = self.folds.phases
        phases.masks[:, :int(lengths.sum())], phases.present = 1, [True, True]

    def requests(self):
        batch = self.runner.input_batch
        return [int(name.split("-")[0]) for name in batch.req_ids[:batch.num_reqs]]

    def watched(self, *args, **kwargs):
        hidden, starts = self.forward(*args, **kwargs), self.runner.query_start_loc.np
        for i, number in enumerate(self.requests()):
            self.seen[number].append(hidden[starts[i]:starts[i + 1]].to("cpu", copy=True))
        return hidden

    def forced(self, hidden, *args, **kwargs):
        """Logits by which every request goes on with the next token of its text."""
        logits = self.logits_of(hidden, *args, **kwargs)
        for row, number in enumerate(self.requests() if self.lockstep else []):
            ids, at = self.text.ids[number], sum(map(len, self.seen[number]))
            logits[row] = -100
            logits[row, int(ids[min(at, len(ids) - 1)])] = 100
        return logits

    def run(self, variant, batch):
        """The last hidden states of every position of every sequence; batch: sequences in step, 0: whole prompts."""
        from vllm import SamplingParams

        if variant:
            self.folds.tables.use(variant)
        else:
            self.folds.tables.parts = [None, None]
        self.seen, self.lockstep, n = collections.defaultdict(list), batch > 0, len(self.text.ids)
        self.routes.clear()
        for first in range(0, n, batch or n):
            for number in range(first, min(n, first + (batch or n))):
                ids = self.text.ids[number].tolist()
                prompt, answer = (ids[:1], len(ids)) if batch else (ids, 1)
                self.engine.add_request(str(number), {"prompt_token_ids": prompt}, SamplingParams(
                    temperature=0, max_tokens=answer, min_tokens=answer, ignore_eos=True, detokenize=False))
            while self.engine.has_unfinished_requests():
                self.engine.step()
        return [self.torch.cat(self.seen[number])[:len(self.text.ids[number])] for number in range(n)]

    def scores(self, original, hidden):
        """Of every sequence KL, difference of log probability, log probability and same top at all positions with a next token."""
        for number, ids in enumerate(self.text.ids):
            rows = []
            for at in range(0, len(ids) - 1, 512):
                end = min(at + 512, len(ids) - 1)
                p, q = (self.logits_of(h[number][at:end].to(self.runner.device)).double().log_softmax(-1) for h in (original, hidden))
                following = self.torch.as_tensor(ids[at + 1:end + 1].astype(numpy.int64), device=p.device)[:, None]
                rows.append(self.torch.stack([(p.exp() * (p - q)).sum(-1), -q.gather(1, following)[:, 0],
                                              (p.argmax(-1) == q.argmax(-1)).double()]).cpu().numpy())
            yield numpy.concatenate(rows, 1) if rows else numpy.zeros((3, 0))


def student(df):
    """The 97.5 % quantile of Student's distribution."""
    import mpmath

    tail = lambda x: mpmath.betainc(df / 2, 0.5, 0, df / (df + x * x), regularized=True) / 2 - 0.025  # noqa: E731
    return float(mpmath.findroot(tail, 2 + 3 / df)) if df > 1 else 12.706


def summed(rows, documents, original, whole=True):
    """The members of a row of validation.json; documents are the units of standard errors."""
    of_row = numpy.unique(documents, axis=0, return_inverse=True)[1].reshape(-1)
    clusters, unit = of_row.max() + 1, numpy.repeat(of_row, [x.shape[1] for x in rows])
    n = numpy.bincount(unit, minlength=clusters)
    kl, nll, top = numpy.concatenate(rows, 1)

    def error(x):  # of a mean of x over tokens
        sums = numpy.bincount(unit, x, clusters)
        return (clusters / max(1, clusters - 1) * ((sums - x.mean() * n) ** 2).sum()) ** 0.5 / n.sum()

    found = {"tokens": len(kl), "ppl": float(numpy.exp(nll.mean())), "ppl_se": float(numpy.exp(nll.mean()) * error(nll)),
             "kl_mean": float(kl.mean()), "kl_se": float(error(kl)), "kl_max": float(kl.max()), "top1": float(top.mean())}
    found |= {name: float(numpy.quantile(kl, q, method="higher")) for name, q in (("kl_median", .5), ("kl_p90", .9), ("kl_p99", .99), ("kl_p999", .999))}
    if whole:
        more = nll - numpy.concatenate(original, 1)[1]
        found |= {"kl_half_width": float(error(kl)) * student(clusters - 1), "log_ppl_difference": float(more.mean()),
                  "log_ppl_difference_half_width": float(error(more)) * student(clusters - 1)}
    return found


def options():
    p = argparse.ArgumentParser(prog="exfold_vllm.validate", description="Perplexity and KL of variants in vLLM.")
    p.add_argument("model")
    p.add_argument("ids", help="held-out text: exfold-calibrate --ids writes it")
    p.add_argument("variants", nargs="+", help="P4:projector=joint, D64:rank=energy ...")
    p.add_argument("--tables", required=True, help="tables.safetensors")
    p.add_argument("-o", "--output", required=True, metavar="DIR", help="directory that gets validation.json")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--decode-batch", type=int, default=16, help="sequences that decode in step")
    p.add_argument("--step-tokens", type=int, default=4096, help="most tokens of a step")
    p.add_argument("--trust-remote-code", action="store_true", help="run the checkpoint's own code")
    p.add_argument("-f", "--force", action="store_true", help="replace a validation.json that is there")
    return p.parse_args()


def main():
    from exfold_record.library import RecordError, Text

    from .variant import Tables, fold_library, read_variant

    o = options()
    try:
        path, decodes = pathlib.Path(o.output) / "validation.json", {}
        for variant in o.variants:
            prefill, decode = read_variant(variant, fold_library())[0]
            if prefill and decode:
                raise RecordError(f"{variant} folds prefill and decode; measure each by itself")
            decodes[variant] = bool(decode)
        if path.exists() and not o.force:
            raise RecordError(f"{path} is there; --force replaces it")
        path.parent.mkdir(parents=True, exist_ok=True)
        tables, text = Tables(o.tables, o.variants[0]), Text(o.ids, 1 << 62)
        for variant in o.variants:
            tables.use(variant)  # refuses what the tables lack
        document = measure(o, text, tables.facts, decodes)
        unfinished = path.with_name(".validation.json.unfinished")
        unfinished.write_text(json.dumps(document, indent=1) + "\n")
        unfinished.replace(path)
        print(document["summary"] + f"wrote {path}")
    except (RecordError, ValueError) as error:
        sys.exit(f"exfold_vllm.validate: error: {error}")


def measure(o, text, facts, decodes):
    served = Served(o, text)
    width = served.llm.llm_engine.model_config.get_hidden_size()
    size = served.runner.model_config.dtype.itemsize
    print(f"exfold_vllm.validate: the original's last hidden states take {int(sum(text.lengths)) * width * size / 1e6:.0f} MB of "
          "host memory, a variant's as much", file=sys.stderr)
    domains = {d: [i for i, name in enumerate(text.domains) if name == d] for d in dict.fromkeys(text.domains)}
    original = {batch: served.run("", batch) for batch in {o.decode_batch * decode for decode in decodes.values()}}
    first, rows, top_k = next(iter(original.values())), [], served.folds.layers[min(served.folds.layers)][0].router.top_k
    of_original = list(served.scores(first, first))
    for name in ["original", *decodes]:
        part, batch = name != "original", o.decode_batch * decodes.get(name, False)
        scored = list(served.scores(original[batch], served.run(name, batch))) if part else of_original
        of = {d: summed([scored[i] for i in at], text.documents[at], None, whole=False) for d, at in domains.items()}
        routes = served.routes if part else {"tokens": 1, "slots": top_k}
        taken = routes["slots"] / routes["tokens"]
        rows.append({"name": name, "role": "asked" if part else "original", "decode_batch": batch or o.decode_batch,
                     "constraint": "none", "constraint_words": None, "folds": ("decode" if batch else "prefill") if part else None,
                     "on_frontier": False, "lost_to": None, "served_by": ["vllm"], "served_otherwise_by": [],
                     "words": "measured in vLLM", **summed(scored, text.documents, of_original), "experts_per_token": taken,
                     "experts_per_batch": routes["experts"] / routes["steps"] if batch else None,
                     "cost": {"expert_flops_share": taken / top_k}, "domains": of,
                     "worst_domain": max(of, key=lambda d: of[d]["kl_mean"])})
    data = (f"{rows[0]['tokens']} tokens scored of {len(text.ids)} sequences; domains {', '.join(domains)}; decode batches of "
            f"{o.decode_batch}; in vLLM.")
    lines = [f"   {r['name']:<36} KL {r['kl_mean']:.5f} ± {r['kl_half_width']:.5f}  PPL {r['ppl']:.3f}" for r in rows]
    import vllm
    return {"schema": "exfold-validation/1", "verdict": [], "stability": [], "not_constrained": [], "data": [data],
            "summary": "\n".join([*lines, "", data, ""]), "clusters": {"by": "document", "n": len(numpy.unique(text.documents, axis=0))}, "best_pools": [],
            "variants": rows, "provenance": {"tables_digest": facts.get("tables_digest"), "validate.engine": f"vllm {vllm.__version__}",
                                             "validate.program": "exfold_vllm.validate", "model.family": facts["model.family"],
                                             "data.tokens_digest": text.facts["data.tokens_digest"]}}


if __name__ == "__main__":
    main()
