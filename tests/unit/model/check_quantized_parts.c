/* check_quantized_parts.c - every optional tensor and every setting of every number format, absent, contradicted or of another
 * kind: either the model is decoded to what its library says, or it is refused.  docs/quantized.md has the same table in words.
 *
 * The models are those of tests/golden/quantized, with their SHA-256 of every matrix. */
#include "tests/support/saved_fixtures.h"

#include "base/file.h"
#include "base/text.h"

#define EXPERT "model.layers.0.mlp.experts.1.gate_proj."
#define QUERY "model.layers.0.self_attn.q_proj."

/* One change of a golden: tensors that are left out, one that is added, text of the config. */
typedef struct {
    const char *golden;
    const char *drop;    /* the end of the names; NULL: none */
    exf_tensor add;      /* name NULL: none */
    const char *edit[4]; /* from, to, from, to: in quantization_config, everywhere */
    const char *says;    /* NULL: every number is still the library's */
} variation;

static _Alignas(8) const char zeros[1 << 16];
static const int64_t whole[2] = {32, 64}, swapped[2] = {64, 32}, minus[2] = {-1, -1};
static const int32_t narrow[2] = {32, 64};

#define T(name, dtype, data, ...) \
    {name, EXF_DT_##dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}, data}
#define ABSENT(key) {"\"" key "\"", "\"unread\""}
/* A group of settings before the golden's own. */
#define GROUP(weights) {"\"config_groups\": {", "\"config_groups\": {\"a\": {\"weights\": {" weights "}},"}
#define BLOCKS(rows, cols) \
    GROUP("\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"block\", \"block_structure\": [" #rows " , " #cols "]")
#define SHAPE "experts.1.gate_proj.weight_shape"

static const variation gptq[] = {
    {.golden = "gptq-order", .drop = "experts.1.gate_proj.g_idx", .says = EXPERT "g_idx\" \"desc_act\": config.json"},
    {.golden = "gptq-order", .drop = ".g_idx", .says = "g_idx\" \"desc_act\": config.json"},
    {.golden = "gptq-order", .edit = ABSENT("desc_act")},
    {.golden = "gptq-order", .drop = ".g_idx", .edit = ABSENT("desc_act"), .says = "g_idx\" \"desc_act\": config.json"},
    {.golden = "gptq-order", .edit = {"\"desc_act\": true", "\"desc_act\": false"}, .says = "g_idx\": \"desc_act\":"},
    {.golden = "gptq-order", .edit = {"\"desc_act\": true", "\"desc_act\": 1"}, .says = "\"quantization_config.desc_act\""},
    {.golden = "gptq-g32", .drop = ".g_idx"},
    {.golden = "gptq-g32", .drop = "experts.1.gate_proj.g_idx"},
    {.golden = "gptq-g32", .edit = ABSENT("desc_act")},
    {.golden = "gptq-g32", .edit = {"\"desc_act\": false", "\"desc_act\": true"}},
    {.golden = "gptq-g32", .drop = ".g_idx", .edit = ABSENT("desc_act"), .says = "g_idx\" \"desc_act\": config.json"},
    {.golden = "gptq-v2-g128", .drop = ".g_idx", .edit = {"\"desc_act\": false", "\"desc_act\": true"}}, /* one group a row */
    {.golden = "gptq-g32", .drop = ".qzeros", .says = "qzeros\""},
    {.golden = "gptq-g32", .drop = "1.gate_proj.scales", .says = EXPERT "scales\""},
    {.golden = "gptq-g32", .drop = "1.gate_proj.qweight", .says = "config.json: \"" EXPERT "weight\" [32, 64]"},
    {.golden = "gptq-g32", .add = T(EXPERT "weight", BF16, zeros, 32, 64), .says = EXPERT "g_idx\" config.json"},
    {.golden = "gptq-g32", .edit = ABSENT("bits")},
    {.golden = "gptq-g32", .edit = ABSENT("group_size"), .says = "scales\" [2, 32], config.json [1, 32]"},
    {.golden = "gptq-v2-g128", .edit = ABSENT("group_size")},
    {.golden = "gptq-v2-g128", .edit = {"\"group_size\": 128", "\"group_size\": null"}},
    {.golden = "gptq-v2-g128", .edit = {"\"group_size\": 128", "\"group_size\": -1"}},
    {.golden = "gptq-g32", .edit = ABSENT("sym")},
    {.golden = "gptq-g32", .edit = {"\"sym\": true", "\"sym\": false"}},
    {.golden = "gptq-order", .edit = ABSENT("sym")},
    {.golden = "gptq-order", .edit = {"\"sym\": false", "\"sym\": true"}, .says = "qzeros\": \"sym\": 8"},
    {.golden = "gptq-g32", .edit = ABSENT("checkpoint_format")},
    {.golden = "gptq-g32", .edit = {"\"checkpoint_format\"", "\"format\""}},
    {.golden = "gptq-v2-g128", .edit = {"\"checkpoint_format\"", "\"format\""}},
    {.golden = "gptq-g32", .edit = {"\"bits\"", "\"format\": \"gptq_v2\", \"bits\""},
     .says = "\"quantization_config.checkpoint_format\" \"quantization_config.format\" gptq_v2:"},
    {.golden = "gptq-g32", .edit = {"\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"gptq_v2\""},
     .says = "qzeros\": 0, 0 7, \"sym\": 8"},
    {.golden = "gptq-g32", .edit = ABSENT("pack_dtype")},
    {.golden = "gptq-g32", .edit = {"\"int32\"", "\"int64\""}, .says = "\"quantization_config.pack_dtype\" int64; int32"},
    {.golden = "gptq-g32", .edit = {"\"bits\"", "\"rotation\": \"hadamard\", \"bits\""},
     .says = "\"quantization_config.rotation\""},
    {.golden = "gptq-g32", .edit = {"\"bits\"", "\"static_groups\": true, \"true_sequential\": true, \"bits\""}},
    {.golden = "gptq-order", .edit = {"\"bits\"", "\"static_groups\": true, \"true_sequential\": false, \"bits\""}},
    {.golden = "gptq-g32", .edit = {"\"damp_percent\"", "\"unread\"", "\"lm_head\"", "\"unread2\""}},
    {.golden = "gptq-g32", .edit = ABSENT("dynamic")},
    {.golden = "gptq-g32", .edit = {"\"dynamic\": {}", "\"dynamic\": null"}},
    {.golden = "gptq-g32", .edit = {"\"dynamic\": {}", "\"dynamic\": []"}, .says = "\"quantization_config.dynamic\""},
    {.golden = "gptq-g32",
     .edit = {"\"dynamic\": {}", "\"dynamic\": {\"+:.*up_proj\": {\"bits\": 4, \"group_size\": 32}, \"-:x\": {}}"}},
    {.golden = "gptq-g32", .edit = {"\"dynamic\": {}", "\"dynamic\": {\"+:.*up_proj\": {\"bits\": 8}}"},
     .says = "\"+:.*up_proj\" 8"},
    {.golden = "gptq-g32", .edit = {"\"dynamic\": {}", "\"dynamic\": {\".*up_proj\": {\"group_size\": -1}}"},
     .says = "\".*up_proj\" 0"},
    {.golden = "gptq-g32", .edit = {"\"dynamic\": {}", "\"dynamic\": {\"+:.*\": {\"desc_act\": true}}"}, .says = "\"+:.*\" 1"},
    {.golden = "gptq-g32", .edit = {"\"dynamic\": {}", "\"dynamic\": {\"+:.*\": {\"sym\": false}}"}, .says = "\"+:.*\" 0"},
    {.golden = "gptqmodel-v2-order", .edit = ABSENT("quantizer")},
    {.golden = "gptqmodel-order", .drop = ".g_idx", .says = "g_idx\" \"desc_act\": config.json"},
};

static const variation awq[] = {
    {.golden = "awq-g32", .drop = ".qzeros", .says = "qzeros\""},
    {.golden = "awq-g32", .drop = "1.gate_proj.scales", .says = EXPERT "scales\""},
    {.golden = "awq-g32", .drop = "1.gate_proj.qweight", .says = "config.json: \"" EXPERT "weight\" [32, 64]"},
    {.golden = "awq-g32", .add = T(EXPERT "g_idx", I32, zeros, 64), .says = EXPERT "g_idx\" config.json"},
    {.golden = "awq-g32", .add = T(EXPERT "weight", BF16, zeros, 32, 64), .says = EXPERT "qweight\" config.json"},
    {.golden = "awq-g32", .edit = ABSENT("zero_point")},
    {.golden = "awq-g32", .edit = {"\"zero_point\": true", "\"zero_point\": false"}, .says = "qzeros\": \"zero_point\": 8"},
    {.golden = "awq-g32", .edit = ABSENT("version")},
    {.golden = "awq-g32", .edit = {"\"gemm\"", "\"GEMM\""}},
    {.golden = "awq-g32", .edit = ABSENT("bits")},
    {.golden = "awq-g32", .edit = {"\"bits\"", "\"w_bit\"", "\"group_size\"", "\"q_group_size\""}},
    {.golden = "awq-g32", .edit = ABSENT("group_size"), .says = "scales\" [2, 32], config.json [1, 32]"},
    {.golden = "awq-g128", .edit = ABSENT("group_size")},
    {.golden = "awq-g128", .edit = {"\"group_size\": 128", "\"group_size\": -1"}},
    {.golden = "awq-g32", .edit = ABSENT("modules_to_not_convert")},
};

static const variation integers[] = {
    {.golden = "int4-g32", .drop = ".weight_shape"},
    {.golden = "int4-g32", .drop = SHAPE, .add = T(EXPERT "weight_shape", I64, whole, 2)},
    {.golden = "int4-g32", .drop = SHAPE, .add = T(EXPERT "weight_shape", I32, narrow, 2)},
    {.golden = "int4-g32", .drop = SHAPE, .add = T(EXPERT "weight_shape", I64, minus, 2),
     .says = EXPERT "weight_shape\" [-1, -1], [32, 64]"},
    {.golden = "int4-g32", .drop = SHAPE, .add = T(EXPERT "weight_shape", I64, swapped, 2),
     .says = EXPERT "weight_shape\" [64, 32], [32, 64]"},
    {.golden = "int4-g32", .drop = SHAPE, .add = T(EXPERT "weight_shape", I64, zeros, 0),
     .says = EXPERT "weight_shape\" [0], config.json [2]"},
    {.golden = "int4-g32", .drop = SHAPE, .add = T(EXPERT "weight_shape", I64, whole, 1, 2),
     .says = EXPERT "weight_shape\" [1, 2],"},
    {.golden = "int4-g32", .drop = SHAPE, .add = T(EXPERT "weight_shape", F32, whole, 2),
     .says = EXPERT "weight_shape\" F32, I32 I64"},
    {.golden = "int4-g32", .add = T(QUERY "weight_shape", I64, whole, 2), .says = QUERY "weight_shape\" config.json"},
    {.golden = "int4-g32", .drop = "1.gate_proj.weight_scale", .says = EXPERT "weight_scale\""},
    {.golden = "int4-g32", .drop = "1.gate_proj.weight_packed", .says = "config.json: \"" EXPERT "weight\" [32, 64]"},
    {.golden = "int4-g32", .add = T(EXPERT "weight", BF16, zeros, 32, 64), .says = EXPERT "weight_packed\" config.json"},
    {.golden = "int4-g32-zeros", .drop = ".weight_zero_point", .says = "weight_zero_point\""},
    {.golden = "int4-g32-zeros", .edit = {"\"symmetric\": false", "\"symmetric\": true"},
     .says = "weight_zero_point\" config.json"},
    {.golden = "int4-g32-zeros", .edit = ABSENT("symmetric"), .says = "weight_zero_point\" config.json"},
    {.golden = "int4-g32", .edit = ABSENT("symmetric")},
    {.golden = "int4-g32", .edit = {"\"symmetric\": true", "\"symmetric\": false"}, .says = "weight_zero_point\""},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": null, \"num_bits\""}},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": false, \"num_bits\""}},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": \"weight\", \"num_bits\""}},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": \"static\", \"num_bits\""}},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": \"group\", \"num_bits\""},
     .says = "weight_g_idx\" \"actorder\": config.json"},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": \"dynamic\", \"num_bits\""},
     .says = "weight_g_idx\" \"actorder\": config.json"},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": true, \"num_bits\""},
     .says = "weight_g_idx\" \"actorder\": config.json"},
    {.golden = "int4-g32", .edit = {"\"num_bits\"", "\"actorder\": \"column\", \"num_bits\""},
     .says = "\"quantization_config.config_groups.group_0.weights.actorder\" \"column\","},
    {.golden = "int4-channel", .edit = {"\"num_bits\"", "\"actorder\": \"group\", \"num_bits\""}}, /* one group a row */
    {.golden = "int4-g32", .edit = GROUP("\"num_bits\": 4, \"group_size\": 32")},
    {.golden = "int4-g32", .edit = GROUP("\"num_bits\": 4, \"group_size\": 32, \"actorder\": \"group\""),
     .says = "\"quantization_config.config_groups.group_0\""},
    {.golden = "int4-g32", .edit = ABSENT("strategy")},
    {.golden = "int4-g32", .edit = ABSENT("group_size"), .says = "\"quantization_config.config_groups.group_0.weights\""},
    {.golden = "int4-channel", .edit = ABSENT("strategy"), .says = "\"quantization_config.config_groups.group_0.weights\""},
    {.golden = "int4-channel", .edit = {"\"strategy\"", "\"unread\"", "\"group_size\": null", "\"group_size\": -1"}},
    {.golden = "int4-g32", .edit = ABSENT("num_bits"), .says = "\"quantization_config.config_groups.group_0.weights\" 8"},
    {.golden = "int4-g32", .edit = ABSENT("type")},
    {.golden = "int4-g32", .edit = {"\"format\"", "\"unread\"", "\"quantization_status\"", "\"unread2\""}},
    {.golden = "int4-g32", .edit = {"\"ignore\"", "\"unread\"", "\"targets\"", "\"unread2\""}},
    {.golden = "int4-g32", .edit = ABSENT("config_groups"), .says = "\"quantization_config.config_groups\""},
};

