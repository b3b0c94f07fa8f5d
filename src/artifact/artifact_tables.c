/* artifact_tables.c - the file format `tables`, version 6.
 *
 * Root attributes beside those of artifact.h:
 *   n_experts, top_k, d_model, n_sequences, n_tokens   i64
 * Datasets, L MoE layers, E = n_experts, H = d_model (tables.h says more):
 *   /layer_numbers        I32 [L]       the model's layer numbers, ascending
 *   /coeff                F32 [L, E, E] scalars S: row = source, column = target
 *   /loss                 F32 [L, E, E] what S misses: 1e30 where there is no evidence, and on the diagonal
 *   /expert_norms         F32 [L, E]    mean output norm; a cold expert has the median of those above 0
 *   /count                U64 [L, E, E] tokens in which a pair was observed
 *   /expert_count         U64 [L, E]    tokens routed to an expert
 *   /pools/<D>/members       I32 [L, D] by falling norm
 *   /pools/<D>/target_ids    I32 [L, E] where each expert's contribution goes
 *   /pools/<D>/target_scale  F32 [L, E] and times what
 * Since version 2, each of which may be absent:
 *   /cosine               F32 [L, E, E] of outputs on shared tokens; since version 6 made a correlation matrix, which unobserved
 *                                       pairs have a part in; before that the mean, 0 for an unobserved pair
 *   /rms                  F32 [L, E]    root mean square output norm; a cold expert has the median of those above 0
 *   /contribution         F32 [L, E]    mean of router weight times norm over an expert's tokens
 *   /similarity           F32 [L, E, E] 1 - distance / largest distance of outputs
 *   /std_error            F32 [L, E, E] of S, a jackknife over sequences; 1e30 where it is not known
 *   /shared/<name>/scalar F32 [L]       one for all pairs of a layer, or of the model; name: layer, global
 *   /shared/<name>/loss   F32 [L, E, E] of those scalars
 *   /vectors/pair          I32 [N, 3]    layer index, source, target; ascending
 *   /vectors/diagonal      F32 [N, H]    a factor for every element of the output
 *   /vectors/diagonal_loss F32 [L, E, E] of the diagonals; a pair without one keeps its scalar's
 *   /vectors/basis         F32 [L, H, R] orthonormal columns Q
 *   /vectors/lowrank/<R>/c F32 [N, R, H] C of the projector S I + Q C
 * Since version 4, which may be absent:
 *   /frobenius            F32 [L, E, E] what S misses by Frobenius norm, no token weighted; as /loss where there is none
 *   /empty_slots          U64 [L]       slots of a layer's tokens without an expert (see statistics); absent: 0
 *   /bare_count           U64 [L, E]    as /expert_count, /expert_norms and /contribution, of the tokens of common input and the
 *   /bare_norms, /bare_contribution  F32 [L, E]  routes that REAP's code makes of them; all three or none
 * Since version 5, which may be absent:
 *   /sequence_digests     U64 [n_sequences]  the first 8 bytes of each sequence's SHA-256 (see statistics), rising
 *   /document_sketches    U8 [D, 128]   of the documents of these sequences (see statistics); absent: not known
 *   /half_scalar, /half_loss  F32 [2, L, E, E]  both or neither: coeff and loss as each half of the data alone gives them (see
 *                                          statistics)
 *   /norm_head/basis, /norm_head/theta  F32 [L, H, q], [L, E, q + 4]  all six or none: log ||u|| of an expert's output u on a
 *                                          token is about theta' phi, phi = [1, V'x, the expert's router logit less the mean
 *                                          logit, log w, log ||x||] with V the basis; [log rms, 0, ...] where it is not known
 *   /norm_head/explained, /norm_head/error  F32 [L, E]  share of the variance of log ||u|| about log rms, its standard error
 *   /norm_head/layer_explained, /norm_head/layer_error  F32 [L]  of all experts of a layer
 * Since version 6:
 *   /relative_norms       F32 [L, E]    norms whose ratios are those on the tokens that two experts share
 *   /least_eigenvalue, /median_cosine_sq, /near_copies  F32 [L]  of the mean cosines: the matrix's least eigenvalue, the median
 *                                          squared cosine of observed pairs, the share of their tokens in pairs of 0.9 or more
 * Counts obey the rules of data.h, which every reader checks.
 * Tables of some shards of a corpus have the fact data.part in /provenance, "shards 1, 2 of 3 of corpus DIGITS".
 * A reader before version 6 expects a cosine of 0 for unobserved pairs: exfold_min_reader is 6. */
