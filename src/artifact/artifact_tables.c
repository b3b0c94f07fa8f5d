/* artifact_tables.c - the file format `tables`, version 4.
 *
 * Root attributes beside those of artifact.h:
 *   n_experts, top_k, d_model, n_sequences, n_tokens   i64
 * Datasets, L MoE layers, E = n_experts, H = d_model (tables.h says more):
 *   /layer_numbers        I32 [L]       the model's layer numbers, ascending
 *   /coeff                F32 [L, E, E] scalars S: row = source, column = target
 *   /loss                 F32 [L, E, E] what S misses: 1e30 where there is no evidence, and on the diagonal
 *   /expert_norms         F32 [L, E]    mean output norm; a cold expert has the median of those above 0
 *   /count                U64 [L, E, E] tokens behind a pair
 *   /expert_count         U64 [L, E]    tokens routed to an expert
 *   /pools/<D>/members       I32 [L, D] by falling norm
 *   /pools/<D>/target_ids    I32 [L, E] where each expert's contribution goes
 *   /pools/<D>/target_scale  F32 [L, E] and times what
 * Since version 2, each of which may be absent:
 *   /cosine               F32 [L, E, E] of outputs on shared tokens
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
 * Counts obey the rules of counts.h, which every reader checks.
 * Tables of some shards of a corpus have the fact data.part in /provenance, "shards 1, 2 of 3 of corpus DIGITS".
 * Later versions only add datasets, so a reader of version 1 can read the file: exfold_min_reader is 1. */
#include "artifact/tables.h"

#include "base/mem.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const exf_artifact exf_artifact_tables = {.kind = "tables", .version = 4, .min_reader = 1};

/* ---- the list of datasets, for writing and for reading -------------------- */

enum { PATH_LEN = 64 };

typedef struct {
    char path[PATH_LEN];
    exf_dtype dtype;
    int rank;
    int64_t shape[3];
    void *data;
} dataset;

typedef exf_code (*visitor)(const dataset *d, exf_h5 *h, exf_err *err);

/* Visits the members of one group, each under its own name. */
static exf_code each_part(dataset *part, size_t n, const char *group, visitor visit, exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t k = 0; rc == EXF_OK && k < n; k++) {
        char name[PATH_LEN];
        memcpy(name, part[k].path, sizeof name);
        snprintf(part[k].path, PATH_LEN, "%.40s/%.20s", group, name);
        rc = visit(&part[k], h, err);
    }
    return rc;
}

static exf_code each_group(const exf_tables *t, visitor visit, exf_h5 *h, exf_err *err)
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    exf_code rc = EXF_OK;
    char group[PATH_LEN];
    for (int i = 0; rc == EXF_OK && i < t->n_pools; i++) {
        const exf_static_pool *p = &t->pool[i];
        dataset part[] = {
            {"members", EXF_DT_I32, 2, {l, p->size}, p->members},
            {"target_ids", EXF_DT_I32, 2, {l, e}, p->target_ids},
            {"target_scale", EXF_DT_F32, 2, {l, e}, p->target_scale},
        };
        if (strcmp(p->by, "norm") == 0)
            snprintf(group, sizeof group, "/pools/%d", p->size);
        else
            snprintf(group, sizeof group, "/pools_by/%s/%d", p->by, p->size);
        rc = each_part(part, sizeof part / sizeof *part, group, visit, h, err);
    }
    for (int i = 0; rc == EXF_OK && i < t->n_shared; i++) {
        const exf_shared_scalar *s = &t->shared[i];
        dataset part[] = {
            {"scalar", EXF_DT_F32, 1, {l}, s->scalar},
            {"loss", EXF_DT_F32, 3, {l, e, e}, s->loss},
        };
        snprintf(group, sizeof group, "/shared/%s", s->name);
        rc = each_part(part, sizeof part / sizeof *part, group, visit, h, err);
    }
    return rc;
}

