/* fold_device.c - folds routes in GPU memory, and counts there what runs (kernels/fold/route_fold.h), so that the host waits for
 * neither.  What the kernels do not do is folded on the host: random prefill and prefill by vectors; in decode sere and
 * fold=random. */
#include "fold/fold_rewriter_internal.h"

#include "base/mem.h"
#include "kernels/fold/fold_internal.h"

#include <string.h>

/* ---- what is done there -------------------------------------------------------------------------------- */

static int folds_decode(const exf_variant *v)
{
    return v && (v->decode == EXF_DECODE_DYNAMIC || v->decode == EXF_DECODE_STATIC);
}

static int folds_prefill(const exf_variant *v)
{
    return v && v->prefill != EXF_PREFILL_NONE;
}

int exf_fold_runs_on_device(const exf_fold_rewriter *f)
{
    const exf_variant *v = f->v;
    if (!v) return 1;
    if (v->prefill != EXF_PREFILL_NONE && (v->prefill == EXF_PREFILL_RANDOM || exf_variant_wants_vectors(v))) return 0;
    return v->decode != EXF_DECODE_SERE && v->outside != EXF_OUTSIDE_RANDOM;
}

/* ---- a layer's arrays ---------------------------------------------------------------------------------- */

/* Returns the host's array of a layer of the tables, and its bytes; NULL and 0: the variant does not read it. */
static const void *layer_array(const exf_fold_rewriter *f, int which, int index, size_t *bytes)
{
    size_t e = (size_t)f->t->shape.n_experts, at = (size_t)index, row = at * e, cell = row * e;
    int prefill = folds_prefill(f->v), moves = folds_decode(f->v) && exf_fold_decode_form_of(f->v) == EXF_STEPS_REMAPPED;
    int decode = folds_decode(f->v) && !moves, given = decode && f->pool;
    size_t members = given ? (size_t)f->pool->size : 0;
    const struct {
        int read;
        const void *array;
        size_t from, n;
    } list[EXF_FOLD_LAYER_ARRAYS] = {
        [EXF_FOLD_PREFILL_COEFF] = {prefill, f->prefill_coeff ? f->prefill_coeff : f->t->coeff, cell, e * e},
        [EXF_FOLD_PREFILL_LOSS] = {prefill, f->prefill_loss, cell, e * e},
        [EXF_FOLD_DECODE_COEFF] = {decode, f->decode_coeff ? f->decode_coeff : f->t->coeff, cell, e * e},
        [EXF_FOLD_DECODE_LOSS] = {decode, f->decode_loss, cell, e * e},
        [EXF_FOLD_NORMS] = {prefill || decode, f->t->expert_norms, row, e},
        [EXF_FOLD_COSINE] = {prefill || decode, f->t->cosine, cell, e * e},
        [EXF_FOLD_RMS] = {prefill || decode, f->t->rms, row, e},
        [EXF_FOLD_RELATIVE_NORMS] = {prefill || decode, f->t->relative_norms, row, e},
        [EXF_FOLD_TARGET_IDS] = {moves, moves ? f->pool->target_ids : NULL, row, e},
        [EXF_FOLD_TARGET_SCALE] = {moves, moves ? f->pool->target_scale : NULL, row, e},
        [EXF_FOLD_MEMBERS] = {given, given ? f->pool->members : NULL, at * members, members},
    };
    *bytes = list[which].read && list[which].array ? 4 * list[which].n : 0; /* float and int32_t */
    return *bytes ? (const char *)list[which].array + 4 * list[which].from : NULL;
}

/* Returns where the array begins among the layer's, each of which begins at a multiple of 16 bytes; EXF_FOLD_LAYER_ARRAYS: the
 * bytes of all. */
static size_t place_of(const exf_fold_rewriter *f, int which)
{
    size_t at = 0, bytes;
    for (int i = 0; i < which; i++) {
        layer_array(f, i, 0, &bytes);
        at += (bytes + 15) / 16 * 16;
    }
    return at;
}

