/* check_fold_stand_ins.c - exfold/fold.h, stand-ins chosen by the router's scores: rows solved by hand,
 * and the formulas in doubles over random tables, shapes and types. */
#include "tests/support/fold_scores_fixtures.h"

static fold_tables tables;
static fold_routes from, to;
static fold_scores scores;

/* ---- the formulas ------------------------------------------------------------------------------ */

typedef struct {
    int n, slot[FOLD_K], old[FOLD_K], id[FOLD_K];
    double w[FOLD_K];
} naive_row;

/* The batch's pool of D by importance, or the given one; returns the most important member, -1 where nothing is to do. */
static int naive_pool(unsigned char *inside, const exf_fold_routes *io, const int32_t *members, const exf_fold_tables *t,
                      const exf_fold_stand_in_options *o)
{
    double importance[FOLD_E] = {0};
    int present[FOLD_E] = {0}, distinct = 0, first = -1;
    memset(inside, 0, FOLD_E);
    for (int i = 0; members && i < o->pool; i++) inside[members[i]] = 1;
    if (members) return members[0];
    for (int i = 0; i < io->rows * io->width; i++) {
        int64_t e = fold_id_at(io, i);
        if (e < 0 || e >= t->n_experts) continue;
        double w = (double)fold_weight_at(io, i);
        importance[e] += o->importance ? pow(w * (double)t->rms[e], 2) : w * (double)t->norms[e];
        distinct += !present[e];
        present[e] = 1;
    }
    if (distinct <= o->pool) return -1;
    for (int i = 0; i < o->pool; i++) {
        int best = -1;
        for (int e = 0; e < t->n_experts; e++)
            if (present[e] && !inside[e] && (best < 0 || importance[e] > importance[best])) best = e;
        inside[best] = 1;
        if (i == 0) first = best;
    }
    return first;
}

static naive_row naive_slots(const exf_fold_routes *io, int row, int n_experts)
{
    naive_row r = {0};
    for (int k = 0; k < io->width; k++) {
        int64_t e = fold_id_at(io, row * io->width + k);
        if (e < 0 || e >= n_experts) continue;
        r.slot[r.n] = k;
        r.old[r.n] = (int)e;
        r.w[r.n++] = (double)fold_weight_at(io, row * io->width + k);
    }
    return r;
}

static double naive_score(int row, int e, int n_experts)
{
    double score = (double)fold_score_at(scores.s.choice, scores.s.type, row * n_experts + e);
    return isnan(score) ? -INFINITY : score;
}

/* Ids afterwards: slots and candidates taken one by one, the largest score first. */
static void naive_choose(naive_row *r, const unsigned char *inside, int row, int n_experts)
{
    unsigned char taken[FOLD_E] = {0}, done[FOLD_K] = {0};
    for (int i = 0; i < r->n; i++) {
        taken[r->old[i]] = 1;
        done[i] = inside[r->old[i]];
        r->id[i] = done[i] ? r->old[i] : -1;
    }
    for (int round = 0; round < r->n; round++) {
        int slot = -1;
        double most = -INFINITY;
        for (int i = 0; i < r->n; i++) {
            if (done[i]) continue;
            double mine = naive_score(row, r->old[i], n_experts), best = slot < 0 ? 0 : naive_score(row, r->old[slot], n_experts);
            if (slot < 0 || mine > best || (mine == best && r->old[i] < r->old[slot])) slot = i;
        }
        if (slot < 0) break;
        done[slot] = 1;
        for (int e = 0; e < n_experts; e++) {
            double score = naive_score(row, e, n_experts);
            if (!inside[e] || taken[e] || !(score > most)) continue;
            most = score;
            r->id[slot] = e;
        }
        if (r->id[slot] >= 0) taken[r->id[slot]] = 1;
    }
}

