"""Budgets per token on the demo model, in double precision: docs/method.md, "A budget per token".

usage: ref_budget.py > budget_ppl.json        (numpy; a few minutes)

"mean" is the mean number kept on the held-out text, which the bisection did not see.

The routes of a token are sorted by w rms, r_P is the residual that the mean Gram predicts for keeping the first P of them
with joint weights, and the token keeps argmin_P a_l r_P + lambda P.  lambda is bisected on all calibration tokens.
Rows: fixed P (joint), budget by sensitivity (stream; relative, that is output; sensitive, that is measured; absolute), top-p.
"""
import json
import sys

import numpy as np

from demo_forward import Demo, Evaluation, Statistics, choose, joint_weights, order_falling, residuals

demo = Demo()
seen = Statistics(demo)


def ordered(l, ids, w):
    """Routes by falling w rms, with their Gram matrix."""
    at = order_falling(w * seen.rms[l][ids])
    ids, w = np.take_along_axis(ids, at, 1), np.take_along_axis(w, at, 1)
    return ids, w, seen.gram[l][ids[:, :, None], ids[:, None, :]]


def top_p(l, ids, w, p):
    share = np.cumsum(w * seen.rms[l][ids], 1)
    return np.minimum((share < p * share[:, -1:]).sum(1) + 1, w.shape[1])


def fold(keep, tally=None):
    """The experts of a variant whose keep(l, ids, w, G) says how many of the ordered routes each token keeps."""

    def experts(l, x, ids, w, scores):
        ids, w, G = ordered(l, ids, w)
        kept, out = keep(l, ids, w, G), w.copy()
        for P in range(1, demo.K):
            at = kept == P
            if at.any():
                out[at] = joint_weights(G[at], w[at], P)
        if tally is not None:
            tally.append(kept.mean())
        return demo.plain(l, x, ids, out)

    return experts


calibration = [(ordered(l, *seen.routes[l])) for l in range(demo.L)]
predicted = [residuals(G, w) for _, w, G in calibration]


def bisect(mean, low, high, target, rising):
    """The number between low and high whose mean kept is the target; the mean falls with it, or rises."""
    for _ in range(60):
        middle = (low * high) ** 0.5 if low > 0 else (low + high) / 2
        if (mean(middle) > target) == rising:
            high = middle
        else:
            low = middle
    return middle


def layer_alone(layer, evaluation):
    """KL of folding one layer at P = K / 2 over its mean residual there."""
    half = demo.K // 2
    keep = lambda l, ids, w, G: np.full(len(w), half if l == layer else demo.K)
    return evaluation.score(fold(keep))["kl"] / predicted[layer][:, half - 1].mean()


rows = {}


def report(name, keep, **more):
    tally = []
    rows[name] = evaluation.score(fold(keep, tally)) | {"mean": round(float(np.mean(tally)), 4)} | more
    print(f"{name:16s} {rows[name]}", file=sys.stderr)


sensitivity = {"stream": 1 / seen.stream, "relative": 1 / seen.output, "absolute": np.ones(demo.L)}
evaluation = Evaluation(demo, "calib")
sensitivity["sensitive"] = np.array([layer_alone(l, evaluation) for l in range(demo.L)])
evaluation = Evaluation(demo)
report("original", lambda l, ids, w, G: np.full(len(w), demo.K))
report("P1-joint-fixed", lambda l, ids, w, G: np.full(len(w), 1))
for P in (3, 2):
    report(f"P{P}-joint-fixed", lambda l, ids, w, G: np.full(len(w), P))
    for rule, a in sensitivity.items():
        lam = bisect(lambda x: np.mean([choose(r, a[l], x).mean() for l, r in enumerate(predicted)]), 1e-12, 1e6, P, False)
        report(f"P{P}-{rule}", lambda l, ids, w, G: choose(residuals(G, w), a[l], lam), **{"lambda": lam, "scale": list(a)})
    share = bisect(lambda p: np.mean([top_p(l, c[0], c[1], p).mean() for l, c in enumerate(calibration)]), 0, 1, P, True)
    report(f"P{P}-topp", lambda l, ids, w, G: top_p(l, ids, w, share), **{"lambda": share})
json.dump(rows, sys.stdout, indent=1)
print()
