/* fold_explain.c - what a call of exfold/fold.h does with one token's routes, and why.
 *
 * What becomes of the weights is taken from the call itself, on a copy of the row; places, targets and scalars come from the
 * functions that the call is made of. */
#include "kernels/fold/fold_cpu.h"

const char *exf_fold_fate_text(exf_fold_fate fate)
{
    switch (fate) {
    case EXF_FOLD_FATE_NONE: return "no expert, or a row of padding";
    case EXF_FOLD_FATE_KEPT: return "kept";
    case EXF_FOLD_FATE_FOLDED: return "folded into the target";
    case EXF_FOLD_FATE_FALLBACK: return "folded into the pool's most important expert, as no pair is allowed";
    case EXF_FOLD_FATE_SOLVED: return "made up for by jointly solved weights";
    case EXF_FOLD_FATE_NO_PAIR: return "dropped: no pair with a kept expert was observed";
    case EXF_FOLD_FATE_ABOVE_LIMIT: return "dropped: the least loss is above max_loss";
    case EXF_FOLD_FATE_DROPPED: return "dropped, because the option drop is on";
    case EXF_FOLD_FATE_UNSOLVED: return "folded into the target by the pair's scalar, as the joint system has no solution";
    }
    return "a fate that this library does not know";
}

/* One row of a caller's batch in memory of its own. */
typedef struct {
    int64_t ids[EXF_FOLD_MAX_K];
    float weights[EXF_FOLD_MAX_K], norms[EXF_FOLD_MAX_K];
    exf_fold_routes r;
} row_copy;

/* Makes room for a row of `width` slots of r's types. */
static void make_room(row_copy *c, const exf_fold_routes *r, int width)
{
    c->r = (exf_fold_routes){.ids = c->ids, .weights = c->weights, .id_type = r->id_type, .weight_type = r->weight_type,
                             .rows = 1, .width = width};
}

static void copy_row(row_copy *c, const exf_fold_routes *r, int row)
{
    int64_t first = (int64_t)row * r->width;
    make_room(c, r, r->width);
    for (int k = 0; k < r->width; k++) {
        exf_fold_set_id(&c->r, k, exf_fold_raw_id(r, first + k));
        exf_fold_set_weight(&c->r, k, exf_fold_weight(r, first + k));
        if (r->norms) c->norms[k] = r->norms[first + k];
    }
    if (r->norms) c->r.norms = c->norms;
}

/* Fills slots with what is known of a row before anything is ranked. */
static void begin(exf_fold_explained *slots, const exf_fold_routes *in, int row, int n_experts)
{
    int64_t first = (int64_t)row * in->width;
    memset(slots, 0, (size_t)in->width * sizeof *slots);
    for (int k = 0; k < in->width; k++) {
        slots[k].expert = exf_fold_expert(in, first + k, n_experts);
        slots[k].weight = exf_fold_weight(in, first + k);
        slots[k].fate = slots[k].expert < 0 ? EXF_FOLD_FATE_NONE : EXF_FOLD_FATE_KEPT;
        slots[k].target = slots[k].place = -1;
        slots[k].loss = EXF_FOLD_NEVER;
    }
}

/* Fills the fate of an expert's route that no pair of a row of losses [E] may take: *target the pair of least loss. */
static void explain_drop(exf_fold_explained *x, int target, const float *loss)
{
    x->fate = target < 0 ? EXF_FOLD_FATE_NO_PAIR : EXF_FOLD_FATE_ABOVE_LIMIT;
    x->target = target;
    if (target >= 0) x->loss = loss[target];
}

/* ---- prefill ------------------------------------------------------------------------------ */

/* Fills places, kept routes and their results from the row that the call wrote; `from` is the row that it read. */
static void place_routes(exf_fold_explained *slots, const exf_fold_ranked *r, const exf_fold_tables *t, exf_fold_rank rank,
                         const row_copy *from, const row_copy *out, int kept)
{
    for (int i = 0; i < r->n; i++) {
        exf_fold_explained *x = &slots[r->slot[i]];
        float h = rank == EXF_FOLD_BY_SCORE ? 1.0f : exf_fold_norm(&from->r, r->slot[i], r->id[i], t->norms);
        x->place = i;
        x->ranked_by = rank == EXF_FOLD_BY_SCORE ? r->w[i] : rank == EXF_FOLD_BY_NORM ? h : exf_mulf(r->w[i], h);
        if (i < kept) x->result = exf_fold_weight(&out->r, i);
    }
}

static void explain_omitted(exf_fold_explained *x, const exf_fold_ranked *r, int at, int kept, const exf_fold_tables *t,
                            const exf_fold_prefill_options *o)
{
    const float *loss = t->loss + (size_t)r->id[at] * (size_t)t->n_experts;
    int to = exf_fold_target(r, kept, loss, o->max_loss);
    if (to < 0) {
        to = exf_fold_target(r, kept, loss, EXF_FOLD_NEVER);
        explain_drop(x, to < 0 ? -1 : r->id[to], loss);
        return;
    }
    x->fate = EXF_FOLD_FATE_FOLDED;
    x->target = r->id[to];
    x->loss = loss[x->target];
    x->scalar = exf_mulf(t->coeff[(size_t)r->id[at] * (size_t)t->n_experts + (size_t)x->target],
                         o->confidence ? exf_fold_confidence(x->loss) : 1.0f);
}

