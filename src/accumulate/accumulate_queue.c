/* accumulate_queue.c - finished layers: their sums go through four stages.
 *
 *   add      of several ranks alone: the sums of all are added up on rank 0
 *   write    into the statistics file
 *   solve    they are given to the consumer
 *   record   into the resume point, where that is worth its time (below)
 *
 * A layer is written, solved and recorded at once, since each takes as long as a GPU may need for a layer.  `depth` says how many
 * finished layers wait while the next one adds up, in sets of sums that they take in turn.  On a CPU it is 0: the next layer begins
 * when the stages are done.  Where the pass runs on a GPU or on several ranks it is 2, so that a layer whose write takes long does
 * not stop the pass; vector sums, up to a gigabyte, have one set in host memory, and are written before the next are copied there.
 * Of several ranks one layer is added up while another is written.
 *
 * All sums are integers, so that neither depth nor number of ranks changes a bit.  HDF5 serves one thread at a time: between the
 * first job of the stages and the wait for the last, no other thread uses the file. */
#include "accumulate/accumulate_internal.h"

#include "base/log.h"

#include <limits.h>
#include <string.h>

/* ---- stages ------------------------------------------------------------------------------------------ */

/* Returns the layer's vector sums; NULL: the run has none. */
static const exf_vector_sums *vectors_of(const exf_finished_layer *l)
{
    return l->a->vectors ? &l->vectors : NULL;
}

static exf_code write_to_file(exf_finished_layer *l, exf_err *err)
{
    exf_accumulator *a = l->a;
    const exf_vector_sums *v = vectors_of(l), none = {.d_model = (int)a->shape.d_model};
    exf_code rc = EXF_OK;
    if (!a->target) return EXF_OK;
    EXF_TRY(exf_statistics_put(&a->file, l->layer, &l->sums, err));
    if (v) EXF_TRY(exf_statistics_put_vectors(&a->file, l->layer, v, err));
    if (a->basis_hash) EXF_TRY(exf_vector_sums_hash_basis(a->basis_hash, l->layer, v ? v : &none, err));
    if (a->basis_hash) EXF_TRY(exf_norm_sums_hash_basis(a->basis_hash, &l->sums.norms, err));
    rc = exf_statistics_layer_done(&a->file, l->layer, err);
out:
    return rc;
}

static exf_code solve(void *self, exf_err *err)
{
    const exf_finished_layer *l = self;
    const exf_layer_consumer *to = &l->a->consumer;
    exf_layer_statistics s = l->sums;
    int i = 0;
    s.vectors = vectors_of(l);
    while (l->a->layer_number[i] != l->layer) i++;
    return to->consume(to->self, i, &s, err);
}

static exf_code record(void *self, exf_err *err)
{
    const exf_finished_layer *l = self;
    return exf_layer_record_put(l->a->resume, l->layer, &l->sums, vectors_of(l), err);
}

/* Writes, solves and records a layer.  A failure of writing comes before those of the others. */
static exf_code complete(exf_finished_layer *l, exf_err *err)
{
    exf_accumulator *a = l->a;
    exf_err ignored;
    exf_code rc = EXF_OK;
    if (a->consumer.consume) rc = exf_worker_give(&a->solver, &l->solve, solve, l, err);
    if (rc == EXF_OK && l->is_recorded) rc = exf_worker_give(&a->recorder, &l->record, record, l, err);
    if (rc == EXF_OK) rc = write_to_file(l, err);
    exf_code solved = exf_worker_wait(&a->solver, 0, rc == EXF_OK ? err : &ignored);
    if (rc == EXF_OK) rc = solved;
    exf_code recorded = exf_worker_wait(&a->recorder, 0, rc == EXF_OK ? err : &ignored);
    return rc == EXF_OK ? recorded : rc;
}

/* Makes the layer's set free for another. */
static void empty(exf_finished_layer *l)
{
    exf_layer_statistics_zero(&l->sums);
    exf_vector_sums_free(&l->vectors);
}

/* Completes a layer on a thread beside the pass. */
static exf_code complete_beside(void *self, exf_err *err)
{
    exf_finished_layer *l = self;
    double begun = exf_clock();
    exf_code rc = complete(l, err);
    empty(l);
    l->seconds = exf_clock() - begun;
    return rc;
}

