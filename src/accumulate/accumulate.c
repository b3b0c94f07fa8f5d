/* accumulate.c - the observer, in the order of the data: blocks of a layer to its sums.
 *
 * Every worker adds up its own blocks in the first sweep; the first worker then gets all sums, from a device's memory too.
 * Vector sums take a second sweep.  What happens to the sums of a finished layer is its sink's (accumulate_sinks.c). */
#include "accumulate/accumulate_internal.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernels/linear/linear.h"

#include <string.h>

/* ---- before the first layer --------------------------------------------------------------------- */

static exf_code open_host(exf_accumulator *a, int n_workers, exf_err *err)
{
    const exf_accumulate_options *o = &a->options;
    exf_code rc;
    int e = (int)a->shape.n_experts, k = (int)a->shape.top_k;
    size_t sampled = a->sequences.length ? exf_route_sampler_tokens(o->route_sample, a->shape.n_tokens) : 0;
    EXF_TRY(exf_mem_new(&a->sums, (size_t)n_workers, sizeof *a->sums, "statistics", err));
    EXF_TRY(exf_mem_new(&a->tracker, (size_t)n_workers, sizeof *a->tracker, "statistics", err));
    a->n_workers = n_workers;
    for (int i = 0; i < n_workers; i++) {
        EXF_TRY(exf_layer_statistics_new(&a->sums[i], e, err));
        EXF_TRY(exf_sequence_tracker_new(&a->tracker[i], e, err));
    }
    a->scratch_each =
        o->common_input_tokens ? exf_layer_sums_common_input_scratch(e, (int)a->shape.d_model) : (size_t)k * (size_t)k;
    EXF_TRY(exf_mem_new(&a->scratch, (size_t)n_workers, a->scratch_each * sizeof *a->scratch, "Gram scratch", err));
    if (exf_wants_vectors(o))
        EXF_TRY(exf_vector_accumulator_new(&a->vectors, &a->shape, o, &a->sequences, n_workers, a->ranks, a->own, err));
    EXF_TRY(exf_stream_energy_new(&a->stream, n_workers, err));
    if (sampled) EXF_TRY(exf_route_sampler_new(&a->routes, sampled, k, o->basis_only ? 0 : exf_head_directions(&a->shape, o), err));
    if (a->ranks) exf_route_sampler_share(&a->routes, a->own.first);
    EXF_TRY(exf_accumulator_make_sample(a, &a->sums[0], err));
    for (int i = 1; i < n_workers; i++)
        EXF_TRY(exf_norm_sums_new(&a->sums[i].norms, e, (int)a->shape.d_model, exf_head_directions(&a->shape, o), err));
    if (o->norm_head && !o->basis)
        EXF_TRY(exf_norm_sampler_new(&a->norms, &a->shape, exf_head_directions(&a->shape, o), a->own, err));
    if (o->norm_head) EXF_TRY(exf_blas_reserve_cpu(n_workers > o->helpers ? n_workers : o->helpers, err));
    EXF_TRY(exf_sink_open(a, err));
    if (a->resume && a->target) EXF_TRY(exf_accumulator_restore(a, err));
out:
    return rc;
}

static uint64_t count_device_bytes(const void *self, const exf_backend *b)
{
    const exf_accumulator *a = self;
    return exf_accumulate_device_memory(b, &a->shape, &a->options);
}

static exf_code open_device(exf_accumulator *a, const exf_backend *b, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_stream_energy_open_device(&a->stream, b, err));
    if (a->routes.sample.cap) EXF_TRY(exf_route_sampler_open_device(&a->routes, b, err));
    EXF_TRY(exf_device_sums_open(&a->device, b, (int)a->shape.n_experts, a->options.weighting, &a->sequences, a->first_sequence,
                                 a->options.common_input_tokens > 0, err));
    if (a->options.cross_check) EXF_TRY(exf_device_sums_check(&a->device, (int)a->shape.top_k, (int)a->shape.d_model, err));
    if (a->vectors) EXF_TRY(exf_vector_accumulator_open_device(a->vectors, b, err));
    if (a->norms.basis) EXF_TRY(exf_norm_sampler_open_device(&a->norms, a->ranks, b, err));
    if (a->options.norm_head && !a->options.basis_only)
        EXF_TRY(exf_device_norms_open(&a->device_norms, b, (int)a->shape.n_experts, (int)a->shape.top_k, (int)a->shape.d_model,
                                      exf_head_directions(&a->shape, &a->options), err));
    rc = exf_sink_open_device(a, err);
