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
VARIANTS = ["P2", "P2:projector=joint", "D8", "D3", "D8:rank=energy,projector=joint", "D8:pool=static", "P2:budget=token",
            "P2:budget=topp", "D8:rank=energy,targets=router", "P2:projector=joint+D8", "P3:budget=token+D8:targets=router",
            "P3:budget=token,norms=predicted", "D8:rank=energy,projector=joint,norms=predicted"]
OF_FAMILIES = ["P{low}", "P{low}:budget=token", "D{half}", "P{low}:projector=joint+D{half}:rank=energy,targets=router"]
TRAINED = ["qwen3_moe", "glm4_moe"]  # by this test; README's table names what stands here and below
FAMILIES = "mixtral olmoe qwen2_moe gpt_oss deepseek_v2 deepseek_v3 dots1 solar_open glm4_moe_lite hy_v3".split()
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


def of_kind(config):
    """The class of transformers that loads a model: of those that see, another than of those that read alone."""
    import transformers

    return transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM


def make_random(name, path):
    """A family's model of random weights, of the golden's shape but for heads as large as vLLM's CPU kernels want."""
    import transformers

    torch.manual_seed(3)
    config = transformers.AutoConfig.from_pretrained(root / "tests/golden" / name)
    text = config.get_text_config()
    text.max_position_embeddings = 256
    text.hidden_size, text.moe_intermediate_size = 128, 64
    if name in ("mixtral", "olmoe", "gpt_oss", "minimax_m2"):
        text.intermediate_size = 64
    if name == "hy_v3":
        text.expert_hidden_dim = 64
    text.head_dim = 32
    if hasattr(text, "kv_lora_rank"):  # latent attention: 512 + 64 alone
        text.kv_lora_rank, text.qk_rope_head_dim = 512, 64
        text.head_dim = text.qk_rope_head_dim
    for key in ("pad_token_id", "eos_token_id", "bos_token_id"):
        if hasattr(text, key):
            setattr(text, key, None)
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
    config = config.get("text_config", config)
    number = lambda *names: next(config[name] for name in names if config.get(name))
    half = number("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") // 2
    low = 1 if number("num_experts_per_tok", "moe_k", "top_k_experts") == 2 else 2
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

    model = of_kind(json.loads((into / "model/config.json").read_text())).from_pretrained(into / "model", dtype=torch.float32).eval()
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


def use(engine, variant):
    """Another variant for the engine that runs."""
    if variant:
        engine.tables.use(variant)
    else:
        engine.tables.parts = [None, None]


def check_served(name, served, into, engine):
    from served import scores

    held_out = texts_of(name)[1]
    rows, whole, of = {}, {}, into / "transformers.json"
    by_transformers = {said["name"]: said for said in json.loads(of.read_text())} if of.exists() else {}
    for said in json.loads((into / "validation.json").read_text())["variants"]:
        variant = "" if said["name"] == "original" else said["name"]
        use(engine, variant)
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

    use(engine, "P2:projector=joint+D8:rank=energy,targets=router")
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
        tables = layer.engine.tables
        kept = tables.prefill(tables.parts[0], layer.index, ids[rows[0]].contiguous(), weights[rows[0]].contiguous())
        folded = ids[rows[1]].contiguous(), weights[rows[1]].contiguous()
        tables.decode(tables.parts[1], layer.index, *folded, layer.scores(logits[rows[1]]))
        same += (torch.equal(after[1][rows[0]][:, :2], kept[0]) and torch.equal(after[0][rows[0]][:, :2], kept[1]) and
                 not after[0][rows[0]][:, 2:].any() and torch.equal(after[1][rows[1]], folded[0]) and
                 torch.equal(after[0][rows[1]], folded[1]) and not torch.equal(folded[0], ids[rows[1]]))
    note(mixed > 0 and same == mixed, f"{name}: {same} of {mixed} folds of mixed steps give each row what it gets alone")
    note(last > 0, f"{name}: {last} folds of last chunks of one token, which are prefill")


