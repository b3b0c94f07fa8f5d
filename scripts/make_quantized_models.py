#!/usr/bin/env python3
"""Write tiny models whose weights are quantized, Qwen3-MoE, one DeepSeek-V3 and one gpt-oss, and what the libraries that define
the formats decode them to.

usage: make_quantized_models.py OUTDIR [PATTERN...]     (PATTERN: as of a shell, of the names in FORMATS below; default: all)

A model is a new directory OUTDIR/NAME with config.json, model.safetensors and saved.json: the versions, the SHA-256 of every
quantized matrix as the library decodes it, in float32 with zeros of one sign, and the perplexity of some token ids under
transformers' forward in float32 and float64 with those matrices.  Routers, norms, embedding and head stay BF16, and in some
models attention does, as checkpoints in these formats have it.

compressed-tensors packs and decodes its own formats and ModelOpt its NVFP4.  AutoAWQ's and GPTQ's packing is written here from
their definition; AWQ is decoded by compressed-tensors' converter, GPTQ by its formula.  So is DeepSeek-V3, in blocks of 128 x 128
as it and Kimi-K2 are released.  gpt-oss's blocks are made here and decoded by transformers.  All decode with float32 scales; where
scales are stored in 16 bits the libraries' own results are these rounded to 16 bits, which is checked.

A model depends on its name and the versions alone.  Needs PyTorch, transformers 5, compressed-tensors 0.20, nvidia-modelopt and, for
gptqmodel-*, GPTQModel 7.7 with transformers 5.24.
tests/golden/quantized holds them all.
"""
import fnmatch, hashlib, json, math, os, sys, zlib

import torch
import transformers
from safetensors.torch import save_file

VOCAB, SEQUENCES, LENGTH = 40, 2, 40
COMMON = dict(vocab_size=VOCAB, num_hidden_layers=1, num_experts=4, num_experts_per_tok=2, num_attention_heads=2,
              num_key_value_heads=1, head_dim=16, intermediate_size=32, max_position_embeddings=512, rms_norm_eps=1e-6,
              norm_topk_prob=True, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)
SIZES = {"small": ("Qwen3MoeConfig", dict(COMMON, hidden_size=64, moe_intermediate_size=32)),
         "wide": ("Qwen3MoeConfig", dict(COMMON, hidden_size=128, moe_intermediate_size=128)),
         "latent": ("DeepseekV3Config", dict(  # of whose matrices most have parts of blocks
             {k: v for k, v in COMMON.items() if k not in ("num_experts", "head_dim")}, n_routed_experts=4, num_hidden_layers=2,
             num_key_value_heads=2, hidden_size=160, intermediate_size=136, moe_intermediate_size=24, first_k_dense_replace=1,
             n_shared_experts=1, n_group=2, topk_group=1, routed_scaling_factor=2.5, q_lora_rank=24, kv_lora_rank=136,
             qk_nope_head_dim=64, qk_rope_head_dim=8, v_head_dim=16,
             rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16,
                                  beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)))}


def make_model(sizes, seed):
    name, fields = SIZES[sizes]
    config = getattr(transformers, name)(**fields)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            value = torch.randn(p.shape, generator=source)
            value = value * 0.2 + 1 if "norm" in name else value * (0.3 if p.shape[0] == VOCAB else 1.2 / math.sqrt(p.shape[-1]))
            p.copy_(value.to(torch.bfloat16))
        for name, p in model.named_buffers():
            if name.endswith("correction_bias"):
                p.copy_((torch.randn(p.shape, generator=source) * 0.3).to(torch.bfloat16))
    return model


def matrices_of(model):
    """The names and weights of a checkpoint in the release's layout: a tensor for each matrix of an expert."""
    out = {}
    for name, p in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(p):
                for part, w in zip(("gate_proj", "up_proj"), both.chunk(2)):
                    out[f"{name.removesuffix('gate_up_proj')}{e}.{part}.weight"] = w.clone()
        elif name.endswith("experts.down_proj"):
            for e, w in enumerate(p):
                out[f"{name.removesuffix('down_proj')}{e}.down_proj.weight"] = w.clone()
        else:
            out[name] = p.clone()
    return out


