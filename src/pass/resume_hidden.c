/* resume_hidden.c - the hidden states of a point, and the thread that makes a point of them and of all records; see resume.h. */
#include "pass/resume_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

void exf_resume_hidden_free(exf_resume_hidden *h)
{
    exf_output_file_abort(h->out);
    exf_mem_free(h->file);
    exf_mem_free(h->sha256);
    *h = (exf_resume_hidden){.out = NULL};
}

/* ---- writing hidden states ---------------------------------------------------------------------------- */

/* Makes room for the checksums of so many bytes. */
static exf_code new_checksums(exf_resume_hidden *h, uint64_t bytes, exf_err *err)
{
    h->bytes = bytes;
    h->n_chunks = (size_t)((bytes + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK);
    return exf_mem_new(&h->sha256, h->n_chunks, sizeof *h->sha256, "checksums", err);
}

exf_code exf_resume_hidden_begin(exf_resume *r, int done, uint64_t bytes, exf_err *err)
{
    exf_resume_hidden *h = &r->next;
    char file[32];
    exf_code rc;
    r->began = exf_clock();
    EXF_TRY(exf_resume_wait(r, err));
    exf_resume_hidden_free(h);
    snprintf(file, sizeof file, "hidden-%d", done);
    if (r->now.file && strcmp(r->now.file, file) == 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s is of the point that is on the disk", r->path, file);
    h->progress.layers_done = done;
    EXF_TRY(new_checksums(h, bytes, err));
    EXF_TRY(exf_mem_strdup(&h->file, file, "resume point", err));
    EXF_TRY(exf_resume_directory_create(&r->directory, file, &h->out, err));
out:
    return rc;
}

const char *exf_resume_hidden_path(const exf_resume *r)
{
    return exf_output_file_path(r->next.out);
}

exf_code exf_resume_hidden_join(exf_resume *r, uint64_t bytes, const char *path, exf_err *err)
{
    exf_code rc;
    exf_resume_hidden_free(&r->next);
    EXF_TRY(new_checksums(&r->next, bytes, err));
    EXF_TRY(exf_output_file_join(&r->next.out, path, err));
out:
    return rc;
}

char *exf_resume_hidden_digest(const exf_resume *r, size_t chunk)
{
    return r->next.sha256[chunk];
}

exf_code exf_resume_hidden_leave(exf_resume *r, exf_err *err)
{
    exf_output_file *f = r->next.out;
    r->next.out = NULL;
    exf_code rc = exf_output_file_commit(f, err);
    exf_resume_hidden_free(&r->next);
    return rc;
}

/* A range of the file, cut in chunks that are written or read side by side. */
typedef struct {
    const exf_resume_hidden *h;
    const exf_file *in; /* NULL: written to h->out */
    uint64_t offset;
    char *bytes;
    size_t n;
} range;

static size_t chunk_of(const range *k, size_t i)
{
    size_t at = i * (size_t)EXF_RESUME_CHUNK;
    return k->n - at < EXF_RESUME_CHUNK ? k->n - at : EXF_RESUME_CHUNK;
}

typedef exf_code (*chunk_step)(const range *k, size_t i, exf_err *err);

static exf_code each_chunk(const range *k, chunk_step step, int n_threads, exf_err *err)
{
    size_t n = (k->n + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK;
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, n_threads))
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && step(k, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

static exf_code write_chunk(const range *k, size_t i, exf_err *err)
{
    uint64_t at = k->offset + i * (uint64_t)EXF_RESUME_CHUNK;
    const char *bytes = k->bytes + i * (size_t)EXF_RESUME_CHUNK;
    exf_code rc;
    EXF_TRY(exf_output_file_patch(k->h->out, at, bytes, chunk_of(k, i), err));
    EXF_TRY(exf_hash_bytes(bytes, chunk_of(k, i), k->h->sha256[at / EXF_RESUME_CHUNK], err));
out:
    return rc;
}

exf_code exf_resume_hidden_put(exf_resume *r, uint64_t offset, const void *bytes, size_t n, int n_threads, exf_err *err)
{
    range k = {.h = &r->next, .offset = offset, .bytes = (char *)(uintptr_t)bytes, .n = n};
    return each_chunk(&k, write_chunk, n_threads, err);
}

/* ---- reading hidden states ---------------------------------------------------------------------------- */

exf_code exf_resume_hidden_open(const exf_resume *r, uint64_t bytes, exf_file **out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_resume_directory_read(&r->directory, r->now.file, out, err));
    if (exf_file_size(*out) != bytes || r->now.bytes != bytes) {
        rc = exf_fail(err, EXF_FORMAT, "%s: has %llu bytes, the run's hidden states take %llu; --resume=never starts over",
                      exf_file_path(*out), (unsigned long long)exf_file_size(*out), (unsigned long long)bytes);
        exf_file_close(*out);
        *out = NULL;
    }
out:
    return rc;
}

static exf_code read_chunk(const range *k, size_t i, exf_err *err)
{
    uint64_t at = k->offset + i * (uint64_t)EXF_RESUME_CHUNK;
    char *bytes = k->bytes + i * (size_t)EXF_RESUME_CHUNK, sha256[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_file_read(k->in, at, bytes, chunk_of(k, i), err));
    EXF_TRY(exf_hash_bytes(bytes, chunk_of(k, i), sha256, err));
    if (strcmp(sha256, k->h->sha256[at / EXF_RESUME_CHUNK]) != 0)
        rc = exf_fail(err, EXF_FORMAT,
                      "%s: the %zu bytes at %llu differ from their sha256 in resume.json; --resume=never starts over",
                      exf_file_path(k->in), chunk_of(k, i), (unsigned long long)at);
out:
    return rc;
}

exf_code exf_resume_hidden_get(const exf_resume *r, const exf_file *f, uint64_t offset, void *to, size_t n, int n_threads,
                               exf_err *err)
{
    range k = {.h = &r->now, .in = f, .offset = offset, .bytes = to, .n = n};
    return each_chunk(&k, read_chunk, n_threads, err);
}

/* ---- saving ------------------------------------------------------------------------------ */

#define NEXT "resume.json.new"

int exf_resume_due(const exf_resume *r, int done, uint64_t bytes)
{
    double cost = r->last_cost > 0 ? r->last_cost : (double)bytes / EXF_RESUME_FIRST_SPEED, wait = cost / EXF_RESUME_MOST_COST;
    if (r->every_layers && done - r->last_done >= r->every_layers) return 1;
    if (r->every_seconds <= 0) return 0;
    return exf_clock() - r->last_time >= (wait > r->every_seconds ? wait : r->every_seconds);
}

static exf_code write_point(exf_resume *r, exf_err *err)
{
    exf_text text = {0};
    exf_output_file *f = NULL, *hidden = r->next.out;
    exf_code rc;
    r->next.out = NULL;
    EXF_TRY(exf_output_file_commit(hidden, err));
    if (r->sync) EXF_TRY(r->sync(r->sync_self, err));
    EXF_TRY(exf_resume_point_text(r, &r->next, &text, err));
    EXF_TRY(exf_resume_directory_create(&r->directory, NEXT, &f, err));
    EXF_TRY(exf_output_file_write(f, text.s, text.len, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_resume_directory_replace(&r->directory, NEXT, "resume.json", err);
out:
    exf_output_file_abort(f);
    exf_text_free(&text);
    return rc;
}

static exf_code save_point(void *self, exf_err *err)
{
    exf_resume *r = self;
    exf_code rc = write_point(r, err);
    if (rc == EXF_OK && r->now.file) rc = exf_resume_directory_drop(&r->directory, r->now.file, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "resume point: ");
        return rc;
    }
    exf_resume_hidden_free(&r->now);
    r->now = r->next;
    r->next = (exf_resume_hidden){.out = NULL};
    return EXF_OK;
}

void exf_resume_sync_first(exf_resume *r, exf_code (*sync)(void *self, exf_err *err), void *self)
{
    r->sync = sync;
    r->sync_self = self;
}

exf_code exf_resume_save(exf_resume *r, const exf_resume_progress *now, exf_err *err)
{
    r->next.progress = *now;
    r->last_done = now->layers_done;
    r->last_time = exf_clock();
    r->last_cost = r->last_time - r->began;
    return exf_background_start(&r->saving, save_point, r, err);
}

exf_code exf_resume_wait(exf_resume *r, exf_err *err)
{
    return exf_background_wait(&r->saving, err);
}