def check_refusals_of_engine(served, engine):
    """What an engine refuses once its kernels are chosen, and of a layer: on the real objects, one fact changed at a time."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    from exfold_vllm import hook, identity

    number, (runner, layer) = next(iter(engine.layers.items()))
    config, patch = engine.config, unittest.mock.patch.object
    parallel, text = type(config.parallel_config), config.model_config.hf_text_config
    given = hook.settings_of(config)
    add, check = lambda: hook.Engine(config, given).add(runner), lambda: engine.check(served.runner)
    no_cuda = unittest.mock.Mock(spec=["_name"], _name="libexfold_fold.so.2")
    on_gpu = unittest.mock.Mock(masks=unittest.mock.Mock(device=torch.device("cuda")))
    cases = [
        ("monolithic", check, patch(MoERunner, "is_monolithic", True)),
        ("data-parallel", check, patch(MoERunner, "do_naive_dispatch_combine", True)),
        ("no model runner", lambda: engine.check(object())),
        ("have no router", check, patch(engine, "layers", {number: (runner, layer)})),
        ("have no router", check, patch(engine, "layers", {})),
        ("built without CUDA", check, patch(engine, "phases", on_gpu), patch(engine.tables, "library", no_cuda)),
        ("dual batch overlap", add, patch(parallel, "use_ubatching", True)),
        ("sequence parallelism", add, patch(parallel, "use_sequence_parallel_moe", True)),
        ("prefill context", add, patch(config.parallel_config, "prefill_context_parallel_size", 2)),
        ("16 experts, the model has 24", add, patch(runner.moe_config, "num_logical_experts", 24)),
        ("whose tokens take 4 experts, here they take 1", add, patch(runner.router, "top_k", 1)),
        ("AITER", add, patch(runner.router, "num_fused_shared_experts", 1, create=True)),
        ("apply_router_weight_on_input", add, patch(runner.routed_experts, "apply_router_weight_on_input", True)),
        ("--max-num-batched-tokens", add, patch(config.scheduler_config, "max_num_batched_tokens", 65536)),
        ("function of the model's own", add, patch(runner.router, "custom_routing_function", print, create=True)),
        ("of a qwen3_moe, the model is a olmoe", add, patch(text, "model_type", "olmoe"),
         patch(config.model_config.hf_config, "model_type", "olmoe")),
        ("d_model was 128, the model's hidden_size is 256", add, patch(config.model_config, "model", "elsewhere"),
         patch(text, "hidden_size", 256)),
        ("of other weights: model.layers.0.mlp.gate.weight differs", check, patch(engine, "routers", other_routers(engine))),
        ("and not verified is the weights, which did not come", check, patch(engine, "routers", identity.Routers(engine.tables)),
         unittest.mock.patch.dict(os.environ, EXFOLD_VERIFY="strict")),
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


def refusal(act):
    """What is said where something must be refused."""
    try:
        act()
    except (ValueError, RuntimeError) as error:
        return str(error).replace(os.environ["EXFOLD_TABLES"] or "tables.safetensors", "tables.safetensors")
    return "nothing"


def other_routers(engine):
    """What is known after other weights were loaded: routers of which the first differs from the calibration's in one number."""
    from exfold_vllm import identity

    routers, same = identity.Routers(engine.tables), engine.routers.same
    for name, weight in safetensors.torch.load_file(root / "examples/demo-model/model.safetensors").items():
        if name.endswith("mlp.gate.weight"):
            routers.look(name, weight + 0.01 * (name == f"model.layers.{min(same)}.mlp.gate.weight"))
    return routers


