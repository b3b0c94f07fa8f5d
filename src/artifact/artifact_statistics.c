/* artifact_statistics.c - the file format `statistics`, version 4.
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
 * disagree is damaged.  All are sums and counts, never means, so files of different
 * data can be added.  The terms are defined in kernels/statistics/layer_sums.h.  A count of 0
 * means that the pair or expert was never observed; its sums are 0 and mean nothing.
 * Since version 2:
 *   pairs                          text        root attribute: "corouted", or "common_input" (every
 *       expert ran on the same tokens, each of which counts for every pair); absent: corouted
 *   /sequence_lengths, /sequence_sha256        as in a capture, but in order of digest, so that
 *       the same data in other parts is the same file; without them the next four are absent
 *   /layers/<l>/seq_aa, seq_ab, seq_bb  F64 [E, E] and exact/...: over sequences, of products of a
 *       sequence's own dot and target_sq times 2^-24
 *   /layers/<l>/sequences          U64 [E, E]  sequences that observed the pair
 *   /origin                        a group of text attributes: the manifest, tokens and shard of each part
 *       that was added up.  It records how the file was made, so no digest covers it.
 *   /layers/<l>/vectors/...        statistics_vectors.c; what they were added up over is the fact
 *       accumulate.basis_digest (artifact_basis.h), which files of earlier programs lack
 * Since version 4, each of which may be absent:
 *   /layers/<l>/energy_sum         F64 [E] and exact/...: squares of router weight times norm
 *   /layers/<l>/stream/..., /layers/<l>/routes/...   statistics_routes.c
 *   /layers/<l>/empty_slots        U64 [1]      slots of the layer's tokens without an expert (a hash layer that names an
 *       expert twice for a token); absent: 0
 * Counts obey the rules of counts.h, which every reader checks.
 * A reader of version 1 ignores these without harm, but would take the counts of common_input for damage. */
#include "artifact/statistics.h"
#include "artifact/artifact_basis.h"
#include "artifact/provenance.h"

#include "base/thread_pool.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const exf_artifact exf_artifact_statistics = {.kind = "statistics", .version = 4, .min_reader = 1};
/* Files of common input have min_reader 2, so that readers of version 1 refuse them as too new, not as damaged. */
static const exf_artifact of_common_input = {.kind = "statistics", .version = 4, .min_reader = 2};

/* ---- writing ------------------------------------------------------------ */

enum { PATH_LEN = 96 };

static void layer_path(char out[PATH_LEN], int layer, const char *group, const char *name)
{
    snprintf(out, PATH_LEN, "/layers/%d/%s%s", layer, group, name);
}

/* Returns 1 for facts that a calibration knows only after its pass. */
static int is_late(const char *key)
{
    return exf_weights_facts_key(key) || strcmp(key, EXF_BASIS_FACT) == 0;
}

/* Splits facts: late ones are written last, by merging too,
 * so the file's bytes are the same whoever writes it. */
static exf_code split_facts(const exf_provenance *all, exf_provenance *first, exf_provenance *late, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < all->n; i++)
        rc = exf_provenance_add(is_late(all->key[i]) ? late : first, err, all->key[i], "%s", all->value[i]);
    return rc;
}

exf_code exf_statistics_start(exf_statistics_writer *w, const char *target, int force, const exf_statistics_header *head,
                              exf_err *err)
{
    exf_provenance first = {0};
    exf_code rc;
    memset(w, 0, sizeof *w);
    w->shape = head->shape;
    EXF_TRY(split_facts(head->provenance, &first, &w->late, err));
    w->by_sequence = head->sequences && head->sequences->length;
    w->without_energies = head->without_energies;
    EXF_TRY(exf_artifact_create(&w->h, target, force,
                                head->is_basis       ? &exf_artifact_basis
                                : head->common_input ? &of_common_input
                                                     : &exf_artifact_statistics,
                                &first, err));
    EXF_TRY(exf_run_shape_write(&head->shape, w->h, err));
    EXF_TRY(exf_h5_put_text(w->h, "/", "pairs", head->common_input ? "common_input" : "corouted", err));
    EXF_TRY(exf_layer_numbers_write(head->layer_number, head->n_layers, w->h, err));
    if (w->by_sequence) EXF_TRY(exf_sequence_list_write(head->sequences, w->h, err));
    if (head->origin) EXF_TRY(exf_facts_write(head->origin, "/" EXF_H5_ORIGIN, w->h, err));
out:
    exf_provenance_free(&first);
    if (rc != EXF_OK) exf_statistics_abort(w);
    return rc;
}

