"""Holds scripts/pt_to_safetensors.py to torch.save() and to the programs: what a plugin loads becomes tables, all else is refused.

usage: check_pt_to_safetensors.py BUILD WORK      last line: "N passed, N failed"
WORK has demo and v4, exports of the targets safetensors and exfold-qwen3 or exfold-deepseek-v4.
"""
import collections
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import warnings
import zipfile
from unittest import mock

import torch
from safetensors import safe_open
from safetensors.torch import load_file

build, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
script = pathlib.Path(__file__).resolve().parents[2] / "scripts/pt_to_safetensors.py"
sys.path.insert(0, str(script.parent))
import pt_to_safetensors  # noqa: E402

scratch = work / "pt"
scratch.mkdir(exist_ok=True)
counts = {True: 0, False: 0}


def note(good, what):
    counts[bool(good)] += 1
    print(("  ok      " if good else "  FAILED  ") + what)


def convert(path, out, *options):
    """What the script does, in this process: torch takes seconds to start."""
    said, status = io.StringIO(), 0
    with mock.patch("sys.argv", list(map(str, [script, path, out, *options]))), contextlib.redirect_stderr(said):
        try:
            pt_to_safetensors.run(pt_to_safetensors.main)
        except SystemExit as e:
            status = e.code
    return subprocess.CompletedProcess([], status, "", said.getvalue())


def inspect(path):
    return subprocess.run([build / "bin/exfold-inspect", "summary", "--json", path], capture_output=True, text=True)


def saved(name, value, **settings):
    torch.save(value, scratch / f"{name}.pt", **settings)
    return scratch / f"{name}.pt"


def taken(name, path, *options):
    """The file becomes tables of 4 experts, which are returned."""
    out = scratch / f"{name}.safetensors"
    done = convert(path, out, *options)
    read = inspect(out)
    note(done.returncode == 0 and read.returncode == 0 and json.loads(read.stdout)["n_experts"] == 4,
         f"{name} is read {done.stderr[-200:]}{read.stderr[-200:]}")
    return load_file(out) if out.exists() else {}


def refused(name, path, status, expected, *options):
    """The script ends with this status, says this, and leaves nothing."""
    out, before = scratch / "refused.safetensors", sorted(scratch.iterdir())
    done = convert(path, out, *options)
    said = done.stderr.strip().split("\n")[-1]  # torch may warn of the file before
    note(done.returncode == status and expected in said and "error: " in said and sorted(scratch.iterdir()) == before,
         f"{name} is refused: {said[-160:]}")


def zipped(name, source, change, compression=zipfile.ZIP_STORED):
    """The archive again, entry by entry, with those that change(name, data) adds."""
    path = scratch / f"{name}.pt"
    with zipfile.ZipFile(source) as a, zipfile.ZipFile(path, "w", compression) as b, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names given twice
        for entry in a.namelist():
            b.writestr(entry, a.read(entry))
            for also, data in change(entry, a.read(entry)):
                b.writestr(also, data)
    return path


# what exports write comes back, number by number: the layers of the tables, out of all of the model
for directory, plugin, losses in (("demo", "qwen3", "loss"), ("v4", "deepseek-v4", "frobenius")):
    ours, out = work / directory, scratch / f"{plugin}.safetensors"
    done = subprocess.run([sys.executable, script, ours / f"exfold-{plugin}.pt", out], capture_output=True, text=True)
    note(done.returncode == 0, f"{plugin}: is taken out {done.stderr}")
    mine, theirs = load_file(ours / "tables.safetensors"), load_file(out)
    seen = (mine["loss"] < 1e30).flatten(1).any(1)  # layers with a pair
    with safe_open(ours / "tables.safetensors", "pt") as a, safe_open(out, "pt") as b:
        numbers = torch.tensor(json.loads(a.metadata()["layer_numbers"]))[seen].tolist()
        note(str(numbers) == b.metadata()["layer_numbers"], f"{plugin}: {len(numbers)} layers of {len(seen)}")
    pairs = {"coeff": "coeff", "expert_norms": "expert_norms", "loss": losses} | ({} if losses == "loss" else {"frobenius": losses})
    note(set(theirs) == set(pairs) and all(theirs[a].equal(mine[b][seen]) for a, b in pairs.items()), f"{plugin}: the same numbers")
    read = inspect(out)
    note(read.returncode == 0 and len(json.loads(read.stdout)["layers"]) == len(numbers), f"{plugin}: is read {read.stderr}")
    done = convert(ours / f"exfold-{plugin}.pt", scratch / "again.safetensors")
    note(done.returncode == 0 and out.read_bytes() == (scratch / "again.safetensors").read_bytes(), f"{plugin}: the same bytes again")
    (scratch / "again.safetensors").unlink()
    done = inspect(ours / f"exfold-{plugin}.pt")
    note(done.returncode == 2 and "scripts/pt_to_safetensors.py" in done.stderr, f"{plugin}: exfold-inspect names the script")


