/* weight_source_find.c - finds a weight's tensors in the checkpoint under the names of its quantizer; see weight_source.h. */
#include "model/weight_source.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* One search for a weight's tensors: the files and the rule that its messages name. */
typedef struct {
    const exf_checkpoint *c;
    const exf_quantization *q;
    const char *config_path;
    const char *name;           /* of the weight */
    const exf_stored_tensor *s; /* its codes, or the plain tensor */
    unsigned how;
    exf_err *err;
} search;

/* Sets the name X.ending for a weight X.weight; "" if the weight's name has another form. */
static void name_beside(char out[EXF_ST_MAX_NAME + 1], const char *weight, const char *ending)
{
    size_t n = strlen(weight), tail = strlen("weight"), more = strlen(ending);
    out[0] = 0;
    if (n <= tail || strcmp(weight + n - tail - 1, ".weight") != 0 || n - tail + more > EXF_ST_MAX_NAME) return;
    memcpy(out, weight, n - tail);
    memcpy(out + n - tail, ending, more + 1);
}

static const exf_stored_tensor *find_beside(const exf_checkpoint *c, const char *weight, const char *ending)
{
    char name[EXF_ST_MAX_NAME + 1];
    name_beside(name, weight, ending);
    return name[0] ? exf_checkpoint_find(c, name) : NULL;
}

int exf_weight_source_present(const exf_checkpoint *c, const char *name)
{
    return exf_checkpoint_find(c, name) || find_beside(c, name, "weight_packed") || find_beside(c, name, "qweight");
}

int exf_weight_source_ignores(const exf_quantization *q, const char *name)
{
    static const char *const endings[] = {".input_scale", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale",
                                          ".q_scale"};
    for (size_t i = 0; q->quantizer != EXF_QUANTIZER_NONE && i < sizeof endings / sizeof *endings; i++)
        if (exf_ends_with(name, endings[i])) return 1;
    return 0;
}

/* ---- checks ------------------------------------------------------------------------ */

/* Returns 1 for a tensor that the quantizer may have coded. */
static int may_be_coded(const search *f, int rank)
{
    if (f->q->quantizer == EXF_QUANTIZER_NONE || f->q->quantizer == EXF_QUANTIZER_MXFP4 || rank != 2) return 0;
    if (f->q->quantizer == EXF_QUANTIZER_FP8) return f->how & EXF_LINEAR;
    return !(f->how & (EXF_PLUS_ONE | EXF_INTEGER));
}

static exf_code check_shape(const search *f, const exf_stored_tensor *s, const int64_t *shape, int rank, const char *why)
{
    char have[64], want[64];
    const exf_tensor *t = &s->tensor->view;
    if (t->rank == rank && memcmp(t->shape, shape, (size_t)rank * sizeof *shape) == 0) return EXF_OK;
    return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is %s, %s says %s%s", exf_st_path(s->file), t->name,
                    exf_shape_text(have, sizeof have, t->shape, t->rank), f->config_path,
                    exf_shape_text(want, sizeof want, shape, rank), why);
}

static exf_code wrong_dtype(const search *f, int rank)
{
    const exf_tensor *t = &f->s->tensor->view;
    int coded = t->dtype == EXF_DT_F8_E4M3 || t->dtype == EXF_DT_I8 || t->dtype == EXF_DT_U8;
    const char *why = "", *expected = f->how & EXF_INTEGER ? "I64 or I32"
                                      : !may_be_coded(f, rank) ? "BF16, F16 or F32"
                                      : f->q->quantizer == EXF_QUANTIZER_FP8
                                          ? "BF16, F16, F32, F8_E4M3 or packed FP4 in I8"
                                          : "BF16, F16, F32 or a format that \"quantization_config\" names";
    if (coded && rank > 2)
        why = ": a tensor of more than two axes (stacked experts) is supported unquantised only";
    else if (coded && f->how & EXF_LINEAR && f->q->quantizer == EXF_QUANTIZER_NONE)
        why = ": the config has no quantization_config";
    return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is %s, expected %s%s", exf_st_path(f->s->file), t->name,
                    exf_dtype_name(t->dtype), expected, why);
}

