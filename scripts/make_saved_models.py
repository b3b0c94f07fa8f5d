#!/usr/bin/env python3
"""Write tiny models with transformers' save_pretrained, and what transformers computes on them.

usage: make_saved_models.py OUTDIR [PATTERN...]     (PATTERN: as of a shell, of the names below; default: all)
       make_saved_models.py --configs OUTDIR DIR... (writes OUTDIR/NAME/config.json from DIR/config.json of releases, NAME being
                                                     the last part of DIR, as transformers reads and writes it)

A model is a new directory OUTDIR/FAMILY-LAYOUT-KIND:

  LAYOUT  original   save_original_format=True: the names of the release as transformers remembers them, an expert a tensor
          fused      save_original_format=False: transformers' own names, the experts of a layer in one tensor
  KIND    plain      one file
          sharded    several files and their index
          tied       one file, without a head: tie_word_embeddings
          yarn       plain, with YaRN; qwen3_moe also with attention_bias, olmoe with clip_qkv; not of gemma4
          vision     qwen3_5_moe as released, with a vision tower (which text does not use)
          shared     glm_moe_dsa, a layer of which has no indexer

Beside what save_pretrained writes lies saved.json: transformers' version, the token ids of some sequences, and the perplexity of
all their tokens but the first ones under transformers' float32 forward and under its float64 one (null where its code has none).
A model depends on its name and the version alone.  Needs PyTorch and transformers (4.57 or later; the layouts are one
before 5).  tests/golden/saved holds some of them; `EXF_SAVED_MODELS=OUTDIR build/checks/pass check_saved` compares all.
tests/golden/saved_configs holds the configs of tests/configs.
"""
import fnmatch, json, math, os, sys, zlib

import torch
import transformers

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

VOCAB, SEQUENCES, LENGTH = 40, 2, 40

COMMON = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_experts_per_tok=2, max_position_embeddings=512,
              rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=None, pad_token_id=None)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
LATENT = dict(COMMON, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, n_shared_experts=1, moe_intermediate_size=8,
              intermediate_size=16, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12,
              n_group=2, topk_group=1, routed_scaling_factor=1.5)
INDEXER = dict(index_n_heads=2, index_head_dim=12, index_topk=9)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
V4_YARN = dict(rope_type="yarn", factor=16.0, beta_fast=32, beta_slow=1, original_max_position_embeddings=16)

