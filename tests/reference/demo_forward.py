"""The demo model and its calibration in double precision: what the ref_*.py beside it share.

Plain numpy, nothing of the toolchain: it reads the two safetensors files of examples/demo-model itself, runs the model
with a function in the place of every layer's routed experts, and makes the few statistics that the method's formulas
(docs/method.md) need.  A statistic here is a mean over all calibration tokens, summed in float64 in the order they come.
"""
import json
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "examples", "demo-model")
RIDGE = 1e-2


def read_safetensors(path):
    """The tensors of a file by name; bfloat16 becomes float64."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        first, last = (8 + size + at for at in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            halves = np.frombuffer(data[first:last], np.uint16).astype(np.uint32)
            flat = (halves << 16).view(np.float32).astype(np.float64)
        else:
            flat = np.frombuffer(data[first:last], {"I32": np.int32, "I64": np.int64, "U64": np.uint64, "F32": np.float32, "F64": np.float64}[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def order_falling(key):
    """Positions by falling key, ties to the lower one."""
    return np.argsort(-key, axis=-1, kind="stable")


class Demo:
    """A qwen3_moe model of one dense kind of layer.  experts(l, x, ids, weights, scores) gives a layer's routed output."""

    def __init__(self):
        with open(os.path.join(MODEL, "config.json")) as f:
            c = json.load(f)
        self.weights = read_safetensors(os.path.join(MODEL, "model.safetensors"))
        self.texts = read_safetensors(os.path.join(MODEL, "token_ids.safetensors"))
        self.L, self.E, self.K = c["num_hidden_layers"], c["num_local_experts"], c["num_experts_per_tok"]
        self.H, self.heads, self.groups, self.width = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.eps, self.theta = c["rms_norm_eps"], c["rope_parameters"]["rope_theta"]
        self.expert = [[self._expert(l, e) for e in range(self.E)] for l in range(self.L)]

    def _expert(self, l, e):
        p = f"model.layers.{l}.mlp.experts.{e}."
        return [self.weights[p + part + "_proj.weight"].T.copy() for part in ("gate", "up", "down")]

    def text(self, kind):
        """Sequences of a kind ("calib", "eval") by domain."""
        return {k.split(".")[1]: self.texts[k].astype(np.int64) for k in sorted(self.texts) if k.startswith(kind)}

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def rope(self, x):
        half = self.width // 2
        angle = np.arange(x.shape[1])[:, None] / self.theta ** (np.arange(half) * 2 / self.width)
        cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, l, x):
        p = f"model.layers.{l}.self_attn."
        n, s = x.shape[:2]
        q = (x @ self.weights[p + "q_proj.weight"].T).reshape(n, s, self.heads, self.width)
        k = (x @ self.weights[p + "k_proj.weight"].T).reshape(n, s, self.groups, self.width)
        v = (x @ self.weights[p + "v_proj.weight"].T).reshape(n, s, self.groups, self.width)
        q, k = self.rope(self.norm(q, p + "q_norm.weight")), self.rope(self.norm(k, p + "k_norm.weight"))
        future = np.triu(np.full((s, s), -np.inf), 1)
        out = np.empty_like(q)
        for head in range(self.heads):
            g = head * self.groups // self.heads
            score = q[:, :, head] @ k[:, :, g].transpose(0, 2, 1) / np.sqrt(self.width)
            out[:, :, head] = softmax(score + future) @ v[:, :, g]
        return out.reshape(n, s, -1) @ self.weights[p + "o_proj.weight"].T

    def run_expert(self, l, e, x):
        gate, up, down = self.expert[l][e]
        g = x @ gate
        return (g / (1 + np.exp(-g)) * (x @ up)) @ down

    def outputs(self, l, x, ids):
        """[T, K, H] outputs of the experts ids [T, K]."""
        out = np.zeros(ids.shape + (self.H,))
        for e in range(self.E):
            row, slot = np.nonzero(ids == e)
            if len(row):
                out[row, slot] = self.run_expert(l, e, x[row])
        return out

    def plain(self, l, x, ids, weights, scores=None):
        """The routed output sum_k w_k E_k(x); slots of weight 0 cost nothing."""
        out = np.zeros((len(x), self.H))
        for e in range(self.E):
            row, slot = np.nonzero((ids == e) & (weights != 0))
            if len(row):
                np.add.at(out, row, weights[row, slot][:, None] * self.run_expert(l, e, x[row]))
        return out

    def route(self, l, x):
        scores = softmax(x @ self.weights[f"model.layers.{l}.mlp.gate.weight"].T)
        ids = order_falling(scores)[:, : self.K]
        w = np.take_along_axis(scores, ids, 1)
        return ids, w / w.sum(1, keepdims=True), scores

    def logits(self, tokens, experts, behind=None):
        """Logits of tokens [N, S]; behind(l, h) sees the residual stream [N * S, H] behind every layer."""
        h = self.weights["model.embed_tokens.weight"][tokens]
        for l in range(self.L):
            h = h + self.attention(l, self.norm(h, f"model.layers.{l}.input_layernorm.weight"))
            x = self.norm(h, f"model.layers.{l}.post_attention_layernorm.weight").reshape(-1, self.H)
            h = h + experts(l, x, *self.route(l, x)).reshape(h.shape)
            if behind:
                behind(l, h.reshape(-1, self.H))
        return self.norm(h, "model.norm.weight") @ self.weights["model.embed_tokens.weight"].T