/* Has the layer's arrays brought to the device; those of the layer before were, since the pass waits at a layer's end. */
static void send_layer(exf_fold_rewriter *f, exf_queue *q, int index)
{
    exf_device_fold *d = &f->device_fold;
    size_t bytes;
    if (d->index == index) return;
    for (int i = 0; i < EXF_FOLD_LAYER_ARRAYS; i++) {
        const void *from = layer_array(f, i, index, &bytes);
        if (from) memcpy(d->sent + place_of(f, i), from, bytes);
    }
    d->b->gpu->carry(q, d->tables, d->sent, place_of(f, EXF_FOLD_LAYER_ARRAYS));
    d->index = index;
}

static const void *on_device(const exf_fold_rewriter *f, int which)
{
    size_t bytes;
    return layer_array(f, which, 0, &bytes) ? f->device_fold.tables + place_of(f, which) : NULL;
}

static exf_fold_tables tables_there(const exf_fold_rewriter *f, int coeff, int loss)
{
    return (exf_fold_tables){.coeff = on_device(f, coeff), .loss = on_device(f, loss), .norms = on_device(f, EXF_FOLD_NORMS),
                             .cosine = on_device(f, EXF_FOLD_COSINE), .rms = on_device(f, EXF_FOLD_RMS),
                             .relative_norms = on_device(f, EXF_FOLD_RELATIVE_NORMS),
                             .n_experts = (int)f->t->shape.n_experts};
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static size_t workspace_bytes(const exf_fold_rewriter *f)
{
    if (!folds_prefill(f->v) && !folds_decode(f->v)) return 0;
    return exf_route_fold_workspace(f->schedule->batch->n_tokens, f->schedule->widest, f->a->top_k,
                                    f->v->by_router ? f->a->n_experts : 0);
}

static size_t prefill_bytes(const exf_fold_rewriter *f)
{
    return folds_prefill(f->v) && f->schedule->prefill_tokens ? f->schedule->batch->n_tokens : 0;
}

/* Return how many numbers V, and theta, have in all layers of the tables. */
static size_t basis_numbers(const exf_fold_rewriter *f)
{
    return (size_t)f->t->n_layers * (size_t)f->t->shape.d_model * (size_t)f->t->norm_head.q;
}

static size_t theta_numbers(const exf_fold_rewriter *f)
{
    return (size_t)f->t->n_layers * (size_t)f->t->shape.n_experts * exf_norm_features(f->t->norm_head.q);
}

static size_t count_bytes(const exf_fold_rewriter *f)
{
    return (size_t)f->n_moe_layers * (1 + (size_t)f->n_counted) * sizeof(uint64_t);
}

uint64_t exf_fold_routes_bytes(const exf_fold_rewriter *f)
{
    uint64_t bytes = workspace_bytes(f) + prefill_bytes(f) + count_bytes(f);
    if (workspace_bytes(f)) bytes += place_of(f, EXF_FOLD_LAYER_ARRAYS);
    if (f->norms) { /* the norm head of all layers, and what it predicts; a rewriter that only counts has no tables either */
        uint64_t slots = (uint64_t)f->schedule->batch->n_tokens * (uint64_t)f->a->top_k;
        bytes += basis_numbers(f) * (sizeof(float) + EXF_NORM_HEAD_ROWS * sizeof(uint16_t)) + theta_numbers(f) * sizeof(float) +
                 slots * (sizeof(float) + sizeof(int32_t)) + sizeof(uint64_t);
    }
    for (int i = 0; i < f->n_counted; i++) {
        const exf_decode_schedule *s = &f->counted[i];
        bytes += (s->n_steps + 1 + s->first[s->n_steps]) * sizeof *s->first;
    }
    return bytes;
}

static exf_code put(void *out, const exf_backend *b, exf_queue *q, const void *from, size_t bytes, exf_err *err)
{
    exf_code rc = b->alloc(out, bytes, 1, "folding", err);
    void *to;
    if (rc != EXF_OK) return rc;
    memcpy(&to, out, sizeof to);
    b->upload(q, to, from, bytes);
    return EXF_OK;
}

/* Brings the norm head of all layers to the device. */
static exf_code put_head(exf_fold_rewriter *f, exf_queue *q, exf_err *err)
{
    exf_device_fold *d = &f->device_fold;
    const exf_norm_head *head = &f->t->norm_head;
    size_t slots = f->schedule->batch->n_tokens * (size_t)f->a->top_k;
    exf_code rc;
    EXF_TRY(put((void *)&d->basis, d->b, q, head->basis, basis_numbers(f) * sizeof *head->basis, err));
    EXF_TRY(d->b->alloc(&d->rows, basis_numbers(f), EXF_NORM_HEAD_ROWS * sizeof *d->rows, "folding", err));
    d->b->gpu->norm_head_rows(q, d->rows, d->basis, f->t->n_layers, f->t->shape.d_model, head->q);
    EXF_TRY(put((void *)&d->theta, d->b, q, head->theta, theta_numbers(f) * sizeof *head->theta, err));
    EXF_TRY(d->b->alloc(&d->norms, slots, sizeof *d->norms, "predicted norms", err));
    EXF_TRY(d->b->alloc(&d->routed, slots, sizeof *d->routed, "predicted norms", err));
    EXF_TRY(d->b->gpu->alloc_staging((void *)&d->bad, sizeof *d->bad, "predicted norms", err));
    *d->bad = UINT64_MAX;
    EXF_TRY(put((void *)&d->bad_there, d->b, q, d->bad, sizeof *d->bad, err));
out:
    return rc;
}

static exf_code put_schedules(exf_fold_rewriter *f, exf_queue *q, exf_err *err)
{
    exf_device_fold *d = &f->device_fold;
    exf_code rc;
    EXF_TRY(exf_mem_new(&d->steps, (size_t)f->n_counted, sizeof *d->steps, "folding", err));
    for (int i = 0; i < f->n_counted; i++) {
        const exf_decode_schedule *s = &f->counted[i];
        exf_route_steps *to = &d->steps[i];
        *to = (exf_route_steps){.n_steps = s->n_steps, .n_rows = s->first[s->n_steps], .first_on_host = s->first,
                                .widest = s->widest};
        EXF_TRY(put((void *)&to->first, d->b, q, s->first, (s->n_steps + 1) * sizeof *s->first, err));
        EXF_TRY(put((void *)&to->row, d->b, q, s->row, to->n_rows * sizeof *s->row, err));
    }
out:
    return rc;
}

/* Marks the rows that are prefill. */
static exf_code put_prefill(exf_fold_rewriter *f, exf_queue *q, exf_err *err)
{
    const exf_batch *batch = f->schedule->batch;
    unsigned char *mark = NULL;
    exf_code rc = exf_mem_new(&mark, batch->n_tokens, 1, "folding", err);
    if (rc == EXF_OK) exf_decode_schedule_mark(f->schedule, mark);
    if (rc == EXF_OK) rc = put(&f->device_fold.prefill, f->device_fold.b, q, mark, batch->n_tokens, err);
    exf_err ignored;
    exf_code finished = f->device_fold.b->finish(q, rc == EXF_OK ? err : &ignored); /* before the host's array is freed */
    exf_mem_free(mark);
    return rc == EXF_OK ? finished : rc;
}

static exf_code allocate(exf_fold_rewriter *f, exf_err *err)
{
    exf_device_fold *d = &f->device_fold;
    size_t tables = workspace_bytes(f) ? place_of(f, EXF_FOLD_LAYER_ARRAYS) : 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&d->layers, (size_t)f->n_moe_layers, 1, "folding", err));
    EXF_TRY(d->b->alloc(&d->count, count_bytes(f), 1, "folding", err));
    EXF_TRY(d->b->gpu->alloc_staging((void *)&d->counted, count_bytes(f), "folding", err));
    if (workspace_bytes(f)) EXF_TRY(d->b->alloc(&d->workspace, workspace_bytes(f), 1, "folding", err));
    if (tables) EXF_TRY(d->b->alloc(&d->tables, tables, 1, "folding", err));
    if (tables) EXF_TRY(d->b->gpu->alloc_staging((void *)&d->sent, tables, "folding", err));
