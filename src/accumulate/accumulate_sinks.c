/* accumulate_sinks.c - where the sums of finished layers go: into the statistics file, by one of three sinks.
 *
 *   now                  written before the next layer begins: passes on the CPU
 *   while the next runs  on a thread of its own, while the next layers add up in other sets of sums: passes on a GPU.  Two
 *                        layers may wait, so that one whose write takes long does not stop the pass.  Vector sums, up to a
 *                        gigabyte, have one set in host memory: they are written before the GPU's next are copied there
 *   by way of rank 0     added up on rank 0 while the next layer runs; rank 0 writes the total while the one after that runs.
 *                        Two layers are set aside for it.  Where there are vector sums, the scalar sums are added up between the
 *                        sweeps, since rank 0 chooses pairs by them; on CPUs a layer's vector sums are written before the
 *                        next layer makes its own
 *
 * All sums are integers, so that no sink and no number of ranks changes a bit.  HDF5 serves one thread at a time:
 * between the first job of a->layer_thread or a->write_thread and the wait for the last, no other thread uses the file. */
#include "accumulate/accumulate_internal.h"

#include "base/log.h"

#include <limits.h>
#include <string.h>

/* ---- a layer in the file --------------------------------------------------------------------------- */

/* A layer whose sums are complete; v NULL: it has no vector sums. */
typedef struct {
    exf_accumulator *a;
    int layer;
    const exf_layer_statistics *s;
    const exf_vector_sums *v;
    exf_job consume_job, record_job;
} finished_layer;

static exf_code write_to_file(const finished_layer *l, exf_err *err)
{
    exf_accumulator *a = l->a;
    exf_vector_sums none = {.d_model = (int)a->shape.d_model};
    exf_code rc = EXF_OK;
    if (!a->options.basis_only) EXF_TRY(exf_statistics_put(&a->writer, l->layer, l->s, err));
    if (l->v) EXF_TRY(exf_statistics_put_vectors(&a->writer, l->layer, l->v, err));
    if (a->options.basis_only) EXF_TRY(exf_norm_basis_write(&l->s->norms, a->writer.h, l->layer, err));
    if (a->basis_hash) EXF_TRY(exf_basis_hash(a->basis_hash, l->layer, l->v ? l->v : &none, err));
    if (a->basis_hash) EXF_TRY(exf_norm_basis_hash(a->basis_hash, &l->s->norms, err));
    rc = exf_statistics_layer_done(&a->writer, l->layer, err);
out:
    return rc;
}

/* Gives the layer's sums to the consumer. */
static exf_code consume_sums(void *self, exf_err *err)
{
    const finished_layer *l = self;
    const exf_layer_consumer *to = &l->a->consumer;
    exf_layer_statistics s = *l->s;
    int i = 0;
    s.vectors = l->v;
    while (l->a->layer_number[i] != l->layer) i++;
    return to->consume(to->self, i, &s, err);
}

static exf_code write_record(void *self, exf_err *err)
{
    const finished_layer *l = self;
    return exf_layer_record_put(l->a->resume, l->layer, l->s, l->v, err);
}

/* Writes a layer to the file, solves it and, if it is recorded, writes it to the resume point, all at once: each takes as long as
 * a GPU may need for a layer. */
static exf_code write_layer(exf_accumulator *a, int layer, const exf_layer_statistics *s, const exf_vector_sums *v, int is_recorded,
                            exf_err *err)
{
    finished_layer l = {.a = a, .layer = layer, .s = s, .v = v};
    exf_err ignored;
    exf_code rc = a->consumer.consume ? exf_worker_give(&a->consumer_thread, &l.consume_job, consume_sums, &l, err) : EXF_OK;
    if (rc == EXF_OK && is_recorded) rc = exf_worker_give(&a->record_thread, &l.record_job, write_record, &l, err);
    if (rc == EXF_OK) rc = write_to_file(&l, err);
    exf_code given = exf_worker_wait(&a->consumer_thread, 0, rc == EXF_OK ? err : &ignored);
    if (rc == EXF_OK) rc = given;
    exf_code recorded = exf_worker_wait(&a->record_thread, 0, rc == EXF_OK ? err : &ignored);
    return rc == EXF_OK ? recorded : rc;
}

