/* fold_stand_ins_cpu.c - stand-ins chosen by the router's scores: see exfold/fold.h. */
#include "kernels/fold/fold_cpu.h"

/* The experts that may run. */
typedef struct {
    unsigned char inside[EXF_FOLD_MAX_E];
    int first; /* the most important member, or the first; -1: it is no expert */
} pool_set;

/* A row's slots that have an expert. */
typedef struct {
    int n, slot[EXF_FOLD_MAX_K], old[EXF_FOLD_MAX_K], id[EXF_FOLD_MAX_K]; /* id -1: no stand-in was left */
} row_slots;

/* Returns 0 if a pool by batch holds all experts of the batch. */
static int choose_pool(pool_set *set, const exf_fold_routes *io, const int32_t *members, const exf_fold_tables *t,
                       const exf_fold_stand_in_options *o)
{
    const exf_fold_decode_options by_batch = {.pool = o->pool, .importance = o->importance};
    exf_fold_pool pool;
    memset(set, 0, sizeof *set);
    if (!members && !exf_fold_choose_pool(&pool, io, t, &by_batch)) return 0;
    for (int i = 0; i < o->pool; i++) {
        int e = members ? members[i] : pool.expert[i];
        int known = e >= 0 && e < t->n_experts;
        if (known) set->inside[e] = 1;
        if (i == 0) set->first = known ? e : -1;
    }
    return 1;
}

/* Returns the pool's member of largest score that the row does not hold; -1: none is left. */
static int next_best(const row_slots *r, const pool_set *set, const exf_fold_scores *s, int64_t first, int n_experts)
{
    uint32_t most = 0;
    int best = -1;
    for (int e = 0; e < n_experts; e++) {
        int held = 0;
        if (!set->inside[e]) continue;
        uint32_t key = exf_fold_score_key(exf_fold_real_at(s->choice, s->type, first + e));
        for (int i = 0; key > most && i < r->n; i++) held |= r->id[i] == e;
        if (key <= most || held) continue;
        most = key;
        best = e;
    }
    return best;
}

/* Fills order with the slots outside of the pool, those first whose own experts have the largest scores, ties to the lower expert,
 * and returns their number. */
