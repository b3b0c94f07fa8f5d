/* stage_validate.c - exfold-validate: from tables to one table of every variant's quality, in one pass; see stage.h. */
#include "run/stage.h"

#include "artifact/data.h"
#include "artifact/provenance.h"
#include "artifact/tables.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "recipe/recipe.h"
#include "run/plan.h"
#include "run/session.h"
#include "validate/frontier.h"
#include "validate/gates.h"
#include "validate/pilot.h"
#include "validate/validation.h"

#include <stdio.h>
#include <string.h>

/* What it is asked to decide. */
typedef struct {
    int has_limit;
    exf_limit limit;
    double bandwidth; /* bytes per second of the memory that will serve; 0: not given */
} decision;

/* Everything that a validation has, opened in this order. */
typedef struct {
    exf_recipe recipe; /* as the session reads it */
    exf_session session;
    exf_run_directory dir, of_json, of_picture;
    char *tables_path, *json, *markdown, *picture, *manifest, **names;
    exf_text_inputs text; /* of --text; its manifest is one of the outputs */
    exf_tables tables;
    char digest[EXF_SHA256_HEX]; /* of the tables */
    exf_variant *variants;
    const exf_runtime *runtime; /* NULL: none */
    size_t n_variants; /* as the recipe, or the sweep, has them */
    exf_lane_list lanes;
    exf_quality_gate *gates;
    size_t n_gates;
    decision decision;
    int pilots; /* 1: the sweep was asked for by the limit alone */
    size_t *group_of; /* [sequences] its decode batch: a rank takes whole ones */
    int32_t *domain_of;
    int64_t *document_of;
    exf_decode_schedule *schedule; /* of each size of decode batches */
    exf_provenance facts;
    exf_resume *resume;
} validation;

/* ---- what was asked for ------------------------------------------------------------- */

/* Makes the corpus of --text, and takes default settings where no recipe gives them; results then go beside the tables unless a
 * directory is named. */
static exf_code take_texts(validation *s, exf_recipe *r, exf_err *err)
{
    char *beside = NULL;
    exf_code rc;
    if (!r->recipe_file && !r->output_directory && r->validate_tables) {
        EXF_TRY(exf_path_dir(&beside, r->validate_tables, err));
        EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "output.directory", beside, "the tables' directory", err));
    }
    if (!r->recipe_file && !r->output_directory)
        return exf_fail(err, EXF_USAGE, "--tables: no tables are named: give --tables FILE, the tables.h5 of a calibration, or "
                        "--output DIR, where they are");
    EXF_TRY(exf_default_settings(r, EXF_SETTINGS_OF_VALIDATION, err));
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_name(&s->dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&s->dir, "validation_manifest.yaml", &s->manifest, err));
    EXF_TRY(exf_session_check_piped(r, err));
    EXF_TRY(exf_text_inputs_make(&s->text, r, s->manifest, err));
    EXF_TRY(exf_text_inputs_use(&s->text, r, "validate.manifest", err));
    if (s->text.path) EXF_TRY(exf_output_check(s->manifest, r->force, err));
out:
    exf_mem_free(beside);
    return rc;
}

/* Makes the recipe that the session reads, with the data of validate.* in the place of data.*. */
static exf_code make_recipe(validation *s, const exf_recipe *r, exf_err *err)
{
    exf_recipe *own = &s->recipe;
    *own = *r;
    if (!r->validate_manifest)
        return exf_fail(err, EXF_USAGE, "%s: validate.manifest (or --text FILE) is missing", r->recipe_file);
    own->manifest = r->validate_manifest;
    own->sequences = r->validate_sequences;
    if (r->validate_max_tokens) own->max_tokens = r->validate_max_tokens;
    if (own->min_tokens < 2) own->min_tokens = 2; /* one token has no next one */
    exf_code rc = exf_recipe_check_batches(r, err);
    if (rc != EXF_OK) return rc;
    if (r->validate_max_tokens && own->max_tokens < own->min_tokens)
        return exf_recipe_refuse(r, err, "validate.max_tokens: %lld is below %lld, %s", (long long)own->max_tokens,
                                 (long long)own->min_tokens,
                                 r->min_tokens < 2 ? "the fewest that can be scored" : "which is data.min_tokens");
    return EXF_OK;
}