/* Calls visit(dataset) for all datasets that t has but /layer_numbers and /vectors. */
static exf_code each_dataset(const exf_tables *t, visitor visit, exf_h5 *h, exf_err *err)
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    const dataset fixed[] = {
        {"/coeff", EXF_DT_F32, 3, {l, e, e}, t->coeff},
        {"/loss", EXF_DT_F32, 3, {l, e, e}, t->loss},
        {"/expert_norms", EXF_DT_F32, 2, {l, e}, t->expert_norms},
        {"/count", EXF_DT_U64, 3, {l, e, e}, t->count},
        {"/expert_count", EXF_DT_U64, 2, {l, e}, t->expert_count},
        {"/empty_slots", EXF_DT_U64, 1, {l}, t->empty_slots},
        {"/cosine", EXF_DT_F32, 3, {l, e, e}, t->cosine},
        {"/rms", EXF_DT_F32, 2, {l, e}, t->rms},
        {"/contribution", EXF_DT_F32, 2, {l, e}, t->contribution},
        {"/similarity", EXF_DT_F32, 3, {l, e, e}, t->similarity},
        {"/frobenius", EXF_DT_F32, 3, {l, e, e}, t->frobenius},
        {"/std_error", EXF_DT_F32, 3, {l, e, e}, t->std_error},
    };
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < sizeof fixed / sizeof *fixed; i++)
        if (fixed[i].data) rc = visit(&fixed[i], h, err);
    return rc == EXF_OK ? each_group(t, visit, h, err) : rc;
}

static exf_code write_one(const dataset *d, exf_h5 *h, exf_err *err)
{
    exf_tensor t = {
        .name = d->path, .dtype = d->dtype, .rank = d->rank, .shape = {d->shape[0], d->shape[1], d->shape[2]}, .data = d->data};
    return exf_h5_write(h, &t, err);
}

static exf_code read_one(const dataset *d, exf_h5 *h, exf_err *err)
{
    exf_tensor t = {.name = d->path, .dtype = d->dtype, .rank = d->rank, .shape = {d->shape[0], d->shape[1], d->shape[2]}};
    return exf_h5_read(h, &t, d->data, err);
}

exf_code exf_tables_write(const exf_tables *t, const char *target, int force, exf_err *err)
{
    exf_code rc;
    exf_h5 *h = NULL;
    EXF_TRY(exf_artifact_create(&h, target, force, NULL, &exf_artifact_tables, &t->provenance, err));
    EXF_TRY(exf_run_shape_write(&t->shape, h, err));
    EXF_TRY(exf_layer_numbers_write(t->layer_number, t->n_layers, h, err));
    EXF_TRY(each_dataset(t, write_one, h, err));
    EXF_TRY(exf_budgets_write(t, h, err));
    EXF_TRY(exf_vectors_write(t, h, err));
    rc = exf_h5_commit(h, err);
    h = NULL;
out:
    exf_h5_close(h);
    return rc;
}

/* ---- reading ---------------------------------------------------------------- */

enum { MOST_POOLS = 64 };

/* The optional datasets that a file has. */
typedef struct {
    const char *path;
    int64_t n_experts;
    exf_static_pool pool[MOST_POOLS]; /* sizes and criteria of its pools */
    size_t n;
    const char *by; /* criterion of the group that is being listed */
    char shared[8][sizeof(((exf_shared_scalar *)0)->name)];
    size_t n_shared;
    int pools, pools_by, patterns, budgets, empty_slots, cosine, rms, contribution, similarity, frobenius, std_error;
} contents;

static exf_code look(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    (void)err;
    c->pools |= strcmp(name, "pools") == 0;
    c->pools_by |= strcmp(name, "pools_by") == 0;
    c->budgets |= strcmp(name, "budgets") == 0;
    c->patterns |= strcmp(name, "shared") == 0;
#define X(field) c->field |= strcmp(name, #field) == 0;
    X(empty_slots) X(cosine) X(rms) X(contribution) X(similarity) X(frobenius) X(std_error)
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

static const char *const criteria[] = {"norm", "reap", "energy"};

static int criterion_of(const char *name)
{
    int i = 0;
    while (i < 3 && strcmp(criteria[i], name) != 0) i++;
    return i;
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
    if (criterion_of(name) == 0 || criterion_of(name) == 3)
        return exf_fail(err, EXF_FORMAT, "%s: /pools_by/%s, expected reap or energy", p->c->path, name);
    p->c->by = criteria[criterion_of(name)];
    snprintf(group, sizeof group, "/pools_by/%s", p->c->by);
    return exf_h5_members(p->h, group, note_pool, p->c, err);
}

static exf_code list_pools(contents *c, exf_h5 *h, exf_err *err)
{
    pool_listing p = {c, h};
    exf_code rc = EXF_OK;
    c->by = criteria[0];
    if (c->pools) EXF_TRY(exf_h5_members(h, "/pools", note_pool, c, err));
    if (c->pools_by) EXF_TRY(exf_h5_members(h, "/pools_by", note_criterion, &p, err));
out:
    return rc;
}

static exf_code note_shared(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    if (strlen(name) >= sizeof c->shared[0] || c->n_shared == sizeof c->shared / sizeof *c->shared)
        return exf_fail(err, EXF_FORMAT, "%s: /shared/%s is no sharing pattern that could be", c->path, name);
    snprintf(c->shared[c->n_shared++], sizeof c->shared[0], "%s", name);
    return EXF_OK;
}

/* Orders pools by falling size, those of one size as `criteria`. */
static int falling(const void *a, const void *b)
{
    const exf_static_pool *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return criterion_of(x->by) - criterion_of(y->by);
}

static exf_code list_contents(contents *c, exf_h5 *h, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_h5_members(h, "/", look, c, err));
    EXF_TRY(list_pools(c, h, err));
    if (c->patterns) EXF_TRY(exf_h5_members(h, "/shared", note_shared, c, err));
    qsort(c->pool, c->n, sizeof *c->pool, falling);
out:
    return rc;
}