/* ---- fp8 --------------------------------------------------------------------------- */

static exf_code find_block_scale(const search *f, exf_weight_source *w, const int64_t *shape)
{
    char inverse[EXF_ST_MAX_NAME + 1] = "", native[EXF_ST_MAX_NAME + 1], grid_text[64];
    int64_t grid[2] = {(shape[0] + w->block_rows - 1) / w->block_rows, (shape[1] + w->block_cols - 1) / w->block_cols};
    int fp8 = w->coding == EXF_CODED_FP8;
    name_beside(native, f->name, "scale");
    if (strlen(f->name) + 11 <= EXF_ST_MAX_NAME) snprintf(inverse, sizeof inverse, "%s_scale_inv", f->name);
    const exf_stored_tensor *s = fp8 ? exf_checkpoint_find(f->c, inverse) : NULL;
    int is_native = !s;
    if (!s) s = exf_checkpoint_find(f->c, native);
    if (!s)
        return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is %s, its scales \"%s%s%s\" %s are missing from the checkpoint",
                        exf_st_path(f->s->file), exf_stored_name(f->s), exf_dtype_name(f->s->tensor->view.dtype),
                        fp8 ? inverse : "", fp8 && native[0] ? "\" or \"" : "", native,
                        exf_shape_text(grid_text, sizeof grid_text, grid, 2));
    exf_dtype t = s->tensor->view.dtype;
    int bytes = t == EXF_DT_F8_E8M0 || (t == EXF_DT_U8 && f->q->byte_scales && !is_native);
    if (!bytes && (is_native || (t != EXF_DT_F32 && t != EXF_DT_BF16)))
        return exf_fail(f->err, EXF_MODEL, "%s: scales \"%s\" are %s, expected %s", exf_st_path(s->file), exf_stored_name(s),
                        exf_dtype_name(t), is_native ? "F8_E8M0" : f->q->byte_scales ? "U8, F8_E8M0, F32 or BF16"
                                                                 : "F32 or BF16, or with \"scale_fmt\": \"ue8m0\" U8");
    w->of[EXF_STORED_SCALES] = s;
    w->scale_dtype = bytes ? EXF_DT_F8_E8M0 : t;
    return check_shape(f, s, grid, 2, fp8 ? " (one per block of weight_block_size)" : " (one per 32 columns)");
}

/* Checks the codes of a matrix that holds two FP4 in a byte. */
static exf_code check_fp4(const search *f, const int64_t *shape)
{
    int64_t stored[2] = {shape[0], shape[1] / 2};
    if (shape[1] % 2)
        return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is packed FP4, but %s says %lld columns, an odd number",
                        exf_st_path(f->s->file), exf_stored_name(f->s), f->config_path, (long long)shape[1]);
    return check_shape(f, f->s, stored, 2, " (two FP4 in a byte)");
}

/* ---- other quantizers ---------------------------------------------------------------- */

enum { FLOATS = 1 << EXF_DT_F32 | 1 << EXF_DT_BF16 | 1 << EXF_DT_F16 };

/* What a tensor beside the codes must be. */
typedef struct {
    const char *ending;
    unsigned dtypes; /* bits 1 << dtype */
    int64_t shape[2];
    int rank;
    const char *why; /* after the shape */
} companion;

static const char *const words_of[EXF_STORED_KINDS] = {"codes", "scales", "zero points", "group numbers", "factor for the scales"};

static exf_code check_dtype(const search *f, const exf_stored_tensor *s, const char *what, unsigned dtypes)
{
    exf_dtype t = s->tensor->view.dtype;
    char expected[64] = "";
    if (dtypes >> t & 1) return EXF_OK;
    for (int d = 0; d < EXF_DT_COUNT; d++)
        if (dtypes >> d & 1) {
            size_t n = strlen(expected);
            snprintf(expected + n, sizeof expected - n, "%s%s", n ? " or " : "", exf_dtype_name((exf_dtype)d));
        }
    return exf_fail(f->err, EXF_MODEL, "%s: %s \"%s\" of type %s, expected %s", exf_st_path(s->file), what, exf_stored_name(s),
                    exf_dtype_name(t), expected);
}

