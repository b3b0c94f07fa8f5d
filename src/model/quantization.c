/* quantization.c - reads quantization_config; see quantization.h.
 *
 * A scheme that is not known is refused here by what the config calls it, before a tensor is looked at. */
#include "model/quantization.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* Reads a text of which only some values are supported, parted by '|' in `known`; absent: fallback, "" being absent. */
static exf_code read_word(const exf_config *c, const char *fields, const char *fallback, const char *known, const char **out,
                          exf_err *err)
{
    exf_code rc = exf_config_text_or(c, fields, fallback, out, err);
    if (rc != EXF_OK) return rc;
    size_t n = strlen(*out);
    for (const char *at = known; at && n; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, *out, n) == 0 && (at[n] == '|' || at[n] == 0)) return EXF_OK;
    if (n == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: \"%s\" is \"%s\", a scheme that is not read; read are %s", c->path, fields, *out, known);
}

/* ---- fp8 ------------------------------------------------------------------------------- */

#define SUPPORTED                                                                                                              \
    "supported are \"fp8\" with fmt \"e4m3\" and scales per block of weight_block_size, \"compressed-tensors\", \"modelopt\", " \
    "\"mxfp8\", \"awq\", \"gptq\", or no quantization_config"

/* Reads rows and columns of a block, if they are there. */
static exf_code read_block(const exf_config *c, const char *field, exf_quantization *q, exf_err *err)
{
    const exf_json *block;
    exf_code rc = exf_config_find(c, field, &block, err);
    if (rc != EXF_OK) return rc;
    if (!block) return EXF_OK;
    int is_pair = exf_json_type(block) == EXF_JSON_ARRAY && exf_json_size(block) == 2;
    for (size_t i = 0; is_pair && i < 2; i++) {
        int64_t n = exf_json_type(exf_json_at(block, i)) == EXF_JSON_INT ? exf_json_int(exf_json_at(block, i)) : 0;
        if (n < 1 || n > 1 << 20) is_pair = 0;
        *(i ? &q->block_cols : &q->block_rows) = (int)n;
    }
    if (is_pair) return EXF_OK;
    return exf_fail(err, EXF_MODEL,
                    "%s: \"%s\" is %s of %zu, expected two integers from 1 to 1048576", c->path, field,
                    exf_json_type_name(block), exf_json_size(block));
}

static exf_code read_fmt(const exf_config *c, exf_err *err)
{
    const char *fmt;
    exf_code rc = exf_config_text_or(c, "quantization_config.fmt", "e4m3", &fmt, err);
    if (rc != EXF_OK || strcmp(fmt, "e4m3") == 0 || strcmp(fmt, "float8_e4m3fn") == 0) return rc; /* MiniMax-M2's name for it */
    return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.fmt\" is \"%s\"; " SUPPORTED, c->path, fmt);
}

static exf_code read_fp8(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const char *scales, *dtype, *algorithm;
    exf_code rc;
    EXF_TRY(read_fmt(c, err));
    EXF_TRY(exf_config_text_or(c, "quantization_config.scale_fmt", "float", &scales, err));
    q->byte_scales = strcmp(scales, "ue8m0") == 0;
    EXF_TRY(read_block(c, "quantization_config.weight_block_size", q, err));
    /* DeepSeek-V4 says here how its experts are stored; the configs that say so come
     * with E8M0 scales, all others with F32.  Of ModelOpt's, moe_quant_algo counts, beside what the release said. */
    EXF_TRY(read_word(c, "quantization_config.moe_quant_algo", "", "NVFP4", &algorithm, err));
    EXF_TRY(exf_config_text_or(c, "expert_dtype", NULL, &dtype, err));
    if (*algorithm) q->formats = EXF_FORMAT_NVFP4;
    if (dtype) {
        q->e8m0_scales = 1;
        q->fp4_experts = strcmp(dtype, "fp4") == 0;
        if (!q->fp4_experts && strcmp(dtype, "fp8") != 0)
            return exf_fail(err, EXF_MODEL, "%s: \"expert_dtype\" is \"%s\"; supported are \"fp4\" and \"fp8\"", c->path, dtype);
    }
    if (!q->block_rows) q->block_rows = q->block_cols = 128;
    q->fp8 = q->fp4 = 1;
out:
    return rc;
}

