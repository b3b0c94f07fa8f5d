/* stage_validate.c - exfold-validate: from tables to one table of every variant's quality, in one pass; see stage.h. */
#include "run/stage.h"

#include "artifact/data.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/plan.h"
#include "run/stage_validate_internal.h"
#include "validate/pilot.h"

#include <stdio.h>
#include <string.h>

/* ---- what it runs on -------------------------------------------------------------------- */

/* Deals the sequences to ranks, whole decode batches of every size to each, and makes the schedules of this rank's part. */
static exf_code deal_sequences(exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    const exf_corpus *c = s->session.corpus;
    const exf_int_list *size = &r->decode_batch;
    size_t n = c->n_sequences;
    int threads = exf_forward_workers(&exf_backend_cpu, &s->session.batch, (int)r->threads);
    exf_code rc;
    EXF_TRY(exf_mem_new(&s->group_of, n, sizeof *s->group_of, "decode batches", err));
    EXF_TRY(exf_mem_new(&s->domain_of, n, sizeof *s->domain_of, "domains", err));
    EXF_TRY(exf_mem_new(&s->document_of, n, sizeof *s->document_of, "documents", err));
    for (size_t i = 0; i < n; i++) {
        s->domain_of[i] = c->sequence[i].domain;
        s->document_of[i] = c->sequence[i].group;
    }
    exf_batches_group(s->group_of, n, size->item, size->n);
    rc = exf_session_deal(&s->session, r, s->group_of, err);
    if (rc == EXF_USAGE)
        exf_err_prefix(err, "validate.decode_batch: a rank takes whole batches; start fewer ranks or give more sequences: ");
    if (rc != EXF_OK) goto out;
    EXF_TRY(exf_mem_new(&s->schedule, size->n, sizeof *s->schedule, "decode batches", err));
    for (size_t i = 0; i < size->n; i++) {
        exf_decode_schedule *schedule = &s->schedule[i];
        EXF_TRY(exf_decode_schedule_new(schedule, &s->session.part, (int)size->item[i], (int)r->prefill_tokens, threads, err));
        schedule->first_row = s->session.first_row;
    }
    EXF_TRY(exf_mem_new(&s->names, c->n_domains, sizeof *s->names, "domains", err));
    for (size_t i = 0; i < c->n_domains; i++) s->names[i] = c->domains[i].name;
out:
    return rc;
}

/* Checks that the tables are of the model, and reads their vectors if a variant wants them.  Refuses tables without a layer that a
 * public runtime folds all the same: here it would stay as it is. */
static exf_code check_tables(exf_validate_stage *s, exf_err *err)
{
    const exf_model *m = s->session.model;
    int vectors = 0, norms = 0;
    exf_code rc;
    EXF_TRY(exf_validate_check_tables(&s->tables, s->tables_path, m, s->recipe.accept == EXF_ACCEPT_OTHER_WEIGHTS, err));
    for (size_t i = 0; i < s->n_variants; i++) vectors |= exf_variant_wants_vectors(&s->variants[i]);
    if (vectors) EXF_TRY(exf_tables_read_vectors(&s->tables, s->tables_path, err));
    for (size_t i = 0; i < s->n_variants; i++) norms |= exf_variant_wants_norms(&s->variants[i]);
    if (norms && !s->tables.norm_head.q)
        return exf_fail(err, EXF_USAGE,
                        "%s: holds no norm head, which norms=predicted reads; set calibrate.norm_head and calibrate again",
                        s->tables_path);
    for (int l = 0; s->runtime && s->runtime->target && l < m->arch.n_layers; l++) {
        if (!m->arch.is_moe[l] || exf_tables_index(&s->tables, l) >= 0) continue;
        if (exf_model_copies(m, EXF_W_ROUTER_TABLE, l) && !s->runtime->folds_hashed) continue;
        return exf_fail(err, EXF_MODEL,
                        "%s: has no layer %d, which serve.runtime %s folds all the same, losing what it leaves out there; "
                        "calibrate every layer (exfold-calibrate)",
                        s->tables_path, l, s->runtime->name);
    }
out:
    return rc;
}

