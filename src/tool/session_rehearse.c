/* session_rehearse.c - how long a calibration takes behind its pass: rehearsed, not reckoned; see session.h. */
#include "tool/session.h"

#include "accumulate/accumulate.h"
#include "artifact/tables.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/stop.h"
#include "forward/work.h"
#include "solve/solve.h"
#include "tool/overlapped_solve.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* A rehearsal: the run, and the files that it writes for a moment. */
typedef struct {
    const exf_session *s;
    const exf_recipe *r;
    exf_forward_options options;
    exf_accumulate_options accumulate;
    exf_basis basis;
    exf_plan_sample sample;
    exf_sequence_list sequences;
    exf_provenance facts;
    exf_overlapped_solve solving;
    exf_tables solution;
    char *directory, *statistics, *tables;
    int n_layers; /* MoE layers of the sample, which are the first of s->layers */
    double small;                                     /* seconds that a file of next to nothing takes */
    double put, committed, solved, written; /* seconds of each step; committed and written: with one such file */
} rehearsal;

static exf_code make_scratch(rehearsal *h, exf_err *err)
{
    const char *place = getenv("TMPDIR");
    exf_code rc;
    EXF_TRY(exf_path_join(&h->directory, place && *place ? place : "/tmp", "exfold-plan.XXXXXX", err));
    if (!mkdtemp(h->directory)) {
        rc = exf_fail_errno(err, errno, "%s: cannot be made", h->directory);
        exf_mem_free(h->directory);
        h->directory = NULL;
        goto out;
    }
    EXF_TRY(exf_path_join(&h->statistics, h->directory, "statistics.h5", err));
    EXF_TRY(exf_path_join(&h->tables, h->directory, "tables.h5", err));
out:
    return rc;
}

static void remove_scratch(rehearsal *h)
{
    if (h->statistics) (void)unlink(h->statistics);
    if (h->tables) (void)unlink(h->tables);
    if (h->directory) (void)rmdir(h->directory);
    exf_mem_free(h->statistics);
    exf_mem_free(h->tables);
    exf_mem_free(h->directory);
}

static exf_code prepare(rehearsal *h, const exf_plan *p, exf_err *err)
{
    const exf_session *s = h->s;
    int last = exf_work_sample_layers(&s->model->arch);
    exf_code rc;
    h->options = p->options;
    h->options.n_layers = last;
    h->options.sample = 1;
    while (h->n_layers < s->layers.n && s->layers.number[h->n_layers] < last) h->n_layers++;
    EXF_TRY(exf_recipe_accumulate_options(h->r, &h->accumulate, err));
    EXF_TRY(exf_recipe_open_basis(h->r, &h->basis, &h->accumulate, err));
    EXF_TRY(exf_plan_sample_new(&h->sample, p, p->flops / (double)p->batch->n_tokens / s->model->arch.n_layers, err));
    EXF_TRY(exf_sequences_of_batch(&h->sequences, &h->sample.batch, NULL, err));
    EXF_TRY(exf_capture_provenance(&h->facts, s->model, s->corpus, &s->request, s->backend, s->compute, "all", err));
    rc = make_scratch(h, err);
out:
    return rc;
}

/* Adds the seconds of a step to *seconds.  A step that is short is done twice, and the second time counts: the first
 * starts threads and fills caches, once for all layers of the run. */
static exf_code twice(double *seconds, exf_code (*step)(rehearsal *h, exf_err *err), rehearsal *h, exf_err *err)
{
    double took = 1;
    exf_code rc = EXF_OK;
    for (int i = 0; i < 2 && (i == 0 || took < 0.5); i++) {
        double start = exf_clock();
        EXF_TRY(step(h, err));
        took = exf_clock() - start;
    }
    *seconds += took;
out:
    return rc;
}

/* Runs the sample to a statistics file. */
static exf_code write_statistics(rehearsal *h, exf_err *err)
{
    exf_accumulator *a = NULL;
    exf_forward_report report;
    exf_run_shape shape = h->s->shape;
    exf_facts_part part = {.path = h->r->manifest, .provenance = &h->facts, .sequences = &h->sequences};
    exf_accumulator_plan plan = {.target = h->statistics, .shape = &shape, .layer_number = h->s->layers.number,
                                 .n_layers = h->n_layers, .parts = &part, .n_parts = 1, .options = &h->accumulate};
    char digest[EXF_SHA256_HEX];
    exf_lane lane;
    exf_code rc;
    shape.n_sequences = (int64_t)h->sample.batch.n_sequences;
    shape.n_tokens = (int64_t)h->sample.batch.n_tokens;
    h->accumulate.helpers = exf_forward_workers(&exf_backend_cpu, h->s->ranks ? &h->s->part : &h->s->batch, (int)h->r->threads);
    if (!h->r->n_shards) EXF_TRY(exf_overlapped_solve_begin(&h->solving, h->r, &plan, err));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    lane = (exf_lane){.observer = exf_accumulator_observer(a)};
    EXF_TRY(exf_forward(h->s->model, &h->sample.batch, &lane, 1, &h->options, &report, err));
    h->put = report.work.kind[EXF_WORK_REST].spent;
    EXF_TRY(exf_accumulator_add_facts(a, &(exf_provenance){0}, err)); /* waits for a layer that is being written */
    double start = exf_clock();
    EXF_TRY(exf_accumulator_commit(a, digest, err));
    h->committed = exf_clock() - start;
out:
    exf_accumulator_free(a);
    return rc;
}

