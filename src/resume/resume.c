/* resume.c - opening, records, removal; see resume.h.  resume_point.c has resume.json, resume_hidden.c
 * the hidden states. */
#include "resume/resume_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/output_directory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME_LEN = 80 };

static void record_name(char out[NAME_LEN], const char *name, int layer)
{
    snprintf(out, NAME_LEN, "%s-%d.safetensors", name, layer);
}

void exf_resume_hidden_free(exf_resume_hidden *h)
{
    exf_output_file_abort(h->out);
    exf_mem_free(h->file);
    exf_mem_free(h->sha256);
    *h = (exf_resume_hidden){.out = NULL};
}

/* ---- opening and closing -------------------------------------------------------------------- */

/* Reads the point, or removes what a run left that did not reach its first point or was starting over. */
static exf_code find_point(exf_resume *r, exf_resume_mode mode, exf_err *err)
{
    int found = 0;
    exf_code rc = mode == EXF_RESUME_NEVER ? EXF_OK : exf_path_look(r->path, &found, err);
    if (rc != EXF_OK) return rc;
    if (found) return exf_resume_point_read(r, err);
    if (mode != EXF_RESUME_REQUIRE) return exf_resume_remove(r, err);
    return exf_fail(err, EXF_USAGE, "%s: is not there, --resume=require asks for a resume point", r->path);
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
    r->follows = o->follows;
    r->last_time = exf_clock();
    EXF_TRY(exf_mem_strdup(&r->directory, o->directory, "resume point", err));
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
    if (exf_resume_wait(r, &unused) != EXF_OK) unused.code = EXF_OK; /* failure dropped */
    for (size_t i = 0; i < r->n_records; i++) exf_mem_free(r->record[i].file);
    exf_mem_free(r->record);
    exf_resume_hidden_free(&r->now);
    exf_resume_hidden_free(&r->next);
    exf_provenance_free(&r->facts);
    exf_mem_free(r->directory);
    exf_mem_free(r->path);
    pthread_mutex_destroy(&r->lock);
    exf_mem_free(r);
}

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

/* ---- records ---------------------------------------------------------------------------- */

static exf_resume_record *find_record(const exf_resume *r, const char *file)
{
    for (size_t i = 0; i < r->n_records; i++)
        if (strcmp(r->record[i].file, file) == 0) return &r->record[i];
    return NULL;
}

static exf_code add_record(exf_resume *r, const char *file, exf_resume_record **out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_grow(&r->record, &r->capacity, r->n_records + 1, sizeof *r->record, "records", err));
    *out = &r->record[r->n_records];
    EXF_TRY(exf_mem_strdup(&(*out)->file, file, "records", err));
    r->n_records++;
out:
    return rc;
}

exf_code exf_resume_record_set(exf_resume *r, const char *file, int layer, const char *sha256, exf_err *err)
{
    pthread_mutex_lock(&r->lock);
    exf_resume_record *k = find_record(r, file);
    exf_code rc = k ? EXF_OK : add_record(r, file, &k, err);
    if (rc == EXF_OK) {
        k->layer = layer;
        memcpy(k->sha256, sha256, EXF_SHA256_HEX);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

exf_code exf_resume_put(exf_resume *r, const char *name, int layer, const exf_tensor *tensors, size_t n, exf_err *err)
{
    char file[NAME_LEN], sha256[EXF_SHA256_HEX], *path = NULL;
    exf_code rc;
    if (!exf_resume_saves(r) || r->follows) return EXF_OK;
    record_name(file, name, layer);
    EXF_TRY(exf_make_dirs(r->directory, err));
    EXF_TRY(exf_path_join(&path, r->directory, file, err));
    EXF_TRY(exf_st_write(path, 1, tensors, n, NULL, 0, err));
    EXF_TRY(exf_hash_file(path, sha256, err));
    EXF_TRY(exf_resume_record_set(r, file, layer, sha256, err));
out:
    exf_mem_free(path);
    return rc;
}

static exf_code check_record(const exf_resume *r, const char *path, const char *file, exf_err *err)
{
    char sha256[EXF_SHA256_HEX];
    const exf_resume_record *k = find_record(r, file);
    int found;
    exf_code rc;
    EXF_TRY(exf_path_look(path, &found, err));
    if (!k || !found)
        return exf_fail(err, EXF_FORMAT, "%s: is missing from the resume point; --resume=never starts over", path);
    EXF_TRY(exf_hash_file(path, sha256, err));
    if (strcmp(sha256, k->sha256) != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: has sha256 %.12s..., resume.json says %.12s...; --resume=never starts over", path,
                      sha256, k->sha256);
out:
    return rc;
}

exf_code exf_resume_get(const exf_resume *r, const char *name, int layer, exf_st_file **out, exf_err *err)
{
    char file[NAME_LEN], *path = NULL;
    exf_code rc;
    record_name(file, name, layer);
    EXF_TRY(exf_path_join(&path, r->directory, file, err));
    EXF_TRY(check_record(r, path, file, err));
    EXF_TRY(exf_st_open(out, path, err));
out:
    exf_mem_free(path);
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

/* ---- removal ------------------------------------------------------------------------------ */

/* Returns 1 for the names that a resume point uses, and for their temporaries. */
static int is_ours(const char *name)
{
    if (name[0] == '.') return exf_ends_with(name, ".partial");
    return strcmp(name, "resume.json") == 0 || exf_starts_with(name, "hidden-") || exf_ends_with(name, ".safetensors");
}

static exf_code remove_file(void *self, const char *name, exf_err *err)
{
    const exf_resume *r = self;
    char *path = NULL;
    exf_code rc;
    if (!is_ours(name)) return EXF_OK;
    EXF_TRY(exf_path_join(&path, r->directory, name, err));
    if (unlink(path) != 0 && errno != ENOENT) rc = exf_fail_errno(err, errno, "%s: cannot remove", path);
out:
    exf_mem_free(path);
    return rc;
}

exf_code exf_resume_remove(exf_resume *r, exf_err *err)
{
    exf_code rc;
    int found;
    if (r->follows) return EXF_OK;
    EXF_TRY(exf_resume_wait(r, err));
    EXF_TRY(exf_path_look(r->directory, &found, err));
    if (!found) return EXF_OK;
    EXF_TRY(remove_file(r, "resume.json", err)); /* first, so that no point names files that are gone */
    EXF_TRY(exf_each_file(r->directory, remove_file, r, err));
    (void)rmdir(r->directory); /* stays if it holds files of others */
out:
    return rc;
}
