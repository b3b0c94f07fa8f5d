/* fold_system_cpu.c - the small positive definite systems of the joint forms: see fold_cpu.h. */
#include "kernels/fold/fold_cpu.h"

void exf_fold_joint_begin(exf_fold_joint *s, const int *id, int n, const exf_fold_tables *t)
{
    s->n = n;
    for (int i = 0; i < n; i++) {
        s->id[i] = id[i];
        s->right[i] = 0;
        for (int j = 0; j <= i; j++) s->gram[i][j] = exf_fold_gram(t, id[i], id[j]);
    }
}

void exf_fold_joint_omit(exf_fold_joint *s, int id, float w, const exf_fold_tables *t)
{
    for (int i = 0; i < s->n; i++) s->right[i] += exf_fold_gram(t, s->id[i], id) * (double)w;
}

/* Factors the lower triangle of f->a in place; returns 0 if a pivot is not above `least`. */
static int factor(exf_fold_factors *f, int n, double least)
{
    for (int k = 0; k < n; k++) {
        double column[EXF_FOLD_MAX_K];
        f->d[k] = f->a[k][k];
        if (!(f->d[k] > least)) return 0;
        f->a[k][k] = 1 / f->d[k];
        for (int i = k + 1; i < n; i++) {
            column[i] = f->a[i][k];
            f->a[i][k] *= f->a[k][k];
            for (int j = k + 1; j <= i; j++) f->a[i][j] -= f->a[i][k] * column[j];
        }
    }
    return 1;
}

int exf_fold_joint_factor(exf_fold_factors *f, const exf_fold_joint *s, double rho)
{
    double mean = 0;
    for (int i = 0; i < s->n; i++) mean += s->gram[i][i];
    mean /= s->n;
    if (!(mean > 0)) return 0;
    for (int tries = 0; tries <= EXF_FOLD_RAISES; tries++, rho = exf_fold_raise(rho)) {
        f->ridge = rho * mean;
        for (int i = 0; i < s->n; i++) {
            memcpy(f->a[i], s->gram[i], (size_t)(i + 1) * sizeof(double));
            f->a[i][i] += f->ridge;
        }
        if (factor(f, s->n, EXF_FOLD_PIVOT * mean)) return 1;
    }
    return 0;
}

int exf_fold_joint_solve(exf_fold_joint *s, double rho)
{
    exf_fold_factors f;
    double *x = s->right;
    if (!exf_fold_joint_factor(&f, s, rho)) return 0;
    for (int k = 0; k < s->n; k++) /* every sum runs as columns become known */
        for (int i = k + 1; i < s->n; i++) x[i] -= f.a[i][k] * x[k];
    for (int k = 0; k < s->n; k++) x[k] *= f.a[k][k];
    for (int k = s->n - 1; k >= 0; k--)
        for (int i = 0; i < k; i++) x[i] -= f.a[k][i] * x[k];
    return 1;
}