/* Names tables and outputs; the suffix of the frontier's picture says its kind. */
static exf_code name_files(validation *s, const exf_recipe *r, exf_err *err)
{
    const char *stem = r->frontier ? "frontier" : r->wants_sensitivities ? "sensitivities" : "validation";
    char name[32];
    exf_code rc;
    EXF_TRY(r->validate_tables ? exf_mem_strdup(&s->tables_path, r->validate_tables, "path", err)
                               : exf_run_directory_file(&s->dir, "tables.h5", &s->tables_path, err));
    snprintf(name, sizeof name, "%s.md", stem);
    EXF_TRY(exf_run_directory_file(&s->dir, name, &s->markdown, err));
    if (r->frontier && r->wants_sensitivities)
        return exf_fail(err, EXF_USAGE, "--frontier and --sensitivities are two validations; give one of them");
    if (r->picture_path && !r->frontier)
        return exf_fail(err, EXF_USAGE, "--picture is of the frontier; give --frontier with it");
    if (r->picture_path && !exf_picture_is_named(r->picture_path))
        return exf_fail(err, EXF_USAGE, "--picture is %s, expected a name that ends in %s", r->picture_path, EXF_PICTURE_SUFFIXES);
    if (r->frontier)
        EXF_TRY(r->picture_path ? exf_mem_strdup(&s->picture, r->picture_path, "path", err)
                                : exf_run_directory_file(&s->dir, "frontier.svg", &s->picture, err));
    snprintf(name, sizeof name, "%s.json", stem);
    if (!r->json_path)
        EXF_TRY(exf_run_directory_file(&s->dir, name, &s->json, err));
    else if (strcmp(r->json_path, "-") != 0 && !r->dry_run)
        EXF_TRY(exf_mem_strdup(&s->json, r->json_path, "path", err));
out:
    return rc;
}

/* Refuses, before the pass, outputs that exist, have one name or lie in no directory. */
static exf_code check_files(const validation *s, const exf_recipe *r, exf_err *err)
{
    const char *const path[] = {s->markdown, s->picture, s->json, s->text.path ? s->manifest : NULL};
    exf_code rc;
    EXF_TRY(exf_run_outputs_check(&s->dir, path, sizeof path / sizeof *path, err));
    EXF_TRY(exf_output_check(s->markdown, r->force, err));
    if (s->picture) EXF_TRY(exf_output_check(s->picture, r->force, err));
    if (s->json) EXF_TRY(exf_output_check(s->json, r->force, err));
out:
    return rc;
}

static exf_code read_bandwidth(decision *d, const exf_recipe *r, exf_err *err)
{
    const exf_gpu *gpu;
    exf_code rc = EXF_OK;
    if (r->validate_gpu && r->validate_bandwidth)
        return exf_recipe_refuse(r, err, "validate.gpu: is %s, but validate.bandwidth is given too (%s); give one of them",
                                 r->validate_gpu, r->validate_bandwidth);
    if (r->validate_gpu) {
        EXF_TRY(exf_recipe_blame(r, exf_gpu_require(r->validate_gpu, &gpu, err), err));
        d->bandwidth = gpu->bandwidth;
    }
    if (r->validate_bandwidth)
        rc = exf_recipe_blame(r, exf_bandwidth_parse(r->validate_bandwidth, &d->bandwidth, err), err);
out:
    return rc;
}

/* Reads validate.limit, validate.gpu and validate.bandwidth.  A limit asks for the sweep of --frontier and sets r->frontier, unless
 * variants are given where it is, on the command line or in the recipe. */
static exf_code read_decision(decision *d, exf_recipe *r, exf_err *err)
{
    exf_code rc;
    *d = (decision){.has_limit = 0};
    EXF_TRY(read_bandwidth(d, r, err));
    if (!r->validate_limit) return EXF_OK;
    EXF_TRY(exf_recipe_blame(r, exf_limit_parse(&d->limit, r->validate_limit, err), err));
    exf_opt_rank rank = exf_opts_given(r->opts, "validate.limit", EXF_OPT_BY_ARGV) ? EXF_OPT_BY_ARGV : EXF_OPT_BY_RECIPE;
    if (r->wants_sensitivities && rank == EXF_OPT_BY_ARGV)
        return exf_fail(err, EXF_USAGE, "--limit recommends variants and --sensitivities runs none of these; give one of them");
    if (r->wants_sensitivities) return EXF_OK;
    d->has_limit = 1;
    if (!exf_opts_given(r->opts, "validate.variants", rank)) r->frontier = 1;
out:
    return rc;
}

