/* check_quantization.c - what quantization_config may say, by whom, and tensors that do not fit it.  That the formats are decoded
 * to what their libraries say is check_quantized.c's, of whole models. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "model/model.h"
#include "model/quantization.h"
#include "model/weight_source.h"

#include <stdio.h>
#include <string.h>

static exf_json *document;

/* Reads {"quantization_config": {...}}; what it lends lives until the next call. */
static exf_code read_config(const char *inside, exf_quantization *q, exf_err *e)
{
    char text[2048];
    exf_json_free(document);
    snprintf(text, sizeof text, "{\"quantization_config\": {%s}}", inside);
    ck_ok(exf_json_parse(&document, text, strlen(text), "config.json", e), *e);
    exf_config c = {document, "config.json"};
    return exf_quantization_read(&c, q, e);
}

#define CT "\"quant_method\": \"compressed-tensors\", "
#define BESIDE(member) "}, " member ", \"other\": {" /* a member of the config beside quantization_config */
#define GROUP(weights) CT "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {" weights "}}}"
#define INT4(more) "\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, " more
#define FLOAT(bits, more) "\"num_bits\": " #bits ", \"type\": \"float\", \"symmetric\": true, " more

START_TEST(schemes_that_are_read)
{
    static const struct { const char *config; exf_quantization is; } c[] = {
        {GROUP(INT4("\"strategy\": \"group\", \"group_size\": 32")), {.formats = EXF_FORMAT_INT4, .group_cols = 32}},
        {GROUP(INT4("\"group_size\": 128")), {.formats = EXF_FORMAT_INT4, .group_cols = 128}},
        {GROUP(INT4("\"strategy\": \"channel\"")), {.formats = EXF_FORMAT_INT4}},
        {GROUP("\"num_bits\": 4, \"symmetric\": false, \"group_size\": 64"),
         {.formats = EXF_FORMAT_INT4, .group_cols = 64, .zeros = 1}},
        {GROUP(FLOAT(8, "\"strategy\": \"channel\"")), {.formats = EXF_FORMAT_FP8}},
        {GROUP(FLOAT(8, "\"strategy\": \"tensor\"")), {.formats = EXF_FORMAT_FP8, .whole_scales = 1}},
        {GROUP(FLOAT(8, "\"strategy\": \"block\", \"block_structure\": [64, 128]")),
         {.formats = EXF_FORMAT_FP8, .block_rows = 64, .block_cols = 128}},
        {GROUP(FLOAT(4, "\"strategy\": \"tensor_group\", \"group_size\": 16")), {.formats = EXF_FORMAT_NVFP4}},
        {GROUP(FLOAT(4, "\"strategy\": \"group\", \"group_size\": 32")), {.formats = EXF_FORMAT_MXFP4}},
        {GROUP(FLOAT(8, "\"strategy\": \"group\", \"group_size\": 32")), {.formats = EXF_FORMAT_MXFP8}},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\"", {.formats = EXF_FORMAT_MXFP8}},
        {"\"quant_method\": \"mxfp8\", \"weight_block_size\": [1, 32]",
         {.formats = EXF_FORMAT_MXFP8, .fp8 = 1, .e8m0_scales = 1, .block_rows = 1, .block_cols = 32}},
        {"\"quant_method\": \"fp8\", \"moe_quant_algo\": \"NVFP4\"",
         {.formats = EXF_FORMAT_NVFP4, .fp8 = 1, .fp4 = 1, .block_rows = 128, .block_cols = 128}},
        {"\"quant_method\": \"mxfp8\"",
         {.formats = EXF_FORMAT_MXFP8, .fp8 = 1, .e8m0_scales = 1, .block_rows = 1, .block_cols = 32}},
        {CT "\"format\": \"mixed-precision\", \"config_groups\": {\"a\": {\"weights\": null}, \"b\": {\"weights\": {" FLOAT(
             8, "\"strategy\": \"channel\"") "}}, \"c\": {\"weights\": {" INT4("\"group_size\": 32") "}}}",
         {.formats = EXF_FORMAT_FP8 | EXF_FORMAT_INT4, .group_cols = 32}},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"", {.formats = EXF_FORMAT_NVFP4}},
        {"\"quant_method\": \"modelopt_fp4\", \"quant_algo\": \"NVFP4\"", {.formats = EXF_FORMAT_NVFP4}},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"", {.formats = EXF_FORMAT_FP8, .whole_scales = 1}},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"a\": {\"quant_algo\": "
         "\"FP8\"}, \"b\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}}",
         {.formats = EXF_FORMAT_FP8 | EXF_FORMAT_NVFP4, .whole_scales = 1}},
        {"\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64, \"version\": \"gemm\", \"zero_point\": false",
         {.formats = EXF_FORMAT_INT4, .group_cols = 64, .zeros_are_8 = 1}},
        {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -1, \"desc_act\": true",
         {.formats = EXF_FORMAT_INT4, .zeros = 1, .zero_add = 1, .order = EXF_ORDER_STORED}},
        {"\"quant_method\": \"gptq\", \"bits\": 4, \"desc_act\": false, \"sym\": true",
         {.formats = EXF_FORMAT_INT4, .group_cols = 128, .zeros = 1, .zero_add = 1, .zeros_are_8 = 1,
          .order = EXF_ORDER_SEQUENCE}},
        {"\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"lm_head\"]",
         {.fp8 = 1, .fp4 = 1, .block_rows = 128, .block_cols = 128}},
        {"\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"static\", \"scale_fmt\": \"ue8m0\", "
         "\"weight_block_size\": [64, 32]" BESIDE("\"expert_dtype\": \"fp4\""),
         {.fp8 = 1, .fp4 = 1, .fp4_experts = 1, .byte_scales = 1, .e8m0_scales = 1, .block_rows = 64, .block_cols = 32}},
        {"\"quant_method\": \"mxfp4\", \"modules_to_not_convert\": [\"lm_head\"]", {.formats = EXF_FORMAT_MXFP4}},
        {"\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"gptq_v2\"",
         {.formats = EXF_FORMAT_INT4, .group_cols = 128, .zeros = 1, .order = EXF_ORDER_STORED}},
    };
    exf_err e;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        exf_quantization q, want = c[i].is;
        ck_ok(read_config(c[i].config, &q, &e), e);
        want.quantizer = q.quantizer;
        want.exempt = q.exempt;
        ck_assert_msg(memcmp(&q, &want, sizeof q) == 0, "%s", c[i].config);
    }
}
END_TEST