/* Blocks of MXFP8 are of 32 columns; a config that has others does not mean what runtimes make of it. */
static exf_code read_mxfp8(const exf_config *c, exf_quantization *q, exf_err *err)
{
    exf_code rc;
    EXF_TRY(read_fmt(c, err));
    EXF_TRY(read_block(c, "quantization_config.weight_block_size", q, err));
    EXF_TRY(exf_config_find(c, "quantization_config.ignored_layers|quantization_config.modules_to_not_convert", &q->exempt, err));
    if (q->block_rows && (q->block_rows != 1 || q->block_cols != EXF_MXFP8_BLOCK))
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.weight_block_size\" is [%d, %d], expected [1, %d] of \"mxfp8\"",
                        c->path, q->block_rows, q->block_cols, EXF_MXFP8_BLOCK);
    q->block_rows = 1;
    q->block_cols = EXF_MXFP8_BLOCK;
    q->fp8 = q->e8m0_scales = 1;
    q->formats = EXF_FORMAT_MXFP8;
out:
    return rc;
}

/* ---- compressed-tensors ------------------------------------------------------------------ */

enum { FIELD = 256 };

/* What one of config_groups says of its weights. */
typedef struct {
    const char *name, *type, *strategy;
    int bits, group, symmetric;
    exf_column_order order;
} weights_group;

static const char *field_of(char out[FIELD], const weights_group *g, const char *field)
{
    snprintf(out, FIELD, "quantization_config.config_groups.%s.%s", g->name, field);
    return out;
}

static exf_code refuse_group(const exf_config *c, const weights_group *g, exf_err *err)
{
    return exf_fail(err, EXF_MODEL,
                    "%s: \"quantization_config.config_groups.%s.weights\" is %s%s of %d bits, %s, groups of %d, a scheme that is "
                    "not read; read are int of 4 bits (group, channel), float of 8 bits (tensor, channel, block, groups of 32), "
                    "float of 4 bits in groups of 16 (tensor_group) or 32 (group)",
                    c->path, g->name, g->symmetric ? "" : "asymmetric ", g->type, g->bits, g->strategy, g->group);
}

/* Reads "actorder": true and "dynamic" are older words for "group", "static" for "weight", which leaves columns in order. */
static exf_code read_order(const exf_config *c, const char *fields, exf_column_order *order, exf_err *err)
{
    const exf_json *found;
    const char *word;
    exf_code rc = exf_config_find(c, fields, &found, err);
    if (rc != EXF_OK || !found) return rc;
    if (exf_json_type(found) == EXF_JSON_BOOL) {
        *order = exf_json_true(found) ? EXF_ORDER_STORED : EXF_ORDER_FREE;
        return EXF_OK;
    }
    rc = read_word(c, fields, "", "group|dynamic|weight|static", &word, err);
    if (rc == EXF_OK) *order = *word == 'g' || *word == 'd' ? EXF_ORDER_STORED : EXF_ORDER_FREE;
    return rc;
}

/* Takes the settings of 4-bit integers; all groups that have them must have the same. */
static exf_code take_int4(const exf_config *c, exf_quantization *q, const weights_group *g, exf_err *err)
{
    int group = strcmp(g->strategy, "channel") == 0 ? 0 : g->group;
    if (q->formats & EXF_FORMAT_INT4 && (q->group_cols != group || q->zeros == g->symmetric || q->order != g->order))
        return exf_fail(err, EXF_MODEL,
                        "%s: \"quantization_config.config_groups.%s\" has 4-bit integers of group_size %d, symmetric %d, actorder "
                        "%d; a group before it has %d, %d, %d: one kind is supported", c->path, g->name, group, g->symmetric,
                        g->order == EXF_ORDER_STORED, q->group_cols, !q->zeros, q->order == EXF_ORDER_STORED);
    q->formats |= EXF_FORMAT_INT4;
    q->group_cols = group;
    q->zeros = !g->symmetric;
    q->order = g->order;
    return EXF_OK;
}