/* Parses a variant of the recipe and checks that model and runtime can run it. */
static exf_code parse_variant(const validation *s, exf_variant *v, const char *text, exf_err *err)
{
    const exf_architecture *a = &s->session.model->arch;
    exf_code rc;
    EXF_TRY(exf_variant_parse_on(s->runtime, v, text, err));
    EXF_TRY(exf_variant_check(v, a->n_experts, a->top_k, err));
    if (s->runtime) EXF_TRY(exf_runtime_check(s->runtime, v, a, err));
out:
    if (rc != EXF_OK) exf_err_prefix(err, "validate.variants: ");
    return rc;
}

static exf_code parse_variants(validation *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    const exf_architecture *a = &s->session.model->arch;
    EXF_TRY(exf_recipe_runtime(r, &s->runtime, err));
    if (s->runtime)
        EXF_TRY(exf_recipe_blame(r, exf_runtime_serves(s->runtime, s->session.model->family->name, a, err), err));
    if (s->runtime) EXF_TRY(exf_recipe_blame(r, exf_runtime_takes_prompts(s->runtime, r->prefill_tokens, err), err));
    if (r->frontier)
        return exf_frontier_variants(&s->variants, &s->n_variants, a, &s->tables, s->session.model->family->name, s->runtime, err);
    if (r->wants_sensitivities) {
        exf_solve_options o;
        EXF_TRY(exf_recipe_solve_options(r, &o, err));
        int rules = exf_sensitivity_rules(&o);
        return exf_sensitivity_variants(&s->variants, &s->n_variants, &s->tables, rules ? rules : EXF_SENSITIVITIES_MEASURED, err);
    }
    if (r->variants.n == 0)
        return exf_fail(err, EXF_USAGE, "%s: validate.variants names none; give some, or --frontier", r->recipe_file);
    EXF_TRY(exf_mem_new(&s->variants, r->variants.n, sizeof *s->variants, "variants", err));
    for (; s->n_variants < r->variants.n; s->n_variants++) {
        const char *text = r->variants.item[s->n_variants];
        EXF_TRY(exf_recipe_blame(r, parse_variant(s, &s->variants[s->n_variants], text, err), err));
    }
out:
    return rc;
}

/* Lists the lanes of the pass: the variants by the sizes of their batches, their baselines, and two by halves. */
static exf_code list_lanes(validation *s, const exf_recipe *r, exf_err *err)
{
    const exf_architecture *a = &s->session.model->arch;
    exf_code rc;
    for (size_t i = 0; i < s->n_variants; i++)
        EXF_TRY(exf_recipe_blame(r, exf_lanes_ask(&s->lanes, &s->variants[i], &r->decode_batch, &s->tables, err), err));
    if (!r->baselines || r->wants_sensitivities) goto out;
    EXF_TRY(exf_lanes_add_baselines(&s->lanes, a, &s->tables, err));
    EXF_TRY(exf_lanes_add_halves(&s->lanes, a, &s->tables, err));
out:
    return rc;
}

static exf_code parse_gates(validation *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&s->gates, r->fail_above.n, sizeof *s->gates, "limits", err));
    for (; s->n_gates < r->fail_above.n; s->n_gates++) {
        const char *text = r->fail_above.item[s->n_gates];
        rc = exf_quality_gate_parse(&s->gates[s->n_gates], text, s->lanes.lane, s->lanes.n, err);
        if (rc == EXF_OK) rc = exf_quality_gate_is_new(s->gates, s->n_gates, err);
        EXF_TRY(exf_recipe_blame(r, rc, err));
    }
out:
    return rc;
}

/* ---- what it runs on -------------------------------------------------------------------- */

/* Deals the sequences to ranks, whole decode batches of every size to each, and makes the schedules of this rank's part. */
static exf_code deal_sequences(validation *s, const exf_recipe *r, exf_err *err)
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
static exf_code check_tables(validation *s, exf_err *err)
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

