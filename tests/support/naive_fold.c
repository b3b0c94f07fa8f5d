/* naive_fold.c - see naive_fold.h. */
#include "tests/support/naive_fold.h"
#include "tests/support/naive.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

/* ---- a layer ------------------------------------------------------------------------ */

static int is(const exf_projector *p, const char *name)
{
    return strcmp(p->name, name) == 0;
}

static void fill_scalars(naive_layer *l, const exf_tables *t, int index, const exf_projector *projector)
{
    const exf_shared_scalar *shared = NULL;
    for (int i = 0; i < t->n_shared; i++) {
        if (is(projector, "layer") && strcmp(t->shared[i].name, "layer") == 0) shared = &t->shared[i];
        if (is(projector, "global") && strcmp(t->shared[i].name, "global") == 0) shared = &t->shared[i];
    }
    for (int a = 0; a < l->n_experts; a++)
        for (int b = 0; b < l->n_experts; b++) {
            size_t cell = ((size_t)index * (size_t)l->n_experts + (size_t)a) * (size_t)l->n_experts + (size_t)b;
            l->loss[a][b] = shared                      ? shared->loss[cell]
                            : is(projector, "diagonal") ? exf_vectors_data(&t->vectors, "diagonal_loss", 0)[cell]
                                                        : t->loss[cell];
            l->coeff[a][b] = shared ? shared->scalar[index] : t->coeff[cell];
            l->cosine[a][b] = t->cosine ? t->cosine[cell] : 0;
            l->similarity[a][b] = t->similarity ? t->similarity[cell] : 0;
        }
}

/* The numbers of the budget that the variant asks for. */
static void fill_budget(naive_layer *l, const exf_tables *t, int index, const exf_variant *v)
{
    static const char *const rules[] = {"stream", "stream", "output", "measured", "top_p", "skip"};
    const char *rule = v->budget == EXF_BUDGET_TOP_P ? "top_p" : v->skip_budget ? "skip" : rules[v->sensitivity];
    int keep = v->skip_budget ? v->skip_budget : v->prefill_options.keep, any = v->prefill == EXF_PREFILL_SKIP && !v->skip_budget;
    double sum = 0;
    l->factor = 1;
    l->tau = v->tau;
    for (int i = 0; i < t->n_budgets; i++) {
        const exf_budget *b = &t->budget[i];
        if (strcmp(b->rule, rule) != 0 || (!any && b->budget != keep)) continue;
        l->lambda = b->lambda;
        l->sensitivity = b->scale[index];
        sum = 0;
        for (int m = 0; m < t->n_layers; m++) sum += b->scale[m] / t->n_layers;
    }
    if (strcmp(rule, "skip") == 0) sum = 1; /* they add up to 1 already */
    if (v->sensitivity != EXF_SENSITIVITY_NONE || v->skip_budget) l->factor = l->sensitivity / sum;
    if (v->skip_budget) l->tau = l->lambda;
}

static int is_pool(const exf_static_pool *p, int size, const exf_variant *v)
{
    static const char *const by[] = {"norm", "reap", "energy", "frequency", "ean", "weighted_ean"};
    return p->size == size && strcmp(p->by, by[v->pool_by]) == 0;
}

naive_layer naive_layer_of(const exf_tables *t, int index, const exf_projector *projector, int pool, const exf_variant *v)
{
    naive_layer l = {.n_experts = (int)t->shape.n_experts, .top_k = (int)t->shape.top_k};
    fill_scalars(&l, t, index, projector);
    for (int e = 0; e < l.n_experts; e++) {
        size_t at = (size_t)index * (size_t)l.n_experts + (size_t)e;
        l.norm[e] = t->expert_norms[at];
        l.rms[e] = t->rms ? t->rms[at] : 0;
        for (int i = 0; i < t->n_pools; i++)
            if (is_pool(&t->pool[i], pool, v)) {
                l.target[e] = t->pool[i].target_ids[at];
                l.scale[e] = t->pool[i].target_scale[at];
                l.inside[e] = l.target[e] == e;
                l.first = t->pool[i].members[(size_t)index * (size_t)pool];
                for (int m = 0; m < pool; m++) l.member[m] = t->pool[i].members[(size_t)index * (size_t)pool + (size_t)m];
            }
    }
    fill_budget(&l, t, index, v);
    return l;
}