static exf_code missing_beside(const search *f, exf_stored_kind kind, const char *ending)
{
    char name[EXF_ST_MAX_NAME + 1];
    name_beside(name, f->name, ending);
    return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is %s; the checkpoint lacks its %s \"%s\"",
                    exf_st_path(f->s->file), exf_stored_name(f->s), exf_dtype_name(f->s->tensor->view.dtype), words_of[kind], name);
}

/* Finds a tensor that the codes need, or may have (must 0). */
static exf_code find_companion(const search *f, exf_weight_source *w, exf_stored_kind kind, const companion *c, int must)
{
    const exf_stored_tensor *s = find_beside(f->c, f->name, c->ending);
    if (!s) return must ? missing_beside(f, kind, c->ending) : EXF_OK;
    exf_code rc = check_dtype(f, s, words_of[kind], c->dtypes);
    if (rc == EXF_OK) rc = check_shape(f, s, c->shape, c->rank, c->why);
    w->of[kind] = s;
    if (kind == EXF_STORED_SCALES) w->scale_dtype = s->tensor->view.dtype;
    return rc;
}

/* NVFP4, whose scales are all multiplied or divided by one number, MXFP4 and MXFP8: a scale for each block of a row's columns.
 * Of MXFP8 the name of the scales in checkpoints of quant_method "mxfp8" is transformers' or vLLM's. */
static exf_code find_row_blocks(const search *f, exf_weight_source *w, const int64_t *shape, unsigned format)
{
    int nvfp4 = format == EXF_FORMAT_NVFP4, fp8 = format == EXF_FORMAT_MXFP8, packed = f->q->quantizer == EXF_QUANTIZER_COMPRESSED;
    int cols = nvfp4 ? EXF_NVFP4_BLOCK : fp8 ? EXF_MXFP8_BLOCK : EXF_FP4_BLOCK;
    int inverse = fp8 && f->q->quantizer == EXF_QUANTIZER_FP8 && find_beside(f->c, f->name, "weight_scale_inv");
    companion scales = {inverse ? "weight_scale_inv" : "weight_scale",
                        nvfp4 ? 1 << EXF_DT_F8_E4M3 : 1 << EXF_DT_U8 | 1 << EXF_DT_F8_E8M0,
                        {shape[0], (shape[1] + cols - 1) / cols}, 2, nvfp4 ? " (one per 16 columns)" : " (one per 32 columns)"};
    const char *factor = packed ? "weight_global_scale" : "weight_scale_2";
    exf_code rc;
    w->coding = fp8 ? EXF_CODED_FP8 : EXF_CODED_FP4;
    w->block_rows = w->piece_block = 1;
    w->block_cols = cols;
    EXF_TRY(fp8 ? check_shape(f, f->s, shape, 2, "") : check_fp4(f, shape));
    EXF_TRY(find_companion(f, w, EXF_STORED_SCALES, &scales, 1));
    if (!nvfp4) {
        w->scale_dtype = EXF_DT_F8_E8M0;
        return EXF_OK;
    }
    const exf_stored_tensor *s = find_beside(f->c, f->name, factor);
    if (!s) return missing_beside(f, EXF_STORED_FACTOR, factor);
    EXF_TRY(check_dtype(f, s, words_of[EXF_STORED_FACTOR], 1 << EXF_DT_F32));
    if (exf_tensor_count(&s->tensor->view) != 1) EXF_TRY(check_shape(f, s, (const int64_t[]){1}, 1, ""));
    w->of[EXF_STORED_FACTOR] = s;
    w->divides = packed;
out:
    return rc;
}

