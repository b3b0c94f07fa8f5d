/* accumulate.c - the observer; see accumulate.h. */
#include "accumulate/accumulate_internal.h"

#include "accumulate/layer_record.h"
#include "accumulate/layer_sums_of.h"
#include "base/mem.h"

#include <string.h>

static int wants_vectors(const exf_accumulate_options *o)
{
    return o->diagonal || o->lowrank;
}

/* Returns 1 if vector sums are added up, in a second sweep. */
static int adds_vectors(const exf_accumulate_options *o)
{
    return wants_vectors(o) && !o->basis_only;
}

static int index_of(const exf_accumulator *a, int layer)
{
    int i = 0;
    while (a->layer_number[i] != layer) i++;
    return i;
}

/* Writes a layer to the file, and gives its sums to the consumer; v NULL: it has no vector sums. */
static exf_code put_layer(exf_accumulator *a, int layer, const exf_layer_statistics *s, const exf_vector_sums *v, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!a->options.basis_only) EXF_TRY(exf_statistics_put(&a->writer, layer, s, err));
    if (v) EXF_TRY(exf_statistics_put_vectors(&a->writer, layer, v, err));
    if (v) EXF_TRY(exf_basis_hash(a->basis_hash, layer, v, err));
    if (a->consumer.consume) rc = a->consumer.consume(a->consumer.self, index_of(a, layer), s, err);
out:
    return rc;
}

/* Copies a layer's sums from the resume point to the file. */
static exf_code restore_layer(exf_accumulator *a, int layer, exf_layer_statistics *s, exf_err *err)
{
    exf_vector_sums v = {.n_pairs = 0};
    exf_code rc;
    EXF_TRY(exf_layer_record_get(a->resume, layer, s, a->vectors ? &v : NULL, (int)a->shape.d_model, err));
    EXF_TRY(put_layer(a, layer, s, a->vectors ? &v : NULL, err));
out:
    exf_vector_sums_free(&v);
    return rc;
}

/* Copies the layers that the resume point has done. */
static exf_code restore_layers(exf_accumulator *a, exf_err *err)
{
    exf_layer_statistics s;
    exf_code rc = exf_layer_statistics_new(&s, (int)a->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; rc == EXF_OK && i < a->n_layers && a->layer_number[i] < exf_resume_start(a->resume)->layers_done; i++)
        rc = restore_layer(a, a->layer_number[i], &s, err);
    exf_layer_statistics_free(&s);
    return rc;
}

/* Gives sums that become a layer's the room for its sample. */
static exf_code make_sample(exf_accumulator *a, exf_layer_statistics *s, exf_err *err)
{
    size_t tokens = a->routes.sample.cap;
    return tokens ? exf_route_sample_new(&s->routes, tokens, (int)a->shape.top_k, err) : EXF_OK;
}

static exf_code begin_budgets(exf_accumulator *a, int n_workers, exf_err *err)
{
    size_t tokens = a->sequences.length ? exf_route_sampler_tokens(a->options.route_sample, a->shape.n_tokens) : 0;
    exf_code rc;
    EXF_TRY(exf_stream_energy_new(&a->stream, n_workers, err));
    if (tokens) EXF_TRY(exf_route_sampler_new(&a->routes, tokens, (int)a->shape.top_k, err));
    rc = make_sample(a, &a->sums[0], err);
out:
    return rc;
}

/* Makes the second set of sums. */
static exf_code make_spare(exf_accumulator *a, exf_err *err)
{
    exf_code rc = exf_layer_statistics_new(&a->spare, (int)a->shape.n_experts, err);
    return rc == EXF_OK ? make_sample(a, &a->spare, err) : rc;
}

/* Prepares for one rank's part of the run. */
static exf_code begin_shared(exf_accumulator *a, exf_err *err)
{
    if (a->vectors) exf_vector_accumulator_share(a->vectors, a->shared.ranks, a->first_row);
    exf_route_sampler_share(&a->routes, a->first_row);
    return make_spare(a, err);
}