/* Looks for text that the tables were calibrated on, and warns of it. */
static exf_code look_for_calibration_text(validation *s, exf_err *err)
{
    exf_calibration_text text;
    exf_code rc = exf_calibration_text_find(&text, &s->tables, s->session.corpus, s->session.request.max_tokens, err);
    return rc == EXF_OK ? exf_calibration_text_tell(&text, s->tables_path, &s->facts, err) : rc;
}

/* Returns the last part of a path. */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* Adds the fact validate.text: the files of --text, or the manifest, without their directories. */
static exf_code add_text_fact(exf_provenance *p, const exf_recipe *r, exf_err *err)
{
    enum { NAMED = 3 };
    size_t n = r->texts.n ? r->texts.n + r->n_inputs : 0;
    exf_text names = {0};
    if (!n) exf_text_appendf(&names, "%s", last_name(r->validate_manifest));
    for (size_t i = 0; i < n && i < NAMED; i++)
        exf_text_appendf(&names, "%s%s", i ? ", " : "",
                         last_name(i < r->texts.n ? r->texts.item[i] : r->inputs[i - r->texts.n]));
    if (n > NAMED) exf_text_appendf(&names, " and %zu more files", n - NAMED);
    exf_code rc = exf_text_end(&names, err);
    if (rc == EXF_OK) rc = exf_provenance_add(p, err, "validate.text", "%s", names.s);
    exf_text_free(&names);
    return rc;
}

/* Adds the facts of the results. */
static exf_code add_facts(validation *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    exf_provenance *p = &s->facts;
    exf_text sizes = {0};
    const char *statistics = exf_provenance_get(&s->tables.provenance, "solve.statistics_digest"),
               *part = exf_provenance_get(&s->tables.provenance, EXF_PART_FACT);
    EXF_TRY(exf_session_facts(p, &s->session, "all", err));
    EXF_TRY(exf_provenance_add(p, err, "validate.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "validate.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "validate." EXF_MADE_FROM, "%s", s->digest));
    if (part) EXF_TRY(exf_provenance_add(p, err, "validate.tables_part", "%s", part));
    if (r->wants_sensitivities && statistics)
        EXF_TRY(exf_provenance_add(p, err, "validate.statistics_digest", "%s", statistics));
    if (r->accept == EXF_ACCEPT_OTHER_WEIGHTS) EXF_TRY(exf_provenance_add(p, err, "validate.accept", "other-weights"));
    if (s->runtime) EXF_TRY(exf_provenance_add(p, err, "validate.runtime", "%s", s->runtime->name));
    for (size_t i = 0; i < r->decode_batch.n; i++)
        exf_text_appendf(&sizes, "%s%lld", i ? "," : "", (long long)r->decode_batch.item[i]);
    EXF_TRY(exf_text_end(&sizes, err));
    EXF_TRY(exf_provenance_add(p, err, "validate.decode_batch", "%s", sizes.s));
    EXF_TRY(exf_provenance_add(p, err, "validate.prefill_tokens", "%lld", (long long)r->prefill_tokens));
    rc = add_text_fact(p, r, err);
out:
    exf_text_free(&sizes);
    return rc;
}

/* Makes and locks the output directory, locks those of outputs that were named by themselves, and opens the resume point there. */
static exf_code open_point(validation *s, exf_recipe *r, exf_err *err)
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

static void close_validation(validation *s, int failed)
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

/* ---- the results --------------------------------------------------------------------------- */

/* Announces a file on standard output, or on the log where standard output is the JSON alone. */
static exf_code announce_result(const validation *s, const char *path, exf_err *err)
{
    if (s->json) return exf_announce_short(path, err);
    exf_announce_in_log(path);
    return EXF_OK;
}

/* Writes a result; path NULL: to standard output. */
static exf_code write_text(const validation *s, const char *path, const exf_text *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!path) fputs(t->s, stdout);
    if (path) rc = exf_output_file_whole(path, s->recipe.force, t->s, t->len, err);
    return rc == EXF_OK && path ? announce_result(s, path, err) : rc;
}