START_TEST(schemes_that_are_refused_by_name)
{
    static const char *const c[][2] = {
        {GROUP("\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"channel\""), "group_0.weights\" is int of 8 bits, channel"},
        {GROUP("\"num_bits\": 2, \"type\": \"int\", \"group_size\": 32"), "int of 2 bits, group, groups of 32"},
        {GROUP(FLOAT(8, "\"strategy\": \"group\", \"group_size\": 64")), "float of 8 bits, group, groups of 64"},
        {GROUP("\"num_bits\": 8, \"type\": \"float\", \"symmetric\": false"), "asymmetric float of 8 bits, tensor"},
        {GROUP(FLOAT(6, "\"strategy\": \"group\", \"group_size\": 32")), "float of 6 bits"},
        {GROUP(FLOAT(4, "\"strategy\": \"group\", \"group_size\": 16")), "float of 4 bits, group, groups of 16"},
        {GROUP(FLOAT(8, "\"strategy\": \"block\", \"block_structure\": [64]")), "block_structure\" is an array of 1"},
        {CT "\"format\": \"marlin-24\", \"config_groups\": {}", "format\" is \"marlin-24\", a scheme that is not read"},
        {CT "\"format\": \"int-quantized\", \"config_groups\": {}", "\"int-quantized\""},
        {CT "\"config_groups\": {\"g\": {\"format\": \"mxfp6-packed\"}}", "config_groups.g.format\" is \"mxfp6-packed\""},
        {"\"quant_method\": \"mxfp8\", \"weight_block_size\": [32, 32]", "weight_block_size\" is [32, 32], expected [1, 32]"},
        {"\"quant_method\": \"mxfp8\", \"fmt\": \"e5m2\"", "fmt\" is \"e5m2\""},
        {CT "\"config_groups\": {\"g\": {\"weights\": null}}", "config_groups\" has no group with weights"},
        {CT "\"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}", "sparsity_config.format\" is \"sparse-24-bitmask\""},
        {CT "\"transform_config\": {\"config_groups\": {\"u\": {}}}", "transform_config\" rotates weights (u)"},
        {CT "\"config_groups\": {\"a\": {\"weights\": {" INT4("\"group_size\": 32") "}}, \"b\": {\"weights\": {" INT4(
             "\"group_size\": 128") "}}}",
         "config_groups.b\" has 4-bit integers of group_size 128, symmetric 1, actorder 0; a group"},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8_AWQ\"", "quant_algo\" is \"W4A8_AWQ\""},
        {"\"quant_method\": \"modelopt\"", "quant_algo\" is \"missing\""},
        {"\"quant_method\": \"awq\", \"bits\": 8", "only 4 is supported"},
        {"\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"", "version\" is \"gemv\""},
        {"\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 0", "is 0, expected columns of a group"},
        {"\"quant_method\": \"gptq\", \"bits\": 3", "only 4 is supported"},
        {"\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"marlin\"", "format\" is \"marlin\""},
        {"\"quant_method\": \"gptq\", \"bits\": 4, \"is_marlin_format\": true", "is_marlin_format"},
        {"\"quant_method\": \"bitsandbytes\"", "packed by bitsandbytes, which is not read; calibrate on the release"},
        {"\"quant_method\": \"auto-round\"", "packed by AutoRound"},
        {"\"quant_method\": \"new\"", "\"new\"; supported are"},
        {"\"bits\": 4", "is \"missing\"; supported are \"fp8\""},
        {"\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"", "fmt\" is \"e5m2\""},
        {"\"quant_method\": \"fp8\", \"weight_block_size\": [128]", "weight_block_size"},
        {"\"quant_method\": \"fp8\", \"weight_block_size\": [128, 0]", "weight_block_size"},
        {"\"quant_method\": \"fp8\", \"weight_block_size\": 128", "weight_block_size"},
        {"\"quant_method\": \"fp8\"" BESIDE("\"expert_dtype\": \"int4\""), "\"expert_dtype\" is \"int4\""},
    };
    exf_err e = {.msg = ""};
    exf_quantization q;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ck_fails(read_config(c[i][0], &q, &e), EXF_MODEL, e, "config.json: \"");
        ck_assert_msg(strstr(e.msg, c[i][1]) != NULL, "%s: %s", c[i][1], e.msg);
    }
}
END_TEST