def put_back(model, weights):
    """Gives a model the weights of such a checkpoint."""
    state = model.state_dict()
    with torch.no_grad():
        for name, p in state.items():
            stem = name.rsplit(".", 1)[0]
            if name.endswith("experts.gate_up_proj"):
                parts = [torch.cat([weights[f"{stem}.{e}.{k}.weight"] for k in ("gate_proj", "up_proj")]) for e in range(len(p))]
                p.copy_(torch.stack(parts))
            elif name.endswith("experts.down_proj"):
                p.copy_(torch.stack([weights[f"{stem}.{e}.down_proj.weight"] for e in range(len(p))]))
            else:
                p.copy_(weights[name])


# ---- DeepSeek-V3 ------------------------------------------------------------------------------------------

def blocks(size):
    """E4M3 under a float32 scale for each block of size x size, those at the edges smaller."""
    def code(name, w):
        w = w.to(torch.bfloat16).float()
        rows, cols = (-(-n // size) for n in w.shape)
        whole = torch.zeros(rows * size, cols * size)
        whole[: w.shape[0], : w.shape[1]] = w
        scale = whole.reshape(rows, size, cols, size).abs().amax((1, 3)) / 448
        each = scale.repeat_interleave(size, 0).repeat_interleave(size, 1)[: w.shape[0], : w.shape[1]]
        codes = (w / each).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scale}, codes.float() * each

    def config(ignore):
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [size, size]}

    return code, config


# ---- compressed-tensors ------------------------------------------------------------------------------------