out:
    return rc;
}

exf_code exf_fold_routes_open(exf_fold_rewriter *f, const exf_backend *b, exf_err *err)
{
    exf_queue *q = NULL;
    exf_code rc;
    exf_fold_routes_close(f);
    f->device_fold = (exf_device_fold){.b = b, .index = -1};
    EXF_TRY(b->open(&q, EXF_COMPUTE_F32, err));
    EXF_TRY(allocate(f, err));
    EXF_TRY(put_schedules(f, q, err));
    if (f->norms) EXF_TRY(put_head(f, q, err));
    if (prefill_bytes(f)) EXF_TRY(put_prefill(f, q, err));
    EXF_TRY(b->finish(q, err));
out:
    b->close(q);
    return rc;
}

void exf_fold_routes_close(exf_fold_rewriter *f)
{
    exf_device_fold *d = &f->device_fold;
    if (!d->b) return;
    for (int i = 0; d->steps && i < f->n_counted; i++) {
        d->b->free((void *)(uintptr_t)d->steps[i].first);
        d->b->free((void *)(uintptr_t)d->steps[i].row);
    }
    void *there[] = {d->tables, d->prefill, d->workspace, d->count, d->basis, d->rows, d->theta, d->norms, d->routed, d->bad_there};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) d->b->free(there[i]);
    if (d->sent) d->b->gpu->free_staging(d->sent);
    if (d->counted) d->b->gpu->free_staging(d->counted);
    if (d->bad) d->b->gpu->free_staging(d->bad);
    exf_mem_free(d->steps);
    exf_mem_free(d->layers);
    memset(d, 0, sizeof *d);
}

