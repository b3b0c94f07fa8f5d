/* tables.c - tables in memory; see tables.h. */
#include "artifact/tables.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static exf_code new_pool(exf_static_pool *p, int64_t size, const exf_tables *t, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)t->n_layers, e = (size_t)t->shape.n_experts;
    if (size < 1 || size > t->shape.n_experts)
        return exf_fail(err, EXF_USAGE, "a decode pool of %lld experts: the model has %lld", (long long)size,
                        (long long)t->shape.n_experts);
    p->size = (int)size;
    snprintf(p->by, sizeof p->by, "norm");
    EXF_TRY(exf_mem_new(&p->members, l * (size_t)size, sizeof *p->members, "pools", err));
    EXF_TRY(exf_mem_new(&p->target_ids, l * e, sizeof *p->target_ids, "pools", err));
    EXF_TRY(exf_mem_new(&p->target_scale, l * e, sizeof *p->target_scale, "pools", err));
out:
    return rc;
}

exf_code exf_tables_new(exf_tables *t, const exf_run_shape *shape, const int32_t *layer_number, int n_layers,
                        const int64_t *pool_sizes, size_t n_pools, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)n_layers, e = (size_t)shape->n_experts;
    memset(t, 0, sizeof *t);
    t->shape = *shape;
    t->n_layers = n_layers;
    EXF_TRY(exf_mem_new(&t->layer_number, l, sizeof *t->layer_number, "tables", err));
    memcpy(t->layer_number, layer_number, l * sizeof *layer_number);
    EXF_TRY(exf_mem_new(&t->coeff, l * e * e, sizeof *t->coeff, "tables", err));
    EXF_TRY(exf_mem_new(&t->loss, l * e * e, sizeof *t->loss, "tables", err));
    EXF_TRY(exf_mem_new(&t->count, l * e * e, sizeof *t->count, "tables", err));
    EXF_TRY(exf_mem_new(&t->expert_norms, l * e, sizeof *t->expert_norms, "tables", err));
    EXF_TRY(exf_mem_new(&t->expert_count, l * e, sizeof *t->expert_count, "tables", err));
    EXF_TRY(exf_mem_new(&t->pool, n_pools, sizeof *t->pool, "pools", err));
    t->n_pools = (int)n_pools;
    for (size_t i = 0; i < n_pools; i++) EXF_TRY(new_pool(&t->pool[i], pool_sizes[i], t, err));
out:
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}

exf_code exf_tables_add_shared(exf_tables *t, const char *name, exf_shared_scalar **out, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)t->n_layers, e = (size_t)t->shape.n_experts;
    exf_shared_scalar *now = NULL, s = {.name = ""};
    int at = 0;
    if (strlen(name) >= sizeof s.name) return exf_fail(err, EXF_INTERNAL, "sharing pattern \"%s\" has too long a name", name);
    snprintf(s.name, sizeof s.name, "%s", name);
    while (at < t->n_shared && strcmp(t->shared[at].name, name) < 0) at++;
    EXF_TRY(exf_mem_new(&now, (size_t)t->n_shared + 1, sizeof *now, "shared scalars", err));
    EXF_TRY(exf_mem_new(&s.scalar, l, sizeof *s.scalar, "shared scalars", err));
    EXF_TRY(exf_mem_new(&s.loss, l * e * e, sizeof *s.loss, "losses of shared scalars", err));
    for (int i = 0; i <= t->n_shared; i++) now[i] = i < at ? t->shared[i] : i == at ? s : t->shared[i - 1];
    exf_mem_free(t->shared);
    t->shared = now;
    t->n_shared++;
    *out = &now[at];
    return EXF_OK;
out:
    exf_mem_free(now);
    exf_mem_free(s.scalar);
    return rc;
}

int exf_tables_index(const exf_tables *t, int layer)
{
    for (int i = 0; i < t->n_layers; i++)
        if (t->layer_number[i] == layer) return i;
    return -1;
}

void exf_tables_free(exf_tables *t)
{
    for (int i = 0; i < t->n_shared; i++) {
        exf_mem_free(t->shared[i].scalar);
        exf_mem_free(t->shared[i].loss);
    }
    exf_mem_free(t->shared);
    for (int i = 0; i < t->n_budgets; i++) {
        exf_mem_free(t->budget[i].scale);
        exf_mem_free(t->budget[i].kept);
    }
    exf_mem_free(t->budget);
    exf_vectors_free(&t->vectors);
    exf_mem_free(t->cosine);
    exf_mem_free(t->rms);
    exf_mem_free(t->contribution);
    exf_mem_free(t->similarity);
    exf_mem_free(t->frobenius);
    exf_mem_free(t->std_error);
    for (int i = 0; t->pool && i < t->n_pools; i++) {
        exf_mem_free(t->pool[i].members);
        exf_mem_free(t->pool[i].target_ids);
        exf_mem_free(t->pool[i].target_scale);
    }
    exf_mem_free(t->pool);
    exf_mem_free(t->layer_number);
    exf_mem_free(t->coeff);
    exf_mem_free(t->loss);
    exf_mem_free(t->count);
    exf_mem_free(t->expert_norms);
    exf_mem_free(t->expert_count);
    exf_mem_free(t->empty_slots);
    exf_provenance_free(&t->provenance);
    memset(t, 0, sizeof *t);
}