static void naive_jointly(double *w, const naive_row *r, const exf_fold_tables *t, double rho)
{
    int id[FOLD_K], n = 0, of[FOLD_K];
    double x[FOLD_K];
    for (int i = 0; i < r->n; i++)
        if (r->id[i] >= 0) {
            of[n] = i;
            id[n++] = r->id[i];
        }
    for (int a = 0; a < n; a++) {
        x[a] = 0;
        for (int i = 0; i < r->n; i++) x[a] += naive_gram(t, id[a], r->old[i]) * r->w[i];
        for (int b = 0; b < n; b++) x[a] -= naive_gram(t, id[a], id[b]) * (r->old[of[b]] == id[b] ? r->w[of[b]] : 0);
    }
    if (n) naive_joint(x, id, n, t, rho);
    for (int i = 0; i < r->n; i++) w[i] = r->id[i] == r->old[i] ? r->w[i] : 0;
    for (int a = 0; a < n; a++) w[of[a]] += x[a];
}

static void naive_by_gate(double *w, const naive_row *r, int row, int n_experts, int renormalises)
{
    const void *gate = scores.s.gate ? scores.s.gate : scores.s.choice;
    double before = 0, gates = 0, after = 0;
    for (int i = 0; i < r->n; i++) {
        before += r->w[i];
        gates += (double)fold_score_at(gate, scores.s.type, row * n_experts + r->old[i]);
    }
    for (int i = 0; i < r->n; i++) {
        double own = r->id[i] < 0 ? 0 : (double)fold_score_at(gate, scores.s.type, row * n_experts + r->id[i]);
        w[i] = r->id[i] == r->old[i] ? r->w[i] : r->id[i] < 0 || !(gates > 0) ? 0 : own * before / gates;
        after += w[i];
    }
    for (int i = 0; renormalises && before > 0 && after > 0 && i < r->n; i++) w[i] *= before / after;
}

/* ---- comparison ----------------------------------------------------------------------------------- */

/* Sums of both signs may cancel until no digit is left to compare. */
static int comparable(const naive_row *r, int row, int n_experts, const exf_fold_stand_in_options *o)
{
    const void *gate = scores.s.gate ? scores.s.gate : scores.s.choice;
    double sum = 0, all = 0;
    if (o->weights == EXF_FOLD_STAND_INS_JOINT) return 1;
    for (int i = 0; i < r->n; i++) {
        double g = (double)fold_score_at(gate, scores.s.type, row * n_experts + r->old[i]);
        sum += g;
        all += fabs(g);
    }
    return sum > 0.05 * all;
}

static void ck_row(const exf_fold_routes *got, const exf_fold_routes *was, int row, const unsigned char *inside, int first,
                   const exf_fold_tables *t, const exf_fold_stand_in_options *o)
{
    naive_row r = naive_slots(was, row, t->n_experts);
    double w[FOLD_K], scale = 0;
    int moved = 0;
    naive_choose(&r, inside, row, t->n_experts);
    for (int i = 0; i < r.n; i++) moved += r.id[i] != r.old[i];
    if (o->weights == EXF_FOLD_STAND_INS_JOINT)
        naive_jointly(w, &r, t, o->ridge == 0 ? (double)EXF_FOLD_RIDGE : (double)o->ridge);
    else
        naive_by_gate(w, &r, row, t->n_experts, o->weights == EXF_FOLD_STAND_INS_ROUTE);
    for (int i = 0; i < r.n; i++) scale += fabs(w[i]) + fabs(r.w[i]);
    for (int i = 0; i < r.n; i++) {
        int slot = row * got->width + r.slot[i];
        int64_t id = r.id[i] < 0 ? first : r.id[i];
        ck_assert_msg(fold_id_at(got, slot) == id, "row %d, slot %d: expert %lld, expected %lld", row, r.slot[i],
                      (long long)fold_id_at(got, slot), (long long)id);
        if (!moved)
            ck_assert(fold_weight_at(got, slot) == fold_weight_at(was, slot));
        else if (comparable(&r, row, t->n_experts, o))
            ck_weight(got, slot, w[i], 20 * scale, 1e-6);
    }
    for (int k = 0; k < got->width; k++) {
        int64_t id = fold_id_at(was, row * got->width + k);
        if (id < 0 || id >= t->n_experts) ck_assert(fold_id_at(got, row * got->width + k) == id);
    }
}