FAMILIES = {
    "qwen3_moe": ("Qwen3MoeConfig", dict(
        COMMON, **HEADS, num_experts=4, moe_intermediate_size=8, intermediate_size=16, mlp_only_layers=[0], norm_topk_prob=True)),
    "glm4_moe": ("Glm4MoeConfig", dict(
        COMMON, **HEADS, n_routed_experts=4, n_shared_experts=1, moe_intermediate_size=8, intermediate_size=16,
        first_k_dense_replace=1, attention_bias=True, use_qk_norm=True, n_group=2, topk_group=1, routed_scaling_factor=1.5)),
    "deepseek_v2": ("DeepseekV2Config", dict(
        COMMON, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, n_shared_experts=1, moe_intermediate_size=8,
        intermediate_size=16, first_k_dense_replace=1, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
        v_head_dim=8, topk_method="greedy", routed_scaling_factor=1.5)),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", dict(
        COMMON, **HEADS, num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=8,
        layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=4, linear_key_head_dim=8,
        linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4)),
    "gpt_oss": ("GptOssConfig", dict(
        COMMON, **HEADS, num_local_experts=4, intermediate_size=8, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"])),
    "deepseek_v4": ("DeepseekV4Config", dict(
        COMMON, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=16, n_routed_experts=4,
        moe_intermediate_size=8, q_lora_rank=12, o_groups=2, o_lora_rank=8, index_n_heads=2, index_head_dim=8, index_topk=3,
        sliding_window=6, hc_mult=2, partial_rotary_factor=0.5, swiglu_limit=2.0, num_nextn_predict_layers=0,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        mlp_layer_types=["hash_moe", "moe", "moe"])),
    "gemma4": ("Gemma4TextConfig", dict(
        {k: v for k, v in COMMON.items() if k != "num_experts_per_tok"}, **HEADS, global_head_dim=16, num_global_key_value_heads=1,
        attention_k_eq_v=True, enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=8, intermediate_size=12,
        hidden_size_per_layer_input=0, sliding_window=6, layer_types=["sliding_attention", "full_attention"],
        final_logit_softcapping=5.0)),
    "mixtral": ("MixtralConfig", dict(COMMON, **HEADS, num_local_experts=4, intermediate_size=8, sliding_window=None)),
    "olmoe": ("OlmoeConfig", dict(
        COMMON, num_attention_heads=4, num_key_value_heads=2, num_experts=4, intermediate_size=8, norm_topk_prob=False)),
    "qwen2_moe": ("Qwen2MoeConfig", dict(
        COMMON, num_attention_heads=4, num_key_value_heads=2, num_experts=4, moe_intermediate_size=8, intermediate_size=16,
        shared_expert_intermediate_size=12, mlp_only_layers=[0], norm_topk_prob=False)),
    "deepseek_v3": ("DeepseekV3Config", dict(
        COMMON, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, n_shared_experts=1, moe_intermediate_size=8,
        intermediate_size=16, first_k_dense_replace=1, q_lora_rank=12, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
        v_head_dim=8, n_group=2, topk_group=1, routed_scaling_factor=2.5)),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", dict(LATENT, rms_norm_eps=1e-5, mlp_layer_types=["dense", "sparse"])),
    "dots1": ("Dots1Config", dict(
        COMMON, num_attention_heads=4, num_key_value_heads=2, n_routed_experts=4, n_shared_experts=2, moe_intermediate_size=8,
        intermediate_size=16, first_k_dense_replace=1, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
        sliding_window=6, max_window_layers=1)),
    "solar_open": ("SolarOpenConfig", dict(
        COMMON, **HEADS, n_routed_experts=4, n_shared_experts=1, moe_intermediate_size=8, n_group=2, topk_group=1,
        attention_bias=True, routed_scaling_factor=1.5)),
    "kimi_k25": ("Kimi_K25Config", dict(LATENT, model_type="deepseek_v3", first_k_dense_replace=1)),
    "hy_v3": ("HYV3Config", dict(
        COMMON, **HEADS, num_experts=4, num_shared_experts=1, moe_intermediate_size=8, intermediate_size=16,
        router_scaling_factor=1.5, attention_bias=True, mlp_layer_types=["dense", "sparse"])),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", dict(
        {k: v for k, v in COMMON.items() if k != "num_experts_per_tok"}, num_attention_heads=4, num_key_value_heads=2, moe_k=2,
        moe_num_experts=4, moe_num_shared_experts=1, moe_intermediate_size=8, intermediate_size=16)),
    "granitemoe": ("GraniteMoeConfig", dict(
        COMMON, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, intermediate_size=8, attention_bias=True,
        attention_multiplier=0.25, embedding_multiplier=6.0, residual_multiplier=0.4, logits_scaling=2.0)),
    "mistral4": ("Mistral4Config", dict(LATENT, first_k_dense_replace=1)),
    "deepseek_v32": ("DeepseekV32Config", dict(LATENT, **INDEXER, first_k_dense_replace=1)),
    "glm_moe_dsa": ("GlmMoeDsaConfig", dict(LATENT, **INDEXER, rms_norm_eps=1e-5, first_k_dense_replace=1)),
    "glm4v_moe": ("Glm4vMoeConfig", dict(
        COMMON, **HEADS, n_routed_experts=4, n_shared_experts=1, moe_intermediate_size=8, intermediate_size=16,
        first_k_dense_replace=1, n_group=2, topk_group=1, routed_scaling_factor=1.5)),
    "qwen3_vl_moe": ("Qwen3VLMoeConfig", dict(
        COMMON, **HEADS, num_experts=4, moe_intermediate_size=8, intermediate_size=16, mlp_only_layers=[0])),
    "qwen3_omni_moe": ("Qwen3OmniMoeThinkerConfig", dict(
        COMMON, **HEADS, num_experts=4, moe_intermediate_size=8, intermediate_size=16, mlp_only_layers=[0])),
    "minimax_m2": ("MiniMaxM2Config", dict(COMMON, **HEADS, num_local_experts=4, intermediate_size=8, rotary_dim=4)),
    "qwen3_next": ("Qwen3NextConfig", dict(
        COMMON, **HEADS, num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=8, intermediate_size=16,
        layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=4, linear_key_head_dim=8,
        linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4)),
}


