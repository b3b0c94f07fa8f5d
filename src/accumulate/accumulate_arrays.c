/* accumulate_arrays.c - the arrays of a layer's sums as one list: a resume point records them, ranks add them up. */
#include "accumulate/accumulate_internal.h"

#include <string.h>

#define NAME "sums"
enum { ALIKE = -1 }; /* in place of an exf_ranks_kind: an array that is the same on all ranks, and is not summed */

/* Arrays as tensors whose data is the array itself. */
typedef struct {
    exf_tensor t[EXF_MOST_LAYER_ARRAYS];
    int kind[EXF_MOST_LAYER_ARRAYS]; /* how ranks add it up */
    size_t n;
} array_list;

static void add_array(array_list *a, int kind, const char *name, exf_dtype dtype, int rank, const int64_t *shape,
                      const void *data)
{
    if (!data) return;
    exf_tensor *t = &a->t[a->n];
    *t = (exf_tensor){.name = name, .dtype = dtype, .rank = rank, .data = data};
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    a->kind[a->n++] = kind;
}

/* Lists the arrays of exf_layer_statistics; only_stream: of these what the last sweep adds. */
static void list_sums(array_list *a, const exf_layer_statistics *s, int only_stream)
{
    for (int i = 0; i < EXF_N_LAYER_ARRAYS; i++) {
        const exf_layer_array *row = &exf_layer_arrays[i];
        exf_tensor t = exf_layer_array_tensor(row, s->n_experts, exf_layer_array_at(row, s));
        if (only_stream && row->part != EXF_PART_STREAM) continue;
        add_array(a, row->element == EXF_ELEMENT_EXACT ? EXF_RANKS_EXACT : EXF_RANKS_U64, t.name, t.dtype, t.rank, t.shape, t.data);
    }
}

/* Lists n tokens.  All ranks chose the same; each has the routes of its own, and zeros for the others. */
static void list_routes(array_list *a, const exf_route_sample *r, size_t tokens)
{
    int64_t n = (int64_t)tokens;
    if (!n) return;
    add_array(a, EXF_RANKS_BITS, "routes.key", EXF_DT_U64, 1, (int64_t[3]){n}, r->key);
    add_array(a, EXF_RANKS_BITS, "routes.ids", EXF_DT_I32, 2, (int64_t[3]){n, r->top_k}, r->ids);
    add_array(a, EXF_RANKS_BITS, "routes.weights", EXF_DT_F32, 2, (int64_t[3]){n, r->top_k}, r->weights);
    add_array(a, EXF_RANKS_BITS, "routes.head", EXF_DT_F32, 2, (int64_t[3]){n, (int64_t)exf_route_sample_head(r)}, r->head);
}

static void list_norms(array_list *a, const exf_norm_sums *s)
{
    int64_t e = s->n_experts, products = (int64_t)exf_norm_products(s->q), features = (int64_t)exf_norm_features(s->q);
    add_array(a, ALIKE, "norms.basis", EXF_DT_F64, 2, (int64_t[3]){s->d_model, s->q}, s->basis);
    add_array(a, EXF_RANKS_EXACT, "norms.pp", EXF_DT_U64, 3, (int64_t[3]){e, products, 3}, s->pp);
    add_array(a, EXF_RANKS_EXACT, "norms.py", EXF_DT_U64, 3, (int64_t[3]){e, features, 3}, s->py);
    add_array(a, EXF_RANKS_EXACT, "norms.yy", EXF_DT_U64, 2, (int64_t[3]){e, 3}, s->yy);
}

static void list_vectors(array_list *a, const exf_vector_sums *v)
{
    int64_t p = v->n_pairs, h = v->d_model, r = v->rank;
    if (!p) return;
    add_array(a, ALIKE, "vectors.pair", EXF_DT_I32, 2, (int64_t[3]){p, 2}, v->pair);
    add_array(a, EXF_RANKS_EXACT, "vectors.vu", EXF_DT_U64, 3, (int64_t[3]){p, h, 3}, v->vu);
    add_array(a, EXF_RANKS_EXACT, "vectors.vv", EXF_DT_U64, 3, (int64_t[3]){p, h, 3}, v->vv);
    add_array(a, ALIKE, "vectors.basis", EXF_DT_F64, 2, (int64_t[3]){h, r}, v->basis);
    add_array(a, ALIKE, "vectors.grid", EXF_DT_I32, 2, (int64_t[3]){p, EXF_N_GRIDS}, v->grid);
    add_array(a, EXF_RANKS_U64, "vectors.zz", EXF_DT_I64, 3, (int64_t[3]){p, r, r}, v->zz);
    add_array(a, EXF_RANKS_U64, "vectors.zu", EXF_DT_I64, 3, (int64_t[3]){p, r, h}, v->zu);
    add_array(a, EXF_RANKS_U64, "vectors.zv", EXF_DT_I64, 3, (int64_t[3]){p, r, h}, v->zv);
}

