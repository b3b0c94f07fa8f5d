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
library = str(build / f"libexfold_fold.so.{exfold_torch.ABI}")
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


def fold(variant):
    return exfold_torch.Fold(path, variant, library)


stored = load_file(path)
number, index = list(fold("P2").layers.items())[-1]
layer = {ours: stored[theirs][index] for ours, theirs in (("coeff", "coeff"), ("loss", "loss"), ("norms", "expert_norms"))}
experts = layer["coeff"].shape[0]
K, KEEP, POOL = 4, 2, max(3, experts // 4)
note(raises(lambda: exfold_torch.Fold(__file__, "P2", library), __file__), "a file that is none is named")
note(raises(lambda: fold("P2+P3"), "two prefill kinds"), "two prefills are refused")
prefill, joined, pool = fold(f"P{KEEP}"), fold(f"P{KEEP}:projector=joint+D{POOL}:projector=joint"), fold(f"D{POOL}")
by_router = fold(f"D{POOL}:targets=router")
for ids_type, weights_type in ((torch.int64, torch.float32), (torch.int32, torch.bfloat16)):
    ids, weights = draw(50, K, experts, 1, ids_type, weights_type)
    was = ids.clone(), weights.clone()
    got = prefill.prefill(number, ids, weights)
    want = by_formula(ids.long(), weights.float(), layer, KEEP)
    close = 1e-6 if weights_type == torch.float32 else 1e-2
    note(torch.equal(got[0].long(), want[0]) and torch.allclose(got[1].double(), want[1], rtol=close, atol=close)
         and got[0].dtype == ids_type and got[1].dtype == weights_type, f"prefill by the formula, {ids_type}, {weights_type}")
    folded = pool.decode(number, ids, weights)
    note(len(folded[0].unique()) <= POOL < len(ids.unique()), f"decode runs at most {POOL} experts, of {len(ids.unique())}")
    note(torch.equal(ids, was[0]) and torch.equal(weights, was[1]), "inputs are as they were")

ids, weights = draw(50, K, experts, 2)
scores = torch.rand(50, experts, generator=torch.Generator().manual_seed(3))
real = torch.arange(50) % 3 > 0
for of, what, extra in ((pool, "pairs", {}), (joined, "joint", {}), (by_router, "stand-ins", {"scores": scores})):
    padded = of.decode(number, ids, weights, mask=real, **extra)
    alone = of.decode(number, ids[real], weights[real], **{name: x[real] for name, x in extra.items()})
    note(all(torch.equal(p[real], a) and torch.equal(p[~real], x[~real]) for p, a, x in zip(padded, alone, (ids, weights))),
         f"padding enters no pool and stays: {what}")
    note(len(padded[0][real].unique()) <= POOL and not torch.equal(padded[0], ids), f"decode folds: {what}")
for of in (prefill, joined):
    whole, narrow = of.prefill(number, ids, weights, mask=real, whole=True), of.prefill(number, ids, weights)
    note(all(torch.equal(w[real][:, :KEEP], n[real]) and torch.equal(w[~real], x[~real])
             for w, n, x in zip(whole, narrow, (ids, weights))) and not whole[1][real][:, KEEP:].any()
         and torch.equal(whole[0][real][:, KEEP:], whole[0][real][:, :1].expand(-1, K - KEEP)),
         "a whole prefill: rows of the mask folded, the others as they were")
note(torch.equal(fold(f"P{K}:rank=score").prefill(number, ids, weights)[1], weights), "prefill of all routes")
strict = fold(f"P{KEEP}:rank=score,max_loss=0").prefill(number, ids, weights)
note(torch.equal(strict[1], weights[:, :KEEP]), "a limit of 0 folds nothing that has a loss")
note(raises(lambda: fold(f"P{K + 1}"), "the model runs 4"), "a refusal has words")
note(raises(lambda: prefill.prefill(number, ids, weights, mask=real[:9]), "mask"), "a mask of another length is refused")
note(raises(lambda: pool.decode(number, ids, weights[:9]), "no routes"), "weights of another shape are refused")
note(raises(lambda: by_router.decode(number, ids, weights), "scores"), "scores that are missing are named")
note(raises(lambda: pool.prefill(number, ids, weights), "no P"), "a variant without P has no prefill")

# What torch.library itself holds an operator to: its schema, its fake kernel, tracing with shapes that are symbols.
transposed = ids.T.contiguous().T, weights.T.contiguous().T
cases = {"prefill": (ids, weights, None, None, prefill.place, index, 1.0, False),
         "prefill, whole": (ids, weights, None, real, prefill.place, index, 1.0, True),
         "prefill of a transpose": (*transposed, None, None, joined.place, index, 1.0, False),
         "decode": (ids, weights, None, None, real, pool.place, index),
         "decode, stand-ins": (ids, weights, scores, None, None, by_router.place, index)}
for name, case in cases.items():
    operator = getattr(torch.ops.exfold, name.split()[0].strip(",")).default
    said = torch.library.opcheck(operator, case, raise_exception=False)
    note(set(said.values()) == {"SUCCESS"}, f"opcheck: {name}" + "".join(f", {k}: {v}" for k, v in said.items() if v != "SUCCESS"))


def step(ids, weights):
    """What stands around a fold in a model: arithmetic before and after it."""
    kept, w = prefill.prefill(number, ids, weights * 2)
    pooled, w = pool.decode(number, kept, w)
    return pooled + 0, w / w.sum(-1, keepdim=True)


compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)  # fullgraph: a break is an error
for rows in (50, 17, 1):
    ids, weights = draw(rows, K, experts, rows)
    note(all(torch.equal(a, b) for a, b in zip(compiled(ids, weights), step(ids, weights))), f"compiled without a break, {rows} rows")

print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