/* Takes the size of FP8's blocks; all groups that have them must have the same. */
static exf_code take_blocks(const exf_config *c, exf_quantization *q, const weights_group *g, exf_err *err)
{
    exf_quantization blocks = {0};
    char field[FIELD];
    exf_code rc = read_block(c, field_of(field, g, "weights.block_structure"), &blocks, err);
    if (rc != EXF_OK) return rc;
    if (!blocks.block_rows)
        return exf_fail(err, EXF_MODEL,
                        "%s: \"quantization_config.config_groups.%s.weights\" has strategy \"block\", but no \"block_structure\"",
                        c->path, g->name);
    if (q->block_rows && (q->block_rows != blocks.block_rows || q->block_cols != blocks.block_cols))
        return exf_fail(err, EXF_MODEL,
                        "%s: \"quantization_config.config_groups.%s\" has blocks of %d x %d; a group before it has %d x %d: one "
                        "size is supported", c->path, g->name, blocks.block_rows, blocks.block_cols, q->block_rows, q->block_cols);
    q->block_rows = blocks.block_rows;
    q->block_cols = blocks.block_cols;
    return EXF_OK;
}

static exf_code take_group(const exf_config *c, exf_quantization *q, const weights_group *g, exf_err *err)
{
    int is_int = strcmp(g->type, "int") == 0, grouped = strcmp(g->strategy, "group") == 0;
    int channel = strcmp(g->strategy, "channel") == 0, whole = strcmp(g->strategy, "tensor") == 0;
    if (is_int && g->bits == 4 && (channel || (grouped && g->group > 0))) return take_int4(c, q, g, err);
    if (is_int || strcmp(g->type, "float") != 0 || !g->symmetric) return refuse_group(c, g, err);
    unsigned format = g->bits == 4 && strcmp(g->strategy, "tensor_group") == 0 && g->group == EXF_NVFP4_BLOCK ? EXF_FORMAT_NVFP4
                      : g->bits == 4 && grouped && g->group == EXF_FP4_BLOCK ? EXF_FORMAT_MXFP4
                      : g->bits == 8 && grouped && g->group == EXF_MXFP8_BLOCK ? EXF_FORMAT_MXFP8 : 0;
    q->formats |= format;
    if (format) return EXF_OK;
    int block = strcmp(g->strategy, "block") == 0;
    if (g->bits != 8 || !(channel || whole || block)) return refuse_group(c, g, err);
    q->formats |= EXF_FORMAT_FP8;
    q->whole_scales = whole;
    return block ? take_blocks(c, q, g, err) : EXF_OK;
}

#define FORMATS                                                                                                                    \
    "pack-quantized|float-quantized|naive-quantized|nvfp4-pack-quantized|mxfp4-pack-quantized|mxfp8-quantized|mixed-precision|dense"

static exf_code read_group(const exf_config *c, exf_quantization *q, const char *name, exf_err *err)
{
    weights_group g = {.name = name};
    char field[FIELD];
    const exf_json *weights;
    const char *format;
    exf_code rc;
    EXF_TRY(read_word(c, field_of(field, &g, "format"), "", FORMATS, &format, err));
    EXF_TRY(exf_config_find(c, field_of(field, &g, "weights"), &weights, err));
    if (!weights) goto out; /* of activations alone */
    EXF_TRY(exf_config_int_or(c, field_of(field, &g, "weights.num_bits"), 1, 64, 8, &g.bits, err));
    EXF_TRY(exf_config_text_or(c, field_of(field, &g, "weights.type"), "int", &g.type, err));
    EXF_TRY(exf_config_bool_or(c, field_of(field, &g, "weights.symmetric"), 1, &g.symmetric, err));
    EXF_TRY(exf_config_int_or(c, field_of(field, &g, "weights.group_size"), -1, 1 << 20, 0, &g.group, err));
    EXF_TRY(read_order(c, field_of(field, &g, "weights.actorder"), &g.order, err));
    const char *usual = g.group > 0 ? "group" : g.group < 0 ? "channel" : "tensor";
    EXF_TRY(exf_config_text_or(c, field_of(field, &g, "weights.strategy"), usual, &g.strategy, err));
    rc = take_group(c, q, &g, err);
out:
    return rc;
}

