#!/usr/bin/env python3
"""Write tiny mixtures of experts as quantizers save them, with each library's own decoding and the logits that follow.

usage: make_quantizer_saves.py OUTDIR [PATTERN...]     (PATTERN: as of a shell, of the names in SAVES below; default: all)

A save is a new directory OUTDIR/NAME with the config.json and the model.safetensors that the library wrote, saved.json as
make_quantized_models.py writes it (versions, SHA-256 of every quantized matrix as the library decodes it in float32, perplexity),
and golden.safetensors: "logits" [tokens, vocabulary] of transformers' forward in float64 with those matrices.

llm-compressor writes compressed-tensors, which decodes them; ModelOpt its NVFP4, by export_hf_checkpoint; AutoRound and GPTQModel
GPTQ's format, which their own linear layers decode.  gemma4-modelopt-moe has experts in a module named moe, as releases have that
were made before ModelOpt knew the family.  deepseek_v4-modelopt is written in the release's layout, FP8 in blocks and MXFP4
experts, and given to the script of ModelOpt's repository that NVFP4 releases of DeepSeek-V4 are made with, which
DEEPSEEK_V4_TO_NVFP4 names: examples/deepseek/deepseek_v4/quantize_to_nvfp4.py.

Needs PyTorch, transformers 5 and, for its saves, llmcompressor 0.14, nvidia-modelopt 0.47, auto-round 0.16 or, with transformers
5.24, GPTQModel 7.7 (of two workers: GPTQMODEL_CPU_WORKERS=2).
tests/golden/quantized holds them all.
"""
import fnmatch, glob, importlib.metadata, json, os, re, shutil, subprocess, sys, tempfile, zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

from make_quantized_models import LENGTH, SEQUENCES, VOCAB, mxfp4_stack, perplexity, put_back, sha256

NO_IDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
COMMON = dict(vocab_size=VOCAB, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16, hidden_size=64,
              max_position_embeddings=512, **NO_IDS)


def mixtral():
    return transformers.MixtralConfig(**COMMON, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2)


def minimax_m2():
    return transformers.MiniMaxM2Config(**COMMON, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2)


def gemma4():
    """Text, and the smallest tower of vision, which releases have."""
    text = dict(COMMON, num_hidden_layers=2, intermediate_size=64, enable_moe_block=True, num_experts=4, top_k_experts=2,
                moe_intermediate_size=32, hidden_size_per_layer_input=0, global_head_dim=32, sliding_window=8,
                num_kv_shared_layers=0, pad_token_id=0, layer_types=["sliding_attention", "full_attention"],
                vocab_size_per_layer_input=VOCAB, final_logit_softcapping=30.0)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                  head_dim=16, position_embedding_size=16)
    return transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None, **NO_IDS)


def deepseek_v4():
    return transformers.DeepseekV4Config(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32, q_lora_rank=24, o_groups=2,
        o_lora_rank=8, index_n_heads=2, index_head_dim=8, index_topk=3, sliding_window=6, hc_mult=2, partial_rotary_factor=0.5,
        swiglu_limit=2.0, routed_scaling_factor=1.5, num_nextn_predict_layers=0, max_position_embeddings=512,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        mlp_layer_types=["hash_moe", "moe", "moe"], **NO_IDS)


def class_of(config):
    composite = hasattr(config, "vision_config")
    return transformers.AutoModelForImageTextToText if composite else transformers.AutoModelForCausalLM


def make_model(config, seed):
    config._attn_implementation = config._experts_implementation = "eager"
    model = class_of(config).from_config(config, dtype=torch.float32).eval()
    source = torch.Generator().manual_seed(seed)
    biases = [(name, p) for name, p in model.named_buffers() if name.endswith("correction_bias")]
    tables = [p for name, p in model.named_buffers() if name.endswith("tid2eid")]
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *biases]:
            value = torch.randn(p.shape, generator=source)
            if name.endswith("correction_bias"):
                value = value * 0.3
            elif p.ndim < 2:
                value = value * 0.2 + 1
            else:
                value = value * (0.3 if p.shape[0] == VOCAB else 1.2 / p.shape[-1] ** 0.5)
            p.copy_(value.to(torch.bfloat16))
        for p in tables:
            p.copy_(torch.rand(len(p), model.config.n_routed_experts, generator=source).argsort(1)[:, : p.shape[1]])
    return model


def text_ids(seed):
    return torch.randint(VOCAB - 1, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(seed + 1))


# ---- what libraries save, and how they decode it -----------------------------------------------------------------