/* Draws the frontier as a picture. */
static exf_code draw_frontier(const validation *s, const exf_validate_report *report, exf_err *err)
{
    const char *part = exf_provenance_get(report->facts, "validate.tables_part");
    exf_text note = {0};
    exf_drawing *d = NULL;
    exf_code rc;
    exf_text_appendf(&note, "%s%s%s", s->digest, part ? "; a part of the data: " : "", part ? part : "");
    EXF_TRY(exf_text_end(&note, err));
    EXF_TRY(exf_drawing_open(&d, s->picture, s->recipe.force, err));
    exf_drawing_note(d, EXF_MADE_FROM, note.s);
    EXF_TRY(exf_frontier_draw(report, d, err));
    rc = exf_drawing_close(d, err);
    d = NULL;
    if (rc == EXF_OK) rc = announce_result(s, s->picture, err);
out:
    exf_drawing_abort(d);
    exf_text_free(&note);
    return rc;
}

/* Writes the files, each whole or not at all, and the summary to standard output, unless that is the JSON alone. */
static exf_code write_files(const validation *s, const exf_validate_report *report, exf_err *err)
{
    exf_text summary = {0}, json = {0}, markdown = {0};
    exf_code rc;
    EXF_TRY(exf_validate_summary(report, &summary, err));
    if (s->json) EXF_TRY(write_text(s, NULL, &summary, err));
    if (s->picture) EXF_TRY(draw_frontier(s, report, err));
    EXF_TRY(exf_validate_json(report, &json, err));
    EXF_TRY(write_text(s, s->json, &json, err));
    EXF_TRY(exf_validate_markdown(report, &markdown, err));
    EXF_TRY(write_text(s, s->markdown, &markdown, err));
    if (s->text.path) EXF_TRY(write_text(s, s->manifest, &s->text.manifest, err));
out:
    exf_text_free(&summary);
    exf_text_free(&json);
    exf_text_free(&markdown);
    return rc;
}

/* Returns 1 for a key that the closing screen's command has by itself, or that is of this run alone: gates name rows of the sweep,
 * and resume points are of its lanes. */