/* Lists of modules count where there are no tensors yet. */
START_TEST(modules_that_are_exempt)
{
    static const struct { const char *config, *weight; int exempt; } c[] = {
        {GROUP(INT4("\"group_size\": 32")) ", \"ignore\": [\"lm_head\", \"re:.*self_attn.*\"]", "a.self_attn.q.weight", 1},
        {GROUP(INT4("\"group_size\": 32")) ", \"ignore\": [\"lm_head\", \"re:.*self_attn.*\"]", "lm_head.weight", 1},
        {GROUP(INT4("\"group_size\": 32")) ", \"ignore\": [\"lm_head\", \"re:self_attn.*\"]", "a.self_attn.q.weight", 0},
        {GROUP(INT4("\"group_size\": 32")) ", \"ignore\": [\"re:(a{1,99}){1,99}\", \"re:(a)\\\\1\", 3]", "aa.weight", 0},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"ignore\": [\"m.*.gate\"]", "m.3.gate.weight", 1},
        {"\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"ignore\": [\"m.*.gate\"]", "m.3.gate_proj.weight", 0},
        {"\"quant_method\": \"awq\", \"modules_to_not_convert\": [\"gate\"]", "m.mlp.gate.weight", 1},
        {"\"quant_method\": \"gptq\", \"dynamic\": {\"-:.*q_proj\": {}, \"+:.*\": {}}", "m.q_proj.weight", 1},
        {"\"quant_method\": \"gptq\", \"dynamic\": {\"-:.*q_proj\": {}, \"+:.*\": {}}", "m.k_proj.weight", 0},
        {"\"quant_method\": \"gptq\"", "m.k_proj.weight", 0},
    };
    exf_err e;
    exf_quantization q;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ck_ok(read_config(c[i].config, &q, &e), e);
        ck_assert_msg(exf_quantization_exempts(&q, c[i].weight) == c[i].exempt, "%s: %s", c[i].config, c[i].weight);
    }
}
END_TEST

