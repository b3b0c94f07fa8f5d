/* measures.c - what is solved beside projectors: norms of experts, similarities, losses by Frobenius norm, standard
 * errors; and the static pools that these rank. */
#include "solve/solve_internal.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

exf_code exf_measures_new(int by_sequence, exf_tables *t, exf_err *err)
{
    exf_code rc;
    size_t rows = (size_t)t->n_layers * (size_t)t->shape.n_experts, cells = rows * (size_t)t->shape.n_experts;
    EXF_TRY(exf_mem_new(&t->similarity, cells, sizeof *t->similarity, "similarities", err));
    EXF_TRY(exf_mem_new(&t->frobenius, cells, sizeof *t->frobenius, "Frobenius losses", err));
    if (by_sequence) EXF_TRY(exf_mem_new(&t->std_error, cells, sizeof *t->std_error, "standard errors", err));
    EXF_TRY(exf_mem_new(&t->rms, rows, sizeof *t->rms, "root mean squares", err));
    EXF_TRY(exf_mem_new(&t->contribution, rows, sizeof *t->contribution, "contributions", err));
out:
    return rc;
}

/* ---- experts --------------------------------------------------------------------------------- */

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sets out[e] to x[e], or for cold experts to the lower median of the others above 0, or to 1 if there are none.
 * `what` x is, is for messages. */
static exf_code store_means(float *out, double *x, const char *what, const exf_layer_statistics *s, int layer, exf_err *err)
{
    size_t e = (size_t)s->n_experts, n = 0;
    double *warm = NULL;
    exf_code rc = exf_mem_new(&warm, e, sizeof *warm, "expert norms", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e; i++)
        if (s->norm_count[i] && x[i] > 0) warm[n++] = x[i];
    qsort(warm, n, sizeof *warm, rising);
    for (size_t i = 0; rc == EXF_OK && i < e; i++) {
        if (!s->norm_count[i]) x[i] = n ? warm[(n - 1) / 2] : 1;
        out[i] = (float)x[i];
        if (!isfinite(out[i]) || out[i] < 0)
            rc = exf_fail(err, EXF_NUMERIC, "layer %d: expert %zu has %s norm %g over %llu tokens, expected a finite number from 0",
                          layer, i, what, x[i], (unsigned long long)s->norm_count[i]);
    }
    exf_mem_free(warm);
    return rc;
}

exf_code exf_solve_norms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    double *h = NULL;
    exf_code rc = exf_mem_new(&h, e, sizeof *h, "expert norms", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e; i++)
        if (s->norm_count[i]) h[i] = exf_exact_value(&s->norm_sum[i]) / (double)s->norm_count[i];
    memcpy(t->expert_count + (size_t)l * e, s->norm_count, e * sizeof *t->expert_count);
    rc = store_means(t->expert_norms + (size_t)l * e, h, "mean output", s, (int)t->layer_number[l], err);
    exf_mem_free(h);
    return rc;
}

static exf_code solve_rms(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    double *rms = NULL;
    exf_code rc = exf_mem_new(&rms, e, sizeof *rms, "root mean squares", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < e; i++)
        if (s->norm_count[i]) rms[i] = sqrt(exf_exact_value(&s->sq_sum[i]) / (double)s->norm_count[i]);
    rc = store_means(t->rms + (size_t)l * e, rms, "root mean square", s, (int)t->layer_number[l], err);
    exf_mem_free(rms);
    return rc;
}

exf_code exf_solve_bare(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, at = (size_t)l * e;
    uint64_t any = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < e; i++) any |= s->bare_count[i];
    if (any && !t->bare_count) EXF_TRY(exf_tables_add_bare(t, err));
    for (size_t i = 0; any && i < e; i++) {
        double n = (double)s->bare_count[i];
        t->bare_count[at + i] = s->bare_count[i];
        t->bare_norms[at + i] = n > 0 ? (float)(exf_exact_value(&s->bare_norm_sum[i]) / n) : 0;
        t->bare_contribution[at + i] = n > 0 ? (float)(exf_exact_value(&s->bare_contribution_sum[i]) / n) : 0;
    }