/* Makes and locks the output directory, locks those of outputs that were named by themselves, and opens the resume point there. */
static exf_code open_point(exf_validate_stage *s, exf_recipe *r, exf_err *err)
{
    exf_resume_of of = {.stage = "validate", .outputs = &s->facts, .model = s->session.model};
    char tables[EXF_SHA256_HEX + 32];
    exf_text lanes = {0};
    exf_code rc;
    EXF_TRY(exf_lanes_names(&lanes, &s->lanes, err));
    of.lanes = lanes.s;
    snprintf(tables, sizeof tables, "tables: digest %s", s->digest);
    EXF_TRY(exf_ranks_same(r->job, tables, err)); /* they read one table */
    if (exf_ranks_first(r->job)) {
        EXF_TRY(exf_run_directory_make(&s->dir, err));
        if (s->json) EXF_TRY(exf_run_directory_of_file(&s->of_json, s->json, err));
        if (s->picture) EXF_TRY(exf_run_directory_of_file(&s->of_picture, s->picture, err));
    }
    EXF_TRY(exf_run_resume_open(&s->resume, r, &s->dir, &of, err));
    s->recipe.force = r->force;
out:
    exf_text_free(&lanes);
    return rc;
}

static void close_validation(exf_validate_stage *s, int failed)
{
    for (size_t i = 0; s->schedule && i < s->recipe.decode_batch.n; i++) exf_decode_schedule_free(&s->schedule[i]);
    exf_mem_free(s->schedule);
    exf_mem_free(s->group_of);
    exf_mem_free(s->domain_of);
    exf_mem_free(s->document_of);
    exf_mem_free(s->names);
    exf_mem_free(s->gates);
    exf_mem_free(s->variants);
    exf_lanes_free(&s->lanes);
    exf_tables_free(&s->tables);
    exf_provenance_free(&s->facts);
    exf_session_close(&s->session);
    exf_mem_free(s->tables_path);
    exf_mem_free(s->json);
    exf_mem_free(s->markdown);
    exf_mem_free(s->picture);
    exf_mem_free(s->manifest);
    exf_text_inputs_free(&s->text);
    exf_run_directory_close(&s->of_picture, 0);
    exf_run_directory_close(&s->of_json, 0);
    exf_run_directory_close(&s->dir, failed);
}

/* ---- what the run will take ------------------------------------------------------------------- */

/* Runs the job on a sample of its sequences, which decode side by side as those of the run do. */
static exf_code run_sample(void *self, const exf_batch *batch, const exf_forward_options *options, exf_forward_report *report,
                           exf_err *err)
{
    exf_validate_job job = *(const exf_validate_job *)self;
    exf_decode_schedule *schedule = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&schedule, (size_t)job.n_schedules, sizeof *schedule, "decode batches", err));
    for (int i = 0; i < job.n_schedules; i++) {
        const exf_decode_schedule *s = &job.schedule[i];
        EXF_TRY(exf_decode_schedule_new(&schedule[i], batch, s->size, s->prefill_tokens, s->threads, err));
    }
    job.batch = batch;
    job.schedule = schedule;
    job.forward = *options;
    rc = exf_validate_sample(&job, report, err);
out:
    for (int i = 0; schedule && i < job.n_schedules; i++) exf_decode_schedule_free(&schedule[i]);
    exf_mem_free(schedule);
    return rc;
}

/* Returns how many sequences a sweep that a limit asked for runs first; 0: none.  Gates may name any variant, and ranks have parts
 * of the run: then all of it runs. */
static size_t pilot_sequences(const exf_validate_stage *s, const exf_recipe *r)
{
    int64_t largest = 0;
    for (size_t i = 0; i < r->decode_batch.n; i++) largest = largest > r->decode_batch.item[i] ? largest : r->decode_batch.item[i];
    return !s->pilots || s->session.ranks || s->n_gates ? 0 : exf_pilot_sequences(s->session.batch.n_sequences, largest);
}

/* Describes the run; its outputs are small. */
static exf_plan plan_of(const exf_validate_stage *s, const exf_recipe *r)
{
    return (exf_plan){.disk = 8192 * (uint64_t)(s->lanes.n + 1), .n_layers = s->session.model->arch.n_layers,
                      .group_of = s->group_of, .output = r->output_directory, .pass = run_sample};
}