out:
    return rc;
}

static exf_code begin_pass(void *self, int n_workers, const exf_backend *gpu, exf_err *err)
{
    exf_code rc = open_host(self, n_workers, err);
    return rc == EXF_OK && gpu ? open_device(self, gpu, err) : rc;
}

/* ---- a layer ---------------------------------------------------------------------------------------- */

static int accumulates(const exf_accumulator *a, int layer)
{
    int all = 0;
    for (int i = 0; i < a->n_layers; i++) all |= a->layer_number[i] == layer;
    return all;
}

/* Returns the next layer that is accumulated, -1: there is none. */
static int layer_after(const exf_accumulator *a, int layer)
{
    int next = -1;
    for (int i = 0; i < a->n_layers; i++)
        if (a->layer_number[i] > layer && (next < 0 || a->layer_number[i] < next)) next = a->layer_number[i];
    return next;
}

static exf_code begin_inputs(exf_accumulator *a, int layer, exf_err *err)
{
    return accumulates(a, layer) ? exf_norm_sampler_begin(&a->norms, &a->sequences, layer, layer_after(a, layer), err) : EXF_OK;
}

static exf_code keep_input(void *self, const exf_input_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    (void)err;
    if (!accumulates(a, b->layer)) return EXF_OK;
    if (b->q)
        exf_norm_sampler_keep_device(&a->norms, b);
    else
        exf_norm_sampler_keep(&a->norms, b);
    return EXF_OK;
}

/* Gives the directions of the norm head to a device. */
static void send_directions(exf_accumulator *a)
{
    if (a->device_norms.b) exf_device_norms_begin(&a->device_norms, a->sums[0].norms.basis);
}

/* Finds the directions of the norm head. */
static exf_code end_inputs(exf_accumulator *a, int layer, struct exf_queue *q, exf_err *err)
{
    int helpers = a->n_workers > a->options.helpers ? a->n_workers : a->options.helpers;
    exf_code rc;
    if (!a->active) return EXF_OK;
    EXF_TRY(exf_norm_sampler_find(&a->norms, &a->sums[0].norms, layer, a->ranks, q, helpers, err));
    send_directions(a);
out:
    return rc;
}

/* Takes the directions of the norm head from the basis that the run was given. */
static exf_code take_directions(exf_accumulator *a, int layer, exf_err *err)
{
    const exf_accumulate_options *o = &a->options;
    exf_norm_sums given = {.q = 0}, *to = &a->sums[0].norms;
    exf_code rc;
    EXF_TRY(exf_basis_get_norms(o->basis, layer, &given, err));
    if (given.q != to->q) {
        rc = exf_fail(err, EXF_FORMAT, "%s: layer %d has %d directions of a norm head, the run %d", exf_h5_path(o->basis->h), layer,
                      given.q, to->q);
        goto out;
    }
    exf_norm_sums_set_basis(to, given.basis);
    send_directions(a);
out:
    exf_norm_sums_free(&given);
    return rc;
}

static exf_code begin_layer(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    a->active = accumulates(a, layer);
    a->first_done = 0;
    for (int i = 0; i < a->n_workers; i++) {
        if (i) exf_layer_statistics_zero(&a->sums[i]); /* the first worker's are: the sink took what they had */
        a->tracker[i].open = a->tracker[i].in_half = 0;
    }
    if (!a->active) return EXF_OK;
    if (a->routes.sample.cap) EXF_TRY(exf_route_sampler_choose(&a->routes, &a->sequences, layer, layer_after(a, layer), err));
    if (a->options.norm_head && a->options.basis) EXF_TRY(take_directions(a, layer, err));
    if (a->vectors) rc = exf_vector_accumulator_begin(a->vectors, layer, layer_after(a, layer), err);
out:
    return rc;
}

/* Returns which half a sequence of this rank's part is of. */
static int half_of(const exf_accumulator *a, size_t sequence)
{
    return exf_sequence_half(&a->sequences, a->first_sequence + sequence);
}