class Anything:
    pass


draw = torch.Generator().manual_seed(1)
coeff, loss, norms = torch.rand(3, 4, 4, generator=draw), torch.rand(3, 4, 4, generator=draw), torch.rand(3, 4, generator=draw) + 1
loss[0, 0, 1] = loss[1] = 1e30
qwen = {"coeff": coeff, "loss": loss, "expert_norms": norms}
v4 = {"prefill_coeff": coeff, "prefill_selection_loss": loss, "prefill_confidence_loss": loss, "decode_coeff": coeff,
      "decode_loss": loss, "norms": norms}
both = torch.stack([coeff, loss])

plain = saved("plain", qwen)
t = taken("plain", plain)
note(t["coeff"].shape == (2, 4, 4) and t["coeff"][0, 0, 1] == 0 and t["loss"][0, 0, 1] == 1e30, "plain: no evidence is scalar 0, loss 1e30")
note(t["coeff"][1, 2, 1] == coeff[2, 2, 1] and t["loss"][1, 2, 1] == loss[2, 2, 1], "plain: the layer without evidence is left out")
note((t["coeff"].diagonal(dim1=1, dim2=2) == 1).all() and (t["loss"].diagonal(dim1=1, dim2=2) == 1e30).all(), "plain: the diagonal")
taken("ordered", saved("ordered", collections.OrderedDict(qwen)))
taken("parameters", saved("parameters", {key: torch.nn.Parameter(value) for key, value in qwen.items()}))
taken("shared-storage", saved("shared-storage", {**qwen, "coeff": both[0], "loss": both[1]}))
taken("v4", saved("v4", v4))
taken("settings", saved("settings", {**qwen, "version": 1, "ridge": 1e-3, "clip": None, "list": [1, (2.5, True)], "by": "caf\u00e9"}))
with safe_open(scratch / "settings.safetensors", "pt") as f:
    facts = {key[7:]: value for key, value in f.metadata().items() if key.startswith("plugin.")}
note(facts == {"version": "1", "ridge": "0.001", "clip": "null", "list": "[1, [2.5, true]]", "by": "caf\u00e9"}, f"settings: {facts}")
two = saved("v4-two", {**v4, "decode_coeff": coeff + 1})
refused("v4-two", two, 2, "--set prefill or --set decode")
for part, scalars in (("prefill", coeff), ("decode", coeff + 1)):
    t = taken(f"v4-{part}", two, "--set", part)
    note(t["coeff"][0, 1, 0] == scalars[0, 1, 0] and t["frobenius"].equal(t["loss"]), f"v4-{part}: its scalars")