static int is_of_sweep(const char *key)
{
    static const char *const keys[] = {"validate.tables", "validate.variants", "validate.limit", "validate.prefill_tokens",
                                       "validate.decode_batch", "validate.fail_above", "serve.runtime", "output.directory"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return 1;
    return exf_starts_with(key, "runtime.checkpoint.");
}

/* Appends the texts and the settings that the command line gave, as a command takes them. */
static exf_code add_settings(exf_text *out, const exf_recipe *r, exf_err *err)
{
    size_t n_common, n_keys;
    exf_text value = {0};
    exf_code rc;
    exf_recipe_global_rows(&n_common);
    const exf_opt *row = exf_recipe_key_rows(&n_keys);
    for (size_t i = 0; i < r->texts.n + (r->texts.n ? r->n_inputs : 0); i++) {
        exf_text_appendf(out, " --text ");
        exf_text_append_word(out, i < r->texts.n ? r->texts.item[i] : r->inputs[i - r->texts.n]);
    }
    if (r->text_field) {
        exf_text_appendf(out, " --text-field ");
        exf_text_append_word(out, r->text_field);
    }
    for (size_t i = 0; i < n_keys; i++) {
        const char *key = row[i].key;
        if (!exf_opts_given(r->opts, key, EXF_OPT_BY_ARGV) || is_of_sweep(key)) continue;
        if (strcmp(key, "model.path") == 0 && !r->recipe_file) continue; /* it is --model's */
        if (strcmp(key, "validate.manifest") == 0 && r->texts.n) continue; /* it is --text's */
        value.len = 0;
        exf_text_appendf(&value, "%s=", key);
        EXF_TRY(exf_opts_value(r->opts, n_common + i, &value, err));
        exf_text_appendf(out, " --set ");
        exf_text_append_word(out, value.s);
    }
    rc = exf_text_end(out, err);
out:
    exf_text_free(&value);
    return rc;
}

/* Writes the results: what the rows cost, what they gain, and what is recommended. */
static exf_code write_results(const validation *s, const exf_recipe *r, const exf_validation *v, exf_err *err)
{
    const exf_model *m = s->session.model;
    exf_cost_model cost = exf_cost_model_of(m, s->decision.bandwidth);
    exf_text settings = {0};
    exf_validate_files files = {.recipe = r->recipe_file, .model = r->model_path, .tables = s->tables_path,
                                .output = r->output_directory, .report = s->markdown};
    exf_validate_report report = {
        .of = {.v = v, .cost = &cost, .a = &m->arch, .family = m->family->name, .runtime = s->runtime,
               .prefill_share = exf_prefill_share(&s->session.batch, s->schedule),
               .flops_per_token = v->one_flops / (double)s->session.batch.n_tokens},
        .domain_names = s->names, .facts = &s->facts, .tables = &s->tables.provenance,
        .limit = s->decision.has_limit ? &s->decision.limit : NULL, .files = &files, .model_bytes = exf_model_bytes(m),
        .prefill_tokens = (int)r->prefill_tokens, .longest = s->session.corpus->max_tokens, .compares = !r->wants_sensitivities};
    exf_code rc;
    EXF_TRY(add_settings(&settings, r, err));
    files.settings = settings.s ? settings.s : "";
    EXF_TRY(exf_validate_report_make(&report, err));
    rc = write_files(s, &report, err);
out:
    exf_validate_report_free(&report);
    exf_text_free(&settings);
    return rc;
}

/* ---- what the run will take ------------------------------------------------------------------- */

/* Returns the bytes of the outputs, about. */
static uint64_t disk_of(const validation *s)
{
    return 8192 * (uint64_t)(s->lanes.n + 1);
}

/* Checks, on the rank that writes the outputs, whether there is room for them. */
static exf_code check_room(const validation *s, const exf_recipe *r, exf_err *err)
{
    const exf_session_request request = {.disk = disk_of(s), .output = r->output_directory};
    return exf_ranks_first(r->job) ? exf_session_check_room(&request, err) : EXF_OK;
}

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
static size_t pilot_sequences(const validation *s, const exf_recipe *r)
{
    int64_t largest = 0;
    for (size_t i = 0; i < r->decode_batch.n; i++) largest = largest > r->decode_batch.item[i] ? largest : r->decode_batch.item[i];
    return !s->pilots || s->session.ranks || s->n_gates ? 0 : exf_pilot_sequences(s->session.batch.n_sequences, largest);
}

static exf_code plan_validation(const validation *s, const exf_recipe *r, exf_validate_job *job, exf_err *err)
{
    exf_code rc;
    exf_demand d;
    int workers = exf_forward_workers(s->session.backend, &s->session.batch, (int)r->threads);
    EXF_TRY(exf_validate_demand(&d, job, err));
    exf_session_request request = {.demand = &d, .n_layers = s->session.model->arch.n_layers,
                                   .host = exf_validate_memory(job, workers), .disk = disk_of(s),
                                   .group_of = s->group_of, .output = r->output_directory, .pass = run_sample, .self = job};
    request.pilot = pilot_sequences(s, r);
    request.pilot_share = (double)request.pilot / (double)s->session.batch.n_sequences * (double)(s->lanes.n_asked + 1) /
                          (double)(s->lanes.n + 1);
    rc = exf_session_plan(&s->session, r, &request, err);
out:
    return rc;
}

/* Adds the facts that the pass found: the digests of the weights, and in how many the tables' differ where they may. */
static exf_code add_weights(validation *s, exf_err *err)
{
    exf_text differ = {0};
    exf_code rc;
    EXF_TRY(exf_capture_weights_facts(&s->facts, s->session.model, err));
    if (s->recipe.accept != EXF_ACCEPT_OTHER_WEIGHTS) return EXF_OK;
    EXF_TRY(exf_weights_facts_difference(&differ, &s->tables.provenance, &s->facts, err));
    rc = exf_provenance_add(&s->facts, err, "validate.other_weights", "%s", differ.s);
out:
    exf_text_free(&differ);
    return rc;
}

/* ---- a sweep with a limit ------------------------------------------------------------------------ */

/* Says how many lanes the pass has, which is what it costs. */
static void tell_lanes(const validation *s)
{
    exf_log_info("%zu variants, %zu lanes beside them (baselines, halves of the calibration) and the original: %zu in one pass",
                 s->lanes.n_asked, s->lanes.n - s->lanes.n_asked, s->lanes.n + 1);
}

/* Has the lanes be those variants of the sweep that are marked, and what runs beside them. */
static exf_code keep_lanes(validation *s, const exf_recipe *r, const unsigned char *keep, exf_err *err)
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
    rc = list_lanes(s, r, err);
out:
    return rc;
}