static exf_code read_compressed(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const exf_json *groups, *transforms;
    const char *word;
    exf_code rc;
    EXF_TRY(read_word(c, "quantization_config.format", "", FORMATS, &word, err));
    EXF_TRY(read_word(c, "quantization_config.sparsity_config.format", "dense", "dense", &word, err));
    EXF_TRY(exf_config_find(c, "quantization_config.transform_config.config_groups", &transforms, err));
    if (exf_json_size(transforms)) /* only a transform of the activations makes the weights right */
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.transform_config\" rotates weights (%s), which is not read",
                        c->path, exf_json_key(exf_json_first(transforms)));
    EXF_TRY(exf_config_find(c, "quantization_config.config_groups", &groups, err));
    for (void *it = exf_json_first(groups); it; it = exf_json_next(groups, it)) EXF_TRY(read_group(c, q, exf_json_key(it), err));
    EXF_TRY(exf_config_find(c, "quantization_config.ignore", &q->exempt, err));
    if (!q->formats)
        rc = exf_fail(err, EXF_MODEL, "%s: \"quantization_config.config_groups\" has no group with weights", c->path);
out:
    return rc;
}

/* ---- ModelOpt ------------------------------------------------------------------------------ */

/* Takes an algorithm by its name; fields: where it is. */
static exf_code take_algorithm(const exf_config *c, exf_quantization *q, const char *fields, exf_err *err)
{
    const char *algorithm;
    exf_code rc = read_word(c, fields, "missing", "NVFP4|W4A16_NVFP4|FP8|FP8_PER_CHANNEL_PER_TOKEN|MXFP8", &algorithm, err);
    if (rc != EXF_OK) return rc;
    if (strcmp(algorithm, "MXFP8") == 0) q->formats |= EXF_FORMAT_MXFP8;
    else q->formats |= strstr(algorithm, "NVFP4") ? EXF_FORMAT_NVFP4 : EXF_FORMAT_FP8;
    if (strcmp(algorithm, "FP8") == 0) q->whole_scales = 1;
    return EXF_OK;
}

/* The fields in which ModelOpt's settings stand. */
static exf_code read_algorithms(const exf_config *c, const char *at, const char *of_layers, const char *exempt, exf_quantization *q,
                                exf_err *err)
{
    const char *algorithm;
    const exf_json *layers;
    exf_code rc;
    EXF_TRY(exf_config_find(c, exempt, &q->exempt, err));
    EXF_TRY(exf_config_text_or(c, at, "missing", &algorithm, err));
    if (strcmp(algorithm, "MIXED_PRECISION") != 0) return take_algorithm(c, q, at, err);
    EXF_TRY(exf_config_find(c, of_layers, &layers, err));
    for (void *it = exf_json_first(layers); it; it = exf_json_next(layers, it)) {
        exf_config of_layer = {exf_json_value(it), c->path};
        EXF_TRY(take_algorithm(&of_layer, q, "quant_algo", err));
    }
    if (!q->formats)
        rc = exf_fail(err, EXF_MODEL, "%s: \"%s\" is \"MIXED_PRECISION\", but \"%s\" has no layer", c->path, at, of_layers);
out:
    return rc;
}

static exf_code read_modelopt(const exf_config *c, exf_quantization *q, exf_err *err)
{
    return read_algorithms(c, "quantization_config.quant_algo", "quantization_config.quantized_layers",
                           "quantization_config.ignore|quantization_config.exclude_modules", q, err);
}

exf_code exf_quantization_read_export(const exf_config *of_export, exf_quantization *q, exf_err *err)
{
    const char *algorithm;
    exf_code rc;
    memset(q, 0, sizeof *q);
    EXF_TRY(exf_config_text_or(of_export, "quantization.quant_algo", "", &algorithm, err));
    if (!*algorithm) return EXF_OK; /* an export that quantizes the key-value cache alone */
    q->quantizer = EXF_QUANTIZER_MODELOPT;
    rc = read_algorithms(of_export, "quantization.quant_algo", "quantization.quantized_layers", "quantization.exclude_modules", q,
                         err);
out:
    return rc;
}

/* ---- AWQ and GPTQ --------------------------------------------------------------------------- */

/* A group of -1 columns is a whole row, 0 here. */
static exf_code read_bits(const exf_config *c, exf_quantization *q, exf_err *err)
{
    static const char group_size[] = "quantization_config.group_size|quantization_config.q_group_size";
    exf_code rc;
    EXF_TRY(exf_config_must_be(c, "quantization_config.bits|quantization_config.w_bit", "4", err));
    EXF_TRY(exf_config_int_or(c, group_size, -1, 1 << 20, 128, &q->group_cols, err));
    if (q->group_cols == 0)
        return exf_fail(err, EXF_MODEL, "%s: \"%s\" is 0, expected columns of a group, or -1 for a row", c->path, group_size);
    if (q->group_cols < 0) q->group_cols = 0;
    q->formats = EXF_FORMAT_INT4;
out:
    return rc;
}

