/* weight_source.c - finds a weight's tensors in the checkpoint and reads rows of it, decoded or as stored; see weight_source.h. */
#include "model/weight_source.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- finding ------------------------------------------------------------------ */

/* One search for a weight's tensor: the files and the rule that its messages name. */
typedef struct {
    const exf_checkpoint *c;
    const exf_quantization *q;
    const char *config_path;
    const exf_stored_tensor *s;
    unsigned how;
    exf_err *err;
} search;

static const char *name_of(const exf_stored_tensor *s)
{
    return s->tensor->view.name;
}

static int is_plain(exf_dtype t, unsigned how)
{
    if (how & EXF_INTEGER) return t == EXF_DT_I64 || t == EXF_DT_I32;
    return t == EXF_DT_BF16 || t == EXF_DT_F16 || t == EXF_DT_F32;
}

static const char *expected_dtypes(const search *f, int rank)
{
    if (f->how & EXF_INTEGER) return "I64 or I32";
    return f->q->fp8 && f->how & EXF_LINEAR && rank == 2 ? "BF16, F16, F32, F8_E4M3 or packed FP4 in I8" : "BF16, F16 or F32";
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
    int coded = t->dtype == EXF_DT_F8_E4M3 || t->dtype == EXF_DT_I8;
    const char *why = "";
    if (coded && rank > 2)
        why = ": a tensor of more than two axes (stacked experts) is supported unquantised only";
    else if (coded && f->how & EXF_LINEAR)
        why = ": the config has no quantization_config";
    return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is %s, expected %s%s", exf_st_path(f->s->file), t->name,
                    exf_dtype_name(t->dtype), expected_dtypes(f, rank), why);
}

/* X.weight -> X.weight_scale_inv and X.scale; "" where a name has no such form. */
static void scale_names(const char *weight, char inverse[EXF_ST_MAX_NAME + 1], char native[EXF_ST_MAX_NAME + 1])
{
    size_t n = strlen(weight), tail = strlen("weight");
    inverse[0] = native[0] = 0;
    if (n + 11 <= EXF_ST_MAX_NAME) snprintf(inverse, EXF_ST_MAX_NAME + 1, "%s_scale_inv", weight);
    if (n > tail && n <= EXF_ST_MAX_NAME && strcmp(weight + n - tail - 1, ".weight") == 0)
        snprintf(native, EXF_ST_MAX_NAME + 1, "%.*sscale", (int)(n - tail), weight);
}

static exf_code find_scale(const search *f, exf_weight_source *w, const int64_t *shape)
{
    char inverse[EXF_ST_MAX_NAME + 1], native[EXF_ST_MAX_NAME + 1], grid_text[64];
    int64_t grid[2] = {(shape[0] + w->block_rows - 1) / w->block_rows, (shape[1] + w->block_cols - 1) / w->block_cols};
    int fp8 = w->coding == EXF_CODED_FP8;
    scale_names(name_of(f->s), inverse, native);
    const exf_stored_tensor *s = fp8 ? exf_checkpoint_find(f->c, inverse) : NULL;
    int is_native = !s;
    if (!s) s = exf_checkpoint_find(f->c, native);
    if (!s)
        return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is %s, its scales \"%s%s%s\" %s are missing from the checkpoint",
                        exf_st_path(f->s->file), name_of(f->s), exf_dtype_name(f->s->tensor->view.dtype), fp8 ? inverse : "",
                        fp8 && native[0] ? "\" or \"" : "", native, exf_shape_text(grid_text, sizeof grid_text, grid, 2));
    exf_dtype t = s->tensor->view.dtype;
    if (is_native ? t != EXF_DT_F8_E8M0 : t != EXF_DT_F32 && t != EXF_DT_BF16)
        return exf_fail(f->err, EXF_MODEL, "%s: scales \"%s\" are %s, expected %s", exf_st_path(s->file), name_of(s),
                        exf_dtype_name(t), is_native ? "F8_E8M0" : "F32 or BF16");
    w->scale = s;
    return check_shape(f, s, grid, 2, fp8 ? " (one per block of weight_block_size)" : " (one per 32 columns)");
}

static exf_code find_coded(const search *f, exf_weight_source *w, const int64_t *shape)
{
    int64_t stored[2] = {shape[0], shape[1]};
    exf_code rc;
    if (w->coding == EXF_CODED_FP4) {
        w->block_rows = 1;
        w->block_cols = EXF_FP4_BLOCK;
        stored[1] = (shape[1] + 1) / 2;
        if (shape[1] % 2)
            return exf_fail(f->err, EXF_MODEL, "%s: tensor \"%s\" is packed FP4, but %s says %lld columns, an odd number",
                            exf_st_path(f->s->file), name_of(f->s), f->config_path, (long long)shape[1]);
    } else {
        w->block_rows = f->q->block_rows;
        w->block_cols = f->q->block_cols;
    }
    rc = check_shape(f, f->s, stored, 2, w->coding == EXF_CODED_FP4 ? " (two FP4 in a byte)" : "");
    return rc == EXF_OK ? find_scale(f, w, shape) : rc;
}