void naive_scores(naive_row *row, const float *logits, const float *bias, int n_experts)
{
    double sum = 0;
    for (int e = 0; e < n_experts; e++) sum += exp((double)logits[e]);
    for (int e = 0; e < n_experts; e++) {
        row->gate[e] = exp((double)logits[e]) / sum;
        row->choice[e] = row->gate[e] + (bias ? (double)bias[e] : 0);
    }
}

void naive_by_frobenius(naive_layer *l, const exf_tables *t, int index)
{
    size_t e = (size_t)l->n_experts;
    for (size_t i = 0; i < e * e; i++) l->loss[i / e][i % e] = t->frobenius[(size_t)index * e * e + i];
}

/* ---- prefill ------------------------------------------------------------------------- */

static double rank_of(const naive_row *row, int i, const naive_layer *l, exf_fold_rank rank)
{
    int id = row->id[i];
    if (id < 0) return -INFINITY;
    return rank == EXF_FOLD_BY_SCORE ? row->w[i] : rank == EXF_FOLD_BY_NORM ? l->norm[id] : row->w[i] * l->norm[id];
}

naive_row naive_ranked(const naive_row *row, const naive_layer *l, exf_fold_rank rank)
{
    naive_row out;
    unsigned used = 0;
    for (int n = 0; n < l->top_k; n++) {
        int best = -1;
        for (int i = 0; i < l->top_k; i++)
            if (!(used >> i & 1) && (best < 0 || rank_of(row, i, l, rank) > rank_of(row, best, l, rank))) best = i;
        used |= 1u << best;
        out.id[n] = row->id[best];
        out.w[n] = row->w[best];
    }
    return out;
}

/* Of the first n ids the one of least loss for s; -1 where none may be taken. */
static int nearest(const int *id, int n, int s, const naive_layer *l, double max_loss)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (l->loss[s][id[i]] < 1e30 && l->loss[s][id[i]] <= max_loss && (best < 0 || l->loss[s][id[i]] < l->loss[s][id[best]]))
            best = i;
    return best;
}

static double gram(const naive_layer *l, int a, int b)
{
    return l->cosine[a][b] * l->rms[a] * l->rms[b];
}

static void fill_grams(naive_square g, const int *id, int n, const naive_layer *l)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) g[i][j] = gram(l, id[i], id[j]);
}

/* x := (G_nn + rho mean(diag) I)^-1 x. */
static void solve(double *x, const int *id, int n, const naive_layer *l, double rho)
{
    naive_square g;
    fill_grams(g, id, n, l);
    naive_solve_raised(x, g, n, rho);
}

double naive_limit(float max_loss)
{
    return max_loss == 0 ? 1e30 : max_loss == EXF_FOLD_ZERO ? 0 : max_loss;
}

static double rho_of(float ridge)
{
    return ridge == 0 ? (double)1e-2f : ridge == EXF_FOLD_ZERO ? 0 : ridge;
}

static void fold(double *w, const naive_row *r, int kept, int n, const naive_layer *l, const exf_fold_prefill_options *o)
{
    double spread = 0, sum = 0;
    for (int j = kept; j < n; j++) {
        int to = nearest(r->id, kept, r->id[j], l, naive_limit(o->max_loss));
        double loss = to < 0 ? 1 : l->loss[r->id[j]][r->id[to]], c = to < 0 ? 0 : o->confidence ? fmin(fmax(1 - loss, 0), 1) : 1;
        if (to >= 0) w[to] += c * r->w[j] * l->coeff[r->id[j]][r->id[to]];
        spread += (1 - c) * r->w[j];
    }
    for (int i = 0; i < kept; i++) sum += r->w[i];
    for (int i = 0; o->confidence && i < kept; i++) w[i] += spread * r->w[i] / sum;
}

static void fold_jointly(double *w, const naive_row *r, int kept, int n, const naive_layer *l, double rho)
{
    double x[NAIVE_K] = {0};
    for (int i = 0; i < kept; i++)
        for (int j = kept; j < n; j++) x[i] += gram(l, r->id[i], r->id[j]) * r->w[j];
    solve(x, r->id, kept, l, rho);
    for (int i = 0; i < kept; i++) w[i] += x[i];
}

