"""What variants do to a model, measured in vLLM: python3 -m exfold_vllm.validate MODEL IDS.safetensors --tables FILE -o DIR P4 D64 P4+D64

One load.  The original's last hidden states stay in host memory; a variant's lie beside them, and both give logits of the whole
vocabulary, a sequence at a time.  P variants run on whole prompts, D and P+D on batches of sequences that go on in step, each by the
tokens of its text; P then acts on every position, as in exfold-validate.  Beside them run their baselines, which leave out what they
fold.  Writes validation.json (schema exfold-validation/1), which exfold-inspect and its report read.
"""
import argparse
import collections
import dataclasses
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

        self.torch, self.text, self.lane = torch, text, Lane("original", "original")
        os.environ |= {"EXFOLD_TABLES": o.tables, "EXFOLD_PREFILL": "P1"}
        hook.install()
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

        def counted(layer, weights, ids, *arguments, **named):
            whole, lane = weights.sum(-1, keepdim=True), self.lane
            if lane.keep:
                rank = weights.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
                weights = weights.masked_fill(rank >= lane.keep, 0)
                weights = weights * (whole / weights.sum(-1, keepdim=True)) if lane.renormalise else weights
            weights, ids = of_layer(layer, weights, ids, *arguments, **named)
            weights = weights * (whole / weights.sum(-1, keepdim=True)).nan_to_num(posinf=0) if lane.renormalise else weights
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

    def run(self, lane):
        """The last hidden states of every position of every sequence."""
        from vllm import SamplingParams

        if lane.folds:
            self.folds.tables.use(lane.folds)
        else:
            self.folds.tables.parts = [None, None]
        self.lane, batch = lane, lane.batch
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
        """[3, tokens]: KL, negative log probability and same top at all positions with a next token."""
        rows = [numpy.zeros((3, 0))]
        for number, ids in enumerate(self.text.ids):
            for at in range(0, len(ids) - 1, 512):
                end = min(at + 512, len(ids) - 1)
                p, q = (self.logits_of(h[number][at:end].to(self.runner.device)).double().log_softmax(-1) for h in (original, hidden))
                following = self.torch.as_tensor(ids[at + 1:end + 1].astype(numpy.int64), device=p.device)[:, None]
                rows.append(self.torch.stack([(p.exp() * (p - q)).sum(-1), -q.gather(1, following)[:, 0],
                                              (p.argmax(-1) == q.argmax(-1)).double()]).cpu().numpy())
        return numpy.concatenate(rows, 1)


@dataclasses.dataclass
class Lane:
    """What runs over the text.  folds: a variant, "": none; batch: sequences in step, 0: whole prompts; keep: of a baseline, routes of
    a token by weight, 0: all; renormalise: what is left out gives its weight to the rest."""

    name: str
    role: str
    parts: tuple = (None, None)
    folds: str = ""
    batch: int = 0
    keep: int = 0
    renormalise: bool = False
    against: tuple = ()  # names of its baselines

    @property
    def kind(self):
        return (None, "prefill", "decode", "both")[bool(self.parts[0]) + 2 * bool(self.parts[1])]

    @property
    def size(self):
        return *(part and part.size for part in self.parts), self.batch

    def has_baselines(self, experts, top_k):
        """Whether it leaves something out in all layers, which its tables stand in for."""
        p, d = self.parts
        return not ((p and (p.budget or p.layer >= 0 or p.size >= top_k)) or (
            d and (d.static or d.layer >= 0 or d.size >= experts or (not d.by_router and d.options.drop))))

    def baselines(self):
        """The same number of experts without targets.  Those that fold at random are exfold-validate's alone."""
        p, d = self.parts
        rank = d and ("", "rank=energy,", "rank=score,")[d.options.importance]
        dropped = f"D{d.size}:{rank}fold=drop" if d else ""
        for how in "drop", "renorm":
            names = ([f"top{p.size}:{how}"] if p else []) + ([f"D{d.size}:{rank}fold={how}"] if d else [])
            yield Lane("+".join(names), "baseline", self.parts, dropped, self.batch, p.size if p else 0, how == "renorm")


def with_baselines(lanes, experts, top_k):
    """The lanes, and after them baselines for each size; they rank as the first plain variant of that size."""
    of_name = {lane.name: lane for lane in lanes}
    for size in dict.fromkeys(lane.size for lane in lanes):
        same = [lane for lane in lanes if lane.size == size and lane.has_baselines(experts, top_k)]
        plain = [lane for lane in same if {part.call for part in lane.parts if part} <= {"prefill", "decode"}]
        beside = list((plain or same)[0].baselines()) if same else []
        for lane in same:
            lane.against = tuple(b.name for b in beside)
        of_name = {b.name: b for b in beside} | of_name
    return sorted(of_name.values(), key=lambda lane: lane.role)