static exf_code add_pairs(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    const exf_layer_statistics *s = &a->sums[b->worker];
    exf_layer_sums m = exf_layer_sums_of(s);
    exf_code rc;
    if (a->sequences.length)
        EXF_TRY(exf_sequence_tracker_enter(&a->tracker[b->worker], s, b->sequence, half_of(a, b->sequence), b->position,
                                           b->n_tokens, err));
    EXF_TRY(exf_layer_sums_add_cpu(&m, s->n_experts, b->top_k, b->d_model, b->n_tokens, b->expert_outputs, b->topk_ids,
                                   b->topk_weights, a->options.weighting, a->scratch + (size_t)b->worker * a->scratch_each, err));
    if (a->vectors) exf_vector_accumulator_sample(a->vectors, b);
out:
    return rc;
}

static exf_code add_host_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_stream_energy_add(&a->stream, b, err));
    if (b->sweep > 0) return exf_vector_accumulator_add(a->vectors, b, err);
    if (a->sums[0].norms.known && !a->options.basis_only)
        EXF_TRY(exf_norm_sums_add(&a->sums[b->worker].norms, a->sums[0].norms.basis, b, err));
    if (a->routes.sample.n) exf_route_sampler_keep(&a->routes, b, a->sums[0].norms.basis);
    if (!a->options.common_input_tokens) return add_pairs(a, b, err);
    exf_layer_sums m = exf_layer_sums_of(&a->sums[b->worker]);
    rc = exf_layer_sums_add_experts_cpu(&m, b->top_k, b->d_model, b->n_tokens, b->expert_outputs, b->topk_ids, b->topk_weights,
                                        err);
out:
    return rc;
}

static exf_code add_host_common_input(exf_accumulator *a, const exf_common_input_block *b, exf_err *err)
{
    const exf_layer_statistics *s = &a->sums[b->worker];
    exf_sequence_tracker *k = &a->tracker[b->worker];
    exf_layer_sums m = exf_layer_sums_of(s);
    exf_code rc = EXF_OK;
    int goes_on = k->open && k->sequence == b->sequence;
    if (a->sequences.length)
        EXF_TRY(exf_sequence_tracker_enter(k, s, b->sequence, half_of(a, b->sequence), goes_on ? k->next_position : 0, b->n_tokens,
                                           err));
    EXF_TRY(exf_layer_sums_add_common_input_cpu(&m, b->n_experts, b->d_model, b->n_tokens, b->outputs, a->options.weighting,
                                                a->scratch + (size_t)b->worker * a->scratch_each, err));
    if (!a->options.bare_router) goto out;
    exf_bare_tokens t = {.n = b->n_tokens, .top_k = b->top_k, .d_model = b->d_model, .renormalises = a->options.bare_router > 1,
                         .row = b->row, .logits = b->router_logits, .outputs = b->outputs};
    rc = exf_bare_sums_add(s, &t, err);
out:
    return rc;
}

/* Returns tokens [at, at + n) of a block. */
static exf_moe_block part_of(const exf_moe_block *b, size_t at, int n)
{
    size_t slot = at * (size_t)b->top_k, h = (size_t)b->d_model;
    exf_number number = b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
    exf_moe_block part = *b;
    part.row += at;
    part.n_tokens = n;
    part.moe_input = exf_matrix_at((exf_matrix){b->moe_input, number}, at * h).p;
    part.expert_outputs = exf_matrix_at((exf_matrix){b->expert_outputs, number}, slot * h).p;
    part.router_ids += slot;
    part.router_weights += slot;
    part.topk_ids += slot;
    part.topk_weights += slot;
    part.slot_logits += slot;
    return part;
}

/* Adds pair sums and, where it is wanted, the norm head's, which reads the norms that the others took; keeps sampled routes. */
static void add_device_pairs(exf_accumulator *a, const exf_moe_block *b)
{
    exf_device_norms *norms = &a->device_norms;
    if (!norms->b) {
        exf_device_sums_add(&a->device, b);
        if (a->routes.sample.n) exf_route_sampler_keep_device(&a->routes, b, NULL, NULL);
        return;
    }
    for (int at = 0; at < b->n_tokens; at += EXF_NORM_TOKENS) {
        exf_moe_block part = part_of(b, (size_t)at, b->n_tokens - at < EXF_NORM_TOKENS ? b->n_tokens - at : EXF_NORM_TOKENS);
        a->device.sq = norms->sq;
        exf_device_sums_add(&a->device, &part);
        exf_device_norms_add(norms, &part);
        if (a->routes.sample.n) exf_route_sampler_keep_device(&a->routes, &part, norms->sums.projected, norms->sums.norm);
    }
}

