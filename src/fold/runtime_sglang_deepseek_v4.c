/* runtime_sglang_deepseek_v4.c - the public SGLang plugin for DeepSeek-V4-Flash: always with confidence, decode
 * ranked by router weight alone, layers that route by token id left alone. */
#include "fold/runtime.h"

const exf_runtime exf_runtime_sglang_deepseek_v4 = {
    .name = "sglang-deepseek-v4",
    .about = "the public SGLang plugin for DeepSeek-V4-Flash",
    .target = "exfold-deepseek-v4",
    .family = "deepseek_v4",
    .max_top_k = 8,
    .prefill = "rank=score,loss=frobenius,confidence=on",
    .decode = "rank=score,loss=frobenius,fallback=first",
    .free_prefill = "",
    .free_decode = "",
    .candidates = EXF_FOLD_POOL_OF_POSITIVE,
};
