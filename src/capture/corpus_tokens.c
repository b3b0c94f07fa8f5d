/* corpus_tokens.c - sequences that are rows of an integer tensor; see corpus.h. */
#include "capture/corpus_internal.h"
#include "capture/present_names.h"

#include "base/mem.h"
#include "base/progress.h"
#include "base/stop.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <inttypes.h>

enum { BLOCK = 1 << 16 }; /* ids that are decoded at a time: a row may be longer than memory */

typedef struct {
    exf_source_chunks *pool;
    exf_st_file *file;
    const exf_st_tensor *tensor;
    exf_dtype dtype; /* U64 is read as I64: what would be negative is out of range anyway */
    char *raw;
    int64_t *id;
} row_reader;

static exf_code no_such_tensor(const exf_st_file *f, const exf_manifest_source *s, exf_err *err)
{
    exf_text present = {0};
    exf_code rc = exf_tensor_names(f, &present, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "%s: no tensor \"%s\"; the file's are %s", s->label, s->tensor, present.s);
    exf_text_free(&present);
    return rc;
}

static exf_code which_tensor(const exf_st_file *f, const exf_manifest_source *s, exf_err *err)
{
    exf_text present = {0};
    exf_code rc = exf_tensor_names(f, &present, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "%s: the file has %zu tensors, \"tensor\" must name the one that is meant: %s", s->label,
                      exf_st_count(f), present.s);
    exf_text_free(&present);
    return rc;
}

static exf_code find_tensor(row_reader *r, exf_err *err)
{
    const exf_manifest_source *s = r->pool->source;
    size_t n = exf_st_count(r->file);
    if (s->tensor) {
        r->tensor = exf_st_find(r->file, s->tensor);
        return r->tensor ? EXF_OK : no_such_tensor(r->file, s, err);
    }
    if (n != 1) return which_tensor(r->file, s, err);
    r->tensor = exf_st_at(r->file, 0);
    return EXF_OK;
}

static exf_code check_tensor(row_reader *r, exf_err *err)
{
    const exf_tensor *t = &r->tensor->view;
    const char *label = r->pool->source->label;
    char shape[128];
    exf_shape_text(shape, sizeof shape, t->shape, t->rank);
    if (!exf_dtype_is_integer(t->dtype))
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is %s, expected integer token ids", label, t->name,
                        exf_dtype_name(t->dtype));
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] < 1)
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" has shape %s, expected [sequences, tokens], both at least 1", label,
                        t->name, shape);
    r->dtype = t->dtype == EXF_DT_U64 ? EXF_DT_I64 : t->dtype;
    return EXF_OK;
}

static exf_code bad_id(const row_reader *r, int64_t row, int64_t position, int64_t id, exf_err *err)
{
    const exf_source_chunks *p = r->pool;
    const exf_tensor *t = &r->tensor->view;
    if (t->dtype == EXF_DT_U64)
        return exf_fail(err, EXF_MODEL,
                        "%s: tensor \"%s\": row %" PRId64 ", position %" PRId64 ": token id %" PRIu64
                        ", the vocabulary has %" PRId64,
                        p->source->label, t->name, row, position, (uint64_t)id, p->vocab);
    return exf_fail(err, EXF_MODEL,
                    "%s: tensor \"%s\": row %" PRId64 ", position %" PRId64 ": token id %" PRId64 ", the vocabulary has %" PRId64,
                    p->source->label, t->name, row, position, id, p->vocab);
}

/* Ids [begin, begin + n) of a row: all are checked, those below max_tokens kept. */
static exf_code read_block(row_reader *r, int64_t row, int64_t begin, size_t n, exf_err *err)
{
    exf_source_chunks *p = r->pool;
    exf_ids *ids = &p->ids;
    size_t bytes = exf_dtype_bits(r->dtype) / 8;
    uint64_t at = ((uint64_t)row * (uint64_t)r->tensor->view.shape[1] + (uint64_t)begin) * bytes;
    exf_code rc = exf_st_read(r->file, r->tensor, at, r->raw, n * bytes, err);
    if (rc == EXF_OK) rc = exf_mem_grow(&ids->id, &ids->cap, ids->n + n, sizeof *ids->id, "token ids", err);
    if (rc != EXF_OK) return rc;
    exf_dtype_to_i64(r->id, r->raw, n, r->dtype);
    for (size_t k = 0; k < n; k++) {
        if (r->id[k] < 0 || r->id[k] >= p->vocab) return bad_id(r, row, begin + (int64_t)k, r->id[k], err);
        if (begin + (int64_t)k < p->max_tokens) ids->id[ids->n++] = (int32_t)r->id[k];
    }
    return EXF_OK;
}

static exf_code read_row(row_reader *r, int64_t row, exf_err *err)
{
    exf_source_chunks *p = r->pool;
    int64_t len = r->tensor->view.shape[1];
    size_t first = p->ids.n;
    for (int64_t begin = 0; begin < len; begin += BLOCK) {
        size_t n = len - begin < BLOCK ? (size_t)(len - begin) : BLOCK;
        exf_code rc = exf_stop_check(err);
        if (rc == EXF_OK) rc = read_block(r, row, begin, n, err);
        if (rc != EXF_OK) return rc;
    }
    p->tokens_dropped += (uint64_t)len - (p->ids.n - first);
    exf_progress_add((double)len * exf_dtype_bits(r->tensor->view.dtype) / 8);
    return exf_source_chunks_cut(p, first, err);
}

exf_code exf_source_chunks_read_tokens(exf_source_chunks *p, exf_err *err)
{
    exf_code rc;
    row_reader r = {.pool = p};
    if ((rc = exf_st_open(&r.file, p->source->file, err)) != EXF_OK) {
        exf_err_prefix(err, "%s: ", p->source->label);
        return rc;
    }
    EXF_TRY(find_tensor(&r, err));
    EXF_TRY(check_tensor(&r, err));
    EXF_TRY(exf_mem_new(&r.raw, BLOCK, sizeof *r.id, "token ids", err));
    EXF_TRY(exf_mem_new(&r.id, BLOCK, sizeof *r.id, "token ids", err));
    for (int64_t row = 0; row < r.tensor->view.shape[0]; row++) EXF_TRY(read_row(&r, row, err));
out:
    exf_mem_free(r.raw);
    exf_mem_free(r.id);
    exf_st_close(r.file);
    return rc;
}