#include "artifact/tables.h"

#include "base/mem.h"
#include "base/names.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tables by name ---------------------------------------------------- */

enum { PATH_LEN = 64 };
/* Fixed tables, and most per pool and shared scalar; the list of pairs with vectors. */
enum { FIXED = 21, PER_POOL = 3, PER_SHARED = 2, LIST_OF_PAIRS = 1 };

/* A list that is being made. */
typedef struct {
    exf_table_list *out;
    int halves;  /* 1: with the tables of each half */
    int in_file; /* 1: "/pools/8/members", as files name it; 0: "pools.8.members", as exports do */
} listing;

static exf_tensor view(exf_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, const void *data)
{
    return (exf_tensor){.dtype = dtype, .rank = rank, .shape = {a, b, c}, .data = data};
}

/* Describes the tables of both halves, half 0's first. */
static exf_tensor view_halves(const listing *list, int64_t l, int64_t e, const float *data)
{
    return (exf_tensor){.dtype = EXF_DT_F32, .rank = 4, .shape = {2, l, e, e}, .data = list->halves ? data : NULL};
}

/* Adds a table; one that is not there is passed over. */
static void add_table(listing *l, const char *group, const char *part, exf_tensor t)
{
    exf_table_list *out = l->out;
    char *name = out->name[out->n];
    if (!t.data) return;
    snprintf(name, EXF_TABLE_NAME, "%s%.32s%s%.28s", l->in_file ? "/" : "", group, *group ? "/" : "", part);
    for (char *c = name; !l->in_file && *c; c++)
        if (*c == '/') *c = '.';
    t.name = name;
    out->tensor[out->n++] = t;
}