static exf_code read_awq(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const char *version;
    exf_code rc;
    EXF_TRY(read_bits(c, q, err));
    EXF_TRY(exf_config_find(c, "quantization_config.modules_to_not_convert", &q->exempt, err));
    EXF_TRY(read_word(c, "quantization_config.version", "gemm", "gemm|GEMM", &version, err));
    EXF_TRY(exf_config_bool_or(c, "quantization_config.zero_point", 1, &q->zeros, err));
    q->zeros_are_8 = !q->zeros;
out:
    return rc;
}

/* What GPTQ says of all weights, or "dynamic" of some; desc_act and sym are -1 where it does not. */
typedef struct {
    int bits, group_cols, desc_act, sym;
} gptq_settings;

/* Refuses weights that have settings of their own. */
static exf_code refuse_own_settings(const exf_config *c, const gptq_settings *all, const char *name, const exf_json *given,
                                    exf_err *err)
{
    exf_config of_some = {given, c->path};
    gptq_settings s;
    exf_code rc;
    EXF_TRY(exf_config_int_or(&of_some, "bits", 1, 64, all->bits, &s.bits, err));
    EXF_TRY(exf_config_int_or(&of_some, "group_size", -1, 1 << 20, all->group_cols, &s.group_cols, err));
    EXF_TRY(exf_config_bool_or(&of_some, "desc_act", all->desc_act, &s.desc_act, err));
    EXF_TRY(exf_config_bool_or(&of_some, "sym", all->sym, &s.sym, err));
    if (s.group_cols < 0) s.group_cols = 0;
    if (memcmp(&s, all, sizeof s) != 0)
        rc = exf_fail(err, EXF_MODEL,
                      "%s: \"quantization_config.dynamic\" gives \"%s\" bits %d, group_size %d, desc_act %d, sym %d; other weights "
                      "have %d, %d, %d, %d: one kind is supported", c->path, name, s.bits, s.group_cols, s.desc_act, s.sym,
                      all->bits, all->group_cols, all->desc_act, all->sym);
out:
    return rc;
}

/* Reads "dynamic": settings by expression; what matches one that begins with "-:" is exempt. */
static exf_code read_dynamic(const exf_config *c, const gptq_settings *all, exf_quantization *q, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_config_find(c, "quantization_config.dynamic", &q->exempt, err));
    if (q->exempt && exf_json_type(q->exempt) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.dynamic\" is %s, expected an object", c->path,
                        exf_json_type_name(q->exempt));
    for (void *it = exf_json_first(q->exempt); it; it = exf_json_next(q->exempt, it))
        if (!exf_starts_with(exf_json_key(it), "-:"))
            EXF_TRY(refuse_own_settings(c, all, exf_json_key(it), exf_json_value(it), err));
out:
    return rc;
}

/* Before checkpoint_format "gptq_v2" a zero is stored less 1.  Quantizers disagree about what an absent desc_act is. */
static exf_code read_gptq(const exf_config *c, exf_quantization *q, exf_err *err)
{
    const char *format;
    const exf_json *quantizer;
    gptq_settings all = {.bits = 4};
    exf_code rc;
    EXF_TRY(read_bits(c, q, err));
    EXF_TRY(exf_config_must_be(c, "quantization_config.is_marlin_format", "false", err));
    EXF_TRY(exf_config_must_be(c, "quantization_config.pack_dtype", "int32", err));
    EXF_TRY(exf_config_must_be(c, "quantization_config.rotation", "null", err));
    EXF_TRY(read_word(c, "quantization_config.checkpoint_format|quantization_config.format", "gptq", "gptq|gptq_v2", &format, err));
    EXF_TRY(exf_config_bool_or(c, "quantization_config.desc_act", -1, &all.desc_act, err));
    EXF_TRY(exf_config_bool_or(c, "quantization_config.sym", -1, &all.sym, err));
    all.group_cols = q->group_cols;
    q->zeros = 1;
    q->zero_add = strcmp(format, "gptq") == 0;
    /* GPTQModel takes 1 from each zero of a word by one subtraction, whose borrow reaches the next where a zero is 0; quantizers
     * that do not say who they are store each zero by itself. */
    EXF_TRY(exf_config_find(c, "quantization_config.meta.quantizer", &quantizer, err));
    if (exf_json_type(quantizer) == EXF_JSON_ARRAY) quantizer = exf_json_at(quantizer, 0);
    const char *name = quantizer ? exf_json_string(quantizer, NULL) : NULL;
    q->zero_carries = name && exf_starts_with(name, "gptqmodel") && q->zero_add;
    q->zeros_are_8 = all.sym == 1;
    q->order = all.desc_act == 0 ? EXF_ORDER_SEQUENCE : EXF_ORDER_STORED;
    rc = read_dynamic(c, &all, q, err);
out:
    return rc;
}