# Families that are the text part of a model that sees, of which the whole is written.
SEEING = {
    "kimi_k25": dict(vision_config=dict(patch_size=4, pos_emb_height=4, pos_emb_width=4, pos_emb_time=2, num_attention_heads=2,
                                        num_hidden_layers=1, hidden_size=16, intermediate_size=16), projection_hidden_size=16),
    "glm4v_moe": dict(vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4, out_hidden_size=32,
                                         image_size=16)),
    "qwen3_vl_moe": dict(vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4,
                                            out_hidden_size=32, num_position_embeddings=16, deepstack_visual_indexes=[0])),
    "qwen3_omni_moe": dict(
        vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4, out_hidden_size=32,
                           num_position_embeddings=16, deepstack_visual_indexes=[0]),
        audio_config=dict(d_model=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, num_mel_bins=16,
                          output_dim=32, downsample_hidden_size=8, max_source_positions=64, n_window=4, n_window_infer=8),
        vision_start_token_id=39, vision_end_token_id=39, audio_end_token_id=39),
}
# Classes that AutoModelForCausalLM does not find.
CLASSES = {"mistral4": "Mistral4ForCausalLM", "glm4v_moe": "Glm4vMoeForConditionalGeneration",
           "kimi_k25": "Kimi_K25ForConditionalGeneration",
           "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
           "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration"}

VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4, out_hidden_size=32,
              num_position_embeddings=16)


def make_config(family, kind):
    name, sizes = FAMILIES[family]
    sizes = dict(sizes)
    new = int(transformers.__version__.split(".")[0]) >= 5
    if family == "glm4_moe":
        sizes.update(partial_rotary_factor=0.5)
        if not new:  # masks groups with 0: docs/models.md
            sizes.update(n_group=1)
    if family == "qwen3_5_moe":
        sizes.update(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
                                          mrope_section=[1, 1, 0], mrope_interleaved=True))
    if family == "gpt_oss":  # whose default is YaRN
        sizes.update(rope_parameters=dict(rope_type="default", rope_theta=10000.0) if new else None,
                     **({} if new else dict(rope_scaling=None)))
        if not new:
            del sizes["rope_parameters"]
    if family == "qwen3_next":
        sizes.update(dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)) if new
                     else dict(partial_rotary_factor=0.5))
    if family in SEEING and family != "kimi_k25":  # whose positions have one row
        sizes.update(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 0] if family == "glm4v_moe"
                                          else [2, 1, 1], **(dict(partial_rotary_factor=0.5) if family == "glm4v_moe" else {})))
    if family == "mistral4":  # without its YaRN, whose factors of queries come with it
        sizes.update(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
                                          llama_4_scaling_beta=0.1, original_max_position_embeddings=16))
    if kind == "shared":
        sizes.update(indexer_types=["full", "shared"], index_topk=LENGTH)
    if kind == "yarn":
        if family == "deepseek_v4":
            sizes["rope_parameters"] = dict(V4_YARN)
        elif new:
            sizes["rope_parameters"] = dict(sizes.get("rope_parameters", {}), rope_theta=10000.0, **YARN)
        else:
            sizes["rope_scaling"] = dict(YARN)
        if family == "qwen3_moe":
            sizes["attention_bias"] = True
        if family == "olmoe":
            sizes["clip_qkv"] = 0.75
    if family in SEEING:
        return getattr(transformers, name)(text_config=sizes, image_token_id=VOCAB - 1, video_token_id=VOCAB - 1,
                                           tie_word_embeddings=kind == "tied", **SEEING[family])
    if kind == "vision":
        return transformers.Qwen3_5MoeConfig(text_config=sizes, vision_config=VISION, image_token_id=VOCAB - 1,
                                             tie_word_embeddings=False)
    return getattr(transformers, name)(tie_word_embeddings=kind == "tied", **sizes)