/* Returns 1 if kept weights can be solved for: what the joint forms find out before they write a row. */
static int is_solvable(const exf_fold_ranked *r, int n, const exf_fold_tables *t, float ridge)
{
    exf_fold_joint s;
    exf_fold_factors f;
    exf_fold_joint_begin(&s, r->id, r->norm, n, t);
    return exf_fold_joint_factor(&f, &s, ridge);
}

/* Fills the fate of a route that joint weights make up for, or where there are none what goes to `target`. */
static void explain_joint(exf_fold_explained *x, int solved, int target, const exf_fold_tables *t)
{
    size_t row = (size_t)x->expert * (size_t)t->n_experts;
    x->fate = solved ? EXF_FOLD_FATE_SOLVED : EXF_FOLD_FATE_UNSOLVED;
    if (solved) return;
    x->target = target;
    x->scalar = exf_fold_by_pair(t, 1.0f, row + (size_t)target);
}

static exf_fold_status explain_prefill(exf_fold_explained *slots, const exf_fold_routes *in, int row, const exf_fold_tables *t,
                                       const exf_fold_prefill_options *given, int joint)
{
    exf_fold_prefill_options o = {.size = 0};
    row_copy from, out;
    exf_fold_ranked r;
    int sized, first;
    exf_fold_status s = exf_fold_read_options(&o, sizeof o, given, &sized, &first);
    if (s != EXF_FOLD_OK) return s;
    if (!exf_fold_move_first(&o.keep, first)) return EXF_FOLD_UNSUPPORTED;
    if (o.keep < 0 || o.keep > EXF_FOLD_MAX_K) return EXF_FOLD_BAD_ARGUMENT;
    copy_row(&from, in, row);
    make_room(&out, in, o.keep ? o.keep : in->width);
    s = exf_fold_check_prefill(&o, &from.r, &out.r, t, given, joint);
    if (s != EXF_FOLD_OK) return s;
    s = (joint ? exf_fold_prefill_joint_cpu : exf_fold_prefill_cpu)(&from.r, &out.r, t, &o);
    if (s != EXF_FOLD_OK) return s;
    begin(slots, in, row, t->n_experts);
    exf_fold_rank_row(&r, in, row, t, o.rank);
    int kept = r.n < o.keep ? r.n : o.keep;
    place_routes(slots, &r, t, o.rank, &from, &out, kept);
    int solved = joint && kept < r.n && is_solvable(&r, kept, t, o.ridge);
    for (int i = kept; i < r.n; i++) {
        exf_fold_explained *x = &slots[r.slot[i]];
        if (joint)
            explain_joint(x, solved, r.id[exf_fold_likest(&r, kept, t->cosine + (size_t)x->expert * (size_t)t->n_experts)], t);
        else
            explain_omitted(x, &r, i, kept, t, &o);
    }
    return EXF_FOLD_OK;
}

static exf_fold_status explain_budget(exf_fold_explained *slots, const exf_fold_routes *in, int row, const exf_fold_tables *t,
                                      const exf_fold_budget_options *given)
{
    exf_fold_budget_options o;
    exf_fold_tables by_rms = *t;
    row_copy from, out;
    exf_fold_ranked r;
    int32_t kept;
    copy_row(&from, in, row);
    make_room(&out, in, in->width);
    exf_fold_status s = exf_fold_check_budget(&o, &from.r, &out.r, &kept, t, given);
    if (s == EXF_FOLD_OK) s = exf_fold_prefill_budget_cpu(&from.r, &out.r, &kept, t, &o);
    if (s != EXF_FOLD_OK) return s;
    begin(slots, in, row, t->n_experts);
    by_rms.norms = t->rms;
    by_rms.relative_norms = NULL;
    exf_fold_rank_row(&r, in, row, &by_rms, EXF_FOLD_BY_SCORE_NORM);
    if (r.n == 0) return EXF_FOLD_OK; /* a row of padding, whose copy has none */
    place_routes(slots, &r, &by_rms, EXF_FOLD_BY_SCORE_NORM, &from, &out, kept);
    int solved = kept < r.n && is_solvable(&r, r.n, &by_rms, o.ridge);
    for (int i = kept; i < r.n; i++) {
        int to = exf_fold_likest(&r, kept, t->cosine + (size_t)r.id[i] * (size_t)t->n_experts);
        explain_joint(&slots[r.slot[i]], solved, r.id[to], t);
    }
    return EXF_FOLD_OK;
}

/* ---- decode ------------------------------------------------------------------------------- */

