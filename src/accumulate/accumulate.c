/* accumulate.c - the observer: shows the chapters what it is shown, and follows a layer from its beginning to the end of its sums.
 *
 * Every worker adds up its own blocks in the first sweep; the first worker then gets all sums, from a device's memory too.
 * Vector sums take a second sweep.  A finished layer's sums go through a queue (accumulate_queue.c). */
#include "accumulate/accumulate_internal.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* ---- before the first layer --------------------------------------------------------------------- */

static exf_code begin_pass(void *self, int n_workers, const exf_backend *gpu, exf_err *err)
{
    exf_accumulator *a = self;
    const exf_accumulate_options *o = &a->options;
    int e = (int)a->shape.n_experts, k = (int)a->shape.top_k, h = (int)a->shape.d_model, common_input = o->common_input_tokens > 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&a->sums, (size_t)n_workers, sizeof *a->sums, "statistics", err));
    a->n_workers = n_workers;
    for (int i = 0; i < n_workers; i++) EXF_TRY(exf_layer_statistics_new(&a->sums[i], e, err));
    EXF_TRY(exf_mem_new(&a->stream.worker, (size_t)n_workers, sizeof *a->stream.worker, "energy of the stream", err));
    a->scratch_each = common_input ? exf_layer_sums_common_input_scratch(e, h) : (size_t)(k * k);
    EXF_TRY(exf_mem_new(&a->scratch, (size_t)n_workers, a->scratch_each * sizeof *a->scratch, "Gram scratch", err));
    EXF_TRY(exf_sequences_begin_pass(a, err));
    if (o->norm_head) EXF_TRY(exf_norms_begin_pass(a, err));
    EXF_TRY(exf_routes_begin_pass(a, err));
    if (exf_wants_vectors(o)) EXF_TRY(exf_vectors_begin_pass(a, err));
    EXF_TRY(exf_accumulator_make_sample(a, &a->sums[0], err));
    EXF_TRY(exf_accumulator_open_queue(a, gpu != NULL, err));
    if (a->resume && a->target) EXF_TRY(exf_accumulator_restore(a, err));
    if (!gpu) goto out;
    a->stream.b = gpu;
    EXF_TRY(gpu->alloc(&a->stream.device, 2, sizeof *a->stream.device, "energy of the stream", err));
    EXF_TRY(exf_device_sums_open(&a->device, gpu, e, o->weighting, &a->sequences, a->first_sequence, common_input, err));
    if (o->cross_check) EXF_TRY(exf_cross_check_open(&a->device.check, gpu, e, k, h, common_input, o->weighting, err));
    if (o->norm_head) EXF_TRY(exf_norms_open_device(a, gpu, err));
    EXF_TRY(exf_routes_open_device(a, gpu, err));
    if (a->vectors) EXF_TRY(exf_vectors_open_device(a, gpu, err));
    rc = exf_accumulator_pin_queue(a, err);
out:
    return rc;
}

uint64_t exf_accumulate_device_memory(const exf_backend *b, const exf_run_shape *s, const exf_accumulate_options *o)
{
    if (!b->gpu) return 0;
    return 2 * sizeof(exf_row_energies) + exf_pairs_device_bytes(b, s, o) + exf_norms_device_bytes(s, o) +
           exf_routes_device_bytes(s, o) + (exf_wants_vectors(o) ? exf_vectors_device_bytes(s, o) : 0);
}

exf_demand exf_accumulate_demand(const exf_backend *b, const exf_run_shape *s, const exf_accumulate_options *o)
{
    int gpu = b->gpu != NULL;
    return (exf_demand){.lanes = 1, .common_input = o->common_input_tokens, .logits = o->bare_router || (o->norm_head && !gpu),
                        .slot_logits = o->norm_head && gpu, .sweeps = 1 + exf_wants_vectors(o),
                        .observers = exf_accumulate_device_memory(b, s, o)};
}

static uint64_t count_device_bytes(const void *self, const exf_backend *b)
{
    const exf_accumulator *a = self;
    return exf_accumulate_device_memory(b, &a->shape, &a->options);
}

/* ---- a layer ---------------------------------------------------------------------------------------- */

