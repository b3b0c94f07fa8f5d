/* export_fixtures.h - small tables that obey every rule of tables.h, with no two
 * numbers alike where the rules leave a choice, and how an export is called. */
#ifndef EXF_TESTS_EXPORT_FIXTURES_H
#define EXF_TESTS_EXPORT_FIXTURES_H
#include "tests/support/artifact_fixtures.h"

#include "export/writer.h"

enum { E = 3, L = 2, H = 8, N_PAIRS = 2, RANK = 2 };

/* Tokens, and tokens of each pair: more than 32 bits hold. */
#define SAMPLE_TOKENS ((int64_t)60 << 33)

/* Tells whether a pair is unobserved: that of 0 and 2 in the first layer, those of expert 1 in the second, where it is cold. */
static inline int is_never(int i)
{
    int a = i / E % E, b = i % E;
    return a == b || (i < E * E ? a + b == 2 : a == 1 || b == 1);
}

static inline void fill_pairs(exf_tables *t)
{
    static const uint64_t count[L * E * E] = {0, 23, 0, 23, 0, 37, 0, 37, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0},
                          of_expert[L * E] = {23, 60, 37, 60, 0, 60};
    for (int i = 0; i < L * E * E; i++) {
        int never = is_never(i);
        t->coeff[i] = i / E % E == i % E ? 1 : never ? 0 : (float)(i + 1) / 16;
        t->loss[i] = never ? EXF_LOSS_NEVER : (float)(i + 2) / 64;
        t->count[i] = count[i] << 33;
    }
    for (int i = 0; i < L * E; i++) {
        t->expert_norms[i] = (float)(i + 100) / 8;
        t->expert_count[i] = of_expert[i] << 33;
    }
}

static inline void fill_pools(exf_tables *t)
{
    for (int p = 0; p < t->n_pools; p++) {
        for (int i = 0; i < L * t->pool[p].size; i++) t->pool[p].members[i] = (i + p) % E;
        for (int i = 0; i < L * E; i++) t->pool[p].target_ids[i] = (i * 2 + p) % E;
        for (int i = 0; i < L * E; i++) t->pool[p].target_scale[i] = (float)(i + 200 + 10 * p) / 8;
    }
}

static inline exf_code sample_tables(exf_tables *t, size_t n_pools, exf_err *err)
{
    static const exf_run_shape shape = {.n_experts = E, .top_k = 2, .d_model = H, .n_sequences = 3, .n_tokens = SAMPLE_TOKENS};
    static const int32_t numbers[L] = {1, 12};
    static const int64_t pools[] = {2, 1};
    static const char *const facts[][2] = {{"accumulate.weighting", "source_norm"},
                                           {"data.domains", "prose: 2 sequences \xe2\x82\xac \"x\""},
                                           {"data.max_tokens", "512"},
                                           {"data.sequences", "3"},
                                           {"model.family", "qwen3_moe"},
                                           {"model.layers", "14"},
                                           {"solve.clip", "-4,4"},
                                           {"solve.ridge", "0.001"}};
    exf_code rc;
    EXF_TRY(exf_tables_new(t, &shape, numbers, L, pools, n_pools, err));
    fill_pairs(t);
    fill_pools(t);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        EXF_TRY(exf_provenance_add(&t->provenance, err, facts[i][0], "%s", facts[i][1]));
out:
    return rc;
}

static inline exf_code new_floats(float **out, size_t n, float first, float step, exf_err *err)
{
    exf_code rc = exf_mem_new(out, n, sizeof **out, "sample", err);
    for (size_t i = 0; rc == EXF_OK && i < n; i++) (*out)[i] = first + step * (float)i;
    return rc;
}

/* A measure of pairs: falling from `first`, `diagonal` on it and `never` at unobserved pairs. */
static inline exf_code new_measure(float **out, float first, float diagonal, float never, exf_err *err)
{
    exf_code rc = new_floats(out, L * E * E, first, -0.015625f, err);
    for (int i = 0; rc == EXF_OK && i < L * E * E; i++)
        if (is_never(i)) (*out)[i] = i / E % E == i % E ? diagonal : never;
    return rc;
}