static void fold_randomly(double *w, const naive_row *in, const naive_row *r, int kept, int n, const naive_layer *l,
                          const exf_variant *v, int layer, size_t slot)
{
    for (int j = kept; j < n; j++) {
        int from = 0;
        while (in->id[from] != r->id[j]) from++;
        int to = (int)exf_rng_below((uint64_t)kept, (uint64_t)v->seed, (uint64_t)layer, slot + (size_t)from);
        if (l->loss[r->id[j]][r->id[to]] < 1e30) w[to] += r->w[j] * l->coeff[r->id[j]][r->id[to]];
    }
}

static void rescale(double *w, int kept, const naive_row *r, int n, exf_fold_rescale how)
{
    double before = 0, after = 0;
    for (int i = 0; i < n; i++) before += how == EXF_FOLD_RESCALE_L2 ? r->w[i] * r->w[i] : r->w[i];
    for (int i = 0; i < kept; i++) after += how == EXF_FOLD_RESCALE_L2 ? w[i] * w[i] : w[i];
    double f = how == EXF_FOLD_RESCALE_L2 ? sqrt(before / after) : before / after;
    for (int i = 0; before > 0 && after > 0 && i < kept; i++) w[i] *= f;
}

/* x := (G_BB + rho mean(diag G) I)^-1 G_BO w_O for the first p of n routes, and the residual that is left. */
static double join_first(double *x, const naive_row *r, int p, int n, const naive_layer *l, double rho)
{
    naive_square g;
    double right[NAIVE_K], mean = 0, left = 0;
    fill_grams(g, r->id, n, l);
    rho = naive_raised(rho, g, n);
    for (int i = 0; i < n; i++) mean += g[i][i] / n;
    for (int i = p; i < n; i++)
        for (int j = p; j < n; j++) left += r->w[i] * r->w[j] * g[i][j];
    for (int i = 0; i < p; i++) {
        right[i] = 0;
        for (int j = p; j < n; j++) right[i] += g[i][j] * r->w[j];
        x[i] = right[i];
        g[i][i] += rho * mean;
    }
    naive_solve(g, x, p);
    for (int i = 0; i < p; i++) left -= right[i] * x[i];
    return left;
}

/* How many of n routes a budget keeps. */
static int kept_by_budget(const naive_row *r, int n, const naive_layer *l, const exf_variant *v)
{
    double x[NAIVE_K], best = 0, sum = 0, all = 0;
    int p = 0, kept = 0;
    for (int i = 0; i < n; i++) all += r->w[i] * l->rms[r->id[i]];
    for (p = 1; p <= n; p++) {
        double cost = join_first(x, r, p, n, l, rho_of(v->prefill_options.ridge)) + p * l->lambda / l->sensitivity;
        sum += r->w[p - 1] * l->rms[r->id[p - 1]];
        if (v->budget == EXF_BUDGET_TOP_P && sum >= l->lambda * all) return p;
        if (kept && !(cost < best)) continue;
        kept = p;
        best = cost;
    }
    return v->budget == EXF_BUDGET_TOP_P ? n : kept;
}

static void choose_routes(naive_row *row, const naive_layer *l, const exf_variant *v)
{
    naive_layer by = *l;
    double x[NAIVE_K] = {0};
    int n = 0, skips = v->prefill == EXF_PREFILL_SKIP, kept = 0;
    double all = 0;
    if (!skips) memcpy(by.norm, l->rms, sizeof by.norm);
    naive_row r = naive_ranked(row, &by, skips ? EXF_FOLD_BY_SCORE : EXF_FOLD_BY_SCORE_NORM);
    while (n < l->top_k && r.id[n] >= 0) n++;
    for (int i = 0; i < n; i++) all += r.w[i];
    if (skips)
        while (kept < n && (kept < v->prefill_options.keep || r.w[kept] / all * l->factor >= l->tau)) kept++;
    else
        kept = kept_by_budget(&r, n, l, v);
    if (!skips && kept < n) join_first(x, &r, kept, n, l, rho_of(v->prefill_options.ridge));
    for (int i = 0; i < l->top_k; i++) {
        row->id[i] = i < kept ? r.id[i] : -1;
        row->w[i] = i < kept ? r.w[i] + x[i] : 0;
    }
}