static exf_code add_input(void *self, const exf_input_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    (void)err;
    if (a->active && b->q)
        exf_norm_sampler_keep_device(&a->norms, b);
    else if (a->active)
        exf_norm_sampler_keep(&a->norms, b);
    return EXF_OK;
}

static exf_code add_common_input(void *self, const exf_common_input_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    return a->active ? exf_common_input_add_block(a, b, err) : EXF_OK;
}

/* Returns tokens [at, at + n) of a block in GPU memory. */
static exf_moe_block part_of(const exf_moe_block *b, size_t at, int n)
{
    size_t slot = at * (size_t)b->top_k, h = (size_t)b->d_model;
    exf_number number = b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
    exf_moe_block part = *b;
    part.row += at;
    part.n_tokens = n;
    part.moe_input = exf_matrix_at((exf_matrix){b->moe_input, number}, at * h).p;
    part.expert_outputs = exf_matrix_at(exf_outputs_of(b), slot * h).p;
    part.router_ids += slot;
    part.router_weights += slot;
    part.topk_ids += slot;
    part.topk_weights += slot;
    if (b->slot_logits) part.slot_logits += slot;
    if (b->stream) part.stream += at * (size_t)b->stream_width;
    return part;
}

/* Shows a block to the chapters, in GPU memory at most EXF_DEVICE_TOKENS at a time, for which they have memory there.  Their order
 * counts on a GPU: the norm head reads the squared norms that pairs compute, and the sample of routes the projections of the norm
 * head. */
static exf_code add_block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc = EXF_OK;
    for (int at = 0, n; a->active && at < b->n_tokens; at += n) {
        n = b->q && b->n_tokens - at > EXF_DEVICE_TOKENS ? (int)EXF_DEVICE_TOKENS : b->n_tokens - at;
        exf_moe_block part = b->q ? part_of(b, (size_t)at, n) : *b;
        EXF_TRY(exf_stream_add_block(a, &part, err));
        if (b->sweep == 0) {
            EXF_TRY(exf_pairs_add_block(a, &part, err));
            EXF_TRY(exf_norms_add_block(a, &part, err));
            exf_routes_add_block(a, &part);
        }
        if (a->vectors) EXF_TRY(exf_vectors_add_block(a, &part, err));
    }
out:
    return rc;
}

/* ---- steps of a layer ------------------------------------------------------------------------------- */

static exf_code begin_layer(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc;
    for (int i = 1; i < a->n_workers; i++) exf_layer_statistics_zero(&a->sums[i]); /* the queue took what the first worker had */
    for (int i = 0; i < a->n_workers; i++) a->tracker[i].open = a->tracker[i].in_half = 0;
    EXF_TRY(exf_routes_begin_layer(a, layer, err));
    if (a->vectors) rc = exf_vectors_begin_layer(a, layer, err);
out:
    return rc;
}

/* Adds all workers' sums to the first worker's, and readies what a second sweep adds. */
static exf_code end_first_sweep(exf_accumulator *a, int layer, exf_err *err)
{
    exf_ranks_array list[EXF_MOST_LAYER_ARRAYS];
    exf_code rc;
    if (a->device.b) EXF_TRY(exf_device_sums_take(&a->device, &a->sums[0], layer, err));
    EXF_TRY(exf_sequences_end_sweep(a, layer, err));
    if (a->device_norms.b) EXF_TRY(exf_device_norms_take(&a->device_norms, &a->sums[0].norms, layer, err));
    EXF_TRY(exf_routes_end_sweep(a, err));
    for (int i = 1; i < a->n_workers; i++) EXF_TRY(exf_layer_statistics_merge(&a->sums[0], &a->sums[i], err));
    if (!a->vectors) goto out;
    /* In host memory the next vector sums are made now, so that all layers before must have left it; they are chosen from the
     * scalar sums of all ranks. */
    if (a->ranks && !a->device.b) EXF_TRY(exf_accumulator_wait(a, 0, err));
    EXF_TRY(exf_ranks_sum(a->ranks, list, exf_layer_rank_arrays(list, &a->sums[0], NULL), err));
    rc = exf_vectors_begin_second_sweep(a, layer, err);
out:
    return rc;
}

