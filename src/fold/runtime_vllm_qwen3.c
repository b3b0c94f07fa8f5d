/* runtime_vllm_qwen3.c - the public vLLM plugin for Qwen3-MoE.  It keeps the leading routes in the router's
 * order, by falling weight; its kernels' blocks are as long as P, D and E, which must be powers of two
 * therefore.  All experts compete for a decode pool, those without routes with importance 0.  A static
 * pool (EXFOLD_QWEN3_DECODE_POLICY=static_norm) is a table of any length. */
#include "fold/runtime.h"
#include "fold/variant.h"

static int is_power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

static exf_code check_qwen3(const struct exf_variant *v, const exf_architecture *a, exf_err *err)
{
    int keep = v->prefill_options.keep, pool = v->decode_options.pool;
    if (v->prefill != EXF_PREFILL_NONE && keep < a->top_k && !is_power_of_two(keep))
        return exf_fail(err, EXF_USAGE, "variant \"%s\": vllm-qwen3 runs P of a power of two alone: P1, P2, P4, ..., not P%d",
                        v->name,
                        keep);
    if (v->decode != EXF_DECODE_DYNAMIC || pool >= a->n_experts) return EXF_OK;
    if (!is_power_of_two(pool))
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": vllm-qwen3 runs dynamic pools of a power of two alone: D16, D32, D64, ..., "
                        "not D%d", v->name,
                        pool);
    if (!is_power_of_two(a->n_experts))
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": vllm-qwen3 chooses dynamic pools among a power of two of experts alone, the "
                        "model has %d; it "
                        "runs D%d:pool=static",
                        v->name, a->n_experts, pool);
    return EXF_OK;
}

const exf_runtime exf_runtime_vllm_qwen3 = {
    .name = "vllm-qwen3",
    .about = "the public vLLM plugin for Qwen3-MoE",
    .target = "exfold-qwen3",
    .family = "qwen3_moe",
    .max_top_k = 16,
    .prefill = "rank=score",
    .decode = "",
    .free_prefill = "",
    .free_decode = "pool",
    .candidates = EXF_FOLD_POOL_OF_ALL,
    .check = check_qwen3,
};