def llmcompressor(scheme, ignore):
    def save(source, out, ids):
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from llmcompressor import oneshot
        from llmcompressor.modeling.moe.linearize import load_quantizable_moe
        from llmcompressor.modifiers.quantization import QuantizationModifier
        how = dict(scheme=scheme, targets="Linear")
        if not isinstance(scheme, str):
            group = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**scheme))
            how = dict(config_groups={"group_0": group})
        model_class = class_of(transformers.AutoConfig.from_pretrained(source))
        with load_quantizable_moe(model_class):
            model = model_class.from_pretrained(source, dtype=torch.bfloat16)
        oneshot(model=model, recipe=QuantizationModifier(ignore=ignore, **how))
        model.save_pretrained(out, save_compressed=True)

    def decode(beside, config):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationConfig
        from compressed_tensors.quantization.lifecycle.forward import dequantize
        q = QuantizationConfig.model_validate({k: v for k, v in config["quantization_config"].items() if k != "quant_method"})
        group = q.config_groups["group_0"]
        compressor = BaseCompressor.get_value_from_registry(q.format)
        own = compressor.decompress(dict(beside), group)["weight"]
        scale = beside["weight_scale"].float()
        if q.format == "nvfp4-pack-quantized":
            codes = unpack_fp4_from_uint8(beside["weight_packed"], *own.shape, dtype=torch.float32)
            value = dequantize(codes, scale, args=group.weights, global_scale=beside["weight_global_scale"], dtype=torch.float32)
        else:
            value = compressor.decompress(dict(beside, weight_scale=scale), group)["weight"]
        assert torch.equal(value.to(own.dtype), own)
        return value

    return save, decode, "llmcompressor"


def modelopt(save_also=None):
    def save(source, out, ids):
        import modelopt.torch.quantization as mtq
        from modelopt.torch.export import export_hf_checkpoint
        model = class_of(transformers.AutoConfig.from_pretrained(source)).from_pretrained(source, dtype=torch.bfloat16)
        mtq.quantize(model, mtq.NVFP4_DEFAULT_CFG, lambda m: m(input_ids=ids))
        export_hf_checkpoint(model, export_dir=out)
        if save_also:
            save_also(out)

    return save, decode_modelopt, "nvidia-modelopt"


def decode_modelopt(beside, config):
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    rows, half = beside["weight"].shape
    packed = NVFP4QTensor(torch.Size([rows, 2 * half]), torch.bfloat16, beside["weight"])
    return packed.dequantize(torch.float32, scale=beside["weight_scale"], double_scale=beside["weight_scale_2"],
                             block_sizes={-1: 16})


def gptq_layer(layer, beside):
    """The matrix that a library's linear layer for GPTQ's format multiplies with."""
    assert torch.equal(beside.get("g_idx", torch.arange(sizes_of(beside)[0]) // sizes_of(beside)[2]).long(),
                       torch.arange(sizes_of(beside)[0]) // sizes_of(beside)[2])  # columns are in order
    layer.qweight.data, layer.qzeros.data = beside["qweight"], beside["qzeros"]
    layer.scales = beside["scales"].float()
    return layer


def sizes_of(beside):
    return 8 * beside["qweight"].shape[0], beside["qweight"].shape[1], beside["qweight"].shape[0] * 8 // beside["scales"].shape[0]


def save_tokenizer(out):
    """A word for each id, without which AutoRound and GPTQModel take no text model."""
    from tokenizers import Tokenizer, models
    words = models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="t0", eos_token="t1")
    tokenizer.save_pretrained(out)
    return tokenizer


def autoround():
    def save(source, out, ids):
        from auto_round import AutoRound
        tokenizer = save_tokenizer(source)
        model = class_of(transformers.AutoConfig.from_pretrained(source)).from_pretrained(source, dtype=torch.bfloat16)
        rounder = AutoRound(model, tokenizer, scheme="W4A16", iters=0, group_size=32, disable_opt_rtn=True)
        rounder.quantize_and_save(out, format="auto_gptq")

    def decode(beside, config):
        from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
        cols, rows, group = sizes_of(beside)
        layer = gptq_layer(QuantLinear(4, group, cols, rows, bias=False), beside)
        return layer(torch.eye(cols)).T.contiguous()

    return save, decode, "auto-round"


def gptqmodel():
    def save(source, out, ids):
        from gptqmodel import GPTQModel, QuantizeConfig
        save_tokenizer(source)
        model = GPTQModel.load(source, QuantizeConfig(bits=4, group_size=32, desc_act=False))
        text = torch.randint(VOCAB - 1, (16, 64), generator=torch.Generator().manual_seed(1))
        model.quantize([{"input_ids": row.tolist(), "attention_mask": [1] * len(row)} for row in text], batch_size=1)
        model.save(out)
        with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        del config["quantization_config"]["meta"]["offload_to_disk_path"]  # another directory each time
        with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)

    def decode(beside, config):
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
        cols, rows, group = sizes_of(beside)
        layer = gptq_layer(TorchLinear(bits=4, group_size=group, desc_act=False, sym=True, in_features=cols, out_features=rows,
                                       bias=False, register_buffers=True), beside)
        convert_gptq_v1_to_v2_format_module(layer, bits=4, pack_dtype=torch.int32)
        return layer.dequantize_weight().T.contiguous()

    return save, decode, "gptqmodel"