exf_code exf_statistics_create(exf_statistics_writer *w, const char *target, int force, const exf_run_shape *shape,
                               const int32_t *layer_numbers, int n_layers, const exf_provenance *p, exf_err *err)
{
    exf_statistics_header head = {.shape = *shape, .layer_number = layer_numbers, .n_layers = n_layers, .provenance = p};
    return exf_statistics_start(w, target, force, &head, err);
}

/* The datasets of one layer. */
enum { MOST_DATASETS = 32 };

typedef struct {
    const exf_exact *sum;
    double *rounded;
    size_t n;
} rounding;

static exf_code round_sums(void *self, size_t i, int worker, exf_err *err)
{
    const rounding *r = &((const rounding *)self)[i];
    (void)worker;
    (void)err;
    for (size_t k = 0; k < r->n; k++) r->rounded[k] = exf_exact_value(&r->sum[k]);
    return EXF_OK;
}

typedef struct {
    const exf_statistics_writer *w;
    int layer;
    exf_tensor t[MOST_DATASETS];
    char path[MOST_DATASETS][PATH_LEN];
    rounding rounded[MOST_DATASETS];
    size_t n, n_rounded;
} datasets;

static void add_dataset(datasets *d, const char *group, const char *name, exf_dtype dtype, int rank, int64_t last, const void *data)
{
    int64_t e = d->w->shape.n_experts;
    size_t i = d->n++;
    layer_path(d->path[i], d->layer, group, name);
    d->t[i] = (exf_tensor){.name = d->path[i], .dtype = dtype, .rank = rank, .shape = {e, e, e}, .data = data};
    d->t[i].shape[rank - 1] = last;
}

/* Adds sums of shape [E] (rank 1) or [E, E] (rank 2), rounded and exact. */
static exf_code put_sums(datasets *d, const char *name, const exf_exact *sum, int rank, exf_err *err)
{
    int64_t e = d->w->shape.n_experts;
    size_t n = (size_t)(rank == 2 ? e * e : e);
    rounding *r = &d->rounded[d->n_rounded];
    exf_code rc = exf_mem_new(&r->rounded, n, sizeof *r->rounded, "rounded sums", err);
    if (rc != EXF_OK) return rc;
    r->sum = sum;
    r->n = n;
    d->n_rounded++;
    add_dataset(d, "", name, EXF_DT_F64, rank, e, r->rounded);
    add_dataset(d, "exact/", name, EXF_DT_U64, rank + 1, 3, sum);
    return EXF_OK;
}

static void put_counts(datasets *d, const char *name, const uint64_t *count, int rank)
{
    add_dataset(d, "", name, EXF_DT_U64, rank, d->w->shape.n_experts, count);
}

exf_code exf_statistics_put(exf_statistics_writer *w, int layer_number, const exf_layer_statistics *s, exf_err *err)
{
    datasets d = {.w = w, .layer = layer_number};
    exf_code rc;
#define X(name) EXF_TRY(put_sums(&d, #name, s->name, 2, err));
    EXF_PAIR_SUMS(X)
#undef X
#define X(name) EXF_TRY(put_sums(&d, #name, s->name, 1, err));
    EXF_EXPERT_SUMS_OF_VERSION_1(X)
    if (!w->without_energies) X(energy_sum)
#undef X
    put_counts(&d, "count", s->count, 2);
    put_counts(&d, "norm_count", s->norm_count, 1);
    if (w->by_sequence) {
#define X(name) EXF_TRY(put_sums(&d, #name, s->name, 2, err));
        EXF_SEQUENCE_SUMS(X)
#undef X
        put_counts(&d, "sequences", s->sequences, 2);
    }
    EXF_TRY(exf_parallel_for(d.n_rounded, exf_background_threads(), round_sums, d.rounded, err));
    for (size_t i = 0; i < d.n; i++) EXF_TRY(exf_h5_write(w->h, &d.t[i], err));
    rc = exf_statistics_put_routes(w, layer_number, s, err);
out:
    for (size_t i = 0; i < MOST_DATASETS; i++) exf_mem_free(d.rounded[i].rounded);
    return rc;
}