def check_refusals_of_settings():
    """Settings that are refused wherever they stand, before a model is looked at: nothing unknown is passed over."""
    from exfold_vllm import hook
    from exfold_vllm.variant import Tables

    tables, environment = os.environ["EXFOLD_TABLES"], unittest.mock.patch.dict
    additional = lambda value: lambda: hook.settings_of(unittest.mock.Mock(additional_config={"exfold": value}))
    reads = lambda **given: lambda: Tables(tables, hook.variant_of({"tables": tables, **given}))
    cases = (("no variant is named", reads()), ("no tables are named", lambda: hook.variant_of({"decode": "D8"})),
             ("rank=best, expected score_norm, score, norm", reads(prefill="P2:rank=best")),
             ("no variant of prefill", reads(prefill="D8")), ("no variant of decode", reads(decode="P2+D8")),
             ("keeps 5 experts per token, the model runs 4", reads(prefill="P5")), ("budgets.4", reads(prefill="P4:budget=token")),
             ("in --additional-config and", additional({"tables": "other.safetensors"})),
             ("did you mean tables?", additional({"table": "other.safetensors"})),
             ("is true, expected an object", additional(True)), ("is 4, expected a text", additional({"prefill": 4})),
             ("this is no file", lambda: Tables(os.path.dirname(tables), "D8")))
    for expected, act in cases:
        said = refusal(act)
        note(expected in said, "refused: " + said)
    with environment(os.environ, EXFOLD_PREFIL="P4"):
        said = refusal(hook.settings_of)
    note("EXFOLD_PREFIL is no variable of this plugin: did you mean EXFOLD_PREFILL?" in said, "refused: " + said)
    for variant in ("P2:budget=none", "D8:fold=drop,projector=joint", "P2:max_loss=nan", "P2:rank=score,rank=norm", "P2:ridge=0.1",
                    "D8:norms=predicted,rank=score", "P2:projector=joint,max_loss=0.5", "P2:max_loss=-1", "P2:", "P02x",
                    "D8:pool=static,max_loss=0.5", "D8:pool=static,rank=energy"):
        said = refusal(reads(**{"decode" if variant[0] == "D" else "prefill": variant}))
        note(f'variant "{variant}"' in said, "refused, as exfold-validate does: " + said)


def check_files(into):
    """Tables that are not what was exported, and those of an earlier build."""
    from exfold_vllm.variant import Tables

    path = into / "altered.safetensors"
    with safetensors.safe_open(os.environ["EXFOLD_TABLES"], "pt") as file:
        facts, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}

    def altered(variant="P2", drop=(), **changed):
        safetensors.torch.save_file({**arrays, **{key: x for key, x in changed.items() if key in arrays}}, path,
                                    {key: changed.get(key, x) for key, x in facts.items() if key not in drop})
        return Tables(path, variant)

    for name in "coeff", "loss", "expert_norms", "rms":
        wrong = arrays[name].clone()
        wrong.view(torch.int32).view(-1)[3] ^= 1 << 20
        said = refusal(lambda: altered(**{name: wrong}))
        note("is damaged: the digest" in said, f"a bit of {name} is flipped: " + said.replace(str(path), "tables"))
    note("is damaged" in refusal(lambda: altered(layer_numbers="[0, 1, 2, 4]")), "other numbers of layers are refused")
    wrong = arrays["coeff"].clone()
    wrong[0, 1, 2] = float("nan")
    said = refusal(lambda: altered(coeff=wrong, drop=["content_digest"]))
    note("not finite" in said, "a number is none: " + said.replace(str(path), "tables"))
    old = altered(drop=["content_digest", "model.router_digests"])
    note("content_digest" in old.unknown[0], "an earlier build's file is not verified: " + old.unknown[0])
    invalid = altered("P2:projector=joint", drop=["solve.correlations", "content_digest"])
    few = altered("D3", drop=["content_digest"]).warnings
    note(few == ["D3 leaves a decode batch fewer experts than the 4 that one token takes"], f"warned of: {few}")
    note(len(invalid.warnings) == 1 and "exfold-solve" in invalid.warnings[0] and not altered("P2", drop=["content_digest"]).warnings,
         "correlations of an earlier build are warned of, where they are used")


