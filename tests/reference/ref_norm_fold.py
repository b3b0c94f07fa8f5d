"""Folds by norms that a head predicts for each token, on the demo model in double precision: docs/method.md, "Norm heads".

usage: ref_norm_fold.py > norms_ppl.json        (numpy; a few minutes)

A token's norms n[e] = exp(theta_e' phi) stand for rms everywhere: in the order of routes w n, in the Gram matrix cos n n' from
which residuals and joint weights come, in a pool's importance (w n)^2.  An expert that is put in a slot's place has its rms
times what the norm of the slot's own expert is over its rms.
Rows: "mean" by rms, "predicted" by the head, each with lambda bisected on the calibration text; "matched" is predicted with lambda
bisected on the scored text until it keeps as many experts as "mean" does there, "crossed" predicted with the lambda of "mean".
Of pools, "energy" puts the likest member in a slot's place, "router" the one that the router likes next.
"""
import json
import sys

import numpy as np

import ref_norm_head as norm_head
from demo_forward import RIDGE, Evaluation, Statistics, choose, joint_weights, order_falling, residuals

BATCH = 16
demo = norm_head.demo
seen = Statistics(demo)
gathered = norm_head.gather()
heads = []
for layer in gathered:
    basis = norm_head.directions(layer[0], norm_head.Q)
    heads.append((basis, norm_head.Head(layer, basis).theta))


def by_mean(l, x, ids, w):
    return seen.rms[l][ids]


def by_head(l, x, ids, w):
    """[T, K] predicted norms of the experts ids."""
    z = x @ demo.weights[f"model.layers.{l}.mlp.gate.weight"].T
    own = np.take_along_axis(z, ids, 1) - z.mean(1, keepdims=True)
    basis, theta = heads[l]
    n = np.empty_like(w)
    for k in range(ids.shape[1]):
        n[:, k] = np.exp((norm_head.features(basis, x, w[:, k], own[:, k]) * theta[ids[:, k]]).sum(1))
    return n


# ---- budgets per token --------------------------------------------------------------------------------


def ordered(l, x, ids, w, norms):
    """Routes by falling w n, with their Gram matrix."""
    n = norms(l, x, ids, w)
    at = order_falling(w * n)
    ids, w, n = (np.take_along_axis(a, at, 1) for a in (ids, w, n))
    return ids, w, seen.cosine[l][ids[:, :, None], ids[:, None, :]] * n[:, :, None] * n[:, None, :]


def fold(norms, lam, tally):
    def experts(l, x, ids, w, scores):
        ids, w, G = ordered(l, x, ids, w, norms)
        kept, out = choose(residuals(G, w), 1 / seen.stream[l], lam), w.copy()
        for P in range(1, demo.K):
            at = kept == P
            if at.any():
                out[at] = joint_weights(G[at], w[at], P)
        tally.append(kept.mean())
        return demo.plain(l, x, ids, out)

    return experts


def bisect(mean, low, high, target, steps):
    """The number whose mean, which falls with it, is the target."""
    for _ in range(steps):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if mean(middle) > target else (low, middle)
    return middle


evaluation = Evaluation(demo)
rows = {}


def keep(name, score):
    rows[name] = score
    print(f"{name:28s} {score}", file=sys.stderr, flush=True)


def report_budget(name, norms, lam):
    tally = []
    keep(name, evaluation.score(fold(norms, lam, tally)) | {"mean": round(float(np.mean(tally)), 4), "lambda": lam})
    return np.mean(tally)


def mean_scored(norms, lam):
    tally = []
    for text in evaluation.text.values():
        demo.logits(text, fold(norms, lam, tally))
    return np.mean(tally)


for P in (3, 2):
    mean = crossed = None
    for name, norms in (("mean", by_mean), ("predicted", by_head)):
        predicted = []
        for l, (x, ids, w, _, _) in enumerate(gathered):
            _, wo, G = ordered(l, x, ids, w, norms)
            predicted.append(residuals(G, wo) / seen.stream[l])
        lam = bisect(lambda x: np.mean([choose(r, 1, x).mean() for r in predicted]), 1e-12, 1e6, P, 60)
        kept = report_budget(f"P{P}-stream-{name}", norms, lam)
        mean, crossed = mean or kept, crossed or lam
    report_budget(f"P{P}-stream-crossed", by_head, crossed)
    lam = bisect(lambda x: mean_scored(by_head, x), lam / 1.3, lam * 1.3, mean, 7)
    report_budget(f"P{P}-stream-matched", by_head, lam)


def fold_fixed(norms, P):
    def experts(l, x, ids, w, scores):
        ids, w, G = ordered(l, x, ids, w, norms)
        return demo.plain(l, x, ids, joint_weights(G, w, P))

    return experts


keep("P2-fixed-predicted", evaluation.score(fold_fixed(by_head, 2)))


# ---- decode pools --------------------------------------------------------------------------------------


def likest(l, ids, outside, member, scores):
    return np.where(member[:, None, :], 1 - seen.cosine[l][ids] ** 2, np.inf).argmin(2), np.ones_like(outside)


def next_of_router(l, ids, outside, member, scores):
    """Members by falling score that the token does not hold, and which slots there is one for."""
    free = member.copy()
    np.put_along_axis(free, ids, False, 1)
    order, place = order_falling(np.where(free, scores, -np.inf)), np.cumsum(outside, 1) - 1
    return np.take_along_axis(order, np.maximum(place, 0), 1), ~outside | (place < free.sum(1, keepdims=True))


def decode(norms, size, choose_target):
    def experts(l, x, ids, w, scores):
        S = len(ids) // BATCH
        n, rms, cosine = norms(l, x, ids, w), seen.rms[l], seen.cosine[l]
        step = np.arange(len(ids)) % S
        importance, member = np.zeros((S, demo.E)), np.zeros((S, demo.E), bool)
        for k in range(demo.K):
            np.add.at(importance, (step, ids[:, k]), (w[:, k] * n[:, k]) ** 2)
        np.put_along_axis(member, order_falling(importance)[:, :size], True, 1)
        member = (member & (importance > 0))[step]
        outside = ~np.take_along_axis(member, ids, 1)
        target, there = choose_target(l, ids, outside, member, scores)
        new = np.where(outside & there, target, ids)
        nn = np.where(outside, rms[new] * n / rms[ids], n) * there
        kept = np.where(outside, 0, w)
        Gnn = cosine[new[:, :, None], new[:, None, :]] * nn[:, :, None] * nn[:, None, :]
        Gni = cosine[new[:, :, None], ids[:, None, :]] * nn[:, :, None] * n[:, None, :]
        right = (Gni @ w[:, :, None] - Gnn @ kept[:, :, None])[..., 0]
        ridge = np.where(there, (RIDGE * np.einsum("tkk->t", Gnn) / there.sum(1))[:, None], 1)
        solved = (kept + np.linalg.solve(Gnn + ridge[:, :, None] * np.eye(demo.K), right[..., None])[..., 0]) * there
        return demo.plain(l, x, new, np.where(outside.any(1)[:, None], solved, w))

    return experts


for D in (8, 4):
    for name, norms in (("mean", by_mean), ("predicted", by_head)):
        keep(f"D{D}-energy-{name}", evaluation.score(decode(norms, D, likest)))
        keep(f"D{D}-router-{name}", evaluation.score(decode(norms, D, next_of_router)))
json.dump(rows, sys.stdout, indent=1)
print()
