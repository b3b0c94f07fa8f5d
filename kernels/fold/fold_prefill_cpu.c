/* fold_prefill_cpu.c - see exfold/fold.h. */
#include "kernels/fold/fold_cpu.h"

void exf_fold_rank_row(exf_fold_ranked *r, const exf_fold_routes *in, int row, const exf_fold_tables *t, exf_fold_rank rank)
{
    int64_t first = (int64_t)row * in->width;
    int32_t key[EXF_FOLD_MAX_K];
    r->n = 0;
    for (int k = 0; k < in->width; k++) {
        int id = exf_fold_id(in, first + k, t->n_experts), at = k;
        float w = exf_fold_weight(in, first + k);
        float h = id < 0 || rank == EXF_FOLD_BY_SCORE ? 0.0f : t->norms[id];
        int32_t mine = id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(rank, w, h);
        for (; at > 0 && mine > key[at - 1]; at--) {
            key[at] = key[at - 1];
            r->slot[at] = r->slot[at - 1];
            r->id[at] = r->id[at - 1];
            r->w[at] = r->w[at - 1];
        }
        key[at] = mine;
        r->slot[at] = k;
        r->id[at] = id;
        r->w[at] = w;
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

void exf_fold_put_row(const exf_fold_routes *out, int row, const exf_fold_routes *in, const exf_fold_ranked *r, float *w,
                      const exf_fold_prefill_options *o)
{
    int kept = r->n < o->keep ? r->n : o->keep;
    int64_t from = (int64_t)row * in->width, to = (int64_t)row * out->width;
    if (o->rescale != EXF_FOLD_RESCALE_NONE) {
        float f = exf_fold_rescale_factor(o->rescale, size_of(r->w, r->n, o->rescale), size_of(w, kept, o->rescale));
        for (int i = 0; i < kept; i++) w[i] = exf_mulf(w[i], f);
    }
    for (int i = 0; i < o->keep; i++) {
        exf_fold_set_id(out, to + i, exf_fold_raw_id(in, from + r->slot[i]));
        exf_fold_set_weight(out, to + i, w[i]);
    }
}

int exf_fold_target(const exf_fold_ranked *r, int kept, const float *loss, float max_loss)
{
    int best = -1;
    for (int i = 0; i < kept; i++)
        if (exf_fold_may_take(loss[r->id[i]], max_loss) && (best < 0 || loss[r->id[i]] < loss[r->id[best]])) best = i;
    return best;
}

/* Adds the omitted routes to the kept ones' weights. */
static void fold_row(float *w, const exf_fold_ranked *r, const exf_fold_tables *t, const exf_fold_prefill_options *o)
{
    int kept = r->n < o->keep ? r->n : o->keep;
    float spread = 0, sum = 0;
    if (kept == r->n) return;
    for (int j = kept; j < r->n; j++) {
        size_t row = (size_t)r->id[j] * (size_t)t->n_experts;
        int to = exf_fold_target(r, kept, t->loss + row, o->max_loss);
        float c = to < 0 ? 0.0f : o->confidence ? exf_fold_confidence(t->loss[row + (size_t)r->id[to]]) : 1.0f;
        if (to >= 0) w[to] = exf_addf(w[to], exf_mulf(exf_mulf(r->w[j], t->coeff[row + (size_t)r->id[to]]), c));
        spread = exf_addf(spread, exf_mulf(r->w[j], exf_addf(1.0f, -c)));
    }
    if (!o->confidence) return;
    for (int i = 0; i < kept; i++) sum = exf_addf(sum, r->w[i]);
    if (!(sum > 0)) return;
    spread = exf_divf(spread, sum);
    for (int i = 0; i < kept; i++) w[i] = exf_addf(w[i], exf_mulf(r->w[i], spread));
}

exf_fold_status exf_fold_prefill_cpu(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                     const exf_fold_prefill_options *o)
{
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 0);
    if (status != EXF_FOLD_OK) return status;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        float w[EXF_FOLD_MAX_K];
        exf_fold_rank_row(&r, in, row, t, settled.rank);
        memcpy(w, r.w, sizeof w);
        fold_row(w, &r, t, &settled);
        exf_fold_put_row(out, row, in, &r, w, &settled);
    }
    return EXF_FOLD_OK;
}