static exf_code begin(void *self, int n_workers, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc;
    int e = (int)a->shape.n_experts, k = (int)a->shape.top_k;
    EXF_TRY(exf_mem_new(&a->sums, (size_t)n_workers, sizeof *a->sums, "statistics", err));
    EXF_TRY(exf_mem_new(&a->tracker, (size_t)n_workers, sizeof *a->tracker, "statistics", err));
    a->n_workers = n_workers;
    for (int i = 0; i < n_workers; i++) {
        EXF_TRY(exf_layer_statistics_new(&a->sums[i], e, err));
        EXF_TRY(exf_sequence_tracker_new(&a->tracker[i], e, err));
    }
    a->scratch_each =
        a->options.common_input_tokens ? exf_layer_sums_common_input_scratch(e, (int)a->shape.d_model) : (size_t)k * (size_t)k;
    EXF_TRY(exf_mem_new(&a->scratch, (size_t)n_workers, a->scratch_each * sizeof *a->scratch, "Gram scratch", err));
    if (wants_vectors(&a->options))
        EXF_TRY(exf_vector_accumulator_new(&a->vectors, &a->shape, &a->options, &a->sequences, n_workers, err));
    EXF_TRY(begin_budgets(a, n_workers, err));
    if (a->shared.ranks) EXF_TRY(begin_shared(a, err));
    if (a->resume && a->writes) EXF_TRY(restore_layers(a, err));
out:
    return rc;
}

/* Returns 1 if a layer's sums are written while the next layer computes. */
static int puts_late(const exf_accumulator *a)
{
    return a->writes && a->device.b && !a->vectors && !a->shared.ranks;
}

static exf_code layer_begin(void *self, int layer, int moe_index, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc = EXF_OK;
    (void)moe_index;
    a->active = a->first_done = 0;
    for (int i = 0; i < a->n_layers; i++) a->active |= a->layer_number[i] == layer;
    for (int i = 0; i < a->n_workers; i++) {
        if (!puts_late(a)) exf_layer_statistics_zero(&a->sums[i]); /* else writing zeroed them */
        a->tracker[i].open = 0;
    }
    if (!a->active) return EXF_OK;
    if (a->routes.sample.cap) EXF_TRY(exf_route_sampler_choose(&a->routes, &a->sequences, layer, err));
    if (a->vectors) rc = exf_vector_accumulator_begin(a->vectors, layer, err);
out:
    return rc;
}

static exf_code add_pairs(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    const exf_layer_statistics *s = &a->sums[b->worker];
    exf_layer_sums m = exf_layer_sums_of(s);
    exf_code rc;
    if (a->sequences.length)
        EXF_TRY(exf_sequence_tracker_enter(&a->tracker[b->worker], s, b->sequence, b->position, b->n_tokens, err));
    EXF_TRY(exf_layer_sums_add_cpu(&m, s->n_experts, b->top_k, b->d_model, b->n_tokens, b->expert_outputs, b->topk_ids,
                                   b->topk_weights, a->options.weighting, a->scratch + (size_t)b->worker * a->scratch_each, err));
    if (a->vectors) exf_vector_accumulator_sample(a->vectors, b);
out:
    return rc;
}

static exf_code block(void *self, const exf_moe_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc;
    if (!a->active) return EXF_OK;
    EXF_TRY(exf_stream_energy_add(&a->stream, b, err));
    if (b->sweep > 0) return exf_vector_accumulator_add(a->vectors, b, err);
    if (a->routes.sample.n) exf_route_sampler_keep(&a->routes, b);
    if (!a->options.common_input_tokens) return add_pairs(a, b, err);
    exf_layer_sums m = exf_layer_sums_of(&a->sums[b->worker]);
    rc = exf_layer_sums_add_experts_cpu(&m, b->top_k, b->d_model, b->n_tokens, b->expert_outputs, b->topk_ids, b->topk_weights,
                                        err);
out:
    return rc;
}

