/* weight_source.c - reads rows of a weight, decoded or as stored; see weight_source.h. */
#include "model/weight_source.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- where the bytes are --------------------------------------------------------- */

/* Returns the stored rows that are read for one row of the weight: another role's between its own, or beside them in columns. */
static size_t rows_apart(const exf_weight_source *w)
{
    return (size_t)exf_roles_read_together(w->how);
}

/* Returns the stored rows before the weight's first. */
static size_t rows_before(const exf_weight_source *w)
{
    return w->how & EXF_ODD_ROWS ? 1 : 0;
}

/* Returns 1 for codes that lie the other way round: rows of the weight are columns of the file. */
static int is_turned(const exf_weight_source *w)
{
    return w->coding == EXF_CODED_GPTQ || w->coding == EXF_CODED_AWQ;
}

static size_t groups_of(const exf_weight_source *w, size_t cols)
{
    return (cols + (size_t)w->block_cols - 1) / (size_t)w->block_cols;
}

/* Bytes of a row of codes, of a tensor that is not turned; rows that lie in turn with another role's come with these. */
static size_t row_bytes(const exf_weight_source *w, size_t cols)
{
    cols *= rows_apart(w);
    switch (w->coding) {
    case EXF_CODED_FP4: return cols / 2;
    case EXF_CODED_INT4: return (cols + 7) / 8 * 4;
    default: return cols * exf_dtype_bits(exf_weight_source_dtype(w)) / 8;
    }
}

/* Bytes of a tensor, from `begin` on. */
typedef struct {
    uint64_t begin;
    size_t n;
} stored_range;

/* Returns the bytes of rows [row, row + n_rows) where the tensor has `bytes` for each block of `block` rows. */
static stored_range range_of_blocks(size_t row, size_t n_rows, size_t block, size_t bytes)
{
    size_t first = row / block, end = (row + n_rows + block - 1) / block;
    return (stored_range){first * bytes, (end - first) * bytes};
}

/* Returns the bytes of one of the tensors that rows [row, row + n_rows) need. */
static stored_range range_of(const exf_weight_source *w, exf_stored_kind kind, size_t row, size_t n_rows, size_t cols)
{
    const exf_stored_tensor *s = w->of[kind];
    if (!s) return (stored_range){0, 0};
    if (is_turned(w) || kind >= EXF_STORED_GROUPS) return (stored_range){0, s->tensor->nbytes};
    if (kind == EXF_STORED_CODES) return range_of_blocks(row, n_rows, 1, row_bytes(w, cols));
    if (kind == EXF_STORED_ZEROS) return range_of_blocks(row, n_rows, 8, groups_of(w, cols) * 4);
    return range_of_blocks(row, n_rows, (size_t)w->block_rows,
                           rows_apart(w) * groups_of(w, cols) * exf_dtype_bits(w->scale_dtype) / 8);
}

size_t exf_weight_source_stored_bytes(const exf_weight_source *w, exf_stored_kind kind, size_t row, size_t n_rows, size_t cols)
{
    return range_of(w, kind, row, n_rows, cols).n;
}

static size_t room_for(size_t bytes)
{
    return (exf_file_aligned_size(bytes) + EXF_FILE_ALIGN - 1) / EXF_FILE_ALIGN * EXF_FILE_ALIGN;
}

size_t exf_weight_source_room(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols)
{
    size_t room = 0;
    for (int kind = 0; kind < EXF_STORED_KINDS; kind++) {
        size_t n = range_of(w, (exf_stored_kind)kind, row, n_rows, cols).n;
        room += n ? room_for(n) : 0;
    }
    return room;
}

size_t exf_weight_piece_rows(const exf_weight_source *w, size_t cols)
{
    if (is_turned(w)) return w->rows;
    if (w->each) return w->each;
    size_t one = row_bytes(w, cols), block = (size_t)w->piece_block;
    if (w->how & EXF_INTERLEAVED && one < cols * sizeof(float)) one = cols * sizeof(float);
    size_t rows = EXF_WEIGHT_CHUNK_BYTES / (one ? one : 1);
    rows = rows / block * block;
    return rows < block ? block : rows;
}

uint64_t exf_weight_source_bytes(const exf_weight_source *w)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < EXF_STORED_KINDS; kind++) bytes += w->of[kind] ? w->of[kind]->tensor->nbytes : 0;
    return bytes;
}

