/* runtime_vllm_deepseek_v4.c - the public vLLM plugin for DeepSeek-V4-Flash.  Its launcher sets
 * EXFOLD_PREFILL_RENORM to similarity_blend, which is confidence=on; none is confidence=off, router_l2
 * rescale=l2.  EXFOLD_MAX_PROJECTION_LOSS is max_loss of decode: where all pairs are above it the pool's first
 * member takes over.  It folds the layers that route by token id like the others. */
#include "fold/runtime.h"
#include "fold/variant.h"

static exf_code check_deepseek_v4(const struct exf_variant *v, const exf_architecture *a, exf_err *err)
{
    const exf_fold_prefill_options *p = &v->prefill_options;
    (void)a;
    if (p->rescale == EXF_FOLD_RESCALE_SUM || (p->rescale != EXF_FOLD_RESCALE_NONE && p->confidence))
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": vllm-deepseek-v4 runs confidence=on, confidence=off, or rescale=l2,confidence=off "
                        "(EXFOLD_PREFILL_RENORM=similarity_blend, none, router_l2)",
                        v->name);
    return EXF_OK;
}

const exf_runtime exf_runtime_vllm_deepseek_v4 = {
    .name = "vllm-deepseek-v4",
    .about = "the public vLLM plugin for DeepSeek-V4-Flash",
    .target = "exfold-deepseek-v4",
    .family = "deepseek_v4",
    .max_top_k = 8,
    .prefill = "rank=score,loss=frobenius,confidence=on",
    .decode = "loss=frobenius,fallback=first",
    .free_prefill = "confidence rescale",
    .free_decode = "max_loss",
    .candidates = EXF_FOLD_POOL_OF_POSITIVE,
    .folds_hashed = 1,
    .check = check_deepseek_v4,
};