void naive_prefill(naive_row *row, const naive_layer *l, const exf_variant *v, int layer, size_t slot)
{
    const exf_fold_prefill_options *o = &v->prefill_options;
    if (v->budget || v->prefill == EXF_PREFILL_SKIP) {
        choose_routes(row, l, v);
        return;
    }
    naive_row in = *row, r = naive_ranked(row, l, v->prefill == EXF_PREFILL_TOP ? EXF_FOLD_BY_SCORE : o->rank);
    double w[NAIVE_K];
    int n = 0,
        vectors = v->prefill == EXF_PREFILL_FOLD && (is(v->prefill_projector, "diagonal") || is(v->prefill_projector, "lowrank"));
    while (n < l->top_k && r.id[n] >= 0) n++;
    int kept = n < o->keep ? n : o->keep;
    memcpy(w, r.w, sizeof w);
    if (v->prefill == EXF_PREFILL_RANDOM)
        fold_randomly(w, &in, &r, kept, n, l, v, layer, slot);
    else if (v->prefill == EXF_PREFILL_FOLD && is(v->prefill_projector, "joint"))
        fold_jointly(w, &r, kept, n, l, rho_of(o->ridge));
    else if (v->prefill == EXF_PREFILL_FOLD && !vectors)
        fold(w, &r, kept, n, l, o);
    if (v->prefill == EXF_PREFILL_TOP && v->renormalise) rescale(w, kept, &r, n, EXF_FOLD_RESCALE_SUM);
    if (v->prefill == EXF_PREFILL_FOLD && o->rescale != EXF_FOLD_RESCALE_NONE) rescale(w, kept, &r, n, o->rescale);
    for (int i = 0; i < l->top_k; i++) {
        row->id[i] = i < kept ? r.id[i] : -1;
        row->w[i] = i < kept ? w[i] : 0;
    }
}

/* ---- decode ---------------------------------------------------------------------------- */

/* The batch's experts by falling importance, ties to the lower number; returns how many. */
static int by_importance(int *expert, const naive_row *row, int n, const naive_layer *l, exf_fold_importance kind)
{
    double importance[NAIVE_E] = {0};
    int present[NAIVE_E] = {0}, distinct = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < l->top_k; k++) {
            int e = row[i].id[k];
            if (e < 0) continue;
            present[e] = 1;
            importance[e] += kind == EXF_FOLD_IMPORTANCE_ENERGY  ? pow(row[i].w[k] * l->rms[e], 2)
                             : kind == EXF_FOLD_IMPORTANCE_SCORE ? row[i].w[k]
                                                                 : row[i].w[k] * l->norm[e];
        }
    for (;;) {
        int best = -1;
        for (int e = 0; e < l->n_experts; e++)
            if (present[e] && (best < 0 || importance[e] > importance[best])) best = e;
        if (best < 0) return distinct;
        present[best] = 0;
        expert[distinct++] = best;
    }
}

static int most_alike(const int *pool, int d, int s, const naive_layer *l)
{
    int best = 0;
    for (int i = 1; i < d; i++)
        if (1 - pow(l->cosine[s][pool[i]], 2) < 1 - pow(l->cosine[s][pool[best]], 2)) best = i;
    return pool[best];
}

static int is_in(const int *pool, int d, int e)
{
    for (int i = 0; i < d; i++)
        if (pool[i] == e) return 1;
    return 0;
}

static void remap_jointly(naive_row *r, const int *pool, int d, const naive_layer *l, double rho)
{
    int id[NAIVE_K], slot[NAIVE_K], n = 0, moved = 0;
    double kept[NAIVE_K], x[NAIVE_K];
    for (int k = 0; k < l->top_k; k++) {
        if (r->id[k] < 0) continue;
        int stays = is_in(pool, d, r->id[k]);
        slot[n] = k;
        kept[n] = stays ? r->w[k] : 0;
        id[n++] = stays ? r->id[k] : most_alike(pool, d, r->id[k], l);
        moved |= !stays;
    }
    if (!moved) return;
    for (int i = 0; i < n; i++) {
        x[i] = 0;
        for (int j = 0; j < n; j++) x[i] += gram(l, id[i], r->id[slot[j]]) * r->w[slot[j]] - gram(l, id[i], id[j]) * kept[j];
    }
    solve(x, id, n, l, rho);
    for (int i = 0; i < n; i++) {
        r->id[slot[i]] = id[i];
        r->w[slot[i]] = kept[i] + x[i];
    }
}

