"""REAP, SERE and MoDES by their formulas, in double precision, beside what the programs make of them.

usage: ref_baselines.py MODEL BIN WORK        (numpy, torch, transformers; half a minute)

MODEL is a checkpoint directory of qwen3_moe or glm4_moe, BIN the directory of the programs, WORK a folder that is made.  The
model is that of transformers in float64, with this script's routers, experts and baselines in the place of its mixtures; the
programs run on the same token ids.  Every line compares one thing; the exit status is 1 where one is not equal.
"""
import json
import os
import struct
import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

MODEL, BIN, WORK = (os.path.abspath(p) for p in sys.argv[1:4])
SEQUENCES, LENGTH = 12, 40
torch.set_default_dtype(torch.float64)
config = json.load(open(os.path.join(MODEL, "config.json")))
E = config.get("n_routed_experts") or config["num_experts"]
K = config["num_experts_per_tok"]
KEEP, POOL, PRIMARY = max(E // 2, K), E // 2, 1
is_glm = config["model_type"] == "glm4_moe"
failures = 0


def check(what, worst, limit):
    global failures
    good = worst <= limit
    failures += not good
    print(f"{'equal ' if good else 'DIFFERS'} {what}: {worst:.2e} (limit {limit:g})")


def run(program, *arguments):
    subprocess.run([os.path.join(BIN, program), "-q", *arguments], check=True, stdout=subprocess.DEVNULL)


# ---- the same token ids for both -------------------------------------------------------------------------

os.makedirs(WORK)
ids = np.random.default_rng(5).integers(0, config["vocab_size"], (SEQUENCES, LENGTH), dtype=np.int32)
own = os.path.join(MODEL, "token_ids.safetensors")
if os.path.exists(own):
    ids = load_file(own)["calib.prose"].numpy()[:SEQUENCES, :LENGTH].astype(np.int32)
head = json.dumps({"ids": {"dtype": "I32", "shape": list(ids.shape), "data_offsets": [0, ids.nbytes]}}).encode()
head += b" " * (-len(head) % 8)
with open(f"{WORK}/ids.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + ids.tobytes())
with open(f"{WORK}/manifest.yaml", "w") as f:
    f.write("schema: exfold-manifest/1\nsources: [{path: ids.safetensors, format: tokens, tensor: ids, sha256: unpinned}]\n")
with open(f"{WORK}/recipe.yaml", "w") as f:
    f.write(f"schema: exfold-recipe/1\nmodel: {{path: {MODEL}}}\ndata: {{manifest: manifest.yaml}}\n"
            f"calibrate: {{pairs: common_input, observer_tokens: {LENGTH}, bare_router: true}}\ncoverage: {{fail_below: 0}}\n"
            f"pools: [{POOL}, '{POOL}:frequency', '{POOL}:ean', '{POOL}:weighted_ean']\nbudgets: []\n"
            f"runtime: {{backend: cpu}}\noutput: {{directory: out, targets: [safetensors]}}\n"
            f"validate: {{manifest: manifest.yaml, decode_batch: {SEQUENCES}, baselines: false}}\n")

# ---- the model with mixtures of our own ------------------------------------------------------------------

model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float64, attn_implementation="eager").eval()
stored = {}
for name in sorted(os.listdir(MODEL)):
    if name.startswith("model") and name.endswith(".safetensors"):
        stored.update(load_file(os.path.join(MODEL, name)))


def weight(name):
    return stored[name].double()


class Mixture:
    """The mixture of one layer; rewrite(l, ids, w) changes the routes of tokens [N * S]."""

    def __init__(self, l, block):
        self.l, p = l, f"model.layers.{l}.mlp."
        self.gate = weight(p + "gate.weight")
        self.bias = weight(p + "gate.e_score_correction_bias") if is_glm else 0
        self.experts = [[weight(f"{p}experts.{e}.{part}_proj.weight") for part in ("gate", "up", "down")] for e in range(E)]
        self.shared = getattr(block, "shared_experts", None)
        self.rewrite = None
        self.x = None

    def outputs(self, x):
        """[T, E, H] of all experts."""
        return torch.stack([(torch.nn.functional.silu(x @ g.T) * (x @ u.T)) @ d.T for g, u, d in self.experts], 1)

    def route(self, x):
        logits = x @ self.gate.T
        scores = logits.sigmoid() if is_glm else logits.softmax(-1)
        chosen = (scores + self.bias).topk(K, -1).indices
        w = scores.gather(1, chosen)
        if config.get("norm_topk_prob"):
            w = w / (w.sum(-1, keepdim=True) + (1e-20 if is_glm else 0))
        w = w * config.get("routed_scaling_factor", 1.0)
        order = torch.sort(w, dim=-1, descending=True, stable=True).indices
        return chosen.gather(1, order), w.gather(1, order), logits

    def __call__(self, h):
        x = h.reshape(-1, h.shape[-1])
        ids, w, _ = self.route(x)
        self.x = x
        if self.rewrite:
            ids, w = self.rewrite(self.l, ids, w)
        out = (self.outputs(x).gather(1, ids[..., None].expand(-1, -1, x.shape[1])) * w[..., None]).sum(1).reshape(h.shape)
        return out + self.shared(h) if self.shared is not None else out


mixtures = []
for l, layer in enumerate(model.model.layers):
    if f"model.layers.{l}.mlp.gate.weight" in stored:
        mixtures.append(Mixture(l, layer.mlp))
        layer.mlp.forward = mixtures[-1].__call__
layers = [m.l for m in mixtures]


@torch.no_grad()
def log_probabilities(rewrite=None):
    for m in mixtures:
        m.rewrite = rewrite
    return model(torch.from_numpy(ids).long()).logits[:, :-1].log_softmax(-1)


original = log_probabilities()
inputs = [m.x for m in mixtures]


def kl_of(rewrite):
    other = log_probabilities(rewrite)
    return float((original.exp() * (original - other)).sum(-1).mean())


# ---- what the programs make ------------------------------------------------------------------------------

os.chdir(WORK)
run("exfold-calibrate", "recipe.yaml", "-o", "out")
tables = load_file("out/tables.safetensors")


def kept_by(*settings):
    """The first KEEP experts of each layer, as a list of experts for pruning has them."""
    run("exfold-export", "out/tables.h5", "-o", "out", "--force", "--set", "output.targets=expert-list", *settings)
    lines = [json.loads(line) for line in open("out/expert-list.jsonl")]
    return [set(next(iter(line.values()))[:KEEP]) for line in lines]


# ---- REAP -----------------------------------------------------------------------------------------------

def reap_sums(m, x, ids, w):
    """Sums over routes of 1, ||E(x)||, w ||E(x)||, [E] each."""
    norms = m.outputs(x).norm(dim=-1).gather(1, ids).numpy()
    count, ean, weighted = np.zeros(E), np.zeros(E), np.zeros(E)
    np.add.at(count, ids.numpy(), 1)
    np.add.at(ean, ids.numpy(), norms)
    np.add.at(weighted, ids.numpy(), norms * w.numpy())
    return count, ean, weighted


def most(score, n):
    return set(np.argsort(-score, kind="stable")[:n].tolist())


by_model = [reap_sums(m, x, *m.route(x)[:2]) for m, x in zip(mixtures, inputs)]
criteria = {"frequency": lambda c, s, v: c, "ean": lambda c, s, v: s, "weighted_ean": lambda c, s, v: v,
            "norm": lambda c, s, v: s / np.maximum(c, 1), "reap": lambda c, s, v: v / np.maximum(c, 1)}
for name, score in criteria.items():
    theirs = kept_by("--set", f"export.by={name}")
    wrong = sum(len(most(score(*sums), KEEP) ^ kept) for sums, kept in zip(by_model, theirs))
    check(f"experts kept by {name}, {KEEP} of {E}", wrong, 0)
    if name == "norm":
        continue
    members = tables[f"pools_by.{name}.{POOL}.members"].numpy()
    wrong = sum(len(most(score(*sums), POOL) ^ set(row.tolist())) for sums, row in zip(by_model, members))
    check(f"static pool by {name}", wrong, 0)

# The router of REAP's code: a softmax of the bare logits.
def bare_route(m, x):
    p = (x @ m.gate.T).softmax(-1)
    ids = p.topk(K, -1).indices
    w = p.gather(1, ids)
    if config.get("norm_topk_prob"):
        w = (w / w.sum(-1, keepdim=True)).clamp(min=torch.finfo(torch.float32).eps)
    return ids, w


by_code = [reap_sums(m, x, *bare_route(m, x)) for m, x in zip(mixtures, inputs)]
for name, score in criteria.items():
    theirs = kept_by("--set", f"export.by={name}", "--set", "export.router=code")
    wrong = sum(len(most(score(*sums), KEEP) ^ kept) for sums, kept in zip(by_code, theirs))
    check(f"experts kept by {name} over the routes of REAP's code", wrong, 0)
same = sum(len(most(criteria["reap"](*a), KEEP) & most(criteria["reap"](*b), KEEP)) for a, b in zip(by_model, by_code))
print(f"       {same} of {KEEP * len(layers)} kept experts are the same by either router")

# ---- SERE -----------------------------------------------------------------------------------------------

similarity = []
for m, x in zip(mixtures, inputs):
    u = m.outputs(x)
    distance = torch.stack([(u - u[:, e : e + 1]).pow(2).sum((0, 2)).sqrt() for e in range(E)])
    similarity.append((1 - distance / distance.max()).numpy())
worst = max(np.abs(s - t).max() for s, t in zip(similarity, tables["similarity"].numpy().astype(np.float64)))
check("similarity, 1 - ||A - B||_F / max", worst, 1e-6)


def sere(rho):
    """The union of a batch's first experts stays; a later slot goes to the most similar of these."""
    def rewrite(l, ids, w):
        s, out = similarity[layers.index(l)], ids.clone().reshape(SEQUENCES, LENGTH, K)
        for q in range(LENGTH):
            primary = np.unique(out[:, q, :PRIMARY])
            for row in out[:, q]:
                for k in range(PRIMARY, K):
                    e = int(row[k])
                    to = primary[s[e, primary].argmax()]
                    if e not in primary and not (rho > 0 and s[e, to] < rho):
                        row[k] = int(to)
        return out.reshape(-1, K), w
    return rewrite


# ---- MoDES ----------------------------------------------------------------------------------------------

def without(layer):
    return lambda l, ids, w: (ids, w * (l != layer))


lost = np.array([kl_of(without(l)) for l in layers])
factor = lost / lost.sum()
run("exfold-validate", "recipe.yaml", "-o", "out", "--sensitivities", "--set", "budget_rules=skip")
P = max(K // 2, 1)
run("exfold-solve", "recipe.yaml", "-o", "out", "--force", "--set", f"budgets={P}", "--set", "budget_rules=skip",
    "--sensitivities", "out/sensitivities.json")
run("exfold-export", "out/tables.h5", "-o", "out", "--force", "--set", "output.targets=safetensors")
tables = load_file("out/tables.safetensors")
scale = tables[f"budgets.{P}.skip.scale"].numpy()
tau = float(tables[f"budgets.{P}.skip.lambda"][0])
check("factors: KL without a layer's routed experts over the sum of all", np.abs(scale / factor - 1).max(), 1e-5)
share = [m.route(x)[1] for m, x in zip(mixtures, inputs)]
above = [scale[i] * (w / w.sum(-1, keepdim=True)).numpy() >= tau for i, w in enumerate(share)]
check(f"mean of {P} of {K} routes at tau", abs(np.mean([a.sum(-1) for a in above]) - P), 1e-9)


def skip(l, ids, w):
    i = layers.index(l)
    return ids, w * (torch.from_numpy(scale)[i] * w / w.sum(-1, keepdim=True) >= tau)


# ---- what they do to the model ---------------------------------------------------------------------------

# A threshold between two of the similarities, so that rounding decides nothing.
values = np.sort(np.concatenate([s[~np.eye(E, dtype=bool)] for s in similarity]))
middle = len(values) // 2
middle += int(np.diff(values[middle : middle + 50]).argmax())
rho = round(float(values[middle] + values[middle + 1]) / 2, 7)
variants = {f"sere{PRIMARY}": sere(0), f"sere{PRIMARY}:rho={rho}": sere(rho), f"skip0:budget={P}": skip}
run("exfold-validate", "recipe.yaml", "-o", "out", "--variants", " ".join(variants))
told = {v["name"].split(",batch")[0].split(":batch")[0]: v["kl_mean"] for v in json.load(open("out/validation.json"))["variants"]}
for name, rewrite in variants.items():
    ours = kl_of(rewrite)
    check(f"KL of {name}, {ours:.6f}", abs(told[name] / ours - 1), 1e-5)
sys.exit(failures > 0)