class Clusters:
    """Documents, the units of errors, of chosen sequences; the sequences themselves where there is one document alone."""

    def __init__(self, text, chosen):
        of_row = numpy.unique(text.documents[chosen], axis=0, return_inverse=True)[1].reshape(-1)
        self.by = "document" if of_row.max() else "sequence"
        of_row = of_row if of_row.max() else numpy.arange(len(chosen))
        ends = numpy.cumsum(text.lengths - 1)
        self.at = numpy.concatenate([numpy.arange(ends[i] - text.lengths[i] + 1, ends[i]) for i in chosen])  # columns of scores
        self.unit, self.n = numpy.repeat(of_row, text.lengths[chosen] - 1), of_row.max() + 1

    def mean(self, x):
        """The mean of x over tokens, its error, and half of its 95 % interval; None where one unit cannot tell."""
        of_unit, tokens = numpy.bincount(self.unit, x, self.n), numpy.bincount(self.unit, minlength=self.n)
        if self.n < 2:
            return float(x.mean()), None, None
        error = float((self.n / (self.n - 1) * ((of_unit - x.mean() * tokens) ** 2).sum()) ** 0.5 / tokens.sum())
        return float(x.mean()), error, error * student(self.n - 1)

    def quality(self, scores):
        kl, nll, top = scores[:, self.at]
        log_ppl, error, _ = self.mean(nll)
        ppl, (mean, kl_se, _) = float(numpy.exp(log_ppl)), self.mean(kl)
        of_kl = {f"kl_{name}": float(numpy.quantile(kl, q, method="inverted_cdf"))
                 for name, q in (("median", .5), ("p90", .9), ("p99", .99), ("p999", .999), ("max", 1))}
        return {"tokens": len(kl), "ppl": ppl, "ppl_se": error and ppl * error, "kl_mean": mean, "kl_se": kl_se, **of_kl,
                "top1": float(top.mean())}


def student(df):
    """The 97.5 % quantile of Student's distribution."""
    import mpmath

    tail = lambda x: mpmath.betainc(df / 2, 0.5, 0, df / (df + x * x), regularized=True) / 2 - 0.025  # noqa: E731
    return float(mpmath.findroot(tail, 2 + 3 / df)) if df > 1 else 12.706


def options():
    p = argparse.ArgumentParser(prog="exfold_vllm.validate", description="Perplexity and KL of variants in vLLM.")
    p.add_argument("model")
    p.add_argument("ids", help="held-out text: exfold-calibrate --ids writes it")
    p.add_argument("variants", nargs="+", help="P4:projector=joint, D64:rank=energy, P4+D64 ...")
    p.add_argument("--tables", required=True, help="tables.safetensors")
    p.add_argument("-o", "--output", required=True, metavar="DIR", help="directory that gets validation.json")
    p.add_argument("--limit", metavar="kl=X", help="recommend the cheapest rows whose KL, with its interval, is below it")
    p.add_argument("--no-baselines", action="store_true", help="leave out what the tables are measured against")
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
        path, lanes = pathlib.Path(o.output) / "validation.json", []
        if o.limit and not (o.limit.startswith("kl=") and float(o.limit[3:]) > 0):
            raise RecordError(f"--limit {o.limit}: expected kl=X with X above 0; exfold-validate has other limits")
        if path.exists() and not o.force:
            raise RecordError(f"{path} is there; --force replaces it")
        tables, text = Tables(o.tables, o.variants[0]), Text(o.ids, 1 << 62)
        for variant in dict.fromkeys(o.variants):
            parts = tables.use(variant).parts  # refuses what the tables lack
            lanes.append(Lane(variant, "asked", parts, variant, o.decode_batch if parts[1] else 0))
        top_k = int(tables.of_model().get("top_k", tables.experts))
        if not o.no_baselines:
            lanes = with_baselines(lanes, tables.experts, top_k)
        path.parent.mkdir(parents=True, exist_ok=True)
        document = report(o, text, tables.facts, *measure(o, text, lanes))
        unfinished = path.with_name(".validation.json.unfinished")
        unfinished.write_text(json.dumps(document, indent=1) + "\n")
        unfinished.replace(path)
        print(document["summary"] + f"wrote {path}")
    except (RecordError, ValueError) as error:
        sys.exit(f"exfold_vllm.validate: error: {error}")


