/* chapter_vectors.c - the vector sums of a layer (accumulate/vector_sums.h), in two sweeps.
 *
 * The first sweep samples tokens for the low-rank basis (vectors_samples.c).  Between the sweeps the pairs of most energy are
 * chosen, and the basis and the grids made (accumulate_basis.c).  The second sweep adds up, block by block
 * (vectors_terms.c). */
#include "accumulate/accumulate_internal.h"
#include "accumulate/vectors.h"

#include "base/mem.h"
#include "base/parallel.h"
#include "kernels/linear/linear.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Returns how many samples a layer has at most. */
static size_t most_samples(const exf_run_shape *shape, const exf_accumulate_options *o)
{
    size_t candidates = (size_t)shape->n_tokens * (size_t)shape->top_k;
    return (size_t)o->samples < candidates ? (size_t)o->samples : candidates;
}

exf_code exf_vectors_begin_pass(exf_accumulator *a, exf_err *err)
{
    const exf_run_shape *shape = &a->shape;
    const exf_accumulate_options *o = &a->options;
    int n_workers = a->n_workers;
    size_t e = (size_t)shape->n_experts;
    exf_vector_accumulator *m;
    exf_code rc;
    EXF_TRY(exf_mem_new(&a->vectors, 1, sizeof *a->vectors, "vector sums", err));
    m = a->vectors;
    for (int i = 0; i < EXF_VECTOR_LOCKS; i++) pthread_mutex_init(&m->lock[i], NULL);
    m->shape = *shape;
    m->options = o;
    m->sequences = &a->sequences;
    m->n_workers = n_workers;
    m->ranks = a->ranks;
    m->n_helpers = n_workers == 1 && o->helpers > 1 ? o->helpers : 1;
    EXF_TRY(exf_blas_reserve_cpu(n_workers > m->n_helpers ? n_workers : m->n_helpers, err));
    if (o->lowrank) EXF_TRY(exf_sampler_new(&m->sampler, most_samples(shape, o), 0, err));
    m->sampler.own = a->own;
    EXF_TRY(exf_mem_new(&m->index, e * e, sizeof *m->index, "pairs with vectors", err));
    EXF_TRY(exf_mem_new(&m->block, (size_t)n_workers, sizeof *m->block, "vector sums", err));
    EXF_TRY(exf_mem_new(&m->buffers, (size_t)n_workers * (size_t)m->n_helpers, sizeof *m->buffers, "vector sums", err));
out:
    return rc;
}

void exf_vectors_end_pass(exf_accumulator *a)
{
    exf_vector_accumulator *m = a->vectors;
    if (!m) return;
    for (exf_pair_block *s = m->block; s && s < m->block + m->n_workers; s++) {
        exf_mem_free(s->entry);
        exf_mem_free(s->first);
        exf_mem_free(s->weight);
    }
    for (exf_pair_buffers *s = m->buffers; s && s < m->buffers + m->n_workers * m->n_helpers; s++) {
        exf_mem_free(s->u);
        exf_mem_free(s->v);
        exf_mem_free(s->z);
        exf_mem_free(s->total);
    }
    exf_mem_free(m->block);
    exf_mem_free(m->buffers);
    for (int i = 0; i < EXF_VECTOR_LOCKS; i++) pthread_mutex_destroy(&m->lock[i]);
    exf_device_samples_free(&m->samples);
    exf_device_vectors_free(&m->device);
    exf_sampler_free(&m->sampler);
    exf_vector_sums_free(&m->sums);
    exf_mem_free(m->index);
    exf_mem_free(m);
}

uint64_t exf_vectors_device_bytes(const exf_run_shape *shape, const exf_accumulate_options *o)
{
    int k = (int)shape->top_k, h = (int)shape->d_model, rank = exf_vector_rank(shape, o);
    uint64_t sample = 2 * (uint64_t)h * sizeof(float) + 5 * sizeof(int32_t) + sizeof(double);
    uint64_t samples = o->lowrank ? most_samples(shape, o) * sample + exf_device_basis_bytes(h, rank) : 0;
    return samples + exf_device_vectors_bytes(exf_vector_pairs(shape, o), k, h, o->diagonal, rank);
}