static void draw_members(int32_t *members, int n, int n_experts, uint64_t seed)
{
    unsigned char taken[FOLD_E] = {0};
    for (int i = 0; i < n; i++) {
        int e = fold_below(n_experts, seed, 60, (uint64_t)i);
        while (taken[e]) e = (e + 1) % n_experts;
        taken[e] = 1;
        members[i] = e;
    }
}

/* _i runs through shapes and kinds of tables. */
START_TEST(random_batches_follow_the_formulas)
{
    const fold_shape *s = &fold_shapes[_i % N_FOLD_SHAPES];
    fold_tables_kind kind = (fold_tables_kind)(_i / N_FOLD_SHAPES);
    fold_fill_tables(&tables, s->e, 200 + (uint64_t)_i, kind);
    for (int v = 0; v < 24; v++) {
        uint64_t seed = (uint64_t)(_i * 1000 + v);
        int32_t members[FOLD_E];
        unsigned char inside[FOLD_E];
        exf_fold_stand_in_options o = {.pool = v % 6 == 5 ? s->e : 1 + fold_below(s->e, seed, 1, 0),
                                       .importance = (exf_fold_importance)(v / 3 % 2),
                                       .weights = (exf_fold_stand_in_weights)(v % 3),
                                       .ridge = v % 4 ? 0 : 0.1f};
        if (v % 6 == 4) o.pool = 1 + fold_below(s->k, seed, 2, 0); /* too few stand-ins */
        exf_fold_routes in = fold_room(&from, s->rows, s->k, (exf_fold_int)(v / 2 % 2), (exf_fold_real)(v % 3));
        fold_fill_routes(&in, s->e, seed, (fold_routes_kind)(v / 3 % N_ROUTES));
        fold_fill_scores(&scores, s->rows, s->e, (exf_fold_real)(v / 2 % 3), seed, (fold_scores_kind)(v / 5 % N_SCORES), v % 2);
        draw_members(members, o.pool, s->e, seed);
        exf_fold_routes io = fold_copy(&to, &in);
        const int32_t *given = v / 4 % 2 ? members : NULL;
        ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&io, &scores.s, given, &tables.t, &o), EXF_FOLD_OK);
        int first = naive_pool(inside, &in, given, &tables.t, &o);
        if (first < 0)
            ck_assert(fold_same(&io, &in));
        else if (given || kind == TABLES_REAL) /* elsewhere importances tie, which doubles cannot see */
            for (int row = 0; row < s->rows; row++) ck_row(&io, &in, row, inside, first, &tables.t, &o);
    }
}
END_TEST

/* Runtimes hand a token's routes over in any order: each of them gets the same stand-in, whose norm depends on whose place it
 * takes. */