/* Lists all but budgets and vectors. */
static void add_datasets(listing *list, const exf_tables *t)
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    const struct {
        const char *name;
        exf_tensor tensor;
    } fixed[FIXED] = {
        {"coeff", view(EXF_DT_F32, 3, l, e, e, t->coeff)},
        {"loss", view(EXF_DT_F32, 3, l, e, e, t->loss)},
        {"expert_norms", view(EXF_DT_F32, 2, l, e, 0, t->expert_norms)},
        {"count", view(EXF_DT_U64, 3, l, e, e, t->count)},
        {"expert_count", view(EXF_DT_U64, 2, l, e, 0, t->expert_count)},
        {"empty_slots", view(EXF_DT_U64, 1, l, 0, 0, t->empty_slots)},
        {"cosine", view(EXF_DT_F32, 3, l, e, e, t->cosine)},
        {"rms", view(EXF_DT_F32, 2, l, e, 0, t->rms)},
        {"relative_norms", view(EXF_DT_F32, 2, l, e, 0, t->relative_norms)},
        {"least_eigenvalue", view(EXF_DT_F32, 1, l, 0, 0, t->least_eigenvalue)},
        {"median_cosine_sq", view(EXF_DT_F32, 1, l, 0, 0, t->median_cosine_sq)},
        {"near_copies", view(EXF_DT_F32, 1, l, 0, 0, t->near_copies)},
        {"contribution", view(EXF_DT_F32, 2, l, e, 0, t->contribution)},
        {"bare_count", view(EXF_DT_U64, 2, l, e, 0, t->bare_count)},
        {"bare_norms", view(EXF_DT_F32, 2, l, e, 0, t->bare_norms)},
        {"bare_contribution", view(EXF_DT_F32, 2, l, e, 0, t->bare_contribution)},
        {"similarity", view(EXF_DT_F32, 3, l, e, e, t->similarity)},
        {"frobenius", view(EXF_DT_F32, 3, l, e, e, t->frobenius)},
        {"std_error", view(EXF_DT_F32, 3, l, e, e, t->std_error)},
        {"half_scalar", view_halves(list, l, e, t->half_scalar[0])},
        {"half_loss", view_halves(list, l, e, t->half_loss[0])},
    };
    char group[48];
    for (size_t i = 0; i < FIXED; i++) add_table(list, "", fixed[i].name, fixed[i].tensor);
    for (int i = 0; i < t->n_pools; i++) {
        const exf_static_pool *p = &t->pool[i];
        if (strcmp(p->by, exf_pool_criteria[EXF_POOL_BY_NORM]) == 0)
            snprintf(group, sizeof group, "pools/%d", p->size);
        else
            snprintf(group, sizeof group, "pools_by/%.15s/%d", p->by, p->size);
        add_table(list, group, "members", view(EXF_DT_I32, 2, l, p->size, 0, p->members));
        add_table(list, group, "target_ids", view(EXF_DT_I32, 2, l, e, 0, p->target_ids));
        add_table(list, group, "target_scale", view(EXF_DT_F32, 2, l, e, 0, p->target_scale));
    }
    for (int i = 0; i < t->n_shared; i++) {
        snprintf(group, sizeof group, "shared/%.15s", t->shared[i].name);
        add_table(list, group, "scalar", view(EXF_DT_F32, 1, l, 0, 0, t->shared[i].scalar));
        add_table(list, group, "loss", view(EXF_DT_F32, 3, l, e, e, t->shared[i].loss));
    }
}

static exf_code new_list(exf_table_list *l, const exf_tables *t, exf_err *err)
{
    size_t cap = FIXED + (size_t)t->n_pools * PER_POOL + (size_t)t->n_shared * PER_SHARED +
                 (size_t)t->n_budgets * EXF_BUDGET_PARTS + EXF_NORM_HEAD_PARTS + LIST_OF_PAIRS + (size_t)t->vectors.n_arrays;
    exf_code rc;
    memset(l, 0, sizeof *l);
    EXF_TRY(exf_mem_new(&l->tensor, cap, sizeof *l->tensor, "table list", err));
    EXF_TRY(exf_mem_new(&l->name, cap, sizeof *l->name, "table names", err));
out:
    if (rc != EXF_OK) exf_table_list_free(l);
    return rc;
}

exf_code exf_table_list_make(exf_table_list *l, const exf_tables *t, int halves, exf_err *err)
{
    listing list = {l, halves, 0};
    const exf_vectors *v = &t->vectors;
    char name[EXF_VECTOR_NAME], group[48];
    exf_code rc = new_list(l, t, err);
    if (rc != EXF_OK) return rc;
    add_datasets(&list, t);
    for (int i = 0; i < t->n_budgets; i++) {
        snprintf(group, sizeof group, "budgets/%.5g/%.8s", t->budget[i].budget, t->budget[i].rule);
        for (int k = 0; k < EXF_BUDGET_PARTS; k++) {
            exf_tensor x = exf_budget_tensor(t, &t->budget[i], k);
            add_table(&list, group, x.name, x);
        }
    }
    for (int i = 0; t->norm_head.q && i < EXF_NORM_HEAD_PARTS; i++) {
        exf_tensor x = exf_norm_head_tensor(t, i);
        add_table(&list, "norm_head", x.name, x);
    }
    if (v->n_pairs) add_table(&list, "vectors", "pair", view(EXF_DT_I32, 2, v->n_pairs, 3, 0, v->pair));
    for (int i = 0; v->n_pairs && i < v->n_arrays; i++) {
        exf_vector_array_name(name, &v->array[i]);
        add_table(&list, "vectors", name, exf_vector_array_tensor(t, &v->array[i]));
    }
    return EXF_OK;
}