/* ---- folding ------------------------------------------------------------------------------------------- */

static exf_fold_status fold_prefill(const exf_fold_rewriter *f, const exf_routes *r, exf_run_routes routes, int index)
{
    const exf_device_fold *d = &f->device_fold;
    routes.norms = f->v->prefill_norms ? d->norms : NULL;
    exf_prefill_call c = {.form = EXF_PREFILL_BY_PAIR, .tables = tables_there(f, EXF_FOLD_PREFILL_COEFF, EXF_FOLD_PREFILL_LOSS),
                          .options = f->v->prefill_options, .keep = f->v->prefill_options.keep, .prefill = d->prefill,
                          .workspace = d->workspace, .widest = f->schedule->widest};
    if (f->v->prefill == EXF_PREFILL_TOP) {
        c.form = EXF_PREFILL_KEPT;
        c.renorms = f->v->renormalise;
    } else if (f->v->prefill == EXF_PREFILL_SKIP) {
        c.form = EXF_PREFILL_ABOVE;
        c.factor = exf_fold_skip_factor(f, index);
        c.tau = exf_fold_skip_threshold(f);
    } else if (f->v->budget) {
        c.form = EXF_PREFILL_BY_BUDGET;
        c.budget = exf_fold_budget_of(f, index);
    } else if (f->v->prefill_projector->apply == EXF_APPLY_JOINTLY) {
        c.form = EXF_PREFILL_JOINED;
    }
    return d->b->gpu->prefill_routes(r->q, &routes, &c);
}