out:
    return rc;
}

/* ---- pairs ------------------------------------------------------------------------------------- */

static int is_observed(const exf_tables *t, size_t at)
{
    return t->loss[at] < EXF_LOSS_NEVER;
}

/* Returns the root mean square of ||E_s - E_t||; -1 if the pair is unobserved. */
static double find_distance(const exf_layer_statistics *s, const exf_tables *t, size_t base, size_t a, size_t b)
{
    size_t e = (size_t)s->n_experts, i = a * e + b, mirror = b * e + a;
    if (a == b || !is_observed(t, base + i)) return -1;
    double sq = exf_exact_value(&s->sq0[i]) + exf_exact_value(&s->sq0[mirror]) - 2 * exf_exact_value(&s->dot0[i]);
    return sq > 0 ? sqrt(sq / (double)s->count[i]) : 0;
}

static void solve_similarities(const exf_layer_statistics *s, size_t base, exf_tables *t)
{
    size_t e = (size_t)s->n_experts;
    double largest = 0;
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) largest = fmax(largest, find_distance(s, t, base, a, b));
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) {
            double d = find_distance(s, t, base, a, b);
            t->similarity[base + a * e + b] = a == b ? 1.0f : d < 0 ? 0.0f : largest > 0 ? (float)(1 - d / largest) : 1.0f;
        }
}

/* Solves the losses by Frobenius norm; those of exf_solve_loss with sums without weights, as a root. */
static exf_code solve_frobenius(const exf_layer_statistics *s, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, base = (size_t)l * e * e;
    for (size_t i = 0; i < e * e; i++) {
        float *out = &t->frobenius[base + i];
        *out = EXF_LOSS_NEVER;
        if (!is_observed(t, base + i)) continue;
        *out = (float)sqrt(exf_solve_loss((double)t->coeff[base + i], exf_exact_value(&s->dot0[i]),
                                          exf_exact_value(&s->sq0[i % e * e + i / e]), exf_exact_value(&s->sq0[i])));
        if (!isfinite(*out))
            return exf_fail(err, EXF_NUMERIC, "layer %d, pair %zu -> %zu: Frobenius loss %g is no finite float32",
                            (int)t->layer_number[l], i / e, i % e, (double)*out);
    }
    return EXF_OK;
}

/* Estimates the standard error of a pair's scalar by a jackknife over sequences: tokens of one text are correlated, so they
 * cannot be the units.
 *
 * With a_i, b_i the dot and target_sq of sequence i, A = sum a_i, B = sum b_i and
 * S = A / (B + lambda), sequence i moves S by U_i = (a_i - S b_i) / (B + lambda) to first
 * order (the infinitesimal jackknife; Jaeckel 1972, Bell Laboratories memorandum MM
 * 72-1215-11; Efron, The Jackknife, the Bootstrap and Other Resampling Plans, SIAM 1982,
 * chapter 6).  A sequence weighs as much as its sums say: this is the delete-one jackknife
 * of a ratio with unequal units, and
 *
 *   SE^2 = n / (n - 1)  sum (U_i - mean U)^2
 *        = n / (n - 1)  [ sum a^2 - 2 S sum a b + S^2 sum b^2 - (A - S B)^2 / n ] / (B + lambda)^2
 *
 * which needs no sequence, only sums over them.  n counts the sequences that saw the pair. */
static double std_error(const exf_layer_statistics *s, const exf_solve_options *o, size_t i)
{
    const double unscale = 1 / EXF_SEQUENCE_SCALE;
    double n = (double)s->sequences[i], dot = exf_exact_value(&s->dot[i]), target_sq = exf_exact_value(&s->target_sq[i]);
    double divisor = target_sq + o->rule.ridge, ratio = divisor > 0 ? dot / divisor : 0;
    double aa = exf_exact_value(&s->seq_aa[i]), ab = exf_exact_value(&s->seq_ab[i]), bb = exf_exact_value(&s->seq_bb[i]);
    double squares = aa - 2 * ratio * ab + ratio * ratio * bb, rest = (dot - ratio * target_sq) * EXF_SEQUENCE_SCALE;
    double spread = squares - rest * rest / n;
    return spread > 0 && divisor > 0 ? sqrt(n / (n - 1) * spread) * unscale / divisor : 0;
}

