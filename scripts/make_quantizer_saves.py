#!/usr/bin/env python3
"""Write tiny mixtures of experts as quantizers save them, with each library's own decoding and the logits that follow.

usage: make_quantizer_saves.py OUTDIR [PATTERN...]     (PATTERN: as of a shell, of the names in SAVES below; default: all)

A save is a new directory OUTDIR/NAME with the config.json and the *.safetensors that the library wrote, saved.json as
make_quantized_models.py writes it (versions, SHA-256 of every quantized matrix as the library decodes it in float32, perplexity), and
golden.safetensors: "logits" [tokens, vocabulary] of transformers' forward in float64 with those matrices.

llm-compressor writes compressed-tensors, which decodes them; ModelOpt its NVFP4, by export_hf_checkpoint; AutoRound GPTQ's format,
which its own linear layer decodes.  gemma4-modelopt-moe holds gemma4-modelopt's experts in a module named moe, as ModelOpt before it knew
the family wrote releases.  deepseek_v4-modelopt is tests/golden/deepseek_v4_fp8_fp4 after the script of ModelOpt's repository that made
DeepSeek-V4's NVFP4 releases, examples/deepseek/deepseek_v4/quantize_to_nvfp4.py, which DEEPSEEK_V4_TO_NVFP4 names.

Needs PyTorch, transformers 5 and, for its saves, llmcompressor 0.14, nvidia-modelopt 0.47 or auto-round 0.16.
tests/golden/quantized holds them all.
"""
import fnmatch, glob, importlib.metadata, json, os, re, shutil, subprocess, sys, tempfile, zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

from make_quantized_models import LENGTH, SEQUENCES, VOCAB, perplexity, put_back, sha256

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
                moe_intermediate_size=32, hidden_size_per_layer_input=0, global_head_dim=32, sliding_window=8, num_kv_shared_layers=0,
                layer_types=["sliding_attention", "full_attention"], vocab_size_per_layer_input=VOCAB, final_logit_softcapping=30.0, pad_token_id=0)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=16,
                  position_embedding_size=16)
    return transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None, **NO_IDS)


def class_of(config):
    composite = hasattr(config, "vision_config")
    return transformers.AutoModelForImageTextToText if composite else transformers.AutoModelForCausalLM


def make_model(config, seed):
    config._attn_implementation = config._experts_implementation = "eager"
    model = class_of(config).from_config(config, dtype=torch.float32).eval()
    source = torch.Generator().manual_seed(seed)
    biases = [(name, p) for name, p in model.named_buffers() if name.endswith("correction_bias")]
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
        how = dict(scheme=scheme, targets="Linear") if isinstance(scheme, str) else dict(config_groups={"group_0": QuantizationScheme(
            targets=["Linear"], weights=QuantizationArgs(**scheme))})
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
    return packed.dequantize(torch.float32, scale=beside["weight_scale"], double_scale=beside["weight_scale_2"], block_sizes={-1: 16})


def in_module_moe(out):
    for file in glob.glob(os.path.join(out, "*.safetensors")):
        save_file({re.sub(r"\.experts\.", ".moe.experts.", k): v for k, v in load_file(file).items()}, file, metadata={"format": "pt"})


# ---- one save ---------------------------------------------------------------------------------------------------

def canonical(name):
    """The name that a matrix has in transformers' model, experts apart."""
    name = name.replace(".block_sparse_moe.", ".mlp.").replace(".moe.experts.", ".experts.")
    return re.sub(r"(experts\.\d+)\.(w[123])\.", lambda m: f"{m[1]}.{dict(w1='gate_proj', w2='down_proj', w3='up_proj')[m[2]]}.", name)


CODES = ("weight_packed", "qweight")


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
        if any(c in beside for c in CODES) or "weight_scale" in beside:
            values[f"{stem}.weight"] = decode(beside, config).float()
            coded.append(f"{stem}.weight")
        else:
            values.update({f"{stem}.{last}" if stem else last: v.float() for last, v in beside.items()})
    return values, coded


def answer(out, name, model, ids, values, coded, library):
    """Writes what the forward gives with the decoded matrices."""
    fitting = {canonical(k): v for k, v in values.items()}
    if model.config.get_text_config().tie_word_embeddings:
        fitting["lm_head.weight"] = next(v for k, v in fitting.items() if k.endswith("embed_tokens.weight"))
    put_back(model, fitting)
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
        for file in ("config.json", *map(os.path.basename, glob.glob(os.path.join(scratch, "saved", "*.safetensors")))):
            shutil.copyfile(os.path.join(scratch, "saved", file), os.path.join(out, file))
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        values, coded = decoded_weights(out, json.load(f), decode)
    answer(out, name, make_model(config(), seed), ids, values, coded, library)


INT4 = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
GATES = ["lm_head", "re:.*gate$"]
SAVES = {
    "mixtral-llmcompressor": (mixtral, llmcompressor(INT4, GATES)),
    "minimax_m2-llmcompressor": (minimax_m2, llmcompressor("FP8_DYNAMIC", GATES)),
    "gemma4-llmcompressor": (gemma4, llmcompressor("NVFP4A16", ["lm_head", "re:.*router.*", "re:.*vision.*"])),
    "gemma4-modelopt": (gemma4, modelopt()),
    "gemma4-modelopt-moe": (gemma4, modelopt(in_module_moe)),
}


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for name in SAVES:
        if any(fnmatch.fnmatch(name, p) for p in sys.argv[2:] or ["*"]):
            make(os.path.join(sys.argv[1], name), name)


main()
