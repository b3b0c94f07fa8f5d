/* runtime_vllm_qwen3_speed.c - the public vLLM plugin for Qwen3-MoE as its launcher's profile decode-speed starts it:
 * EXFOLD_FORCE_PHASE=decode, so that prompts are remapped like decode steps, EXFOLD_PREFILL_BUDGET=8, which is K, and
 * EXFOLD_QWEN3_DECODE_POLICY=static_norm. */
#include "fold/runtime.h"
#include "fold/variant.h"

static exf_code check_qwen3_speed(const struct exf_variant *v, const exf_architecture *a, exf_err *err)
{
    int folds_prefill = v->prefill != EXF_PREFILL_NONE && v->prefill_options.keep < a->top_k;
    if (!folds_prefill && v->decode == EXF_DECODE_STATIC) return EXF_OK;
    return exf_fail(err, EXF_USAGE,
                    "variant \"%s\": vllm-qwen3-speed remaps prompts and decode steps into one static pool: it runs "
                    "D32:pool=static, of any size, alone", v->name);
}

const exf_runtime exf_runtime_vllm_qwen3_speed = {
    .name = "vllm-qwen3-speed",
    .about = "the same, as its profile decode-speed starts it: prompts are remapped too",
    .target = "exfold-qwen3",
    .family = "qwen3_moe",
    .max_top_k = 16,
    .prefill = "rank=score",
    .decode = "",
    .free_prefill = "",
    .free_decode = "pool",
    .candidates = EXF_FOLD_POOL_OF_ALL,
    .decodes_prompts = 1,
    .check = check_qwen3_speed,
};
