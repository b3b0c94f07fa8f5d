"""Holds examples/torch/exfold_torch.py to PyTorch: operators with fake kernels, the numbers of the formulas, compiled graphs.

usage: check_torch_op.py BUILD TABLES.SAFETENSORS      last line: "N passed, N failed"
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "examples/torch"))
import exfold_torch  # noqa: E402

build, path = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
exfold_torch.library(str(build / f"libexfold_fold.so.{exfold_torch.ABI}"))
passed = failed = 0


def note(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(("  ok      " if good else "  FAILED  ") + what)


def raises(call, *words):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return all(word in str(error) for word in words)
    return False


def draw(rows, k, experts, seed, ids=torch.int64, weights=torch.float32):
    g = torch.Generator().manual_seed(seed)
    top = torch.rand(rows, experts, generator=g).softmax(-1).topk(k)
    return top.indices.to(ids), top.values.to(weights)


def by_formula(ids, weights, t, keep):
    """exf_fold_prefill in PyTorch, in double: ranked by w h, each omitted route to the kept one of least loss."""
    order = (weights * t["norms"][ids]).sort(dim=1, descending=True, stable=True).indices
    ids, w = ids.gather(1, order), weights.double().gather(1, order)
    kept, out = ids[:, :keep], w[:, :keep].clone()
    for j in range(keep, ids.shape[1]):
        loss, to = t["loss"][ids[:, j, None], kept].min(1)
        s = t["coeff"][ids[:, j], kept.gather(1, to[:, None])[:, 0]].double()
        out.scatter_add_(1, to[:, None], torch.where(loss < 1e30, w[:, j] * s, 0.0)[:, None])
    return kept, out


tables = exfold_torch.Tables(path)
stored, number = load_file(path), tables.layers[-1]
layer = tables[number]
experts = layer["coeff"].shape[0]
pairs = {"coeff": "coeff", "loss": "loss", "norms": "expert_norms", "cosine": "cosine", "rms": "rms"}
note(all(torch.equal(tables.stacked[ours], stored[theirs]) for ours, theirs in pairs.items()), "the library's loader: every table")
note(raises(lambda: exfold_torch.Tables(__file__), __file__), "a file that is none is named")

K, KEEP, POOL = 4, 2, max(3, experts // 4)
for ids_type, weights_type in ((torch.int64, torch.float32), (torch.int32, torch.bfloat16)):
    ids, weights = draw(50, K, experts, 1, ids_type, weights_type)
    was = ids.clone(), weights.clone()
    got = exfold_torch.prefill(ids, weights, layer, keep=KEEP)
    want = by_formula(ids.long(), weights.float(), layer, KEEP)
    close = 1e-6 if weights_type == torch.float32 else 1e-2
    note(torch.equal(got[0].long(), want[0]) and torch.allclose(got[1].double(), want[1], rtol=close, atol=close)
         and got[0].dtype == ids_type and got[1].dtype == weights_type, f"prefill by the formula, {ids_type}, {weights_type}")
    folded = exfold_torch.decode(ids, weights, layer, pool=POOL)
    note(len(folded[0].unique()) <= POOL < len(ids.unique()), f"decode runs at most {POOL} experts, of {len(ids.unique())}")
    note(torch.equal(ids, was[0]) and torch.equal(weights, was[1]), "inputs are as they were")

ids, weights = draw(50, K, experts, 2)
real = torch.arange(50) % 3 > 0
for joint in (False, True):
    padded = exfold_torch.decode(ids, weights, layer, pool=POOL, joint=joint, mask=real)
    alone = exfold_torch.decode(ids[real], weights[real], layer, pool=POOL, joint=joint)
    note(all(torch.equal(p[real], a) and torch.equal(p[~real], x[~real]) for p, a, x in zip(padded, alone, (ids, weights))),
         f"padding enters no pool and stays, joint={joint}")
    padded = exfold_torch.decode(ids, weights, layer, pool=POOL, joint=joint, count=torch.tensor([20], dtype=torch.int32))
    alone = exfold_torch.decode(ids[:20], weights[:20], layer, pool=POOL, joint=joint)
    note(all(torch.equal(p[:20], a) for p, a in zip(padded, alone)), f"a count, joint={joint}")
    members = torch.arange(POOL, dtype=torch.int32)
    given = exfold_torch.decode(ids, weights, layer, members=members, joint=joint)
    note(given[0].max() < POOL and torch.equal(given[1][(ids < POOL).all(1)], weights[(ids < POOL).all(1)]), f"members, joint={joint}")
note(torch.equal(exfold_torch.prefill(ids, weights, layer, keep=K, rank="score")[1], weights), "prefill of all routes")
strict = exfold_torch.prefill(ids, weights, layer, keep=KEEP, rank="score", max_loss=0.0)
note(torch.equal(strict[1], weights[:, :KEEP]), "a limit of 0 folds nothing that has a loss")
target_ids, target_scale = torch.arange(experts, dtype=torch.int32), torch.ones(experts)
target_ids[1], target_scale[1] = 0, 0.5
static = exfold_torch.decode_static(ids, weights, target_ids, target_scale)
note(torch.equal(static[0], torch.where(ids == 1, 0, ids)) and torch.equal(static[1], torch.where(ids == 1, weights / 2, weights)),
     "decode_static")
note(raises(lambda: exfold_torch.prefill(ids, weights, layer, keep=K + 1), "exf_fold_prefill"), "a refusal has words")
note(raises(lambda: exfold_torch.prefill(ids, weights, layer, keep=2, mask=real[:9]), "mask"), "a mask of another length is refused")
note(raises(lambda: exfold_torch.decode(ids, weights[:9], layer, pool=2), "no routes"), "weights of another shape are refused")

# What torch.library itself holds an operator to: its schema, its fake kernel, tracing with shapes that are symbols.
count, tail = torch.tensor([20], dtype=torch.int32), [1e30, False, 1e-2, True, None, None, real]
named = exfold_torch.arguments(layer)
cases = {"prefill": (ids, weights, *named, KEEP, 0, 1e30, 0, False, 1e-2, False, count, None),
         "prefill of a transpose": (ids.T.contiguous().T, weights.T.contiguous().T, *named, KEEP, 0, 1e30, 0, False, 1e-2, True, None, None),
         "decode": (ids, weights, *named, POOL, 0, *tail), "decode_static": (ids, weights, target_ids, target_scale, count, None)}
for name, case in cases.items():
    operator = getattr(torch.ops.exfold, name.split()[0]).default
    said = torch.library.opcheck(operator, case, raise_exception=False)
    note(set(said.values()) == {"SUCCESS"}, f"opcheck: {name}" + "".join(f", {k}: {v}" for k, v in said.items() if v != "SUCCESS"))


def step(ids, weights):
    """What stands around a fold in a model: arithmetic before and after it."""
    kept, w = exfold_torch.prefill(ids, weights * 2, layer, keep=KEEP)
    pooled, w = exfold_torch.decode(kept, w, layer, pool=POOL)
    return pooled + 0, w / w.sum(-1, keepdim=True)


compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)  # fullgraph: a break is an error
for rows in (50, 17, 1):
    ids, weights = draw(rows, K, experts, rows)
    note(all(torch.equal(a, b) for a, b in zip(compiled(ids, weights), step(ids, weights))), f"compiled without a break, {rows} rows")

print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