int exf_weight_source_fits_bf16(const exf_weight_source *w)
{
    if (w->how & (EXF_PLUS_ONE | EXF_INTEGER)) return 0;
    if (w->coding == EXF_CODED_PLAIN) return exf_weight_source_dtype(w) == EXF_DT_BF16;
    return (w->coding == EXF_CODED_FP8 || w->coding == EXF_CODED_FP4) && w->scale_dtype == EXF_DT_F8_E8M0;
}

/* ---- as stored ------------------------------------------------------------------- */

static float factor_of(const exf_weight_source *w, const exf_raw_rows *raw)
{
    float factor = 1;
    if (w->of[EXF_STORED_FACTOR]) memcpy(&factor, raw->of[EXF_STORED_FACTOR], sizeof factor);
    return factor;
}

/* Refuses the number of a group that is not there, and one by which a column is not in order where the config says that it is:
 * some libraries then follow the numbers, others the config. */
static exf_code check_groups(const exf_weight_source *w, const exf_raw_rows *raw, size_t cols, exf_err *err)
{
    const exf_stored_tensor *groups = w->of[EXF_STORED_GROUPS];
    for (size_t i = 0; groups && i < cols; i++) {
        int32_t g;
        memcpy(&g, (const char *)raw->of[EXF_STORED_GROUPS] + i * sizeof g, sizeof g);
        if (g < 0 || (size_t)g >= groups_of(w, cols))
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": column %zu is of group %d, expected 0 to %zu",
                            exf_st_path(groups->file), exf_stored_name(groups), i, (int)g, groups_of(w, cols) - 1);
        if (w->order == EXF_ORDER_SEQUENCE && (size_t)g != i / (size_t)w->block_cols)
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": column %zu is of group %d, but \"desc_act\": false says group %zu",
                            exf_st_path(groups->file), exf_stored_name(groups), i, (int)g, i / (size_t)w->block_cols);
    }
    return EXF_OK;
}

/* Refuses a zero point that is not 8 where the config says that all are: some libraries then take the stored one, others 8. */
static exf_code check_zeros(const exf_weight_source *w, const exf_raw_rows *raw, size_t cols, exf_err *err)
{
    const exf_stored_tensor *zeros = w->of[EXF_STORED_ZEROS];
    const uint8_t *bytes = raw->of[EXF_STORED_ZEROS];
    size_t n = w->zeros_are_8 ? groups_of(w, cols) * w->rows : 0;
    for (size_t i = 0; i < n; i++) {
        unsigned stored = bytes[i / 2] >> i % 2 * 4 & 15;
        if (((stored + w->zero_add) & 15) != 8)
            return exf_fail(err, EXF_MODEL,
                            "%s: tensor \"%s\": the zero point of group %zu, row %zu is stored as %u, but %s says that all are 8, "
                            "stored as %u", exf_st_path(zeros->file), exf_stored_name(zeros), i / w->rows, i % w->rows, stored,
                            w->coding == EXF_CODED_AWQ ? "\"zero_point\": false" : "\"sym\": true", 8 - w->zero_add);
    }
    return EXF_OK;
}

/* Refuses a shape that is written beside the codes and is not the weight's. */
static exf_code check_written_shape(const exf_weight_source *w, size_t cols, exf_err *err)
{
    const exf_stored_tensor *s = w->shape;
    char bytes[2 * sizeof(int64_t)];
    int64_t axis[2];
    exf_code rc;
    EXF_TRY(exf_st_read(s->file, s->tensor, 0, bytes, (size_t)s->tensor->nbytes, err));
    for (size_t i = 0; i < 2; i++) {
        int32_t narrow;
        memcpy(&narrow, bytes + i * sizeof narrow, sizeof narrow);
        memcpy(&axis[i], bytes + i * sizeof axis[i], sizeof axis[i]);
        if (s->tensor->view.dtype == EXF_DT_I32) axis[i] = narrow;
    }
    if (axis[0] != (int64_t)w->rows || axis[1] != (int64_t)cols)
        rc = exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" holds [%lld, %lld], but the weight is [%zu, %zu]", exf_st_path(s->file),
                      exf_stored_name(s), (long long)axis[0], (long long)axis[1], w->rows, cols);