/* Runs a sweep that a limit asked for on a sample first, and leaves out what cannot hold the limit. */
static exf_code run_pilot(validation *s, const exf_recipe *r, const exf_validate_job *job, exf_err *err)
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
    if (!goes_on) EXF_TRY(check_files(s, r, err)); /* before the work */
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
static exf_code run_validation(validation *s, const exf_recipe *r, const exf_validate_job *job, exf_err *err)
{
    exf_validation v = {.variant = NULL};
    exf_code rc;
    EXF_TRY(exf_validate(&v, job, err));
    EXF_TRY(exf_session_same_weights(&s->session, err));
    EXF_TRY(exf_session_tell_bytes(r->job, v.report.own_bytes, err));
    if (!exf_ranks_first(r->job)) goto out;
    EXF_TRY(add_weights(s, err));
    exf_report_times(r, s->session.corpus->n_tokens * v.n_variants, &v.report);
    EXF_TRY(write_results(s, r, &v, err));
    for (size_t i = 0; i < s->n_gates; i++) EXF_TRY(exf_quality_gate_check(&s->gates[i], &v, err));
out:
    exf_validation_free(&v);
    return rc;
}

exf_code exf_stage_validate(exf_recipe *r, exf_err *err)
{
    validation s = {.n_variants = 0};
    exf_session *session = &s.session;
    exf_code rc;
    EXF_TRY(exf_scale_check(r, err));
    EXF_TRY(take_texts(&s, r, err));
    EXF_TRY(make_recipe(&s, r, err));
    int all = r->frontier;
    EXF_TRY(read_decision(&s.decision, r, err));
    s.pilots = r->frontier && !all;
    EXF_TRY(name_files(&s, r, err));
    EXF_TRY(exf_tables_read(&s.tables, s.tables_path, err));
    EXF_TRY(exf_sums_check_version(&s.tables.provenance, s.tables_path, s.tables.shape.top_k, s.tables.shape.d_model, err));
    EXF_TRY(exf_tell_part(&s.tables, s.tables_path, err));
    EXF_TRY(exf_mean_cosines_tell(&s.tables, s.tables_path, err));
    EXF_TRY(exf_artifact_digest(s.tables_path, &exf_artifact_tables, s.digest, err));
    EXF_TRY(exf_session_open(session, &s.recipe, "all", err));
    EXF_TRY(parse_variants(&s, r, err));
    EXF_TRY(list_lanes(&s, r, err));
    EXF_TRY(parse_gates(&s, r, err));
    EXF_TRY(exf_pools_derive(&s.tables, s.variants, s.n_variants, err));
    EXF_TRY(exf_solve_command_check(&s.tables, s.tables_path, s.variants, s.n_variants, err));
    EXF_TRY(check_tables(&s, err));
    EXF_TRY(deal_sequences(&s, r, err));
    if (!r->dry_run) EXF_TRY(check_room(&s, r, err));
    EXF_TRY(look_for_calibration_text(&s, err));
    if (!r->dry_run) EXF_TRY(add_facts(&s, r, err));
    exf_validate_job job = {.model = session->model, .batch = &session->part, .whole = &session->batch, .domain_of = s.domain_of,
                            .n_domains = session->corpus->n_domains,
                            .document_of = session->corpus->documents_known || session->corpus->near_copies ? s.document_of : NULL,
                            .near_copies = session->corpus->near_copies,
                            .schedule = s.schedule, .n_schedules = (int)r->decode_batch.n, .lanes = s.lanes.lane,
                            .n_lanes = s.lanes.n, .no_layer_errors = r->wants_sensitivities,
                            .forward = exf_session_options(session, r, 0)};
    if (!r->dry_run) EXF_TRY(run_pilot(&s, r, &job, err));
    if (exf_ranks_first(r->job)) tell_lanes(&s);
    if (!r->dry_run) EXF_TRY(open_point(&s, r, err));
    if (exf_ranks_first(r->job)) EXF_TRY(check_files(&s, r, err)); /* a run that goes on replaces its own */
    job.lanes = s.lanes.lane;
    job.n_lanes = s.lanes.n;
    job.forward.resume = s.resume;
    if (!r->dry_run)
        rc = run_validation(&s, r, &job, err);
    else if (exf_ranks_first(r->job))
        rc = plan_validation(&s, r, &job, err);
out:
    (void)exf_ranks_fail(r->job, rc, err);
    rc = exf_run_resume_close(s.resume, rc, err);
    close_validation(&s, rc != EXF_OK && rc != EXF_THRESHOLD);
    return rc;
}