START_TEST(the_order_of_slots_is_of_no_consequence)
{
    static fold_routes turned;
    static float norms[FOLD_SLOTS], turned_norms[FOLD_SLOTS];
    const fold_shape *s = &fold_shapes[_i];
    fold_fill_tables(&tables, s->e, 300 + (uint64_t)_i, TABLES_REAL);
    for (int i = 0; i < s->e * s->e; i++) /* least eigenvalue 1/32: no rho is raised, which would depend on the order */
        if (i / s->e != i % s->e) tables.cosine[i] *= 31 / 32.f;
    for (int v = 0; v < 12; v++) {
        uint64_t seed = (uint64_t)(_i * 100 + v);
        exf_fold_stand_in_options o = {.pool = 1 + s->e / 2, .weights = (exf_fold_stand_in_weights)(v % 3),
                                       .importance = (exf_fold_importance)(v / 3 % 2)};
        int32_t members[FOLD_E];
        exf_fold_routes in = fold_room(&from, s->rows, s->k, EXF_FOLD_I32, EXF_FOLD_F32),
                        back = fold_room(&turned, s->rows, s->k, EXF_FOLD_I32, EXF_FOLD_F32);
        fold_fill_routes(&in, s->e, seed, ROUTES_PLAIN);
        fold_fill_scores(&scores, s->rows, s->e, EXF_FOLD_F32, seed, (fold_scores_kind)(v % N_SCORES), 1);
        draw_members(members, o.pool, s->e, seed);
        for (int i = 0; i < s->rows * s->k; i++) {
            int other = i / s->k * s->k + s->k - 1 - i % s->k;
            norms[i] = turned_norms[other] = (float)exp(2 * fold_uniform(seed, 61, (uint64_t)i) - 1);
            fold_put(&back, other, fold_id_at(&in, i), fold_weight_at(&in, i));
        }
        in.norms = norms;
        back.norms = turned_norms;
        const int32_t *given = v / 2 % 2 ? members : NULL;
        ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &scores.s, given, &tables.t, &o), EXF_FOLD_OK);
        ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&back, &scores.s, given, &tables.t, &o), EXF_FOLD_OK);
        for (int i = 0; i < s->rows * s->k; i++) {
            int other = i / s->k * s->k + s->k - 1 - i % s->k;
            ck_assert_msg(fold_id_at(&in, i) == fold_id_at(&back, other), "%d of %d, slot %d: expert %lld, turned round %lld", s->k,
                          s->e, i, (long long)fold_id_at(&in, i), (long long)fold_id_at(&back, other));
            ck_weight(&back, other, (double)fold_weight_at(&in, i), 1, 1e-4);
        }
    }
}
END_TEST

/* ---- by hand ------------------------------------------------------------------------------------------ */

static int32_t ids[4];
static float weights[4];

static exf_fold_routes hand_row(int k, const int32_t *id, const float *w)
{
    memcpy(ids, id, (size_t)k * sizeof *ids);
    memcpy(weights, w, (size_t)k * sizeof *weights);
    return (exf_fold_routes){.ids = ids, .weights = weights, .rows = 1, .width = k};
}

/* Orthogonal experts but for 0 and 3, whose cosine is .5; all of norm 1. */
static void hand_tables(void)
{
    fold_fill_tables(&tables, 6, 1, TABLES_EXACT);
    for (int i = 0; i < 36; i++) tables.cosine[i] = i / 6 == i % 6 ? 1 : i == 3 || i == 18 ? .5f : 0;
    for (int i = 0; i < 6; i++) tables.rms[i] = 1;
}

START_TEST(the_router_chooses_what_stands_in)
{
    static const float choice[] = {.5f, .25f, .125f, .75f, .25f, 1};
    const int32_t members[] = {1, 2, 3, 4};
    exf_fold_scores s = {.choice = choice};
    exf_fold_stand_in_options o = {.pool = 4, .ridge = 1, .weights = EXF_FOLD_STAND_INS_JOINT};
    hand_tables();
    /* 5 and 0 are outside; 3 is next best, for 5, then 1 (a tie with 4); 0 goes by a half into 3, over 1 + rho = 2; 2 stays */
    exf_fold_routes r = hand_row(3, (const int32_t[]){0, 2, 5}, (const float[]){.5f, .25f, .125f});
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&r, &s, members, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(ids[0] == 1 && ids[1] == 2 && ids[2] == 3);
    ck_assert(weights[0] == 0 && weights[1] == .25f && weights[2] == .125f);
    /* gate weights: .875 of routes whose scores add up to 1.625 */
    o.weights = EXF_FOLD_STAND_INS_GATE;
    r = hand_row(3, (const int32_t[]){0, 2, 5}, (const float[]){.5f, .25f, .0625f});
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&r, &s, members, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(weights[0] == .125f && weights[1] == .25f && weights[2] == .375f); /* .8125 / 1.625 = .5 */
    o.weights = EXF_FOLD_STAND_INS_ROUTE;
    r = hand_row(3, (const int32_t[]){0, 2, 5}, (const float[]){.5f, .25f, .0625f});
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&r, &s, members, &tables.t, &o), EXF_FOLD_OK);
    float f = .8125f / .75f;
    ck_assert(weights[0] == .125f * f && weights[1] == .25f * f && weights[2] == .375f * f);
}
END_TEST

