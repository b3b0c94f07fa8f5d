/* safetensors_write.c - writes .safetensors byte for byte as the reference writer would, but for sorted metadata keys; see
 * safetensors.h. */
#include "format/safetensors.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t offset; /* absolute, once the header's length is known */
    uint64_t nbytes;
    _Atomic uint64_t written;
    size_t name; /* where its name starts in the writer's names */
} slot;

struct exf_st_writer {
    exf_output_file *file;
    char *target;
    exf_text names; /* of all tensors, each with its NUL */
    slot *slot;     /* in the announced order */
    size_t n;
};

/* ---- layout ------------------------------------------------------------- */

static int by_tensor_name(const void *a, const void *b)
{
    const exf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The reference compares its dtype enum, whose order EXF_DTYPES repeats; it
 * ascends with the width, so that every tensor starts aligned. */
static int by_dtype_then_name(const void *a, const void *b)
{
    const exf_tensor *const *x = a, *const *y = b;
    if ((*x)->dtype != (*y)->dtype) return (*x)->dtype > (*y)->dtype ? -1 : 1;
    return by_tensor_name(a, b);
}

static int by_key(const void *a, const void *b)
{
    const exf_st_meta *x = a, *y = b;
    return strcmp(x->key, y->key);
}

/* ---- header ------------------------------------------------------------- */

/* Appends "__metadata__":{...} in order of key if there is any. */
static exf_code append_metadata(exf_text *h, const char *target, const exf_st_meta *meta, size_t n, exf_err *err)
{
    exf_code rc;
    exf_st_meta *sorted = NULL;
    if (n == 0) return EXF_OK;
    EXF_TRY(exf_mem_new(&sorted, n, sizeof *sorted, target, err));
    memcpy(sorted, meta, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_key);
    for (size_t i = 0; i < n; i++) {
        const char *key = sorted[i].key, *value = sorted[i].value;
        if (i && by_key(&sorted[i - 1], &sorted[i]) == 0)
            rc = exf_fail(err, EXF_FORMAT, "%s: metadata \"%s\": given twice", target, key);
        else if (exf_utf8_valid(key, strlen(key)) != strlen(key))
            rc = exf_fail(err, EXF_FORMAT, "%s: a metadata key is not UTF-8", target);
        else if (exf_utf8_valid(value, strlen(value)) != strlen(value))
            rc = exf_fail(err, EXF_FORMAT, "%s: metadata \"%s\": its value is not UTF-8", target, key);
        if (rc != EXF_OK) goto out;
        exf_text_appendf(h, "%s", i ? "," : "\"__metadata__\":{");
        EXF_TRY(exf_json_quote(h, key, err));
        exf_text_append(h, ":", 1);
        EXF_TRY(exf_json_quote(h, value, err));
    }
    exf_text_append(h, "}", 1);
out:
    exf_mem_free(sorted);
    return rc;
}

/* Checks the tensors, appends the header, from its length to its padding, and fills the slots.  *order becomes the pointers to the
 * tensors in the order of their data, which the caller frees. */
static exf_code build_header(exf_text *h, exf_st_writer *w, const exf_tensor ***order, const exf_tensor *tensors,
                             const exf_st_meta *meta, size_t n_meta, exf_err *err)
{
    uint64_t at = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(order, w->n, sizeof **order, w->target, err));
    for (size_t i = 0; i < w->n; i++) {
        EXF_TRY(exf_st_check(w->target, &tensors[i], &w->slot[i].nbytes, err));
        w->slot[i].name = w->names.len;
        exf_text_append(&w->names, tensors[i].name, strlen(tensors[i].name) + 1);
        atomic_init(&w->slot[i].written, 0);
        (*order)[i] = &tensors[i];
    }
    EXF_TRY(exf_text_end(&w->names, err));
    qsort(*order, w->n, sizeof **order, by_tensor_name);
    for (size_t i = 1; i < w->n; i++)
        if (by_tensor_name(&(*order)[i - 1], &(*order)[i]) == 0)
            return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": announced twice", w->target, (*order)[i]->name);
    qsort(*order, w->n, sizeof **order, by_dtype_then_name);

    exf_text_append(h, "\0\0\0\0\0\0\0\0{", 9);
    EXF_TRY(append_metadata(h, w->target, meta, n_meta, err));
    for (size_t i = 0; i < w->n; i++) {
        const exf_tensor *t = (*order)[i];
        slot *s = &w->slot[t - tensors];
        if (s->nbytes > (uint64_t)INT64_MAX - EXF_ST_MAX_HEADER - 8 - at)
            return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": %" PRIu64 " bytes after %" PRIu64 " overflow 64 bits", w->target,
                            t->name, s->nbytes, at);
        s->offset = at;
        at += s->nbytes;
        if (n_meta || i) exf_text_append(h, ",", 1);
        EXF_TRY(exf_json_quote(h, t->name, err));
        exf_text_appendf(h, ":{\"dtype\":\"%s\",\"shape\":[", exf_dtype_name(t->dtype));
        for (int k = 0; k < t->rank; k++) exf_text_appendf(h, "%s%" PRId64, k ? "," : "", t->shape[k]);
        exf_text_appendf(h, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", s->offset, at);
    }
    exf_text_append(h, "}", 1);
    exf_text_append(h, "        ", (8 - h->len % 8) % 8);
    EXF_TRY(exf_text_end(h, err));
    uint64_t n = h->len - 8;
    if (n > EXF_ST_MAX_HEADER)
        return exf_fail(err, EXF_FORMAT, "%s: header of %" PRIu64 " bytes, at most %d are accepted", w->target, n,
                        EXF_ST_MAX_HEADER);
    for (int i = 0; i < 8; i++) h->s[i] = (char)(n >> (8 * i) & 0xff);
    for (size_t i = 0; i < w->n; i++) w->slot[i].offset += h->len;