exf_code exf_accumulator_restore(exf_accumulator *a, exf_err *err)
{
    exf_layer_statistics s;
    exf_vector_sums v = {.n_pairs = 0}, *vectors = a->vectors ? &v : NULL;
    exf_code rc = exf_layer_statistics_new(&s, (int)a->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < a->n_layers && a->layer_number[i] < exf_resume_start(a->resume)->layers_done; i++) {
        EXF_TRY(exf_layer_record_get(a->resume, a->layer_number[i], &s, vectors, (int)a->shape.d_model, err));
        finished_layer l = {.a = a, .layer = a->layer_number[i], .s = &s, .v = vectors};
        EXF_TRY(write_to_file(&l, err));
        if (a->consumer.consume) EXF_TRY(consume_sums(&l, err));
        exf_vector_sums_free(&v);
    }
out:
    exf_vector_sums_free(&v);
    exf_layer_statistics_free(&s);
    return rc;
}

/* Returns 1 if the layer is written to the resume point too, as it is written to the file. */
static int is_recorded(const exf_accumulator *a, int layer)
{
    return a->resume && layer >= a->first_record;
}

/* ---- now ------------------------------------------------------------------------------------------- */

static exf_code write_now(exf_accumulator *a, int layer, exf_err *err)
{
    const exf_vector_sums *v = a->vectors ? exf_vector_accumulator_sums(a->vectors) : NULL;
    exf_code rc = a->target ? write_layer(a, layer, &a->sums[0], v, is_recorded(a, layer), err) : EXF_OK;
    exf_layer_statistics_zero(&a->sums[0]);
    return rc;
}

/* ---- while the next layer runs --------------------------------------------------------------------- */

/* Decides whether a layer is recorded as it is written.  Until a point was saved none is; but where the pass took long for a layer,
 * measured by the last write of its set, this one is and all after it. */
static void choose_record(exf_accumulator *a, exf_waiting_layer *w, int layer)
{
    double now = exf_clock();
    if (a->first_record > layer && w->seconds > 0 && now - a->taken > a->record_ratio * w->seconds) a->first_record = layer;
    a->taken = now;
    w->layer = layer;
    w->is_recorded = is_recorded(a, layer);
}

/* Queues the layer's sums for writing: swaps them with a zeroed spare set, to which the next layer adds. */
static exf_waiting_layer *set_aside(exf_accumulator *a, int layer)
{
    exf_waiting_layer *w = &a->waiting[a->turn];
    exf_layer_statistics sums = a->sums[0];
    a->turn = (a->turn + 1) % a->n_waiting;
    a->sums[0] = w->sums;
    w->sums = sums;
    choose_record(a, w, layer);
    return w;
}

/* Takes the vector sums of the accumulator, which makes others for the next layer. */
static void take_vectors(exf_accumulator *a, exf_waiting_layer *w)
{
    exf_vector_sums *v = exf_vector_accumulator_sums(a->vectors);
    w->vectors = *v;
    *v = (exf_vector_sums){.n_pairs = 0};
}

/* Writes a waiting layer and zeroes it, on a thread of its own: rounding, writing and solving a layer takes about as long as a
 * GPU may need for one. */
static exf_code write_waiting(void *self, exf_err *err)
{
    exf_waiting_layer *w = self;
    double begun = exf_clock();
    exf_code rc = write_layer(w->a, w->layer, &w->sums, w->a->vectors ? &w->vectors : NULL, w->is_recorded, err);
    exf_layer_statistics_zero(&w->sums);
    exf_vector_sums_free(&w->vectors);
    w->seconds = exf_clock() - begun;
    return rc;
}

static exf_code finish_work(exf_accumulator *a, exf_err *err)
{
    return exf_worker_wait(&a->layer_thread, 0, err);
}

static exf_code write_while_next_runs(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = exf_worker_wait(&a->layer_thread, (size_t)a->n_waiting - 1, err); /* the next set has been written */
    if (rc != EXF_OK) return rc;
    exf_waiting_layer *w = set_aside(a, layer);
    if (a->vectors) take_vectors(a, w);
    return exf_worker_give(&a->layer_thread, &w->job, write_waiting, w, err);
}

/* ---- by way of rank 0 ------------------------------------------------------------------------------- */

/* Adds up the layer on rank 0 on a thread of its own, and hands it to another thread to write: each step takes as long as several
 * GPUs may need for a layer. */
static exf_code add_on_rank_0(void *self, exf_err *err)
{
    exf_waiting_layer *w = self;
    exf_accumulator *a = w->a;
    const exf_vector_sums none = {.n_pairs = 0}, *v = &w->vectors;
    exf_ranks_array list[EXF_MOST_LAYER_ARRAYS];
    if (a->vectors && exf_vector_accumulator_adds_ranks(a->vectors)) v = &none;
    exf_code rc = exf_ranks_sum_beside(a->ranks, list, exf_layer_rank_arrays(list, &w->sums, a->vectors ? v : NULL), err);
    if (rc == EXF_OK && a->target) return exf_worker_give(&a->write_thread, &w->write_job, write_waiting, w, err);
    exf_layer_statistics_zero(&w->sums);
    exf_vector_sums_free(&w->vectors);
    return rc;
}