static exf_code expect_one(const dataset *d, exf_h5 *h, exf_err *err)
{
    exf_tensor t = {.name = d->path, .dtype = d->dtype, .rank = d->rank, .shape = {d->shape[0], d->shape[1], d->shape[2]}};
    return exf_h5_expect(h, &t, err);
}

/* Looks at all datasets, before memory is taken for tables of that shape. */
static exf_code expect_all(const contents *c, const exf_run_shape *shape, int n_layers, exf_h5 *h, exf_err *err)
{
    static float some[1];
    static uint64_t count[1];
    exf_static_pool pool[MOST_POOLS];
    exf_shared_scalar shared[sizeof c->shared / sizeof *c->shared];
    exf_tables t = {.shape = *shape, .n_layers = n_layers, .coeff = some, .loss = some, .expert_norms = some, .count = count,
                    .expert_count = count, .pool = pool, .n_pools = (int)c->n, .shared = shared, .n_shared = (int)c->n_shared};
    t.empty_slots = c->empty_slots ? count : NULL;
#define X(field) t.field = c->field ? some : NULL;
    X(cosine) X(rms) X(contribution) X(similarity) X(frobenius) X(std_error)
#undef X
    memcpy(pool, c->pool, sizeof pool);
    for (size_t i = 0; i < c->n_shared; i++) memcpy(shared[i].name, c->shared[i], sizeof shared[i].name);
    return each_dataset(&t, expect_one, h, err);
}

static exf_code make_room(exf_tables *t, const contents *c, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t rows = (size_t)t->n_layers * (size_t)t->shape.n_experts, cells = rows * (size_t)t->shape.n_experts;
    exf_shared_scalar *s;
    if (c->empty_slots) EXF_TRY(exf_mem_new(&t->empty_slots, (size_t)t->n_layers, sizeof *t->empty_slots, "tables", err));
    if (c->cosine) EXF_TRY(exf_mem_new(&t->cosine, cells, sizeof *t->cosine, "tables", err));
    if (c->rms) EXF_TRY(exf_mem_new(&t->rms, rows, sizeof *t->rms, "tables", err));
    if (c->contribution) EXF_TRY(exf_mem_new(&t->contribution, rows, sizeof *t->contribution, "tables", err));
    if (c->similarity) EXF_TRY(exf_mem_new(&t->similarity, cells, sizeof *t->similarity, "tables", err));
    if (c->frobenius) EXF_TRY(exf_mem_new(&t->frobenius, cells, sizeof *t->frobenius, "tables", err));
    if (c->std_error) EXF_TRY(exf_mem_new(&t->std_error, cells, sizeof *t->std_error, "tables", err));
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
    EXF_TRY(list_contents(&listed, h, err));
    EXF_TRY(expect_all(&listed, &shape, n_layers, h, err));
    for (size_t i = 0; i < listed.n; i++) sizes[i] = listed.pool[i].size;
    EXF_TRY(exf_tables_new(t, &shape, numbers, n_layers, sizes, listed.n, err));
    for (size_t i = 0; i < listed.n; i++) memcpy(t->pool[i].by, listed.pool[i].by, sizeof t->pool[i].by);
    t->provenance = provenance;
    memset(&provenance, 0, sizeof provenance);
    EXF_TRY(make_room(t, &listed, err));
    EXF_TRY(each_dataset(t, read_one, h, err));
    if (listed.budgets) EXF_TRY(exf_budgets_read(t, h, err));
    EXF_TRY(exf_tables_check(t, path, err));
out:
    exf_h5_close(h);
    exf_mem_free(numbers);
    exf_provenance_free(&provenance);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}