/* Solves from the file, for projectors that need it. */
static exf_code solve_statistics(rehearsal *h, exf_err *err)
{
    exf_solve_options o;
    exf_code rc;
    EXF_TRY(exf_recipe_solve_options(h->r, &o, err));
    exf_tables_free(&h->solution);
    rc = exf_solve(h->statistics, &o, &h->solution, err);
out:
    return rc;
}

/* Ends tables whose layers were solved while the pass went on. */
static exf_code end_tables(rehearsal *h, exf_err *err)
{
    exf_solve_options o;
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_recipe_solve_options(h->r, &o, err));
    o.statistics_digest = "";
    EXF_TRY(exf_overlapped_solve_end(&h->solving, h->statistics, &o, &h->solution, err));
    h->solved = exf_clock() - start;
out:
    return rc;
}

/* Writes tables and computes their digest. */
static exf_code write_and_hash(const rehearsal *h, const exf_tables *t, exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    exf_code rc = exf_tables_write(t, h->tables, 1, err);
    return rc == EXF_OK ? exf_artifact_digest(h->tables, &exf_artifact_tables, digest, err) : rc;
}

static exf_code write_tables(rehearsal *h, exf_err *err)
{
    return write_and_hash(h, &h->solution, err);
}

static exf_code solve(rehearsal *h, exf_err *err)
{
    exf_code rc;
    rc = h->solving.solver ? end_tables(h, err) : twice(&h->solved, solve_statistics, h, err);
    if (rc == EXF_OK) rc = twice(&h->written, write_tables, h, err);
    return rc;
}

/* Writes tables of next to nothing, for the seconds that any such file takes. */
static exf_code write_small(rehearsal *h, exf_err *err)
{
    static const exf_run_shape shape = {2, 1, 1, 1, 1};
    static const int32_t number = 0;
    exf_tables small = {.n_layers = 0};
    exf_code rc = exf_tables_new(&small, &shape, &number, 1, NULL, 0, err);
    if (rc == EXF_OK) rc = write_and_hash(h, &small, err);
    exf_tables_free(&small);
    return rc;
}

/* Returns the seconds for so many times the layers of the rehearsal: a file is made, and waited for, once. */
static double of_file(const rehearsal *h, double seconds, double layers)
{
    return seconds > h->small ? h->small + (seconds - h->small) * layers : seconds;
}

/* An export is about as much to write as the tables are. */
static void add_up(exf_plan *p, const rehearsal *h)
{
    double layers = (double)h->s->layers.n / h->n_layers, files = 1 + (double)h->r->targets.n;
    double put = h->put / h->options.n_layers * p->work.kind[EXF_WORK_REST].planned - p->part.ends;
    if (!p->options.backend->gpu && put > 0) { /* on a GPU layers are written beside the next layer's work */
        p->part.ends += put;
        p->seconds += put;
    }
    p->part.statistics = of_file(h, h->committed, layers);
    p->part.solve = h->solved * layers;
    p->part.write = of_file(h, h->written, layers) * files;
    p->seconds += p->part.statistics + p->part.solve + p->part.write;
}

exf_code exf_session_rehearse(exf_plan *p, const exf_session *s, const exf_recipe *r, exf_err *err)
{
    rehearsal h = {.s = s, .r = r};
    exf_err why = {.code = EXF_OK};
    exf_code rc;
    if (!p->measured || r->basis_only) return EXF_OK;
    rc = prepare(&h, p, &why);
    if (rc == EXF_OK && h.n_layers) rc = twice(&h.small, write_small, &h, &why);
    if (rc == EXF_OK && h.n_layers) rc = write_statistics(&h, &why);
    if (rc == EXF_OK && h.n_layers && !r->n_shards) rc = solve(&h, &why);
    if (rc == EXF_OK && h.n_layers) add_up(p, &h);
    remove_scratch(&h);
    exf_basis_close(&h.basis);
    exf_plan_sample_free(&h.sample);
    exf_sequence_list_free(&h.sequences);
    exf_provenance_free(&h.facts);
    exf_tables_free(&h.solution);
    exf_overlapped_solve_free(&h.solving);
    if (rc != EXF_OK) exf_log_warn("what follows the pass is not in the predicted time: %s", why.msg);
    return exf_stop_check(err);
}