def compressed(weights, form, activations=None, float16=False):
    """A coder of one format: (tensors beside X. of a matrix, its decoded value, and quantization_config of an ignore list)."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args,
                                input_activations=QuantizationArgs(**activations) if activations else None)
    compressor = BaseCompressor.get_value_from_registry(form)

    def least_and_most(w):
        if args.strategy in ("group", "tensor_group"):
            groups = w.unflatten(-1, (-1, args.group_size))
            return groups.amin(-1), groups.amax(-1)
        if args.strategy == "block":
            r, c = args.block_structure
            blocks = w.unflatten(0, (-1, r)).unflatten(-1, (-1, c))
            return blocks.amin((1, 3)), blocks.amax((1, 3))
        if args.strategy == "channel":
            return w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
        return w.amin().reshape(1), w.amax().reshape(1)

    def code(name, w):
        w = w.to(torch.float16 if float16 else torch.bfloat16)
        state, whole = {"weight": w}, None
        low, high = least_and_most(w)
        if args.strategy == "tensor_group":
            whole = generate_gparam(w.amin().float(), w.amax().float()).reshape(1)
            state["weight_global_scale"] = whole
            low, high = low.float(), high.float()
        scale, zero = calculate_qparams(low, high, args, whole)
        if form.startswith("mxfp"):
            from compressed_tensors.quantization.utils import generate_mx_scales
            scale = 2.0 ** (generate_mx_scales(torch.maximum(-low, high).clamp(min=0), args.num_bits).float() - 127)
        state["weight_scale"] = scale
        if args.type == "int":
            state["weight_zero_point"] = zero.to(torch.int8)
        packed = compressor.compress(state, scheme)
        if activations and not activations["dynamic"]:
            packed["input_scale"] = torch.tensor([0.02], dtype=torch.bfloat16)
        if form.endswith("fp4-pack-quantized"):
            codes = unpack_fp4_from_uint8(packed["weight_packed"], *w.shape, dtype=torch.float32)
            stored = compressor._decompress_scale(packed["weight_scale"], torch.float32)
            value = dequantize(codes, stored, args=args, global_scale=whole, dtype=torch.float32)
        elif form == "mxfp8-quantized":
            stored = compressor._decompress_scale(packed["weight_scale"]).float()
            value = dequantize(packed["weight"], stored, args=args, dtype=torch.float32)
        else:
            value = compressor.decompress(dict(packed, weight_scale=packed["weight_scale"].float()), scheme)["weight"]
        own = compressor.decompress(dict(packed), scheme)["weight"]
        assert torch.equal(value.to(own.dtype), own), name
        return packed, value

    def config(ignore):
        q = QuantizationConfig(config_groups={"group_0": scheme}, format=form, ignore=ignore, quantization_status="compressed")
        return json.loads(json.dumps(q.model_dump(mode="json")))

    return code, config


def int4(group, symmetric, **more):
    how = dict(strategy="group", group_size=group) if group else dict(strategy="channel")
    return lambda: compressed(dict(num_bits=4, type="int", symmetric=symmetric, **how), "pack-quantized", **more)


def fp8(strategy, static=False, **how):
    seen = dict(num_bits=8, type="float", symmetric=True)
    seen.update(dict(strategy="tensor", dynamic=False) if static else dict(strategy="token", dynamic=True))
    return lambda: compressed(dict(num_bits=8, type="float", symmetric=True, strategy=strategy, **how), "float-quantized", seen)


def fp4(form, strategy, group, scale):
    how = dict(num_bits=4, type="float", symmetric=True, strategy=strategy, group_size=group, scale_dtype=scale, zp_dtype=scale)
    return lambda: compressed(how, form)


def mxfp8():
    how = dict(num_bits=8, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype="torch.uint8",
               zp_dtype="torch.uint8")
    return lambda: compressed(how, "mxfp8-quantized", dict(how, dynamic=True))


# ---- ModelOpt ------------------------------------------------------------------------------------------------

def modelopt(algorithm):
    def code_nvfp4(name, w):
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
        packed, scale, whole = NVFP4QTensor.quantize(w.float(), 16)
        value = packed.dequantize(torch.float32, scale=scale, double_scale=whole, block_sizes={-1: 16})
        return {"weight": packed._quantized_data, "weight_scale": scale, "weight_scale_2": whole,
                "input_scale": torch.tensor(0.01)}, value

    def code_mxfp8(name, w):
        from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
        packed, scale = MXFP8QTensor.quantize(w.float())
        return {"weight": packed._quantized_data, "weight_scale": scale}, packed.dequantize(torch.float32, scale=scale)

    def code_fp8(name, w):  # one scale; the definition is the product
        scale = w.float().abs().amax() / 448
        codes = (w.float() / scale).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.01)}, codes.float() * scale

    def config(ignore):
        from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
        return convert_hf_quant_config_format({"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": {
            "quant_algo": algorithm, "kv_cache_quant_algo": None, "group_size": 32 if algorithm == "MXFP8" else 16,
            "exclude_modules": ignore}})

    return {"NVFP4": code_nvfp4, "MXFP8": code_mxfp8, "FP8": code_fp8}[algorithm], config


# ---- quant_method "mxfp8" ------------------------------------------------------------------------------------

def mxfp8_inverse():
    """Scales under the name that transformers gives them, which reads the format as its FP8 with blocks of 1 x 32 columns."""
    def code(name, w):
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize
        groups = w.to(torch.bfloat16).float().unflatten(-1, (-1, 32))
        exponent = torch.ceil(torch.log2(groups.abs().amax(-1).clamp(min=2.0 ** -126) / 448))
        codes = (groups / torch.exp2(exponent)[..., None]).flatten(-2).to(torch.float8_e4m3fn)
        scale = (exponent + 127).to(torch.uint8)
        value = Fp8Dequantize(None)._dequantize_one(codes, scale, output_dtype=torch.float32)
        return {"weight": codes, "weight_scale_inv": scale}, value

    def config(ignore):
        return {"quant_method": "mxfp8", "activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0",
                "weight_block_size": [1, 32], "ignored_layers": ignore}

    return code, config


# ---- AWQ and GPTQ ----------------------------------------------------------------------------------------------

def words(codes, order=range(8)):
    """[.., 8 n] of 0 to 15 as int32 [.., n]; nibble i of a word is number order[i] of its eight."""
    eights = codes.to(torch.int64).unflatten(-1, (-1, 8))
    word = sum(eights[..., k] << 4 * i for i, k in enumerate(order))
    return (word - ((word >> 31) << 32)).to(torch.int32).contiguous()


def round_groups(w, group_of, n_groups, symmetric):
    """Codes [out, in], float16 scales and zeros [out, groups], with group_of [in]."""
    w, scales, zeros = w.float(), [], []
    for g in range(n_groups):
        part = w[:, group_of == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scale = (torch.maximum(-low, high) / 7.5 if symmetric else (high - low) / 15).half()
        scales.append(scale)
        zeros.append(torch.full_like(low, 8) if symmetric else (-low / scale.float()).round().clamp(0, 15))
    scales, zeros = torch.stack(scales, 1), torch.stack(zeros, 1).int()
    codes = (w / scales.float()[:, group_of] + zeros[:, group_of]).round().clamp(0, 15).int()
    return codes, scales, zeros


def awq(group):
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def code(name, w):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        group_of = torch.arange(w.shape[1]) // group
        codes, scales, zeros = round_groups(w, group_of, w.shape[1] // group, False)
        packed = {"qweight": words(codes.T, order), "qzeros": words(zeros.T, order), "scales": scales.T.contiguous()}
        converter = AutoAWQConverter(bits=4, group_size=group, zero_point=True, version="gemm")
        state = {k.removeprefix("m."): v for k, v in converter.process({"m." + k: v for k, v in packed.items()}).items()}
        state["weight_scale"] = state["weight_scale"].float()
        args = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=group)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        value = BaseCompressor.get_value_from_registry("pack-quantized").decompress(state, scheme)["weight"]
        assert torch.equal(value, (codes - zeros[:, group_of]) * scales.float()[:, group_of])
        return packed, value

    def config(ignore):
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm",
                "modules_to_not_convert": ignore}

    return code, config


def gptq(group, symmetric, act_order=False, version="gptq"):
    def code(name, w):
        cols = w.shape[1]
        group_of = torch.arange(cols) // group
        if act_order:
            group_of = group_of[torch.randperm(cols, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))]
        codes, scales, zeros = round_groups(w, group_of, cols // group, symmetric)
        stored = (zeros - 1) % 16 if version == "gptq" else zeros
        packed = {"qweight": words(codes).T.contiguous(), "qzeros": words(stored.T), "scales": scales.T.contiguous(),
                  "g_idx": group_of.int()}
        value = (scales.float().T[group_of] * (codes.T - zeros.T[group_of])).T.contiguous()
        return packed, value

    def config(ignore):
        dynamic = {f"-:.*{module}.*": {} for module in ignore}
        return {"quant_method": "gptq", "dynamic": dynamic, "bits": 4, "group_size": group, "desc_act": act_order, "sym": symmetric,
                "checkpoint_format": version, "lm_head": False, "pack_dtype": "int32", "damp_percent": 0.05}

    return code, config


def gptqmodel(group, version):
    """What GPTQModel's own code packs, in an order of columns of its own and with zero points, some of them 0."""
    def code(name, w):
        from gptqmodel import QuantizeConfig
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module, convert_gptq_v2_to_v1_format_module
        rows, cols = w.shape
        w = torch.where(torch.arange(rows)[:, None] % 3 == 0, w.float().abs(), w.float())
        order = torch.randperm(cols, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
        group_of = (torch.arange(cols) // group)[order].int()
        codes, scales, zeros = round_groups(w, group_of, cols // group, False)
        linear = torch.nn.Linear(cols, rows, bias=False)
        linear.weight.data = (codes - zeros[:, group_of]) * scales.float()[:, group_of]
        packer = TorchLinear(bits=4, group_size=group, desc_act=True, sym=False, in_features=cols, out_features=rows, bias=False,
                             register_buffers=True)
        packer.pack_block(linear, scales.float(), zeros, group_of)
        if version == "gptq":
            convert_gptq_v2_to_v1_format_module(packer, QuantizeConfig(bits=4))
        packed = {k: getattr(packer, k).clone() for k in ("qweight", "qzeros", "scales", "g_idx")}
        if version == "gptq":
            convert_gptq_v1_to_v2_format_module(packer, bits=4, pack_dtype=torch.int32)
        packer.scales = packer.scales.float()
        value = packer.dequantize_weight().T.contiguous()
        assert torch.equal(value, linear.weight.data), name
        return packed, value

    def config(ignore):
        from gptqmodel import QuantizeConfig
        import gptqmodel as library
        dynamic = {f"-:.*{module}.*": {} for module in ignore}
        q = QuantizeConfig(bits=4, group_size=group, desc_act=True, sym=False, format=version, dynamic=dynamic)
        q.meta_set_versionable("quantizer", [f"gptqmodel:{library.__version__}"])
        said = json.loads(json.dumps(q.to_dict()))
        said["meta"].pop("offload_to_disk_path")  # another directory each time
        return said

    return code, config


# ---- all of them -------------------------------------------------------------------------------------------------

GATES = ["lm_head", "re:.*mlp.gate$"]
EXPERTS = GATES + ["re:.*self_attn.*"]  # what is not quantized, as Kimi-K2-Thinking has it
FORMATS = {  # sizes, quantizer, ignore list
    "int4-g32": ("small", int4(32, True), EXPERTS), "int4-g32-zeros": ("small", int4(32, False), GATES),
    "int4-g128": ("wide", int4(128, True), EXPERTS), "int4-g128-zeros": ("wide", int4(128, False, float16=True), EXPERTS),
    "int4-channel": ("small", int4(0, True), EXPERTS),
    "fp8-channel": ("small", fp8("channel"), GATES), "fp8-tensor": ("small", fp8("tensor", static=True), GATES),
    "fp8-block": ("small", fp8("block", block_structure=[16, 32]), GATES),
    "nvfp4": ("small", fp4("nvfp4-pack-quantized", "tensor_group", 16, "torch.float8_e4m3fn"), EXPERTS),
    "mxfp4": ("small", fp4("mxfp4-pack-quantized", "group", 32, "torch.uint8"), EXPERTS),
    "modelopt-nvfp4": ("small", lambda: modelopt("NVFP4"), ["lm_head", "model.layers.0.self_attn*", "model.layers.*.mlp.gate"]),
    "mxfp8": ("small", mxfp8(), EXPERTS), "mxfp8-inverse": ("small", mxfp8_inverse, ["lm_head", "mlp.gate", "self_attn"]),
    "modelopt-mxfp8": ("small", lambda: modelopt("MXFP8"), ["lm_head", "model.layers.*.mlp.gate"]),
    "modelopt-fp8": ("small", lambda: modelopt("FP8"), ["lm_head", "model.layers.*.mlp.gate"]),
    "awq-g32": ("small", lambda: awq(32), ["mlp.gate"]), "awq-g128": ("wide", lambda: awq(128), ["mlp.gate", "self_attn"]),
    "gptq-g32": ("small", lambda: gptq(32, True), []), "gptq-order": ("small", lambda: gptq(32, False, act_order=True), []),
    "gptq-v2-g128": ("wide", lambda: gptq(128, False, version="gptq_v2"), ["self_attn"]),
    "gptqmodel-order": ("wide", lambda: gptqmodel(32, "gptq"), ["self_attn"]),
    "gptqmodel-v2-order": ("wide", lambda: gptqmodel(32, "gptq_v2"), ["self_attn"]),
    "deepseek-fp8": ("latent", lambda: blocks(128), []),
}


def perplexity(model, ids, dtype):
    with torch.no_grad():
        logits = model.to(dtype)(input_ids=ids, use_cache=False).logits.double()
    return math.exp(torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1)).item())


def sha256(value):
    return hashlib.sha256((value.float() + 0.0).contiguous().numpy().tobytes()).hexdigest()  # -0 + 0 is 0


def is_quantized(name, weight, ignore):
    kept = ("lm_head", "embed_tokens", "mlp.gate.weight") + (("self_attn",) if any("self_attn" in i for i in ignore) else ())
    return weight.ndim == 2 and not any(k in name for k in kept)


def make(out, name):
    sizes, quantizer, ignore = FORMATS[name]
    code, config_of = quantizer()
    seed = zlib.crc32(name.encode())
    model = make_model(sizes, seed)
    tensors, values, decoded = {}, {}, {}
    for tensor, w in matrices_of(model).items():
        values[tensor] = w.to(torch.bfloat16).float()
        tensors[tensor] = w.to(torch.float32 if tensor.endswith("correction_bias") else torch.bfloat16)
        if is_quantized(tensor, w, ignore):
            beside, value = code(tensor, w)
            del tensors[tensor]
            tensors.update({f"{tensor.removesuffix('weight')}{k}": v.contiguous() for k, v in beside.items()})
            values[tensor] = value.float()
            decoded[tensor] = {"shape": list(value.shape), "sha256": sha256(value)}
    put_back(model, values)
    write(out, name, model, seed, tensors, decoded, config_of(ignore))


def write(out, name, model, seed, tensors, decoded, quantizer):
    ids = torch.randint(VOCAB - 1, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(seed + 1))
    float32, float64 = perplexity(model, ids, torch.float32), perplexity(model, ids, torch.float64)
    os.makedirs(out)  # nothing that is there is written over
    config = model.config.to_dict()
    config = {k: v for k, v in config.items() if not k.startswith("_") and k != "transformers_version"}
    config.update(architectures=[type(model).__name__], dtype="bfloat16", quantization_config=quantizer)
    for file, what in (("config.json", config), ("saved.json", {
            "transformers": transformers.__version__, "ids": ids.tolist(), "perplexity_float32": float32,
            "perplexity_float64": float64, "weights": decoded})):
        with open(os.path.join(out, file), "w", encoding="utf-8") as f:
            json.dump(what, f, indent=1 if file == "config.json" else None, sort_keys=file == "config.json")
            f.write("\n")
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)
    print(f"{name:20} perplexity {float32:.9f}, in float64 {float64:.9f}; {len(decoded)} quantized matrices", flush=True)