/* A stack of experts, X_blocks and X_scales. */
static exf_code find_mxfp4_stack(const search *f, exf_weight_source *w, const int64_t *shape, int rank)
{
    char name[EXF_ST_MAX_NAME + 1];
    exf_code rc;
    if (f->q->quantizer != EXF_QUANTIZER_MXFP4)
        return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is MXFP4, but %s has no \"quantization_config\" of \"mxfp4\"",
                        exf_st_path(f->s->file), exf_stored_name(f->s), f->config_path);
    EXF_TRY(check_dtype(f, f->s, words_of[EXF_STORED_CODES], 1 << EXF_DT_U8));
    EXF_TRY(check_shape(f, f->s, shape, rank, " (32 FP4 in 16 bytes)"));
    snprintf(name, sizeof name, "%.*sscales", (int)(strlen(f->name) - strlen("blocks")), f->name);
    const exf_stored_tensor *s = exf_checkpoint_find(f->c, name);
    if (!s)
        return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\": its scales \"%s\" are missing from the checkpoint",
                        exf_st_path(f->s->file), exf_stored_name(f->s), name);
    EXF_TRY(check_dtype(f, s, words_of[EXF_STORED_SCALES], 1 << EXF_DT_U8));
    w->coding = EXF_CODED_FP4;
    w->block_cols = EXF_FP4_BLOCK;
    w->of[EXF_STORED_SCALES] = s;
    w->scale_dtype = EXF_DT_F8_E8M0;
    rc = check_shape(f, s, shape, rank - 1, " (one per 32 columns)");
out:
    return rc;
}

/* FP8 with one scale, one a row, or one a block where the config says how large blocks are: the shape of the scales tells. */
static exf_code find_fp8(const search *f, exf_weight_source *w, const int64_t *shape)
{
    const exf_stored_tensor *s = find_beside(f->c, f->name, "weight_scale");
    const exf_tensor *t = s ? &s->tensor->view : NULL;
    exf_code rc;
    w->coding = EXF_CODED_FP8;
    w->piece_block = 1;
    w->block_cols = (int)shape[1];
    EXF_TRY(check_shape(f, f->s, shape, 2, ""));
    companion scales = {"weight_scale", FLOATS, {shape[0], 1}, 2, " (one a row), or one number"};
    w->block_rows = 1;
    if (t && t->rank <= 2 && exf_tensor_count(t) == 1) {
        w->block_rows = (int)shape[0];
        scales.rank = t->rank;
        scales.shape[0] = scales.shape[1] = 1;
    } else if (t && t->rank == 1) {
        scales.rank = 1;
    } else if (f->q->block_rows && t && !(t->rank == 2 && t->shape[0] == shape[0] && t->shape[1] == 1)) {
        w->block_rows = w->piece_block = f->q->block_rows;
        w->block_cols = f->q->block_cols;
        scales.shape[0] = (shape[0] + w->block_rows - 1) / w->block_rows;
        scales.shape[1] = (shape[1] + w->block_cols - 1) / w->block_cols;
        scales.why = " (one per block of block_structure)";
    }
    rc = find_companion(f, w, EXF_STORED_SCALES, &scales, 1);
out:
    return rc;
}

/* Finds the number of each column's group.  Without them a row of one group can be read, and columns that are in order. */
static exf_code find_groups(const search *f, exf_weight_source *w, const char *ending, int64_t cols)
{
    companion order = {ending, 1 << EXF_DT_I32, {cols}, 1, " (the group of a column)"};
    char name[EXF_ST_MAX_NAME + 1];
    exf_code rc = find_companion(f, w, EXF_STORED_GROUPS, &order, 0);
    w->order = f->q->order;
    if (rc != EXF_OK || w->of[EXF_STORED_GROUPS] || w->order != EXF_ORDER_STORED || cols <= w->block_cols) return rc;
    name_beside(name, f->name, ending);
    return exf_fail(f->err, EXF_MODEL,
                    "%s: tensor \"%s\" is %s, its group numbers \"%s\" are missing from the checkpoint; columns are in order only "
                    "where %s is in %s", exf_st_path(f->s->file), exf_stored_name(f->s), exf_dtype_name(f->s->tensor->view.dtype),
                    name,
                    f->q->quantizer == EXF_QUANTIZER_GPTQ ? "\"desc_act\": false" : "\"actorder\": null", f->config_path);
}

