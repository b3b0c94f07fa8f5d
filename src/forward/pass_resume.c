/* pass_resume.c - see pass_resume.h. */
#include "forward/pass_resume.h"

#include "base/log.h"
#include "base/stop.h"
#include "base/thread_pool.h"
#include "forward/weights_record.h"
#include "mixers/residual.h"
#include "resume/resume.h"

/* Hidden states in GPU memory pass through a buffer of so many chunks. */
enum { STAGED_CHUNKS = 64 };
static const uint64_t staged_bytes = (uint64_t)STAGED_CHUNKS * EXF_RESUME_CHUNK;

/* Lanes whose hidden states differ: one while the lanes are joined. */
static size_t distinct_lanes(const exf_pass *p)
{
    return p->joined ? 1 : p->n_lanes;
}

static uint64_t lane_bytes(const exf_pass *p)
{
    return (uint64_t)p->batch->n_tokens * exf_row_width(&p->model->arch) * sizeof(float);
}

/* A lane begins at a multiple of the chunk, so that each chunk belongs to one lane. */
static uint64_t lane_stride(const exf_pass *p)
{
    return (lane_bytes(p) + EXF_RESUME_CHUNK - 1) / EXF_RESUME_CHUNK * EXF_RESUME_CHUNK;
}

static uint64_t file_bytes(const exf_pass *p)
{
    return lane_stride(p) * (distinct_lanes(p) - 1) + lane_bytes(p);
}

uint64_t exf_pass_saved_bytes(const exf_architecture *a, const exf_batch *batch, size_t n_lanes)
{
    return (uint64_t)batch->n_tokens * exf_row_width(a) * sizeof(float) * n_lanes;
}

/* Returns 1 if the hidden states lie where the CPU can read and write them. */
static int on_host(const exf_pass *p)
{
    return !p->b->gpu || p->hidden.host_resident;
}

int exf_pass_layers_done(const exf_pass *p)
{
    return p->options->resume ? exf_resume_start(p->options->resume)->layers_done : 0;
}

/* ---- lane by lane, piece by piece ------------------------------------------------------------ */

/* Moves n bytes between the file at `offset` and a lane's hidden states at `at`. */
typedef exf_code (*move_fn)(exf_pass *p, const exf_file *file, uint64_t offset, char *at, size_t n, char *staging, exf_err *err);

static exf_code move_lane(exf_pass *p, size_t lane, const exf_file *file, char *staging, move_fn move, exf_err *err)
{
    uint64_t bytes = lane_bytes(p), step = on_host(p) ? bytes : staged_bytes;
    char *rows = (char *)p->hidden.lane[lane];
    exf_code rc = EXF_OK;
    for (uint64_t at = 0; rc == EXF_OK && at < bytes; at += step) {
        size_t n = (size_t)(bytes - at < step ? bytes - at : step);
        rc = move(p, file, lane * lane_stride(p) + at, rows + at, n, staging, err);
    }
    return rc;
}

static exf_code move_lanes(exf_pass *p, const exf_file *file, move_fn move, exf_err *err)
{
    void *staging = NULL;
    exf_code rc = EXF_OK;
    if (!on_host(p)) EXF_TRY(p->b->gpu->alloc_staging(&staging, (size_t)staged_bytes, "resume point", err));
    for (size_t i = 0; rc == EXF_OK && i < distinct_lanes(p); i++) rc = move_lane(p, i, file, staging, move, err);
out:
    if (staging) p->b->gpu->free_staging(staging);
    return rc;
}

static exf_code put(exf_pass *p, const exf_file *file, uint64_t offset, char *at, size_t n, char *staging, exf_err *err)
{
    exf_code rc = EXF_OK;
    (void)file;
    if (staging) EXF_TRY(p->b->download(p->space[0].q, staging, at, n, err));
    rc = exf_resume_hidden_put(p->options->resume, offset, staging ? staging : at, n, exf_default_threads(), err);
out:
    return rc;
}

static exf_code get(exf_pass *p, const exf_file *file, uint64_t offset, char *at, size_t n, char *staging, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_resume_hidden_get(p->options->resume, file, offset, staging ? staging : at, n, exf_default_threads(), err));
    if (staging) {
        p->b->upload(p->space[0].q, at, staging, n);
        EXF_TRY(p->b->finish(p->space[0].q, err));
    }
out:
    return rc;
}

/* ---- saving and restoring --------------------------------------------------------------------- */

exf_code exf_pass_restore(exf_pass *p, exf_err *err)
{
    exf_file *file = NULL;
    double start = exf_clock();
    exf_code rc;
    const exf_resume_progress *was = exf_resume_start(p->options->resume);
    p->joined = was->joined;
    p->report->weight_bytes = was->weight_bytes;
    p->report->flops = was->flops;
    EXF_TRY(exf_weights_record_get(p->model, p->options->resume, err));
    EXF_TRY(exf_resume_hidden_open(p->options->resume, file_bytes(p), &file, err));
    EXF_TRY(move_lanes(p, file, get, err));
out:
    exf_file_close(file);
    p->report->read += exf_clock() - start;
    return rc;
}

/* Completes what observers write beside the pass: the point names it. */
static exf_code settle_observers(const exf_pass *p, int done, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n_lanes; i++) {
        const exf_observer *o = p->lanes[i].observer;
        if (o && o->settle) rc = o->settle(o->self, done, err);
    }
    return rc;
}

/* Returns the operations of the pass so far, as its report will count them. */
static double flops_so_far(const exf_pass *p)
{
    double flops = p->report->flops;
    for (int i = 0; i < p->n_spaces; i++) flops += p->space[i].times.flops;
    return flops;
}

static exf_code save(exf_pass *p, int done, exf_err *err)
{
    exf_resume_progress now = {done, p->joined, p->report->weight_bytes, flops_so_far(p)};
    exf_resume *r = p->options->resume;
    exf_code rc;
    EXF_TRY(exf_resume_hidden_begin(r, done, file_bytes(p), err));
    EXF_TRY(exf_weights_record_put(p->model, r, done, err));
    EXF_TRY(settle_observers(p, done, err));
    EXF_TRY(exf_hidden_settle(&p->hidden, err));
    EXF_TRY(move_lanes(p, NULL, put, err));
    EXF_TRY(exf_resume_save(r, &now, err));
out:
    return rc;
}

exf_code exf_pass_save(exf_pass *p, int done, exf_err *err)
{
    exf_resume *r = p->options->resume;
    int stop = exf_stop_requested();
    exf_code rc;
    if (!r || !exf_resume_saves(r) || (done == p->n_layers && !p->demand.head)) return EXF_OK;
    if (!stop && !exf_resume_due(r, done)) return EXF_OK;
    EXF_TRY(save(p, done, err));
    if (!stop) return EXF_OK;
    EXF_TRY(exf_resume_wait(r, err));
    rc = exf_fail(err, EXF_STOPPED, "stopped by signal %d behind layer %d of %d; the same command goes on from there", stop, done,
                  p->n_layers);
out:
    return rc;
}
