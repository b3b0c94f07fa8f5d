/* quantization_plan.c - what a config alone says of weights that are quantized as it says: which are exempt, their bytes, whether
 * bfloat16 holds them; see quantization.h. */
#include "model/quantization.h"

#include "base/text.h"

#include <ctype.h>
#include <fnmatch.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

/* Returns 1 if a regular expression matches a name from its first character on, as Python's match() does.  Expressions are of a
 * file that anybody may have written: those that can take much memory (counts) or time (references back) match nothing. */
static int matches_expression(const char *expression, const char *name)
{
    regex_t re;
    regmatch_t at;
    for (const char *p = expression; *p; p++)
        if (*p == '{' || (*p == '\\' && isalnum((unsigned char)p[1]))) return 0;
    if (strlen(expression) > 1000 || regcomp(&re, expression, REG_EXTENDED) != 0) return 0;
    int found = regexec(&re, name, 1, &at, 0) == 0 && at.rm_so == 0;
    regfree(&re);
    return found;
}

int exf_quantization_exempts(const exf_quantization *q, const char *weight)
{
    char module[256];
    size_t n = strlen(weight), tail = exf_ends_with(weight, ".weight") ? strlen(".weight") : 0;
    snprintf(module, sizeof module, "%.*s", (int)(n - tail), weight);
    if (exf_json_type(q->exempt) == EXF_JSON_OBJECT) { /* GPTQ's "dynamic": settings by expression, of which "-:" are exempt */
        for (void *it = exf_json_first(q->exempt); it; it = exf_json_next(q->exempt, it))
            if (exf_starts_with(exf_json_key(it), "-:") && matches_expression(exf_json_key(it) + 2, module)) return 1;
        return 0;
    }
    for (size_t i = 0; i < exf_json_size(q->exempt); i++) {
        const char *pattern = exf_json_string(exf_json_at(q->exempt, i), NULL);
        if (!pattern) continue;
        int found = q->quantizer == EXF_QUANTIZER_MODELOPT ? fnmatch(pattern, module, 0) == 0
                    : q->quantizer != EXF_QUANTIZER_COMPRESSED ? strstr(module, pattern) != NULL
                    : exf_starts_with(pattern, "re:") ? matches_expression(pattern + 3, module) : strcmp(pattern, module) == 0;
        if (found) return 1;
    }
    return 0;
}

static uint64_t blocks(int64_t n, int64_t size)
{
    return (uint64_t)((n + size - 1) / size);
}

int exf_quantization_fits_bf16(const exf_quantization *q, int expert)
{
    const unsigned mx = EXF_FORMAT_MXFP4 | EXF_FORMAT_MXFP8;
    unsigned formats = q->formats;
    if (q->quantizer == EXF_QUANTIZER_FP8 && formats & EXF_FORMAT_NVFP4 && !expert) formats = 0;
    return formats ? !(formats & ~mx) : q->e8m0_scales;
}

uint64_t exf_quantization_bytes(const exf_quantization *q, int64_t rows, int64_t cols, int expert)
{
    uint64_t r = (uint64_t)rows, n = r * (uint64_t)cols;
    if (q->quantizer == EXF_QUANTIZER_FP8) {
        if (q->formats & EXF_FORMAT_NVFP4 && expert) return n / 2 + r * blocks(cols, EXF_NVFP4_BLOCK) + 4;
        if (q->fp4_experts && expert) return n / 2 + r * blocks(cols, EXF_FP4_BLOCK);
        return n + blocks(rows, q->block_rows) * blocks(cols, q->block_cols) * (q->e8m0_scales ? 1 : 4);
    }
    if (q->formats & EXF_FORMAT_INT4) {
        uint64_t groups = blocks(cols, q->group_cols ? q->group_cols : cols);
        uint64_t codes = q->quantizer == EXF_QUANTIZER_COMPRESSED ? r * blocks(cols, 8) * 4 : n / 2;
        uint64_t zeros = q->zeros ? blocks(rows, 8) * 4 * groups : 0;
        return codes + 2 * r * groups + zeros + (q->quantizer == EXF_QUANTIZER_GPTQ ? 4 * (uint64_t)cols : 0);
    }
    if (q->formats & EXF_FORMAT_NVFP4) return n / 2 + r * blocks(cols, EXF_NVFP4_BLOCK) + 4;
    if (q->formats & EXF_FORMAT_MXFP4) return n / 2 + r * blocks(cols, EXF_FP4_BLOCK);
    if (q->formats & EXF_FORMAT_MXFP8) return n + r * blocks(cols, EXF_MXFP8_BLOCK);
    if (q->block_rows) return n + 2 * blocks(rows, q->block_rows) * blocks(cols, q->block_cols);
    return n + (q->quantizer == EXF_QUANTIZER_MODELOPT ? 4 : 2) * (q->whole_scales ? 1 : r);
}
