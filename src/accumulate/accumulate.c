/* accumulate.c - see accumulate.h. */
#include "accumulate/accumulate.h"

#include "accumulate/device_sums.h"
#include "accumulate/late_put.h"
#include "base/mem.h"
#include "base/version.h"

#include <string.h>

struct exf_accumulator {
    exf_observer observer;
    exf_statistics_writer writer;
    exf_weighting weighting;
    int n_experts, top_k;
    int n_workers;
    exf_layer_statistics *sums; /* [n_workers] of the layer under way */
    double *scratch;            /* [n_workers, K*K] */
    exf_device_sums there;      /* where the forward runs on a device */
    exf_layer_statistics spare; /* there: what the last layer's put still reads */
    exf_late_put late;
};

static exf_code begin(void *self, int n_workers, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc;
    EXF_TRY(exf_mem_new(&a->sums, (size_t)n_workers, sizeof *a->sums, "statistics", err));
    a->n_workers = n_workers;
    for (int i = 0; i < n_workers; i++) EXF_TRY(exf_layer_statistics_new(&a->sums[i], a->n_experts, err));
    EXF_TRY(exf_mem_new(&a->scratch, (size_t)n_workers * (size_t)(a->top_k * a->top_k), sizeof *a->scratch, "Gram scratch", err));
out:
    return rc;
}

static exf_code layer_begin(void *self, int layer, int moe_index, exf_err *err)
{
    exf_accumulator *a = self;
    (void)layer;
    (void)moe_index;
    (void)err;
    for (int i = 0; i < a->n_workers; i++) exf_layer_statistics_zero(&a->sums[i]);
    return EXF_OK;
}

static exf_moments moments_of(const exf_layer_statistics *s)
{
    return (exf_moments){s->dot, s->target_sq, s->source_sq, s->dot0, s->sq0, s->count,
                         s->norm_sum, s->sq_sum, s->route_weight_sum, s->contribution_sum, s->norm_count};
}

static exf_code device_open(void *self, const exf_backend *b, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc = exf_layer_statistics_new(&a->spare, a->n_experts, err);
    return rc == EXF_OK ? exf_device_sums_open(&a->there, b, a->n_experts, a->weighting, err) : rc;
}

static exf_code device_block(void *self, const exf_device_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    (void)err;
    exf_device_sums_add(&a->there, b);
    return EXF_OK;
}

static exf_code add_tokens(exf_accumulator *a, int worker, int d_model, int n, const float *outputs, const int32_t *ids, const float *weights,
                           exf_err *err)
{
    exf_moments m = moments_of(&a->sums[worker]);
    return exf_moments_add_cpu(&m, a->n_experts, a->top_k, d_model, n, outputs, ids, weights, a->weighting,
                               a->scratch + (size_t)worker * (size_t)(a->top_k * a->top_k), err);
}

static exf_code block(void *self, const exf_moe_block *b, exf_err *err)
{
    return add_tokens(self, b->worker, b->d_model, b->n_tokens, b->expert_outputs, b->topk_ids, b->topk_weights, err);
}

static int count_cold(const exf_layer_statistics *s)
{
    int cold = 0;
    for (int e = 0; e < s->n_experts; e++) cold += s->norm_count[e] == 0;
    return cold;
}

/* An expert that ran and only ever said 0 has no ratio S[., t], and its table
 * would be refused after the whole forward: it is refused here, by its layer. */
static exf_code check_spoken(const exf_layer_statistics *s, int layer, exf_err *err)
{
    for (int e = 0; e < s->n_experts; e++)
        if (s->norm_count[e] && exf_exact_value(&s->norm_sum[e]) == 0)
            return exf_fail(err, EXF_NUMERIC, "layer %d: expert %d has mean output norm 0 over %llu tokens, expected a number above 0", layer,
                            e, (unsigned long long)s->norm_count[e]);
    return EXF_OK;
}

/* The sums change places with the ones that are written by now. */
static exf_code put_late(exf_accumulator *a, int layer, exf_err *err)
{
    exf_layer_statistics sums = a->sums[0];
    exf_code rc = exf_late_put_wait(&a->late, err);
    if (rc != EXF_OK) return rc;
    a->sums[0] = a->spare;
    a->spare = sums;
    return exf_late_put_start(&a->late, &a->writer, layer, &a->spare, err);
}