/* ---- all of them ------------------------------------------------------------------------------ */

/* Refuses weights of a quantizer that is not read by its name, and by what its config says of the format. */
exf_code exf_quantization_refuse(const exf_config *c, const char *method, exf_err *err)
{
    static const struct { const char *method, *name, *sentence; } known[] = {
        {"bitsandbytes", "bitsandbytes", NULL}, {"mxfp4", "MXFP4", NULL}, {"auto-round", "AutoRound", NULL},
        {"quark", "Quark", NULL}, {"gguf", "GGUF", NULL}, {"hqq", "HQQ", NULL}, {"aqlm", "AQLM", NULL},
        {"torchao", "torchao", NULL}, {"fbgemm_fp8", "FBGEMM", NULL}, {"exl3", NULL, EXF_QUANTIZED_EXL3},
        {"quanto", NULL, EXF_QUANTIZED_QUANTO},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].method, method) != 0) continue;
        if (known[i].sentence)
            return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.quant_method\" is \"%s\": %s", c->path, method,
                            known[i].sentence);
        return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.quant_method\" is \"%s\": " EXF_QUANTIZED_BY("%s"), c->path,
                        method, known[i].name);
    }
    return exf_fail(err, EXF_MODEL, "%s: \"quantization_config.quant_method\" is \"%s\"; " SUPPORTED, c->path, method);
}

exf_code exf_quantization_read(const exf_config *c, exf_quantization *q, exf_err *err)
{
    static const struct {
        const char *method;
        exf_quantizer quantizer;
        exf_code (*read)(const exf_config *c, exf_quantization *q, exf_err *err);
    } methods[] = {
        {"fp8", EXF_QUANTIZER_FP8, read_fp8}, {"compressed-tensors", EXF_QUANTIZER_COMPRESSED, read_compressed},
        {"modelopt", EXF_QUANTIZER_MODELOPT, read_modelopt}, {"modelopt_fp4", EXF_QUANTIZER_MODELOPT, read_modelopt},
        {"awq", EXF_QUANTIZER_AWQ, read_awq}, {"gptq", EXF_QUANTIZER_GPTQ, read_gptq}, {"mxfp4", EXF_QUANTIZER_MXFP4, NULL},
        {"mxfp8", EXF_QUANTIZER_FP8, read_mxfp8},
    };
    const exf_json *given;
    const char *method;
    int bits, group;
    exf_code rc;
    memset(q, 0, sizeof *q);
    /* MLX's config has "quantization" and mostly the same again as a quantization_config without a method. */
    EXF_TRY(exf_config_find(c, "quantization", &given, err));
    if (exf_json_type(given) == EXF_JSON_OBJECT) {
        EXF_TRY(exf_config_int_or(c, "quantization.bits", 1, 64, 0, &bits, err));
        EXF_TRY(exf_config_int_or(c, "quantization.group_size", 1, 1 << 20, 0, &group, err));
        if (bits && group)
            return exf_fail(err, EXF_MODEL, "%s: \"quantization\" is %d bits in groups of %d: " EXF_QUANTIZED_MLX, c->path, bits,
                            group);
    }
    EXF_TRY(exf_config_find(c, "quantization_config", &given, err));
    if (!given) return EXF_OK;
    EXF_TRY(exf_config_text_or(c, "quantization_config.quant_method", "missing", &method, err));
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i].method, method) == 0) {
            q->quantizer = methods[i].quantizer;
            if (methods[i].read) return methods[i].read(c, q, err);
            q->formats = EXF_FORMAT_MXFP4; /* a block is always of 32 columns, and rules say which tensors are packed */
            return EXF_OK;
        }
    rc = exf_quantization_refuse(c, method, err);
out:
    return rc;
}
