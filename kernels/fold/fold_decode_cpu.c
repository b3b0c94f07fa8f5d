/* fold_decode_cpu.c - routes of a decode batch into a pool: by pairs, jointly, and into a pool fixed beforehand; see
 * exfold/fold.h. */
#include "kernels/fold/fold_cpu.h"

/* ---- the pool ------------------------------------------------------------------------------------ */

/* Sorts keys by falling value: Shell's sort with Ciura's gaps. */
static void sort_keys(uint64_t *key, int n)
{
    static const int gaps[] = {301, 132, 57, 23, 10, 4, 1};
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (int i = gaps[g]; i < n; i++) {
            uint64_t mine = key[i];
            int at = i;
            for (; at >= gaps[g] && mine > key[at - gaps[g]]; at -= gaps[g]) key[at] = key[at - gaps[g]];
            key[at] = mine;
        }
}

float exf_fold_term_of(const exf_fold_routes *io, int64_t slot, int id, const exf_fold_tables *t, exf_fold_importance kind)
{
    int bare = kind == EXF_FOLD_IMPORTANCE_SCORE;
    return exf_fold_term(kind, exf_fold_weight(io, slot), bare ? 1.0f : exf_fold_norm(io, slot, id, exf_fold_scales(t, kind)));
}

/* Marks the candidates for the pool and returns how many; *largest: the largest magnitude of a term. */
static int find_union(unsigned char *present, float *largest, const exf_fold_routes *io, const exf_fold_tables *t,
                      const exf_fold_decode_options *o)
{
    int n_experts = t->n_experts, distinct = o->candidates == EXF_FOLD_POOL_OF_ALL ? n_experts : 0;
    *largest = 0;
    memset(present, distinct > 0, (size_t)n_experts);
    for (int64_t i = 0, n = (int64_t)io->rows * io->width; i < n; i++) {
        int id = exf_fold_expert(io, i, n_experts);
        if (id < 0) continue;
        float term = exf_fold_term_of(io, i, id, t, o->importance);
        *largest = fabsf(term) > *largest ? fabsf(term) : *largest;
        if (present[id] || !exf_fold_competes(o->candidates, term)) continue;
        present[id] = 1;
        distinct++;
    }
    return distinct;
}

/* Fills *p with the members that are experts, each once, and then all others. */
static int take_members(exf_fold_pool *p, const int32_t *members, int n, int n_experts)
{
    unsigned char inside[EXF_FOLD_MAX_E] = {0};
    p->n_pool = 0;
    for (int i = 0; i < n; i++) {
        if (members[i] < 0 || members[i] >= n_experts || inside[members[i]]) continue;
        inside[members[i]] = 1;
        p->expert[p->n_pool++] = (int16_t)members[i];
    }
    p->n_union = p->n_pool;
    for (int e = 0; e < n_experts; e++)
        if (!inside[e]) p->expert[p->n_union++] = (int16_t)e;
    return p->n_pool > 0;
}

int exf_fold_choose_pool(exf_fold_pool *p, const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    unsigned char present[EXF_FOLD_MAX_E];
    int64_t sum[EXF_FOLD_MAX_E] = {0}, n = (int64_t)io->rows * io->width;
    uint64_t key[EXF_FOLD_MAX_E];
    float largest;
    if (exf_fold_fits(n, o)) return 0;
    if (o->members) return take_members(p, o->members, o->pool, t->n_experts);
    p->n_pool = o->pool;
    p->n_union = find_union(present, &largest, io, t, o);
    if (p->n_union <= o->pool) return 0;
    double grid = exf_fold_grid(largest);
    for (int64_t i = 0; i < n; i++) {
        int id = exf_fold_expert(io, i, t->n_experts);
        if (id >= 0) sum[id] += exf_fold_quantum(exf_fold_term_of(io, i, id, t, o->importance), grid);
    }
    for (int e = 0, at = 0; e < t->n_experts; e++)
        if (present[e]) key[at++] = exf_fold_pool_key(sum[e], e);
    sort_keys(key, p->n_union);
    for (int i = 0; i < p->n_union; i++) p->expert[i] = (int16_t)exf_fold_pool_id(key[i]);
    return 1;
}

/* ---- by pairs ------------------------------------------------------------------------------------ */

int exf_fold_pool_target(const exf_fold_pool *p, const float *loss, float max_loss)
{
    int to = -1;
    for (int j = 0; j < p->n_pool; j++)
        if (exf_fold_may_take(loss[p->expert[j]], max_loss) && (to < 0 || loss[p->expert[j]] < loss[to])) to = p->expert[j];
    return to;
}

float exf_fold_move(int *target, const exf_fold_pool *p, int from, int to, const exf_fold_tables *t,
                    const exf_fold_decode_options *o)
{
    int none = to < 0 && !o->fallback;
    *target = to < 0 ? p->expert[0] : to;
    return none || o->drop ? 0.0f : t->coeff[(size_t)from * (size_t)t->n_experts + (size_t)*target];
}