static exf_code layer_end(void *self, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    exf_accumulator *a = self;
    exf_moments home = moments_of(&a->sums[0]);
    (void)moe_index;
    exf_code rc = exf_device_sums_take(&a->there, &home, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d: ", layer);
    if (rc != EXF_OK) return rc;
    for (int i = 1; i < a->n_workers; i++) exf_layer_statistics_merge(&a->sums[0], &a->sums[i]);
    progress->cold = count_cold(&a->sums[0]);
    rc = check_spoken(&a->sums[0], layer, err);
    return rc != EXF_OK ? rc : a->there.b ? put_late(a, layer, err) : exf_statistics_put(&a->writer, layer, &a->sums[0], err);
}

static const char *weighting_name(exf_weighting w)
{
    return w == EXF_WEIGHT_SOURCE_NORM ? "source_norm" : w == EXF_WEIGHT_ROUTER ? "router" : "none";
}

static exf_code add_provenance(exf_provenance *p, exf_weighting weighting, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_provenance_add(p, err, "accumulate.program", "exfold-accumulate"));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.pairs", "corouted"));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.weighting", "%s", weighting_name(weighting)));
out:
    return rc;
}

exf_code exf_accumulator_new(exf_accumulator **out, const char *target, int force, const exf_run_shape *shape, const int32_t *layer_numbers,
                             int n_layers, exf_weighting weighting, const exf_provenance *p, exf_err *err)
{
    exf_code rc;
    exf_accumulator *a = NULL;
    exf_provenance own = {0};
    *out = NULL;
    EXF_TRY(exf_mem_new(&a, 1, sizeof *a, "accumulator", err));
    a->observer = (exf_observer){.self = a, .begin = begin, .layer_begin = layer_begin, .block = block, .device_open = device_open,
                                 .device_block = device_block, .layer_end = layer_end};
    a->weighting = weighting;
    a->n_experts = (int)shape->n_experts;
    a->top_k = (int)shape->top_k;
    EXF_TRY(exf_provenance_copy(&own, p, err));
    EXF_TRY(add_provenance(&own, weighting, err));
    EXF_TRY(exf_statistics_create(&a->writer, target, force, shape, layer_numbers, n_layers, &own, err));
out:
    exf_provenance_free(&own);
    if (rc != EXF_OK)
        exf_accumulator_free(a);
    else
        *out = a;
    return rc;
}

const exf_observer *exf_accumulator_observer(exf_accumulator *a)
{
    return &a->observer;
}

exf_code exf_accumulator_commit(exf_accumulator *a, exf_err *err)
{
    exf_code rc = exf_late_put_wait(&a->late, err);
    return rc == EXF_OK ? exf_statistics_commit(&a->writer, err) : rc;
}

void exf_accumulator_free(exf_accumulator *a)
{
    if (!a) return;
    exf_err unused;
    if (exf_late_put_wait(&a->late, &unused) != EXF_OK) unused.code = EXF_OK; /* was told, or nobody asks any more */
    exf_statistics_abort(&a->writer);
    exf_layer_statistics_free(&a->spare);
    exf_device_sums_free(&a->there);
    for (int i = 0; a->sums && i < a->n_workers; i++) exf_layer_statistics_free(&a->sums[i]);
    exf_mem_free(a->sums);
    exf_mem_free(a->scratch);
    exf_mem_free(a);
}

/* ---- from capture files ----------------------------------------------------- */

enum { ROWS = 256 }; /* tokens read at a time */

typedef struct {
    exf_capture_file *file;
    size_t n_files, n_open;
    int32_t *ids;
    float *weights, *outputs;
} captures;

static exf_code open_captures(captures *c, const char *const *paths, size_t n_paths, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&c->file, n_paths, sizeof *c->file, "capture list", err));
    c->n_files = n_paths;
    for (; c->n_open < n_paths; c->n_open++) EXF_TRY(exf_capture_open(&c->file[c->n_open], paths[c->n_open], err));
    size_t slots = (size_t)ROWS * (size_t)c->file[0].shape.top_k;
    EXF_TRY(exf_mem_new(&c->ids, slots, sizeof *c->ids, "captured routes", err));
    EXF_TRY(exf_mem_new(&c->weights, slots, sizeof *c->weights, "captured routes", err));
    EXF_TRY(exf_mem_new(&c->outputs, slots * (size_t)c->file[0].shape.d_model, sizeof *c->outputs, "captured outputs", err));
out:
    return rc;
}