exf_code exf_weight_source_find(exf_weight_source *w, const exf_checkpoint *c, const exf_quantization *q, const char *config_path,
                                const char *name, const int64_t *shape, int rank, unsigned how, exf_err *err)
{
    char want[64];
    search f = {c, q, config_path, exf_checkpoint_find(c, name), how, err};
    if (!f.s)
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" %s is missing from the checkpoint", config_path, name,
                        exf_shape_text(want, sizeof want, shape, rank));
    exf_dtype t = f.s->tensor->view.dtype;
    int may_be_coded = how & EXF_LINEAR && rank == 2;
    *w = (exf_weight_source){.coding = EXF_CODED_PLAIN, .stored = f.s, .how = how};
    if (t == EXF_DT_F8_E4M3 && q->fp8 && may_be_coded)
        w->coding = EXF_CODED_FP8;
    else if (t == EXF_DT_I8 && q->fp4 && may_be_coded)
        w->coding = EXF_CODED_FP4;
    else if (!is_plain(t, how))
        return wrong_dtype(&f, rank);
    return w->coding == EXF_CODED_PLAIN ? check_shape(&f, f.s, shape, rank, "") : find_coded(&f, w, shape);
}

/* ---- reading -------------------------------------------------------------------- */

size_t exf_weight_piece_rows(const exf_weight_source *w, size_t cols)
{
    size_t one = exf_weight_source_code_bytes(w, 2, cols) / 2, rows = EXF_WEIGHT_CHUNK_BYTES / (one ? one : 1);
    size_t block = w->coding == EXF_CODED_PLAIN ? 1 : (size_t)w->block_rows;
    rows = rows / block * block;
    return rows < block ? block : rows;
}

/* A hash of the codes, or of the scales, from row `row` on. */
static exf_piece_hash hash_of(const exf_weight_source *w, size_t row, size_t cols, int scales)
{
    size_t step = exf_weight_piece_rows(w, cols);
    exf_piece_hash p = {.id = w->identity, .part = w->part, .of = scales ? w->scale : w->stored};
    p.begin = scales ? exf_weight_source_scale_bytes(w, row, cols) : exf_weight_source_code_bytes(w, row, cols);
    p.piece = scales ? exf_weight_source_scale_bytes(w, step, cols) : exf_weight_source_code_bytes(w, step, cols);
    return p;
}

/* Rows of a quantised tensor, some at a time: the codes of the whole are never in
 * memory.  scales: of the block rows from first_row on. */
typedef struct {
    const exf_weight_source *w;
    size_t cols, row_bytes;
    const float *scales;
    size_t first_row;
    uint8_t *codes; /* staging */
    exf_piece_hash hash; /* of the codes */
} coded_read;

/* Says which of code and scale made element `at` of the decoded rows what it is. */
static exf_code not_finite(const exf_weight_source *w, const exf_coded_rows *c, size_t row, size_t at, exf_err *err)
{
    size_t i = at / c->cols, j = at % c->cols, per_row = (c->cols + c->block_cols - 1) / c->block_cols;
    size_t block_row = (row + i) / c->block_rows, block_col = j / c->block_cols;
    float scale = c->scales[(c->row_in_block + i) / c->block_rows * per_row + block_col];
    unsigned code = c->codes[w->coding == EXF_CODED_FP8 ? at : at / 2];
    if (!isfinite(scale))
        return exf_fail(err, EXF_NUMERIC, "%s: scales \"%s\": the scale of block [%zu, %zu] is %s", exf_st_path(w->scale->file),
                        name_of(w->scale), block_row, block_col, isnan(scale) ? "not a number" : "infinite");
    if (w->coding == EXF_CODED_FP8 && (code & 0x7f) == 0x7f)
        return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element [%zu, %zu] is 0x%02x, which is not a number",
                        exf_st_path(w->stored->file), name_of(w->stored), row + i, j, code);
    return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element [%zu, %zu], code 0x%02x times scale %g, is beyond float32",
                    exf_st_path(w->stored->file), name_of(w->stored), row + i, j, code, (double)scale);
}