static void add_device_block(exf_accumulator *a, const exf_moe_block *b)
{
    exf_stream_energy_add_device(&a->stream, b);
    if (b->sweep > 0) {
        exf_vector_accumulator_add_device(a->vectors, b);
        return;
    }
    add_device_pairs(a, b);
    if (a->vectors) exf_vector_accumulator_sample_device(a->vectors, b);
}

static exf_code add_block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    if (!a->active) return EXF_OK;
    if (!b->q) return add_host_block(a, b, err);
    add_device_block(a, b);
    return EXF_OK;
}

static exf_code add_common_input(void *self, const exf_common_input_block *c, exf_err *err)
{
    exf_accumulator *a = self;
    if (!a->active) return EXF_OK;
    if (!c->q) return add_host_common_input(a, c, err);
    exf_device_sums_add_common_input(&a->device, c);
    if (!a->options.bare_router) return EXF_OK;
    return exf_bare_sums_add_device(&a->sums[0], a->device.b, c, (int)a->shape.top_k, a->options.bare_router > 1, err);
}

/* ---- the end of a sweep and of a layer ------------------------------------------------------------ */

/* Adds all workers' sums to the first worker's, once. */
static exf_code end_first_sweep(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (a->first_done) return EXF_OK;
    if (a->device.b) EXF_TRY(exf_device_sums_take(&a->device, &a->sums[0], layer, err));
    if (a->device_norms.b) EXF_TRY(exf_device_norms_take(&a->device_norms, &a->sums[0].norms, layer, err));
    EXF_TRY(exf_route_sampler_take_device(&a->routes, err));
    for (int i = 0; i < a->n_workers; i++) {
        rc = exf_sequence_tracker_end(&a->tracker[i], &a->sums[i], err);
        if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
        if (rc != EXF_OK) goto out;
        if (i) EXF_TRY(exf_layer_statistics_merge(&a->sums[0], &a->sums[i], err));
    }
    if (a->routes.sample.n) exf_route_sample_merge(&a->sums[0].routes, &a->routes.sample);
    a->first_done = 1;
out:
    return rc;
}

static exf_code end_sweep(exf_accumulator *a, int layer, int sweep, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!a->active || sweep > 0) return EXF_OK;
    EXF_TRY(end_first_sweep(a, layer, err));
    if (!a->vectors) goto out;
    if (a->sink->between) EXF_TRY(a->sink->between(a, err));
    EXF_TRY(exf_vector_accumulator_prepare(a->vectors, &a->sums[0], layer, err));
out:
    return rc;
}

static exf_code end_layer(exf_accumulator *a, int layer, exf_progress *progress, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!a->active) return EXF_OK;
    EXF_TRY(end_first_sweep(a, layer, err));
    EXF_TRY(exf_stream_energy_take(&a->stream, &a->sums[0], layer, err));
    progress->cold = 0;
    for (int e = 0; e < a->sums[0].n_experts; e++) progress->cold += a->sums[0].norm_count[e] == 0;
    if (a->ranks) progress->n_experts = 0; /* one rank's cold experts are not the run's */
    if (a->vectors && a->sink->ready) EXF_TRY(a->sink->ready(a, err));
    if (a->vectors) rc = exf_vector_accumulator_end(a->vectors, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
    if (rc == EXF_OK) rc = a->sink->take(a, layer, err);
out:
    return rc;
}

static exf_code observe_moment(void *self, const exf_moment *m, exf_err *err)
{
    switch (m->at) {
    case EXF_AT_INPUTS_BEGIN: return begin_inputs(self, m->layer, err);
    case EXF_AT_LAYER_BEGIN: return begin_layer(self, m->layer, err);
    case EXF_AT_INPUTS_END: return end_inputs(self, m->layer, m->q, err);
    case EXF_AT_SWEEP_END: return end_sweep(self, m->layer, m->sweep, err);
    case EXF_AT_LAYER_END: return end_layer(self, m->layer, m->progress, err);
    default: return EXF_OK;
    }
}

static exf_code settle_layers(void *self, int done, exf_err *err)
{
    return exf_accumulator_settle(self, done, err);
}

/* ---- making an accumulator ------------------------------------------------------------------------ */