static exf_code common_input(void *self, const exf_common_input_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    if (!a->active) return EXF_OK;
    const exf_layer_statistics *s = &a->sums[b->worker];
    exf_sequence_tracker *k = &a->tracker[b->worker];
    exf_layer_sums m = exf_layer_sums_of(s);
    exf_code rc = EXF_OK;
    int goes_on = k->open && k->sequence == b->sequence;
    if (a->sequences.length)
        EXF_TRY(exf_sequence_tracker_enter(k, s, b->sequence, goes_on ? k->next_position : 0, b->n_tokens, err));
    rc = exf_layer_sums_add_common_input_cpu(&m, b->n_experts, b->d_model, b->n_tokens, b->outputs, a->options.weighting,
                                    a->scratch + (size_t)b->worker * a->scratch_each, err);
out:
    return rc;
}

/* ---- on a device ----------------------------------------------------------------------- */

static uint64_t device_bytes(const void *self, const exf_backend *b)
{
    const exf_accumulator *a = self;
    return exf_accumulate_device_memory(b, &a->shape, &a->options);
}

static exf_code device_open(void *self, const exf_backend *b, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc;
    if (!a->shared.ranks) EXF_TRY(make_spare(a, err));
    EXF_TRY(exf_stream_energy_open_device(&a->stream, b, err));
    if (a->routes.sample.cap) EXF_TRY(exf_route_sampler_open_device(&a->routes, b, err));
    EXF_TRY(exf_device_sums_open(&a->device, b, (int)a->shape.n_experts, a->options.weighting, a->sequences.length != NULL,
                                 a->options.common_input_tokens > 0, err));
    if (a->vectors) EXF_TRY(exf_vector_accumulator_open_device(a->vectors, b, err));
out:
    return rc;
}

static exf_code device_block(void *self, const exf_device_block *b, exf_err *err)
{
    exf_accumulator *a = self;
    if (!a->active) return EXF_OK;
    exf_stream_energy_add_device(&a->stream, b);
    if (b->sweep > 0) {
        exf_vector_accumulator_add_device(a->vectors, b);
        return EXF_OK;
    }
    exf_device_sums_add(&a->device, b);
    if (a->routes.sample.n) exf_route_sampler_keep_device(&a->routes, b);
    return a->vectors ? exf_vector_accumulator_sample_device(a->vectors, b, err) : EXF_OK;
}

static exf_code device_common_input(void *self, const exf_device_common_input *c, exf_err *err)
{
    exf_accumulator *a = self;
    (void)err;
    if (a->active) exf_device_sums_add_common_input(&a->device, c);
    return EXF_OK;
}

/* ---- end of a layer ----------------------------------------------------------------- */

static int count_cold(const exf_layer_statistics *s)
{
    int cold = 0;
    for (int e = 0; e < s->n_experts; e++) cold += s->norm_count[e] == 0;
    return cold;
}

/* Adds all workers' sums to the first worker's, once. */
static exf_code end_first_sweep(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (a->first_done) return EXF_OK;
    if (a->device.b) EXF_TRY(exf_device_sums_take(&a->device, &a->sums[0], layer, err));
    EXF_TRY(exf_route_sampler_take_device(&a->routes, err));
    for (int i = 0; i < a->n_workers; i++) {
        rc = exf_sequence_tracker_close(&a->tracker[i], &a->sums[i], err);
        if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
        if (rc != EXF_OK) goto out;
        if (i) EXF_TRY(exf_layer_statistics_merge(&a->sums[0], &a->sums[i], err));
    }
    if (a->routes.sample.n) exf_route_sample_merge(&a->sums[0].routes, &a->routes.sample);
    a->first_done = 1;
out:
    return rc;
}

/* Writes the layer's sums to the file and to the resume point. */
static exf_code put(exf_accumulator *a, int layer, const exf_layer_statistics *s, const exf_vector_sums *v, exf_err *err)
{
    exf_code rc;
    EXF_TRY(put_layer(a, layer, s, v, err));
    if (a->resume) EXF_TRY(exf_layer_record_put(a->resume, layer, s, v, err));
out:
    return rc;
}

/* Writes the spare sums, and zeroes them for the layer after next. */
static exf_code put_spare(void *self, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc = put(a, a->late_layer, &a->spare, NULL, err);
    exf_layer_statistics_zero(&a->spare);
    return rc;
}