static const variation floats[] = {
    {.golden = "fp8-channel", .drop = "1.gate_proj.weight_scale", .says = EXPERT "weight_scale\""},
    {.golden = "fp8-channel", .edit = {"\"symmetric\": true", "\"symmetric\": false"},
     .says = "\"quantization_config.config_groups.group_0.weights\" 8"},
    {.golden = "fp8-channel", .edit = {"\"symmetric\"", "\"unread\"", "\"strategy\"", "\"unread2\""}},
    {.golden = "fp8-channel", .edit = ABSENT("num_bits")},
    {.golden = "fp8-channel", .edit = ABSENT("type"), .says = "\"quantization_config.config_groups.group_0.weights\" 8"},
    {.golden = "fp8-channel", .add = T(EXPERT "weight_zero_point", F8_E4M3, zeros, 32, 1),
     .says = EXPERT "weight_zero_point\" config.json"},
    {.golden = "fp8-tensor", .drop = ".input_scale"},
    {.golden = "fp8-block", .edit = ABSENT("block_structure"),
     .says = "\"quantization_config.config_groups.group_0.weights\" \"block_structure\""},
    {.golden = "fp8-block", .edit = BLOCKS(16, 32)},
    {.golden = "fp8-block", .edit = BLOCKS(20, 40), .says = "\"quantization_config.config_groups.group_0\" 16 32; 20 40:"},
    {.golden = "nvfp4", .drop = ".weight_global_scale", .says = "weight_global_scale\""},
    {.golden = "nvfp4", .drop = ".weight_scale", .says = "weight_scale\""},
    {.golden = "nvfp4", .edit = ABSENT("scale_dtype")},
    {.golden = "nvfp4", .add = T(EXPERT "weight_shape", I64, whole, 2), .says = EXPERT "weight_shape\" config.json"},
    {.golden = "nvfp4", .add = T(EXPERT "input_global_scale", F32, zeros, 1)},
    {.golden = "mxfp4", .drop = ".weight_scale", .says = "weight_scale\""},
    {.golden = "mxfp4", .edit = ABSENT("scale_dtype")},
    {.golden = "mxfp4", .add = T(EXPERT "weight_global_scale", F32, zeros, 1), .says = EXPERT "weight_global_scale\" config.json"},
    {.golden = "mxfp8", .drop = "1.gate_proj.weight_scale", .says = EXPERT "weight_scale\""},
    {.golden = "mxfp8", .edit = ABSENT("scale_dtype")},
    {.golden = "mxfp8", .edit = ABSENT("format")},
    {.golden = "mxfp8", .edit = GROUP("\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"channel\"")},
    {.golden = "mxfp8", .edit = {"\"group_size\": 32", "\"group_size\": 64"},
     .says = "\"quantization_config.config_groups.group_0.weights\" 64"},
    {.golden = "mxfp8", .edit = {"\"strategy\": \"group\"", "\"strategy\": \"channel\""}, .says = "weight_scale\" U8, F32"},
    {.golden = "mxfp8", .drop = "1.gate_proj.weight_scale", .add = T(EXPERT "weight_scale", BF16, zeros, 32, 2),
     .says = EXPERT "weight_scale\" BF16, U8 F8_E8M0"},
    {.golden = "mxfp8", .add = T(EXPERT "weight_scale_inv", U8, zeros, 32, 2), .says = EXPERT "weight_scale_inv\" config.json"},
    {.golden = "modelopt-mxfp8", .drop = ".weight_scale", .says = "weight_scale\""},
    {.golden = "modelopt-mxfp8", .edit = {"\"MXFP8\"", "\"FP8\""}, .says = "weight_scale\" U8, F32"},
    {.golden = "modelopt-mxfp8",
     .edit = {"\"MXFP8\"", "\"MIXED_PRECISION\", \"quantized_layers\": {\"x\": {\"quant_algo\": \"MXFP8\"}, "
                           "\"y\": {\"quant_algo\": \"FP8\"}}"}},
    {.golden = "mxfp8-inverse", .drop = ".weight_scale_inv", .says = ".weight_scale\""},
    {.golden = "mxfp8-inverse", .add = T(EXPERT "weight_scale", U8, zeros, 32, 2), .says = EXPERT "weight_scale\" config.json"},
    {.golden = "mxfp8-inverse", .edit = {"\"weight_block_size\"", "\"unread\"", "\"scale_fmt\"", "\"unread2\""}},
    {.golden = "mxfp8-inverse", .edit = {"\"ignored_layers\"", "\"unread\"", "\"fmt\"", "\"unread2\""}},
    {.golden = "mxfp8-inverse", .edit = {"\"mxfp8\"", "\"fp8\""}},
    {.golden = "mxfp8-inverse", .edit = {"\"mxfp8\"", "\"fp8\"", "\"ue8m0\"", "\"float\""},
     .says = "weight_scale_inv\" U8, \"scale_fmt\":"},
    {.golden = "modelopt-fp8", .drop = ".weight_scale", .says = "weight_scale\""},
    {.golden = "modelopt-fp8", .drop = ".input_scale"},
    {.golden = "modelopt-fp8", .edit = {"\"config_groups\"", "\"unread\"", "\"ignore\"", "\"unread2\""}},
    {.golden = "modelopt-fp8", .edit = {"\"producer\"", "\"unread\""}},
    {.golden = "modelopt-fp8", .edit = ABSENT("quant_algo"), .says = "\"quantization_config.quant_algo\""},
    {.golden = "modelopt-fp8", .edit = {"\"FP8\"", "\"MIXED_PRECISION\""}, .says = "\"quantization_config.quantized_layers\""},
    {.golden = "modelopt-fp8", .edit = {"\"FP8\"", "\"MIXED_PRECISION\", \"quantized_layers\": {\"x\": {}}"},
     .says = "\"quant_algo\""},
    {.golden = "modelopt-fp8",
     .edit = {"\"FP8\"", "\"MIXED_PRECISION\", \"quantized_layers\": {\"x\": {\"quant_algo\": \"FP8\"}}"}},
    {.golden = "modelopt-fp8", .add = T(EXPERT "pre_quant_scale", BF16, zeros, 64), .says = EXPERT "pre_quant_scale\" config.json"},
    {.golden = "modelopt-nvfp4", .drop = ".weight_scale_2", .says = "weight_scale_2\""},
    {.golden = "modelopt-nvfp4", .drop = ".weight_scale", .says = "weight_scale\""},
    {.golden = "modelopt-nvfp4", .drop = ".input_scale"},
    {.golden = "modelopt-nvfp4", .edit = {"\"NVFP4\"", "\"FP8\""}, .says = "weight\" FP4, config.json's \"quantization_config\""},
    {.golden = "gpt_oss-mxfp4", .drop = "_scales", .says = "_scales\""},
    {.golden = "gpt_oss-mxfp4", .edit = ABSENT("modules_to_not_convert")},
    {.golden = "deepseek-fp8", .drop = ".weight_scale_inv", .says = ".weight_scale_inv\""},
    {.golden = "deepseek-fp8", .edit = {"\"fmt\"", "\"unread\"", "\"activation_scheme\"", "\"unread2\""}},
    {.golden = "deepseek-fp8", .edit = ABSENT("weight_block_size")},
    {.golden = "deepseek-fp8", .edit = {"\"fmt\"", "\"scale_fmt\": \"ue8m0\", \"modules_to_not_convert\": [\"lm_head\"], \"fmt\""}},
    {.golden = "deepseek-fp8", .add = T("model.layers.1.mlp.experts.1.gate_proj.scale", F8_E8M0, zeros, 1, 2),
     .says = "1.gate_proj.scale\" config.json"},
    {.golden = "deepseek-fp8", .add = T("model.layers.1.mlp.experts.1.gate_proj.weight_scale", F32, zeros, 1, 2),
     .says = "1.gate_proj.weight_scale\" config.json"},
    {.golden = "deepseek-fp8", .add = T("model.layers.1.mlp.experts.1.gate_proj.input_scale", F32, zeros, 1)},
    {.golden = "deepseek_v4-modelopt", .drop = ".weight_scale_2", .says = "weight_scale_2\""},
    {.golden = "deepseek_v4-modelopt", .drop = "experts.1.w1.weight_scale", .says = "experts.1.w1.weight_scale\""},
    {.golden = "deepseek_v4-modelopt", .drop = ".input_scale"},
    {.golden = "deepseek_v4-modelopt", .edit = ABSENT("moe_quant_algo"), .says = "w1.weight\" U8, F8_E4M3"},
    {.golden = "deepseek_v4-modelopt", .edit = {"\"moe_quant_algo\": \"NVFP4\"", "\"moe_quant_algo\": null"},
     .says = "w1.weight\" U8, F8_E4M3"},
    {.golden = "deepseek_v4-modelopt", .edit = {"\"moe_quant_algo\": \"NVFP4\"", "\"moe_quant_algo\": \"IQ3\""},
     .says = "\"quantization_config.moe_quant_algo\" \"IQ3\", NVFP4"},
    {.golden = "deepseek_v4-modelopt", .edit = {"\"config_groups\"", "\"unread\"", "\"quant_algo\"", "\"unread2\""}},
    {.golden = "deepseek_v4-modelopt", .edit = {"\"ignore\"", "\"unread\"", "\"quantized_layers\"", "\"unread2\""}},
    {.golden = "deepseek-fp8", .edit = ABSENT("quant_method"), .says = "\"quantization_config.quant_method\""},
};

