/* fold_joint_cpu.c - see exfold/fold.h. */
#include "kernels/fold/fold_cpu.h"

/* The system of n kept slots: their experts' inner products and the right-hand side. */
typedef struct {
    int n, id[EXF_FOLD_MAX_K];
    double gram[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K]; /* lower triangle */
    double right[EXF_FOLD_MAX_K];
} joint_system;

/* Factors the lower triangle of a into L and 1/D of L D L'; returns 0 if a pivot is not above `least`. */
static int factor(double a[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K], int n, double least)
{
    for (int k = 0; k < n; k++) {
        double column[EXF_FOLD_MAX_K];
        if (!(a[k][k] > least)) return 0;
        a[k][k] = 1 / a[k][k];
        for (int i = k + 1; i < n; i++) {
            column[i] = a[i][k];
            a[i][k] *= a[k][k];
            for (int j = k + 1; j <= i; j++) a[i][j] -= a[i][k] * column[j];
        }
    }
    return 1;
}

/* Solves x := (L D L')^-1 x; every sum runs as columns become known. */
static void substitute(double *x, double a[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K], int n)
{
    for (int k = 0; k < n; k++)
        for (int i = k + 1; i < n; i++) x[i] -= a[i][k] * x[k];
    for (int k = 0; k < n; k++) x[k] *= a[k][k];
    for (int k = n - 1; k >= 0; k--)
        for (int i = 0; i < k; i++) x[i] -= a[k][i] * x[k];
}

/* Solves right := (gram + rho mean(diag) I)^-1 right, rho raised as fold.h says; returns 0 if there is no solution. */
static int solve(joint_system *s, double rho)
{
    double a[EXF_FOLD_MAX_K][EXF_FOLD_MAX_K], mean = 0;
    for (int i = 0; i < s->n; i++) mean += s->gram[i][i];
    mean /= s->n;
    if (!(mean > 0)) return 0;
    for (int tries = 0; tries <= EXF_FOLD_RAISES; tries++, rho = exf_fold_raise(rho)) {
        for (int i = 0; i < s->n; i++) {
            memcpy(a[i], s->gram[i], (size_t)(i + 1) * sizeof(double));
            a[i][i] += rho * mean;
        }
        if (!factor(a, s->n, EXF_FOLD_PIVOT * mean)) continue;
        substitute(s->right, a, s->n);
        return 1;
    }
    return 0;
}

static void begin(joint_system *s, const int *id, int n, const exf_fold_tables *t)
{
    s->n = n;
    for (int i = 0; i < n; i++) {
        s->id[i] = id[i];
        s->right[i] = 0;
        for (int j = 0; j <= i; j++) s->gram[i][j] = exf_fold_gram(t, id[i], id[j]);
    }
}

/* Adds an omitted route of weight w to the right-hand side. */
static void omit(joint_system *s, int id, float w, const exf_fold_tables *t)
{
    for (int i = 0; i < s->n; i++) s->right[i] += exf_fold_gram(t, s->id[i], id) * (double)w;
}

exf_fold_status exf_fold_prefill_joint_cpu(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                           const exf_fold_prefill_options *o)
{
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 1);
    if (status != EXF_FOLD_OK) return status;
    int keep = settled.keep;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        joint_system s;
        float w[EXF_FOLD_MAX_K];
        exf_fold_rank_row(&r, in, row, t, settled.rank);
        memcpy(w, r.w, sizeof w);
        if (r.n > keep) {
            begin(&s, r.id, keep, t);
            for (int j = keep; j < r.n; j++) omit(&s, r.id[j], r.w[j], t);
            if (solve(&s, settled.ridge))
                for (int i = 0; i < keep; i++) w[i] = (float)((double)r.w[i] + s.right[i]);
        }
        exf_fold_put_row(out, row, in, &r, w, &settled);
    }
    return EXF_FOLD_OK;
}

/* ---- decode ------------------------------------------------------------------------ */

/* Finds target[e], the pool's member of largest |cosine|, ties to the more important; -1 inside the pool. */
static void find_targets(int16_t *target, const exf_fold_pool *p, const exf_fold_tables *t)
{
    for (int i = 0; i < p->n_pool; i++) target[p->expert[i]] = -1;
    for (int i = p->n_pool; i < p->n_union; i++) {
        const float *cosine = t->cosine + (size_t)p->expert[i] * (size_t)t->n_experts;
        int16_t to = p->expert[0];
        for (int j = 1; j < p->n_pool; j++)
            if (exf_fold_likeness(cosine[p->expert[j]]) > exf_fold_likeness(cosine[to])) to = p->expert[j];
        target[p->expert[i]] = to;
    }
}

static void join_row(const exf_fold_routes *io, int64_t first, const int16_t *target, const exf_fold_tables *t, double rho)
{
    int slot[EXF_FOLD_MAX_K], old[EXF_FOLD_MAX_K], id[EXF_FOLD_MAX_K], n = 0, remapped = 0;
    joint_system s;
    for (int k = 0; k < io->width; k++) {
        int e = exf_fold_id(io, first + k, t->n_experts);
        if (e < 0) continue;
        slot[n] = k;
        old[n] = e;
        id[n++] = target[e] < 0 ? e : target[e];
        remapped += target[e] >= 0;
    }
    if (remapped == 0) return;
    begin(&s, id, n, t);
    for (int i = 0; i < n; i++) /* the kept slots' own terms cancel */
        if (target[old[i]] >= 0) omit(&s, old[i], exf_fold_weight(io, first + slot[i]), t);
    int solved = solve(&s, rho);
    for (int i = 0; i < n; i++) {
        int moved = target[old[i]] >= 0;
        double w = moved ? 0 : exf_fold_weight(io, first + slot[i]);
        if (moved) exf_fold_set_id(io, first + slot[i], id[i]);
        if (moved || solved) exf_fold_set_weight(io, first + slot[i], (float)(solved ? w + s.right[i] : w));
    }
}

exf_fold_status exf_fold_decode_joint_cpu(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    exf_fold_decode_options settled;
    exf_fold_status status = exf_fold_check_decode(&settled, io, t, o, 1);
    exf_fold_pool pool;
    int16_t target[EXF_FOLD_MAX_E];
    if (status != EXF_FOLD_OK || !exf_fold_choose_pool(&pool, io, t, &settled)) return status;
    find_targets(target, &pool, t);
    for (int row = 0; row < io->rows; row++) join_row(io, (int64_t)row * io->width, target, t, settled.ridge);
    return EXF_FOLD_OK;
}