/* Writes the spare sums, which are `layer`'s, on a thread of its own: rounding, writing and solving a layer takes about as
 * long as a GPU may need for one.  HDF5 serves one thread at a time: until the wait no other thread uses it. */
static exf_code put_behind(exf_accumulator *a, int layer, exf_err *err)
{
    a->late_layer = layer;
    return exf_background_start(&a->late, put_spare, a, err);
}

/* Takes the total of the layer before, with vectors, and writes it. */
static exf_code finish_vectors(exf_accumulator *a, exf_err *err)
{
    exf_rank_vectors *p = &a->shared_vectors;
    exf_code rc;
    EXF_TRY(exf_rank_vectors_wait(p, err));
    if (p->pending && a->writes) EXF_TRY(put(a, p->layer, &a->spare, &p->sums, err));
out:
    exf_rank_vectors_drop(p);
    return rc;
}

static exf_code sweep_end(void *self, int layer, int moe_index, int sweep, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc = EXF_OK;
    (void)moe_index;
    if (!a->active || sweep > 0) return EXF_OK;
    EXF_TRY(end_first_sweep(a, layer, err));
    if (!a->vectors) goto out;
    EXF_TRY(finish_vectors(a, err)); /* before there are those of this layer */
    EXF_TRY(exf_rank_sums_now(a->shared.ranks, &a->sums[0], err));
    EXF_TRY(exf_vector_accumulator_prepare(a->vectors, &a->sums[0], layer, err));
out:
    return rc;
}

/* Starts writing the layer's sums while the next layer runs, which gets the spare set of sums. */
static exf_code put_late(exf_accumulator *a, int layer, exf_err *err)
{
    exf_layer_statistics sums = a->sums[0];
    exf_code rc = exf_background_wait(&a->late, err);
    if (rc != EXF_OK) return rc;
    a->sums[0] = a->spare;
    a->spare = sums;
    return put_behind(a, layer, err);
}

/* Takes the totals of the layer before, and starts to write them. */
static exf_code finish_shared(exf_accumulator *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_background_wait(&a->late, err));
    if (!exf_rank_sums_pending(&a->shared)) return EXF_OK;
    EXF_TRY(exf_rank_sums_finish(&a->shared, &a->spare, err));
    if (!a->writes) goto out;
    a->spare.routes.n = a->spare.routes.cap; /* all of them: no run has fewer tokens than there is room */
    rc = put_behind(a, a->shared.layer, err);
out:
    return rc;
}

/* Starts sending the layer's vector sums to rank 0 while the next layer runs, which gets the spare set of other sums. */
static exf_code share_vectors(exf_accumulator *a, int layer, exf_err *err)
{
    exf_layer_statistics sums = a->sums[0];
    exf_vector_sums vectors = exf_vector_accumulator_give(a->vectors);
    a->sums[0] = a->spare;
    a->spare = sums;
    return exf_rank_vectors_start(&a->shared_vectors, layer, &vectors, &a->spare, err);
}

/* Starts sending the layer's sums to rank 0 while the next layer runs. */
static exf_code share(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = finish_shared(a, err);
    return rc == EXF_OK ? exf_rank_sums_start(&a->shared, layer, &a->sums[0], err) : rc;
}

exf_code exf_accumulator_settle(exf_accumulator *a, exf_err *err)
{
    exf_code rc = finish_shared(a, err);
    if (rc == EXF_OK) rc = finish_vectors(a, err);
    return rc == EXF_OK ? exf_background_wait(&a->late, err) : rc;
}

static exf_code settle(void *self, int done, exf_err *err)
{
    (void)done;
    return exf_accumulator_settle(self, err);
}

