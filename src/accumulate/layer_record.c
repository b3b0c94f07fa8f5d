/* layer_record.c - see layer_record.h.  One list of arrays serves writing and reading. */
#include "accumulate/layer_record.h"

#include <string.h>

#define NAME "sums"
enum { MOST_ARRAYS = 32 };

/* The arrays of a record; data of each is the array itself. */
typedef struct {
    exf_tensor t[MOST_ARRAYS];
    size_t n;
} arrays;

static void add(arrays *a, const char *name, exf_dtype dtype, int rank, const int64_t shape[3], const void *data)
{
    if (!data) return;
    exf_tensor *t = &a->t[a->n++];
    *t = (exf_tensor){.name = name, .dtype = dtype, .rank = rank, .data = data};
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
}

static void list_sums(arrays *a, const exf_layer_statistics *s)
{
    int64_t e = s->n_experts, pairs[3] = {e, e, 3}, experts[3] = {e, 3};
#define X(name) add(a, #name, EXF_DT_U64, 3, pairs, s->name);
    EXF_PAIR_SUMS(X)
    EXF_SEQUENCE_SUMS(X)
#undef X
#define X(name) add(a, #name, EXF_DT_U64, 2, experts, s->name);
    EXF_EXPERT_SUMS(X)
#undef X
    add(a, "sequences", EXF_DT_U64, 2, pairs, s->sequences);
    add(a, "count", EXF_DT_U64, 2, pairs, s->count);
    add(a, "norm_count", EXF_DT_U64, 1, experts, s->norm_count);
    add(a, "empty_slots", EXF_DT_U64, 1, (int64_t[3]){1}, s->empty_slots);
    add(a, "stream_sq", EXF_DT_U64, 2, (int64_t[3]){1, 3}, s->stream_sq);
    add(a, "stream_count", EXF_DT_U64, 1, (int64_t[3]){1}, s->stream_count);
}

static void list_routes(arrays *a, const exf_route_sample *r)
{
    int64_t n = (int64_t)r->n;
    if (!n) return;
    add(a, "routes.key", EXF_DT_U64, 1, (int64_t[3]){n}, r->key);
    add(a, "routes.ids", EXF_DT_I32, 2, (int64_t[3]){n, r->top_k}, r->ids);
    add(a, "routes.weights", EXF_DT_F32, 2, (int64_t[3]){n, r->top_k}, r->weights);
}

static void list_vectors(arrays *a, const exf_vector_sums *v)
{
    int64_t p = v->n_pairs, h = v->d_model, r = v->rank;
    if (!p) return;
    add(a, "vectors.pair", EXF_DT_I32, 2, (int64_t[3]){p, 2}, v->pair);
    add(a, "vectors.vu", EXF_DT_U64, 3, (int64_t[3]){p, h, 3}, v->vu);
    add(a, "vectors.vv", EXF_DT_U64, 3, (int64_t[3]){p, h, 3}, v->vv);
    add(a, "vectors.basis", EXF_DT_F64, 2, (int64_t[3]){h, r}, v->basis);
    add(a, "vectors.grid", EXF_DT_I32, 2, (int64_t[3]){p, EXF_N_GRIDS}, v->grid);
    add(a, "vectors.zz", EXF_DT_I64, 3, (int64_t[3]){p, r, r}, v->zz);
    add(a, "vectors.zu", EXF_DT_I64, 3, (int64_t[3]){p, r, h}, v->zu);
    add(a, "vectors.zv", EXF_DT_I64, 3, (int64_t[3]){p, r, h}, v->zv);
}

exf_code exf_layer_record_put(exf_resume *r, int layer, const exf_layer_statistics *s, const exf_vector_sums *v, exf_err *err)
{
    arrays a = {.n = 0};
    list_sums(&a, s);
    list_routes(&a, &s->routes);
    if (v) list_vectors(&a, v);
    return exf_resume_put(r, NAME, layer, a.t, a.n, err);
}

/* Makes s->routes as large as the record's. */
static exf_code new_routes(exf_layer_statistics *s, const exf_st_file *f, exf_err *err)
{
    const exf_st_tensor *ids = exf_st_find(f, "routes.ids");
    exf_code rc = EXF_OK;
    exf_route_sample_free(&s->routes);
    if (!ids || ids->view.rank != 2) return EXF_OK;
    rc = exf_route_sample_new(&s->routes, (size_t)ids->view.shape[0], (int)ids->view.shape[1], err);
    if (rc == EXF_OK) s->routes.n = s->routes.cap;
    return rc;
}

/* Allocates v for the vector sums that the record has; that of a basis alone has none, but their choice. */
static exf_code new_vectors(exf_vector_sums *v, const exf_st_file *f, int d_model, exf_err *err)
{
    const exf_st_tensor *pair = exf_st_find(f, "vectors.pair"), *basis = exf_st_find(f, "vectors.basis");
    *v = (exf_vector_sums){.d_model = d_model};
    if (!pair) return EXF_OK;
    int rank = basis ? (int)basis->view.shape[1] : 0, diagonal = exf_st_find(f, "vectors.vu") != NULL;
    if (!diagonal && !exf_st_find(f, "vectors.zz")) return exf_vector_sums_new_choice(v, pair->view.shape[0], d_model, rank, err);
    return exf_vector_sums_new(v, pair->view.shape[0], d_model, diagonal, rank, err);
}

exf_code exf_layer_record_get(const exf_resume *r, int layer, exf_layer_statistics *s, exf_vector_sums *v, int d_model,
                              exf_err *err)
{
    exf_st_file *f = NULL;
    arrays a = {.n = 0};
    exf_code rc;
    EXF_TRY(exf_resume_get(r, NAME, layer, &f, err));
    list_sums(&a, s);
    EXF_TRY(new_routes(s, f, err));
    list_routes(&a, &s->routes);
    if (v) {
        EXF_TRY(new_vectors(v, f, d_model, err));
        list_vectors(&a, v);
    }
    for (size_t i = 0; i < a.n; i++) EXF_TRY(exf_resume_read(f, &a.t[i], (void *)(uintptr_t)a.t[i].data, err));
out:
    exf_st_close(f);
    return rc;
}