/* ---- tensors --------------------------------------------------------------------------- */

static _Alignas(4) char bytes[8192];
static float values[16 * 64];

#define T(name, dtype, ...) \
    {"a." name, EXF_DT_##dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}, bytes}

/* Finds and reads a.weight [16, 64]. */
static exf_code read_tensors(const exf_quantization *q, const exf_tensor *t, size_t n, exf_err *e)
{
    exf_checkpoint *c;
    exf_weight_source w;
    int64_t shape[2] = {16, 64};
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, t, n, NULL, 0, NULL, e), *e);
    ck_ok(exf_checkpoint_open(&c, exf_scratch("."), e), *e);
    exf_code rc = exf_weight_source_find(&w, c, q, "config.json", "a.weight", shape, 2, EXF_LINEAR, e);
    if (rc == EXF_OK) rc = exf_weight_source_read(&w, 0, 16, 64, values, e);
    exf_checkpoint_close(c);
    return rc;
}

static const exf_quantization int4 = {.quantizer = EXF_QUANTIZER_COMPRESSED, .formats = EXF_FORMAT_INT4, .group_cols = 32,
                                      .zeros = 1},
                              fp4 = {.quantizer = EXF_QUANTIZER_COMPRESSED, .formats = EXF_FORMAT_NVFP4 | EXF_FORMAT_MXFP4},
                              fp8 = {.quantizer = EXF_QUANTIZER_MODELOPT, .formats = EXF_FORMAT_FP8},
                              mxfp8 = {.quantizer = EXF_QUANTIZER_MODELOPT, .formats = EXF_FORMAT_FP8 | EXF_FORMAT_MXFP8},
                              awq = {.quantizer = EXF_QUANTIZER_AWQ, .formats = EXF_FORMAT_INT4, .group_cols = 32, .zeros = 1},
                              gptq = {.quantizer = EXF_QUANTIZER_GPTQ, .formats = EXF_FORMAT_INT4, .group_cols = 32, .zeros = 1};