/* Dequantizes coded rows, the first of which is row `row` of the tensor. */
static exf_code decode_rows(const exf_weight_source *w, const exf_coded_rows *c, size_t row, float *dst, exf_err *err)
{
    size_t n = c->rows * c->cols;
    if (w->coding == EXF_CODED_FP8)
        exf_dequantize_fp8(dst, c);
    else
        exf_dequantize_fp4(dst, c);
    size_t bad = exf_first_not_finite(dst, n);
    return bad == n ? EXF_OK : not_finite(w, c, row, bad, err);
}

static exf_code read_rows(coded_read *r, size_t row, size_t n, float *dst, exf_err *err)
{
    const exf_weight_source *w = r->w;
    size_t block_rows = (size_t)w->block_rows, block_cols = (size_t)w->block_cols;
    size_t scale_row = row / block_rows - r->first_row / block_rows, per_row = (r->cols + block_cols - 1) / block_cols;
    exf_code rc = exf_st_read(w->stored->file, w->stored->tensor, row * r->row_bytes, r->codes, n * r->row_bytes, err);
    if (rc == EXF_OK) rc = exf_piece_hash_add(&r->hash, r->codes, n * r->row_bytes, err);
    if (rc != EXF_OK) return rc;
    exf_coded_rows c = {r->codes, r->scales + scale_row * per_row, n, r->cols, row % block_rows, block_rows, block_cols};
    return decode_rows(w, &c, row, dst, err);
}

/* The scales of rows [row, row + n_rows), float32; the caller frees. */
static exf_code read_scales(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, float **out, exf_err *err)
{
    exf_dtype dtype = w->scale->tensor->view.dtype;
    size_t per_row = (cols + (size_t)w->block_cols - 1) / (size_t)w->block_cols, width = exf_dtype_bits(dtype) / 8;
    size_t first = row / (size_t)w->block_rows, end = (row + n_rows + (size_t)w->block_rows - 1) / (size_t)w->block_rows;
    size_t n = (end - first) * per_row;
    char *raw = NULL;
    exf_piece_hash hash = hash_of(w, row, cols, 1);
    exf_code rc;
    EXF_TRY(exf_mem_new(out, n, sizeof **out, "scales", err));
    EXF_TRY(exf_mem_new(&raw, n, width, "scales", err));
    EXF_TRY(exf_st_read(w->scale->file, w->scale->tensor, first * per_row * width, raw, n * width, err));
    exf_dtype_to_f32(*out, raw, n, dtype);
    rc = exf_piece_hash_add(&hash, raw, n * width, err);
out:
    exf_mem_free(raw);
    return exf_piece_hash_end(&hash, rc, err);
}

static exf_code read_coded(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, float *dst, exf_err *err)
{
    enum { STAGING = 1 << 20 }; /* bytes of codes read at a time, at least one row */
    size_t row_bytes = w->coding == EXF_CODED_FP8 ? cols : cols / 2, step = STAGING / row_bytes + 1;
    float *scales = NULL;
    uint8_t *codes = NULL;
    coded_read r = {.w = w};
    exf_code rc;
    if (step > n_rows) step = n_rows;
    EXF_TRY(read_scales(w, row, n_rows, cols, &scales, err));
    EXF_TRY(exf_mem_new(&codes, step, row_bytes, "weight staging", err));
    r = (coded_read){w, cols, row_bytes, scales, row, codes, hash_of(w, row, cols, 0)};
    for (size_t at = 0; at < n_rows; at += step)
        EXF_TRY(read_rows(&r, row + at, n_rows - at < step ? n_rows - at : step, dst + at * cols, err));
out:
    exf_mem_free(scales);
    exf_mem_free(codes);
    return exf_piece_hash_end(&r.hash, rc, err);
}

/* Adds the 1 that the tensor's rule asks for. */
static void add_one(const exf_weight_source *w, float *dst, size_t n)
{
    if (w->how & EXF_PLUS_ONE)
        for (size_t i = 0; i < n; i++) dst[i] += 1;
}

exf_code exf_weight_source_read(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, float *dst, exf_err *err)
{
    if (w->coding != EXF_CODED_PLAIN) return read_coded(w, row, n_rows, cols, dst, err);
    exf_piece_hash hash = hash_of(w, row, cols, 0);
    exf_code rc = exf_stored_read_hashed(w->stored, row * cols, n_rows * cols, dst, &hash, err);
    rc = exf_piece_hash_end(&hash, rc, err);
    if (rc == EXF_OK) add_one(w, dst, n_rows * cols);
    return rc;
}

size_t exf_weight_source_code_bytes(const exf_weight_source *w, size_t n_rows, size_t cols)
{
    return n_rows * cols * exf_dtype_bits(w->stored->tensor->view.dtype) / 8 / (w->coding == EXF_CODED_FP4 ? 2 : 1);
}