out:
    return rc;
}

exf_code exf_st_header(exf_text *header, size_t *order, const char *target, const exf_tensor *tensors, size_t n_tensors,
                       const exf_st_meta *meta, size_t n_meta, exf_err *err)
{
    exf_code rc;
    exf_st_writer w = {.n = n_tensors};
    const exf_tensor **sorted = NULL;
    EXF_TRY(exf_mem_strdup(&w.target, target, target, err));
    EXF_TRY(exf_mem_new(&w.slot, n_tensors, sizeof *w.slot, target, err));
    EXF_TRY(build_header(header, &w, &sorted, tensors, meta, n_meta, err));
    for (size_t i = 0; i < n_tensors; i++) order[i] = (size_t)(sorted[i] - tensors);
out:
    exf_mem_free(sorted);
    exf_mem_free(w.slot);
    exf_mem_free(w.target);
    exf_text_free(&w.names);
    return rc;
}

/* ---- the writer ----------------------------------------------------------- */

void exf_st_writer_abort(exf_st_writer *w)
{
    if (!w) return;
    exf_output_file_abort(w->file);
    exf_text_free(&w->names);
    exf_mem_free(w->slot);
    exf_mem_free(w->target);
    exf_mem_free(w);
}

/* Begins a file and writes its header; gives the caller the header and the tensors in the order of their data, to free. */
static exf_code begin(exf_st_writer **out, exf_text *header, const exf_tensor ***order, const char *target, int force,
                      const exf_tensor *tensors, size_t n_tensors, const exf_st_meta *meta, size_t n_meta, exf_err *err)
{
    exf_code rc;
    exf_st_writer *w = NULL;
    EXF_TRY(exf_mem_new(&w, 1, sizeof *w, target, err));
    w->n = n_tensors;
    EXF_TRY(exf_mem_strdup(&w->target, target, target, err));
    EXF_TRY(exf_mem_new(&w->slot, n_tensors, sizeof *w->slot, target, err));
    EXF_TRY(build_header(header, w, order, tensors, meta, n_meta, err));
    EXF_TRY(exf_output_file_begin(&w->file, target, force, err));
    EXF_TRY(exf_output_file_write(w->file, header->s, header->len, err));
    *out = w;
    w = NULL;
out:
    exf_st_writer_abort(w);
    return rc;
}

exf_code exf_st_writer_begin(exf_st_writer **out, const char *target, int force, const exf_tensor *tensors, size_t n_tensors,
                             const exf_st_meta *meta, size_t n_meta, exf_err *err)
{
    exf_text header = {0};
    const exf_tensor **order = NULL;
    *out = NULL;
    exf_code rc = begin(out, &header, &order, target, force, tensors, n_tensors, meta, n_meta, err);
    exf_mem_free(order);
    exf_text_free(&header);
    return rc;
}