out:
    return rc;
}

/* Refuses what a decoder could not follow, and what contradicts the config. */
static exf_code check_raw(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t cols, exf_err *err)
{
    const exf_stored_tensor *factor = w->of[EXF_STORED_FACTOR];
    float v = factor_of(w, raw);
    exf_code rc;
    if (factor && !(v > 0 && isfinite(v)))
        return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\" is %g, expected a number above 0", exf_st_path(factor->file),
                        exf_stored_name(factor), (double)v);
    EXF_TRY(check_groups(w, raw, cols, err));
    EXF_TRY(check_zeros(w, raw, cols, err));
    if (w->shape && row == 0) rc = check_written_shape(w, cols, err);
out:
    return rc;
}

/* Returns what the bytes of one of the tensors are in the model. */
static exf_weight_place place_of(const exf_weight_source *w, exf_stored_kind kind, size_t cols)
{
    exf_weight_place at = w->place;
    at.kind = (int)kind;
    at.first_byte = range_of(w, kind, w->first_row, 1, cols).begin;
    return at;
}

exf_code exf_weight_source_raw(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, void *buffer, exf_raw_rows *out,
                               exf_err *err)
{
    char *to = buffer;
    exf_code rc = EXF_OK;
    for (int kind = 0; kind < EXF_STORED_KINDS; kind++) {
        stored_range r = range_of(w, (exf_stored_kind)kind, row, n_rows, cols);
        out->of[kind] = NULL;
        out->digest[kind][0] = 0;
        if (r.n == 0) continue;
        const exf_stored_tensor *of = w->of[kind];
        EXF_TRY(exf_st_read_aligned(of->file, of->tensor, r.begin, to, r.n, &out->of[kind], err));
        if (w->identity) {
            exf_weight_place place = place_of(w, (exf_stored_kind)kind, cols);
            exf_xxh3_bytes(out->of[kind], r.n, out->digest[kind]);
            EXF_TRY(exf_weight_identity_add(w->identity, &place, of, r.begin, r.n, out->digest[kind], err));
        }
        to += room_for(r.n);
    }
    rc = check_raw(w, out, row, cols, err);
out:
    return rc;
}

exf_piece_hash exf_weight_source_piece(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols)
{
    stored_range r = range_of(w, EXF_STORED_CODES, row, n_rows, cols);
    return (exf_piece_hash){.id = w->identity, .place = place_of(w, EXF_STORED_CODES, cols), .of = w->of[EXF_STORED_CODES],
                            .begin = r.begin, .piece = r.n};
}

exf_code exf_weight_source_slice(const exf_weight_source *w, exf_piece_hash *piece, size_t from, size_t n, void *buffer,
                                 const void **at, exf_err *err)
{
    const exf_stored_tensor *of = w->of[EXF_STORED_CODES];
    exf_code rc = exf_st_read_aligned(of->file, of->tensor, piece->begin + from, buffer, n, at, err);
    return rc == EXF_OK ? exf_piece_hash_add(piece, *at, n, err) : rc;
}

exf_code exf_weight_source_took(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, const exf_raw_rows *rows,
                                exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int kind = 0; w->identity && kind < EXF_STORED_KINDS; kind++) {
        stored_range r = range_of(w, (exf_stored_kind)kind, row, n_rows, cols);
        exf_weight_place place = place_of(w, (exf_stored_kind)kind, cols);
        if (rows->of[kind])
            EXF_TRY(exf_weight_identity_add(w->identity, &place, w->of[kind], r.begin, r.n, rows->digest[kind], err));
    }
out:
    return rc;
}

/* ---- rearranged --------------------------------------------------------------------
 * Plain stacks of experts whose rows lie otherwise in the file than in the forward pass (EXF_REARRANGED): two roles' rows in turn,
 * and rows as columns.  Where two roles' rows alternate or share columns, each role's read takes both, so that they cross the disk
 * twice; the second time they come from the system's cache, if that has room. */

