"""What /metrics says of the folds: which, how many experts they leave, how many tokens were folded.

The gauges are of the process that answers /metrics, from the settings; the tokens are those that vLLM counts there after each step.
"""
import functools

from prometheus_client import REGISTRY, Counter, Gauge

NAMES = ("exfold_variant", "exfold_experts_per_token", "exfold_experts_per_batch", "exfold_tokens_total")


def show(stat_logger, parts, given):
    """Adds the plugin's metrics to those of an engine's logger, in place of an earlier engine's."""
    for collector in {REGISTRY._names_to_collectors[name] for name in NAMES if name in REGISTRY._names_to_collectors}:
        REGISTRY.unregister(collector)
    prefill, decode = parts
    Gauge("exfold_variant", "1: how routes are folded, and by which tables", ["prefill", "decode", "tables"]).labels(
        given.get("prefill", ""), given.get("decode", ""), given["tables"]).set(1)
    if prefill:
        Gauge("exfold_experts_per_token", "Experts that a token of a prompt runs, of a budget the mean").set(prefill.size)
    if decode:
        Gauge("exfold_experts_per_batch", "Experts that the decode rows of a step run, at most").set(decode.size)
    tokens = Counter("exfold_tokens", "Tokens whose routes were folded", ["phase"])
    record = stat_logger.record

    @functools.wraps(record)
    def counted(scheduler_stats, iteration_stats, *args, **kwargs):
        if iteration_stats is not None:
            if prefill:
                tokens.labels("prefill").inc(iteration_stats.prompt_token_stats.computed)
            if decode:  # a request's first token comes of its prompt
                tokens.labels("decode").inc(max(iteration_stats.num_generation_tokens - len(iteration_stats.time_to_first_tokens_iter), 0))
        return record(scheduler_stats, iteration_stats, *args, **kwargs)

    stat_logger.record = counted
