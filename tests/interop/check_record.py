"""Holds exfold_record and exfold_vllm.validate to exfold-calibrate and exfold-validate, and takes families that the programs refuse.

usage: check_record.py BUILD WORK-DIRECTORY     last line: "N passed, N failed"
The demo model is recorded by transformers and by vLLM; tiny random models of other families go all the way, from their name to KL.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "WARNING"}
import numpy  # noqa: E402
import safetensors.numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "examples/transformers"))
import fold_experts  # noqa: E402

transformers.logging.set_verbosity_error()
build, work = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
passed = failed = 0
SHAPE = dict(vocab_size=2048, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
             max_position_embeddings=512, pad_token_id=None, bos_token_id=None, eos_token_id=None)
FAMILIES = {  # that the programs refuse: Mamba-2, Kimi delta attention, norms after RoPE, gated attention, short convolutions
    "nemotron_h": dict(moe_intermediate_size=32, n_routed_experts=16, num_experts_per_tok=4, n_shared_experts=1, num_hidden_layers=4,
                       moe_shared_expert_intermediate_size=32, layers_block_type=["mamba", "moe", "attention", "moe"], head_dim=16,
                       mamba_num_heads=4, mamba_head_dim=32, ssm_state_size=16, n_groups=2, chunk_size=32),
    "kimi_linear": dict(num_experts=16, num_experts_per_token=4, moe_intermediate_size=32, num_shared_experts=1,
                        first_k_dense_replace=1),
    "hunyuan_v1_moe": dict(num_experts=16, moe_topk=4, moe_intermediate_size=32, num_shared_expert=1, head_dim=16),
    "afmoe": dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=32, num_dense_layers=1, head_dim=16),
    "lfm2_moe": dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=32, num_dense_layers=1,
                     layer_types=["conv", "full_attention", "conv"])}


def note(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(("  ok      " if good else "  FAILED  ") + what)


def run(*command):
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    if done.returncode:
        print(f"          {command[:3]}: {done.stderr[-2000:]}")
    return done


def program(name, *arguments):
    return run(build / "bin" / name, "-q", *arguments)


def record(model, ids, output, *more):
    """The digest of what was recorded; None after a failure."""
    done = run(sys.executable, "-m", "exfold_record", model, ids, "-o", output, "-f", "--dtype", "float32", *more)
    said = [line.rpartition(" ")[2] for line in done.stderr.splitlines() if line.startswith("exfold_record: digest")]
    return said[-1] if said and not done.returncode else "vllm" in more and not done.returncode or None


def same_tables(a, b):
    """The largest difference of any number in two tables; infinite where integers or shapes differ."""
    a, b = (safetensors.numpy.load_file(x / "tables.safetensors") for x in (a, b))
    if a.keys() != b.keys():
        return numpy.inf
    worst = 0
    for name in a:
        exact = a[name].dtype.kind in "iu" or not numpy.isfinite(a[name]).all()
        if exact and name != "layer_index":
            worst = max(worst, 0 if numpy.array_equal(a[name][numpy.isfinite(a[name])].round(5), b[name][numpy.isfinite(b[name])].round(5))
                        else numpy.inf)
        elif not exact:
            worst = max(worst, float(numpy.abs(a[name] - b[name]).max(initial=0) / max(1, numpy.abs(a[name]).max(initial=0))))
    return worst


def recipe(path, model, sequences, tokens, **more):
    path.write_text(json.dumps({"schema": "exfold-recipe/1", "model": {"path": str(model)}, "pools": [8], "budgets": [2],
                                "data": {"manifest": str(root / "data-manifests/demo.yaml"), "sequences": sequences,
                                         "max_tokens": tokens, "seed": 3}, "calibrate": {"projectors": ["pair"]},
                                "runtime": {"compute": "f32"}, "coverage": {"fail_below": 0},
                                "output": {"directory": str(path.parent / "calibrated"), "targets": ["safetensors"]}, **more}))
    return path


def check_demo(model):
    held_out = {"validate": {"manifest": str(root / "data-manifests/demo.yaml"), "sequences": 6, "variants": ["P2", "D8", "P2+D8"],
                             "decode_batch": 6}}
    ids, other = work / "ids.safetensors", work / "held_out.safetensors"
    program("exfold-calibrate", recipe(work / "r.yaml", model, 12, 128))
    program("exfold-calibrate", work / "r.yaml", "--ids", ids)
    digest = record(model, ids, work / "whole")
    note(digest and record(model, ids, work / "parts", "--part-tokens", "300", "--step-tokens", "100", "--threads", "1") == digest,
         f"parts, steps and threads change no bit: {digest}")
    note(record(model, turned_round(ids, work / "turned.safetensors"), work / "turned") == digest, "nor does the order of sequences")
    check_killed(model, ids, digest)
    note(record(model, ids, work / "vllm", "--engine", "vllm", "--step-tokens", "300"), "vLLM records, in chunks of prompts")
    for engine in "whole", "vllm":
        solved = run(build / "bin/exfold-solve", work / engine / "statistics.h5", "-o", work / engine)
        note("exfold_vllm.validate" in solved.stderr, f"{engine}: exfold-solve names what validates the tables")
        program("exfold-export", work / engine / "tables.h5", "-o", work / engine, "--accept", "small-calibration")
        worst = same_tables(work / "calibrated", work / engine)
        note(worst < 1e-6, f"{engine}: tables are exfold-calibrate's within {worst:.1e}")
    facts = run(build / "bin/exfold-inspect", "--verbose", work / "vllm/tables.h5").stdout
    note("not verified" in facts and "exfold_record" in facts and "vllm" in facts, "tables say who recorded them, and what was not verified")
    program("exfold-calibrate", recipe(work / "v.yaml", model, 6, 64, **held_out), "--ids", other)
    program("exfold-validate", work / "v.yaml", "--tables", work / "calibrated/tables.h5")
    run(sys.executable, "-m", "exfold_vllm.validate", model, other, "P2", "D8", "P2+D8", "--tables", work / "calibrated/tables.safetensors",
        "-o", work / "validated", "--dtype", "float32", "--decode-batch", "6", "--limit", "kl=0.01")
    check_validation(json.loads((work / "validated/validation.json").read_text()),
                     json.loads((work / "calibrated/validation.json").read_text()))


def check_validation(ours, theirs):
    """What was measured in vLLM is what exfold-validate measures; the report reads it."""
    of_ours, of_theirs = ({row["name"]: row for row in document["variants"]} for document in (ours, theirs))
    left = {name for name in of_theirs if "random" not in name and "half" not in name}
    note(of_ours.keys() == left, f"vLLM runs the variants and baselines of exfold-validate: {sorted(left)}")
    for name in left & of_ours.keys():
        a, b = of_ours[name], of_theirs[name]
        bounds = {"kl_mean": 1e-6, "kl_half_width": 1e-6, "ppl": 1e-6, "kl_median": 1e-4, "kl_p99": 1e-4, "experts_per_batch": 1e-6,
                  "experts_per_token": 10 if "fold=" in name else 1e-6}  # quantiles are of one token; dropped routes count there
        wrong = [k for k, most in bounds.items() if a[k] is not None and abs(a[k] - b[k]) > most * max(1, abs(b[k]))]
        note(not wrong and all(a[k] == b[k] for k in ("role", "folds", "constraint", "worst_domain")),
             f"{name} in vLLM: KL {a['kl_mean']:.8f}, exfold-validate {b['kl_mean']:.8f} {wrong}")
    missing = {k for k in theirs if k not in ours} | {k for k in theirs["variants"][1] if k not in ours["variants"][1]}
    note(missing <= {"cost", "layers", "output_error"}, f"members of the document and of its rows: without {sorted(missing)}")
    note(len(ours["verdict"]) == 3 and ours["recommendation"]["pairs"][0]["prefill"], f"verdict: {ours['verdict'][:1]}")
    (work / "validated/tables.h5").symlink_to(work / "calibrated/tables.h5")
    program("exfold-inspect", "report", work / "validated/tables.h5", "-o", work / "report.html")
    page = (work / "report.html").read_text()
    note("P2+D8" in page and ours["verdict"][0].split(" nats")[0] in page, "the report shows its rows and its verdict")


def turned_round(ids, to):
    """The same text with its sequences in another order."""
    with safetensors.safe_open(ids, "numpy") as f:
        facts, arrays = f.metadata(), {name: f.get_tensor(name) for name in f.keys()}
    tokens = numpy.split(arrays["token_ids"], numpy.cumsum(arrays["sequence_lengths"])[:-1])
    arrays = {name: numpy.concatenate(tokens[::-1]) if name == "token_ids" else array[::-1].copy() for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, to, metadata=facts)
    return to


def check_refusals():
    """What vLLM runs and cannot be recorded is refused in a sentence."""
    from exfold_record.library import RecordError
    from exfold_vllm import record

    none = types.SimpleNamespace
    plain = dict(enable_expert_parallel=False, data_parallel_size=1, pipeline_parallel_size=1, use_ubatching=False)

    def config(eager=True, prefix=False, **parallel):
        return none(model_config=none(enforce_eager=eager), cache_config=none(enable_prefix_caching=prefix),
                    parallel_config=none(**{**plain, **parallel}))

    def refused(call, word):
        try:
            call()
        except RecordError as error:
            note(word in str(error), f"vLLM: {error}")
        else:
            note(False, f"vLLM: nothing is said of {word}")

    for made, word in ((config(eager=False), "--enforce-eager"), (config(prefix=True), "--no-enable-prefix-caching"),
                       (config(enable_expert_parallel=True), "--enable-expert-parallel"), (config(data_parallel_size=2), "data-parallel"),
                       (config(pipeline_parallel_size=2), "pipeline"), (config(use_ubatching=True), "--enable-dbo")):
        refused(lambda: record.Engine(made), word)
    for wrong, word in (("is_monolithic", "--moe-backend"), ("do_naive_dispatch_combine", "all"), ("on_input", "apply_router_weight_on_input")):
        engine, others = record.Engine.__new__(record.Engine), none(apply_router_weight_on_input=wrong == "on_input", quant_method=None)
        engine.runners = {1: none(is_monolithic=wrong == "is_monolithic", routed_experts=others,
                                  do_naive_dispatch_combine=wrong == "do_naive_dispatch_combine")}
        refused(lambda: engine.check(none(_build_attention_metadata=None)), word)
    engine.runners = {}
    refused(lambda: engine.check(none(_build_attention_metadata=None)), "no experts")


def check_killed(model, ids, digest):
    """A recording that is killed after its first part goes on with the others."""
    output = work / "killed"
    command = [sys.executable, "-m", "exfold_record", str(model), str(ids), "-o", str(output), "--dtype", "float32", "--part-tokens", "200"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while child.poll() is None and not list(output.glob("statistics.h5.part-*")):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    left = {x.name: x.stat().st_mtime_ns for x in output.glob("statistics.h5.part-*")}
    if (output / "statistics.h5").exists():
        note(False, "the recording ended before it was killed")
        return
    program("exfold-inspect", "verify", output / next(iter(left)))
    note(left and record(model, ids, output, "--part-tokens", "200") == digest and not list(output.glob("statistics.h5.part-*")),
         f"killed with {len(left)} parts done, it goes on to the same bits and takes its parts away")


@torch.no_grad()
def check_family(name):
    into, model = work / name, work / name / "model"
    into.mkdir()
    torch.manual_seed(5)
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **{**SHAPE, **FAMILIES[name]}),
                                                         dtype=torch.float32)
    for key, x in made.named_parameters():
        if x.ndim >= 2 and not any(part in key for part in ("conv", "A_log", "dt_bias")):
            x.normal_(0, 0.5 if "embed" in key else 1.5 / x.shape[-1] ** 0.5)
    made.save_pretrained(model)
    (model / "tokenizer.json").symlink_to(root / "examples/demo-model/tokenizer.json")
    refused = subprocess.run([build / "bin/exfold-calibrate", recipe(into / "r.yaml", model, 4, 24)], capture_output=True, text=True)
    note(refused.returncode == 3 and "docs/any-model.md" in refused.stderr, f"{name}: the programs refuse it and name the page")
    program("exfold-calibrate", into / "r.yaml", "--ids", into / "ids.safetensors")
    digest = record(model, into / "ids.safetensors", into)
    program("exfold-solve", into / "statistics.h5", "-o", into)
    program("exfold-export", into / "tables.h5", "-o", into, "--accept", "small-calibration")
    ids = torch.as_tensor(safetensors.numpy.load_file(into / "ids.safetensors")["token_ids"][:72].reshape(3, 24)).long()
    model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    original, kl = model(ids, use_cache=False).logits.double().log_softmax(-1), {}
    for variant in "P2", "D4":
        folding = fold_experts.Folding(model, str(into / "tables.safetensors"), variant, teacher_forced=True,
                                       library=str(build / f"libexfold_fold.so.{fold_experts.ABI}"))
        q = model(ids, use_cache=False).logits.double().log_softmax(-1)
        folding.remove()
        kl[variant] = float((original.exp() * (original - q)).sum(-1).mean())
    note(digest and all(0 < x < 10 for x in kl.values()), f"{name}: recorded, solved, exported, folded: KL {kl}")


directory = work / "demo"
directory.mkdir()
for file in "config.json", "model.safetensors", "tokenizer.json":
    (directory / file).symlink_to(root / "examples/demo-model" / file)
check_demo(directory)
check_refusals()
for family in FAMILIES:
    check_family(family)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