static inline exf_code add_shared_scalar(exf_tables *t, const char *name, float first, exf_err *err)
{
    exf_shared_scalar *s;
    exf_code rc;
    EXF_TRY(exf_tables_add_shared(t, name, &s, err));
    exf_mem_free(s->scalar);
    exf_mem_free(s->loss);
    s->scalar = s->loss = NULL;
    EXF_TRY(new_floats(&s->scalar, L, first, 0.25f, err));
    EXF_TRY(new_measure(&s->loss, first + 1, EXF_LOSS_NEVER, EXF_LOSS_NEVER, err));
out:
    return rc;
}

/* Orthonormal columns of one layer: unit vectors. */
static inline void fill_basis(float *q, int layer)
{
    for (int i = 0; i < H * RANK; i++) q[layer * H * RANK + i] = i / RANK == i % RANK + layer ? 1.0f : 0.0f;
}

/* An array of vectors that rises from `first`. */
static inline exf_code add_array(exf_tables *t, const char *name, int rank, int n, float first, float step, exf_err *err)
{
    float *x;
    exf_code rc = exf_vectors_add(t, name, rank, &x, err);
    for (int i = 0; rc == EXF_OK && i < n; i++) x[i] = first + step * (float)i;
    return rc;
}

static inline exf_code add_vectors(exf_tables *t, exf_err *err)
{
    static const int32_t pair[N_PAIRS * 3] = {0, 1, 2, 1, 0, 2};
    exf_vectors *v = &t->vectors;
    float *x, *measure = NULL;
    exf_code rc;
    v->n_pairs = N_PAIRS;
    EXF_TRY(exf_mem_new(&v->pair, N_PAIRS * 3, sizeof *v->pair, "sample", err));
    memcpy(v->pair, pair, sizeof pair);
    EXF_TRY(add_array(t, "diagonal", 0, N_PAIRS * H, 3, 0.5f, err));
    EXF_TRY(exf_vectors_add(t, "diagonal_loss", 0, &x, err));
    EXF_TRY(new_measure(&measure, 1, EXF_LOSS_NEVER, EXF_LOSS_NEVER, err));
    memcpy(x, measure, L * E * E * sizeof *x);
    EXF_TRY(exf_vectors_add(t, "basis", RANK, &x, err));
    for (int l = 0; l < L; l++) fill_basis(x, l);
    EXF_TRY(add_array(t, "lowrank", RANK, N_PAIRS * RANK * H, -2, 0.125f, err));
out:
    exf_mem_free(measure);
    return rc;
}

/* What version 2 adds. */
static inline exf_code add_version_2(exf_tables *t, exf_err *err)
{
    exf_code rc;
    EXF_TRY(new_measure(&t->cosine, 0.5f, 1, 0, err));
    EXF_TRY(new_measure(&t->similarity, 0.75f, 1, 0, err));
    EXF_TRY(new_measure(&t->frobenius, 3, EXF_LOSS_NEVER, EXF_LOSS_NEVER, err));
    EXF_TRY(new_measure(&t->std_error, 2, 0, EXF_ERROR_UNKNOWN, err));
    EXF_TRY(new_floats(&t->rms, L * E, 5, 0.5f, err));
    EXF_TRY(new_floats(&t->contribution, L * E, 9, 0.5f, err));
    EXF_TRY(add_shared_scalar(t, "layer", 0.5f, err));
    EXF_TRY(add_shared_scalar(t, "global", 0.25f, err));
    EXF_TRY(add_vectors(t, err));
out:
    return rc;
}

/* Checks an export and writes it to scratch/name by the target. */
static inline exf_code write_export(const char *target, const exf_export *x, const char *name, int force, exf_err *err)
{
    const exf_writer *w = exf_writer_find(target);
    exf_code rc = exf_writer_check_export(w, x, exf_scratch(name), err);
    return rc == EXF_OK ? w->write(x, exf_scratch(name), force, err) : rc;
}

/* The same of tables alone. */
static inline exf_code write_target(const char *target, const exf_tables *t, const char *name, int force, exf_err *err)
{
    const exf_writer *w = exf_writer_find(target);
    const exf_export x = {.tables = t, .targets = &w, .n_targets = 1};
    return write_export(target, &x, name, force, err);
}
#endif