/* Waits until the layer before has been added up, and counts that time as waiting for other ranks; then waits until the layers
 * before it are written, which is not counted.  After it the next set is free. */
static exf_code finish_adding(exf_accumulator *a, exf_err *err)
{
    double begun = exf_clock();
    exf_code rc = finish_work(a, err);
    exf_ranks_waited(a->ranks, exf_clock() - begun);
    return rc == EXF_OK ? exf_worker_wait(&a->write_thread, (size_t)a->n_waiting - 1, err) : rc;
}

static exf_code send_sums(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = finish_adding(a, err);
    if (rc != EXF_OK) return rc;
    exf_waiting_layer *w = set_aside(a, layer);
    if (a->vectors) take_vectors(a, w);
    return exf_worker_give(&a->layer_thread, &w->job, add_on_rank_0, w, err);
}

static exf_code finish_sums(exf_accumulator *a, exf_err *err)
{
    exf_code rc = finish_adding(a, err);
    return rc == EXF_OK ? exf_worker_wait(&a->write_thread, 0, err) : rc;
}

/* The scalar sums of all ranks are needed at once: rank 0 chooses from them what the second sweep adds up.  In host memory the
 * next vector sums are made now. */
static exf_code add_up_scalars(exf_accumulator *a, exf_err *err)
{
    exf_ranks_array list[EXF_MOST_LAYER_ARRAYS];
    exf_code rc = a->device.b ? EXF_OK : finish_sums(a, err);
    return rc == EXF_OK ? exf_ranks_sum(a->ranks, list, exf_layer_rank_arrays(list, &a->sums[0], NULL), err) : rc;
}

/* ---- the choice -------------------------------------------------------------------------------------- */

static const exf_sink NOW = {.take = write_now, .finish = finish_work};
static const exf_sink WHILE_NEXT_RUNS = {.take = write_while_next_runs, .ready = finish_work, .finish = finish_work};
static const exf_sink TO_RANK_0 = {
    .take = send_sums, .between = add_up_scalars, .ready = finish_adding, .finish = finish_sums};

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

exf_code exf_sink_open(exf_accumulator *a, exf_err *err)
{
    int on_device = a->device.b != NULL;
    exf_code rc = EXF_OK;
    a->sink = a->ranks ? &TO_RANK_0 : on_device && a->target ? &WHILE_NEXT_RUNS : &NOW;
    if (a->sink == &NOW || a->n_waiting) return EXF_OK;
    a->n_waiting = exf_waiting_layers(&a->options, a->ranks != NULL);
    for (int i = 0; i < a->n_waiting; i++) {
        a->waiting[i].a = a;
        EXF_TRY(exf_layer_statistics_new(&a->waiting[i].sums, (int)a->shape.n_experts, err));
        EXF_TRY(exf_accumulator_make_sample(a, &a->waiting[i].sums, err));
    }
out:
    return rc;
}

/* Pins the memory of a set, 20 MB where there are 256 experts, on a thread of its own, before a layer waits for it. */
static exf_code pin_waiting(void *self, exf_err *err)
{
    exf_waiting_layer *w = self;
    return exf_device_sums_pin(&w->a->device, 1 + (int)(w - w->a->waiting), &w->sums, err);
}

exf_code exf_sink_open_device(exf_accumulator *a, exf_err *err)
{
    exf_code rc = exf_sink_open(a, err);
    if (rc == EXF_OK) rc = exf_device_sums_pin(&a->device, 0, &a->sums[0], err);
    for (int i = 0; rc == EXF_OK && i < a->n_waiting; i++)
        rc = exf_worker_give(&a->layer_thread, &a->waiting[i].job, pin_waiting, &a->waiting[i], err);
    return rc;
}

/* ---- records of the resume point ---------------------------------------------------------------------
 * A run of seconds ends before its first point is due, and a record is as many bytes as the layer is in the file: none is written
 * until then, unless layers take so long that writing has the time.  The records that the first point lacks come from the file that
 * is being written. */

int exf_accumulator_first_record(const exf_accumulator *a)
{
    const exf_accumulate_options *o = &a->options;
    int can_read_back = !o->basis_only && !o->common_input_tokens;
    return a->resume && !exf_resume_start(a->resume)->layers_done && can_read_back ? INT_MAX : 0;
}

/* Writes the records of layers below `end`, which are in the file.  They are read into a set of sums that is free, but for their
 * samples of routes. */
