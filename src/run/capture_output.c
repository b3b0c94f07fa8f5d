/* capture_output.c - see capture_output.h. */
#include "run/capture_output.h"

#include "base/file.h"
#include "base/mem.h"
#include "capture/capture.h"
#include "recipe/announce.h"
#include "recipe/run_directory.h"
#include "run/run_resume.h"

uint64_t exf_capture_output_bytes(const exf_capture_job *j)
{
    uint64_t t = (uint64_t)j->shape->n_tokens, k = (uint64_t)j->shape->top_k, h = (uint64_t)j->shape->d_model;
    uint64_t row = 8 * k + 4 * k * h + (j->recipe->export_path ? 12 * h : 0);
    return t * row * (uint64_t)j->layers->n + (j->recipe->logits ? 4 * t * (uint64_t)j->model->arch.vocab : 0);
}

static exf_code write_export(const exf_capture_job *j, const exf_provenance *p, exf_err *err)
{
    const exf_recipe *r = j->recipe;
    exf_exporter *x = NULL;
    exf_run_directory dir = {0};
    exf_code rc;
    EXF_TRY(exf_run_directory_of_file(&dir, r->export_path, err));
    EXF_TRY(exf_exporter_new(&x, r->export_path, r->force, j->model, j->batch, j->layers, r->logits, p, err));
    EXF_TRY(j->pass(j->self, exf_exporter_observer(x), NULL, err));
    EXF_TRY(exf_exporter_commit(x, err));
    EXF_TRY(exf_announce(r->export_path, err));
out:
    exf_exporter_free(x);
    exf_run_directory_close(&dir, 0);
    return rc;
}

/* A run that goes on has an unfinished file.  Without one it was complete, and was killed before it removed its point. */
static exf_code check_unfinished(const exf_capture_job *j, const char *path, exf_resume *resume, int *complete, exf_err *err)
{
    char *unfinished = NULL;
    int found, there = 0;
    exf_code rc;
    *complete = 0;
    if (!exf_resume_start(resume)->layers_done) return EXF_OK;
    EXF_TRY(exf_recorder_unfinished(&unfinished, path, err));
    EXF_TRY(exf_path_look(unfinished, &found, err));
    if (!found) EXF_TRY(exf_path_look(path, &there, err));
    *complete = there;
    if (!found && !there)
        rc = exf_fail(err, EXF_FORMAT, "%s: is missing, which the resume point of %s goes on with; --resume=never starts over",
                      unfinished, j->recipe->output_directory);
out:
    exf_mem_free(unfinished);
    return rc;
}

static exf_code open_resume(const exf_capture_job *j, const exf_run_directory *dir, const char *path, exf_resume **resume,
                            exf_err *err)
{
    int force = j->recipe->force, complete;
    exf_code rc;
    EXF_TRY(exf_run_resume_open(resume, j->recipe, dir, j->resume_facts, "capture", err));
    EXF_TRY(check_unfinished(j, path, *resume, &complete, err));
    if (!complete) goto out;
    EXF_TRY(exf_resume_remove(*resume, err));
    exf_resume_free(*resume);
    *resume = NULL;
    j->recipe->force = force;
    EXF_TRY(exf_run_resume_open(resume, j->recipe, dir, j->resume_facts, "capture", err));
out:
    return rc;
}

static exf_code write_capture(const exf_capture_job *j, const exf_provenance *p, exf_err *err)
{
    const exf_recipe *r = j->recipe;
    exf_recorder *rec = NULL;
    exf_run_directory dir = {0};
    char *path = NULL;
    exf_sequence_list sequences = {.n = 0};
    exf_provenance late = {0};
    exf_resume *resume = NULL;
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_sequences_of_batch(&sequences, j->batch, exf_provenance_get(p, "data.moe_inputs_sha256"), err));
    EXF_TRY(exf_run_directory_open(&dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&dir, "capture.h5", &path, err));
    if (j->resume_facts) EXF_TRY(open_resume(j, &dir, path, &resume, err));
    EXF_TRY(exf_recorder_new(&rec, path, r->force, j->shape, j->layers, &sequences,
                             !exf_provenance_get(p, "data.moe_inputs_sha256"), p, resume, err));
    EXF_TRY(j->pass(j->self, exf_recorder_observer(rec), resume, err));
    EXF_TRY(exf_capture_weights_facts(&late, j->model, err));
    EXF_TRY(exf_recorder_commit(rec, &late, err));
    EXF_TRY(exf_announce(path, err));
out:
    exf_recorder_free(rec);
    rc = exf_run_resume_close(resume, rc, err);
    exf_provenance_free(&late);
    exf_sequence_list_free(&sequences);
    exf_mem_free(path);
    exf_run_directory_close(&dir, rc != EXF_OK);
    return rc;
}

exf_code exf_capture_output_write(const exf_capture_job *j, const exf_provenance *p, exf_err *err)
{
    return j->recipe->export_path ? write_export(j, p, err) : write_capture(j, p, err);
}