void exf_table_list_free(exf_table_list *l)
{
    exf_mem_free(l->tensor);
    exf_mem_free(l->name);
    memset(l, 0, sizeof *l);
}

typedef enum { WRITE, EXPECT, READ } action;

/* Does the same with each dataset of a file but /layer_numbers, /budgets, /norm_head and /vectors. */
static exf_code do_with_datasets(action what, const exf_tables *t, exf_h5 *h, exf_err *err)
{
    exf_table_list all;
    listing list = {&all, 1, 1};
    exf_code rc = new_list(&all, t, err);
    if (rc != EXF_OK) return rc;
    add_datasets(&list, t);
    for (size_t i = 0; rc == EXF_OK && i < all.n; i++) {
        const exf_tensor *x = &all.tensor[i];
        rc = what == WRITE    ? exf_h5_write(h, x, err)
             : what == EXPECT ? exf_h5_expect(h, x, err)
                              : exf_h5_read(h, x, (void *)(uintptr_t)x->data, err);
    }
    exf_table_list_free(&all);
    return rc;
}

/* ---- writing ----------------------------------------------------------------- */

exf_code exf_tables_write(const exf_tables *t, const char *target, int force, char digest[EXF_SHA256_HEX], exf_err *err)
{
    exf_code rc;
    exf_h5 *h = NULL;
    EXF_TRY(exf_artifact_create(&h, target, force, NULL, &exf_artifact_tables, &t->provenance, err));
    EXF_TRY(exf_run_shape_write(&t->shape, h, err));
    EXF_TRY(exf_layer_numbers_write(t->layer_number, t->n_layers, h, err));
    EXF_TRY(do_with_datasets(WRITE, t, h, err));
    EXF_TRY(exf_tables_sequences_write(t, h, err));
    EXF_TRY(exf_budgets_write(t, h, err));
    EXF_TRY(exf_norm_head_write(t, h, err));
    EXF_TRY(exf_vectors_write(t, h, err));
    if (digest) EXF_TRY(exf_h5_digest(h, digest, err));
    rc = exf_h5_commit(h, err);
    h = NULL;
out:
    exf_h5_close(h);
    return rc;
}

/* ---- reading ---------------------------------------------------------------- */

enum { MOST_POOLS = 64 * EXF_POOL_CRITERIA };

/* The optional datasets that a file has. */
typedef struct {
    const char *path;
    int64_t n_experts;
    exf_static_pool pool[MOST_POOLS]; /* sizes and criteria of its pools */
    size_t n;
    const char *by; /* criterion of the group that is being listed */
    char shared[8][sizeof(((exf_shared_scalar *)0)->name)];
    size_t n_shared;
    int pools, pools_by, patterns, budgets, norm_head, empty_slots, cosine, rms, contribution, similarity, frobenius, std_error,
        relative_norms, half_scalar, bare_count;
} contents;

static exf_code note_member(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    (void)err;
    c->pools |= strcmp(name, "pools") == 0;
    c->pools_by |= strcmp(name, "pools_by") == 0;
    c->budgets |= strcmp(name, "budgets") == 0;
    c->norm_head |= strcmp(name, "norm_head") == 0;
    c->patterns |= strcmp(name, "shared") == 0;
#define X(field) c->field |= strcmp(name, #field) == 0;
    X(empty_slots) X(cosine) X(rms) X(contribution) X(similarity) X(frobenius) X(std_error) X(relative_norms) X(half_scalar)
    X(bare_count)
#undef X
    return EXF_OK;
}