START_TEST(a_slot_without_a_stand_in_weighs_nothing)
{
    static const float choice[] = {.5f, .25f, -INFINITY, NAN, .25f, 1};
    const int32_t members[] = {2, 3, 1};
    exf_fold_scores s = {.choice = choice};
    exf_fold_stand_in_options o = {.pool = 3, .ridge = 1};
    hand_tables();
    exf_fold_routes r = hand_row(4, (const int32_t[]){0, -1, 4, 5}, (const float[]){.5f, 9, .25f, .125f});
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&r, &s, members, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(ids[0] == 2 && ids[1] == -1 && ids[2] == 2 && ids[3] == 1); /* the router likes 5 most */
    ck_assert(weights[0] == 0 && weights[1] == 9 && weights[2] == 0 && weights[3] == 0);
    r = hand_row(2, (const int32_t[]){1, 3}, (const float[]){.5f, -0.0f}); /* all inside: untouched */
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&r, &s, members, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(ids[0] == 1 && ids[1] == 3 && weights[0] == .5f && signbit(weights[1]));
}
END_TEST

START_TEST(contradictions_are_refused)
{
    static const exf_fold_stand_in_options bad[] = {{.pool = 0},
                                                    {.pool = 17},
                                                    {.pool = 4, .weights = (exf_fold_stand_in_weights)3},
                                                    {.pool = 4, .importance = (exf_fold_importance)3},
                                                    {.pool = 4, .ridge = -2}};
    const int32_t members[17] = {0};
    exf_fold_stand_in_options o = {.pool = 4};
    exf_fold_routes in = fold_room(&from, 8, 4, EXF_FOLD_I32, EXF_FOLD_F32);
    fold_fill_tables(&tables, 16, 1, TABLES_REAL);
    fold_fill_routes(&in, 16, 1, ROUTES_PLAIN);
    fold_fill_scores(&scores, 8, 16, EXF_FOLD_F32, 1, SCORES_PLAIN, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(exf_fold_decode_stand_ins_cpu(&in, &scores.s, members, &tables.t, &bad[i]) == EXF_FOLD_BAD_ARGUMENT,
                      "options %zu", i);
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, NULL, members, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    exf_fold_scores s = scores.s;
    s.reserved[6] = 1;
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &s, NULL, &tables.t, &o), EXF_FOLD_UNSUPPORTED);
    s = (exf_fold_scores){.type = EXF_FOLD_F16};
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &s, NULL, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    o.reserved[0] = 1;
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &scores.s, NULL, &tables.t, &o), EXF_FOLD_UNSUPPORTED);
    o.reserved[0] = 0;
    tables.t.norms = NULL; /* only a pool by batch ranks experts */
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &scores.s, NULL, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &scores.s, members, &tables.t, &o), EXF_FOLD_OK);
    tables.t.cosine = NULL;
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &scores.s, members, &tables.t, &o), EXF_FOLD_BAD_ARGUMENT);
    o.weights = EXF_FOLD_STAND_INS_GATE;
    ck_assert_int_eq(exf_fold_decode_stand_ins_cpu(&in, &scores.s, members, &tables.t, &o), EXF_FOLD_OK);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "stand-ins");
    tcase_add_loop_test(t, random_batches_follow_the_formulas, 0, N_FOLD_SHAPES * N_TABLES);
    tcase_add_loop_test(t, the_order_of_slots_is_of_no_consequence, 0, N_FOLD_SHAPES);
    tcase_add_test(t, the_router_chooses_what_stands_in);
    tcase_add_test(t, a_slot_without_a_stand_in_weighs_nothing);
    tcase_add_test(t, contradictions_are_refused);
}