exf_code exf_statistics_add_facts(exf_statistics_writer *w, const exf_provenance *p, exf_err *err)
{
    return exf_provenance_copy(&w->late, p, err);
}

exf_code exf_statistics_commit(exf_statistics_writer *w, char digest[EXF_SHA256_HEX], exf_err *err)
{
    exf_h5 *h;
    exf_code rc;
    EXF_TRY(exf_facts_append(&w->late, "/provenance", w->h, err));
    if (digest) EXF_TRY(exf_h5_digest(w->h, digest, err));
    h = w->h;
    w->h = NULL;
    rc = exf_h5_commit(h, err);
out:
    exf_statistics_abort(w);
    return rc;
}

void exf_statistics_abort(exf_statistics_writer *w)
{
    exf_provenance_free(&w->late);
    exf_h5_close(w->h);
    w->h = NULL;
}

/* ---- reading -------------------------------------------------------------- */

static exf_code look_for_pairs(void *self, const char *name, exf_err *err)
{
    (void)err;
    *(int *)self |= strcmp(name, "pairs") == 0;
    return EXF_OK;
}

/* Reads the attribute `pairs`; version 1 had co-routed pairs only. */
static exf_code read_pairs(exf_statistics_reader *r, exf_err *err)
{
    char *pairs = NULL;
    int listed = 0;
    exf_code rc = exf_h5_attrs(r->h, "/", look_for_pairs, &listed, err);
    if (rc != EXF_OK || !listed) return rc;
    rc = exf_h5_get_text(r->h, "/", "pairs", &pairs, err);
    if (rc != EXF_OK) return rc;
    r->common_input = strcmp(pairs, "common_input") == 0;
    if (!r->common_input && strcmp(pairs, "corouted") != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: pairs is \"%s\", expected corouted or common_input", exf_h5_path(r->h), pairs);
    exf_mem_free(pairs);
    return rc;
}

static exf_code look_for_energies(void *self, const char *name, exf_err *err)
{
    (void)err;
    *(int *)self |= strcmp(name, "energy_sum") == 0;
    return EXF_OK;
}