exf_code exf_vectors_open_device(exf_accumulator *a, const exf_backend *b, exf_err *err)
{
    exf_vector_accumulator *m = a->vectors;
    const exf_run_shape *s = &a->shape;
    const exf_accumulate_options *o = &a->options;
    exf_code rc = EXF_OK;
    if (o->lowrank)
        EXF_TRY(exf_device_samples_open(&m->samples, m->ranks, b, most_samples(s, o), (int)s->d_model, exf_vector_rank(s, o),
                                        o->seed, err));
    rc = exf_device_vectors_open(&m->device, b, (size_t)exf_vector_pairs(s, o), (int)s->top_k, (int)s->d_model, o->diagonal,
                                 exf_vector_rank(s, o), o->weighting, m->ranks, err);
out:
    return rc;
}

/* ---- the first sweep -------------------------------------------------------------------------------- */

exf_code exf_vectors_begin_layer(exf_accumulator *a, int layer, exf_err *err)
{
    exf_vector_accumulator *m = a->vectors;
    exf_code rc = EXF_OK;
    m->is_last = a->next_layer < 0;
    exf_vector_sums_free(&m->sums);
    if (!m->options->lowrank) return EXF_OK;
    exf_device_samples_begin(&m->samples);
    if (!m->sampler.source && !m->samples.b) rc = exf_sampler_make_room(&m->sampler, (int)m->shape.d_model, err);
    if (rc != EXF_OK) return rc;
    return exf_sampler_choose(&m->sampler, m->sequences, (int)m->shape.top_k, layer, a->next_layer, m->options->seed, err);
}

/* ---- between the sweeps ------------------------------------------------------------------------------ */

typedef struct {
    double energy;
    int32_t pair; /* s * E + t */
} ranked;

/* Numbers the pairs of m->sums. */
static void index_pairs(exf_vector_accumulator *m)
{
    size_t e = (size_t)m->shape.n_experts;
    for (size_t i = 0; i < e * e; i++) m->index[i] = -1;
    for (int64_t i = 0; i < m->sums.n_pairs; i++)
        m->index[(size_t)m->sums.pair[2 * i] * e + (size_t)m->sums.pair[2 * i + 1]] = (int32_t)i;
}

static int by_energy(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->energy != y->energy) return x->energy > y->energy ? -1 : 1;
    return (x->pair > y->pair) - (x->pair < y->pair);
}

static int rising(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return (x->pair > y->pair) - (x->pair < y->pair);
}

/* Allocates sums of n pairs; those of a device lie in its staging memory. */
static exf_code new_sums(exf_vector_accumulator *m, int64_t n, int d_model, int rank, exf_err *err)
{
    if (m->device.b) return exf_vector_sums_new_choice(&m->sums, n, d_model, rank, err);
    return exf_vector_sums_new(&m->sums, n, d_model, m->options->diagonal, rank, err);
}

/* Chooses the pairs of largest source_sq, ties to the lower source, then target. */
static exf_code choose_pairs(exf_vector_accumulator *m, const exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts, n = 0, most = (size_t)m->options->vector_pairs;
    int d = (int)m->shape.d_model, rank = exf_vector_rank(&m->shape, m->options);
    ranked *all = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&all, e * e, sizeof *all, "pairs with vectors", err));
    for (size_t i = 0; i < e * e; i++)
        if (s->count[i]) all[n++] = (ranked){exf_exact_value(&s->source_sq[i]), (int32_t)i};
    qsort(all, n, sizeof *all, by_energy);
    n = n < most ? n : most;
    qsort(all, n, sizeof *all, rising);
    EXF_TRY(new_sums(m, (int64_t)n, d, rank, err));
    for (size_t i = 0; i < n; i++) {
        m->sums.pair[2 * i] = all[i].pair / (int32_t)e;
        m->sums.pair[2 * i + 1] = all[i].pair % (int32_t)e;
    }
    index_pairs(m);