static int order_moved(int order[EXF_FOLD_MAX_K], const row_slots *r, const exf_fold_scores *s, int64_t first)
{
    uint32_t key[EXF_FOLD_MAX_K];
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        if (r->id[i] >= 0) continue;
        int at = n++;
        key[i] = exf_fold_score_key(exf_fold_real_at(s->choice, s->type, first + r->old[i]));
        for (; at > 0 && exf_fold_stands_before(key[i], r->old[i], key[order[at - 1]], r->old[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}

/* Writes the ids and weights w of the slots that moved, and the weights of the others if `all`. */
static void write_slots(const exf_fold_routes *io, int64_t first, const row_slots *r, const float *w, int spare, int all)
{
    for (int i = 0; i < r->n; i++) {
        int moved = r->id[i] != r->old[i];
        if (moved) exf_fold_set_id(io, first + r->slot[i], r->id[i] < 0 ? spare : r->id[i]);
        if (moved || all) exf_fold_set_weight(io, first + r->slot[i], w[i]);
    }
}

static void weigh_jointly(const exf_fold_routes *io, int64_t first, const row_slots *r, int spare, const exf_fold_tables *t,
                          double rho)
{
    int id[EXF_FOLD_MAX_K], n = 0;
    float w[EXF_FOLD_MAX_K], was[EXF_FOLD_MAX_K], norm[EXF_FOLD_MAX_K];
    exf_fold_joint s;
    for (int i = 0; i < r->n; i++) {
        was[i] = exf_fold_norm(io, first + r->slot[i], r->old[i], exf_fold_gram_norms(t));
        if (r->id[i] < 0) continue;
        norm[n] = r->id[i] == r->old[i] ? was[i] : exf_fold_stand_in_norm(io, t, r->id[i], r->old[i], was[i]);
        id[n++] = r->id[i];
    }
    exf_fold_joint_begin(&s, id, norm, n, t);
    for (int i = 0; i < r->n; i++)
        if (r->id[i] != r->old[i]) exf_fold_joint_omit(&s, r->old[i], was[i], exf_fold_weight(io, first + r->slot[i]), t);
    int solved = exf_fold_joint_solve(&s, rho);
    for (int i = 0, at = 0; i < r->n; i++) {
        float before = exf_fold_weight(io, first + r->slot[i]);
        int moved = r->id[i] != r->old[i];
        w[i] = moved ? 0.0f : before; /* moved: no stand-in was left */
        if (r->id[i] < 0) continue;
        if (solved)
            w[i] = (float)((double)w[i] + s.right[at]);
        else if (moved)
            w[i] = exf_fold_by_pair(t, before, (size_t)r->old[i] * (size_t)t->n_experts + (size_t)r->id[i]);
        at++;
    }
    write_slots(io, first, r, w, spare, solved);
}

static void weigh_by_gate(const exf_fold_routes *io, int64_t first, const row_slots *r, int spare, const exf_fold_scores *s,
                          int64_t first_score, int renormalises)
{
    const void *gate = s->gate ? s->gate : s->choice;
    float w[EXF_FOLD_MAX_K], before = 0, gates = 0, after = 0;
    for (int i = 0; i < r->n; i++) {
        w[i] = exf_fold_weight(io, first + r->slot[i]);
        before = exf_addf(before, w[i]);
        gates = exf_addf(gates, exf_fold_real_at(gate, s->type, first_score + r->old[i]));
    }
    float factor = exf_fold_gate_factor(before, gates);
    for (int i = 0; i < r->n; i++) {
        if (r->id[i] != r->old[i])
            w[i] = r->id[i] < 0 ? 0.0f : exf_mulf(factor, exf_fold_real_at(gate, s->type, first_score + r->id[i]));
        after = exf_addf(after, w[i]);
    }
    if (renormalises) factor = exf_fold_rescale_factor(EXF_FOLD_RESCALE_SUM, before, after);
    for (int i = 0; renormalises && i < r->n; i++) w[i] = exf_mulf(w[i], factor);
    write_slots(io, first, r, w, spare, renormalises);
}

exf_fold_status exf_fold_decode_stand_ins_cpu(const exf_fold_routes *io, const exf_fold_scores *s, const int32_t *members,
                                              const exf_fold_tables *t, const exf_fold_stand_in_options *o)
{
    exf_fold_stand_in_options settled;
    exf_fold_status status = exf_fold_check_stand_ins(&settled, io, s, members, t, o);
    pool_set set;
    if (status != EXF_FOLD_OK || !choose_pool(&set, io, members, t, &settled)) return status;
    for (int row = 0; row < io->rows; row++) {
        int64_t first = (int64_t)row * io->width, first_score = (int64_t)row * t->n_experts;
        int order[EXF_FOLD_MAX_K];
        row_slots r = {.n = 0};
        for (int k = 0; k < io->width; k++) {
            int e = exf_fold_expert(io, first + k, t->n_experts);
            if (e < 0) continue;
            r.slot[r.n] = k;
            r.old[r.n] = e;
            r.id[r.n++] = set.inside[e] ? e : -1;
        }
        int moved = order_moved(order, &r, s, first_score);
        if (moved == 0) continue;
        for (int i = 0; i < moved; i++) r.id[order[i]] = next_best(&r, &set, s, first_score, t->n_experts);
        if (settled.weights == EXF_FOLD_STAND_INS_JOINT)
            weigh_jointly(io, first, &r, set.first, t, settled.ridge);
        else
            weigh_by_gate(io, first, &r, set.first, s, first_score, settled.weights == EXF_FOLD_STAND_INS_ROUTE);
    }
    return EXF_FOLD_OK;
}