static exf_fold_status fold_decode(const exf_fold_rewriter *f, const exf_routes *r, exf_run_routes routes)
{
    const exf_device_fold *d = &f->device_fold;
    int own = 0; /* its schedule's place among those that are counted */
    while (own + 1 < f->n_counted && &f->counted[own] != f->schedule) own++;
    routes.norms = f->v->decode_norms ? d->norms : NULL;
    routes.routed = routes.norms ? d->routed : NULL;
    exf_steps_call c = {.form = exf_fold_decode_form_of(f->v), .steps = d->steps[own],
                        .tables = tables_there(f, EXF_FOLD_DECODE_COEFF, EXF_FOLD_DECODE_LOSS),
                        .options = exf_fold_decode_options_of(f, on_device(f, EXF_FOLD_MEMBERS)),
                        .target_ids = on_device(f, EXF_FOLD_TARGET_IDS), .target_scale = on_device(f, EXF_FOLD_TARGET_SCALE),
                        .stand_ins = exf_fold_stand_ins_of(f), .members = on_device(f, EXF_FOLD_MEMBERS), .logits = r->logits,
                        .bias = r->bias, .score = f->a->router.score,
                        .drops = f->v->decode == EXF_DECODE_STATIC && f->v->decode_options.drop,
                        .renorms = f->v->outside == EXF_OUTSIDE_RENORMALISED, .workspace = d->workspace};
    return d->b->gpu->step_routes(r->q, &routes, &c);
}

/* ---- counting ------------------------------------------------------------------------------------------ */

void exf_fold_routes_collect(exf_fold_rewriter *f)
{
    exf_device_fold *d = &f->device_fold;
    for (int l = 0; d->layers && l < f->n_moe_layers; l++) {
        const uint64_t *count = d->counted + (size_t)l * (1 + (size_t)f->n_counted);
        for (int i = 0; d->layers[l] && i < f->n_counted; i++) {
            exf_expert_usage *u = &f->usage[i * f->n_moe_layers + l];
            u->tokens += f->counted[i].batch->n_tokens;
            u->executed += count[0];
            u->steps += f->counted[i].n_steps;
            u->distinct += count[1 + i];
        }
        d->layers[l] = 0;
    }
}

exf_code exf_fold_routes_rewrite(void *self, const exf_routes *r, exf_err *err)
{
    exf_fold_rewriter *f = self;
    exf_device_fold *d = &f->device_fold;
    const exf_run_routes routes = {.ids = r->ids, .weights = r->weights, .n_tokens = r->batch->n_tokens, .top_k = r->top_k};
    int index = f->table_of[r->layer], only = f->v ? f->v->only_layer - 1 : -1;
    exf_code rc = EXF_OK;
    if (f->v && d->workspace && index >= 0 && (!r->by_token || f->v->folds_hashed)) {
        send_layer(f, r->q, index);
        if (folds_prefill(f->v) && (only < 0 || only == r->layer))
            EXF_TRY(exf_fold_failed(f, fold_prefill(f, r, routes, index), EXF_FOLD_PHASE_PREFILL, err));
        if (folds_decode(f->v))
            EXF_TRY(exf_fold_failed(f, fold_decode(f, r, routes), EXF_FOLD_PHASE_DECODE, err));
    }
    if (d->bad) d->b->gpu->carry(r->q, d->bad, d->bad_there, sizeof(uint64_t));
    if (r->probe) goto out;
    size_t width = 1 + (size_t)f->n_counted, at = (size_t)r->moe_index * width; /* counts what runs */
    d->b->zero(r->q, d->count + at, width * sizeof *d->count);
    d->b->gpu->count_row_experts(r->q, d->count + at, &routes);
    for (int i = 0; i < f->n_counted; i++)
        d->b->gpu->count_step_experts(r->q, d->count + at + 1 + (size_t)i, &routes, &d->steps[i], r->n_experts);
    d->b->gpu->carry(r->q, d->counted + at, d->count + at, width * sizeof *d->count);
    d->layers[r->moe_index] = 1;
out:
    return rc;
}
