/* save.c - saves a pass after a layer to its resume point (resume.h), and restores it. */
#include "pass/forward_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "ranks/ranks.h"

#include <stdio.h>
#include <string.h>

uint64_t exf_pass_saved_bytes(const exf_architecture *a, const exf_batch *batch, size_t n_lanes)
{
    return (uint64_t)batch->n_tokens * exf_row_width(a) * sizeof(float) * n_lanes;
}

/* ---- the record of the weights ------------------------------------------------------------------- */

#define NAME "weights"
enum { MOST_BYTES = 1 << 20 };

/* Writes the digests of the weights that were read, after `done` layers. */
static exf_code put_weights_record(const exf_model *m, exf_resume *r, int done, exf_err *err)
{
    exf_text list = {0};
    exf_code rc;
    EXF_TRY(exf_weight_identity_list(m->identity, &list, err));
    exf_tensor t = {.name = "parts", .dtype = EXF_DT_U8, .rank = 1, .shape = {(int64_t)list.len}, .data = list.s};
    EXF_TRY(exf_resume_put(r, NAME, done - 1, &t, 1, err));
out:
    exf_text_free(&list);
    return rc;
}

/* Restores them from the point that was opened. */
static exf_code get_weights_record(const exf_model *m, const exf_resume *r, exf_err *err)
{
    exf_st_file *f = NULL;
    char *list = NULL;
    exf_code rc;
    EXF_TRY(exf_resume_get(r, NAME, exf_resume_start(r)->layers_done - 1, &f, err));
    const exf_st_tensor *t = exf_st_find(f, "parts");
    exf_tensor expected = {.name = "parts", .dtype = EXF_DT_U8, .rank = 1, .shape = {t ? (int64_t)t->nbytes : 0}};
    if (t && t->nbytes > MOST_BYTES) expected.shape[0] = MOST_BYTES; /* no list is so long: refused below */
    EXF_TRY(exf_mem_new(&list, (size_t)expected.shape[0] + 1, 1, "weight identity", err));
    EXF_TRY(exf_resume_read(f, &expected, list, err));
    EXF_TRY(exf_weight_identity_restore(m->identity, list, exf_st_path(f), err));
out:
    exf_st_close(f);
    exf_mem_free(list);
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
    p->report->flops = exf_ranks_first(p->options->ranks) ? was->flops : 0; /* ranks are added up */
    EXF_TRY(get_weights_record(p->model, p->options->resume, err));
    EXF_TRY(exf_resume_hidden_open(p->options->resume, exf_pass_file_bytes(p), &file, err));
    EXF_TRY(exf_pass_hidden_get(p, file, err));
out:
    exf_file_close(file);
    p->report->read += exf_clock() - start;
    return rc;
}

exf_code exf_pass_sum_flops(exf_ranks *ranks, double *flops, exf_err *err)
{
    exf_ranks_gathered g;
    if (!ranks) return EXF_OK;
    exf_code rc = exf_ranks_gather(ranks, flops, sizeof *flops, &g, err);
    if (rc != EXF_OK) return rc;
    for (int i = 1; i < g.size; i++) {
        double other;
        memcpy(&other, g.data + g.offset[i], sizeof other);
        *flops += other;
    }
    exf_ranks_gathered_free(&g);
    return EXF_OK;
}

/* Saves the pass.  Rank 0 begins the file of hidden states and the others join it; rank 0 makes the point when all bytes are
 * on the disk. */
static exf_code save_pass(exf_pass *p, int done, exf_err *err)
{
    exf_resume_progress now = {done, p->joined, p->report->weight_bytes, p->report->flops};
    exf_resume *r = p->options->resume;
    exf_ranks *ranks = p->options->ranks;
    int first = exf_ranks_first(ranks);
    char path[4096] = "";
    exf_code rc;
    if (first) EXF_TRY(exf_resume_hidden_begin(r, done, exf_pass_file_bytes(p), err));
    if (first && ranks) snprintf(path, sizeof path, "%s", exf_resume_hidden_path(r));
    if (ranks) EXF_TRY(exf_ranks_broadcast(ranks, path, sizeof path, err));
    if (!first) EXF_TRY(exf_resume_hidden_join(r, exf_pass_file_bytes(p), path, err));
    EXF_TRY(put_weights_record(p->model, r, done, err));
    for (size_t i = 0; i < p->n_lanes; i++) { /* completes what observers write beside the pass: the point names it */
        const exf_observer *o = exf_lane_observer(&p->lanes[i]);
        if (o->settle) EXF_TRY(o->settle(o->self, done, err));
    }
    EXF_TRY(exf_hidden_settle(&p->hidden, err));
    EXF_TRY(exf_pass_hidden_put(p, err));
    for (int i = 0; i < p->n_spaces; i++) now.flops += p->space[i].times.flops;
    EXF_TRY(exf_pass_sum_flops(ranks, &now.flops, err));
    if (!first) EXF_TRY(exf_resume_hidden_leave(r, err));
    EXF_TRY(exf_ranks_barrier(ranks, err));
    if (first) EXF_TRY(exf_resume_save(r, &now, err));
out:
    return rc;
}

/* ---- when ---------------------------------------------------------------------------------------- */

/* Returns this process's vote after `done` layers: 0 go on, 1 save, 1 + a signal's number save and stop. */
static int rank_vote(const exf_pass *p, int done)
{
    int stop = exf_stop_requested();
    if (stop) return 1 + stop;
    return exf_ranks_first(p->options->ranks) && exf_resume_due(p->options->resume, done, exf_pass_file_bytes(p));
}

static int can_save(const exf_pass *p)
{
    return p->options->resume && exf_resume_saves(p->options->resume);
}

exf_code exf_pass_votes_begin(exf_pass *p, int first, exf_err *err)
{
    return can_save(p) ? exf_ranks_vote_start(p->options->ranks, rank_vote(p, first + 1), err) : EXF_OK;
}

exf_code exf_pass_votes_end(const exf_pass *p, exf_err *err)
{
    int dropped;
    return can_save(p) ? exf_ranks_vote_finish(p->options->ranks, &dropped, err) : EXF_OK;
}

/* Waits until the resume point is made, and ends the pass with EXF_STOPPED. */
static exf_code stop_pass(const exf_pass *p, int done, int signal_number, exf_err *err)
{
    exf_code rc;
    if (exf_ranks_first(p->options->ranks)) EXF_TRY(exf_resume_wait(p->options->resume, err));
    EXF_TRY(exf_ranks_barrier(p->options->ranks, err)); /* the point is made before any rank ends */
    rc = exf_fail(err, EXF_STOPPED, "stopped by signal %d after layer %d of %d; the same command goes on from there",
                  signal_number, done, p->n_layers);
out:
    return rc;
}

exf_code exf_pass_save(exf_pass *p, int done, exf_err *err)
{
    exf_ranks *ranks = p->options->ranks;
    int what = 0;
    exf_code rc = EXF_OK;
    if (!can_save(p) || (done == p->n_layers && !p->demand.head)) return EXF_OK;
    if (ranks) /* the votes were cast a layer ago, so that no rank waits for the slowest */
        EXF_TRY(exf_ranks_vote_finish(ranks, &what, err));
    else
        what = rank_vote(p, done);
    if (what) EXF_TRY(save_pass(p, done, err));
    if (what > 1) return stop_pass(p, done, what - 1, err);
    if (ranks) rc = exf_ranks_vote_start(ranks, rank_vote(p, done + 1), err);
out:
    return rc;
}