/* Adds up a layer on rank 0, on a thread beside the pass. */
static exf_code add_ranks(void *self, exf_err *err)
{
    exf_finished_layer *l = self;
    exf_accumulator *a = l->a;
    const exf_vector_sums none = {.n_pairs = 0}, *v = vectors_of(l);
    exf_ranks_array list[EXF_MOST_LAYER_ARRAYS];
    if (v && exf_vector_accumulator_adds_ranks(a->vectors)) v = &none;
    exf_code rc = exf_ranks_sum_beside(a->ranks, list, exf_layer_rank_arrays(list, &l->sums, v), err);
    if (rc == EXF_OK && a->target) return exf_worker_give(&a->writer, &l->write, complete_beside, l, err);
    empty(l);
    return rc;
}

/* ---- the queue --------------------------------------------------------------------------------------- */

/* Waits until every layer has been added up, which counts as waiting for other ranks, then until at most `left` wait to be
 * written, which does not. */
static exf_code wait_for_layers(exf_accumulator *a, int left, exf_err *err)
{
    double begun = exf_clock();
    exf_code rc = exf_worker_wait(&a->adder, 0, err);
    if (a->ranks) exf_ranks_waited(a->ranks, exf_clock() - begun);
    return rc == EXF_OK ? exf_worker_wait(&a->writer, (size_t)left, err) : rc;
}

exf_code exf_accumulator_wait_for_set(exf_accumulator *a, exf_err *err)
{
    return a->depth ? wait_for_layers(a, a->depth - 1, err) : EXF_OK;
}

exf_code exf_accumulator_finish_layers(exf_accumulator *a, exf_err *err)
{
    exf_err ignored;
    exf_code rc = wait_for_layers(a, 0, err);
    exf_code checked = exf_cross_check_finish(&a->device.check, rc == EXF_OK ? err : &ignored);
    return rc == EXF_OK ? checked : rc;
}

/* In host memory the next vector sums are made now, so that all layers before must have left it. */
exf_code exf_accumulator_add_scalars(exf_accumulator *a, exf_err *err)
{
    exf_ranks_array list[EXF_MOST_LAYER_ARRAYS];
    exf_code rc = EXF_OK;
    if (!a->ranks) return EXF_OK;
    if (!a->device.b) rc = wait_for_layers(a, 0, err);
    return rc == EXF_OK ? exf_ranks_sum(a->ranks, list, exf_layer_rank_arrays(list, &a->sums[0], NULL), err) : rc;
}

/* Returns 1 if the layer is recorded as it is written.  Until a point was saved none is; but where layers wait, and the pass took
 * long for one, measured by the last write of its set, this one is and all after it. */
static int is_recorded(exf_accumulator *a, const exf_finished_layer *l)
{
    double now = exf_clock();
    if (a->first_record > l->layer && l->seconds > 0 && now - a->taken > a->record_ratio * l->seconds) a->first_record = l->layer;
    a->taken = now;
    return a->resume && l->layer >= a->first_record;
}

/* Takes the layer's sums and vector sums of the accumulator, which gets zeroed sums for the next layer, and makes others. */
static exf_finished_layer *set_aside(exf_accumulator *a, int layer)
{
    exf_finished_layer *l = &a->waiting[a->turn];
    exf_layer_statistics sums = a->sums[0];
    a->turn = (a->turn + 1) % a->depth;
    a->sums[0] = l->sums;
    l->sums = sums;
    l->layer = layer;
    l->is_recorded = is_recorded(a, l);
    if (!a->vectors) return l;
    exf_vector_sums *v = exf_vector_accumulator_sums(a->vectors);
    l->vectors = *v;
    *v = (exf_vector_sums){.n_pairs = 0};
    return l;
}

exf_code exf_accumulator_put(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!a->depth) {
        exf_finished_layer l = {.a = a, .layer = layer, .sums = a->sums[0]};
        l.is_recorded = is_recorded(a, &l);
        if (a->vectors) l.vectors = *exf_vector_accumulator_sums(a->vectors);
        if (a->target || a->consumer.consume) rc = complete(&l, err);
        exf_layer_statistics_zero(&a->sums[0]);
        return rc;
    }
    rc = exf_accumulator_wait_for_set(a, err);
    if (rc != EXF_OK) return rc;
    exf_finished_layer *l = set_aside(a, layer);
    return a->ranks ? exf_worker_give(&a->adder, &l->add, add_ranks, l, err)
                    : exf_worker_give(&a->writer, &l->write, complete_beside, l, err);
}