static exf_code complete_sums(exf_accumulator *a, const exf_moment *m, exf_err *err)
{
    const exf_layer_statistics *s = &a->sums[0];
    exf_code rc;
    m->progress->cold = 0;
    for (int e = 0; e < s->n_experts; e++) m->progress->cold += s->norm_count[e] == 0;
    if (a->ranks) m->progress->n_experts = 0; /* one rank's cold experts are not the run's */
    if (a->vectors && a->depth) EXF_TRY(exf_accumulator_wait(a, a->depth - 1, err)); /* vector sums come to the host now */
    EXF_TRY(exf_stream_end_layer(a, m->layer, err));
    if (a->vectors) EXF_TRY(exf_vectors_end_layer(a, m->layer, err));
    rc = exf_accumulator_put(a, m->layer, err);
out:
    return rc;
}

static exf_code follow_layer(void *self, const exf_moment *m, exf_err *err)
{
    exf_accumulator *a = self;
    if (m->at == EXF_AT_INPUTS_BEGIN || m->at == EXF_AT_LAYER_BEGIN) {
        a->active = 0;
        a->next_layer = -1;
        for (int i = 0; i < a->n_layers; i++) {
            int layer = a->layer_number[i];
            a->active |= layer == m->layer;
            if (layer > m->layer && (a->next_layer < 0 || layer < a->next_layer)) a->next_layer = layer;
        }
    }
    if (!a->active) return EXF_OK;
    switch (m->at) {
    case EXF_AT_INPUTS_BEGIN: return exf_norm_sampler_begin(&a->norms, &a->sequences, m->layer, a->next_layer, err);
    case EXF_AT_LAYER_BEGIN: return begin_layer(a, m->layer, err);
    case EXF_AT_INPUTS_END: return exf_norms_end_inputs(a, m, err);
    case EXF_AT_SWEEP_END: return m->sweep ? EXF_OK : end_first_sweep(a, m->layer, err);
    case EXF_AT_LAYER_END: return complete_sums(a, m, err);
    default: return EXF_OK;
    }
}

/* ---- beginning and end of an accumulator and its file ----------------------------------------------- */

/* Starts the file.  If sequences are known, data facts describe the sequences, not the files that held them. */
static exf_code start_file(exf_accumulator *a, const exf_accumulator_plan *plan, exf_err *err)
{
    exf_code rc;
    exf_provenance own = {0}, origin = {0};
    exf_sequence_list sorted = {.n = 0};
    EXF_TRY(exf_sequence_list_sorted(&sorted, &a->sequences, err));
    EXF_TRY(exf_facts_join(&own, &origin, plan->parts, plan->n_parts, &sorted, 0, err));
    if (a->options.settings) EXF_TRY(exf_provenance_copy(&origin, a->options.settings, err));
    EXF_TRY(exf_accumulate_facts(&own, &a->options, a->shape.top_k, a->shape.d_model, err));
    exf_statistics_header head = {.shape = a->shape, .layer_number = a->layer_number, .n_layers = a->n_layers,
                                  .common_input = a->options.common_input_tokens > 0, .sequences = &sorted, .provenance = &own,
                                  .origin = &origin};
    EXF_TRY(exf_statistics_start(&a->file, plan->target, plan->force, &head, err));
out:
    exf_provenance_free(&own);
    exf_provenance_free(&origin);
    exf_sequence_list_free(&sorted);
    return rc;
}