def check_families():
    """A family is one model_type or another that its tables name, not the beginning of one."""
    from types import SimpleNamespace as Config

    from exfold_vllm import identity

    def says(types, *of_model):
        tables = Config(facts={"model.types": types} if " " in types else {}, family=types, path="tables", unknown=[], of_model=dict)
        return refusal(lambda: identity.check_config(tables, Config(model_type=of_model[0]), Config(model_type=of_model[-1])))

    note("of a deepseek_v3, the model is a deepseek_v32" in says("deepseek_v3", "deepseek_v32"), "deepseek_v32 is no deepseek_v3")
    note("of a glm4_moe, the model" in says("glm4_moe", "glm4_moe_lite"), "glm4_moe_lite is no glm4_moe")
    note(says("deepseek_v3 kimi_k2", "kimi_k2") == says("qwen3_vl_moe qwen3_vl_moe_text", "qwen3_vl_moe", "qwen3_vl_moe_text") ==
         "nothing", "Kimi-K2 and Qwen3-VL are what their tables name")


def check_versions():
    import vllm

    import exfold_vllm
    from vllm.config import VllmConfig

    for version in "0.14.0", "0.28.1", "0.31.2":
        with unittest.mock.patch.object(vllm, "__version__", version):
            said = refusal(exfold_vllm.register)
            note(f"folds in vLLM 0.32.*, where it was run; this is {version}: install" in said, "refused: " + said)
            with unittest.mock.patch.dict(os.environ, EXFOLD_OFF="1"):
                note(refusal(exfold_vllm.register) == "nothing", f"{version}: EXFOLD_OFF=1 serves")
    made, settings = VllmConfig.__post_init__, {"EXFOLD_TABLES": "", "EXFOLD_PREFILL": "", "EXFOLD_DECODE": ""}
    with unittest.mock.patch.object(vllm, "__version__", "0.31.2"), unittest.mock.patch.dict(os.environ, settings):
        exfold_vllm.register()
        said = refusal(lambda: VllmConfig(additional_config={"exfold": {"tables": "x", "decode": "D8"}}))
    VllmConfig.__post_init__ = made
    note("this is 0.31.2" in said, "refused where --additional-config has the settings: " + said[:100])


def check_closed(served, engine):
    """Routes have fewer columns only where the layer's kernels were run so, and nothing is folded before the checks."""
    from exfold_vllm import hook

    runner, layer = next(iter(engine.layers.values()))
    patch, routes = unittest.mock.patch.object, (torch.rand(6, 4), torch.arange(24, dtype=torch.int32).view(6, 4) % 16)
    rest = torch.rand(6, 16), torch.rand(6, 128)
    use(engine, "P2")
    engine.phases.write(torch.tensor([6]).numpy(), [True])
    widths = {}
    for name, change in (("as it is", contextlib.nullcontext()), ("two data-parallel ranks", patch(runner.moe_config.moe_parallel_config, "dp_size", 2)),
                         ("kernels that were not run", patch(hook, "NARROW", ("TritonExperts",)))):
        with change:
            engine.check(served.runner)
            widths[name] = layer.fold(*routes, *rest, whole=False)[0].shape[1]
    engine.check(served.runner)
    note(widths == {"as it is": 2, "two data-parallel ranks": 4, "kernels that were not run": 4}, f"columns of routes: {widths}")
    with patch(engine, "checked", False):
        said = refusal(lambda: layer.fold(*routes, *rest))
    note("without the plugin's checks" in said, "a worker of one's own: " + said)