exf_code exf_st_writer_put(exf_st_writer *w, size_t i, uint64_t begin, const void *bytes, size_t n, exf_err *err)
{
    if (i >= w->n) return exf_fail(err, EXF_INTERNAL, "%s: bytes for tensor %zu, %zu are announced", w->target, i, w->n);
    slot *s = &w->slot[i];
    if (begin > s->nbytes || n > s->nbytes - begin)
        return exf_fail(err, EXF_INTERNAL, "%s: tensor \"%s\": %zu bytes put at byte %" PRIu64 " of %" PRIu64, w->target,
                        w->names.s + s->name, n, begin, s->nbytes);
    if (n && !bytes)
        return exf_fail(err, EXF_INTERNAL, "%s: tensor \"%s\": no data for %zu bytes", w->target, w->names.s + s->name, n);
    exf_code rc = exf_output_file_patch(w->file, s->offset + begin, bytes, n, err);
    if (rc == EXF_OK) atomic_fetch_add(&s->written, n);
    return rc;
}

exf_code exf_st_writer_commit(exf_st_writer *w, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < w->n && rc == EXF_OK; i++) {
        slot *s = &w->slot[i];
        uint64_t got = atomic_load(&s->written);
        if (got != s->nbytes)
            rc = exf_fail(err, EXF_INTERNAL, "%s: tensor \"%s\": %" PRIu64 " bytes put, it has %" PRIu64, w->target,
                          w->names.s + s->name, got, s->nbytes);
    }
    if (rc == EXF_OK) {
        rc = exf_output_file_commit(w->file, err);
        w->file = NULL;
    }
    exf_st_writer_abort(w);
    return rc;
}

/* ---- a whole file --------------------------------------------------------------
 * Tables with low-rank corrections are gigabytes: threads write pieces of them, while one thread hashes all of it in order. */

enum { PIECE_BYTES = 4 << 20 };

typedef struct {
    exf_st_writer *w;
    exf_text header;
    const exf_tensor *tensors;
    const exf_tensor **order; /* pointers to the tensors, in the order of their data */
    char *sha256;
} whole_file;

static exf_code hash_all(void *self, exf_err *err)
{
    const whole_file *f = self;
    exf_hash *h = NULL;
    exf_code rc;
    EXF_TRY(exf_hash_new(&h, err));
    EXF_TRY(exf_hash_add(h, f->header.s, f->header.len, err));
    for (size_t i = 0; i < f->w->n; i++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_hash_add(h, f->order[i]->data, (size_t)f->w->slot[f->order[i] - f->tensors].nbytes, err));
    }
    rc = exf_hash_end(h, f->sha256, err);
    h = NULL;
out:
    exf_hash_free(h);
    return rc;
}

static exf_code put_pieces(exf_st_writer *w, size_t tensor, const char *bytes, exf_err *err)
{
    size_t size = (size_t)w->slot[tensor].nbytes, n = (size + PIECE_BYTES - 1) / PIECE_BYTES;
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, exf_background_threads()))
    for (size_t i = 0; i < n; i++) {
        size_t at = i * PIECE_BYTES, some = size - at < PIECE_BYTES ? size - at : PIECE_BYTES;
        exf_err e;
        if (!exf_loop_takes(&loop, i)) continue;
        if (exf_st_writer_put(w, tensor, at, bytes + at, some, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

exf_code exf_st_write(const char *target, int force, const exf_tensor *tensors, size_t n_tensors, const exf_st_meta *meta,
                      size_t n_meta, char sha256[EXF_SHA256_HEX], exf_err *err)
{
    whole_file f = {.tensors = tensors, .sha256 = sha256};
    exf_background hashing = {.worker.open = 0};
    exf_code rc;
    EXF_TRY(begin(&f.w, &f.header, &f.order, target, force, tensors, n_tensors, meta, n_meta, err));
    for (size_t i = 0; i < f.w->n; i++)
        if (!f.tensors[i].data && f.w->slot[i].nbytes)
            EXF_TRY(exf_fail(err, EXF_INTERNAL, "%s: tensor \"%s\": no data for %" PRIu64 " bytes", f.w->target, f.tensors[i].name,
                            f.w->slot[i].nbytes));
    if (sha256) EXF_TRY(exf_background_start(&hashing, hash_all, &f, err));
    for (size_t i = 0; i < n_tensors; i++) EXF_TRY(put_pieces(f.w, i, tensors[i].data, err));
    EXF_TRY(exf_background_wait(&hashing, err));
    rc = exf_st_writer_commit(f.w, err);
    f.w = NULL;
out:
    exf_background_end(&hashing);
    exf_st_writer_abort(f.w);
    exf_mem_free(f.order);
    exf_text_free(&f.header);
    return rc;
}