exf_code exf_accumulator_new(exf_accumulator **out, const exf_accumulator_plan *plan, exf_err *err)
{
    exf_code rc;
    exf_accumulator *a = NULL;
    const exf_accumulate_options *o = plan->options;
    size_t row = 0; /* with which this rank's first sequence begins */
    *out = NULL;
    EXF_TRY(exf_accumulate_check(o, err));
    EXF_TRY(exf_mem_new(&a, 1, sizeof *a, "accumulator", err));
    exf_worker_open(&a->adder);
    exf_worker_open(&a->queue);
    exf_worker_open(&a->beside);
    a->options = *o;
    a->shape = *plan->shape;
    a->resume = plan->resume;
    a->consumer = plan->consumer;
    a->ranks = plan->ranks;
    a->own = plan->own;
    a->mixed = plan->mixed;
    a->observer = (exf_observer){
        .self = a, .sweeps = 1 + exf_wants_vectors(o), .common_input_tokens = o->common_input_tokens,
        .wants_router_logits = o->bare_router != EXF_BARE_NONE, .wants_slot_logits = o->norm_head,
        .reads_device = 1, .begin = begin_pass, .device_bytes = count_device_bytes, .at = follow_layer,
        .input = o->norm_head ? add_input : NULL, .block = add_block,
        .common_input = o->common_input_tokens > 0 ? add_common_input : NULL, .settle = exf_accumulator_settle};
    EXF_TRY(exf_mem_new(&a->layer_number, (size_t)plan->n_layers, sizeof *a->layer_number, "layer numbers", err));
    memcpy(a->layer_number, plan->layer_number, (size_t)plan->n_layers * sizeof *a->layer_number);
    a->n_layers = plan->n_layers;
    EXF_TRY(exf_facts_join_sequences(&a->sequences, plan->parts, plan->n_parts, err));
    for (; a->sequences.length && row < a->own.first && a->first_sequence < a->sequences.n; a->first_sequence++)
        row += (size_t)a->sequences.length[a->first_sequence];
    if (a->sequences.length && row != a->own.first) {
        rc = exf_fail(err, EXF_INTERNAL, "rows from %zu on begin no sequence of the run, whose %zu sequences have %lld tokens",
                      a->own.first, a->sequences.n, (long long)a->shape.n_tokens);
        goto out;
    }
    if (exf_wants_vectors(o) && !a->sequences.length) {
        rc = exf_fail(err, EXF_MODEL, "%s: vector sums need to know the sequences of the data, which captures of version 1 lack",
                      plan->target ? plan->target : "captures");
        goto out;
    }
    if (plan->target) {
        EXF_TRY(exf_mem_strdup(&a->target, plan->target, "path", err));
        EXF_TRY(start_file(a, plan, err));
        if (exf_wants_vectors(o) || o->norm_head) EXF_TRY(exf_hash_new(&a->basis_hash, err));
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

exf_code exf_accumulator_add_facts(exf_accumulator *a, const exf_provenance *p, exf_err *err)
{
    exf_code rc = exf_accumulator_wait(a, 0, err);
    return rc == EXF_OK && a->target ? exf_provenance_copy(&a->file.late, p, err) : rc;
}

exf_code exf_accumulator_commit(exf_accumulator *a, char digest[EXF_SHA256_HEX], exf_err *err)
{
    char basis[EXF_SHA256_HEX]; /* digest of what vector sums were added up over */
    exf_hash *h = a->basis_hash;
    exf_code rc;
    EXF_TRY(exf_accumulator_wait(a, 0, err));
    EXF_TRY(exf_cross_check_finish(&a->device.check, err));
    if (!a->target) return EXF_OK;
    a->basis_hash = NULL;
    if (h) EXF_TRY(exf_hash_end(h, basis, err));
    if (h) EXF_TRY(exf_provenance_add(&a->file.late, err, EXF_BASIS_FACT, "%s", basis));
    rc = exf_statistics_commit(&a->file, digest, err);
out:
    return rc;
}

void exf_accumulator_free(exf_accumulator *a)
{
    if (!a) return;
    exf_worker_close(&a->adder); /* each gives to the next */
    exf_worker_close(&a->queue);
    exf_worker_close(&a->beside);
    exf_statistics_abort(&a->file);
    for (int i = 0; i < EXF_MOST_WAITING; i++) {
        exf_vector_sums_free(&a->waiting[i].vectors);
        exf_layer_statistics_free(&a->waiting[i].sums);
    }
    if (a->stream.b) a->stream.b->free(a->stream.device);
    exf_mem_free(a->stream.worker);
    exf_device_sums_free(&a->device);
    exf_mem_free(a->scratch);
    exf_sequences_end_pass(a);
    exf_norm_sampler_free(&a->norms);
    exf_device_norms_free(&a->device_norms);
    exf_routes_end_pass(a);
    exf_vectors_end_pass(a);
    for (int i = 0; i < a->n_workers; i++) exf_layer_statistics_free(&a->sums[i]);
    exf_hash_free(a->basis_hash);
    exf_mem_free(a->target);
    exf_sequence_list_free(&a->sequences);
    exf_mem_free(a->layer_number);
    exf_mem_free(a->sums);
    exf_mem_free(a);
}
