/* fold_cpu.c - what the CPU functions of exfold/fold.h share: a token's routes by rank, the systems of the joint forms; and
 * statuses in words. */
#include "kernels/fold/fold_cpu.h"

/* ---- the library ---------------------------------------------------------------------------- */

const char *exf_fold_status_text(exf_fold_status status)
{
    switch (status) {
    case EXF_FOLD_OK: return "success";
    case EXF_FOLD_BAD_ARGUMENT: return "an argument is missing, or contradicts another one or exfold/fold.h";
    case EXF_FOLD_UNSUPPORTED: return "more experts, routes or slots than this library folds, or an option that it does not know";
    case EXF_FOLD_DEVICE: return "CUDA refused the launch";
    case EXF_FOLD_FILE: return "the file cannot be read, or is not of tables";
    }
    return "a status that this library does not know";
}

int exf_fold_version(void)
{
    return EXF_FOLD_VERSION;
}

int exf_fold_abi(void)
{
    return EXF_FOLD_ABI;
}

int exf_fold_api(void)
{
    return EXF_FOLD_API;
}

/* ---- a token's routes ------------------------------------------------------------------------ */

void exf_fold_rank_row(exf_fold_ranked *r, const exf_fold_routes *in, int row, const exf_fold_tables *t, exf_fold_rank rank)
{
    int64_t first = (int64_t)row * in->width;
    int32_t key[EXF_FOLD_MAX_K];
    r->n = 0;
    for (int k = 0; k < in->width; k++) {
        int id = exf_fold_expert(in, first + k, t->n_experts), at = k;
        float w = exf_fold_weight(in, first + k);
        float h = id < 0 || rank == EXF_FOLD_BY_SCORE ? 0.0f : exf_fold_norm(in, first + k, id, t->norms);
        int32_t mine = id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(rank, w, h);
        for (; at > 0 && mine > key[at - 1]; at--) {
            key[at] = key[at - 1];
            r->slot[at] = r->slot[at - 1];
            r->id[at] = r->id[at - 1];
            r->w[at] = r->w[at - 1];
            r->norm[at] = r->norm[at - 1];
        }
        key[at] = mine;
        r->slot[at] = k;
        r->id[at] = id;
        r->w[at] = w;
        r->norm[at] = id < 0 ? 0.0f : exf_fold_norm(in, first + k, id, exf_fold_gram_norms(t));
        r->n += id >= 0;
    }
}

/* Returns the sum of w, or of its squares, in order. */
static float size_of(const float *w, int n, exf_fold_rescale rescale)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum = exf_addf(sum, rescale == EXF_FOLD_RESCALE_L2 ? exf_mulf(w[i], w[i]) : w[i]);
    return sum;
}

void exf_fold_copy_row(const exf_fold_routes *out, const exf_fold_routes *in, int row)
{
    int64_t from = (int64_t)row * in->width, to = (int64_t)row * out->width;
    for (int i = 0; i < out->width; i++) {
        exf_fold_set_id(out, to + i, exf_fold_raw_id(in, from + i));
        exf_fold_set_weight(out, to + i, exf_fold_weight(in, from + i));
    }
}

void exf_fold_write_row(const exf_fold_routes *out, int row, const exf_fold_routes *in, const exf_fold_ranked *r, float *w,
                      const exf_fold_prefill_options *o)
{
    int kept = r->n < o->keep ? r->n : o->keep;
    int64_t from = (int64_t)row * in->width, to = (int64_t)row * out->width;
    if (o->rescale != EXF_FOLD_RESCALE_NONE) {
        float f = exf_fold_rescale_factor(o->rescale, size_of(r->w, r->n, o->rescale), size_of(w, kept, o->rescale));
        for (int i = 0; i < kept; i++) w[i] = exf_mulf(w[i], f);
    }
    if (!exf_fold_counts(in, row)) {
        exf_fold_copy_row(out, in, row);
        return;
    }
    for (int i = 0; i < o->keep; i++) {
        exf_fold_set_id(out, to + i, exf_fold_raw_id(in, from + r->slot[i]));
        exf_fold_set_weight(out, to + i, w[i]);
    }
    for (int i = o->keep; i < out->width; i++) {
        exf_fold_set_id(out, to + i, o->repeat && r->n ? r->id[0] : -1);
        exf_fold_set_weight(out, to + i, 0.0f);
    }
}

int exf_fold_target(const exf_fold_ranked *r, int kept, const float *loss, float max_loss)
{
    int best = -1;
    for (int i = 0; i < kept; i++)
        if (exf_fold_may_take(loss[r->id[i]], max_loss) && (best < 0 || loss[r->id[i]] < loss[r->id[best]])) best = i;
    return best;
}

int exf_fold_likest(const exf_fold_ranked *r, int kept, const float *cosine)
{
    int best = 0;
    for (int i = 1; i < kept; i++)
        if (exf_fold_likeness(cosine[r->id[i]]) > exf_fold_likeness(cosine[r->id[best]])) best = i;
    return best;
}

/* ---- small positive definite systems ------------------------------------------------------------ */

void exf_fold_joint_begin(exf_fold_joint *s, const int *id, const float *norm, int n, const exf_fold_tables *t)
{
    s->n = n;
    for (int i = 0; i < n; i++) {
        s->id[i] = id[i];
        s->norm[i] = norm[i];
        s->right[i] = 0;
        for (int j = 0; j <= i; j++) s->gram[i][j] = exf_fold_gram(t, id[i], norm[i], id[j], norm[j]);
    }
}

void exf_fold_joint_omit(exf_fold_joint *s, int id, float norm, float w, const exf_fold_tables *t)
{
    for (int i = 0; i < s->n; i++) s->right[i] += exf_fold_gram(t, s->id[i], s->norm[i], id, norm) * (double)w;
}

/* Factors the lower triangle of f->a in place; returns 0 if a pivot keeps too little of its diagonal. */
static int factor(exf_fold_factors *f, int n)
{
    double least[EXF_FOLD_MAX_K];
    for (int k = 0; k < n; k++) least[k] = EXF_FOLD_PIVOT * f->a[k][k];
    for (int k = 0; k < n; k++) {
        double column[EXF_FOLD_MAX_K];
        f->d[k] = f->a[k][k];
        if (!(f->d[k] > least[k])) return 0;
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
        if (factor(f, s->n)) return 1;
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