refused("set", plain, 2, "leave --set out", "--set", "decode")
for name, value, expected in (
        ("turned", {**qwen, "coeff": coeff.transpose(1, 2)}, "coeff is a Tensor that is not dense and row-major"),
        ("repeated", {**qwen, "coeff": torch.ones(1).expand(1 << 20, 1 << 12, 1 << 12)}, "coeff is a Tensor that is not dense"),
        ("sparse", {**qwen, "coeff": coeff.to_sparse()}, "coeff is a Tensor that is not dense"),
        ("meta", {**qwen, "coeff": coeff.to("meta")}, "coeff is a Tensor that is not dense"),
        ("half", {**qwen, "loss": loss.half()}, "loss is torch.float16 [3, 4, 4], expected float32 [3, 4, 4]"),
        ("double", {**v4, "norms": norms.double()}, "norms is torch.float64 [3, 4], expected float32 [3, 4]"),
        ("nan", {**qwen, "loss": loss * float("nan")}, "not finite"),
        ("shape", {**qwen, "loss": loss[:, :3].contiguous()}, "loss is torch.float32 [3, 3, 4], expected float32 [3, 4, 4]"),
        ("flat", {**qwen, "coeff": coeff[0]}, "coeff is torch.float32 [4, 4]"),
        ("none", {**qwen, "coeff": coeff[:0], "loss": loss[:0], "expert_norms": norms[:0]}, "coeff is torch.float32 [0, 4, 4]"),
        ("no-tensor", {**qwen, "loss": [1, 2]}, "loss is a list"),
        ("no-evidence", {**qwen, "loss": loss * 0 + 1e30}, "no layer has a pair with evidence"),
        ("another-tensor", {**qwen, "bias": coeff}, "'bias', a Tensor, is no tensor of the plugin"),
        ("nul", {**qwen, "by": "a\0b"}, "'by', a str"),
        ("surrogate", {**qwen, "by": "a\ud800b"}, "'by', a str"),
        ("class", {**qwen, "x": Anything()}, "Unsupported global: GLOBAL __main__.Anything"),
        ("module", torch.nn.Linear(2, 2), "is not read by torch.load(weights_only=True)"),
        ("missing", {"coeff": coeff, "loss": loss}, "has no expert_norms; it holds 'coeff, loss'"),
        ("missing-v4", {key: v4[key] for key in v4 if key != "decode_loss"}, "has no decode_loss"),
        ("list", [coeff], "holds no dict"),
        ("reap", {0: {"total_tokens": torch.tensor(9), "reap": torch.rand(4)}}, "holds no dict of named values")):
    refused(name, saved(name, value), 5, expected)

pickled = lambda name, data: [(name, data)] if name.endswith("data.pkl") else []  # noqa: E731
refused("twice", zipped("twice", plain, pickled), 5, "has two entries")
refused("twice-storage", zipped("twice-storage", plain, lambda n, d: [(n, b"\0" * len(d))] if n.endswith("/data/1") else []), 5,
        "has two entries")
refused("twice-by-case", zipped("twice-by-case", plain, lambda n, d: [(n.upper(), d)] if n.endswith("data.pkl") else []), 5,
        "has two entries")
refused("compressed", zipped("compressed", plain, lambda n, d: [], zipfile.ZIP_DEFLATED), 5, "compressed entries")
old = saved("old-format", qwen, _use_new_zipfile_serialization=False)
refused("old-format", old, 5, "is not read by torch.load(weights_only=True)")
note(inspect(old).returncode == 2 and "scripts/pt_to_safetensors.py" in inspect(old).stderr, "old-format: exfold-inspect names the script")
half = scratch / "half.pt"
half.write_bytes(plain.read_bytes()[:2000])
refused("half", half, 5, "is not read by torch.load(weights_only=True)")
refused("missing-file", scratch / "nothing.pt", 4, "No such file")

# an output that is there stays, unless --force says so; a link stays in any case
out, victim = scratch / "there.safetensors", scratch / "victim"
victim.write_text("kept")
out.symlink_to(victim)
done = convert(plain, out)
note(done.returncode == 4 and victim.read_text() == "kept" and out.is_symlink(), f"there: {done.stderr.strip()}")
done = convert(plain, out, "--force")
note(done.returncode == 4 and victim.read_text() == "kept" and out.is_symlink(), f"there, --force: {done.stderr.strip()}")
out.unlink()
out.write_text("old")
done = convert(plain, out, "--force")
note(done.returncode == 0 and inspect(out).returncode == 0, "there, a file: --force replaces it")
before = plain.read_bytes()
done = convert(plain, plain, "--force")
note(done.returncode == 4 and plain.read_bytes() == before, f"itself: {done.stderr.strip()}")
done = convert(plain, scratch / "no/such.safetensors")
note(done.returncode == 0 and inspect(scratch / "no/such.safetensors").returncode == 0, "a directory that is not there is made")
note(not list(scratch.glob(".*")), "nothing is left beside the outputs")
print(f"{counts[True]} passed, {counts[False]} failed")
sys.exit(counts[False] > 0)