/* One expert's rows that are stored as columns; some of them at a time, so that dst is written in whole lines. */
static exf_code transpose_rows(const exf_weight_source *w, const char *codes, size_t cols, float *dst, exf_err *err)
{
    enum { LINE = 16 };
    exf_dtype dtype = exf_weight_source_dtype(w);
    size_t n = rows_apart(w) * w->each, width = exf_dtype_bits(dtype) / 8, step = w->how & EXF_INTERLEAVED ? 2 : 1,
           before = w->how & EXF_SECOND_HALF ? w->each : rows_before(w);
    float *some = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&some, LINE * n, sizeof *some, "weights", err));
    for (size_t c = 0; c < cols; c += LINE) {
        size_t have = cols - c < LINE ? cols - c : LINE;
        exf_dtype_to_f32(some, codes + c * n * width, have * n, dtype);
        for (size_t r = 0; r < w->each; r++)
            for (size_t i = 0; i < have; i++) dst[r * cols + c + i] = some[i * n + step * r + before];
    }
out:
    exf_mem_free(some);
    return rc;
}

static exf_code decode_rearranged(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                                  float *dst, exf_err *err)
{
    const exf_stored_tensor *s = w->of[EXF_STORED_CODES];
    const char *codes = raw->of[EXF_STORED_CODES];
    exf_code rc = EXF_OK;
    exf_dtype dtype = exf_weight_source_dtype(w);
    size_t apart = rows_apart(w), width = cols * exf_dtype_bits(dtype) / 8;
    for (size_t r = 0; !w->each && r < n_rows; r++) /* every other row of those that are stored, or all */
        exf_dtype_to_f32(dst + r * cols, codes + (rows_before(w) + r * apart) * width, cols, dtype);
    for (size_t at = 0; rc == EXF_OK && w->each && at < n_rows; at += w->each)
        rc = transpose_rows(w, codes + exf_weight_source_stored_bytes(w, EXF_STORED_CODES, row, at, cols), cols, dst + at * cols,
                            err);
    size_t bad = rc == EXF_OK ? exf_first_not_finite(dst, n_rows * cols) : n_rows * cols;
    if (bad == n_rows * cols) return rc;
    return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element %zu of row %zu of its experts' rows is not finite",
                    exf_st_path(s->file), s->tensor->view.name, bad % cols, row + bad / cols);
}

/* ---- decoded --------------------------------------------------------------------- */

/* Says which of code and scale made element `at` of the decoded rows what it is. */
static exf_code not_finite(const exf_weight_source *w, const exf_coded_rows *c, size_t row, size_t at, exf_err *err)
{
    size_t i = at / c->cols * c->step, j = at % c->cols; /* in stored rows */
    float scale = exf_coded_scale(w->coding, c, i, exf_coded_group(c, j));
    const exf_stored_tensor *codes = w->of[EXF_STORED_CODES], *scales = w->of[EXF_STORED_SCALES];
    unsigned code = w->coding == EXF_CODED_FP8 ? c->codes[at] : w->coding == EXF_CODED_FP4 ? c->codes[(i * c->cols + j) / 2] : 0;
    if (!isfinite(scale))
        return exf_fail(err, EXF_NUMERIC, "%s: scales \"%s\": the scale of block [%zu, %zu] is %s", exf_st_path(scales->file),
                        exf_stored_name(scales), (row + i) / c->block_rows, exf_coded_group(c, j),
                        isnan(scale) ? "not a number" : "infinite");
    if (w->coding == EXF_CODED_FP8 && (code & 0x7f) == 0x7f)
        return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element [%zu, %zu] is 0x%02x, which is not a number",
                        exf_st_path(codes->file), exf_stored_name(codes), row + i, j, code);
    return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element [%zu, %zu], code 0x%02x times scale %g, is beyond float32",
                    exf_st_path(codes->file), exf_stored_name(codes), row + i, j, code, (double)scale);
}