exf_fold_status exf_fold_decode_cpu(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    exf_fold_decode_options settled;
    exf_fold_status status = exf_fold_check_decode(&settled, io, t, o, 0);
    exf_fold_pool pool;
    int target[EXF_FOLD_MAX_E]; /* of every expert's slots; -1: they stay */
    float scale[EXF_FOLD_MAX_E];
    if (status != EXF_FOLD_OK || !exf_fold_choose_pool(&pool, io, t, &settled)) return status;
    for (int e = 0; e < t->n_experts; e++) target[e] = -1;
    for (int i = pool.n_pool; i < pool.n_union; i++) {
        int from = pool.expert[i];
        int to = exf_fold_pool_target(&pool, t->loss + (size_t)from * (size_t)t->n_experts, settled.max_loss);
        scale[from] = exf_fold_move(&target[from], &pool, from, to, t, &settled);
    }
    for (int64_t i = 0, n = (int64_t)io->rows * io->width; i < n; i++) {
        int id = exf_fold_expert(io, i, t->n_experts);
        if (id < 0 || target[id] < 0) continue;
        exf_fold_set_id(io, i, target[id]);
        exf_fold_set_weight(io, i, scale[id] == 0 ? 0.0f : exf_mulf(exf_fold_weight(io, i), scale[id]));
    }
    return EXF_FOLD_OK;
}

exf_fold_status exf_fold_decode_static_cpu(const exf_fold_routes *io, const int32_t *target_ids, const float *target_scale,
                                           int n_experts)
{
    exf_fold_status status = exf_fold_check_static(io, target_ids, target_scale, n_experts);
    if (status != EXF_FOLD_OK) return status;
    for (int64_t i = 0, n = (int64_t)io->rows * io->width; i < n; i++) {
        int id = exf_fold_expert(io, i, n_experts);
        if (id < 0 || (target_ids[id] == id && target_scale[id] == 1)) continue;
        exf_fold_set_id(io, i, target_ids[id]);
        exf_fold_set_weight(io, i, exf_mulf(exf_fold_weight(io, i), target_scale[id]));
    }
    return EXF_FOLD_OK;
}

/* ---- jointly ------------------------------------------------------------------------------------- */

int exf_fold_pool_likest(const exf_fold_pool *p, const float *cosine)
{
    int to = p->expert[0];
    for (int j = 1; j < p->n_pool; j++)
        if (exf_fold_likeness(cosine[p->expert[j]]) > exf_fold_likeness(cosine[to])) to = p->expert[j];
    return to;
}

static void join_row(const exf_fold_routes *io, int64_t first, const int16_t *target, const exf_fold_tables *t, double rho)
{
    int slot[EXF_FOLD_MAX_K], old[EXF_FOLD_MAX_K], id[EXF_FOLD_MAX_K], n = 0, remapped = 0;
    float was[EXF_FOLD_MAX_K], norm[EXF_FOLD_MAX_K];
    exf_fold_joint s;
    for (int k = 0; k < io->width; k++) {
        int e = exf_fold_expert(io, first + k, t->n_experts);
        if (e < 0) continue;
        slot[n] = k;
        old[n] = e;
        id[n] = target[e] < 0 ? e : target[e];
        was[n] = exf_fold_norm(io, first + k, e, exf_fold_gram_norms(t));
        norm[n] = target[e] < 0 ? was[n] : exf_fold_stand_in_norm(io, t, id[n], e, was[n]);
        n++;
        remapped += target[e] >= 0;
    }
    if (remapped == 0) return;
    exf_fold_joint_begin(&s, id, norm, n, t);
    for (int i = 0; i < n; i++) /* the kept slots' own terms cancel */
        if (target[old[i]] >= 0) exf_fold_joint_omit(&s, old[i], was[i], exf_fold_weight(io, first + slot[i]), t);
    int solved = exf_fold_joint_solve(&s, rho);
    for (int i = 0; i < n; i++) {
        int moved = target[old[i]] >= 0;
        float w = exf_fold_weight(io, first + slot[i]);
        size_t pair = (size_t)old[i] * (size_t)t->n_experts + (size_t)id[i];
        if (moved) exf_fold_set_id(io, first + slot[i], id[i]);
        if (solved)
            exf_fold_set_weight(io, first + slot[i], (float)((moved ? 0 : (double)w) + s.right[i]));
        else if (moved)
            exf_fold_set_weight(io, first + slot[i], exf_fold_by_pair(t, w, pair));
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
    for (int i = 0; i < pool.n_union; i++) { /* outside of the pool the likest member of it */
        int e = pool.expert[i];
        target[e] = i < pool.n_pool ? -1 : (int16_t)exf_fold_pool_likest(&pool, t->cosine + (size_t)e * (size_t)t->n_experts);
    }
    exf_fold_join_rows(io, target, t, settled.ridge);
    return EXF_FOLD_OK;
}