/* ---- making one --------------------------------------------------------------------------- */

/* Copies text with every `from` as `to`; it must be there. */
static void replace(char *out, size_t room, const char *text, const char *from, const char *to)
{
    size_t n = 0;
    ck_assert_msg(strstr(text, from) != NULL, "%s is not in the config", from);
    for (const char *at; (at = strstr(text, from)) != NULL; text = at + strlen(from))
        n += (size_t)snprintf(out + n, room - n, "%.*s%s", (int)(at - text), text, to);
    ck_assert(n + strlen(text) < room);
    strcpy(out + n, text);
}

static void write_config(const variation *v)
{
    static char text[2][16384];
    exf_err err;
    char path[256], *config;
    size_t len;
    snprintf(path, sizeof path, "tests/golden/quantized/%s/config.json", v->golden);
    ck_ok(exf_file_slurp(path, sizeof text[0] - 1, &config, &len, &err), err);
    snprintf(text[0], sizeof text[0], "%.*s", (int)len, config);
    exf_mem_free(config);
    char *inside = strstr(text[0], "\"quantization_config\"");
    for (int i = 0; i < 4 && v->edit[i]; i += 2) {
        replace(text[1], sizeof text[1], inside, v->edit[i], v->edit[i + 1]);
        strcpy(inside, text[1]);
    }
    exf_write_file(exf_scratch("config.json"), text[0], strlen(text[0]));
}