out:
    exf_mem_free(all);
    return rc;
}

/* Returns the scalar of a sample's pair, NaN for a sample of an empty slot. */
static double scalar_of_sample(const exf_vector_accumulator *m, const exf_layer_statistics *s, size_t i)
{
    const int32_t *pair = m->sampler.pair + 2 * i;
    size_t at = (size_t)pair[0] * (size_t)s->n_experts + (size_t)pair[1];
    if (pair[0] < 0 || pair[1] < 0) return NAN;
    return exf_pair_scalar(&m->options->rule, exf_exact_value(&s->dot[at]), exf_exact_value(&s->target_sq[at]));
}

/* Replaces the samples' u by u - S v and returns how many there are; samples of an empty slot are left out. */
static size_t take_residuals(exf_vector_accumulator *m, const exf_layer_statistics *s)
{
    size_t h = (size_t)m->shape.d_model, n = 0;
    for (size_t i = 0; i < m->sampler.n; i++) {
        double scalar = scalar_of_sample(m, s, i);
        if (isnan(scalar)) continue;
        const float *u = m->sampler.source + i * h, *v = m->sampler.target + i * h;
        float *to = m->sampler.source + n++ * h;
        for (size_t k = 0; k < h; k++) to[k] = (float)((double)u[k] - scalar * (double)v[k]);
    }
    return n;
}

/* Makes pairs, grids and basis from the sums and samples of all ranks. */
static exf_code make_choice(exf_vector_accumulator *m, const exf_layer_statistics *s, int layer, exf_err *err)
{
    exf_vector_sums *v = &m->sums;
    int helpers = m->n_helpers > m->n_workers ? m->n_helpers : m->n_workers;
    double *scalar = NULL;
    exf_code rc;
    EXF_TRY(choose_pairs(m, s, err));
    if (!v->basis) goto out;
    for (int64_t i = 0; i < v->n_pairs; i++) {
        size_t at = (size_t)v->pair[2 * i] * (size_t)s->n_experts + (size_t)v->pair[2 * i + 1];
        exf_grid_for_pair(v->grid + EXF_N_GRIDS * i, exf_exact_value(&s->source_sq[at]), exf_exact_value(&s->target_sq[at]));
    }
    if (!m->samples.b) {
        size_t n = take_residuals(m, s);
        rc = exf_basis_find(v->basis, v->rank, m->sampler.source, n, (int)m->shape.d_model, 1, m->options->seed, (uint64_t)layer,
                            helpers, err);
        goto out;
    }
    EXF_TRY(exf_mem_new(&scalar, m->sampler.n, sizeof *scalar, "samples", err));
    for (size_t i = 0; i < m->sampler.n; i++) scalar[i] = scalar_of_sample(m, s, i);
    rc = exf_device_samples_basis(&m->samples, v->basis, &m->sampler, scalar, err);
out:
    exf_mem_free(scalar);
    return rc;
}

/* Gives all ranks what rank 0 chose for the second sweep: elsewhere makes zeroed sums of these pairs. */
static exf_code broadcast_choice(exf_vector_accumulator *m, exf_err *err)
{
    exf_vector_sums *v = &m->sums;
    struct {
        int64_t n_pairs;
        int32_t d_model, rank;
    } head = {v->n_pairs, v->d_model, v->rank};
    exf_code rc;
    EXF_TRY(exf_ranks_broadcast(m->ranks, &head, sizeof head, err));
    if (!exf_ranks_first(m->ranks)) EXF_TRY(new_sums(m, head.n_pairs, head.d_model, head.rank, err));
    size_t p = (size_t)head.n_pairs, columns = (size_t)v->d_model * (size_t)v->rank;
    if (v->pair) EXF_TRY(exf_ranks_broadcast(m->ranks, v->pair, 2 * p * sizeof *v->pair, err));
    if (v->grid) EXF_TRY(exf_ranks_broadcast(m->ranks, v->grid, p * EXF_N_GRIDS * sizeof *v->grid, err));
    if (v->basis) EXF_TRY(exf_ranks_broadcast(m->ranks, v->basis, columns * sizeof *v->basis, err));
    if (!exf_ranks_first(m->ranks)) index_pairs(m);
out:
    return rc;
}

