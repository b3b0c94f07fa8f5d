/* run_resume.c - see run_resume.h. */
#include "run/run_resume.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "ranks/ranks.h"

#include <stdio.h>
#include <string.h>

/* A point of schema exfold-resume/2 was <stage>[-<i>-of-<n>] itself, whatever the output directory.  A run that would start
 * over although one may be there is refused; --resume=never asks for just that. */
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

/* A point's path in runtime.checkpoint.directory (run_resume.h): each stage and output directory has its own. */
static exf_code name_in_checkpoint_directory(char **out, const exf_recipe *r, const exf_run_directory *dir, const char *stage,
                                             exf_err *err)
{
    char id[EXF_SHA256_HEX], *place = NULL;
    exf_text name = {0};
    exf_code rc;
    EXF_TRY(exf_text_add(&name, stage, strlen(stage), err));
    if (r->n_shards) EXF_TRY(exf_text_addf(&name, err, "-%d-of-%d", r->shard, r->n_shards));
    EXF_TRY(refuse_shared_point(r, name.s, err));
    EXF_TRY(exf_path_real(&place, dir->path, err));
    EXF_TRY(exf_hash_bytes(place, strlen(place), id, err));
    EXF_TRY(exf_text_addf(&name, err, "-%.12s", id));
    EXF_TRY(exf_path_join(out, r->checkpoint_directory, name.s, err));
out:
    exf_mem_free(place);
    exf_text_free(&name);
    return rc;
}

static exf_code name_directory(char **out, const exf_recipe *r, const exf_run_directory *dir, const char *stage, exf_err *err)
{
    exf_text name = {0};
    exf_code rc;
    if (r->checkpoint_directory) return name_in_checkpoint_directory(out, r, dir, stage, err);
    EXF_TRY(exf_text_addf(&name, err, EXF_RUN_RESUME_PREFIX "%s", stage));
    EXF_TRY(exf_run_directory_file(dir, name.s, out, err));
out:
    exf_text_free(&name);
    return rc;
}

/* Rank 0 opens the point first: it may remove what is there. */
static exf_code open_in_turn(exf_resume **out, const exf_resume_options *o, exf_ranks *ranks, exf_err *err)
{
    exf_code rc = EXF_OK;
    char done[32] = "";
    if (!o->follows) rc = exf_resume_open(out, o, err);
    EXF_TRY(exf_ranks_agree(ranks, rc, err));
    if (o->follows) EXF_TRY(exf_resume_open(out, o, err));
    snprintf(done, sizeof done, "resume point: %d layers", exf_resume_start(*out)->layers_done);
    rc = exf_ranks_same(ranks, done, err); /* they see one directory */
out:
    return rc;
}

exf_code exf_run_resume_open(exf_resume **out, exf_recipe *r, const exf_run_directory *dir, const exf_provenance *facts,
                             const char *stage, exf_err *err)
{
    char *path = NULL;
    exf_ranks *ranks = r->n_shards && !r->shard_text ? NULL : r->job; /* ranks with a shard each have a point each */
    exf_code rc;
    EXF_TRY(name_directory(&path, r, dir, stage, err));
    exf_resume_options o = {.directory = path, .outputs = dir->path, .mode = (exf_resume_mode)r->resume, .facts = facts,
                            .every_layers = r->checkpoint_layers, .every_seconds = r->checkpoint_seconds,
                            .follows = !exf_ranks_first(ranks)};
    if (o.follows && o.mode == EXF_RESUME_REQUIRE) o.mode = EXF_RESUME_AUTO; /* rank 0 requires it */
    EXF_TRY(open_in_turn(out, &o, ranks, err));
    int done = exf_resume_start(*out)->layers_done;
    if (done) {
        r->force = 1;
        exf_log_info("resume: going on after layer %d, saved in %s", done, o.directory);
    }
out:
    exf_mem_free(path);
    return rc;
}

exf_code exf_run_resume_look(const exf_recipe *r, const exf_run_directory *dir, const char *stage, int *found, exf_err *err)
{
    char *path = NULL;
    exf_code rc;
    EXF_TRY(name_directory(&path, r, dir, stage, err));
    EXF_TRY(exf_path_look(path, found, err));
out:
    exf_mem_free(path);
    return rc;
}

/* An interrupted run that has a point can go on. */
static exf_code offer(const exf_resume *resume, exf_code rc, exf_err *err)
{
    int done = exf_resume_saved_layers(resume);
    if ((rc != EXF_SIGINT && rc != EXF_SIGTERM) || !done) return rc;
    return exf_fail(err, EXF_STOPPED, "stopped at once; the same command goes on after layer %d", done);
}

exf_code exf_run_resume_close(exf_resume *resume, exf_code rc, exf_err *err)
{
    exf_err unused;
    int complete = rc == EXF_OK || rc == EXF_THRESHOLD; /* a gate is looked at when all outputs are written */
    if (resume && complete && exf_resume_remove(resume, &unused) != EXF_OK) exf_log_warn("%s", unused.msg);
    if (resume && !complete && exf_resume_wait(resume, &unused) == EXF_OK) rc = offer(resume, rc, err);
    if (resume && !complete && !exf_resume_saved_layers(resume) && exf_resume_remove(resume, &unused) != EXF_OK)
        exf_log_warn("%s", unused.msg); /* records without a point serve nobody */
    exf_resume_free(resume);
    return rc;
}
