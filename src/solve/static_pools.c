/* static_pools.c - see static_pools.h. */
#include "solve/static_pools.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    double *h = NULL;
    exf_code rc = exf_mem_new(&h, e, sizeof *h, "expert norms", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e; i++)
        if (s->norm_count[i]) h[i] = exf_exact_value(&s->norm_sum[i]) / (double)s->norm_count[i];
    EXF_TRY(exf_solve_fill_cold(h, s, err));
    for (size_t i = 0; rc == EXF_OK && i < e; i++) {
        float *out = &t->expert_norms[(size_t)l * e + i];
        *out = (float)h[i];
        t->expert_count[(size_t)l * e + i] = s->norm_count[i];
        if (!isfinite(*out) || *out < 0)
            rc = exf_fail(err, EXF_NUMERIC,
                          "layer %d: expert %zu has mean output norm %g over %llu tokens, expected a finite number from 0",
                          (int)t->layer_number[l], i, h[i], (unsigned long long)s->norm_count[i]);
    }
out:
    exf_mem_free(h);
    return rc;
}

typedef enum { BY_NORM, BY_REAP, BY_ENERGY } criterion;

static criterion criterion_of(const exf_static_pool *p)
{
    return strcmp(p->by, "energy") == 0 ? BY_ENERGY : strcmp(p->by, "reap") == 0 ? BY_REAP : BY_NORM;
}

/* Returns how much expert e of layer l has of a criterion. */
static double amount(const exf_tables *t, int l, const exf_exact *energy, criterion by, int e)
{
    size_t at = (size_t)l * (size_t)t->shape.n_experts + (size_t)e;
    return by == BY_ENERGY ? exf_exact_value(&energy[e]) : (double)(by == BY_REAP ? t->contribution : t->expert_norms)[at];
}

/* Chooses the pool's experts, those of most first, ties to the lower number. */
static void choose_members(const exf_tables *t, int l, const exf_exact *energy, const exf_static_pool *p, int32_t *members)
{
    criterion by = criterion_of(p);
    int have = 0, n = p->size;
    for (int e = 0; e < (int)t->shape.n_experts; e++) {
        double mine = amount(t, l, energy, by, e);
        if (have == n && !(mine > amount(t, l, energy, by, members[n - 1]))) continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && mine > amount(t, l, energy, by, members[at - 1]); at--) members[at] = members[at - 1];
        members[at] = e;
    }
}

/* Chooses target and scale of one expert outside the pool. */
static void assign(const exf_static_pool *p, const int32_t *members, const float *coeff, const float *loss, int32_t *target,
                   float *scale)
{
    int best = 0;
    for (int i = 1; i < p->size; i++)
        if (loss[members[i]] < loss[members[best]]) best = i;
    *target = members[best];
    *scale = loss[members[best]] < EXF_LOSS_NEVER ? coeff[members[best]] : 0.0f;
}

void exf_solve_pools(int l, const exf_exact *energy, exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts;
    for (int i = 0; i < t->n_pools; i++) {
        const exf_static_pool *p = &t->pool[i];
        int32_t *members = p->members + (size_t)l * (size_t)p->size;
        choose_members(t, l, energy, p, members);
        for (size_t s = 0; s < e; s++) {
            size_t row = ((size_t)l * e + s) * e;
            assign(p, members, t->coeff + row, t->loss + row, &p->target_ids[(size_t)l * e + s],
                   &p->target_scale[(size_t)l * e + s]);
        }
        for (int k = 0; k < p->size; k++) {
            p->target_ids[(size_t)l * e + (size_t)members[k]] = members[k];
            p->target_scale[(size_t)l * e + (size_t)members[k]] = 1;
        }
    }
}