exf_code exf_measures_solve(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    solve_similarities(s, (size_t)l * e * e, t);
    for (size_t i = 0; t->std_error && i < e * e; i++) {
        size_t at = (size_t)l * e * e + i;
        double x = i % e == i / e ? 0 : (double)EXF_ERROR_UNKNOWN;
        if (x > 0 && is_observed(t, at) && s->sequences[i] >= 2) x = std_error(s, o, i);
        t->std_error[at] = x < (double)EXF_ERROR_UNKNOWN ? (float)x : EXF_ERROR_UNKNOWN;
    }
    for (size_t i = 0; i < e; i++) {
        double mean = s->norm_count[i] ? exf_exact_value(&s->contribution_sum[i]) / (double)s->norm_count[i] : 0;
        t->contribution[(size_t)l * e + i] = (float)mean;
    }
    exf_code rc = solve_frobenius(s, l, t, err);
    return rc == EXF_OK ? solve_rms(s, l, t, err) : rc;
}

/* ---- static pools ------------------------------------------------------------------------------ */

/* Returns how much expert e of layer l has of the pool's criterion. */
static double rank_expert(const exf_tables *t, int l, const exf_exact *energy, const exf_static_pool *p, int e)
{
    int by = exf_name_place(exf_pool_criteria, EXF_POOL_CRITERIA, p->by);
    if (by == EXF_POOL_BY_ENERGY) return exf_exact_value(&energy[e]);
    return exf_tables_score(t, (exf_expert_rank){(exf_pool_criterion)by, 0}, (size_t)l, (size_t)e);
}

/* Chooses the pool's experts, those with the most first, ties to the lower number. */
static void choose_members(const exf_tables *t, int l, const exf_exact *energy, const exf_static_pool *p, int32_t *members)
{
    int have = 0, n = p->size;
    for (int e = 0; e < (int)t->shape.n_experts; e++) {
        double mine = rank_expert(t, l, energy, p, e);
        if (have == n && !(mine > rank_expert(t, l, energy, p, members[n - 1]))) continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && mine > rank_expert(t, l, energy, p, members[at - 1]); at--) members[at] = members[at - 1];
        members[at] = e;
    }
}

void exf_solve_pools(int l, const exf_exact *energy, exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts;
    for (int i = 0; i < t->n_pools; i++) {
        const exf_static_pool *p = &t->pool[i];
        int32_t *members = p->members + (size_t)l * (size_t)p->size;
        choose_members(t, l, energy, p, members);
        for (size_t s = 0; s < e; s++) {
            size_t at = (size_t)l * e + s;
            const float *coeff = t->coeff + at * e, *loss = t->loss + at * e;
            int32_t best = members[0];
            for (int k = 1; k < p->size; k++)
                if (loss[members[k]] < loss[best]) best = members[k];
            p->target_ids[at] = best;
            p->target_scale[at] = loss[best] < EXF_LOSS_NEVER ? coeff[best] : 0.0f;
        }
        for (int k = 0; k < p->size; k++) {
            p->target_ids[(size_t)l * e + (size_t)members[k]] = members[k];
            p->target_scale[(size_t)l * e + (size_t)members[k]] = 1;
        }
    }
}

exf_code exf_solve_pool_of(exf_tables *t, int64_t size, exf_err *err)
{
    exf_code rc = exf_tables_add_pool(t, size, err);
    for (int l = 0; rc == EXF_OK && l < t->n_layers; l++) exf_solve_pools(l, NULL, t);
    return rc;
}
