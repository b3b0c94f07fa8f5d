"""Decode pools and stand-ins on the demo model, in double precision: docs/method.md, "Stand-ins chosen by the router".

usage: ref_stand_ins.py > stand_ins_ppl.json        (numpy; a few minutes)

16 sequences of a domain decode side by side: step q is their tokens at position q.
A slot outside the pool goes to the member that its expert resembles most ("cos", joint weights), or to the member that the
router likes next and the token does not hold yet: with joint weights ("score"), or with the router's own ("route").
"""
import json
import sys

import numpy as np

from demo_forward import RIDGE, Demo, Evaluation, Statistics, order_falling

BATCH = 16
demo = Demo()
seen = Statistics(demo)
dissimilar = 1 - seen.cosine**2


def dynamic_pool(l, ids, w, size, by_norm=False):
    """[S, E] members of each step's pool: the routed experts of largest energy, or of largest norm."""
    S = len(ids) // BATCH
    importance = np.zeros((S, demo.E))
    step = np.arange(len(ids)) % S
    for k in range(demo.K):
        term = w[:, k] * seen.h[l][ids[:, k]] if by_norm else (w[:, k] * seen.rms[l][ids[:, k]]) ** 2
        np.add.at(importance, (step, ids[:, k]), term)
    member = np.zeros((S, demo.E), bool)
    np.put_along_axis(member, order_falling(importance)[:, :size], True, 1)
    return (member & (importance > 0))[step]


def static_pool(criterion, size):
    member = np.zeros((demo.L, demo.E), bool)
    np.put_along_axis(member, order_falling(criterion)[:, :size], True, 1)
    return lambda l, ids, w: np.broadcast_to(member[l], (len(ids), demo.E))


def by_resemblance(l, ids, outside, member, scores):
    """Every slot outside the pool takes the member of least 1 - cos^2; ids may repeat."""
    cost = np.where(member[:, None, :], dissimilar[l][ids], np.inf)
    return np.where(outside, cost.argmin(2), ids), np.ones_like(outside)


def by_router(l, ids, outside, member, scores):
    """Slots outside the pool take, in order of slot, the members of largest score that the token does not hold yet."""
    free = member.copy()
    np.put_along_axis(free, ids, False, 1)
    order = order_falling(np.where(free, scores, -np.inf))
    place = np.cumsum(outside, 1) - 1
    there = ~outside | (place < free.sum(1, keepdims=True))
    return np.where(outside & there, np.take_along_axis(order, np.maximum(place, 0), 1), ids), there


def joint(l, ids, w, new, there, outside):
    """w~ = k + (G_nn + rho mean(diag) I)^-1 (G_ni w - G_nn k) over the slots that exist."""
    G = seen.gram[l]
    kept = np.where(outside, 0, w)
    n = new.shape[1]
    Gnn = G[new[:, :, None], new[:, None, :]] * there[:, :, None] * there[:, None, :]
    Gni = G[new[:, :, None], ids[:, None, :]] * there[:, :, None]
    right = (Gni @ w[:, :, None] - Gnn @ kept[:, :, None])[..., 0]
    mean = np.einsum("tkk->t", Gnn) / there.sum(1)
    system = Gnn + np.where(there, (RIDGE * mean)[:, None], 1)[:, :, None] * np.eye(n)
    return (kept + np.linalg.solve(system, right[..., None])[..., 0]) * there


def fold(pool, targets, weights):
    def experts(l, x, ids, w, scores):
        member = pool(l, ids, w)
        outside = ~np.take_along_axis(member, ids, 1)
        new, there = targets(l, ids, outside, member, scores)
        out = w.copy()
        at = outside.any(1)
        out[at] = weights(l, ids[at], w[at], new[at], there[at], outside[at], scores[at])
        return demo.plain(l, x, new, out)

    return experts


def joint_weights(l, ids, w, new, there, outside, scores):
    return joint(l, ids, w, new, there, outside)


def router_weights(l, ids, w, new, there, outside, scores):
    """The router's probabilities of the experts that run, normalized as the router does."""
    p = np.take_along_axis(scores, new, 1) * there
    return p / p.sum(1, keepdims=True)


KINDS = {"cos": (by_resemblance, joint_weights), "route": (by_router, router_weights), "score": (by_router, joint_weights)}
rows = {}
evaluation = Evaluation(demo)


def report(name, pool, kinds=KINDS):
    for kind in kinds:
        targets, weights = KINDS[kind]
        rows[f"{name}-{kind}"] = evaluation.score(fold(pool, targets, weights))
        print(f"{name}-{kind:8s} {rows[f'{name}-{kind}']}", file=sys.stderr)


for D in (8, 4):
    report(f"D{D}-dynamic", lambda l, ids, w: dynamic_pool(l, ids, w, D))
    report(f"D{D}-dynamic-norm", lambda l, ids, w: dynamic_pool(l, ids, w, D, by_norm=True), ["cos"])
for D in (12, 8):
    for criterion, value in (("norm", seen.h), ("reap", seen.reap), ("energy", seen.energy)):
        report(f"D{D}-static-{criterion}", static_pool(value, D))
json.dump(rows, sys.stdout, indent=1)
print()
