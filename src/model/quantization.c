/* quantization.c - see quantization.h. */
#include "model/quantization.h"

#include <string.h>

#define SUPPORTED "supported is \"fp8\" with fmt \"e4m3\" and scales per block of weight_block_size, or no quantization_config"

static exf_code read_block(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const exf_json *block;
    exf_code rc = exf_config_find(c, "quantization_config.weight_block_size", &block, err);
    if (rc != EXF_OK) return rc;
    q->block_rows = q->block_cols = 128;
    if (!block) return EXF_OK;
    int is_pair = exf_json_type(block) == EXF_JSON_ARRAY && exf_json_size(block) == 2;
    for (size_t i = 0; is_pair && i < 2; i++) {
        int64_t n = exf_json_type(exf_json_at(block, i)) == EXF_JSON_INT ? exf_json_int(exf_json_at(block, i)) : 0;
        if (n < 1 || n > 1 << 20) is_pair = 0;
        *(i ? &q->block_cols : &q->block_rows) = (int)n;
    }
    if (is_pair) return EXF_OK;
    return exf_fail(err, EXF_MODEL,
                    "%s: \"quantization_config.weight_block_size\" is %s of %zu, expected two integers from 1 to 1048576", c->path,
                    exf_json_type_name(block), exf_json_size(block));
}

/* DeepSeek-V4 says here how its experts are stored; the configs that say so come
 * with E8M0 scales, all others with F32. */
static exf_code read_experts(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const char *dtype;
    exf_code rc = exf_config_text_or(c, "expert_dtype", NULL, &dtype, err);
    if (rc != EXF_OK || !dtype) return rc;
    q->e8m0_scales = 1;
    q->fp4_experts = strcmp(dtype, "fp4") == 0;
    if (q->fp4_experts || strcmp(dtype, "fp8") == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: \"expert_dtype\" is \"%s\"; supported are \"fp4\" and \"fp8\"", c->path, dtype);
}

exf_code exf_quantization_read(const exf_config *c, exf_quantization *q, exf_err *err)
{
    exf_code rc;
    const exf_json *given;
    const char *method, *fmt;
    memset(q, 0, sizeof *q);
    EXF_TRY(exf_config_find(c, "quantization_config", &given, err));
    if (!given) return EXF_OK;
    EXF_TRY(exf_config_text_or(c, "quantization_config.quant_method", "missing", &method, err));
    EXF_TRY(exf_config_text_or(c, "quantization_config.fmt", "e4m3", &fmt, err));
    if (strcmp(method, "fp8") != 0)
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.quant_method\" is \"%s\"; " SUPPORTED, c->path, method);
    if (strcmp(fmt, "e4m3") != 0)
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.fmt\" is \"%s\"; " SUPPORTED, c->path, fmt);
    EXF_TRY(read_block(c, q, err));
    EXF_TRY(read_experts(c, q, err));
    q->fp8 = q->fp4 = 1;
out:
    return rc;
}