exf_code exf_accumulator_restore(exf_accumulator *a, exf_err *err)
{
    exf_finished_layer l = {.a = a};
    exf_vector_sums *v = a->vectors ? &l.vectors : NULL;
    exf_code rc = exf_layer_statistics_new(&l.sums, (int)a->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < a->n_layers && a->layer_number[i] < exf_resume_start(a->resume)->layers_done; i++) {
        l.layer = a->layer_number[i];
        EXF_TRY(exf_layer_record_get(a->resume, l.layer, &l.sums, v, (int)a->shape.d_model, err));
        EXF_TRY(write_to_file(&l, err));
        if (a->consumer.consume) EXF_TRY(solve(&l, err));
        exf_vector_sums_free(&l.vectors);
    }
out:
    exf_vector_sums_free(&l.vectors);
    exf_layer_statistics_free(&l.sums);
    return rc;
}

/* ---- its memory -------------------------------------------------------------------------------------- */

exf_code exf_accumulator_make_sample(const exf_accumulator *a, exf_layer_statistics *s, exf_err *err)
{
    size_t tokens = a->routes.sample.cap;
    exf_code rc = EXF_OK;
    if (tokens) EXF_TRY(exf_route_sample_new(&s->routes, tokens, (int)a->shape.top_k, err));
    if (tokens) EXF_TRY(exf_route_sample_add_head(&s->routes, a->routes.sample.q, err));
    rc = exf_norm_sums_new(&s->norms, s->n_experts, (int)a->shape.d_model, exf_head_directions(&a->shape, &a->options), err);
out:
    return rc;
}

/* Pins the memory of a set, 20 MB where there are 256 experts, on a thread of its own, before a layer waits for it. */
static exf_code pin_set(void *self, exf_err *err)
{
    exf_finished_layer *l = self;
    return exf_device_sums_pin(&l->a->device, 1 + (int)(l - l->a->waiting), &l->sums, err);
}

exf_code exf_accumulator_open_queue(exf_accumulator *a, int on_device, exf_err *err)
{
    exf_code rc = EXF_OK;
    a->depth = a->ranks || (on_device && a->target) ? exf_waiting_layers(&a->options, a->ranks != NULL) : 0;
    for (int i = 0; i < a->depth; i++) {
        a->waiting[i].a = a;
        EXF_TRY(exf_layer_statistics_new(&a->waiting[i].sums, (int)a->shape.n_experts, err));
        EXF_TRY(exf_accumulator_make_sample(a, &a->waiting[i].sums, err));
    }
out:
    return rc;
}

exf_code exf_accumulator_pin_queue(exf_accumulator *a, exf_err *err)
{
    exf_code rc = exf_device_sums_pin(&a->device, 0, &a->sums[0], err);
    for (int i = 0; rc == EXF_OK && i < a->depth; i++)
        rc = exf_worker_give(a->ranks ? &a->adder : &a->writer, a->ranks ? &a->waiting[i].add : &a->waiting[i].write, pin_set,
                             &a->waiting[i], err);
    return rc;
}

/* ---- records of the resume point ---------------------------------------------------------------------
 * A run of seconds ends before its first point is due, and a record is as many bytes as the layer is in the file: none is written
 * until then, unless layers take so long that writing has the time.  The records that the first point lacks come from the file that
 * is being written. */

int exf_accumulator_first_record(const exf_accumulator *a)
{
    int can_read_back = !a->options.common_input_tokens;
    return a->resume && !exf_resume_start(a->resume)->layers_done && can_read_back ? INT_MAX : 0;
}

/* Writes the records of layers below `end`, which are in the file.  They are read into a set of sums that is free, but for their
 * samples of routes. */
static exf_code write_records(exf_accumulator *a, int end, exf_err *err)
{
    exf_layer_statistics *s = a->depth ? &a->waiting[0].sums : &a->sums[0];
    exf_route_sample kept = s->routes;
    exf_vector_sums v = {.n_pairs = 0}, *vectors = a->vectors ? &v : NULL;
    exf_code rc = EXF_OK;
    s->routes = (exf_route_sample){.cap = 0};
    for (int i = 0; i < a->n_layers && a->layer_number[i] < end; i++) {
        EXF_TRY(exf_statistics_get_back(&a->file, a->layer_number[i], &a->sequences, s, vectors, err));
        EXF_TRY(exf_layer_record_put(a->resume, a->layer_number[i], s, vectors, err));
        exf_vector_sums_free(&v);
    }
out:
    exf_vector_sums_free(&v);
    exf_layer_statistics_zero(s);
    exf_route_sample_free(&s->routes);
    s->routes = kept;
    return rc;
}

exf_code exf_accumulator_settle(void *self, int done, exf_err *err)
{
    exf_accumulator *a = self;
    int end = done < a->first_record ? done : a->first_record;
    exf_code rc = exf_accumulator_finish_layers(a, err);
    if (rc == EXF_OK && a->target && end > 0) rc = write_records(a, end, err);
    a->first_record = 0;
    return rc;
}