static exf_code decode_coded(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                             float *dst, exf_err *err)
{
    float *scales = NULL;
    exf_code rc;
    size_t n_scales = range_of(w, EXF_STORED_SCALES, row, n_rows, cols).n / (exf_dtype_bits(w->scale_dtype) / 8);
    float factor = factor_of(w, raw);
    EXF_TRY(exf_mem_new(&scales, n_scales, sizeof *scales, "scales", err));
    exf_dtype_to_f32(scales, raw->of[EXF_STORED_SCALES], n_scales, w->scale_dtype);
    for (size_t i = 0; w->of[EXF_STORED_FACTOR] && i < n_scales; i++)
        scales[i] = w->divides ? scales[i] / factor : scales[i] * factor;
    /* Rows before `row` in the block that scales, zeros or turned codes begin with. */
    size_t row_in_block = is_turned(w) ? row : row % (w->coding == EXF_CODED_INT4 ? 8 : (size_t)w->block_rows);
    size_t apart = rows_apart(w), before = rows_before(w);
    const uint8_t *codes = (const uint8_t *)raw->of[EXF_STORED_CODES] + before * (row_bytes(w, cols) / apart);
    exf_coded_rows c = {.codes = codes, .scales = scales + before * groups_of(w, cols), .rows = n_rows, .cols = cols,
                        .row_in_block = row_in_block, .block_rows = (size_t)w->block_rows,
                        .block_cols = (size_t)w->block_cols, .zeros = raw->of[EXF_STORED_ZEROS], .zero_add = w->zero_add,
                        .zero_carries = w->zero_carries,
                        .groups = raw->of[EXF_STORED_GROUPS], .all_rows = w->rows, .step = apart};
    exf_dequantize(dst, w->coding, &c);
    size_t bad = exf_first_not_finite(dst, n_rows * cols);
    if (bad < n_rows * cols) rc = not_finite(w, &c, row * apart + before, bad, err);
out:
    exf_mem_free(scales);
    return rc;
}

/* Adds the 1 that the tensor's rule asks for. */
static void add_one(const exf_weight_source *w, float *dst, size_t n)
{
    if (w->how & EXF_PLUS_ONE)
        for (size_t i = 0; i < n; i++) dst[i] += 1;
}

exf_code exf_weight_source_read(const exf_weight_source *w, size_t row, size_t n_rows, size_t cols, float *dst, exf_err *err)
{
    size_t step = exf_weight_piece_rows(w, cols), room = 0;
    char *buffer = NULL;
    exf_raw_rows raw;
    exf_code rc;
    if (w->coding == EXF_CODED_PLAIN && !(w->how & EXF_REARRANGED)) {
        exf_piece_hash hash = exf_weight_source_piece(w, row, step, cols);
        rc = exf_stored_read(w->of[EXF_STORED_CODES], row * cols, n_rows * cols, dst, &hash, err);
        rc = exf_piece_hash_end(&hash, rc, err);
        if (rc == EXF_OK) add_one(w, dst, n_rows * cols);
        return rc;
    }
    /* The others are read in pieces as stored, which are decoded. */
    for (size_t at = 0; at < n_rows; at += step) {
        size_t n = exf_weight_source_room(w, row + at, n_rows - at < step ? n_rows - at : step, cols);
        room = n > room ? n : room;
    }
    EXF_TRY(exf_mem_raw(&buffer, room, 1, "weight staging", err));
    for (size_t at = 0; at < n_rows; at += step) {
        size_t n = n_rows - at < step ? n_rows - at : step;
        EXF_TRY(exf_weight_source_raw(w, row + at, n, cols, buffer, &raw, err));
        EXF_TRY(exf_weight_source_decode(w, &raw, row + at, n, cols, dst + at * cols, err));
    }
out:
    exf_mem_free(buffer);
    return rc;
}

exf_code exf_weight_source_decode(const exf_weight_source *w, const exf_raw_rows *raw, size_t row, size_t n_rows, size_t cols,
                                  float *dst, exf_err *err)
{
    size_t n = n_rows * cols;
    const exf_stored_tensor *s = w->of[EXF_STORED_CODES];
    if (w->coding != EXF_CODED_PLAIN) return decode_coded(w, raw, row, n_rows, cols, dst, err);
    if (w->how & EXF_REARRANGED) return decode_rearranged(w, raw, row, n_rows, cols, dst, err);
    exf_dtype_to_f32(dst, raw->of[EXF_STORED_CODES], n, s->tensor->view.dtype);
    if (exf_first_not_finite(dst, n) < n) {
        exf_code rc = exf_weight_source_read(w, row, n_rows, cols, dst, err); /* for its message */
        if (rc != EXF_OK) return rc;
        return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\" has a value that is not finite", exf_st_path(s->file),
                        exf_stored_name(s));
    }
    add_one(w, dst, n);
    return EXF_OK;
}
