/* corpus_ids.c - reads token ids: rows of a tensor, or lists in JSON lines; see corpus.h. */
#include "capture/corpus_internal.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"

#include <inttypes.h>
#include <string.h>

/* ---- lists in JSON lines ------------------------------------------------------------------------------------ */

exf_code exf_source_chunks_add_ids(exf_source_chunks *p, const exf_json *object, const char *place, exf_err *err)
{
    const char *field = p->source->field, *label = p->source->label;
    const exf_json *list = exf_json_get(object, field);
    size_t n = exf_json_size(list), first = p->ids.n;
    exf_code rc;
    if (exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s%s: \"%s\" is %s, expected a list of token ids", label, place, field,
                        list ? exf_json_type_name(list) : "missing");
    const exf_json *mask = exf_json_get(object, "attention_mask"); /* its zeros mark padding, which is no part of the text */
    for (size_t i = 0; exf_json_type(mask) == EXF_JSON_ARRAY && i < exf_json_size(mask) && i < n; i++)
        if (exf_json_type(exf_json_at(mask, i)) == EXF_JSON_INT && exf_json_int(exf_json_at(mask, i)) == 0)
            return exf_fail(err, EXF_MODEL, "%s%s: \"attention_mask\" has a 0 at position %zu: these ids are padded; leave the "
                            "padding out, or give the texts themselves", label, place, i);
    EXF_TRY(exf_mem_grow(&p->ids.id, &p->ids.cap, first + n, sizeof *p->ids.id, "token ids", err));
    for (size_t i = 0; i < n; i++) {
        const exf_json *j = exf_json_at(list, i);
        int64_t id = exf_json_int(j);
        if (exf_json_type(j) != EXF_JSON_INT)
            rc = exf_fail(err, EXF_MODEL, "%s%s: \"%s\"[%zu] is %s, expected a token id", label, place, field, i,
                          exf_json_type_name(j));
        else if (id < 0 || id >= p->vocab)
            rc = exf_fail(err, EXF_MODEL, "%s%s: \"%s\"[%zu]: token id %" PRId64 ", the vocabulary has %" PRId64, label, place,
                          field, i, id, p->vocab);
        if (rc != EXF_OK) break;
        p->ids.id[p->ids.n++] = (int32_t)id;
    }
    if (rc == EXF_OK) rc = exf_source_chunks_cut(p, first, NULL, err);
out:
    return rc;
}

/* ---- tensors of token ids --------------------------------------------------------------------------------- */

enum { BLOCK = 1 << 16 }; /* ids that are decoded at a time: a row may be longer than memory */

typedef struct {
    exf_source_chunks *pool;
    exf_st_file *file;
    const exf_st_tensor *tensor;
    exf_dtype dtype; /* U64 is read as I64: what would be negative is out of range anyway */
    char *raw;
    int64_t *id;
} row_reader;

/* Finds the tensor that the source names, else the only one. */
static exf_code find_tensor(row_reader *r, exf_err *err)
{
    const exf_manifest_source *s = r->pool->source;
    size_t n = r->file->n_tensors;
    exf_text present = {0};
    r->tensor = s->tensor ? exf_st_find(r->file, s->tensor) : n == 1 ? &r->file->tensor[0] : NULL;
    if (r->tensor) return EXF_OK;
    exf_tensor_names(r->file, &present);
    exf_code rc = exf_text_end(&present, err);
    if (rc == EXF_OK && s->tensor)
        rc = exf_fail(err, EXF_MODEL, "%s: no tensor \"%s\"; the file's are %s", s->label, s->tensor, present.s);
    else if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "%s: the file has %zu tensors, \"tensor\" must name the one that is meant: %s", s->label, n,
                      present.s);
    exf_text_free(&present);
    return rc;
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

/* Reads ids [begin, begin + n) of a row: checks all, and keeps those at positions below max_tokens. */
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
    return exf_source_chunks_cut(p, first, NULL, err);
}

exf_code exf_source_chunks_read_tokens(exf_source_chunks *p, exf_err *err)
{
    exf_code rc;
    row_reader r = {.pool = p};
    if (strcmp(p->source->file, EXF_STANDARD_INPUT) == 0)
        return exf_fail(err, EXF_USAGE, "%s: token ids are read from a file, not from standard input", p->source->label);
    if ((rc = exf_st_open(&r.file, p->source->file, err)) != EXF_OK) {
        exf_err_prefix(err, "%s: ", p->source->label);
        return rc;
    }
    EXF_TRY(find_tensor(&r, err));
    EXF_TRY(check_tensor(&r, err));
    EXF_TRY(exf_mem_new(&r.raw, BLOCK, sizeof *r.id, "token ids", err));
    EXF_TRY(exf_mem_new(&r.id, BLOCK, sizeof *r.id, "token ids", err));
    for (int64_t row = 0; row < r.tensor->view.shape[0]; row++) EXF_TRY(read_row(&r, row, err));
    rc = exf_source_unchanged(p->source, r.file->file, err);
out:
    exf_mem_free(r.raw);
    exf_mem_free(r.id);
    exf_st_close(r.file);
    return rc;
}