static void explain_moved(exf_fold_explained *x, const exf_fold_pool *p, const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    const float *loss = t->loss + (size_t)x->expert * (size_t)t->n_experts;
    int to = exf_fold_pool_target(p, loss, o->max_loss), target;
    float scalar = exf_fold_move(&target, p, x->expert, to, t, o);
    if (to < 0 && !o->fallback) {
        explain_drop(x, exf_fold_pool_target(p, loss, EXF_FOLD_NEVER), loss);
        return;
    }
    x->fate = o->drop ? EXF_FOLD_FATE_DROPPED : to < 0 ? EXF_FOLD_FATE_FALLBACK : EXF_FOLD_FATE_FOLDED;
    x->target = target;
    x->loss = loss[target];
    x->scalar = scalar;
}

/* Rewrites the copy of the row as the joint form does and explains the slots that move. */
static void explain_joined(exf_fold_explained *slots, row_copy *row, const exf_fold_pool *p, const int *moves,
                           const exf_fold_tables *t, float ridge)
{
    int16_t target[EXF_FOLD_MAX_E];
    exf_fold_ranked now = {.n = 0};
    for (int e = 0; e < t->n_experts; e++) target[e] = -1;
    for (int k = 0; k < row->r.width; k++) {
        exf_fold_explained *x = &slots[k];
        if (moves[k]) {
            const float *cosine = t->cosine + (size_t)x->expert * (size_t)t->n_experts;
            x->target = exf_fold_pool_likest(p, cosine);
            x->loss = exf_addf(1.0f, -exf_mulf(cosine[x->target], cosine[x->target]));
            target[x->expert] = (int16_t)x->target;
        }
        if (x->expert < 0) continue;
        float n = exf_fold_norm(&row->r, k, x->expert, exf_fold_gram_norms(t));
        now.norm[now.n] = moves[k] ? exf_fold_stand_in_norm(&row->r, t, x->target, x->expert, n) : n;
        now.id[now.n++] = moves[k] ? x->target : x->expert;
    }
    exf_fold_join_rows(&row->r, target, t, ridge);
    int solved = now.n > 0 && is_solvable(&now, now.n, t, ridge);
    for (int k = 0; k < row->r.width; k++)
        if (moves[k]) explain_joint(&slots[k], solved, slots[k].target, t);
}

static exf_fold_status explain_decode(exf_fold_explained *slots, const exf_fold_routes *io, int row, const exf_fold_tables *t,
                                      const exf_fold_decode_options *given, int joint)
{
    exf_fold_decode_options o;
    exf_fold_pool pool;
    row_copy copy;
    int moves[EXF_FOLD_MAX_K] = {0}, moved = 0;
    exf_fold_status s = exf_fold_check_decode(&o, io, t, given, joint);
    if (s != EXF_FOLD_OK) return s;
    begin(slots, io, row, t->n_experts);
    copy_row(&copy, io, row);
    int constrained = exf_fold_choose_pool(&pool, io, t, &o);
    for (int k = 0; k < io->width; k++) {
        exf_fold_explained *x = &slots[k];
        if (x->expert < 0) continue;
        if (!o.members) x->ranked_by = exf_fold_term_of(io, (int64_t)row * io->width + k, x->expert, t, o.importance);
        int at = 0;
        while (constrained && at < pool.n_union && pool.expert[at] != x->expert) at++;
        int has_place = constrained && at < pool.n_union; /* else it is no candidate and stays */
        if (has_place && (at < pool.n_pool || !o.members)) x->place = at;
        moves[k] = has_place && at >= pool.n_pool;
        moved += moves[k];
        if (moves[k] && !joint) explain_moved(x, &pool, t, &o);
    }
    if (joint && moved) explain_joined(slots, &copy, &pool, moves, t, o.ridge);
    for (int k = 0; k < io->width; k++) {
        float scalar = slots[k].scalar;
        if (moves[k] && !joint) exf_fold_set_weight(&copy.r, k, scalar == 0 ? 0.0f : exf_mulf(slots[k].weight, scalar));
        slots[k].result = slots[k].expert < 0 ? 0.0f : exf_fold_weight(&copy.r, k);
    }
    return EXF_FOLD_OK;
}

exf_fold_status exf_fold_explain(exf_fold_explained *slots, exf_fold_call call, const exf_fold_routes *in, int row,
                                 const exf_fold_tables *t, const void *options)
{
    if (!slots || !t || !options) return EXF_FOLD_BAD_ARGUMENT;
    exf_fold_status s = exf_fold_check_routes(in, t->n_experts);
    if (s != EXF_FOLD_OK) return s;
    if (row < 0 || row >= in->rows) return EXF_FOLD_BAD_ARGUMENT;
    switch (call) {
    case EXF_FOLD_CALL_PREFILL: return explain_prefill(slots, in, row, t, options, 0);
    case EXF_FOLD_CALL_PREFILL_JOINT: return explain_prefill(slots, in, row, t, options, 1);
    case EXF_FOLD_CALL_PREFILL_BUDGET: return explain_budget(slots, in, row, t, options);
    case EXF_FOLD_CALL_DECODE: return explain_decode(slots, in, row, t, options, 0);
    case EXF_FOLD_CALL_DECODE_JOINT: return explain_decode(slots, in, row, t, options, 1);
    }
    return EXF_FOLD_BAD_ARGUMENT;
}
