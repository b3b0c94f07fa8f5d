"""Holds the files of an export to what their readers ask, with the readers' own libraries.

usage: check_files.py DIRECTORY FAMILY     last line: "N passed, N failed"
The reference is tables.h5 in the directory, read with h5py; every other file must say the same.
"""
import csv
import hashlib
import json
import math
import os
import pathlib
import pickletools
import sys
import zipfile

import h5py
import numpy
import old_torch  # noqa: F401
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

NEVER = numpy.float32(1e30)
NOT_EXPORTED = {"document_sketches", "half_loss", "half_scalar", "sequence_digests"}  # of the calibration's text, which a validation reads
checks = []


def check(f):
    checks.append(f)
    return f


def same(a, b):
    a, b = numpy.asarray(a), numpy.asarray(b)
    assert a.shape == b.shape, f"{a.shape} and {b.shape}"
    assert (a == b).all(), f"{(a != b).sum()} of {a.size} differ"


def hdf5_tables(path):
    tables = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, x: tables.__setitem__(name, x[()]) if isinstance(x, h5py.Dataset) else None)
        facts = {key: value.decode() for key, value in f["provenance"].attrs.items()}
        return tables, facts, {key: f.attrs[key] for key in f.attrs}


def of_model(table, filler):
    """[layers of the tables, ...] to [layers of the model, ...]."""
    out = numpy.broadcast_to(filler, (int(facts["model.layers"]),) + filler.shape).copy()
    out[tables["layer_numbers"]] = table
    return out


@check
def hdf5_is_what_it_says():
    assert attributes["exfold_kind"].decode() == "tables" and attributes["exfold_version"] >= 1, attributes
    assert facts["model.family"] == family
    shape = (len(tables["layer_numbers"]), experts, experts)
    for name in ("coeff", "loss"):
        assert tables[name].dtype == numpy.float32 and tables[name].shape == shape, name
        assert numpy.isfinite(tables[name]).all(), name
    assert tables["count"].dtype == numpy.uint64 and tables["count"].shape == shape
    diagonal = numpy.eye(experts, dtype=bool)
    assert (tables["coeff"][:, diagonal] == 1).all() and (tables["loss"][:, diagonal] == NEVER).all()
    assert (tables["loss"] >= 0).all() and (tables["expert_norms"] > 0).all()
    unobserved = (tables["count"] == 0) & ~diagonal
    assert (tables["loss"][unobserved] == NEVER).all() and (tables["coeff"][unobserved] == 0).all()


@check
def safetensors_says_the_same():
    names = {name.replace("/", "."): name for name in tables if name not in NOT_EXPORTED | {"layer_numbers"}}
    loaded = safetensors.torch.load_file("tables.safetensors")
    assert sorted(loaded) == sorted(names), sorted(loaded)
    for name, tensor in loaded.items():
        table = tables[names[name]]
        same(tensor.numpy(), table.astype(numpy.int64) if table.dtype.kind == "u" else table)
    with safetensors.safe_open("tables.safetensors", framework="np") as f:
        meta = f.metadata()
    content = hashlib.sha256()
    said = meta.pop("content_digest")
    for key, value in sorted(meta.items()):
        content.update(f"{key}\0{value}\0".encode())
    for name, tensor in sorted(loaded.items()):
        content.update(name.encode() + b"\0" + tensor.numpy().tobytes())
    assert content.hexdigest() == said
    assert meta.pop("exfold_format") == "tables/1" and json.loads(meta.pop("layer_numbers")) == tables["layer_numbers"].tolist()
    meta.pop("loss_kind")
    assert family in meta.pop("model.types").split()
    provenance = json.loads(pathlib.Path("npy/provenance.json").read_text())
    assert len(meta["tables_digest"]) == 64 and meta.pop("tables_digest") == provenance["tables_digest"], provenance
    assert meta == facts, meta


@check
def npy_says_the_same():
    names = {name.replace("/", ".") + ".npy": name for name in tables if name not in NOT_EXPORTED}
    assert sorted(os.listdir("npy")) == sorted(list(names) + ["provenance.json", "exfold-files.sha256"])
    for file, name in names.items():
        loaded = numpy.load(f"npy/{file}", mmap_mode="r")
        assert loaded.flags.c_contiguous and loaded.dtype == tables[name].dtype, file
        same(loaded, tables[name])
    provenance = json.loads(pathlib.Path("npy/provenance.json").read_text())
    assert {key: provenance.get(key) for key in facts} == facts


@check
def csv_says_the_same():
    layer = {number: i for i, number in enumerate(tables["layer_numbers"].tolist())}
    rows = 0
    with open("csv/pairs.csv", newline="") as f:
        for row in csv.DictReader(f, strict=True):
            at = layer[int(row["layer"])], int(row["source"]), int(row["target"])
            assert at[1] != at[2] and int(row["count"]) == tables["count"][at], row
            if tables["loss"][at] == NEVER:
                assert row["S"] == row["loss"] == row["std_error"] == row["cosine"] == "", row
            else:
                for column in ("S", "loss", "std_error", "cosine", "similarity"):
                    name = "coeff" if column == "S" else column
                    known = name in tables and tables[name][at] != NEVER
                    assert numpy.float32(row[column]) == tables[name][at] if known else row[column] == "", (column, row)
            rows += 1
    assert rows == len(layer) * experts * (experts - 1), rows
    with open("csv/experts.csv", newline="") as f:
        for row in csv.DictReader(f, strict=True):
            at = layer[int(row["layer"])], int(row["expert"])
            assert int(row["count"]) == tables["expert_count"][at]
            assert (row["norm"] == "") == (row["count"] == "0")
            assert row["norm"] == "" or numpy.float32(row["norm"]) == tables["expert_norms"][at]