START_TEST(tensors_that_do_not_fit)
{
    static const struct { const exf_quantization *q; exf_tensor t[4]; int n; const char *says; } c[] = {
        {&int4, {T("weight_packed", I32, 16, 7)}, 1, "a.weight_packed\" is [16, 7], config.json says [16, 8] (eight 4-bit"},
        {&int4, {T("weight_packed", I32, 16, 8)}, 1, "lacks its scales \"a.weight_scale\""},
        {&int4, {T("weight_packed", I32, 16, 8), T("weight_scale", BF16, 16, 1)}, 2,
         "a.weight_scale\" is [16, 1], config.json says [16, 2] (one per group_size columns)"},
        {&int4, {T("weight_packed", I32, 16, 8), T("weight_scale", I32, 16, 2)}, 2,
         "scales \"a.weight_scale\" of type I32, expected F16 or BF16 or F32"},
        {&int4, {T("weight_packed", I32, 16, 8), T("weight_scale", BF16, 16, 2)}, 2,
         "lacks its zero points \"a.weight_zero_point\""},
        {&int4, {T("weight_packed", I32, 16, 8), T("weight_scale", BF16, 16, 2), T("weight_zero_point", I32, 16, 2)}, 3,
         "a.weight_zero_point\" is [16, 2], config.json says [2, 2]"},
        {&int4, {T("weight_packed", U8, 16, 32)}, 1, "a.weight_packed\" is packed FP4, which no group"},
        {&int4, {T("weight", F8_E4M3, 16, 64)}, 1, "a.weight\" is FP8, which no group"},
        {&int4, {T("weight", I8, 16, 64)}, 1, "a.weight\" is I8, expected BF16, F16, F32 or a format that \"quantization_config\""},
        {&fp4, {T("weight_packed", I32, 16, 8)}, 1, "a.weight_packed\" is packed integers, which no group"},
        {&fp4, {T("weight_packed", U8, 16, 32), T("weight_scale", F8_E4M3, 16, 4)}, 2,
         "scales \"a.weight_scale\" of type F8_E4M3, expected"},
        {&fp4, {T("weight_packed", U8, 16, 32), T("weight_scale", F8_E4M3, 16, 4), T("weight_global_scale", F16, 1)}, 3,
         "factor for the scales \"a.weight_global_scale\" of type F16, expected F32"},
        {&fp4, {T("weight_packed", U8, 16, 32), T("weight_scale", F8_E4M3, 16, 4), T("weight_global_scale", F32, 2)}, 3,
         "a.weight_global_scale\" is [2], config.json says [1]"},
        {&fp8, {T("weight", F8_E4M3, 16, 64), T("weight_scale", F32, 16, 2)}, 2,
         "a.weight_scale\" is [16, 2], config.json says [16, 1] (one a row), or one number"},
        {&mxfp8, {T("weight", F8_E4M3, 16, 64), T("weight_scale", U8, 16, 1)}, 2,
         "a.weight_scale\" is [16, 1], config.json says [16, 2] (one per 32 columns)"},
        {&mxfp8, {T("weight", F8_E4M3, 16, 64), T("weight_scale", BF16, 16, 2)}, 2,
         "a.weight_scale\" is [16, 2], config.json says [16, 1] (one a row)"},
        {&awq, {T("qweight", I32, 8, 16), T("scales", F16, 2, 16)}, 2, "a.qweight\" is [8, 16], config.json says [64, 2]"},
        {&gptq, {T("qweight", I32, 64, 2), T("scales", F16, 2, 16)}, 2, "a.qweight\" is [64, 2], config.json says [8, 16]"},
        {&gptq, {T("qweight", I32, 8, 16), T("scales", F16, 2, 16), T("qzeros", I32, 2, 2), T("g_idx", I32, 63)}, 4,
         "a.g_idx\" is [63], config.json says [64] (the group of a column)"},
        {&gptq, {T("scales", F16, 2, 16)}, 1, "config.json: tensor \"a.weight\" [16, 64] is missing"},
    };
    exf_err e = {.msg = ""};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ck_fails(read_tensors(c[i].q, c[i].t, (size_t)c[i].n, &e), EXF_MODEL, e, "a.");
        ck_assert_msg(strstr(e.msg, c[i].says) != NULL, "%s: %s", c[i].says, e.msg);
    }
}
END_TEST

START_TEST(values_that_cannot_be)
{
    exf_err e;
    int32_t groups[64] = {0};
    float factor = 0;
    uint8_t scales[64];
    memset(scales, 0x38, sizeof scales);
    exf_tensor order[] = {T("qweight", I32, 8, 16), T("scales", F16, 2, 16), T("qzeros", I32, 2, 2), T("g_idx", I32, 64)};
    order[3].data = groups;
    ck_ok(read_tensors(&gptq, order, 4, &e), e);
    groups[7] = 2;
    ck_fails(read_tensors(&gptq, order, 4, &e), EXF_MODEL, e, "\"a.g_idx\": column 7 is of group 2, expected 0 to 1");
    groups[7] = -1;
    ck_fails(read_tensors(&gptq, order, 4, &e), EXF_MODEL, e, "column 7 is of group -1");
    exf_tensor nvfp4[] = {T("weight_packed", U8, 16, 32), T("weight_scale", F8_E4M3, 16, 4),
                          T("weight_global_scale", F32, 1)};
    nvfp4[1].data = scales;
    nvfp4[2].data = &factor;
    ck_fails(read_tensors(&fp4, nvfp4, 3, &e), EXF_NUMERIC, e, "\"a.weight_global_scale\" is 0, expected a number above 0");
    factor = 2;
    ck_ok(read_tensors(&fp4, nvfp4, 3, &e), e);
    scales[6] = 0x7f;
    ck_fails(read_tensors(&fp4, nvfp4, 3, &e), EXF_NUMERIC, e,
             "scales \"a.weight_scale\": the scale of block [1, 2] is not a number");
    exf_tensor of_mxfp8[] = {T("weight", F8_E4M3, 16, 64), T("weight_scale", U8, 16, 2)};
    memset(scales, 0x7f, sizeof scales);
    of_mxfp8[1].data = scales;
    ck_ok(read_tensors(&mxfp8, of_mxfp8, 2, &e), e);
    scales[7] = 0xff;
    ck_fails(read_tensors(&mxfp8, of_mxfp8, 2, &e), EXF_NUMERIC, e,
             "scales \"a.weight_scale\": the scale of block [3, 1] is not a number");
}
END_TEST

