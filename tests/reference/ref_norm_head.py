"""The norm head of the demo model in double precision: docs/method.md, "Norm heads".

usage: ref_norm_head.py > norm_head.json       what a head explains over the principal directions of all tokens (numpy; seconds)
       ref_norm_head.py TABLES.safetensors     the head of tables, as exfold-export --set output.targets=safetensors writes it,
                                               beside one that is fitted here over its directions; fails past the limits

The toolchain finds directions from a sample of 8192 tokens.  Features and log norms are rounded to multiples of 2^-12, as they are
there: a feature on which its float32 pass rounds to the next multiple is what is left between the two.
"""
import json
import sys

import numpy as np

from demo_forward import Demo, read_safetensors

Q, TOKENS_OF_A_FEATURE, RIDGE, GRID = 64, 4, 1e-3, 2.0**-12
LIMITS = {"share": 1e-4, "norm": 5e-5, "norm rms": 2e-6}  # norm: relative
demo = Demo()


def gather():
    """For each layer the inputs [T, H] of its experts, routes, weights, router logits less their mean, and log norms of outputs."""
    layers = [[] for _ in range(demo.L)]

    def observe(l, x, ids, w, scores):
        u = demo.outputs(l, x, ids)
        z = x @ demo.weights[f"model.layers.{l}.mlp.gate.weight"].T
        own = np.take_along_axis(z, ids, 1) - z.mean(1, keepdims=True)
        layers[l].append((x, ids, w, own, np.log(np.linalg.norm(u, axis=2))))
        return (u * w[:, :, None]).sum(1)

    for text in demo.text("calib").values():
        demo.logits(text, observe)
    return [tuple(np.concatenate(part) for part in zip(*layer)) for layer in layers]


def directions(x, q):
    return np.linalg.eigh(x.T @ x)[1][:, -q:]


def on_grid(x):
    return np.rint(x / GRID) * GRID


def features(basis, x, w, own):
    beside = [own, np.log(np.maximum(w, 1e-6)), np.log(np.linalg.norm(x, axis=1))]
    return on_grid(np.concatenate([np.ones((len(x), 1)), x @ basis, np.stack(beside, 1)], 1))


class Head:
    """The head of a layer over a basis [H, q]: theta [E, F], explained [E] and that of the layer."""

    def __init__(self, layer, basis):
        x, ids, w, own, y = layer
        F = basis.shape[1] + 4
        self.theta, self.explained, self.phi = np.zeros((demo.E, F)), np.zeros(demo.E), []
        lefts, totals = np.zeros(demo.E), np.zeros(demo.E)
        for e in range(demo.E):
            row, slot = np.nonzero(ids == e)
            phi, ye = features(basis, x[row], w[row, slot], own[row, slot]), on_grid(y[row, slot])
            log_rms = 0.5 * np.log(np.mean(np.exp(2 * y[row, slot])))
            totals[e] = lefts[e] = ((ye - log_rms) ** 2).sum()
            self.theta[e, 0] = log_rms
            self.phi.append(phi)
            if len(row) < TOKENS_OF_A_FEATURE * F:
                continue
            A = phi.T @ phi
            theta = np.linalg.solve(A + RIDGE * (np.trace(A) / F + 1) * np.eye(F), phi.T @ ye)
            left = ((ye - phi @ theta) ** 2).sum()
            if left < totals[e]:
                self.theta[e], lefts[e] = theta, left
        self.explained = 1 - lefts / totals
        self.layer_explained = 1 - lefts.sum() / totals.sum()


def compare(layers, path):
    t = read_safetensors(path)
    failed = False
    for l, layer in enumerate(layers):
        head = Head(layer, t["norm_head.basis"][l].astype(np.float64))
        ours = np.append(t["norm_head.explained"][l], t["norm_head.layer_explained"][l])
        norms = np.concatenate([np.expm1(phi @ (t["norm_head.theta"][l][e] - head.theta[e])) for e, phi in enumerate(head.phi)])
        shares = np.abs(ours - np.append(head.explained, head.layer_explained))
        off = {"share": shares.max(), "norm": np.abs(norms).max(), "norm rms": np.sqrt((norms**2).mean())}
        good = all(off[k] <= LIMITS[k] for k in LIMITS)
        said = ", ".join(f"{k} {off[k]:.1e}" for k in off) + ("" if good else "  FAILED")
        print(f"layer {l}: explained {head.layer_explained:.6f}, by the tables {ours[-1]:.6f}; off by {said}")
        failed |= not good
    sys.exit(failed)


if __name__ == "__main__":
    gathered = gather()
    if len(sys.argv) > 1:
        compare(gathered, sys.argv[1])
    json.dump({"norm_head": Q, "explained": [round(Head(l, directions(l[0], Q)).layer_explained, 5) for l in gathered]}, sys.stdout)
    print()