def in_module_moe(out):
    for file in glob.glob(os.path.join(out, "*.safetensors")):
        renamed = {k.replace(".experts.", ".moe.experts."): v for k, v in load_file(file).items()}
        save_file(renamed, file, metadata={"format": "pt"})


def is_fp8(name, w):
    """A matrix that DeepSeek-V4's release has in FP8, in its names."""
    plain = ("embed", "head", "compressor", "weights_proj", "gate.", "norm")
    return name.endswith(".weight") and w.ndim == 2 and ".experts." not in name.replace("shared_experts", "") and not any(
        p in name for p in plain)


def release_deepseek_v4(source, out):
    """Writes a checkpoint that transformers saved in the release's names and formats."""
    tensors = {}
    for saved, w in load_file(os.path.join(source, "model.safetensors")).items():
        name = saved.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
        name = name.replace(".attn.norm.", ".attn.kv_norm.")
        stem = name.removesuffix(".weight")
        if re.search(r"\.experts\.\d+\.", name):
            codes, exponents = mxfp4_stack(w[None])
            tensors[name] = codes[0].flatten(-2).view(torch.int8)
            tensors[f"{stem}.scale"] = exponents[0].view(torch.float8_e8m0fnu)
        elif is_fp8(name, w):  # no matrix here is larger than a block of 128 x 128
            exponent = (w.float().abs().max() / 448).log2().ceil()
            tensors[name] = (w.float() / exponent.exp2()).to(torch.float8_e4m3fn)
            tensors[f"{stem}.scale"] = exponent.exp2().reshape(1, 1).to(torch.float8_e8m0fnu)
        else:
            kept = any(k in name for k in ("hc_", "attn_sink", ".ape", "gate.bias"))
            tensors[name] = w.float() if kept else w
    os.makedirs(out)
    shard = "model-00001-of-00001.safetensors"
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(out, shard), metadata={"format": "pt"})
    with open(os.path.join(out, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": {k: shard for k in tensors}}, f)
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.update(expert_dtype="fp4", quantization_config={
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128]})
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return [k for k in tensors if k.endswith(".weight") and re.search(r"\.experts\.\d+\.", k)]


def modelopt_deepseek_v4():
    def save(source, out, ids):
        release, amax = f"{source}-release", f"{source}-amax"
        experts = release_deepseek_v4(source, release)
        os.makedirs(amax)  # what calibration finds: of inputs here, so that the script takes those of weights from these
        torch.save({f"{k.removesuffix('.weight')}_input_quantizer._amax": torch.tensor(4.0) for k in experts},
                   os.path.join(amax, "amax_dict_rank0-mp1.pt"))
        subprocess.run([sys.executable, os.environ["DEEPSEEK_V4_TO_NVFP4"], "--amax_path", amax, "--source_ckpt", release,
                        "--output_ckpt", out], check=True, stdout=subprocess.DEVNULL)

    def decode(beside, config):
        if "weight_scale_2" in beside:
            return decode_modelopt(beside, config)
        return beside["weight"].float() * beside["scale"].float()  # by definition, of one block

    return save, decode, "nvidia-modelopt"


# ---- one save ---------------------------------------------------------------------------------------------------

def canonical(name):
    """The name that a matrix has in transformers' model, experts apart."""
    name = name.replace(".block_sparse_moe.", ".mlp.").replace(".moe.experts.", ".experts.")
    usual = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    return re.sub(r"(experts\.\d+)\.(w[123])\.", lambda m: f"{m[1]}.{usual[m[2]]}.", name)


def is_coded(beside):
    scaled = "weight" in beside and ("weight_scale" in beside or "scale" in beside)
    return scaled or "weight_packed" in beside or "qweight" in beside



def decoded_weights(out, config, decode):
    """All tensors of a save by their names with matrices decoded, and which these are."""
    stored, values, coded = {}, {}, []
    for file in sorted(glob.glob(os.path.join(out, "*.safetensors"))):
        stored.update(load_file(file))
    modules = {}
    for name, tensor in stored.items():
        stem, _, last = name.rpartition(".")
        modules.setdefault(stem, {})[last] = tensor
    for stem, beside in modules.items():
        if is_coded(beside):
            values[f"{stem}.weight"] = decode(beside, config).float()
            coded.append(f"{stem}.weight")
        else:
            values.update({f"{stem}.{last}" if stem else last: v.float() for last, v in beside.items()})
    return values, coded


def decoded_model(config, values):
    """The model in float32 with the weights of a save."""
    model = make_model(config, 0)
    if config.model_type == "deepseek_v4":
        state = {}
        for k, v in values.items():
            state[k if k == "head.weight" else "model." + k.replace("embed.", "embed_tokens.").replace("hc_head_", "hc_head.hc_")
                  .replace(".attn.kv_norm.", ".attn.norm.")] = v.long() if k.endswith("tid2eid") else v
        with tempfile.TemporaryDirectory() as scratch:
            model.config.save_pretrained(scratch)
            save_file(state, os.path.join(scratch, "model.safetensors"), metadata={"format": "pt"})
            loaded = class_of(config).from_pretrained(scratch, dtype=torch.float32, attn_implementation="eager",
                                                      experts_implementation="eager")
        return loaded.eval()
    fitting = {canonical(k): v for k, v in values.items()}
    if config.get_text_config().tie_word_embeddings:
        fitting["lm_head.weight"] = next(v for k, v in fitting.items() if k.endswith("embed_tokens.weight"))
    put_back(model, fitting)
    return model


def answer(out, name, model, ids, values, coded, library):
    """Writes what the forward gives with the decoded matrices."""
    float32, float64 = perplexity(model, ids, torch.float32), perplexity(model, ids, torch.float64)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    save_file({"logits": logits.reshape(-1, logits.shape[-1]).float().contiguous()}, os.path.join(out, "golden.safetensors"))
    os.chmod(os.path.join(out, "golden.safetensors"), 0o644)
    weights = {k: {"shape": list(values[k].shape), "sha256": sha256(values[k])} for k in coded}
    with open(os.path.join(out, "saved.json"), "w", encoding="utf-8") as f:
        json.dump({"transformers": transformers.__version__, library: importlib.metadata.version(library), "ids": ids.tolist(),
                   "perplexity_float32": float32, "perplexity_float64": float64, "weights": weights}, f)
        f.write("\n")
    print(f"{name:26} perplexity {float32:.9f}, in float64 {float64:.9f}; {len(coded)} quantized matrices", flush=True)


def make(out, name):
    config, (save, decode, library) = SAVES[name]
    seed = zlib.crc32(name.encode())
    ids = text_ids(seed)
    os.makedirs(out)  # nothing that is there is written over
    with tempfile.TemporaryDirectory() as scratch:
        make_model(config(), seed).to(torch.bfloat16).save_pretrained(os.path.join(scratch, "source"))
        save(os.path.join(scratch, "source"), os.path.join(scratch, "saved"), ids)
        shard, = glob.glob(os.path.join(scratch, "saved", "**", "*.safetensors"), recursive=True)
        shutil.copyfile(shard, os.path.join(out, "model.safetensors"))
        shutil.copyfile(os.path.join(os.path.dirname(shard), "config.json"), os.path.join(out, "config.json"))
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        values, coded = decoded_weights(out, json.load(f), decode)
    answer(out, name, decoded_model(config(), values), ids, values, coded, library)


INT4 = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
GATES = ["lm_head", "re:.*gate$"]
SAVES = {
    "mixtral-llmcompressor": (mixtral, llmcompressor(INT4, GATES)),
    "minimax_m2-llmcompressor": (minimax_m2, llmcompressor("FP8_DYNAMIC", GATES)),
    "gemma4-llmcompressor": (gemma4, llmcompressor("NVFP4A16", ["lm_head", "re:.*router.*", "re:.*vision.*"])),
    "gemma4-modelopt": (gemma4, modelopt()),
    "gemma4-modelopt-moe": (gemma4, modelopt(in_module_moe)),
    "mixtral-autoround": (mixtral, autoround()), "gemma4-autoround": (gemma4, autoround()),
    "mixtral-gptqmodel": (mixtral, gptqmodel()),
    "deepseek_v4-modelopt": (deepseek_v4, modelopt_deepseek_v4()),
}


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for name in SAVES:
        if any(fnmatch.fnmatch(name, p) for p in sys.argv[2:] or ["*"]):
            make(os.path.join(sys.argv[1], name), name)


main()
