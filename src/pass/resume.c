/* resume.c - opens and removes a resume point; see resume.h. */
#include "pass/resume_internal.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* Returns 1 for a file of the point; what a killed run left of its next point is removed. */
static int is_of_point(const void *self, const char *name)
{
    const exf_resume *r = self;
    return strcmp(name, "resume.json") == 0 || strcmp(name, r->now.file) == 0 || exf_resume_record_find(r, name);
}

/* Reads the point.  If there is none, or the run starts over, removes what an earlier run left. */
static exf_code find_point(exf_resume *r, exf_resume_mode mode, exf_err *err)
{
    int found = 0;
    exf_code rc = EXF_OK;
    if (mode != EXF_RESUME_NEVER) EXF_TRY(exf_resume_directory_look(&r->directory, "resume.json", &found, err));
    if (found) {
        EXF_TRY(exf_resume_point_read(r, err));
        return r->follows ? EXF_OK : exf_resume_directory_prune(&r->directory, is_of_point, r, err);
    }
    if (mode == EXF_RESUME_REQUIRE)
        return exf_fail(err, EXF_USAGE, "%s: is not there, --resume=require asks for a resume point", r->path);
    EXF_TRY(exf_resume_remove(r, err));
    if (exf_resume_saves(r) && !r->follows) rc = exf_resume_directory_make(&r->directory, err);
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
    r->follows = o->follows;
    r->last_time = exf_clock();
    EXF_TRY(exf_resume_directory_open(&r->directory, o->directory, o->outputs, o->follows, err));
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
    exf_resume_hidden_free(&r->now);
    exf_resume_hidden_free(&r->next);
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
    if (r->follows) return EXF_OK;
    EXF_TRY(exf_resume_wait(r, err));
    if (r->directory.fd >= 0) /* before the files that it names */
        EXF_TRY(exf_resume_directory_drop(&r->directory, "resume.json", err));
    rc = exf_resume_directory_remove(&r->directory, err);
out:
    return rc;
}