class Statistics:
    """What a calibration of the demo knows: cosine [L, E, E], rms, h, reap, energy [L, E], stream, output [L], routes."""

    def __init__(self, demo):
        L, E = demo.L, demo.E
        cosines, together = np.zeros((L, E, E)), np.zeros((L, E, E))
        count, n1, n2, wn1, wn2 = (np.zeros((L, E)) for _ in range(5))
        inverse, tokens = np.zeros(L), np.zeros(L)
        self.routes = [[] for _ in range(L)]

        def observe(l, x, ids, w, scores):
            u = demo.outputs(l, x, ids)
            gram = u @ u.transpose(0, 2, 1)
            sq = np.einsum("tkk->tk", gram)
            for a in range(demo.K):
                np.add.at(count[l], ids[:, a], 1)
                np.add.at(n1[l], ids[:, a], np.sqrt(sq[:, a]))
                np.add.at(n2[l], ids[:, a], sq[:, a])
                np.add.at(wn1[l], ids[:, a], w[:, a] * np.sqrt(sq[:, a]))
                np.add.at(wn2[l], ids[:, a], w[:, a] ** 2 * sq[:, a])
                for b in range(demo.K):
                    if a != b:
                        np.add.at(cosines[l], (ids[:, a], ids[:, b]), gram[:, a, b] / np.sqrt(sq[:, a] * sq[:, b]))
                        np.add.at(together[l], (ids[:, a], ids[:, b]), 1)
            self.routes[l].append((ids, w))
            return (u * w[:, :, None]).sum(1)

        def behind(l, h):
            inverse[l] += (1 / (h * h).sum(1)).sum()
            tokens[l] += len(h)

        for text in demo.text("calib").values():
            demo.logits(text, observe, behind)
        self.cosine = cosines / np.maximum(together, 1)
        self.cosine[:, range(E), range(E)] = 1
        self.h, self.rms = n1 / count, np.sqrt(n2 / count)
        self.reap, self.energy = wn1 / count, wn2
        self.stream, self.output = tokens / inverse, n2.sum(1) / count.sum(1)
        self.gram = self.cosine * self.rms[:, :, None] * self.rms[:, None, :]
        self.routes = [tuple(np.concatenate(part) for part in zip(*r)) for r in self.routes]


class Evaluation:
    """The original's answers on the held-out text, and what a variant's are beside them."""

    def __init__(self, demo, kind="eval"):
        self.demo, self.text = demo, demo.text(kind)
        self.base = {d: log_softmax(demo.logits(t, demo.plain)[:, :-1]).astype(np.float32) for d, t in self.text.items()}

    def score(self, experts):
        kl, nll, top = [], [], []
        for domain, text in self.text.items():
            lp = log_softmax(self.demo.logits(text, experts)[:, :-1])
            base = self.base[domain].astype(np.float64)
            kl.append((np.exp(base) * (base - lp)).sum(-1).mean())
            nll.append(-np.take_along_axis(lp, text[:, 1:, None], 2).mean())
            top.append((lp.argmax(-1) == base.argmax(-1)).mean())
        return {"ppl": round(float(np.exp(np.mean(nll))), 4), "kl": round(float(np.mean(kl)), 5), "top1": round(float(np.mean(top)), 4)}


def mean_diagonal(G):
    return np.einsum("tkk->t", G) / G.shape[1]


def joint_weights(G, w, kept):
    """w~_B = w_B + (G_BB + rho mean(diag G_BB) I)^-1 G_BO w_O with B the first `kept` routes of G [T, K, K], w [T, K]."""
    if kept == w.shape[1]:
        return w.copy()
    Gbb = G[:, :kept, :kept]
    Gbb = Gbb + (RIDGE * mean_diagonal(Gbb))[:, None, None] * np.eye(kept)
    right = (G[:, :kept, kept:] @ w[:, kept:, None])
    out = np.zeros_like(w)
    out[:, :kept] = w[:, :kept] + np.linalg.solve(Gbb, right)[..., 0]
    return out


def residuals(G, w):
    """[T, K]: r_1..r_K, each from its own system, no elimination in common."""
    r = np.zeros_like(w)
    ridge = RIDGE * mean_diagonal(G)
    for kept in range(1, w.shape[1]):
        wo = w[:, kept:, None]
        right = G[:, :kept, kept:] @ wo
        system = G[:, :kept, :kept] + ridge[:, None, None] * np.eye(kept)
        r[:, kept - 1] = (wo.transpose(0, 2, 1) @ G[:, kept:, kept:] @ wo - right.transpose(0, 2, 1) @ np.linalg.solve(system, right))[:, 0, 0]
    return r


def choose(r, scale, penalty):
    """argmin_P scale r_P + penalty P, ties to the smaller P."""
    return np.argmin(scale * r + penalty * np.arange(1, r.shape[1] + 1), 1) + 1
