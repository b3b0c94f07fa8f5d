/* session_resume.c - a run's resume point: where the recipe says, with the facts that it is of; see session.h. */
#include "run/session.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* A point of schema exfold-resume/2 was <stage>[-<i>-of-<n>] itself, whatever the output directory.  Where one may exist, refuses
 * a run that would start over, unless it asks for that with --resume=never. */
static exf_code refuse_shared_point(const exf_recipe *r, const char *name, exf_err *err)
{
    char *path = NULL;
    int found;
    exf_code rc;
    if (r->resume == EXF_RESUME_NEVER) return EXF_OK;
    EXF_TRY(exf_path_join(&path, r->checkpoint_directory, name, err));
    EXF_TRY(exf_path_look(path, &found, err));
    if (found)
        rc = exf_fail(err, EXF_IO, "%s: is in the place of an earlier version's resume point, which this one cannot go on from; "
                      "move it away, or --resume=never passes over it", path);
out:
    exf_mem_free(path);
    return rc;
}

/* Makes the point's path, in runtime.checkpoint.directory or in the output directory (session.h). */
static exf_code name_point(char **out, const exf_recipe *r, const exf_run_directory *dir, const char *stage, exf_err *err)
{
    char id[EXF_SHA256_HEX], *place = NULL;
    exf_text name = {0};
    exf_code rc;
    exf_text_appendf(&name, "%s%s", r->checkpoint_directory ? "" : EXF_RUN_RESUME_PREFIX, stage);
    if (r->checkpoint_directory) {
        if (r->n_shards) exf_text_appendf(&name, "-%d-of-%d", r->shard, r->n_shards);
        EXF_TRY(exf_text_end(&name, err));
        EXF_TRY(refuse_shared_point(r, name.s, err));
        EXF_TRY(exf_path_real(&place, dir->path, err));
        EXF_TRY(exf_hash_bytes(place, strlen(place), id, err));
        exf_text_appendf(&name, "-%.12s", id);
    }
    EXF_TRY(exf_text_end(&name, err));
    rc = exf_path_join(out, r->checkpoint_directory ? r->checkpoint_directory : dir->path, name.s, err);
out:
    exf_mem_free(place);
    exf_text_free(&name);
    return rc;
}

exf_code exf_run_resume_open(exf_resume **out, exf_recipe *r, const exf_run_directory *dir, const exf_resume_of *of, exf_err *err)
{
    char *path = NULL, seen[32] = "";
    exf_provenance facts = {0};
    exf_ranks *ranks = r->n_shards && !r->shard_text ? NULL : r->job; /* ranks with a shard each have a point each */
    exf_code rc;
    EXF_TRY(exf_provenance_copy(&facts, of->outputs, err));
    EXF_TRY(exf_capture_file_facts(&facts, of->model, err));
    if (of->sums) EXF_TRY(exf_accumulate_facts(&facts, of->sums, of->model->arch.top_k, of->model->arch.d_model, err));
    if (of->lanes) EXF_TRY(exf_provenance_add(&facts, err, "validate.variants", "%s", of->lanes));
    EXF_TRY(name_point(&path, r, dir, of->stage, err));
    exf_resume_options o = {.directory = path, .outputs = dir->path, .mode = (exf_resume_mode)r->resume, .facts = &facts,
                            .every_layers = r->checkpoint_layers, .every_seconds = r->checkpoint_seconds,
                            .is_not_writer = !exf_ranks_first(ranks)};
    if (o.is_not_writer && o.mode == EXF_RESUME_REQUIRE) o.mode = EXF_RESUME_AUTO; /* rank 0 requires it */
    if (!o.is_not_writer) rc = exf_resume_open(out, &o, err); /* first, since it may remove what is there */
    EXF_TRY(exf_ranks_agree(ranks, rc, err));
    if (o.is_not_writer) EXF_TRY(exf_resume_open(out, &o, err));
    int done = exf_resume_start(*out)->layers_done;
    snprintf(seen, sizeof seen, "resume point: %d layers", done);
    EXF_TRY(exf_ranks_same(ranks, seen, err)); /* they see one directory */
    if (done) {
        r->force = 1;
        exf_log_info("resume: going on after layer %d, saved in %s", done, o.directory);
    }
out:
    exf_mem_free(path);
    exf_provenance_free(&facts);
    return rc;
}

exf_code exf_run_resume_look(const exf_recipe *r, const exf_run_directory *dir, const char *stage, int *found, exf_err *err)
{
    char *path = NULL;
    exf_code rc;
    EXF_TRY(name_point(&path, r, dir, stage, err));
    EXF_TRY(exf_path_look(path, found, err));
out:
    exf_mem_free(path);
    return rc;
}

exf_code exf_run_resume_close(exf_resume *resume, exf_code rc, exf_err *err)
{
    exf_err unused;
    int complete = rc == EXF_OK || rc == EXF_THRESHOLD; /* limits are checked after all outputs are written */
    if (!resume) return rc;
    if (!complete && exf_resume_wait(resume, &unused) == EXF_OK && (rc == EXF_SIGINT || rc == EXF_SIGTERM) &&
        exf_resume_saved_layers(resume))
        rc = exf_fail(err, EXF_STOPPED, "stopped at once; the same command goes on after layer %d",
                      exf_resume_saved_layers(resume));
    /* Records without a point are of no use, as is the point of a complete run. */
    if ((complete || !exf_resume_saved_layers(resume)) && exf_resume_remove(resume, &unused) != EXF_OK)
        exf_log_warn("%s", unused.msg);
    exf_resume_free(resume);
    return rc;
}