static void write_tensors(const variation *v)
{
    static exf_tensor kept[512];
    exf_err err;
    char path[256];
    exf_st_file *f;
    size_t n = 0;
    snprintf(path, sizeof path, "tests/golden/quantized/%s/model.safetensors", v->golden);
    ck_ok(exf_st_open(&f, path, &err), err);
    ck_assert_uint_lt(f->n_tensors, COUNT(kept));
    for (size_t i = 0; i < f->n_tensors; i++) {
        const exf_st_tensor *t = &f->tensor[i];
        void *data;
        if (v->drop && exf_ends_with(t->view.name, v->drop)) continue;
        ck_ok(exf_mem_new(&data, (size_t)t->nbytes, 1, "tensor", &err), err);
        ck_ok(exf_st_read(f, t, 0, data, (size_t)t->nbytes, &err), err);
        kept[n] = t->view;
        kept[n++].data = data;
    }
    ck_assert_msg(!v->drop || n < f->n_tensors, "no tensor ends in %s", v->drop);
    size_t own = n;
    if (v->add.name) kept[n++] = v->add;
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, kept, n, NULL, 0, NULL, &err), err);
    for (size_t i = 0; i < own; i++) exf_mem_free((void *)(uintptr_t)kept[i].data);
    exf_st_close(f);
}

