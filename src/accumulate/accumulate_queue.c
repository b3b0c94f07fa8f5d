/* accumulate_queue.c - what happens to a layer when its sums are complete; end_layer() tells it.
 *
 * `depth` says how many finished layers wait while the next one adds up, in sets of sums that they take in turn.  On a CPU it is 0:
 * the next layer begins when the last one is done.  Where the pass runs on a GPU or on several ranks it is 2, and a thread ends one
 * layer after the other, so that one whose write takes long does not stop the pass; vector sums, up to a gigabyte, have one set in
 * host memory, and are written before the next are copied there.
 *
 * All sums are integers, so that neither depth nor number of ranks changes a bit.  HDF5 serves one thread at a time: from the first
 * layer in the queue to the wait for the last, no other thread uses the file. */
#include "accumulate/accumulate_internal.h"
#include "accumulate/vectors.h"

#include "base/log.h"

#include <limits.h>
#include <string.h>

/* ---- a layer ----------------------------------------------------------------------------------------- */

/* Returns the layer's vector sums; NULL: the run has none. */
static const exf_vector_sums *vectors_of(const exf_finished_layer *l)
{
    return l->a->vectors ? &l->vectors : NULL;
}

static exf_code write_to_file(exf_finished_layer *l, exf_err *err)
{
    exf_accumulator *a = l->a;
    const exf_vector_sums *v = vectors_of(l), none = {.d_model = (int)a->shape.d_model};
    const exf_norm_sums *s = &l->sums.norms;
    exf_code rc;
    EXF_TRY(exf_statistics_put(&a->file, l->layer, &l->sums, err));
    if (v) EXF_TRY(exf_vector_sums_write(v, a->file.h, l->layer, err));
    if (a->basis_hash) EXF_TRY(exf_vector_sums_hash_basis(a->basis_hash, l->layer, v ? v : &none, err));
    if (a->basis_hash && s->known) {
        EXF_TRY(exf_hash_add_u64(a->basis_hash, (uint64_t)s->q, err));
        EXF_TRY(exf_hash_add(a->basis_hash, s->basis, (size_t)s->d_model * (size_t)s->q * sizeof *s->basis, err));
    }
    rc = exf_statistics_layer_done(&a->file, l->layer, err);
out:
    return rc;
}

/* Gives the sums to the consumer, which solves them. */
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

/* Ends a layer, whose sums are those of all ranks: writes it to the file while a thread beside solves and records it, since each of
 * these may take as long as a GPU for the next layer, and empties its set for another.  A failure of writing comes first. */
static exf_code end_layer(void *self, exf_err *err)
{
    exf_finished_layer *l = self;
    exf_accumulator *a = l->a;
    double begun = exf_clock();
    exf_err ignored;
    exf_code rc = EXF_OK;
    if (a->consumer.consume) rc = exf_worker_give(&a->beside, &l->solve, solve, l, err);
    if (rc == EXF_OK && l->is_recorded) rc = exf_worker_give(&a->beside, &l->record, record, l, err);
    if (rc == EXF_OK && a->target) rc = write_to_file(l, err);
    exf_code beside = exf_worker_wait(&a->beside, 0, rc == EXF_OK ? err : &ignored);
    exf_layer_statistics_zero(&l->sums);
    exf_vector_sums_free(&l->vectors);
    l->seconds = exf_clock() - begun;
    return rc == EXF_OK ? beside : rc;
}

/* Adds up the sums of all ranks on rank 0, where the layer is then ended, on another thread: both take seconds of vector sums. */
static exf_code add_ranks(void *self, exf_err *err)
{
    exf_finished_layer *l = self;
    exf_accumulator *a = l->a;
    const exf_vector_sums none = {.n_pairs = 0}, *v = vectors_of(l);
    exf_ranks_array list[EXF_MOST_LAYER_ARRAYS];
    if (v && a->vectors->device.ranks) v = &none; /* rank 0 has those of all, since GPUs share memory, and the others none */
    exf_code rc = exf_ranks_sum_beside(a->ranks, list, exf_layer_rank_arrays(list, &l->sums, v), err);
    return rc == EXF_OK ? exf_worker_give(&a->queue, &l->end, end_layer, l, err) : rc;
}