/* Looks at the first layer's pair sums, before anybody takes memory for layers of that many experts. */
static exf_code expect_layer(exf_statistics_reader *r, exf_err *err)
{
    int64_t e = r->shape.n_experts;
    char path[PATH_LEN];
    exf_code rc = EXF_OK;
#define X(sum)                                                                                      \
    if (rc == EXF_OK) {                                                                             \
        exf_tensor t = {.name = path, .dtype = EXF_DT_U64, .rank = 3, .shape = {e, e, 3}};          \
        layer_path(path, r->layer_number[0], "exact/", #sum);                                       \
        rc = exf_h5_expect(r->h, &t, err);                                                          \
    }
    EXF_PAIR_SUMS(X)
#undef X
    snprintf(path, sizeof path, "/layers/%d", (int)r->layer_number[0]);
    return rc == EXF_OK ? exf_h5_members(r->h, path, look_for_energies, &r->has_energies, err) : rc;
}

exf_code exf_statistics_open(exf_statistics_reader *r, const char *path, exf_err *err)
{
    exf_code rc;
    memset(r, 0, sizeof *r);
    EXF_TRY(exf_artifact_open(&r->h, path, &exf_artifact_statistics, NULL, &r->provenance, err));
    EXF_TRY(exf_run_shape_read(&r->shape, r->h, err));
    EXF_TRY(exf_layer_numbers_read(&r->layer_number, &r->n_layers, &r->provenance, r->h, err));
    EXF_TRY(read_pairs(r, err));
    EXF_TRY(exf_sequence_list_read(&r->sequences, r->shape.n_sequences, r->shape.n_tokens, r->h, err));
    if (r->common_input)
        EXF_TRY(exf_common_tokens_of(&r->common, &r->shape, &r->sequences, &r->provenance, path, err));
    EXF_TRY(exf_facts_read(&r->origin, "/" EXF_H5_ORIGIN, r->h, err));
    EXF_TRY(expect_layer(r, err));
out:
    if (rc != EXF_OK) exf_statistics_close(r);
    return rc;
}

/* Compares rounded sums with exact ones. */
typedef struct {
    const exf_statistics_reader *r;
    const char *path;
    const exf_exact *sum;
    const double *rounded;
    size_t n;
} rounding_check;

enum { CHECKED_AT_ONCE = 4096 };

static exf_code check_rounded(void *self, size_t part, int worker, exf_err *err)
{
    const rounding_check *c = self;
    size_t end = (part + 1) * CHECKED_AT_ONCE;
    (void)worker;
    for (size_t i = part * CHECKED_AT_ONCE; i < end && i < c->n; i++)
        if (!(c->rounded[i] == exf_exact_value(&c->sum[i])))
            return exf_fail(err, EXF_FORMAT, "%s: %s[%zu] is %.17g, its exact sum is %.17g", exf_h5_path(c->r->h), c->path, i,
                            c->rounded[i], exf_exact_value(&c->sum[i]));
    return EXF_OK;
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
    rounding_check check = {r, path, sum, rounded, n};
    rc = exf_parallel_for((n + CHECKED_AT_ONCE - 1) / CHECKED_AT_ONCE, exf_background_threads(), check_rounded, &check, err);
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

static exf_code check_counts(const exf_statistics_reader *r, int layer, const exf_layer_statistics *s, exf_err *err)
{
    char pairs[PATH_LEN], experts[PATH_LEN];
    layer_path(pairs, layer, "", "count[");
    layer_path(experts, layer, "", "norm_count[");
    exf_layer_counts c = {.path = exf_h5_path(r->h), .layer = layer, .pairs = pairs, .experts = experts, .run = &r->shape,
                          .common = r->common, .count = s->count, .expert_count = s->norm_count, .empty_slots = *s->empty_slots};
    return exf_counts_check(&c, err);
}

/* Checks sequence counts: 0 for a pair without tokens, else at least one and at most one per token. */
static exf_code check_sequences(const exf_statistics_reader *r, int layer, const exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    for (size_t i = 0; i < e * e; i++)
        if (s->sequences[i] > s->count[i] || s->sequences[i] > r->sequences.n || (s->count[i] && !s->sequences[i]))
            return exf_fail(err, EXF_FORMAT, "%s: /layers/%d/sequences[%zu, %zu] is %llu for %llu tokens of %zu sequences",
                            exf_h5_path(r->h), layer, i / e, i % e, (unsigned long long)s->sequences[i],
                            (unsigned long long)s->count[i], r->sequences.n);
    return EXF_OK;
}

static exf_code get_sequences(exf_statistics_reader *r, int layer, exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    exf_code rc = EXF_OK;
    if (!r->sequences.length) {
#define X(name) memset(s->name, 0, e *e * sizeof *s->name);
        EXF_SEQUENCE_SUMS(X)
        X(sequences)
#undef X
        return EXF_OK;
    }
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 2, err));
    EXF_SEQUENCE_SUMS(X)
#undef X
    EXF_TRY(get_counts(r, layer, "sequences", s->sequences, 2, err));
    EXF_TRY(check_sequences(r, layer, s, err));
out:
    return rc;
}

exf_code exf_statistics_get(exf_statistics_reader *r, int i, exf_layer_statistics *s, exf_err *err)
{
    int layer = r->layer_number[i];
    exf_code rc;
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 2, err));
    EXF_PAIR_SUMS(X)
#undef X
#define X(name) EXF_TRY(get_sums(r, layer, #name, s->name, 1, err));
    EXF_EXPERT_SUMS_OF_VERSION_1(X)
    memset(s->energy_sum, 0, (size_t)s->n_experts * sizeof *s->energy_sum);
    if (r->has_energies) X(energy_sum)
#undef X
    EXF_TRY(get_counts(r, layer, "count", s->count, 2, err));
    EXF_TRY(get_counts(r, layer, "norm_count", s->norm_count, 1, err));
    EXF_TRY(exf_statistics_get_routes(r, i, s, err));
    EXF_TRY(check_counts(r, layer, s, err));
    EXF_TRY(get_sequences(r, layer, s, err));
out:
    return rc;
}

void exf_statistics_close(exf_statistics_reader *r)
{
    exf_h5_close(r->h);
    exf_mem_free(r->layer_number);
    exf_provenance_free(&r->provenance);
    exf_provenance_free(&r->origin);
    exf_sequence_list_free(&r->sequences);
    memset(r, 0, sizeof *r);
}