/* Reads every quantized matrix; 1 in *same if all are the library's. */
static exf_code decode_all(const exf_model *m, const char *golden, int *same, exf_err *err)
{
    exf_json *doc;
    char path[256];
    exf_code rc = EXF_OK;
    snprintf(path, sizeof path, "tests/golden/quantized/%s/saved.json", golden);
    ck_ok(exf_json_load(&doc, path, 1 << 20, err), *err);
    const exf_json *weights = exf_json_get(doc, "weights");
    *same = 1;
    for (void *it = exf_json_first(weights); rc == EXF_OK && it; it = exf_json_next(weights, it)) {
        exf_weight_source w;
        size_t rows, cols;
        float *v;
        saved_weight_find(&w, m, it, &rows, &cols);
        ck_ok(exf_mem_new(&v, rows * cols, sizeof *v, "weights", err), *err);
        rc = exf_weight_source_read(&w, 0, rows, cols, v, err);
        *same &= rc != EXF_OK || saved_weight_is(it, v, rows * cols);
        exf_mem_free(v);
    }
    exf_json_free(doc);
    return rc;
}

static void check(const variation *v)
{
    exf_err err = {.msg = ""};
    exf_model *m;
    int same = 0;
    write_config(v);
    write_tensors(v);
    exf_code rc = exf_model_open(&m, exf_scratch("."), &err);
    if (rc == EXF_OK) {
        rc = decode_all(m, v->golden, &same, &err);
        exf_model_close(m);
    }
    if (v->says)
        ck_fails(rc, EXF_MODEL, err, v->says);
    else
        ck_assert_msg(rc == EXF_OK && same, "%s: %s", v->golden, rc == EXF_OK ? "other numbers than the library's" : err.msg);
}

START_TEST(parts_of_gptq)
{
    check(&gptq[_i]);
}
END_TEST

START_TEST(parts_of_awq)
{
    check(&awq[_i]);
}
END_TEST

START_TEST(parts_of_compressed_integers)
{
    check(&integers[_i]);
}
END_TEST

START_TEST(parts_of_floats)
{
    check(&floats[_i]);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, parts_of_gptq, 0, COUNT(gptq));
    tcase_add_loop_test(t, parts_of_awq, 0, COUNT(awq));
    tcase_add_loop_test(t, parts_of_compressed_integers, 0, COUNT(integers));
    tcase_add_loop_test(t, parts_of_floats, 0, COUNT(floats));
}