def measure(o, text, lanes):
    """The lanes, the original first, with their scores and counts of routes, and the number of experts that a token takes."""
    served = Served(o, text)
    bytes_each = served.llm.llm_engine.model_config.get_hidden_size() * served.runner.model_config.dtype.itemsize
    print(f"exfold_vllm.validate: the original's last hidden states take {int(sum(text.lengths)) * bytes_each / 1e6:.0f} MB of host "
          "memory for prompts, as much for batches, and a variant's as much", file=sys.stderr)
    originals = [Lane("original", "original", batch=batch) for batch in sorted({lane.batch for lane in lanes})]
    hidden, found = {}, []
    for lane in originals + lanes:
        states = served.run(lane)
        hidden.setdefault(lane.batch, states)
        found.append((lane, served.scores(hidden[lane.batch], states), dict(served.routes)))
    return found, served.folds.layers[min(served.folds.layers)][0].router.top_k


def constraint_of(lane, batches):
    """Why a decode fold's figures say nothing about serving, and that in words, as exfold-validate has it."""
    size, width, experts = (batches[name] for name in ("size", "width", "original_experts_per_batch"))
    if not lane.parts[1] or lane.parts[1].static:
        return "none", None
    words = f"not constrained: the original runs {experts:.1f} experts in decode batches of {size} that are {width:.1f} sequences wide"
    if experts <= lane.parts[1].size:
        return "few_experts", f"{words}, no more than its pool; validate a smaller D, or raise --decode-batch as it is served"
    if 4 * width < 3 * size:
        return "short_batches", f"{words}; give more sequences ({size} and up, of like lengths), or --decode-batch {max(1, int(width))}"
    return "none", None


def row_of(text, lane, scores, routes, first, top_k, batches):
    """A row of validation.json; first: scores of the original."""
    everything, domains = Clusters(text, range(len(text.ids))), {}
    for i, domain in enumerate(text.domains):
        domains.setdefault(domain, []).append(i)
    of = {name: Clusters(text, at).quality(scores) for name, at in domains.items()}
    taken, (why, words) = routes["slots"] / routes["tokens"], constraint_of(lane, batches)
    more, _, more_half = everything.mean(scores[1] - first[1])
    return {"name": lane.name, "role": lane.role, "decode_batch": batches["size"], "constraint": why, "constraint_words": words,
            "folds": lane.kind, "on_frontier": False, "lost_to": None, "served_by": ["vllm"] if lane.role == "asked" else [],
            "served_otherwise_by": [], "words": "the model as it is" if lane.role == "original" else "measured in vLLM",
            **everything.quality(scores), "experts_per_token": taken,
            "experts_per_batch": routes["experts"] / routes["steps"] if lane.batch else None,
            "kl_half_width": everything.mean(scores[0])[2], "log_ppl_difference": more, "log_ppl_difference_half_width": more_half,
            "cost": {"expert_flops_share": taken / top_k}, "domains": of,
            "worst_domain": max(of, key=lambda d: of[d]["kl_mean"]) if len(of) > 1 else None}


def cost_of(row):
    return row["experts_per_batch" if row["folds"] in ("decode", "both") else "experts_per_token"]


def verdict_of(rows, scores, lanes, clusters):
    """Adds to rows what they gain over their best baselines, and returns what the tables are worth in sentences."""
    sentences = []
    for row, lane, own in zip(rows, lanes, scores):
        against = [i for i, other in enumerate(lanes) if other.name in lane.against]
        if row["constraint"] != "none" or not against:
            continue
        best = min(against, key=lambda i: rows[i]["kl_mean"])
        mean, _, half = clusters.mean(scores[best][0] - own[0])
        beyond = half is not None and abs(mean) > half
        row["gain"] = {"over": rows[best]["name"], "kl": mean, "kl_half_width": half, "beyond_noise": beyond}
        interval = f"{mean:.4f} ± {half:.4f}" if half is not None else f"{mean:.4f}"
        sentences.append(
            f"{row['name']} gains {interval} nats of KL, {100 * mean / rows[best]['kl_mean']:.1f} % of it, over {rows[best]['name']}: "
            "beyond the noise" if beyond and mean > 0 else
            f"{row['name']}: these tables {'do harm' if beyond else 'are worth nothing'} here: KL {row['kl_mean']:.4f}, "
            f"{rows[best]['name']} {rows[best]['kl_mean']:.4f}, difference {interval}")
    return sentences