/* 4-bit integers, whose files the three quantizers turn differently. */
static exf_code find_int4(const search *f, exf_weight_source *w, const int64_t *shape)
{
    const exf_quantization *q = f->q;
    int64_t rows = shape[0], cols = shape[1], group = q->group_cols ? q->group_cols : cols, groups = (cols + group - 1) / group;
    int turned = q->quantizer != EXF_QUANTIZER_COMPRESSED, awq = q->quantizer == EXF_QUANTIZER_AWQ;
    const char *why = q->group_cols ? " (one per group_size columns)" : " (one a row)";
    int64_t codes[2] = {turned ? awq ? cols : cols / 8 : rows, turned ? awq ? rows / 8 : rows : (cols + 7) / 8};
    companion scales = {turned ? "scales" : "weight_scale", FLOATS, {turned ? groups : rows, turned ? rows : groups}, 2, why};
    companion zeros = {turned ? "qzeros" : "weight_zero_point", 1 << EXF_DT_I32,
                       {turned ? groups : (rows + 7) / 8, turned ? rows / 8 : groups}, 2, " (eight rows in a word)"};
    exf_code rc;
    w->coding = !turned ? EXF_CODED_INT4 : awq ? EXF_CODED_AWQ : EXF_CODED_GPTQ;
    w->block_rows = 1;
    w->block_cols = (int)group;
    w->piece_block = 8; /* zeros of eight rows share a word */
    w->zero_add = q->zero_add;
    w->zero_carries = q->zero_carries;
    w->zeros_are_8 = q->zeros_are_8;
    if (turned && (rows % 8 || (!awq && cols % 8)))
        return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is packed by eights, but %s says a matrix of %lld x %lld",
                        exf_st_path(f->s->file), exf_stored_name(f->s), f->config_path, (long long)rows, (long long)cols);
    EXF_TRY(check_shape(f, f->s, codes, 2, " (eight 4-bit integers in a word)"));
    EXF_TRY(find_companion(f, w, EXF_STORED_SCALES, &scales, 1));
    if (q->zeros || awq) EXF_TRY(find_companion(f, w, EXF_STORED_ZEROS, &zeros, q->zeros)); /* symmetric AWQ may store its 8s */
    if (!awq) EXF_TRY(find_groups(f, w, turned ? "g_idx" : "weight_g_idx", cols));
    /* Compressed-tensors writes the shape beside packed integers; what it holds is compared when these are read. */
    if (!turned && (w->shape = find_beside(f->c, f->name, "weight_shape"))) {
        EXF_TRY(check_dtype(f, w->shape, "rows and columns", 1 << EXF_DT_I64 | 1 << EXF_DT_I32));
        EXF_TRY(check_shape(f, w->shape, (const int64_t[]){2}, 1, " (rows and columns)"));
    }
out:
    return rc;
}

static exf_code not_named(const search *f, const char *format)
{
    return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is %s, which no group of %s's \"quantization_config\" has",
                    exf_st_path(f->s->file), exf_stored_name(f->s), format, f->config_path);
}