def fill(model, seed):
    """Weights that bfloat16 holds, and of a size at which every part of the model moves the logits."""
    source = torch.Generator().manual_seed(seed)
    normal = lambda t, scale: torch.randn(t.shape, generator=source) * scale
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if name.endswith(("inv_freq", "embed_scale")):
            continue
        with torch.no_grad():
            if p.dtype in (torch.int32, torch.int64):  # a table of experts by token: the experts of a row differ
                rows = [torch.randperm(model.config.get_text_config().n_routed_experts, generator=source)[: p.shape[1]]
                        for _ in range(p.shape[0])]
                p.copy_(torch.stack(rows))
                continue
            if "embed_tokens" in name or "lm_head" in name:
                value = normal(p, 0.3)
            elif p.ndim > 1:
                value = normal(p, 1.2 / math.sqrt(p.shape[-1]))
            elif "norm" in name:
                value = normal(p, 0.2) + p.mean()
            else:
                value = normal(p, 0.3)
            p.copy_(value.to(torch.bfloat16))


def narrow(model):
    """The dtype that a model has after from_pretrained(dtype=torch.bfloat16)."""
    keep = [k for field in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict") for k in (getattr(model, field, None) or [])]
    model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if p.is_floating_point() and any(k in name.split(".") for k in keep):
            p.data = p.data.float()


def perplexity(model, ids, dtype):
    """None where transformers' code cannot run in that dtype."""
    model = model.to(dtype)
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits.double()
    except RuntimeError:
        return None
    return math.exp(torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), ids[:, 1:].reshape(-1)).item())


def make(out, family, layout, kind):
    seed = zlib.crc32(f"{family} {kind}".encode())
    config = make_config(family, kind)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    auto = transformers.AutoModelForImageTextToText if kind == "vision" else transformers.AutoModelForCausalLM
    if family in CLASSES:
        model = getattr(transformers, CLASSES[family])._from_config(config, dtype=torch.float32).eval()
    else:
        model = auto.from_config(config, dtype=torch.float32).eval()
    fill(model, seed)
    ids = torch.randint(VOCAB - 1, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(seed + 1))
    float32 = perplexity(model, ids, torch.float32)
    float64 = perplexity(model, ids, torch.float64)
    narrow(model)
    options = {"max_shard_size": "20KB" if kind == "sharded" else "1GB"}
    if int(transformers.__version__.split(".")[0]) >= 5:
        options["save_original_format"] = layout == "original"
    os.makedirs(out)  # nothing that is there is written over
    model.save_pretrained(out, **options)
    with open(os.path.join(out, "saved.json"), "w", encoding="utf-8") as f:
        json.dump({"transformers": transformers.__version__, "ids": ids.tolist(), "perplexity_float32": float32,
                   "perplexity_float64": float64}, f)
        f.write("\n")
    generation = os.path.join(out, "generation_config.json")  # says nothing of the model
    if os.path.exists(generation):
        os.remove(generation)
    print(f"{os.path.basename(out):32} perplexity {float32:.9f}" + (f", in float64 {float64:.9f}" if float64 else ""), flush=True)


def write_configs(out, sources):
    for source in sources:
        to = os.path.join(out, os.path.basename(source))
        os.makedirs(to)
        with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
            kimi = json.load(f)["model_type"] == "kimi_k2"  # which transformers does not have; its page says to load it so
        (transformers.DeepseekV3Config if kimi else transformers.AutoConfig).from_pretrained(source).save_pretrained(to)


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "--configs":
        return write_configs(sys.argv[2], sys.argv[3:])
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    patterns = sys.argv[2:] or ["*"]
    layouts = ["original", "fused"] if int(transformers.__version__.split(".")[0]) >= 5 else ["original"]
    for family, (config, _) in FAMILIES.items():
        if not hasattr(transformers, config):
            print(f"{family}: transformers {transformers.__version__} does not have it")
            continue
        for layout in layouts:
            for kind in ("plain", "sharded", "tied", "yarn") + (("vision",) if family == "qwen3_5_moe" else
                                                            ("shared",) if family == "glm_moe_dsa" else ()):
                name = f"{family}-{layout}-{kind}"
                # Gemma-4 has no YaRN; in Kimi-K2.5's names of the release, transformers 5.24 calls the layers blocks
                none = (family, kind) == ("gemma4", "yarn") or (family, layout) == ("kimi_k25", "original")
                if any(fnmatch.fnmatch(name, p) for p in patterns) and not none:
                    make(os.path.join(sys.argv[1], name), family, layout, kind)


main()