/* AWQ without zero points has none stored, and all are 8. */
START_TEST(awq_without_zero_points)
{
    exf_err e;
    uint16_t scales[32];
    exf_quantization q = awq;
    exf_tensor t[] = {T("qweight", I32, 64, 2), T("scales", BF16, 2, 16)};
    q.zeros = 0;
    for (int i = 0; i < 32; i++) scales[i] = (uint16_t)(0x3f80 + i / 16 * 0x80); /* 1 and 2 */
    t[1].data = scales;
    ck_ok(read_tensors(&q, t, 2, &e), e);
    for (int i = 0; i < 16 * 64; i++) ck_assert(values[i] == (i % 64 < 32 ? -8 : -16));
}
END_TEST

/* AutoRound's symmetric AWQ says that there are no zero points, and stores 8 for each; another is refused. */
START_TEST(symmetric_awq_that_stores_zero_points)
{
    exf_err e;
    uint16_t scales[32];
    uint32_t zeros[4];
    exf_quantization q = awq;
    exf_tensor t[] = {T("qweight", I32, 64, 2), T("scales", BF16, 2, 16), T("qzeros", I32, 2, 2)};
    q.zeros = 0;
    q.zeros_are_8 = 1;
    for (int i = 0; i < 32; i++) scales[i] = 0x3f80; /* 1 */
    for (int i = 0; i < 4; i++) zeros[i] = 0x88888888;
    t[1].data = scales;
    t[2].data = zeros;
    ck_ok(read_tensors(&q, t, 3, &e), e);
    for (int i = 0; i < 16 * 64; i++) ck_assert(values[i] == -8);
    zeros[3] = 0x88888878;
    ck_fails(read_tensors(&q, t, 3, &e), EXF_MODEL, e,
             "\"a.qzeros\": the zero point of group 1, row 9 is stored as 7, but \"zero_point\": false says that all are 8");
}
END_TEST

/* weight_g_idx, which older versions of compressed-tensors write, is GPTQ's g_idx. */
START_TEST(columns_of_any_order)
{
    exf_err e;
    uint16_t scales[32];
    int32_t groups[64];
    for (int i = 0; i < 32; i++) scales[i] = (uint16_t)(0x3f80 + i % 2 * 0x80); /* 1 and 2 */
    for (int i = 0; i < 64; i++) groups[i] = i % 2;
    exf_quantization q = int4;
    q.zeros = 0;
    exf_tensor t[] = {T("weight_packed", I32, 16, 8), T("weight_scale", BF16, 16, 2), T("weight_g_idx", I32, 64)};
    t[1].data = scales;
    t[2].data = groups;
    ck_ok(read_tensors(&q, t, 3, &e), e);
    for (int i = 0; i < 16 * 64; i++) ck_assert(values[i] == (i % 2 ? -16 : -8));
}
END_TEST

