/* table_list.c - see table_list.h. */
#include "artifact/table_list.h"

#include "artifact/tables.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* Fixed tables, and most per pool and per shared scalar; the list of pairs with vectors. */
enum { FIXED = 12, PER_POOL = 3, PER_SHARED = 2, PER_BUDGET = 4, LIST_OF_PAIRS = 1 };

/* A table that is not there is passed over. */
static void add(exf_table_list *l, const char *group, int number, const char *part, exf_tensor t)
{
    if (!t.data) return;
    if (*group && number)
        snprintf(l->name[l->n], EXF_TABLE_NAME, "%.20s.%d.%.12s", group, number, part);
    else
        snprintf(l->name[l->n], EXF_TABLE_NAME, "%.22s%s%.39s", group, *group ? "." : "", part);
    t.name = l->name[l->n];
    l->tensor[l->n++] = t;
}

static exf_tensor view(exf_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, const void *data)
{
    return (exf_tensor){.dtype = dtype, .rank = rank, .shape = {a, b, c}, .data = data};
}

static void add_fixed(exf_table_list *out, const exf_tables *t)
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    const struct {
        const char *name;
        exf_tensor tensor;
    } fixed[FIXED] = {
        {"coeff", view(EXF_DT_F32, 3, l, e, e, t->coeff)},
        {"loss", view(EXF_DT_F32, 3, l, e, e, t->loss)},
        {"count", view(EXF_DT_U64, 3, l, e, e, t->count)},
        {"expert_norms", view(EXF_DT_F32, 2, l, e, 0, t->expert_norms)},
        {"expert_count", view(EXF_DT_U64, 2, l, e, 0, t->expert_count)},
        {"empty_slots", view(EXF_DT_U64, 1, l, 0, 0, t->empty_slots)},
        {"cosine", view(EXF_DT_F32, 3, l, e, e, t->cosine)},
        {"rms", view(EXF_DT_F32, 2, l, e, 0, t->rms)},
        {"contribution", view(EXF_DT_F32, 2, l, e, 0, t->contribution)},
        {"similarity", view(EXF_DT_F32, 3, l, e, e, t->similarity)},
        {"frobenius", view(EXF_DT_F32, 3, l, e, e, t->frobenius)},
        {"std_error", view(EXF_DT_F32, 3, l, e, e, t->std_error)},
    };
    for (size_t i = 0; i < FIXED; i++) add(out, "", 0, fixed[i].name, fixed[i].tensor);
}

static void add_pools(exf_table_list *out, const exf_tables *t)
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    for (int i = 0; i < t->n_pools; i++) {
        const exf_static_pool *p = &t->pool[i];
        char group[24];
        snprintf(group, sizeof group, strcmp(p->by, "norm") ? "pools_by.%.8s" : "pools", p->by);
        add(out, group, p->size, "members", view(EXF_DT_I32, 2, l, p->size, 0, p->members));
        add(out, group, p->size, "target_ids", view(EXF_DT_I32, 2, l, e, 0, p->target_ids));
        add(out, group, p->size, "target_scale", view(EXF_DT_F32, 2, l, e, 0, p->target_scale));
    }
}

static void add_shared(exf_table_list *out, const exf_tables *t)
{
    int64_t l = t->n_layers, e = t->shape.n_experts;
    for (int i = 0; i < t->n_shared; i++) {
        char group[24];
        snprintf(group, sizeof group, "shared.%.15s", t->shared[i].name);
        add(out, group, 0, "scalar", view(EXF_DT_F32, 1, l, 0, 0, t->shared[i].scalar));
        add(out, group, 0, "loss", view(EXF_DT_F32, 3, l, e, e, t->shared[i].loss));
    }
}

static void add_budgets(exf_table_list *out, const exf_tables *t)
{
    for (int i = 0; i < t->n_budgets; i++) {
        const exf_budget *b = &t->budget[i];
        char group[48];
        snprintf(group, sizeof group, "budgets.%.5g.%.8s", b->budget, b->rule);
        add(out, group, 0, "lambda", view(EXF_DT_F64, 1, 1, 0, 0, &b->lambda));
        add(out, group, 0, "scale", view(EXF_DT_F64, 1, t->n_layers, 0, 0, b->scale));
        add(out, group, 0, "mean", view(EXF_DT_F64, 1, 1, 0, 0, &b->mean));
        add(out, group, 0, "kept", view(EXF_DT_U64, 2, t->n_layers, t->shape.top_k, 0, b->kept));
    }
}

static void add_vectors(exf_table_list *out, const exf_tables *t)
{
    const exf_vectors *v = &t->vectors;
    char name[EXF_VECTOR_NAME];
    if (v->n_pairs == 0) return;
    add(out, "vectors", 0, "pair", view(EXF_DT_I32, 2, v->n_pairs, 3, 0, v->pair));
    for (int i = 0; i < v->n_arrays; i++) {
        exf_vector_array_name(name, &v->array[i], '.');
        add(out, "vectors", 0, name, exf_vector_array_tensor(t, &v->array[i]));
    }
}

exf_code exf_table_list_make(exf_table_list *l, const exf_tables *t, exf_err *err)
{
    exf_code rc;
    memset(l, 0, sizeof *l);
    l->cap = FIXED + (size_t)t->n_pools * PER_POOL + (size_t)t->n_shared * PER_SHARED +
             (size_t)t->n_budgets * PER_BUDGET + LIST_OF_PAIRS + (size_t)t->vectors.n_arrays;
    EXF_TRY(exf_mem_new(&l->tensor, l->cap, sizeof *l->tensor, "table list", err));
    EXF_TRY(exf_mem_new(&l->name, l->cap, sizeof *l->name, "table names", err));
    add_fixed(l, t);
    add_pools(l, t);
    add_shared(l, t);
    add_budgets(l, t);
    add_vectors(l, t);
out:
    if (rc != EXF_OK) exf_table_list_free(l);
    return rc;
}

void exf_table_list_free(exf_table_list *l)
{
    exf_mem_free(l->tensor);
    exf_mem_free(l->name);
    memset(l, 0, sizeof *l);
}
