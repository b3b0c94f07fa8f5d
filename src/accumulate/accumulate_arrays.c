/* accumulate_arrays.c - the arrays of a layer's sums as one list: a resume point records them, ranks add them up. */
#include "accumulate/accumulate_internal.h"

#define NAME "sums"

/* Lists the arrays of exf_layer_statistics; only_stream: of these what the last sweep adds. */
static size_t list_sums(exf_sum_array *out, const exf_layer_statistics *s, int only_stream)
{
    size_t n = 0;
    for (const exf_layer_array *row = exf_layer_arrays; row < exf_layer_arrays + EXF_N_LAYER_ARRAYS; row++)
        if (!only_stream || row->part == EXF_PART_STREAM)
            out[n++] = (exf_sum_array){row->element == EXF_ELEMENT_EXACT ? EXF_RANKS_EXACT : EXF_RANKS_U64,
                                       exf_layer_array_tensor(row, s->n_experts, exf_layer_array_at(row, s))};
    return n;
}

static size_t list_vectors(exf_sum_array *out, const exf_vector_sums *v)
{
    return exf_vector_sums_list(v, v->vu != NULL, v->zz != NULL, out);
}

/* ---- ranks ------------------------------------------------------------------------------------- */

size_t exf_layer_rank_arrays(exf_ranks_array out[EXF_MOST_LAYER_ARRAYS], const exf_layer_statistics *s, const exf_vector_sums *v)
{
    exf_sum_array all[EXF_MOST_LAYER_ARRAYS];
    size_t n_all = list_sums(all, s, v != NULL), n = 0;
    n_all += v ? list_vectors(all + n_all, v) : exf_norm_sums_list(&s->norms, all + n_all);
    n_all += v ? 0 : exf_route_sample_list(&s->routes, s->routes.cap, all + n_all);
    for (const exf_sum_array *a = all; a < all + n_all; a++) {
        size_t elements = (size_t)exf_tensor_count(&a->t);
        if (a->kind == EXF_RANKS_ALIKE) continue;
        if (a->kind == EXF_RANKS_EXACT) elements = elements * sizeof(uint64_t) / sizeof(exf_exact);
        if (a->kind == EXF_RANKS_BITS) elements = elements * exf_dtype_bits(a->t.dtype) / 8;
        out[n++] = (exf_ranks_array){(void *)(uintptr_t)a->t.data, elements, (exf_ranks_kind)a->kind};
    }
    return n;
}

/* ---- the record of a resume point ------------------------------------------------------------------ */

exf_code exf_layer_record_put(exf_resume *r, int layer, const exf_layer_statistics *s, const exf_vector_sums *v, exf_err *err)
{
    exf_sum_array all[EXF_MOST_LAYER_ARRAYS];
    exf_tensor t[EXF_MOST_LAYER_ARRAYS];
    size_t n = list_sums(all, s, 0);
    n += exf_route_sample_list(&s->routes, s->routes.n, all + n);
    n += exf_norm_sums_list(&s->norms, all + n);
    if (v) n += list_vectors(all + n, v);
    for (size_t i = 0; i < n; i++) t[i] = all[i].t;
    return exf_resume_put(r, NAME, layer, t, n, err);
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

exf_code exf_layer_record_get(const exf_resume *r, int layer, exf_layer_statistics *s, exf_vector_sums *v, int d_model,
                              exf_err *err)
{
    exf_sum_array all[EXF_MOST_LAYER_ARRAYS];
    exf_st_file *f = NULL;
    exf_code rc;
    EXF_TRY(exf_resume_get(r, NAME, layer, &f, err));
    size_t n = list_sums(all, s, 0);
    EXF_TRY(new_routes(s, f, err));
    n += exf_route_sample_list(&s->routes, s->routes.n, all + n);
    const exf_st_tensor *head = exf_st_find(f, "norms.basis"), *pair = exf_st_find(f, "vectors.pair");
    exf_norm_sums_free(&s->norms);
    if (head && head->view.rank == 2) {
        EXF_TRY(exf_norm_sums_new(&s->norms, s->n_experts, d_model, (int)head->view.shape[1], err));
        s->norms.known = 1;
    }
    n += exf_norm_sums_list(&s->norms, all + n);
    if (v) *v = (exf_vector_sums){.d_model = d_model};
    if (v && pair) {
        const exf_st_tensor *basis = exf_st_find(f, "vectors.basis");
        int rank = basis ? (int)basis->view.shape[1] : 0;
        EXF_TRY(exf_vector_sums_new(v, pair->view.shape[0], d_model, exf_st_find(f, "vectors.vu") != NULL, rank, err));
        n += list_vectors(all + n, v);
    }
    for (size_t i = 0; i < n; i++) EXF_TRY(exf_resume_read(f, &all[i].t, (void *)(uintptr_t)all[i].t.data, err));
out:
    exf_st_close(f);
    return rc;
}
