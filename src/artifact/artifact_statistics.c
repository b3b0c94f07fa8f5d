/* artifact_statistics.c - the file format `statistics`, version 1.
 *
 * Root attributes beside those of artifact.h:
 *   n_experts, top_k, d_model, n_sequences, n_tokens   i64
 * Datasets, E = n_experts, one group per MoE layer, <l> the model's layer number:
 *   /layer_numbers                 I32 [L]      ascending
 *   /layers/<l>/dot                F64 [E, E]   row = source, column = target
 *   /layers/<l>/target_sq          F64 [E, E]
 *   /layers/<l>/source_sq          F64 [E, E]
 *   /layers/<l>/dot0               F64 [E, E]
 *   /layers/<l>/sq0                F64 [E, E]
 *   /layers/<l>/count              U64 [E, E]   tokens whose top-K holds both
 *   /layers/<l>/norm_sum           F64 [E]
 *   /layers/<l>/sq_sum             F64 [E]
 *   /layers/<l>/route_weight_sum   F64 [E]
 *   /layers/<l>/contribution_sum   F64 [E]
 *   /layers/<l>/norm_count         U64 [E]      tokens routed to the expert
 *   /layers/<l>/exact/<name>       U64 [..., 3] the same sums exactly: a 192-bit
 *       two's-complement integer in units of 2^-96, least significant word first
 * The F64 datasets are the exact sums rounded to nearest; a file where they
 * disagree is damaged.  Sums and counts only, never means: files of different
 * data add.  What is summed: kernels/moments.h.  A count of 0 means the pair or
 * expert was never observed; its sums are 0 and mean nothing. */
#include "artifact/statistics.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const exf_artifact exf_artifact_statistics = {.kind = "statistics", .version = 1, .min_reader = 1};

exf_code exf_layer_statistics_new(exf_layer_statistics *s, int n_experts, exf_err *err)
{
    exf_code rc;
    size_t e = (size_t)n_experts;
    memset(s, 0, sizeof *s);
    s->n_experts = n_experts;
#define X(name) EXF_TRY(exf_mem_new(&s->name, e * e, sizeof *s->name, "pair sums", err));
    EXF_PAIR_SUMS(X)
#undef X
#define X(name) EXF_TRY(exf_mem_new(&s->name, e, sizeof *s->name, "expert sums", err));
    EXF_EXPERT_SUMS(X)
#undef X
    EXF_TRY(exf_mem_new(&s->count, e * e, sizeof *s->count, "pair counts", err));
    EXF_TRY(exf_mem_new(&s->norm_count, e, sizeof *s->norm_count, "expert counts", err));
out:
    if (rc != EXF_OK) exf_layer_statistics_free(s);
    return rc;
}

void exf_layer_statistics_zero(exf_layer_statistics *s)
{
    size_t e = (size_t)s->n_experts;
#define X(name) memset(s->name, 0, e *e * sizeof *s->name);
    EXF_PAIR_SUMS(X)
    X(count)
#undef X
#define X(name) memset(s->name, 0, e * sizeof *s->name);
    EXF_EXPERT_SUMS(X)
    X(norm_count)
#undef X
}

static void merge_sums(exf_exact *to, const exf_exact *from, size_t n)
{
    for (size_t i = 0; i < n; i++) exf_exact_merge(&to[i], &from[i]);
}

static void merge_counts(uint64_t *to, const uint64_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] += from[i];
}

void exf_layer_statistics_merge(exf_layer_statistics *to, const exf_layer_statistics *from)
{
    size_t e = (size_t)to->n_experts;
#define X(name) merge_sums(to->name, from->name, e *e);
    EXF_PAIR_SUMS(X)
#undef X
#define X(name) merge_sums(to->name, from->name, e);
    EXF_EXPERT_SUMS(X)
#undef X
    merge_counts(to->count, from->count, e * e);
    merge_counts(to->norm_count, from->norm_count, e);
}