static exf_code layer_end(void *self, int layer, int moe_index, exf_progress *progress, exf_err *err)
{
    exf_accumulator *a = self;
    exf_code rc = EXF_OK;
    (void)moe_index;
    if (!a->active) return EXF_OK;
    EXF_TRY(end_first_sweep(a, layer, err));
    EXF_TRY(exf_stream_energy_take(&a->stream, &a->sums[0], layer, err));
    progress->cold = count_cold(&a->sums[0]);
    if (a->shared.ranks) progress->n_experts = 0; /* one rank's cold experts are not the run's */
    if (a->shared.ranks && !a->vectors) return share(a, layer, err);
    if (puts_late(a)) return put_late(a, layer, err);
    if (a->vectors) rc = exf_vector_accumulator_end(a->vectors, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
    if (rc == EXF_OK && a->shared.ranks) return share_vectors(a, layer, err);
    if (rc == EXF_OK && a->writes)
        rc = put(a, layer, &a->sums[0], a->vectors ? exf_vector_accumulator_sums(a->vectors) : NULL, err);
out:
    return rc;
}

/* ---- the file ------------------------------------------------------------------------ */

static exf_code join_sequences(exf_accumulator *a, const exf_accumulator_plan *plan, exf_err *err)
{
    const exf_sequence_list **lists = NULL;
    exf_code rc = exf_mem_new(&lists, plan->n_parts, sizeof *lists, "sequences", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < plan->n_parts; i++) lists[i] = plan->parts[i].sequences;
    rc = exf_sequence_list_join(&a->sequences, lists, plan->n_parts, err);
    exf_mem_free(lists);
    return rc;
}

exf_code exf_accumulator_new(exf_accumulator **out, const exf_accumulator_plan *plan, exf_err *err)
{
    exf_code rc;
    exf_accumulator *a = NULL;
    *out = NULL;
    EXF_TRY(exf_accumulate_check(plan->options, err));
    EXF_TRY(exf_mem_new(&a, 1, sizeof *a, "accumulator", err));
    a->options = *plan->options;
    a->shape = *plan->shape;
    a->resume = plan->resume;
    a->consumer = plan->consumer;
    a->shared.ranks = a->shared_vectors.ranks = plan->ranks;
    a->first_row = plan->first_row;
    a->observer = (exf_observer){.self = a, .begin = begin, .layer_begin = layer_begin, .block = block, .sweep_end = sweep_end,
                                 .layer_end = layer_end, .settle = settle, .sweeps = adds_vectors(plan->options) ? 2 : 1,
                                 .common_input_tokens = plan->options->common_input_tokens};
    if (plan->options->common_input_tokens) {
        a->observer.common_input = common_input;
        a->observer.device_common_input = device_common_input;
    }
    a->observer.device_open = device_open;
    a->observer.device_block = device_block;
    a->observer.device_sweeps = plan->options->lowrank ? 1 : a->observer.sweeps; /* low-rank sums are added on the host */
    a->observer.device_bytes = device_bytes;
    EXF_TRY(exf_mem_new(&a->layer_number, (size_t)plan->n_layers, sizeof *a->layer_number, "layer numbers", err));
    memcpy(a->layer_number, plan->layer_number, (size_t)plan->n_layers * sizeof *a->layer_number);
    a->n_layers = plan->n_layers;
    EXF_TRY(join_sequences(a, plan, err));
    if (wants_vectors(plan->options) && !a->sequences.length) {
        rc = exf_fail(err, EXF_MODEL, "%s: vector sums need to know the sequences of the data, which captures of version 1 lack",
                      plan->target ? plan->target : "captures");
        goto out;
    }
    a->writes = plan->target != NULL;
    if (a->writes) EXF_TRY(exf_mem_strdup(&a->target, plan->target, "path", err));
    if (a->writes) EXF_TRY(exf_accumulator_start_file(a, plan, err));
    if (a->writes && wants_vectors(plan->options)) EXF_TRY(exf_hash_new(&a->basis_hash, err));
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
    exf_background_end(&a->late);
    exf_rank_vectors_drop(&a->shared_vectors);
    exf_statistics_abort(&a->writer);
    exf_layer_statistics_free(&a->spare);
    exf_device_sums_free(&a->device);
    exf_stream_energy_free(&a->stream);
    exf_route_sampler_free(&a->routes);
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
