"""Holds the reader of .pt files to torch.save(): what torch writes is read, or refused where it would run something.

usage: check_pt_reader.py BUILD WORK-DIRECTORY      last line: "N passed, N failed"
"""
import collections
import json
import pathlib
import subprocess
import sys

import torch

build, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
passed = failed = 0


def check(name, value, expected, part="", **settings):
    """exfold-inspect refuses the file with the expected text; None: it is read as tables of 4 experts."""
    global passed, failed
    path = work / f"{name}.pt"
    torch.save(value, path, **settings)
    done = subprocess.run([build / "bin/exfold-inspect", "summary", "--json", f"{path}{part}"], capture_output=True, text=True)
    if expected is None:
        good = done.returncode == 0 and json.loads(done.stdout)["n_experts"] == 4
    else:
        good = done.returncode in (2, 5) and expected in done.stderr
    passed, failed = passed + good, failed + (not good)
    said = done.stderr.strip()[-120:] if expected else "is read"
    print(("  ok      " if good else "  FAILED  ") + f"{name}{part}: {said}")


class Anything:
    pass


draw = torch.Generator().manual_seed(1)
coeff, loss, norms = torch.rand(2, 4, 4, generator=draw), torch.rand(2, 4, 4, generator=draw), torch.rand(2, 4, generator=draw) + 1
loss[0, 0, 1] = 1e30
qwen = {"coeff": coeff, "loss": loss, "expert_norms": norms}
v4 = {"prefill_coeff": coeff, "prefill_selection_loss": loss, "prefill_confidence_loss": loss, "decode_coeff": coeff,
      "decode_loss": loss, "norms": norms}
both = torch.stack([coeff, loss])
check("plain", qwen, None)
check("settings", {**qwen, "version": 1, "ridge": 1e-3, "clip": None, "list": [1, (2.5, True), 2 ** 40, -1]}, None)
check("ordered", collections.OrderedDict(qwen), None)
check("shared-storage", {**qwen, "coeff": both[0], "loss": both[1]}, None)
check("v4", v4, None)
check("v4-two", {**v4, "decode_coeff": coeff + 1}, "its tables of prefill and decode differ")
check("v4-two", {**v4, "decode_coeff": coeff + 1}, None, "#decode")
check("not-dense", {**qwen, "coeff": coeff.transpose(1, 2)}, "not dense and row-major")
check("half", {**qwen, "loss": loss.half()}, '"loss" is F16')
check("nan", {**qwen, "loss": loss * float("nan")}, "/loss")
check("shape", {**qwen, "loss": loss[:, :3].contiguous()}, '"loss" is F32 [2, 3, 4]')
check("class", {**qwen, "x": Anything()}, "it names __main__.Anything; only tensors and plain values are read, nothing is run")
check("module", torch.nn.Linear(2, 2), "nothing is run")
check("nothing", {"weights": coeff}, "holds weights; expected a plugin's coeff, loss and expert_norms")
check("reap", {0: {"total_tokens": torch.tensor(9), "expert_frequency": torch.zeros(4, dtype=torch.long), "reap": torch.rand(4)}},
      "an observer's state of REAP")
check("old-format", qwen, "no readable HDF5 file", _use_new_zipfile_serialization=False)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