/* Returns whether slot a's expert has the larger choice score, ties to the lower expert, then to the lower slot. */
static int is_liked_more(const naive_row *r, int a, int b)
{
    double of_a = r->choice[r->id[a]], of_b = r->choice[r->id[b]];
    if (of_a != of_b) return of_a > of_b;
    return r->id[a] != r->id[b] ? r->id[a] < r->id[b] : a < b;
}

/* Slots outside the pool, by falling choice score, take the members of largest choice score, each once. */
static void stand_in(naive_row *r, const int *pool, int d, const naive_layer *l, const exf_variant *v)
{
    int id[NAIVE_K], slot[NAIVE_K], old[NAIVE_K], order[NAIVE_K], used[NAIVE_E] = {0}, n = 0, moved = 0, there = 0;
    double kept[NAIVE_K], x[NAIVE_K], before = 0, gates = 0, after = 0;
    naive_row was = *r;
    for (int k = 0; k < l->top_k; k++)
        if (r->id[k] >= 0) {
            used[r->id[k]] = 1;
            moved |= !is_in(pool, d, r->id[k]);
            before += r->w[k];
            gates += r->gate[r->id[k]];
            int at = there++;
            for (; at > 0 && is_liked_more(r, k, order[at - 1]); at--) order[at] = order[at - 1];
            order[at] = k;
        }
    if (!moved) return;
    for (int o = 0; o < there; o++) {
        int k = order[o], best = -1, stays = is_in(pool, d, was.id[k]);
        for (int i = 0; i < d; i++)
            if (!used[pool[i]] && (best < 0 || r->choice[pool[i]] > r->choice[best])) best = pool[i];
        r->id[k] = stays ? was.id[k] : best < 0 ? pool[0] : best;
        r->w[k] = stays ? was.w[k] : best < 0 || !(gates > 0) ? 0 : r->gate[best] * before / gates;
        after += r->w[k];
        if (!stays && best < 0) continue;
        if (!stays) used[best] = 1;
        kept[n] = stays ? was.w[k] : 0;
        slot[n] = k;
        old[n] = was.id[k];
        id[n++] = r->id[k];
    }
    for (int k = 0; k < l->top_k && v->stand_in_weights == EXF_FOLD_STAND_INS_ROUTE && after > 0; k++)
        if (was.id[k] >= 0) r->w[k] *= before / after;
    if (v->stand_in_weights != EXF_FOLD_STAND_INS_JOINT) return;
    for (int i = 0; i < n; i++) {
        x[i] = 0;
        for (int k = 0; k < l->top_k; k++)
            if (was.id[k] >= 0) x[i] += gram(l, id[i], was.id[k]) * was.w[k];
        for (int j = 0; j < n; j++) x[i] -= gram(l, id[i], id[j]) * (old[j] == id[j] ? kept[j] : 0);
    }
    solve(x, id, n, l, rho_of(v->decode_options.ridge));
    for (int k = 0; k < l->top_k; k++)
        if (was.id[k] >= 0) r->w[k] = 0;
    for (int i = 0; i < n; i++) r->w[slot[i]] = kept[i] + x[i];
}

static void remap(naive_row *r, const int *pool, int d, const naive_layer *l, const exf_fold_decode_options *o)
{
    for (int k = 0; k < l->top_k; k++) {
        int s = r->id[k];
        if (s < 0 || is_in(pool, d, s)) continue;
        int to = nearest(pool, d, s, l, naive_limit(o->max_loss));
        int none = to < 0 && !o->fallback;
        to = to < 0 ? 0 : to;
        r->id[k] = pool[to];
        r->w[k] = none || o->drop ? 0 : r->w[k] * l->coeff[s][pool[to]];
    }
}