/* ---- the queue --------------------------------------------------------------------------------------- */

exf_code exf_accumulator_wait(exf_accumulator *a, int left, exf_err *err)
{
    double begun = exf_clock();
    exf_code rc = exf_worker_wait(&a->adder, 0, err);
    exf_ranks_waited(a->ranks, exf_clock() - begun);
    return rc == EXF_OK ? exf_worker_wait(&a->queue, (size_t)left, err) : rc;
}

/* Returns 1 if the layer is recorded as it is written.  Until a point was saved none is; but where layers wait, and the pass took
 * long for one, measured by the last layer of its set, this one is and all after it. */
static int is_recorded(exf_accumulator *a, const exf_finished_layer *l)
{
    double now = exf_clock();
    if (a->first_record > l->layer && l->seconds > 0 && now - a->taken > a->record_ratio * l->seconds) a->first_record = l->layer;
    a->taken = now;
    return a->resume && a->target && l->layer >= a->first_record;
}

exf_code exf_accumulator_put(exf_accumulator *a, int layer, exf_err *err)
{
    exf_finished_layer now = {.a = a}, *l = a->depth ? &a->waiting[a->turn] : &now;
    exf_code rc;
    if (a->depth) EXF_TRY(exf_accumulator_wait(a, a->depth - 1, err)); /* for the set */
    exf_layer_statistics zeroed = l->sums;
    l->sums = a->sums[0];
    if (a->vectors) {
        l->vectors = a->vectors->sums;
        a->vectors->sums = (exf_vector_sums){.n_pairs = 0};
    }
    l->layer = layer;
    l->is_recorded = is_recorded(a, l);
    if (!a->depth) {
        rc = end_layer(l, err);
        a->sums[0] = l->sums;
        return rc;
    }
    a->sums[0] = zeroed;
    a->turn = (a->turn + 1) % a->depth;
    rc = a->ranks ? exf_worker_give(&a->adder, &l->add, add_ranks, l, err) : exf_worker_give(&a->queue, &l->end, end_layer, l, err);
out:
    return rc;
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
    int is_read_back = a->resume && !exf_resume_start(a->resume)->layers_done && !a->options.common_input_tokens;
    a->first_record = is_read_back ? INT_MAX : 0;
    a->record_ratio = 2.5;
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
        rc = exf_worker_give(&a->queue, &a->waiting[i].end, pin_set, &a->waiting[i], err);
    return rc;
}

/* ---- records of the resume point ---------------------------------------------------------------------
 * A run of seconds ends before its first point is due, and a record is as many bytes as the layer is in the file: none is written
 * until then, unless layers take so long that writing has the time.  The records that the first point lacks come from the file that
 * is being written. */

/* Writes the records of layers below `end`, which are in the file.  They are read into a set of sums that is free, but for their
 * samples of routes. */
static exf_code write_records(exf_accumulator *a, int end, exf_err *err)
{
    exf_layer_statistics *s = a->depth ? &a->waiting[0].sums : &a->sums[0];
    exf_statistics_reader file = {.h = a->file.h, .shape = a->file.shape, .n_layers = a->n_layers, .layer_number = a->layer_number};
    exf_route_sample kept = s->routes;
    exf_vector_sums v = {.n_pairs = 0}, *vectors = a->vectors ? &v : NULL;
    exf_code rc = EXF_OK;
    memcpy(file.has, a->file.has, sizeof file.has);
    if (file.has[EXF_PART_SEQUENCES]) file.sequences = a->sequences; /* borrowed, as all of it */
    s->routes = (exf_route_sample){.cap = 0};
    for (int i = 0; i < a->n_layers && a->layer_number[i] < end; i++) {
        EXF_TRY(exf_statistics_get(&file, i, s, err));
        if (vectors) EXF_TRY(exf_statistics_get_vectors(&file, i, vectors, err));
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
    exf_code rc;
    EXF_TRY(exf_accumulator_wait(a, 0, err));
    EXF_TRY(exf_cross_check_finish(&a->device.check, err));
    if (a->target && end > 0) rc = write_records(a, end, err);
out:
    a->first_record = 0;
    return rc;
}