static exf_code note_pool(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    int64_t size;
    if (!exf_parse_i64(name, &size)) return exf_fail(err, EXF_FORMAT, "%s: /pools/%s is no pool size", c->path, name);
    if (size < 1 || size > c->n_experts)
        return exf_fail(err, EXF_FORMAT, "%s: a decode pool of %lld experts: the model has %lld", c->path, (long long)size,
                        (long long)c->n_experts);
    if (c->n == MOST_POOLS) return exf_fail(err, EXF_FORMAT, "%s: more than %zu pools", c->path, c->n);
    c->pool[c->n] = (exf_static_pool){.size = (int)size};
    snprintf(c->pool[c->n++].by, sizeof c->pool->by, "%s", c->by);
    return EXF_OK;
}

static int criterion_of(const char *name)
{
    return exf_name_place(exf_pool_criteria, EXF_POOL_CRITERIA, name);
}

typedef struct {
    contents *c;
    exf_h5 *h;
} pool_listing;

/* Lists the pools of one criterion. */
static exf_code note_criterion(void *self, const char *name, exf_err *err)
{
    pool_listing *p = self;
    char group[PATH_LEN];
    if (criterion_of(name) == 0 || criterion_of(name) == EXF_POOL_CRITERIA)
        return exf_fail(err, EXF_FORMAT, "%s: /pools_by/%s, expected reap, energy, frequency, ean or weighted_ean", p->c->path,
                        name);
    p->c->by = exf_pool_criteria[criterion_of(name)];
    snprintf(group, sizeof group, "/pools_by/%s", p->c->by);
    return exf_h5_members(p->h, group, note_pool, p->c, err);
}

static exf_code note_shared(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    if (strlen(name) >= sizeof c->shared[0] || c->n_shared == sizeof c->shared / sizeof *c->shared)
        return exf_fail(err, EXF_FORMAT, "%s: /shared/%s is no sharing pattern that could be", c->path, name);
    snprintf(c->shared[c->n_shared++], sizeof c->shared[0], "%s", name);
    return EXF_OK;
}

/* Orders pools by falling size, those of one size as exf_pool_criteria. */
static int compare_pools(const void *a, const void *b)
{
    const exf_static_pool *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return criterion_of(x->by) - criterion_of(y->by);
}

/* Looks at all datasets, before memory is taken for tables of that shape. */
static exf_code expect_all(const contents *c, const exf_run_shape *shape, int n_layers, exf_h5 *h, exf_err *err)
{
    static float some[1];
    static uint64_t count[1];
    static int32_t ids[1];
    exf_static_pool pool[MOST_POOLS];
    exf_shared_scalar shared[sizeof c->shared / sizeof *c->shared];
    exf_tables t = {.shape = *shape, .n_layers = n_layers, .coeff = some, .loss = some, .expert_norms = some, .count = count,
                    .expert_count = count, .pool = pool, .n_pools = (int)c->n, .shared = shared, .n_shared = (int)c->n_shared};
    t.empty_slots = c->empty_slots ? count : NULL;
#define X(field) t.field = c->field ? some : NULL;
    X(cosine) X(rms) X(contribution) X(similarity) X(frobenius) X(std_error)
#undef X
    t.half_scalar[0] = t.half_loss[0] = c->half_scalar ? some : NULL;
    t.relative_norms = t.least_eigenvalue = t.median_cosine_sq = t.near_copies = c->relative_norms ? some : NULL;
    t.bare_count = c->bare_count ? count : NULL;
    t.bare_norms = t.bare_contribution = c->bare_count ? some : NULL;
    for (size_t i = 0; i < c->n; i++) {
        pool[i] = c->pool[i];
        pool[i].members = pool[i].target_ids = ids;
        pool[i].target_scale = some;
    }
    for (size_t i = 0; i < c->n_shared; i++) {
        shared[i] = (exf_shared_scalar){.scalar = some, .loss = some};
        memcpy(shared[i].name, c->shared[i], sizeof shared[i].name);
    }
    return do_with_datasets(EXPECT, &t, h, err);
}

