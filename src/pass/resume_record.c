/* resume_record.c - the records of a point, one of each layer and name: lists, writes and reads them; and how far the run is, which
 * says whether a record may be written; see resume.h. */
#include "pass/resume_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* ---- how far the run is ---------------------------------------------------------------------- */

int exf_resume_saves(const exf_resume *r)
{
    return r->every_layers > 0 || r->every_seconds > 0;
}

const exf_resume_progress *exf_resume_start(const exf_resume *r)
{
    return &r->start;
}

int exf_resume_saved_layers(const exf_resume *r)
{
    return r->now.file ? r->now.progress.layers_done : 0;
}

/* ---- the list of records ---------------------------------------------------------------------- */

exf_resume_record *exf_resume_record_find(const exf_resume *r, const char *file)
{
    for (size_t i = 0; i < r->n_records; i++)
        if (strcmp(r->record[i].file, file) == 0) return &r->record[i];
    return NULL;
}

exf_code exf_resume_record_set(exf_resume *r, const char *file, int layer, const char *sha256, exf_err *err)
{
    exf_code rc = EXF_OK;
    pthread_mutex_lock(&r->lock);
    exf_resume_record *k = exf_resume_record_find(r, file);
    if (!k) {
        EXF_TRY(exf_mem_grow(&r->record, &r->capacity, r->n_records + 1, sizeof *r->record, "records", err));
        k = &r->record[r->n_records];
        EXF_TRY(exf_mem_strdup(&k->file, file, "records", err));
        r->n_records++;
    }
    k->layer = layer;
    memcpy(k->sha256, sha256, EXF_SHA256_HEX);
out:
    pthread_mutex_unlock(&r->lock);
    return rc;
}

/* ---- files ------------------------------------------------------------------------------------- */

enum { NAME_LEN = 80 };

static void record_name(char out[NAME_LEN], const char *name, int layer)
{
    snprintf(out, NAME_LEN, "%s-%d.safetensors", name, layer);
}

/* Writes bytes piece by piece, each of which a thread of the hash's own takes while the next one is written. */
static exf_code write_bytes(exf_output_file *f, exf_hash *h, const char *bytes, size_t n, exf_err *err)
{
    enum { PIECE = 1 << 20 };
    exf_code rc = EXF_OK;
    for (size_t at = 0; rc == EXF_OK && at < n; at += PIECE) {
        size_t some = n - at < PIECE ? n - at : PIECE;
        rc = exf_output_file_write(f, bytes + at, some, err);
        if (rc == EXF_OK) rc = exf_hash_add(h, bytes + at, some, err);
    }
    return rc;
}

/* Writes a safetensors file, and the digest of the bytes that were written. */
static exf_code write_record(exf_output_file *f, const exf_tensor *tensors, size_t n, char sha256[EXF_SHA256_HEX], exf_err *err)
{
    const char *path = exf_output_file_path(f);
    exf_text header = {0};
    exf_hash *h = NULL;
    size_t *order = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&order, n, sizeof *order, "record", err));
    EXF_TRY(exf_hash_new(&h, err));
    exf_hash_beside(h);
    EXF_TRY(exf_st_header(&header, order, path, tensors, n, NULL, 0, err));
    EXF_TRY(write_bytes(f, h, header.s, header.len, err));
    for (size_t i = 0; i < n; i++) {
        const exf_tensor *t = &tensors[order[i]];
        uint64_t bytes;
        EXF_TRY(exf_st_check(path, t, &bytes, err));
        EXF_TRY(write_bytes(f, h, t->data, (size_t)bytes, err));
    }
    rc = exf_hash_end(h, sha256, err);
    h = NULL;
out:
    exf_hash_free(h);
    exf_text_free(&header);
    exf_mem_free(order);
    return rc;
}

exf_code exf_resume_put(exf_resume *r, const char *name, int layer, const exf_tensor *tensors, size_t n, exf_err *err)
{
    char file[NAME_LEN], sha256[EXF_SHA256_HEX];
    exf_output_file *f = NULL;
    exf_code rc;
    if (!exf_resume_saves(r) || r->follows) return EXF_OK;
    record_name(file, name, layer);
    if (layer < exf_resume_saved_layers(r))
        return exf_fail(err, EXF_INTERNAL, "%s: %s is of the point of %d layers", r->path, file, exf_resume_saved_layers(r));
    EXF_TRY(exf_resume_directory_create(&r->directory, file, &f, err));
    EXF_TRY(write_record(f, tensors, n, sha256, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_resume_record_set(r, file, layer, sha256, err);
out:
    exf_output_file_abort(f);
    return rc;
}

exf_code exf_resume_get(const exf_resume *r, const char *name, int layer, exf_st_file **out, exf_err *err)
{
    char file[NAME_LEN], sha256[EXF_SHA256_HEX];
    exf_file *f = NULL;
    exf_code rc;
    *out = NULL;
    record_name(file, name, layer);
    const exf_resume_record *k = exf_resume_record_find(r, file);
    if (!k)
        return exf_fail(err, EXF_FORMAT, "%s: names no %s, which layer %d left; --resume=never starts over", r->path, file, layer);
    EXF_TRY(exf_resume_directory_read(&r->directory, file, &f, err));
    EXF_TRY(exf_hash_open_file(f, sha256, err));
    if (strcmp(sha256, k->sha256) != 0) {
        rc = exf_fail(err, EXF_FORMAT, "%s: has sha256 %.12s..., resume.json says %.12s...; --resume=never starts over",
                      exf_file_path(f), sha256, k->sha256);
        goto out;
    }
    rc = exf_st_open_file(out, f, err);
    f = NULL;
out:
    exf_file_close(f);
    return rc;
}

exf_code exf_resume_read(const exf_st_file *f, const exf_tensor *expected, void *data, exf_err *err)
{
    const exf_st_tensor *t = exf_st_find(f, expected->name);
    int same = t && t->view.dtype == expected->dtype && t->view.rank == expected->rank;
    for (int i = 0; same && i < expected->rank; i++) same = t->view.shape[i] == expected->shape[i];
    if (!same)
        return exf_fail(err, EXF_FORMAT, "%s: has no %s of the run's shape; --resume=never starts over", exf_st_path(f),
                        expected->name);
    return exf_st_read(f, t, 0, data, t->nbytes, err);
}