void exf_layer_statistics_free(exf_layer_statistics *s)
{
#define X(name) exf_mem_free(s->name);
    EXF_PAIR_SUMS(X)
    EXF_EXPERT_SUMS(X)
    X(count)
    X(norm_count)
#undef X
    memset(s, 0, sizeof *s);
}

/* ---- writing ------------------------------------------------------------ */

enum { PATH_LEN = 96 };

static void layer_path(char out[PATH_LEN], int layer, const char *group, const char *name)
{
    snprintf(out, PATH_LEN, "/layers/%d/%s%s", layer, group, name);
}

exf_code exf_statistics_create(exf_statistics_writer *w, const char *target, int force, const exf_run_shape *shape,
                               const int32_t *layer_numbers, int n_layers, const exf_provenance *p, exf_err *err)
{
    exf_code rc;
    memset(w, 0, sizeof *w);
    w->shape = *shape;
    EXF_TRY(exf_artifact_create(&w->h, target, force, &exf_artifact_statistics, p, err));
    EXF_TRY(exf_run_shape_write(shape, w->h, err));
    EXF_TRY(exf_layer_numbers_write(layer_numbers, n_layers, w->h, err));
out:
    if (rc != EXF_OK) exf_statistics_abort(w);
    return rc;
}

/* n sums of shape [E] (rank 1) or [E, E] (rank 2), rounded and exact. */
static exf_code put_sums(exf_statistics_writer *w, int layer, const char *name, const exf_exact *sum, int rank, exf_err *err)
{
    int64_t e = w->shape.n_experts;
    size_t n = (size_t)(rank == 2 ? e * e : e);
    char path[PATH_LEN];
    double *rounded = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&rounded, n, sizeof *rounded, "rounded sums", err));
    for (size_t i = 0; i < n; i++) rounded[i] = exf_exact_value(&sum[i]);
    exf_tensor t = {.name = path, .dtype = EXF_DT_F64, .rank = rank, .shape = {e, e}, .data = rounded};
    layer_path(path, layer, "", name);
    EXF_TRY(exf_h5_write(w->h, &t, EXF_H5_COMPRESS, err));
    exf_tensor x = {.name = path, .dtype = EXF_DT_U64, .rank = rank + 1, .shape = {e, rank == 2 ? e : 3, 3}, .data = sum};
    layer_path(path, layer, "exact/", name);
    EXF_TRY(exf_h5_write(w->h, &x, EXF_H5_COMPRESS, err));
out:
    exf_mem_free(rounded);
    return rc;
}

static exf_code put_counts(exf_statistics_writer *w, int layer, const char *name, const uint64_t *count, int rank, exf_err *err)
{
    char path[PATH_LEN];
    exf_tensor t = {.name = path, .dtype = EXF_DT_U64, .rank = rank, .shape = {w->shape.n_experts, w->shape.n_experts}, .data = count};
    layer_path(path, layer, "", name);
    return exf_h5_write(w->h, &t, EXF_H5_COMPRESS, err);
}

exf_code exf_statistics_put(exf_statistics_writer *w, int layer_number, const exf_layer_statistics *s, exf_err *err)
{
    exf_code rc;
#define X(name) EXF_TRY(put_sums(w, layer_number, #name, s->name, 2, err));
    EXF_PAIR_SUMS(X)
#undef X
#define X(name) EXF_TRY(put_sums(w, layer_number, #name, s->name, 1, err));
    EXF_EXPERT_SUMS(X)
#undef X
    EXF_TRY(put_counts(w, layer_number, "count", s->count, 2, err));
    EXF_TRY(put_counts(w, layer_number, "norm_count", s->norm_count, 1, err));
out:
    return rc;
}

exf_code exf_statistics_commit(exf_statistics_writer *w, exf_err *err)
{
    exf_h5 *h = w->h;
    w->h = NULL;
    return exf_h5_commit(h, err);
}

void exf_statistics_abort(exf_statistics_writer *w)
{
    exf_h5_close(w->h);
    w->h = NULL;
}

/* ---- reading -------------------------------------------------------------- */