static exf_code add_optional(exf_tables *t, const contents *c, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t rows = (size_t)t->n_layers * (size_t)t->shape.n_experts, cells = rows * (size_t)t->shape.n_experts;
    exf_shared_scalar *s;
    if (c->empty_slots) EXF_TRY(exf_mem_new(&t->empty_slots, (size_t)t->n_layers, sizeof *t->empty_slots, "tables", err));
    if (c->cosine && !c->relative_norms) EXF_TRY(exf_mem_new(&t->cosine, cells, sizeof *t->cosine, "tables", err));
    if (c->relative_norms) EXF_TRY(exf_tables_add_correlations(t, err));
    if (c->rms) EXF_TRY(exf_mem_new(&t->rms, rows, sizeof *t->rms, "tables", err));
    if (c->contribution) EXF_TRY(exf_mem_new(&t->contribution, rows, sizeof *t->contribution, "tables", err));
    if (c->similarity) EXF_TRY(exf_mem_new(&t->similarity, cells, sizeof *t->similarity, "tables", err));
    if (c->frobenius) EXF_TRY(exf_mem_new(&t->frobenius, cells, sizeof *t->frobenius, "tables", err));
    if (c->std_error) EXF_TRY(exf_mem_new(&t->std_error, cells, sizeof *t->std_error, "tables", err));
    if (c->half_scalar) EXF_TRY(exf_tables_add_halves(t, err));
    if (c->bare_count) EXF_TRY(exf_tables_add_bare(t, err));
    for (size_t i = 0; i < c->n_shared; i++) EXF_TRY(exf_tables_add_shared(t, c->shared[i], &s, err));
out:
    return rc;
}

exf_code exf_tables_read(exf_tables *t, const char *path, exf_err *err)
{
    exf_code rc;
    exf_h5 *h = NULL;
    exf_provenance provenance = {0};
    exf_run_shape shape;
    int32_t *numbers = NULL;
    int64_t sizes[MOST_POOLS];
    int n_layers = 0;
    contents listed = {.path = path};
    memset(t, 0, sizeof *t);
    if (exf_st_is_one(path)) return exf_tables_read_safetensors(t, path, err);
    EXF_TRY(exf_artifact_open(&h, path, &exf_artifact_tables, NULL, &provenance, err));
    EXF_TRY(exf_run_shape_read(&shape, h, err));
    EXF_TRY(exf_layer_numbers_read(&numbers, &n_layers, &provenance, h, err));
    listed.n_experts = shape.n_experts;
    EXF_TRY(exf_h5_members(h, "/", note_member, &listed, err));
    pool_listing p = {&listed, h};
    listed.by = exf_pool_criteria[EXF_POOL_BY_NORM];
    if (listed.pools) EXF_TRY(exf_h5_members(h, "/pools", note_pool, &listed, err));
    if (listed.pools_by) EXF_TRY(exf_h5_members(h, "/pools_by", note_criterion, &p, err));
    if (listed.patterns) EXF_TRY(exf_h5_members(h, "/shared", note_shared, &listed, err));
    qsort(listed.pool, listed.n, sizeof *listed.pool, compare_pools);
    EXF_TRY(expect_all(&listed, &shape, n_layers, h, err));
    for (size_t i = 0; i < listed.n; i++) sizes[i] = listed.pool[i].size;
    EXF_TRY(exf_tables_new(t, &shape, numbers, n_layers, sizes, listed.n, err));
    for (size_t i = 0; i < listed.n; i++) memcpy(t->pool[i].by, listed.pool[i].by, sizeof t->pool[i].by);
    t->provenance = provenance;
    memset(&provenance, 0, sizeof provenance);
    EXF_TRY(add_optional(t, &listed, err));
    EXF_TRY(do_with_datasets(READ, t, h, err));
    if (listed.budgets) EXF_TRY(exf_budgets_read(t, h, err));
    if (listed.norm_head) EXF_TRY(exf_norm_head_read(t, h, err));
    EXF_TRY(exf_tables_sequences_read(t, h, err));
    EXF_TRY(exf_tables_check(t, path, err));
out:
    exf_h5_close(h);
    exf_mem_free(numbers);
    exf_provenance_free(&provenance);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}