/* Writes a config.json of `path` to the scratch directory, with a member before its others. */
static void put_config(const char *path, const char *member)
{
    char *config = NULL;
    size_t n;
    exf_err e;
    exf_text text = {0};
    ck_ok(exf_file_slurp(path, 1 << 20, &config, &n, &e), e);
    exf_text_appendf(&text, "{%s%s", member, strchr(config, '{') + 1);
    ck_ok(exf_text_end(&text, &e), e);
    exf_write_file(exf_scratch("config.json"), text.s, text.len);
    exf_text_free(&text);
    exf_mem_free(config);
}

/* Opens the scratch directory's config alone. */
static exf_model *planned(void)
{
    exf_err e;
    exf_model *m;
    ck_ok(exf_model_open_part(&m, exf_scratch("."), EXF_MODEL_CONFIG, &e), e);
    return m;
}

#define NVFP4_EXPORT "\"quant_algo\": \"NVFP4\", \"exclude_modules\": [\"lm_head\", \"*self_attn*\", \"*linear_attn*\"]"

/* Families whose releases hold the experts of a layer in one tensor, which quantizers part: the plan is of coded matrices.  The
 * settings may stand in ModelOpt's own file; those of config.json come before it. */
START_TEST(plans_of_exports)
{
    static const char *const configs[] = {
        "tests/configs/qwen3.5-397b-a17b/config.json", "tests/configs/qwen3-vl-235b-a22b/config.json",
        "tests/golden/gemma4/config.json", "tests/configs/qwen3-235b-a22b/config.json"};
    static const char own[] = "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {" NVFP4_EXPORT
                              ", \"kv_cache_quant_algo\": \"FP8\"}}",
                      cache_alone[] = "{\"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"}}",
                      unread[] = "{\"quantization\": {\"quant_algo\": \"W4A8_AWQ\"}}";
    exf_err e;
    exf_model *m;
    for (int i = 0; i < COUNT(configs); i++) {
        remove(exf_scratch("hf_quant_config.json"));
        put_config(configs[i], "\"quantization_config\": {\"quant_method\": \"modelopt\", " NVFP4_EXPORT "}, ");
        m = planned();
        int last = m->arch.n_layers - 1;
        uint64_t whole = exf_model_bytes(m), one = exf_quantization_bytes(&m->quantization, m->arch.d_expert, m->arch.d_model, 1);
        ck_assert_uint_eq(exf_model_role_bytes(m, EXF_W_EXPERT_GATE, last), (uint64_t)m->arch.n_experts * one);
        exf_model_close(m);
        exf_write_file(exf_scratch("hf_quant_config.json"), own, sizeof own - 1);
        put_config(configs[i], "");
        m = planned();
        ck_assert_int_eq(m->quantization.quantizer, EXF_QUANTIZER_MODELOPT);
        ck_assert_uint_eq(exf_model_bytes(m), whole);
        exf_model_close(m);
        exf_write_file(exf_scratch("hf_quant_config.json"), unread, sizeof unread - 1);
        ck_fails(exf_model_open_part(&m, exf_scratch("."), EXF_MODEL_CONFIG, &e), EXF_MODEL, e, "hf_quant_config.json W4A8_AWQ");
        put_config(configs[i], "\"quantization_config\": {\"quant_method\": \"modelopt\", " NVFP4_EXPORT "}, ");
        exf_model_close(planned());
        exf_write_file(exf_scratch("hf_quant_config.json"), cache_alone, sizeof cache_alone - 1);
        put_config(configs[i], "");
        m = planned();
        ck_assert_int_eq(m->quantization.quantizer, EXF_QUANTIZER_NONE);
        exf_model_close(m);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, schemes_that_are_read);
    tcase_add_test(t, schemes_that_are_refused_by_name);
    tcase_add_test(t, modules_that_are_exempt);
    tcase_add_test(t, tensors_that_do_not_fit);
    tcase_add_test(t, values_that_cannot_be);
    tcase_add_test(t, awq_without_zero_points);
    tcase_add_test(t, symmetric_awq_that_stores_zero_points);
    tcase_add_test(t, columns_of_any_order);
    tcase_add_test(t, plans_of_exports);
}
