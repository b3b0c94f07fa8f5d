"""Holds python/exfold_vllm to exfold-validate: what vLLM serves folded has the perplexity and the KL that the validation says.

usage: check_vllm.py BUILD WORK-DIRECTORY [MODEL ...]      last line: "N passed, N failed"
The plugin must be installed where Python finds it (tests/interop/vllm.sh does that).  For each model tables are calibrated,
variants validated, and the same tokens run through vLLM on the CPU in float32, each model in a process of its own.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest.mock

import safetensors.torch
import torch

root = pathlib.Path(__file__).resolve().parents[2]
here = pathlib.Path(__file__).resolve()
VARIANTS = ["P2", "P2:projector=joint", "D8", "D8:rank=energy,projector=joint", "D8:pool=static", "P2:budget=token",
            "P2:budget=topp", "D8:rank=energy,targets=router", "P2:projector=joint+D8", "P3:budget=token+D8:targets=router",
            "P3:budget=token,norms=predicted", "D8:rank=energy,projector=joint,norms=predicted"]
OF_FAMILIES = ["P{low}", "P{low}:budget=token", "D{half}", "P{low}:projector=joint+D{half}:rank=energy,targets=router"]
TRAINED = ["qwen3_moe", "glm4_moe"]  # by this test; README's table names what stands here and below
FAMILIES = ["mixtral", "olmoe", "qwen2_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"]
passed = failed = decided = 0
# Where two experts are as close as float32 rounds, the processor decides, and a token that runs another one moves perplexity and KL by
# up to some 1e-4.  Two such rows of a model are no fault; what is wrong is so in many, and by more.
DECISION, DECISIONS = 3e-4, 2


def note(good, what):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(("  ok      " if good else "  FAILED  ") + what, flush=True)


def note_scores(ppl, kl, said, what):
    global decided
    equal = abs(ppl - said["ppl"]) <= 1e-5 * max(1, said["ppl"] / 10) and abs(kl - said["kl_mean"]) <= 1e-6
    near = abs(ppl - said["ppl"]) <= DECISION * said["ppl"] and abs(kl - said["kl_mean"]) <= DECISION
    decided += not equal
    note(equal or (near and decided <= DECISIONS), what + ("" if equal else ", a decision apart"))


# ---- models --------------------------------------------------------------------------------------
def demo_tokens(name):
    return safetensors.torch.load_file(root / "examples/demo-model/token_ids.safetensors")[name].long()


def make_trained(name, path):
    """A small model, trained for half a minute on the demo's texts, so that its router means something: a GLM with a routed scaling
    factor, or a Qwen3 whose weights do not sum to 1 and whose second layer has no experts."""
    import transformers

    torch.manual_seed(1)
    shape = {"vocab_size": 2048, "hidden_size": 96, "intermediate_size": 192, "moe_intermediate_size": 64, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts_per_tok": 4, "initializer_range": 0.06,
             "max_position_embeddings": 512, "tie_word_embeddings": False, "pad_token_id": None, "eos_token_id": None}
    config = transformers.Glm4MoeConfig(
        **shape, partial_rotary_factor=0.5, n_routed_experts=16, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.5) if name == "glm4_moe" else transformers.Qwen3MoeConfig(
        **shape, num_experts=16, mlp_only_layers=[1], norm_topk_prob=False)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    texts = torch.cat([demo_tokens(f"calib.{kind}") for kind in ("prose", "c", "python")]).reshape(-1, 64)
    step = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(100):
        batch = texts[torch.randperm(len(texts))[:16]]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        step.step()
        step.zero_grad()
    print(f"          {name}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, loss {loss.item():.2f}")
    model.save_pretrained(path)


def make_random(name, path):
    """A family's model of random weights, of the golden's shape but for heads as large as vLLM's CPU kernels want."""
    import transformers

    torch.manual_seed(3)
    config = transformers.AutoConfig.from_pretrained(root / "tests/golden" / name)
    config.max_position_embeddings = 256
    config.hidden_size, config.moe_intermediate_size = 128, 64
    if name in ("mixtral", "olmoe", "gpt_oss"):
        config.intermediate_size = 64
    config.head_dim = 32
    if name.startswith("deepseek"):  # latent attention: 512 + 64 alone
        config.kv_lora_rank, config.qk_rope_head_dim = 512, 64
        config.head_dim = config.qk_rope_head_dim
    for key in ("pad_token_id", "eos_token_id", "bos_token_id"):
        if hasattr(config, key):
            setattr(config, key, None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, x in model.named_parameters():
            if x.ndim >= 2:
                x.normal_(0, 0.5 if "embed" in key else 1.5 / x.shape[-1] ** 0.5)
    model.save_pretrained(path)


def make_model(name, path):
    path.mkdir()
    if name == "demo":  # without the token ids that lie beside it: vLLM takes every safetensors file for weights
        for file in ("config.json", "model.safetensors"):
            (path / file).symlink_to(root / "examples/demo-model" / file)
    elif name in TRAINED:
        make_trained(name, path)
    else:
        make_random(name, path)


def texts_of(name):
    """Tokens to calibrate on and to score; the latter are one decode batch."""
    if name in ("demo", *TRAINED):
        # of the demo's row 11 a router has two experts 2.4e-7 apart after P2:projector=joint, and float32 decides
        return demo_tokens("calib.prose"), demo_tokens("eval.prose")[:10, :64]
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 500, (24, 96), generator=draw), torch.randint(0, 500, (8, 32), generator=draw)


