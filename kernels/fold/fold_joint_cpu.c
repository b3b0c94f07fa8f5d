/* fold_joint_cpu.c - see exfold/fold.h. */
#include "kernels/fold/fold_cpu.h"

exf_fold_status exf_fold_prefill_joint_cpu(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                           const exf_fold_prefill_options *o)
{
    exf_fold_prefill_options settled;
    exf_fold_status status = exf_fold_check_prefill(&settled, in, out, t, o, 1);
    if (status != EXF_FOLD_OK) return status;
    int keep = settled.keep;
    for (int row = 0; row < in->rows; row++) {
        exf_fold_ranked r;
        exf_fold_joint s;
        float w[EXF_FOLD_MAX_K];
        exf_fold_rank_row(&r, in, row, t, settled.rank);
        memcpy(w, r.w, sizeof w);
        if (r.n > keep) {
            exf_fold_joint_begin(&s, r.id, keep, t);
            for (int j = keep; j < r.n; j++) exf_fold_joint_omit(&s, r.id[j], r.w[j], t);
            if (exf_fold_joint_solve(&s, settled.ridge))
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
    exf_fold_joint s;
    for (int k = 0; k < io->width; k++) {
        int e = exf_fold_id(io, first + k, t->n_experts);
        if (e < 0) continue;
        slot[n] = k;
        old[n] = e;
        id[n++] = target[e] < 0 ? e : target[e];
        remapped += target[e] >= 0;
    }
    if (remapped == 0) return;
    exf_fold_joint_begin(&s, id, n, t);
    for (int i = 0; i < n; i++) /* the kept slots' own terms cancel */
        if (target[old[i]] >= 0) exf_fold_joint_omit(&s, old[i], exf_fold_weight(io, first + slot[i]), t);
    int solved = exf_fold_joint_solve(&s, rho);
    for (int i = 0; i < n; i++) {
        int moved = target[old[i]] >= 0;
        double w = moved ? 0 : exf_fold_weight(io, first + slot[i]);
        if (moved) exf_fold_set_id(io, first + slot[i], id[i]);
        if (moved || solved) exf_fold_set_weight(io, first + slot[i], (float)(solved ? w + s.right[i] : w));
    }
}

void exf_fold_join_rows(const exf_fold_routes *io, const int16_t *target, const exf_fold_tables *t, double rho)
{
    for (int row = 0; row < io->rows; row++) join_row(io, (int64_t)row * io->width, target, t, rho);
}

exf_fold_status exf_fold_decode_joint_cpu(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    exf_fold_decode_options settled;
    exf_fold_status status = exf_fold_check_decode(&settled, io, t, o, 1);
    exf_fold_pool pool;
    int16_t target[EXF_FOLD_MAX_E];
    if (status != EXF_FOLD_OK || !exf_fold_choose_pool(&pool, io, t, &settled)) return status;
    find_targets(target, &pool, t);
    exf_fold_join_rows(io, target, t, settled.ridge);
    return EXF_FOLD_OK;
}