static exf_code plan_validation(const exf_validate_stage *s, const exf_recipe *r, exf_validate_job *job, exf_err *err)
{
    exf_plan plan = plan_of(s, r);
    exf_demand d;
    exf_code rc;
    EXF_TRY(exf_validate_demand(&d, job, err));
    plan.demand = &d;
    plan.self = job;
    plan.host = exf_validate_memory(job, exf_forward_workers(s->session.backend, &s->session.batch, (int)r->threads));
    plan.pilot.sequences = pilot_sequences(s, r);
    plan.pilot.share = (double)plan.pilot.sequences / (double)s->session.batch.n_sequences * (double)(s->lanes.n_asked + 1) /
                       (double)(s->lanes.n + 1);
    rc = exf_session_plan(&s->session, r, &plan, err);
out:
    return rc;
}

/* ---- a sweep with a limit ------------------------------------------------------------------------ */

/* Has the lanes be those variants of the sweep that are marked, and what runs beside them. */
static exf_code keep_lanes(exf_validate_stage *s, const exf_recipe *r, const unsigned char *keep, exf_err *err)
{
    size_t n = 0;
    exf_variant *kept = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&kept, s->lanes.n_asked, sizeof *kept, "variants", err));
    for (size_t i = 0; i < s->lanes.n_asked; i++)
        if (keep[i]) memcpy(&kept[n++], &s->lanes.lane[i].variant, sizeof *kept); /* with its padding: exf_variant_equal() */
    exf_mem_free(s->variants);
    s->variants = kept;
    s->n_variants = n;
    exf_lanes_free(&s->lanes);
    rc = exf_validate_list_lanes(s, r, err);
out:
    return rc;
}

/* Runs a sweep that a limit asked for on a sample first, and leaves out what cannot hold the limit. */
static exf_code run_pilot(exf_validate_stage *s, const exf_recipe *r, const exf_validate_job *job, exf_err *err)
{
    const exf_model *m = s->session.model;
    const exf_cost_model cost = exf_cost_model_of(m, s->decision.bandwidth);
    const exf_judged of = {.cost = &cost, .a = &m->arch, .family = m->family->name, .runtime = s->runtime};
    size_t asked = s->lanes.n_asked, sequences = pilot_sequences(s, r);
    int goes_on = 0;
    unsigned char *keep = NULL;
    exf_validate_job pilot = *job;
    exf_demand demand;
    exf_eta then;
    exf_code rc;
    if (!sequences) return EXF_OK;
    EXF_TRY(exf_run_resume_look(r, &s->dir, "validate", &goes_on, err));
    if (!goes_on) EXF_TRY(exf_validate_check_files(s, r, err)); /* before the work */
    exf_log_info("%zu variants on %zu of %zu sequences first, to leave out what cannot hold %s", asked, sequences,
                 s->session.batch.n_sequences, r->validate_limit);
    EXF_TRY(exf_mem_new(&keep, asked, sizeof *keep, "variants", err));
    EXF_TRY(exf_validate_demand(&demand, job, err));
    then = exf_work_of_pass(m, job->batch, &demand, 0, m->arch.n_layers); /* at most: the pilot leaves lanes out */
    pilot.n_lanes = asked;
    pilot.forward.then = &then;
    EXF_TRY(exf_pilot_run(keep, &pilot, &s->decision.limit, &of, sequences, err));
    EXF_TRY(keep_lanes(s, r, keep, err));
    exf_log_info("%zu of %zu variants may hold %s, or are the nearest; --frontier runs all", s->n_variants, asked,
                 r->validate_limit);
out:
    exf_mem_free(keep);
    return rc;
}

/* ---- the run ------------------------------------------------------------------------------------ */