def run(build, program, *arguments):
    done = subprocess.run([build / "bin" / program, "-q", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"{program}: {done.stderr}"


def manifest(into, name, tokens):
    file = into / f"{name}.safetensors"
    safetensors.torch.save_file({"t": tokens.int().contiguous()}, file)
    source = {"path": file.name, "format": "tokens", "tensor": "t", "domain": "all", "sequences": len(tokens),
              "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    (into / f"{name}.yaml").write_text(json.dumps({"schema": "exfold-manifest/1", "sources": [source]}))
    return str(into / f"{name}.yaml")


def prepare(build, name, into):
    """A model with its tables and what exfold-validate says of its variants."""
    into.mkdir()
    make_model(name, into / "model")
    calibration, held_out = texts_of(name)
    config = json.loads((into / "model/config.json").read_text())
    half = (config.get("num_experts") or config.get("num_local_experts") or config["n_routed_experts"]) // 2
    low = 1 if config["num_experts_per_tok"] == 2 else 2
    variants = VARIANTS if name in ("demo", *TRAINED) else [x.format(half=half, low=low) for x in OF_FAMILIES]
    recipe = {"schema": "exfold-recipe/1", "model": {"path": str(into / "model")},
              "output": {"directory": str(into), "targets": ["safetensors"]},
              "data": {"manifest": manifest(into, "calibration", calibration), "sequences": len(calibration),
                       "max_tokens": calibration.shape[1], "seed": 1}, "pools": [half], "budgets": [low, low + 1],
              "budget_rules": ["stream", "output", "top_p"], "calibrate": {"norm_head": 16}, "coverage": {"fail_below": 0},
              "validate": {"manifest": manifest(into, "held_out", held_out), "sequences": len(held_out),
                           "decode_batch": len(held_out), "baselines": False, "variants": variants}}
    (into / "recipe.yaml").write_text(json.dumps(recipe))
    run(build, "exfold-calibrate", into / "recipe.yaml")
    run(build, "exfold-validate", into / "recipe.yaml")
    if name in FAMILIES:
        into.joinpath("transformers.json").write_text(json.dumps(in_transformers(build, into, held_out, variants)))


@torch.no_grad()
def in_transformers(build, into, tokens, variants):
    """Perplexity and KL of each variant in transformers' own model, folded by examples/transformers, as a validation lists them."""
    sys.path.insert(0, str(root / "examples/transformers"))
    import fold_experts
    import transformers

    from served import scores

    model = transformers.AutoModelForCausalLM.from_pretrained(into / "model", dtype=torch.float32).eval()
    library, found, original = str(build / f"libexfold_fold.so.{fold_experts.ABI}"), [], None
    for variant in ["", *variants]:
        folding = variant and fold_experts.Folding(model, str(into / "tables.safetensors"), variant, teacher_forced=True,
                                                   library=library)
        ours = model(tokens).logits.double().log_softmax(-1)
        original = ours if original is None else original
        ppl, kl = scores(ours, original, tokens)
        found.append({"name": variant or "original", "ppl": ppl, "kl_mean": kl})
        if folding:
            folding.remove()
    return found


# ---- checks on an engine, in a process of its own ----------------------------------------------------
@contextlib.contextmanager
def every_row_both(phases):
    """Each row is prefill and decode, as in a validation: P and D apply to every position, and a slot that P left empty, which names
    the row's first expert for the sake of kernels, is no route to D."""
    from exfold_vllm import fold
    from exfold_vllm.variant import Tables

    write, prefill, of_layer = phases.write, Tables.prefill, fold.Layer.fold

    def both(lengths, prefilling):
        write(lengths, prefilling)
        phases.masks[:, :int(lengths.sum())], phases.present = 1, [True, True]

    def emptied(*arguments, **named):
        ids, weights = prefill(*arguments, **named)
        empty = (weights == 0) & (ids == ids[:, :1]) & (torch.arange(ids.shape[1], device=ids.device) > 0)
        return ids.masked_fill(empty, -1), weights

    def filled(*arguments, **named):
        weights, ids = of_layer(*arguments, **named)
        return weights, torch.where(ids < 0, ids[:, :1], ids)

    patch = unittest.mock.patch.object
    with patch(phases, "write", both), patch(Tables, "prefill", emptied), patch(fold.Layer, "fold", filled):
        yield


def use(variant):
    """Another variant for the engine that runs."""
    from exfold_vllm import fold
    from exfold_vllm.variant import Part, Tables

    parts = [None, None]
    for part in map(Part, filter(None, variant.split("+"))):
        parts[part.decodes] = part
    tables = Tables(os.environ["EXFOLD_TABLES"], [part for part in parts if part])
    for layer in fold.LAYERS:
        layer.parts, layer.tables = parts, tables


def check_served(name, served, into, engine):
    from served import scores

    held_out = texts_of(name)[1]
    rows, whole, of = {}, {}, into / "transformers.json"
    by_transformers = {said["name"]: said for said in json.loads(of.read_text())} if of.exists() else {}
    for said in json.loads((into / "validation.json").read_text())["variants"]:
        variant = "" if said["name"] == "original" else said["name"]
        use(variant)
        with every_row_both(engine.phases):
            rows[variant] = served.run(held_out, 1)
        ppl, kl = scores(rows[variant], rows[""], held_out)
        what = f"{name} {said['name']}: perplexity {ppl:.6f}, exfold-validate {said['ppl']:.6f}; KL {kl:.8f}, {said['kl_mean']:.8f}"
        note_scores(ppl, kl, said, what)
        if said["name"] in by_transformers:
            theirs = by_transformers[said["name"]]
            note_scores(ppl, kl, theirs, f"{name} {said['name']}, in transformers: perplexity {theirs['ppl']:.6f}, KL {theirs['kl_mean']:.8f}")
        if "D" not in variant:  # and as prompts, which are prefill by the scheduler's word
            whole[variant] = served.run(held_out, held_out.shape[1])
            ppl, kl = scores(whole[variant], whole[""], held_out)
            note_scores(ppl, kl, said, f"{name} {said['name']}, as prompts: perplexity {ppl:.6f}, KL {kl:.8f}")


def check_mixed(name, served, engine):
    """Steps of prefill and decode rows: each kind gets what it would get alone, bit for bit, and a last chunk of one token is
    prefill."""
    from exfold_vllm import fold

    use("P2:projector=joint+D8:rank=energy,targets=router")
    seen, of_layer = [], fold.Layer.fold

    def watched(self, weights, ids, logits, hidden, whole=True):
        before = weights.clone(), ids.clone(), logits.clone()
        after = of_layer(self, weights, ids, logits, hidden, whole)
        seen.append((self, before, after, served.runner.query_start_loc.np[:served.runner.input_batch.num_reqs + 1].copy(),
                     served.requests(), engine.phases.masks.clone()))
        return after

    served.tokens = texts_of(name)[1]
    served.seen.clear()
    with unittest.mock.patch.object(fold.Layer, "fold", watched):
        for number in range(8):
            served.add(number, 4, 30)
        served.step(), served.step()
        served.add(8, 17, 4), served.add(9, 17, 4)  # chunks of 16: the second is of one token
        while served.step():
            pass
    served.tokens = None
    mixed = same = last = 0
    for layer, (weights, ids, logits), after, starts, numbers, masks in seen:
        lengths = [b - a for a, b in zip(starts, starts[1:])]
        new = [i for i, number in enumerate(numbers) if number >= 8 and masks[0, starts[i]]]
        old = [i for i in range(len(numbers)) if masks[1, starts[i]]]
        if not new or not old:
            continue
        mixed, last = mixed + 1, last + ([lengths[i] for i in new] == [1, 1])
        rows = [torch.cat([torch.arange(starts[i], starts[i + 1]) for i in kind]) for kind in (new, old)]
        kept = layer.tables.prefill(layer.parts[0], layer.index, ids[rows[0]].contiguous(), weights[rows[0]].contiguous())
        folded = ids[rows[1]].contiguous(), weights[rows[1]].contiguous()
        layer.tables.decode(layer.parts[1], layer.index, *folded, layer.scores(logits[rows[1]]))
        same += (torch.equal(after[1][rows[0]][:, :2], kept[0]) and torch.equal(after[0][rows[0]][:, :2], kept[1]) and
                 not after[0][rows[0]][:, 2:].any() and torch.equal(after[1][rows[1]], folded[0]) and
                 torch.equal(after[0][rows[1]], folded[1]) and not torch.equal(folded[0], ids[rows[1]]))
    note(mixed > 0 and same == mixed, f"{name}: {same} of {mixed} folds of mixed steps give each row what it gets alone")
    note(last > 0, f"{name}: {last} folds of last chunks of one token, which are prefill")


def check_refusals_of_engine(served, engine):
    """What an engine refuses once its kernels are chosen, and of a layer: on the real objects, one fact changed at a time."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    from exfold_vllm import hook

    number, runner = next(iter(engine.runners.items()))
    config, patch = engine.config, unittest.mock.patch.object
    parallel, text = type(config.parallel_config), config.model_config.hf_text_config
    add, check = lambda: hook.Engine(config).add(runner), lambda: engine.check(served.runner)
    no_cuda = unittest.mock.Mock(spec=["_name"], _name="libexfold_fold.so.2")
    on_gpu = unittest.mock.Mock(masks=unittest.mock.Mock(device=torch.device("cuda")))
    cases = [
        ("monolithic", check, patch(MoERunner, "is_monolithic", True)),
        ("data-parallel", check, patch(MoERunner, "do_naive_dispatch_combine", True)),
        ("no model runner", lambda: engine.check(object())),
        ("have no router", check, patch(engine, "runners", {number: runner})),
        ("have no router", check, patch(engine, "runners", {})),
        ("built without CUDA", check, patch(engine, "phases", on_gpu), patch(engine.tables, "library", no_cuda)),
        ("dual batch overlap", add, patch(parallel, "use_ubatching", True)),
        ("sequence parallelism", add, patch(parallel, "use_sequence_parallel_moe", True)),
        ("prefill context", add, patch(config.parallel_config, "prefill_context_parallel_size", 2)),
        ("16 experts, the model has 24", add, patch(runner.moe_config, "num_logical_experts", 24)),
        ("of which a token takes 1", add, patch(runner.router, "top_k", 1)),
        ("AITER", add, patch(runner.router, "num_fused_shared_experts", 1, create=True)),
        ("apply_router_weight_on_input", add, patch(runner.routed_experts, "apply_router_weight_on_input", True)),
        ("--max-num-batched-tokens", add, patch(config.scheduler_config, "max_num_batched_tokens", 65536)),
        ("function of the model's own", add, patch(runner.router, "custom_routing_function", print, create=True)),
        ("of a qwen3_moe, the model is a olmoe", add, patch(text, "model_type", "olmoe"),
         patch(config.model_config.hf_config, "model_type", "olmoe")),
        ("has no layer 9", add, patch(runner, "layer_name", "model.layers.9.mlp.experts"), patch(text, "num_hidden_layers", 20))]
    for expected, act, *changes in cases:
        with contextlib.ExitStack() as stack:
            for change in changes:
                stack.enter_context(change)
            try:
                act()
                said = "nothing"
            except ValueError as error:
                said = str(error)
        note(expected in said, "refused: " + said.replace(str(engine.tables.path), "tables.safetensors"))


def check_monolithic():
    """vLLM's kernels that choose experts by themselves say so through a runner, and the plugin refuses them.  A router of the type
    Custom would be kept from all of them but Zentorch's, which then choose otherwise than it."""
    import importlib
    import itertools
    import pkgutil
    import types

    from vllm.model_executor.layers.fused_moe import experts, modular_kernel
    from vllm.model_executor.layers.fused_moe.config import RoutingMethodType
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.quantization.utils import quant_utils

    for module in pkgutil.iter_modules(experts.__path__):
        with contextlib.suppress(ImportError):  # of a library that this machine lacks
            importlib.import_module(f"{experts.__name__}.{module.name}")
    keys = [None, *(x for x in vars(quant_utils).values() if isinstance(x, quant_utils.QuantKey))]

    def takes(kernels, method):
        found = False
        for pair in itertools.product(keys, keys):
            with contextlib.suppress(ValueError):  # weights that these kernels do not have
                found |= kernels._supports_routing_method(method, *pair)
        return found

    kinds = modular_kernel.FusedMoEExpertsMonolithic.__subclasses__()
    for kernels in kinds:
        kinds += kernels.__subclasses__()
        taken = [method.name for method in RoutingMethodType if takes(kernels, method)]
        method = types.SimpleNamespace(moe_kernel=None, experts_cls=kernels)
        method.is_monolithic = FusedMoEMethodBase.is_monolithic.fget(method)
        runner = types.SimpleNamespace(routed_experts=types.SimpleNamespace(quant_method=method))
        note(MoERunner.is_monolithic.fget(runner) and ("Custom" in taken) == (kernels.__name__ == "ZentorchExpertsInt4"),
             f"{kernels.__name__} is monolithic, for {', '.join(taken)}")
    note(len(kinds) >= 5, f"{len(kinds)} kinds of monolithic kernels")


def check_refusals_of_settings():
    """Settings that are refused wherever they stand, before a model is looked at."""
    from exfold_vllm import hook

    tables = os.environ["EXFOLD_TABLES"]
    config = unittest.mock.Mock(additional_config={"exfold": {"tables": "other.safetensors"}})
    misspelled = unittest.mock.Mock(additional_config={"exfold": {"table": "other.safetensors"}})
    cases = (("no variant is named", lambda: hook.read({"tables": tables})),
             ("no option of P2", lambda: hook.read({"tables": tables, "prefill": "P2:rank=best"})),
             ("no variant of prefill", lambda: hook.read({"tables": tables, "prefill": "D8"})),
             ("budgets.4", lambda: hook.read({"tables": tables, "prefill": "P4:budget=token"})),
             ("in --additional-config and", lambda: hook.settings_of(config)),
             ("is no setting", lambda: hook.settings_of(misspelled)))
    for expected, act in cases:
        try:
            act()
            said = "nothing"
        except ValueError as error:
            said = str(error)
        note(expected in said, "refused: " + said.replace(tables, "tables.safetensors"))


def child(name, into):
    """The checks of one model."""
    from served import Served

    served = Served(into / "model", long_prefill_token_threshold=16) if name == "demo" else Served(into / "model")
    from exfold_vllm import hook

    engine, = hook.ENGINES.values()
    note(len(engine.runners) == len(engine.tables.layers), f"{name}: {len(engine.runners)} layers are folded")
    note(engine.tables.arrays, f"{name}: {len(engine.tables.arrays)} tables are on the device before the first step, where a capture "
         "could not put them")
    check_served(name, served, into, engine)
    if name == "demo":
        check_mixed(name, served, engine)
        check_refusals_of_engine(served, engine)
        check_refusals_of_settings()
        check_monolithic()


def child_compiled(into, out):
    """The demo's texts token by token through a compiled model, as a server would have it; the result goes to a file."""
    from served import Served

    served = Served(into / "model", enforce_eager=os.environ["EAGER"] == "1")
    torch.save(served.run(texts_of("demo")[1][:, :24], 8), out)


# ---- processes -----------------------------------------------------------------------------------------
def start(*arguments, **environment):
    """A child of this file, its counts added to ours; returns what it said."""
    done = subprocess.run([sys.executable, here, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, **{key: str(value) for key, value in environment.items()}})
    return done.returncode, done.stdout, done.stderr


def check_model(build, name, work):
    global passed, failed
    prepare(build, name, work / name)
    code, said, errors = start("--child", name, work / name, EXFOLD_TABLES=work / name / "tables.safetensors",
                               EXFOLD_PREFILL="P2:projector=joint", EXFOLD_DECODE="D2:targets=router")
    counts = re.search(r"(\d+) passed, (\d+) failed\n$", said)
    if code or not counts:
        note(False, f"{name}: {errors[-2000:]}")
        return
    print(said[:counts.start()], end="")
    passed, failed = passed + int(counts[1]), failed + int(counts[2])


def check_compiled(work):
    """A compiled model folds as one that is not, also where an unfolded graph of it is in the cache."""
    from_env = {"EXFOLD_TABLES": work / "demo/tables.safetensors", "EXFOLD_PREFILL": "P2:projector=joint",
                "EXFOLD_DECODE": "D8:rank=energy,targets=router", "VLLM_CACHE_ROOT": work / "cache"}
    logits = {}
    for name, extra in (("unfolded", {"EAGER": 0, "VLLM_PLUGINS": ""}), ("compiled", {"EAGER": 0}), ("eager", {"EAGER": 1})):
        code, _, errors = start("--compiled", work / "demo", work / f"{name}.pt", **{**from_env, **extra})
        if code:
            note(False, f"demo, {name}: {errors[-2000:]}")
            return
        logits[name] = torch.load(work / f"{name}.pt")
    gap, away = ((logits[name] - logits["eager"]).abs().max().item() for name in ("compiled", "unfolded"))
    note(gap < 1e-3 < away, f"demo compiled as eager: largest difference of log probabilities {gap:.1e}, unfolded {away:.1e}")


def check_start(work):
    """Servers that must not start, with the sentence in what they say."""
    tables = work / "demo/tables.safetensors"
    cases = (("no tables are named", {}),
             ("none.safetensors", {"EXFOLD_TABLES": work / "none.safetensors", "EXFOLD_DECODE": "D8"}),
             ("cannot be loaded", {"EXFOLD_TABLES": tables, "EXFOLD_DECODE": "D8", "EXFOLD_FOLD_LIBRARY": "libnone.so"}))
    for expected, settings in cases:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EXFOLD_")}
        environment.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1")
        done = subprocess.run([sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", work / "demo/model",
                               "--dtype", "float32", "--enforce-eager", "--port", "0", "--skip-tokenizer-init"],
                              capture_output=True, text=True, timeout=400,
                              env={**environment, **{key: str(value) for key, value in settings.items()}})
        said = re.findall(r"ValueError: (exfold_vllm: .*)", done.stdout + done.stderr)
        note(done.returncode != 0 and said and expected in said[0], f"a server ends: {said[0] if said else done.stderr[-500:]}")


def main(build, work, *names):
    print("torch", torch.__version__)
    torch.set_num_threads(1)  # of so small models threads wait for each other
    for name in names or ("demo", *TRAINED, *FAMILIES):
        check_model(build, name, work)
    if not names or "demo" in names:
        check_compiled(work)
        check_start(work)


if sys.argv[1] == "--child":
    child(sys.argv[2], pathlib.Path(sys.argv[3]))
elif sys.argv[1] == "--compiled":
    child_compiled(*map(pathlib.Path, sys.argv[2:]))
else:
    main(*(pathlib.Path(x).resolve() for x in sys.argv[1:3]), *sys.argv[3:])
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
