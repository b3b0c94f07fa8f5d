/* resume.c - a resume point: its records, its hidden states, and the steps in which a point is made; see resume.h. */
#include "pass/resume_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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
    if (!exf_resume_saves(r) || r->is_not_writer) return EXF_OK;
    record_name(file, name, layer);
    if (layer < exf_resume_saved_layers(r))
        return exf_fail(err, EXF_INTERNAL, "%s: %s is of the point of %d layers", r->path, file, exf_resume_saved_layers(r));
    EXF_TRY(exf_resume_directory_create(&r->directory, file, &f, err));
    EXF_TRY(write_record(f, tensors, n, sha256, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_resume_set_record(r, file, layer, sha256, err);
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
    const exf_resume_record *k = exf_resume_find_record(r, file);
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

/* Frees what h holds, and drops a file that is being written. */
static void free_hidden(exf_resume_hidden *h)
{
    exf_output_file_abort(h->out);
    exf_mem_free(h->file);
    exf_mem_free(h->sha256);
    *h = (exf_resume_hidden){.out = NULL};
}

/* ---- writing hidden states ---------------------------------------------------------------------------- */

exf_code exf_resume_hidden_begin(exf_resume *r, int done, uint64_t bytes, exf_err *err)
{
    exf_resume_hidden *h = &r->next;
    char file[32];
    exf_code rc;
    r->began = exf_clock();
    EXF_TRY(exf_resume_wait(r, err));
    free_hidden(h);
    snprintf(file, sizeof file, "hidden-%d", done);
    if (r->now.file && strcmp(r->now.file, file) == 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s is of the point that is on the disk", r->path, file);
    h->progress.layers_done = done;
    EXF_TRY(exf_resume_new_checksums(h, bytes, err));
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
    free_hidden(&r->next);
    EXF_TRY(exf_resume_new_checksums(&r->next, bytes, err));
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return exf_fail_errno(err, errno, "%s: cannot open what rank 0 made; ranks need a common file system", path);
    EXF_TRY(exf_output_file_adopt(&r->next.out, fd, path, err));
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
    free_hidden(&r->next);
    return rc;
}

/* Moves at most a chunk at an offset: writes it to h->out and keeps its SHA-256, or reads it from `in` and compares that. */
static exf_code move_chunk(const exf_resume_hidden *h, const exf_file *in, uint64_t offset, char *bytes, size_t n, exf_err *err)
{
    char *known = h->sha256[offset / EXF_RESUME_CHUNK], sha256[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(in ? exf_file_read(in, offset, bytes, n, err) : exf_output_file_patch(h->out, offset, bytes, n, err));
    EXF_TRY(exf_hash_bytes(bytes, n, in ? sha256 : known, err));
    if (in && strcmp(sha256, known) != 0)
        rc = exf_fail(err, EXF_FORMAT,
                      "%s: the %zu bytes at %llu differ from their sha256 in resume.json; --resume=never starts over",
                      exf_file_path(in), n, (unsigned long long)offset);
out:
    return rc;
}

/* Moves a range of the file, its chunks side by side. */
static exf_code move_range(const exf_resume_hidden *h, const exf_file *in, uint64_t offset, char *bytes, size_t n, int n_threads,
                           exf_err *err)
{
    size_t chunk = EXF_RESUME_CHUNK, n_chunks = (n + chunk - 1) / chunk;
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n_chunks, n_threads))
    for (size_t i = 0; i < n_chunks; i++) {
        size_t at = i * chunk, some = n - at < chunk ? n - at : chunk;
        exf_err e;
        if (exf_loop_takes(&loop, i) && move_chunk(h, in, offset + at, bytes + at, some, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

exf_code exf_resume_hidden_put(exf_resume *r, uint64_t offset, const void *bytes, size_t n, int n_threads, exf_err *err)
{
    return move_range(&r->next, NULL, offset, (char *)(uintptr_t)bytes, n, n_threads, err);
}

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

exf_code exf_resume_hidden_get(const exf_resume *r, const exf_file *f, uint64_t offset, void *to, size_t n, int n_threads,
                               exf_err *err)
{
    return move_range(&r->now, f, offset, to, n, n_threads, err);
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

/* Makes the point: everything that it names is on the disk before it is, and what only the point before names goes after it. */
static exf_code save_point(void *self, exf_err *err)
{
    exf_resume *r = self;
    exf_text text = {0};
    exf_output_file *f = NULL, *hidden = r->next.out;
    exf_code rc;
    r->next.out = NULL;
    EXF_TRY(exf_output_file_commit(hidden, err));
    if (r->sync) EXF_TRY(r->sync(r->sync_self, err));
    EXF_TRY(exf_resume_point_text(r, &text, err));
    EXF_TRY(exf_resume_directory_create(&r->directory, NEXT, &f, err));
    EXF_TRY(exf_output_file_write(f, text.s, text.len, err));
    hidden = f; /* what is committed is freed, in any case */
    f = NULL;
    EXF_TRY(exf_output_file_commit(hidden, err));
    EXF_TRY(exf_resume_directory_replace(&r->directory, NEXT, "resume.json", err));
    if (r->now.file) EXF_TRY(exf_resume_directory_drop(&r->directory, r->now.file, err));
    free_hidden(&r->now);
    r->now = r->next;
    r->next = (exf_resume_hidden){.out = NULL};
out:
    if (rc != EXF_OK) exf_err_prefix(err, "resume point: ");
    exf_output_file_abort(f);
    exf_text_free(&text);
    return rc;
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

/* ---- opening ---------------------------------------------------------------------------------- */

/* Returns 1 for a file of the point; what a killed run left of its next point is removed. */
static int is_of_point(const void *self, const char *name)
{
    const exf_resume *r = self;
    return strcmp(name, "resume.json") == 0 || strcmp(name, r->now.file) == 0 || exf_resume_find_record(r, name);
}

/* Reads the point.  If there is none, or the run starts over, removes what an earlier run left. */
static exf_code find_point(exf_resume *r, exf_resume_mode mode, exf_err *err)
{
    int found = 0;
    exf_code rc = EXF_OK;
    if (mode != EXF_RESUME_NEVER) EXF_TRY(exf_resume_directory_look(&r->directory, "resume.json", &found, err));
    if (found) {
        EXF_TRY(exf_resume_read_point(r, err));
        return r->is_not_writer ? EXF_OK : exf_resume_directory_prune(&r->directory, is_of_point, r, err);
    }
    if (mode == EXF_RESUME_REQUIRE)
        return exf_fail(err, EXF_USAGE, "%s: is not there, --resume=require asks for a resume point", r->path);
    EXF_TRY(exf_resume_remove(r, err));
    if (exf_resume_saves(r) && !r->is_not_writer) rc = exf_resume_directory_make(&r->directory, err);
out:
    return rc;
}

exf_code exf_resume_open(exf_resume **out, const exf_resume_options *o, exf_err *err)
{
    exf_resume *r = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "resume point", err));
    pthread_mutex_init(&r->lock, NULL);
    r->every_layers = o->every_layers;
    r->every_seconds = o->every_seconds;
    r->is_not_writer = o->is_not_writer;
    r->last_time = exf_clock();
    EXF_TRY(exf_resume_directory_open(&r->directory, o->directory, o->outputs, o->is_not_writer, err));
    EXF_TRY(exf_path_join(&r->path, o->directory, "resume.json", err));
    EXF_TRY(exf_provenance_copy(&r->facts, o->facts, err));
    EXF_TRY(find_point(r, o->mode, err));
    r->last_done = r->start.layers_done;
out:
    if (rc == EXF_OK)
        *out = r;
    else
        exf_resume_free(r);
    return rc;
}

void exf_resume_free(exf_resume *r)
{
    exf_err unused;
    if (!r) return;
    if (exf_resume_wait(r, &unused) != EXF_OK) unused.code = EXF_OK; /* the failure is dropped */
    for (size_t i = 0; i < r->n_records; i++) exf_mem_free(r->record[i].file);
    exf_mem_free(r->record);
    free_hidden(&r->now);
    free_hidden(&r->next);
    exf_provenance_free(&r->facts);
    exf_resume_directory_close(&r->directory);
    exf_mem_free(r->path);
    pthread_mutex_destroy(&r->lock);
    exf_mem_free(r);
}

/* ---- outputs, removal ------------------------------------------------------------------------ */

exf_code exf_resume_claim_output(exf_resume *r, const char *name, exf_err *err)
{
    return exf_resume_directory_claim(&r->directory, name, err);
}

exf_code exf_resume_remove(exf_resume *r, exf_err *err)
{
    exf_code rc;
    if (r->is_not_writer) return EXF_OK;
    EXF_TRY(exf_resume_wait(r, err));
    if (r->directory.fd >= 0) /* before the files that it names */
        EXF_TRY(exf_resume_directory_drop(&r->directory, "resume.json", err));
    rc = exf_resume_directory_remove(&r->directory, err);
out:
    return rc;
}