static exf_code write_records(exf_accumulator *a, int end, exf_err *err)
{
    exf_layer_statistics *s = a->n_waiting ? &a->waiting[0].sums : &a->sums[0];
    exf_route_sample kept = s->routes;
    exf_vector_sums v = {.n_pairs = 0}, *vectors = a->vectors ? &v : NULL;
    exf_code rc = EXF_OK;
    s->routes = (exf_route_sample){.cap = 0};
    for (int i = 0; i < a->n_layers && a->layer_number[i] < end; i++) {
        EXF_TRY(exf_statistics_get_back(&a->writer, a->layer_number[i], &a->sequences, s, vectors, err));
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

/* Waits until all layers are written, and their sums have passed the cross-check of a GPU. */
static exf_code finish_layers(exf_accumulator *a, exf_err *err)
{
    exf_err ignored;
    exf_code rc = a->sink ? a->sink->finish(a, err) : EXF_OK;
    exf_code checked = exf_cross_check_finish(&a->device.check, rc == EXF_OK ? err : &ignored);
    return rc == EXF_OK ? checked : rc;
}

exf_code exf_accumulator_settle(exf_accumulator *a, int done, exf_err *err)
{
    int end = done < a->first_record ? done : a->first_record;
    exf_code rc = finish_layers(a, err);
    if (rc == EXF_OK && a->target && end > 0) rc = write_records(a, end, err);
    a->first_record = 0;
    return rc;
}

/* ---- beginning and end of the file --------------------------------------------------------------------- */

/* Refuses a basis of another run; weights that are not known yet are compared after the pass. */
static exf_code check_basis(const exf_accumulator *a, const exf_provenance *own, const exf_sequence_list *sorted, exf_err *err)
{
    const exf_basis *b = a->options.basis;
    exf_code rc = exf_basis_check(b, own, a->layer_number, a->n_layers, sorted, err);
    if (rc != EXF_OK || !exf_provenance_get(own, "model.weights_digest")) return rc;
    return exf_model_facts_same(&b->provenance, exf_h5_path(b->h), own, a->target, err);
}

exf_code exf_accumulator_start_file(exf_accumulator *a, const exf_accumulator_plan *plan, exf_err *err)
{
    exf_code rc;
    exf_provenance own = {0}, origin = {0};
    exf_sequence_list sorted = {.n = 0};
    EXF_TRY(exf_sequence_list_sorted(&sorted, &a->sequences, err));
    EXF_TRY(exf_facts_join(&own, &origin, plan->parts, plan->n_parts, &sorted, err));
    EXF_TRY(exf_accumulate_facts(&own, &a->options, a->shape.top_k, a->shape.d_model, err));
    exf_statistics_header head = {.shape = a->shape, .layer_number = a->layer_number, .n_layers = a->n_layers,
                                  .common_input = a->options.common_input_tokens > 0, .sequences = &sorted, .provenance = &own,
                                  .origin = &origin, .is_basis = a->options.basis_only};
    if (a->options.basis) EXF_TRY(check_basis(a, &own, &sorted, err));
    EXF_TRY(exf_statistics_start(&a->writer, plan->target, plan->force, &head, err));
out:
    exf_provenance_free(&own);
    exf_provenance_free(&origin);
    exf_sequence_list_free(&sorted);
    return rc;
}

exf_code exf_accumulator_add_facts(exf_accumulator *a, const exf_provenance *p, exf_err *err)
{
    exf_code rc = finish_layers(a, err);
    if (rc != EXF_OK || !a->target) return rc;
    if (a->options.basis)
        rc = exf_model_facts_same(&a->options.basis->provenance, exf_h5_path(a->options.basis->h), p, a->target, err);
    return rc == EXF_OK ? exf_statistics_add_facts(&a->writer, p, err) : rc;
}

/* Adds the digest of what vector sums were added up over. */
static exf_code add_basis_fact(exf_accumulator *a, exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    exf_provenance p = {0};
    exf_hash *h = a->basis_hash;
    exf_code rc;
    if (!h) return EXF_OK;
    a->basis_hash = NULL;
    EXF_TRY(exf_hash_end(h, digest, err));
    EXF_TRY(exf_provenance_add(&p, err, EXF_BASIS_FACT, "%s", digest));
    EXF_TRY(exf_statistics_add_facts(&a->writer, &p, err));
out:
    exf_provenance_free(&p);
    return rc;
}

exf_code exf_accumulator_commit(exf_accumulator *a, char digest[EXF_SHA256_HEX], exf_err *err)
{
    exf_code rc = finish_layers(a, err);
    if (rc != EXF_OK || !a->target) return rc;
    rc = add_basis_fact(a, err);
    return rc == EXF_OK ? exf_statistics_commit(&a->writer, digest, err) : rc;
}