exf_code exf_statistics_open(exf_statistics_reader *r, const char *path, exf_err *err)
{
    exf_code rc;
    memset(r, 0, sizeof *r);
    EXF_TRY(exf_artifact_open(&r->h, path, &exf_artifact_statistics, NULL, &r->provenance, err));
    EXF_TRY(exf_run_shape_read(&r->shape, r->h, err));
    EXF_TRY(exf_layer_numbers_read(&r->layer_number, &r->n_layers, r->h, err));
out:
    if (rc != EXF_OK) exf_statistics_close(r);
    return rc;
}

static exf_code get_sums(exf_statistics_reader *r, int layer, const char *name, exf_exact *sum, int rank, exf_err *err)
{
    int64_t e = r->shape.n_experts;
    size_t n = (size_t)(rank == 2 ? e * e : e);
    char path[PATH_LEN];
    double *rounded = NULL;
    exf_code rc;
    exf_tensor x = {.name = path, .dtype = EXF_DT_U64, .rank = rank + 1, .shape = {e, rank == 2 ? e : 3, 3}};
    layer_path(path, layer, "exact/", name);
    EXF_TRY(exf_h5_read(r->h, &x, sum, err));
    EXF_TRY(exf_mem_new(&rounded, n, sizeof *rounded, "rounded sums", err));
    exf_tensor t = {.name = path, .dtype = EXF_DT_F64, .rank = rank, .shape = {e, e}};
    layer_path(path, layer, "", name);
    EXF_TRY(exf_h5_read(r->h, &t, rounded, err));
    for (size_t i = 0; rc == EXF_OK && i < n; i++)
        if (!(rounded[i] == exf_exact_value(&sum[i])))
            rc = exf_fail(err, EXF_FORMAT, "%s: %s[%zu] is %.17g, its exact sum is %.17g", exf_h5_path(r->h), path, i, rounded[i],
                          exf_exact_value(&sum[i]));
out:
    exf_mem_free(rounded);
    return rc;
}

static exf_code get_counts(exf_statistics_reader *r, int layer, const char *name, uint64_t *count, int rank, exf_err *err)
{
    char path[PATH_LEN];
    exf_tensor t = {.name = path, .dtype = EXF_DT_U64, .rank = rank, .shape = {r->shape.n_experts, r->shape.n_experts}};
    layer_path(path, layer, "", name);
    return exf_h5_read(r->h, &t, count, err);
}

/* Counts are symmetric, zero on the diagonal, and no pair is seen more often
 * than either of its experts. */
static exf_code check_counts(const exf_statistics_reader *r, int layer, const exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) {
            uint64_t n = s->count[a * e + b];
            if (n != s->count[b * e + a] || n > s->norm_count[a] || (a == b && n))
                return exf_fail(err, EXF_FORMAT, "%s: /layers/%d/count[%zu, %zu] is %llu, which its mirror (%llu) or expert %zu's %llu tokens forbid",
                                exf_h5_path(r->h), layer, a, b, (unsigned long long)n, (unsigned long long)s->count[b * e + a], a,
                                (unsigned long long)s->norm_count[a]);
        }
    return EXF_OK;
}

exf_code exf_statistics_get(exf_statistics_reader *r, int i, exf_layer_statistics *s, exf_err *err)
{
    int layer = r->layer_number[i];
    exf_code rc;
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 2, err));
    EXF_PAIR_SUMS(X)
#undef X
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 1, err));
    EXF_EXPERT_SUMS(X)
#undef X
    EXF_TRY(get_counts(r, layer, "count", s->count, 2, err));
    EXF_TRY(get_counts(r, layer, "norm_count", s->norm_count, 1, err));
    EXF_TRY(check_counts(r, layer, s, err));
out:
    return rc;
}

void exf_statistics_close(exf_statistics_reader *r)
{
    exf_h5_close(r->h);
    exf_mem_free(r->layer_number);
    exf_provenance_free(&r->provenance);
    memset(r, 0, sizeof *r);
}