static size_t scales_per_row(const exf_weight_source *w, size_t cols)
{
    return (cols + (size_t)w->block_cols - 1) / (size_t)w->block_cols;
}

size_t exf_weight_source_scale_bytes(const exf_weight_source *w, size_t n_rows, size_t cols)
{
    if (w->coding == EXF_CODED_PLAIN) return 0;
    size_t blocks = (n_rows + (size_t)w->block_rows - 1) / (size_t)w->block_rows;
    return blocks * scales_per_row(w, cols) * exf_dtype_bits(w->scale->tensor->view.dtype) / 8;
}

/* Reads n bytes of one of the two tensors and hashes them. */
static exf_code read_piece(const exf_weight_source *w, const exf_stored_tensor *of, size_t begin, size_t n, void *buffer,
                           const void **at, char digest[EXF_XXH3_HEX], exf_err *err)
{
    exf_code rc = exf_st_read_aligned(of->file, of->tensor, begin, buffer, n, at, err);
    digest[0] = 0;
    return rc == EXF_OK && w->identity ? exf_weight_identity_add(w->identity, w->part, of, begin, *at, n, digest, err) : rc;
}

exf_code exf_weight_source_raw(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, void *codes_buffer,
                               void *scales_buffer, exf_raw_rows *out, exf_err *err)
{
    exf_code rc = read_piece(w, w->stored, exf_weight_source_code_bytes(w, row, cols),
                             exf_weight_source_code_bytes(w, n_rows, cols), codes_buffer, &out->codes, out->code_digest, err);
    out->scales = NULL;
    if (rc != EXF_OK || w->coding == EXF_CODED_PLAIN) return rc;
    return read_piece(w, w->scale, exf_weight_source_scale_bytes(w, row, cols), exf_weight_source_scale_bytes(w, n_rows, cols),
                      scales_buffer, &out->scales, out->scale_digest, err);
}

static exf_code decode_coded(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                             float *dst, exf_err *err)
{
    exf_dtype dtype = w->scale->tensor->view.dtype;
    size_t n = exf_weight_source_scale_bytes(w, n_rows, cols) / (exf_dtype_bits(dtype) / 8);
    float *scales = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&scales, n, sizeof *scales, "scales", err));
    exf_dtype_to_f32(scales, raw->scales, n, dtype);
    exf_coded_rows c = {raw->codes, scales, n_rows, cols, row % (size_t)w->block_rows, (size_t)w->block_rows,
                        (size_t)w->block_cols};
    rc = decode_rows(w, &c, row, dst, err);
out:
    exf_mem_free(scales);
    return rc;
}

exf_code exf_weight_source_decode(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                                  float *dst, exf_err *err)
{
    size_t n = n_rows * cols;
    if (w->coding != EXF_CODED_PLAIN) return decode_coded(w, raw, row, n_rows, cols, dst, err);
    exf_dtype_to_f32(dst, raw->codes, n, w->stored->tensor->view.dtype);
    if (exf_first_not_finite(dst, n) < n) {
        exf_code rc = exf_weight_source_read(w, row, n_rows, cols, dst, err); /* for its message */
        if (rc != EXF_OK) return rc;
        return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\" has a value that is not finite", exf_st_path(w->stored->file),
                        name_of(w->stored));
    }
    add_one(w, dst, n);
    return EXF_OK;
}

exf_code exf_weight_source_took(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, const exf_raw_rows *rows,
                                exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!w->identity) return EXF_OK;
    EXF_TRY(exf_weight_identity_add_hashed(w->identity, w->part, w->stored, exf_weight_source_code_bytes(w, row, cols),
                                           exf_weight_source_code_bytes(w, n_rows, cols), rows->code_digest, err));
    if (rows->scales)
        EXF_TRY(exf_weight_identity_add_hashed(w->identity, w->part, w->scale, exf_weight_source_scale_bytes(w, row, cols),
                                               exf_weight_source_scale_bytes(w, n_rows, cols), rows->scale_digest, err));
out:
    return rc;
}

int exf_weight_source_fits_bf16(const exf_weight_source *w)
{
    if (w->how & (EXF_PLUS_ONE | EXF_INTEGER)) return 0;
    if (w->coding == EXF_CODED_PLAIN) return w->stored->tensor->view.dtype == EXF_DT_BF16;
    return w->scale->tensor->view.dtype == EXF_DT_F8_E8M0;
}

uint64_t exf_weight_source_bytes(const exf_weight_source *w)
{
    return w->stored->tensor->nbytes + (w->scale ? w->scale->tensor->nbytes : 0);
}