static void close_captures(captures *c)
{
    for (size_t i = 0; i < c->n_open; i++) exf_capture_close(&c->file[i]);
    exf_mem_free(c->file);
    exf_mem_free(c->ids);
    exf_mem_free(c->weights);
    exf_mem_free(c->outputs);
}

/* All files have the first one's experts, sizes and layers; their tokens add. */
static exf_code join_shapes(const captures *c, exf_run_shape *shape, exf_err *err)
{
    const exf_capture_file *first = &c->file[0];
    *shape = first->shape;
    for (size_t i = 1; i < c->n_files; i++) {
        const exf_capture_file *f = &c->file[i];
        const exf_run_shape *s = &f->shape;
        if (s->n_experts != shape->n_experts || s->top_k != shape->top_k || s->d_model != shape->d_model)
            return exf_fail(err, EXF_MODEL, "%s: %lld experts, %lld per token, width %lld; %s has %lld, %lld, %lld", exf_h5_path(f->h),
                            (long long)s->n_experts, (long long)s->top_k, (long long)s->d_model, exf_h5_path(first->h),
                            (long long)shape->n_experts, (long long)shape->top_k, (long long)shape->d_model);
        if (f->n_layers != first->n_layers || memcmp(f->layer_number, first->layer_number, (size_t)f->n_layers * sizeof *f->layer_number))
            return exf_fail(err, EXF_MODEL, "%s: captured other layers than %s", exf_h5_path(f->h), exf_h5_path(first->h));
        shape->n_sequences += s->n_sequences;
        shape->n_tokens += s->n_tokens;
    }
    return EXF_OK;
}

static exf_code add_file(exf_accumulator *a, captures *c, exf_capture_file *f, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int64_t row = 0; rc == EXF_OK && row < f->shape.n_tokens; row += ROWS) {
        int64_t n = f->shape.n_tokens - row < ROWS ? f->shape.n_tokens - row : ROWS;
        EXF_TRY(exf_capture_get(f, layer, row, n, c->ids, c->weights, c->outputs, err));
        rc = add_tokens(a, 0, (int)f->shape.d_model, (int)n, c->outputs, c->ids, c->weights, err);
        if (rc != EXF_OK) exf_err_prefix(err, "%s: layer %d, rows from %lld: ", exf_h5_path(f->h), layer, (long long)row);
    }
out:
    return rc;
}

static exf_code add_layers(exf_accumulator *a, captures *c, exf_err *err)
{
    exf_code rc;
    int n_layers = c->file[0].n_layers;
    EXF_TRY(begin(a, 1, err));
    for (int i = 0; i < n_layers; i++) {
        int layer = c->file[0].layer_number[i];
        double start = exf_clock();
        exf_progress progress = {.layer = layer, .n_layers = n_layers, .done = i + 1, .n_experts = a->n_experts};
        EXF_TRY(layer_begin(a, layer, i, err));
        for (size_t k = 0; k < c->n_files; k++) {
            EXF_TRY(add_file(a, c, &c->file[k], layer, err));
            progress.tokens += (uint64_t)c->file[k].shape.n_tokens;
        }
        EXF_TRY(layer_end(a, layer, i, &progress, err));
        progress.seconds = exf_clock() - start;
        exf_progress_layer(&progress);
    }
out:
    exf_progress_end();
    return rc;
}

exf_code exf_accumulate_captures(const char *const *paths, size_t n_paths, const char *target, int force, exf_weighting weighting, exf_err *err)
{
    exf_code rc;
    captures c = {0};
    exf_run_shape shape;
    exf_accumulator *a = NULL;
    exf_provenance joined = {0};
    const exf_provenance **parts = NULL;
    EXF_TRY(open_captures(&c, paths, n_paths, err));
    EXF_TRY(join_shapes(&c, &shape, err));
    EXF_TRY(exf_mem_new(&parts, n_paths, sizeof *parts, "provenance", err));
    for (size_t i = 0; i < n_paths; i++) parts[i] = &c.file[i].provenance;
    EXF_TRY(exf_provenance_join(&joined, parts, paths, n_paths, err));
    EXF_TRY(exf_accumulator_new(&a, target, force, &shape, c.file[0].layer_number, c.file[0].n_layers, weighting, &joined, err));
    EXF_TRY(add_layers(a, &c, err));
    EXF_TRY(exf_accumulator_commit(a, err));
out:
    exf_accumulator_free(a);
    exf_provenance_free(&joined);
    exf_mem_free(parts);
    close_captures(&c);
    return rc;
}