def recommendation_of(rows, most, batch):
    """The cheapest rows within a limit on KL, of prefill, of decode and of both; null where none was measured."""
    def choose(rows):
        end = lambda row: row["kl_mean"] + (row["kl_half_width"] if row["kl_half_width"] is not None else numpy.inf)  # noqa: E731
        held = sorted((row for row in rows if end(row) <= most), key=lambda row: (cost_of(row), row["kl_mean"]))
        best = (held or sorted(rows, key=end) or [None])[0]
        return best and {"variant": best["name"], "holds": bool(held), "served_by": best["served_by"], "value": {
            "mean": best["kl_mean"], "se": best["kl_se"], "half_width": best["kl_half_width"]}}

    asked = [row for row in rows if row["role"] == "asked" and row["constraint"] == "none"]
    pair = {"decode_batch": batch} | {kind: choose([row for row in asked if row["folds"] == kind]) for kind in ("prefill", "decode")}
    name = pair["prefill"] and pair["decode"] and f"{pair['prefill']['variant']}+{pair['decode']['variant']}"
    pair["together"] = choose([row for row in asked if row["name"] == name])
    words = [f"{kind}: {pair[kind]['variant']} is the {'cheapest' if pair[kind]['holds'] else 'nearest'} row; its KL is "
             f"{'within' if pair[kind]['holds'] else 'not within'} {most:g}" for kind in ("prefill", "decode") if pair[kind]]
    if name and not pair["together"]:
        words.append(f"{name} was not measured together; validate it")
    return {"metric": "kl", "limit": most, "pairs": [pair], "runtimes": {"vllm": {"pairs": [pair]}}, "words": words}


def report(o, text, facts, found, top_k):
    """The document of what was measured."""
    import vllm

    lanes, scores = [lane for lane, _, _ in found], [x for _, x, _ in found]
    of_batch = {lane.batch: routes for lane, _, routes in found if lane.role == "original"}
    widths = [sum(n > at for n in part) for part in (text.lengths[i:i + o.decode_batch] for i in range(0, len(text.ids), o.decode_batch))
              for at in range(max(part))]
    lockstep = of_batch.get(o.decode_batch)
    batches = {"size": o.decode_batch, "width": float(sum(n * n for n in widths) / sum(widths)),
               "original_experts_per_batch": lockstep and lockstep["experts"] / lockstep["steps"]}
    clusters, keep = Clusters(text, range(len(text.ids))), [i for i, lane in enumerate(lanes) if i == 0 or lane.role != "original"]
    lanes, scores = [lanes[i] for i in keep], [scores[i] for i in keep]
    rows = [row_of(text, lane, x, found[i][2], scores[0], top_k, batches) for i, lane, x in zip(keep, lanes, scores)]
    asked = [row for row in rows if row["role"] == "asked" and row["constraint"] == "none"]
    for row in asked:
        row["on_frontier"] = not any(cost_of(x) <= cost_of(row) and x["kl_mean"] < row["kl_mean"] for x in asked if x["folds"] == row["folds"])
    verdict = verdict_of(rows, scores, lanes, clusters)
    data = (f"{rows[0]['tokens']} tokens scored of {len(text.ids)} sequences; domains {', '.join(dict.fromkeys(text.domains))}; decode "
            f"batches of {o.decode_batch}; in vLLM, without baselines that fold at random.")
    more = {"recommendation": recommendation_of(rows, float(o.limit[3:]), o.decode_batch)} if o.limit else {}
    half = lambda r: r["kl_half_width"] if r["kl_half_width"] is not None else numpy.nan  # noqa: E731
    lines = [f"   {r['name']:<36} KL {r['kl_mean']:.5f} ± {half(r):.5f}  PPL {r['ppl']:.3f}" for r in rows]
    unmet = [f"{r['name']}: {r['constraint_words']}" for r in rows if r["role"] == "asked" and r["constraint_words"]]
    words = [*verdict, *unmet, *(more["recommendation"]["words"] if more else []), data]
    return {"schema": "exfold-validation/1", "verdict": verdict, "worse_layers": [], "stability": [], "not_constrained": unmet,
            **more, "data": [data], "summary": "\n".join([*lines, "", *words, ""]), "decode_batches": [batches] if lockstep else [],
            "clusters": {"by": clusters.by, "n": int(clusters.n)}, "best_pools": [], "variants": rows,
            "provenance": {"tables_digest": facts.get("tables_digest"), "validate.engine": f"vllm {vllm.__version__}",
                           "validate.program": "exfold_vllm.validate", "model.family": facts["model.family"],
                           "data.tokens_digest": text.facts["data.tokens_digest"]}}


if __name__ == "__main__":
    main()
