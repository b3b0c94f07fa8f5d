/* norm_head.c - solves the norm head of a layer from its sums (docs/method.md, section 13): for each expert the ridge regression of
 * log ||u|| on the features of a token, and what share of the variance of log ||u|| it explains. */
#include "solve/solve_internal.h"

#include "accumulate/norm_sums.h"
#include "base/mem.h"
#include "kernels/linear/linear.h"

#include <math.h>
#include <string.h>

static const double ridge = 1e-3;

/* An expert's sums as numbers, and room to solve them. */
typedef struct {
    size_t n;         /* features F */
    double *pp, *py;  /* [F, F] symmetric, [F] */
    double yy;
    double *a, *theta; /* [F, F], [F] */
} regression;

/* Squared errors of log norms over an expert's tokens. */
typedef struct {
    double by_mean; /* of log rms */
    double left;    /* of theta */
    double error;   /* standard error of the share 1 - left / by_mean */
} fit;

/* Solves (pp + ridge (mean of its diagonal + 1) I) theta = py, and rounds theta to floats, as it is stored. */
static exf_code solve_theta(regression *r, exf_err *err)
{
    size_t n = r->n;
    double mean = 0;
    for (size_t i = 0; i < n; i++) mean += r->pp[i * n + i] / (double)n;
    memcpy(r->a, r->pp, n * n * sizeof *r->a);
    memcpy(r->theta, r->py, n * sizeof *r->theta);
    for (size_t i = 0; i < n; i++) r->a[i * n + i] += ridge * (mean + 1);
    exf_code rc = exf_linalg_solve(r->a, r->theta, (int)n, 1, err);
    for (size_t i = 0; i < n; i++) r->theta[i] = (double)(float)r->theta[i];
    return rc;
}

/* Returns the sum of (y - theta' phi)^2, or of (y - constant)^2 where theta is NULL. */
static double squared_error(const regression *r, const double *theta, double constant)
{
    size_t n = r->n;
    double sum = r->yy;
    if (!theta) sum += constant * (constant * r->pp[0] - 2 * r->py[0]);
    for (size_t i = 0; theta && i < n; i++) {
        double row = -2 * r->py[i];
        for (size_t k = 0; k < n; k++) row += r->pp[i * n + k] * theta[k];
        sum += theta[i] * row;
    }
    return sum > 0 ? sum : 0;
}

/* Solves one expert into theta, which is that of its rms where it has too few tokens or the sums explain nothing. */
static exf_code solve_expert(regression *r, uint64_t least, double log_rms, float *theta, fit *f, exf_err *err)
{
    double tokens = r->pp[0];
    exf_code rc;
    *f = (fit){.by_mean = squared_error(r, NULL, log_rms)};
    f->left = f->by_mean;
    memset(theta, 0, r->n * sizeof *theta);
    theta[0] = (float)log_rms;
    if (tokens < (double)least) return EXF_OK;
    EXF_TRY(solve_theta(r, err));
    double left = squared_error(r, r->theta, 0);
    if (!(left < f->by_mean)) return EXF_OK;
    f->left = left;
    double n = tokens, share = 1 - left / f->by_mean; /* with the standard error of an R2 by F coefficients over n tokens */
    f->error = 2 * (1 - share) * (n - (double)r->n) * sqrt(share / ((n * n - 1) * (n + 3)));
    for (size_t i = 0; i < r->n; i++) theta[i] = (float)r->theta[i];
out:
    return rc;
}

static double share_of(double left, double by_mean)
{
    return by_mean > 0 ? 1 - left / by_mean : 0;
}

exf_code exf_solve_norm_head(const exf_norm_sums *s, int l, exf_tables *t, exf_err *err)
{
    exf_norm_head *head = &t->norm_head;
    size_t n = exf_norm_features(s->q);
    regression r = {.n = n};
    size_t e = (size_t)t->shape.n_experts, first = (size_t)l * e, elements = (size_t)s->d_model * (size_t)s->q;
    double left = 0, by_mean = 0, error = 0;
    exf_code rc;
    if (!head->q) EXF_TRY(exf_norm_head_new(t, s->q, err));
    if (s->q != head->q)
        return exf_fail(err, EXF_MODEL, "layer %d: the sums of the norm head have %d directions, those of another layer %d",
                        (int)t->layer_number[l], s->q, head->q);
    for (size_t i = 0; i < elements; i++) head->basis[(size_t)l * elements + i] = (float)s->basis[i];
    EXF_TRY(exf_mem_new(&r.pp, n * n, sizeof *r.pp, "norm head", err));
    EXF_TRY(exf_mem_new(&r.py, n, sizeof *r.py, "norm head", err));
    EXF_TRY(exf_mem_new(&r.a, n * n, sizeof *r.a, "norm head", err));
    EXF_TRY(exf_mem_new(&r.theta, n, sizeof *r.theta, "norm head", err));
    for (size_t at = first; at < first + e; at++) {
        const exf_exact *from = s->pp + (at - first) * exf_norm_products(s->q);
        fit f;
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k <= i; k++) r.pp[i * n + k] = r.pp[k * n + i] = exf_exact_value(from++);
        for (size_t i = 0; i < n; i++) r.py[i] = exf_exact_value(&s->py[(at - first) * n + i]);
        r.yy = exf_exact_value(&s->yy[at - first]);
        EXF_TRY(solve_expert(&r, exf_norm_head_tokens(s->q), exf_norm_head_mean(t, at), head->theta + at * r.n, &f, err));
        head->explained[at] = (float)share_of(f.left, f.by_mean);
        head->error[at] = (float)f.error;
        left += f.left;
        by_mean += f.by_mean;
        error += f.by_mean * f.error * f.by_mean * f.error;
    }
    head->layer_explained[l] = (float)share_of(left, by_mean);
    head->layer_error[l] = by_mean > 0 ? (float)(sqrt(error) / by_mean) : 0;
out:
    exf_mem_free(r.pp);
    exf_mem_free(r.py);
    exf_mem_free(r.a);
    exf_mem_free(r.theta);
    return rc;
}