static void remap_statically(naive_row *r, const naive_layer *l, int drop)
{
    for (int k = 0; k < l->top_k; k++) {
        int s = r->id[k];
        if (s < 0) continue;
        r->id[k] = l->target[s];
        r->w[k] = drop && l->target[s] != s ? 0 : r->w[k] * l->scale[s];
    }
}

static void reroute(naive_row *row, int n, const naive_layer *l, int s, double rho)
{
    int primary[NAIVE_E] = {0};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s; k++)
            if (row[i].id[k] >= 0) primary[row[i].id[k]] = 1;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < l->top_k; k++) {
            int e = row[i].id[k], best = -1;
            if (e < 0 || primary[e]) continue;
            for (int t = 0; t < l->n_experts; t++)
                if (primary[t] && (best < 0 || l->similarity[e][t] > l->similarity[e][best])) best = t;
            if (best >= 0 && (rho == 0 || (float)l->similarity[e][best] >= (float)rho)) row[i].id[k] = best;
        }
}

/* Slots outside the pool go to members drawn for them; slot[i]: number of row i's first slot in the run. */
static void scatter(naive_row *r, const int *pool, const naive_layer *l, const exf_variant *v, int layer, size_t slot)
{
    for (int k = 0; k < l->top_k; k++) {
        int d = v->decode_options.pool, e = r->id[k];
        if (e < 0 || is_in(pool, d, e)) continue;
        int to = pool[exf_rng_below((uint64_t)d, (uint64_t)v->decode_seed, 1024 + (uint64_t)layer, slot + (size_t)k)];
        r->w[k] = l->loss[e][to] < 1e30 ? r->w[k] * l->coeff[e][to] : 0;
        r->id[k] = to;
    }
}

/* What is kept of a row gets the sum that the row had. */
static void keep_sum(naive_row *r, const naive_row *was, int top_k)
{
    double all = 0, kept = 0;
    for (int k = 0; k < top_k; k++) all += was->id[k] >= 0 ? was->w[k] : 0;
    for (int k = 0; k < top_k; k++) kept += r->id[k] >= 0 ? r->w[k] : 0;
    for (int k = 0; k < top_k && kept > 0; k++) r->w[k] *= all / kept;
}

void naive_decode(naive_row *row, int n, const naive_layer *l, const exf_variant *v, int layer, const size_t *slot)
{
    const exf_fold_decode_options *o = &v->decode_options;
    int expert[NAIVE_E], distinct = by_importance(expert, row, n, l, o->importance);
    if (v->decode == EXF_DECODE_SERE) {
        reroute(row, n, l, o->pool, v->rho);
        return;
    }
    if (v->decode == EXF_DECODE_STATIC && is(v->decode_projector, "joint")) { /* the first member leads, as importance would */
        distinct = 0;
        expert[distinct++] = l->first;
        for (int e = 0; e < l->n_experts; e++)
            if (l->inside[e] && e != l->first) expert[distinct++] = e;
        for (int i = 0; i < n; i++)
            v->by_router ? stand_in(&row[i], expert, o->pool, l, v) : remap_jointly(&row[i], expert, o->pool, l, rho_of(o->ridge));
        return;
    }
    for (int i = 0; i < n; i++) {
        naive_row was = row[i];
        if (v->outside == EXF_OUTSIDE_RANDOM) {
            const int *pool = v->decode == EXF_DECODE_STATIC ? l->member : expert;
            if (v->decode == EXF_DECODE_STATIC || distinct > o->pool) scatter(&row[i], pool, l, v, layer, slot[i]);
            continue;
        }
        if (v->decode == EXF_DECODE_STATIC) remap_statically(&row[i], l, o->drop);
        int folds = v->decode == EXF_DECODE_DYNAMIC && distinct > o->pool;
        if (folds && v->by_router)
            stand_in(&row[i], expert, o->pool, l, v);
        else if (folds && is(v->decode_projector, "joint"))
            remap_jointly(&row[i], expert, o->pool, l, rho_of(o->ridge));
        else if (folds)
            remap(&row[i], expert, o->pool, l, o);
        if (v->outside == EXF_OUTSIDE_RENORMALISED) keep_sum(&row[i], &was, l->top_k);
    }
}