def child(name, into):
    """The checks of one model."""
    from served import Served

    more = {"demo": {"long_prefill_token_threshold": 16},  # and vLLM's rotary operator for CPUs takes GLM's queries for contiguous
            "glm4_moe_lite": {"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}}
    served = Served(into / "model", **more.get(name, {}))
    from exfold_vllm import hook

    engine, = hook.ENGINES.values()
    note(len(engine.layers) == len(engine.tables.layers), f"{name}: {len(engine.layers)} layers are folded")
    note(engine.tables.arrays, f"{name}: {len(engine.tables.arrays)} tables are on the device before the first step, where a capture "
         "could not put them")
    check_served(name, served, into, engine)
    if name == "demo":
        check_mixed(name, served, engine)
        check_refusals_of_engine(served, engine)
        check_closed(served, engine)
        check_refusals_of_settings()
        check_files(into)
        check_families()
        check_versions()
        check_monolithic()


def make_draft(model, path, layers):
    """The first layers of a model, as one that drafts for it."""
    path.mkdir()
    weights = safetensors.torch.load_file(model / "model.safetensors")
    beyond = lambda name: re.search(r"layers\.(\d+)\.", name) and int(re.search(r"layers\.(\d+)\.", name)[1]) >= layers
    safetensors.torch.save_file({name: x for name, x in weights.items() if not beyond(name)}, path / "model.safetensors",
                                {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    return str(path)


def child_again(into):
    """Engines one after the other: the first keeps prefixes, and is freed when it is deleted; the others speculate, by n-grams of their
    own text and by a draft model, and give the text that the first gave."""
    import gc
    import weakref

    from prometheus_client import generate_latest
    from served import Served
    from vllm import SamplingParams

    from exfold_vllm import fold, hook

    texts = [[int(x) for x in text[:40]] * 2 for text in texts_of("demo")[1][:3]]

    def answers(llm, prompts, tokens):
        """Of each prompt the answer, the log probability of its tokens, and how many tokens of the prompt were in the cache."""
        options = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=1)
        return [(list(x.outputs[0].token_ids), [p[t].logprob for t, p in zip(x.outputs[0].token_ids, x.outputs[0].logprobs)],
                 x.num_cached_tokens) for x in llm.generate([{"prompt_token_ids": x} for x in prompts], options, use_tqdm=False)]

    def gap(first, again):
        return max(abs(a - b) for (_, x, _), (_, y, _) in zip(first, again) for a, b in zip(x, y))

    served = Served(into / "model", enable_prefix_caching=True, block_size=32, disable_log_stats=False)
    engine, = hook.ENGINES.values()
    first, again = answers(served.llm, texts, 12), answers(served.llm, texts, 12)
    note([x[0] for x in first] == [x[0] for x in again] and gap(first, again) < 1e-4 and all(x[2] >= 64 for x in again),
         f"prompts from the prefix cache: log probabilities within {gap(first, again):.1e}")
    said = generate_latest().decode()
    for line in ('exfold_variant{decode="D8:targets=router",prefill="P2"', "exfold_experts_per_token 2.0", "exfold_experts_per_batch 8.0",
                 'exfold_tokens_total{phase="prefill"}', 'exfold_tokens_total{phase="decode"} 66.0'):
        note(line in said, f"/metrics has {line}")
    moved = {}
    for variant in "", "D8":  # an answer that comes back as a prompt: in the cache lies what decode computed, folded where a D folds
        use(engine, variant)
        served.llm.reset_prefix_cache()
        whole = [text + answer for text, (answer, _, _) in zip(texts, answers(served.llm, texts, 40))]
        cached = answers(served.llm, whole, 1)
        served.llm.reset_prefix_cache()
        moved[variant] = gap(cached, answers(served.llm, whole, 1))
        note(all(x[2] >= 96 for x in cached), f"{variant or 'unfolded'}: {cached[0][2]} of 120 tokens of prompt and answer are in the cache")
    note(moved[""] < 1e-4 < moved["D8"] < 0.3, f"an answer reused as a prompt: the next log probability moves by {moved['D8']:.1e} with a D, "
         f"by {moved['']:.1e} unfolded")
    use(engine, "P2+D8:pool=static")  # a pool of a batch is of a step's tokens, which speculation changes; this one is not
    served.llm.reset_prefix_cache()
    plain = [x[0] for x in answers(served.llm, texts, 24)]
    gone = weakref.ref(served.runner.model)
    served.runner._model_forward, served.runner.model.compute_logits = served.forward, served.logits_of
    del served, engine
    gc.collect()
    note(gone() is None and not fold.LAYERS and not hook.ENGINES, f"a deleted engine frees its weights and {len(fold.LAYERS)} folds stay")
    # n-grams last: they import numba, after which vLLM for CPUs starts no further engine in a process
    for kind, how in (("a draft model", {"method": "draft_model", "model": make_draft(into / "model", into / "draft", 2)}),
                      ("n-grams", {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1})):
        served = Served(into / "model", speculative_config={"num_speculative_tokens": 3, **how})
        engine, = hook.ENGINES.values()
        note(engine.checked and len(engine.layers) == 4 and len(fold.LAYERS) == 4, f"an engine that speculates by {kind} folds its own "
             f"{len(engine.layers)} layers alone")
        use(engine, "P2+D8:pool=static")
        of_engine = [x[0] for x in answers(served.llm, texts, 24)]
        note(of_engine == plain and len(served.steps) < 24, f"speculating by {kind}: the same text, {len(served.steps)} steps for 24 tokens")
        served.runner._model_forward, served.runner.model.compute_logits = served.forward, served.logits_of
        del served, engine
        gc.collect()


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


def run_child(name, *arguments, **environment):
    global passed, failed
    code, said, errors = start(*arguments, **environment)
    counts = re.search(r"(\d+) passed, (\d+) failed\n$", said)
    if code or not counts:
        note(False, f"{name}: {errors[-2000:]}")
    if counts:
        print(said[:counts.start()], end="")
        passed, failed = passed + int(counts[1]), failed + int(counts[2])


def check_model(build, name, work):
    prepare(build, name, work / name)
    tables = work / name / "tables.safetensors"
    run_child(name, "--child", name, work / name, EXFOLD_TABLES=tables, EXFOLD_PREFILL="P1:projector=joint",
              EXFOLD_DECODE="D8:targets=router")
    if name == "demo":
        run_child("demo again", "--again", work / name, EXFOLD_TABLES=tables, EXFOLD_PREFILL="P2", EXFOLD_DECODE="D8:targets=router")


def check_compiled(work):
    """A compiled model folds as one that is not, also where an unfolded graph of it is in the cache: of the plugin installed and not
    configured, which serves the model as it is."""
    from_env = {"EXFOLD_TABLES": work / "demo/tables.safetensors", "EXFOLD_PREFILL": "P2:projector=joint",
                "EXFOLD_DECODE": "D8:rank=energy,targets=router", "VLLM_CACHE_ROOT": work / "cache"}
    logits = {}
    for name, extra in (("unfolded", {"EAGER": 0, "EXFOLD_TABLES": "", "EXFOLD_PREFILL": "", "EXFOLD_DECODE": ""}), ("compiled", {"EAGER": 0}), ("eager", {"EAGER": 1})):
        code, _, errors = start("--compiled", work / "demo", work / f"{name}.pt", **{**from_env, **extra})
        if code:
            note(False, f"demo, {name}: {errors[-2000:]}")
            return
        logits[name] = torch.load(work / f"{name}.pt")
    gap, away = ((logits[name] - logits["eager"]).abs().max().item() for name in ("compiled", "unfolded"))
    note(gap < 1e-3 < away, f"demo compiled as eager: largest difference of log probabilities {gap:.1e}, unfolded {away:.1e}")


def check_start(work):
    """A server that must not start, with the sentence in what it says: vLLM logs what a plugin cannot be loaded for and goes on."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EXFOLD_")}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
                    "EXFOLD_TABLES": str(work / "none.safetensors"), "EXFOLD_DECODE": "D8"}
    done = subprocess.run([sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", work / "demo/model", "--dtype",
                           "float32", "--enforce-eager", "--port", "0", "--skip-tokenizer-init"], capture_output=True, text=True,
                          timeout=400, env=environment)
    said = re.findall(r"ValueError: (exfold_vllm: .*)", done.stdout + done.stderr)
    note(done.returncode != 0 and said and "none.safetensors" in said[0], f"a server ends: {said[0] if said else done.stderr[-500:]}")


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
elif sys.argv[1] == "--again":
    child_again(pathlib.Path(sys.argv[2]))
elif sys.argv[1] == "--compiled":
    child_compiled(*map(pathlib.Path, sys.argv[2:]))
else:
    main(*(pathlib.Path(x).resolve() for x in sys.argv[1:3]), *sys.argv[3:])
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