/* ---- ranks ------------------------------------------------------------------------------------- */

size_t exf_layer_rank_arrays(exf_ranks_array out[EXF_MOST_LAYER_ARRAYS], const exf_layer_statistics *s, const exf_vector_sums *v)
{
    array_list a = {.n = 0};
    size_t n = 0;
    list_sums(&a, s, v != NULL);
    if (v) {
        list_vectors(&a, v);
    } else {
        list_norms(&a, &s->norms);
        list_routes(&a, &s->routes, s->routes.cap);
    }
    for (size_t i = 0; i < a.n; i++) {
        const exf_tensor *t = &a.t[i];
        size_t elements = 1;
        if (a.kind[i] == ALIKE) continue;
        for (int k = 0; k < t->rank; k++) elements *= (size_t)t->shape[k];
        if (a.kind[i] == EXF_RANKS_EXACT) elements = elements * sizeof(uint64_t) / sizeof(exf_exact);
        if (a.kind[i] == EXF_RANKS_BITS) elements = elements * exf_dtype_bits(t->dtype) / 8;
        out[n++] = (exf_ranks_array){(void *)(uintptr_t)t->data, elements, (exf_ranks_kind)a.kind[i]};
    }
    return n;
}

/* ---- the record of a resume point ------------------------------------------------------------------ */

exf_code exf_layer_record_put(exf_resume *r, int layer, const exf_layer_statistics *s, const exf_vector_sums *v, exf_err *err)
{
    array_list a = {.n = 0};
    list_sums(&a, s, 0);
    list_routes(&a, &s->routes, s->routes.n);
    list_norms(&a, &s->norms);
    if (v) list_vectors(&a, v);
    return exf_resume_put(r, NAME, layer, a.t, a.n, err);
}

/* Makes s->routes as large as the record's. */
static exf_code new_routes(exf_layer_statistics *s, const exf_st_file *f, exf_err *err)
{
    const exf_st_tensor *ids = exf_st_find(f, "routes.ids"), *head = exf_st_find(f, "routes.head");
    exf_code rc = EXF_OK;
    exf_route_sample_free(&s->routes);
    if (!ids || ids->view.rank != 2) return EXF_OK;
    rc = exf_route_sample_new(&s->routes, (size_t)ids->view.shape[0], (int)ids->view.shape[1], err);
    if (rc == EXF_OK && head && head->view.rank == 2)
        rc = exf_route_sample_add_head(&s->routes, (int)head->view.shape[1] - 1 - s->routes.top_k, err);
    if (rc == EXF_OK) s->routes.n = s->routes.cap;
    return rc;
}

/* Makes s->norms as large as the record's, whose basis they then know. */
static exf_code new_norms(exf_layer_statistics *s, const exf_st_file *f, int d_model, exf_err *err)
{
    const exf_st_tensor *basis = exf_st_find(f, "norms.basis");
    exf_norm_sums_free(&s->norms);
    if (!basis || basis->view.rank != 2) return EXF_OK;
    exf_code rc = exf_norm_sums_new(&s->norms, s->n_experts, d_model, (int)basis->view.shape[1], err);
    s->norms.known = 1;
    return rc;
}

/* Allocates v for the vector sums that the record has; the record of a basis has pairs, basis and grids alone. */
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
    array_list a = {.n = 0};
    exf_code rc;
    EXF_TRY(exf_resume_get(r, NAME, layer, &f, err));
    list_sums(&a, s, 0);
    EXF_TRY(new_routes(s, f, err));
    list_routes(&a, &s->routes, s->routes.n);
    EXF_TRY(new_norms(s, f, d_model, err));
    list_norms(&a, &s->norms);
    if (v) {
        EXF_TRY(new_vectors(v, f, d_model, err));
        list_vectors(&a, v);
    }
    for (size_t i = 0; i < a.n; i++) EXF_TRY(exf_resume_read(f, &a.t[i], (void *)(uintptr_t)a.t[i].data, err));
out:
    exf_st_close(f);
    return rc;
}