# ---- gpt-oss ----------------------------------------------------------------------------------------------------

def mxfp4_stack(w):
    """Blocks [E, rows, cols / 32, 16] and scales [E, rows, cols / 32] of [E, rows, cols]: the nearest numbers."""
    blocks = w.float().unflatten(-1, (-1, 32))
    most = blocks.abs().amax(-1).clamp(min=2.0 ** -100)
    exponent = (most / 6).log2().ceil()  # no number is beyond the largest, 6
    size = (blocks / torch.exp2(exponent)[..., None]).abs()
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    code = (size[..., None] - grid).abs().argmin(-1) + 8 * (blocks < 0)
    return (code[..., ::2] | code[..., 1::2] << 4).to(torch.uint8), (exponent + 127).to(torch.uint8)


def make_gpt_oss(out, name):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    seed = zlib.crc32(name.encode())
    config = transformers.GptOssConfig(
        vocab_size=VOCAB, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, hidden_size=64, intermediate_size=32, sliding_window=6, max_position_embeddings=512,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0), bos_token_id=None, eos_token_id=None, pad_token_id=None)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    source, tensors, decoded = torch.Generator().manual_seed(seed), {}, {}
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            value = torch.randn(p.shape, generator=source)
            value = value * 0.2 + 1 if "norm" in tensor else value * (0.3 if p.ndim < 2 or p.shape[0] == VOCAB else 0.15)
            p.copy_(value.to(torch.bfloat16))
            if p.ndim < 3:
                tensors[tensor] = p.to(torch.bfloat16)
                continue
            blocks, scales = mxfp4_stack(p.transpose(1, 2))  # transformers has [E, in, out], the release [E, out, in]
            tensors[f"{tensor}_blocks"], tensors[f"{tensor}_scales"] = blocks, scales
            p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            decoded[f"{tensor}_blocks"] = {"shape": list(blocks.shape), "sha256": sha256(p.transpose(1, 2))}
    quantizer = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                     "model.embed_tokens", "lm_head"]}
    write(out, name, model, seed, tensors, decoded, quantizer)


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for name in [*FORMATS, "gpt_oss-mxfp4"]:
        if any(fnmatch.fnmatch(name, p) for p in sys.argv[2:] or ["*"]):
            (make if name in FORMATS else make_gpt_oss)(os.path.join(sys.argv[1], name), name)


if __name__ == "__main__":
    main()