/* Finds the sequence with which this rank's rows begin. */
static exf_code find_first_sequence(exf_accumulator *a, exf_err *err)
{
    const exf_sequence_list *s = &a->sequences;
    size_t row = 0, i = 0;
    if (!s->length) return EXF_OK;
    while (row < a->own.first && i < s->n) row += (size_t)s->length[i++];
    a->first_sequence = i;
    if (row == a->own.first) return EXF_OK;
    return exf_fail(err, EXF_INTERNAL, "rows from %zu on begin no sequence of the run, whose %zu sequences have %lld tokens",
                    a->own.first, s->n, (long long)a->shape.n_tokens);
}

exf_code exf_accumulator_new(exf_accumulator **out, const exf_accumulator_plan *plan, exf_err *err)
{
    exf_code rc;
    exf_accumulator *a = NULL;
    const exf_accumulate_options *o = plan->options;
    int common_input = o->common_input_tokens > 0, sweeps = exf_accumulate_sweeps(o);
    *out = NULL;
    EXF_TRY(exf_accumulate_check(o, err));
    EXF_TRY(exf_mem_new(&a, 1, sizeof *a, "accumulator", err));
    exf_worker_open(&a->layer_thread);
    exf_worker_open(&a->write_thread);
    exf_worker_open(&a->consumer_thread);
    exf_worker_open(&a->record_thread);
    a->options = *o;
    a->shape = *plan->shape;
    a->resume = plan->resume;
    a->consumer = plan->consumer;
    a->first_record = exf_accumulator_first_record(a);
    a->record_ratio = 2.5;
    a->ranks = plan->ranks;
    a->own = plan->own;
    a->observer = (exf_observer){
        .self = a, .sweeps = sweeps, .common_input_tokens = o->common_input_tokens,
        .wants_router_logits = o->bare_router, .wants_slot_logits = o->norm_head && !o->basis_only,
        .reads_device = 1, .begin = begin_pass, .device_bytes = count_device_bytes, .at = observe_moment,
        .input = o->norm_head && !o->basis ? keep_input : NULL, .block = add_block,
        .common_input = common_input ? add_common_input : NULL, .settle = settle_layers};
    EXF_TRY(exf_mem_new(&a->layer_number, (size_t)plan->n_layers, sizeof *a->layer_number, "layer numbers", err));
    memcpy(a->layer_number, plan->layer_number, (size_t)plan->n_layers * sizeof *a->layer_number);
    a->n_layers = plan->n_layers;
    EXF_TRY(exf_facts_join_sequences(&a->sequences, plan->parts, plan->n_parts, err));
    EXF_TRY(find_first_sequence(a, err));
    if (exf_wants_vectors(o) && !a->sequences.length) {
        rc = exf_fail(err, EXF_MODEL, "%s: vector sums need to know the sequences of the data, which captures of version 1 lack",
                      plan->target ? plan->target : "captures");
        goto out;
    }
    if (plan->target) {
        EXF_TRY(exf_mem_strdup(&a->target, plan->target, "path", err));
        EXF_TRY(exf_accumulator_start_file(a, plan, err));
        if (exf_wants_basis(o)) EXF_TRY(exf_hash_new(&a->basis_hash, err));
    }
out:
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

void exf_accumulator_free(exf_accumulator *a)
{
    if (!a) return;
    exf_worker_close(&a->layer_thread);
    exf_worker_close(&a->write_thread);
    exf_worker_close(&a->consumer_thread);
    exf_worker_close(&a->record_thread);
    exf_statistics_abort(&a->writer);
    for (int i = 0; i < EXF_MOST_WAITING; i++) {
        exf_vector_sums_free(&a->waiting[i].vectors);
        exf_layer_statistics_free(&a->waiting[i].sums);
    }
    exf_device_sums_free(&a->device);
    exf_stream_energy_free(&a->stream);
    exf_route_sampler_free(&a->routes);
    exf_norm_sampler_free(&a->norms);
    exf_device_norms_free(&a->device_norms);
    for (int i = 0; i < a->n_workers; i++) {
        exf_layer_statistics_free(&a->sums[i]);
        exf_sequence_tracker_free(&a->tracker[i]);
    }
    exf_vector_accumulator_free(a->vectors);
    exf_hash_free(a->basis_hash);
    exf_mem_free(a->target);
    exf_sequence_list_free(&a->sequences);
    exf_mem_free(a->layer_number);
    exf_mem_free(a->sums);
    exf_mem_free(a->tracker);
    exf_mem_free(a->scratch);
    exf_mem_free(a);
}