exf_code exf_vectors_begin_second_sweep(exf_accumulator *a, int layer, exf_err *err)
{
    exf_vector_accumulator *m = a->vectors;
    const exf_sampler *s = &m->sampler;
    size_t bytes = (size_t)m->shape.d_model * sizeof *s->source;
    exf_code rc = EXF_OK;
    if (m->samples.b) EXF_TRY(exf_device_samples_gather(&m->samples, s, err));
    if (m->options->lowrank && !m->samples.b) { /* on rank 0 what all ranks have kept */
        EXF_TRY(exf_gather_samples(m->ranks, &s->keys, s->own, s->pair, 2 * sizeof *s->pair, err));
        EXF_TRY(exf_gather_samples(m->ranks, &s->keys, s->own, s->source, bytes, err));
        EXF_TRY(exf_gather_samples(m->ranks, &s->keys, s->own, s->target, bytes, err));
    }
    if (exf_ranks_first(m->ranks)) EXF_TRY(make_choice(m, &a->sums[0], layer, err));
    if (m->ranks) EXF_TRY(broadcast_choice(m, err));
    if (m->device.b) exf_device_vectors_begin(&m->device, &m->sums, m->is_last);
out:
    return rc;
}

/* ---- the second sweep --------------------------------------------------------------------------------- */

/* Adds the block's pairs, shared out among helpers.  A pair's sums are added by one helper, so helpers change no bit. */
static exf_code add_on_host(exf_vector_accumulator *m, const exf_moe_block *b, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
    size_t n = (size_t)m->sums.n_pairs;
    exf_pair_block *sorted = &m->block[b->worker];
    exf_pair_buffers *buffers = &m->buffers[b->worker * m->n_helpers];
    exf_code rc;
    if (n == 0) return EXF_OK;
    EXF_TRY(exf_pair_block_sort(sorted, b, m->index, m->options->weighting, m->sums.n_pairs, err));
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, m->n_helpers)) if (m->n_helpers > 1)
    for (size_t p = 0; p < n; p++) {
        exf_pair_buffers *own = buffers + (m->n_helpers > 1 ? omp_get_thread_num() : 0);
        exf_err e;
        if (exf_loop_takes(&loop, p) &&
            exf_pair_block_add(sorted, own, b, (int64_t)p, &m->sums, &m->lock[p % EXF_VECTOR_LOCKS], &e) != EXF_OK)
            exf_loop_fail(&loop, p, &e);
    }
    rc = exf_loop_end(&loop, err);
out:
    return rc;
}

exf_code exf_vectors_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    exf_vector_accumulator *m = a->vectors;
    if (b->sweep && !b->q) return add_on_host(m, b, err);
    if (b->sweep)
        exf_device_vectors_add(&m->device, b);
    else if (m->samples.b)
        exf_device_samples_keep(&m->samples, &m->sampler, b);
    else if (m->options->lowrank)
        exf_sampler_keep(&m->sampler, b);
    return EXF_OK;
}

exf_code exf_vectors_end_layer(exf_accumulator *a, int layer, exf_err *err)
{
    exf_vector_accumulator *m = a->vectors;
    exf_code rc = m->device.b ? exf_device_vectors_take(&m->device, &m->sums, err) : EXF_OK;
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
    return rc;
}