/* Runs all variants in one pass; rank 0 writes the results and then checks the limits. */
static exf_code run_validation(exf_validate_stage *s, const exf_recipe *r, const exf_validate_job *job, exf_err *err)
{
    exf_validation v = {.variant = NULL};
    exf_code rc;
    EXF_TRY(exf_validate(&v, job, err));
    EXF_TRY(exf_session_same_weights(&s->session, err));
    EXF_TRY(exf_session_tell_bytes(r->job, v.report.own_bytes, err));
    if (!exf_ranks_first(r->job)) goto out;
    exf_report_times(r, s->session.corpus->n_tokens * v.n_variants, &v.report);
    EXF_TRY(exf_validate_write_results(s, r, &v, err));
    for (size_t i = 0; i < s->n_gates; i++) EXF_TRY(exf_quality_gate_check(&s->gates[i], &v, err));
out:
    exf_validation_free(&v);
    return rc;
}

exf_code exf_stage_validate(exf_recipe *r, exf_err *err)
{
    exf_validate_stage s = {.n_variants = 0};
    exf_session *session = &s.session;
    const int is_first = exf_ranks_first(r->job);
    exf_calibration_text text;
    exf_code rc;
    EXF_TRY(exf_scale_check(r, err));
    EXF_TRY(exf_validate_read_request(&s, r, err));
    EXF_TRY(exf_tables_read(&s.tables, s.tables_path, err));
    EXF_TRY(exf_sums_check_version(&s.tables.provenance, s.tables_path, s.tables.shape.top_k, s.tables.shape.d_model, err));
    EXF_TRY(exf_tell_part(&s.tables, s.tables_path, err));
    EXF_TRY(exf_mean_cosines_tell(&s.tables, s.tables_path, err));
    EXF_TRY(exf_artifact_digest(s.tables_path, &exf_artifact_tables, s.digest, err));
    EXF_TRY(exf_session_open(session, &s.recipe, "all", err));
    EXF_TRY(exf_validate_read_variants(&s, r, err));
    EXF_TRY(exf_pools_derive(&s.tables, s.variants, s.n_variants, err));
    EXF_TRY(exf_solve_command_check(&s.tables, s.tables_path, s.variants, s.n_variants, err));
    EXF_TRY(check_tables(&s, err));
    EXF_TRY(deal_sequences(&s, r, err));
    exf_plan plan = plan_of(&s, r);
    if (!r->dry_run && is_first) EXF_TRY(exf_plan_check_output(&plan, err));
    EXF_TRY(exf_calibration_text_find(&text, &s.tables, session->corpus, session->request.max_tokens, err));
    EXF_TRY(exf_calibration_text_tell(&text, s.tables_path, &s.facts, err));
    if (!r->dry_run) EXF_TRY(exf_validate_add_facts(&s, r, err));
    exf_validate_job job = {.model = session->model, .batch = &session->part, .whole = &session->batch, .domain_of = s.domain_of,
                            .n_domains = session->corpus->n_domains,
                            .document_of = session->corpus->documents_known || session->corpus->near_copies ? s.document_of : NULL,
                            .near_copies = session->corpus->near_copies,
                            .schedule = s.schedule, .n_schedules = (int)r->decode_batch.n, .lanes = s.lanes.lane,
                            .n_lanes = s.lanes.n, .no_layer_errors = r->wants_sensitivities,
                            .forward = exf_session_options(session, r, 0)};
    if (!r->dry_run) EXF_TRY(run_pilot(&s, r, &job, err));
    if (is_first) /* what the pass costs */
        exf_log_info("%zu variants, %zu lanes beside them (baselines, halves of the calibration) and the original: %zu in one pass",
                     s.lanes.n_asked, s.lanes.n - s.lanes.n_asked, s.lanes.n + 1);
    if (!r->dry_run) EXF_TRY(open_point(&s, r, err));
    if (is_first) EXF_TRY(exf_validate_check_files(&s, r, err)); /* a run that goes on replaces its own */
    job.lanes = s.lanes.lane;
    job.n_lanes = s.lanes.n;
    job.forward.resume = s.resume;
    if (!r->dry_run)
        rc = run_validation(&s, r, &job, err);
    else if (is_first)
        rc = plan_validation(&s, r, &job, err);
out:
    (void)exf_ranks_fail(r->job, rc, err);
    rc = exf_run_resume_close(s.resume, rc, err);
    close_validation(&s, rc != EXF_OK && rc != EXF_THRESHOLD);
    return rc;
}