static exf_code find_coded(const search *f, exf_weight_source *w, const int64_t *shape)
{
    unsigned formats = f->q->formats;
    exf_dtype t = f->s->tensor->view.dtype;
    w->rows = (size_t)shape[0];
    if (f->q->quantizer == EXF_QUANTIZER_FP8) {
        if (t == EXF_DT_U8) return find_row_blocks(f, w, shape, EXF_FORMAT_NVFP4);
        if (formats & EXF_FORMAT_MXFP8) return find_row_blocks(f, w, shape, EXF_FORMAT_MXFP8);
        int fp4 = t == EXF_DT_I8;
        w->coding = fp4 ? EXF_CODED_FP4 : EXF_CODED_FP8;
        w->block_rows = w->piece_block = fp4 ? 1 : f->q->block_rows;
        w->block_cols = fp4 ? EXF_FP4_BLOCK : f->q->block_cols;
        exf_code rc = fp4 ? check_fp4(f, shape) : check_shape(f, f->s, shape, 2, "");
        return rc == EXF_OK ? find_block_scale(f, w, shape) : rc;
    }
    if (t == EXF_DT_I32) return formats & EXF_FORMAT_INT4 ? find_int4(f, w, shape) : not_named(f, "packed integers");
    if (t == EXF_DT_F8_E4M3) {
        /* FP8 under the bytes of MXFP8: where the config has other FP8 too, the scales tell. */
        const exf_stored_tensor *scales = find_beside(f->c, f->name, "weight_scale");
        exf_dtype s = scales ? scales->tensor->view.dtype : EXF_DT_F32;
        int bytes = s == EXF_DT_U8 || s == EXF_DT_F8_E8M0;
        if (formats & EXF_FORMAT_MXFP8 && (!(formats & EXF_FORMAT_FP8) || bytes))
            return find_row_blocks(f, w, shape, EXF_FORMAT_MXFP8);
        return formats & EXF_FORMAT_FP8 ? find_fp8(f, w, shape) : not_named(f, "FP8");
    }
    if (formats & EXF_FORMAT_NVFP4 && (!(formats & EXF_FORMAT_MXFP4) || find_beside(f->c, f->name, "weight_global_scale")))
        return find_row_blocks(f, w, shape, EXF_FORMAT_NVFP4);
    return formats & EXF_FORMAT_MXFP4 ? find_row_blocks(f, w, shape, EXF_FORMAT_MXFP4) : not_named(f, "packed FP4");
}

/* ---- all of them ------------------------------------------------------------------------ */

/* Returns 1 if the tensor has a dtype of codes under the name that the quantizer gives these. */
static int is_coded(const search *f)
{
    exf_dtype t = f->s->tensor->view.dtype;
    int renamed = strcmp(exf_stored_name(f->s), f->name) != 0;
    switch (f->q->quantizer) {
    case EXF_QUANTIZER_FP8:
        return t == EXF_DT_F8_E4M3 ? f->q->fp8 : t == EXF_DT_I8 ? f->q->fp4 : t == EXF_DT_U8 && f->q->formats & EXF_FORMAT_NVFP4;
    case EXF_QUANTIZER_COMPRESSED: return renamed ? t == EXF_DT_I32 || t == EXF_DT_U8 : t == EXF_DT_F8_E4M3;
    case EXF_QUANTIZER_MODELOPT: return t == EXF_DT_F8_E4M3 || t == EXF_DT_U8;
    case EXF_QUANTIZER_AWQ: case EXF_QUANTIZER_GPTQ: return renamed && t == EXF_DT_I32;
    default: return 0;
    }
}

exf_code exf_weight_source_find(exf_weight_source *w, const exf_checkpoint *c, const exf_quantization *q, const char *config_path,
                                const char *name, const int64_t *shape, int rank, unsigned how, exf_err *err)
{
    char want[64];
    search f = {c, q, config_path, name, exf_checkpoint_find(c, name), how, err};
    if (!f.s && may_be_coded(&f, rank))
        f.s = find_beside(c, name, q->quantizer == EXF_QUANTIZER_COMPRESSED ? "weight_packed" : "qweight");
    if (!f.s)
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" %s is missing from the checkpoint%s", config_path, name,
                        exf_shape_text(want, sizeof want, shape, rank),
                        how & EXF_MAY_BE_TIED ? "; where the embedding is the head, \"tie_word_embeddings\": true says so" : "");
    size_t each = how & EXF_TRANSPOSED ? (size_t)(shape[2] / exf_roles_read_together(how)) : 0;
    *w = (exf_weight_source){.coding = EXF_CODED_PLAIN, .of[EXF_STORED_CODES] = f.s, .how = how, .block_rows = 1, .block_cols = 1,
                             .piece_block = 1, .each = each};
    if (how & EXF_MXFP4) return find_mxfp4_stack(&f, w, shape, rank);
    if (may_be_coded(&f, rank) && is_coded(&f)) return find_coded(&f, w, shape);
    unsigned plain = how & EXF_INTEGER ? 1 << EXF_DT_I64 | 1 << EXF_DT_I32 : FLOATS;
    if (!(plain >> f.s->tensor->view.dtype & 1)) return wrong_dtype(&f, rank);
    return check_shape(&f, f.s, shape, rank, "");
}