def load_pt(path):
    """torch.load with weights_only, and what the zip is made of."""
    with zipfile.ZipFile(path) as z, open(path, "rb") as f:
        assert z.testzip() is None
        for record in z.infolist():
            assert record.compress_type == zipfile.ZIP_STORED, record.filename
            f.seek(record.header_offset + 26)
            name, extra = (int.from_bytes(f.read(2), "little") for _ in range(2))
            assert (record.header_offset + 30 + name + extra) % 64 == 0, f"{record.filename} is not aligned"
        assert z.read("archive/byteorder") == b"little" and z.read("archive/version") == b"3\n"
        assert json.loads(z.read("archive/extra/provenance.json"))["model.family"] == family
        called = {argument for op, argument, _ in pickletools.genops(z.read("archive/data.pkl")) if op.name == "GLOBAL"}
        assert called == {"torch._utils _rebuild_tensor_v2", "torch FloatStorage", "collections OrderedDict"}, called
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for key, tensor in loaded.items():
        if isinstance(tensor, torch.Tensor):
            assert tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.requires_grad, key
            assert torch.isfinite(tensor).all(), key
            tensor.add_(0)  # what a loader may write into
    return loaded


def check_matrices(coeff, loss, name):
    shape = (int(facts["model.layers"]), experts, experts)
    assert tuple(coeff.shape) == tuple(loss.shape) == shape, coeff.shape
    assert (loss >= 0).all()
    assert (coeff.diagonal(dim1=-2, dim2=-1) == 1).all() and (loss.diagonal(dim1=-2, dim2=-1) >= 1e30).all()
    unavailable = (loss >= 1e30) & ~torch.eye(experts, dtype=torch.bool)
    assert (coeff[unavailable] == 0).all()
    same(coeff.numpy(), of_model(tables["coeff"], numpy.eye(experts, dtype=numpy.float32)))
    same(loss.numpy(), of_model(tables[name], numpy.full((experts, experts), NEVER)))


def check_norms(norms):
    assert (norms > 0).all()
    same(norms.numpy(), of_model(tables["expert_norms"], numpy.ones(experts, dtype=numpy.float32)))


def qwen3_plugin_loads():
    loaded = load_pt("exfold-qwen3.pt")
    assert list(loaded) == ["format_version", "coeff", "loss", "expert_norms", "loss_kind", "weighting", "ridge", "clip_min",
                            "clip_max", "num_samples", "max_length"], list(loaded)
    check_matrices(loaded["coeff"], loaded["loss"], "loss")
    check_norms(loaded["expert_norms"])
    assert loaded["format_version"] == 1 and loaded["loss_kind"] == "relative_scalar_reconstruction_error"
    assert loaded["weighting"] == "source_output_norm" and loaded["num_samples"] == int(facts["data.sequences"])
    assert loaded["ridge"] == float(facts["solve.ridge"]) and loaded["max_length"] == int(facts["data.max_tokens"])
    assert [loaded["clip_min"], loaded["clip_max"]] == [float(x) for x in facts["solve.clip"].split(",")]


def deepseek_v4_plugins_load():
    loaded = load_pt("exfold-deepseek-v4.pt")
    assert list(loaded) == ["prefill_coeff", "prefill_selection_loss", "prefill_confidence_loss", "decode_coeff", "decode_loss",
                            "norms"], list(loaded)
    assert tuple(loaded["decode_loss"].shape) == (43, 256, 256) and tuple(loaded["norms"].shape) == (43, 256)
    check_matrices(loaded["prefill_coeff"], loaded["prefill_selection_loss"], "frobenius")
    check_matrices(loaded["decode_coeff"], loaded["decode_loss"], "frobenius")
    check_norms(loaded["norms"])
    confidence = loaded["prefill_confidence_loss"].clone()
    assert (confidence.diagonal(dim1=-2, dim2=-1) == 0).all()
    confidence.diagonal(dim1=-2, dim2=-1).fill_(1e30)
    assert torch.equal(confidence, loaded["prefill_selection_loss"])
    storages = {tensor.data_ptr() for tensor in loaded.values()}
    assert len(storages) == len(loaded), "two tensors share their storage"
    # the validator's rule: in no layer does the median expert lose 0.9 with its best target
    best = loaded["prefill_selection_loss"].amin(dim=-1)
    medians = [float(row[row < 1e20].median()) for row in best if (row < 1e20).any()]
    assert medians and max(medians) < 0.9, medians
    assert math.isfinite(min(medians))


@check
def the_plugins_file_loads():
    qwen3_plugin_loads() if family == "qwen3_moe" else deepseek_v4_plugins_load()


@check
def the_card_quotes_what_is_run():
    card = pathlib.Path("README.md").read_text()
    front = card.split("---\n")[1]
    assert "library_name: exfold" in front and "base_model: 'org/base'" in front, front
    snippets = [path.read_text() for path in here.glob("load_*.py")]
    blocks = [block.split("```")[0] for block in card.split("```python\n")[1:]]
    assert blocks and all(block in snippets for block in blocks), blocks


here = pathlib.Path(__file__).resolve().parent
directory, family = sys.argv[1:]
os.chdir(directory)
tables, facts, attributes = hdf5_tables("tables.h5")
experts = int(attributes["n_experts"])
failed = 0
for each in checks:
    try:
        each()
        print(f"  ok      {family}: {each.__name__}")
    except Exception as error:  # every check is run, whatever the one before did
        failed += 1
        print(f"  FAILED  {family}: {each.__name__}: {type(error).__name__}: {error}")
print(f"{len(checks) - failed} passed, {failed} failed")
sys.exit(failed > 0)
