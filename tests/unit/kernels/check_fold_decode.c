/* check_fold_decode.c - exfold/fold.h, decode: hand-solved batches, properties, and the
 * formulas in doubles over random tables, shapes and types. */
#include "tests/support/fold_abi_fixtures.h"

static fold_tables tables;
static fold_routes room, was;

typedef exf_fold_status decode(const exf_fold_routes *, const exf_fold_tables *, const exf_fold_decode_options *);

/* ---- worked examples --------------------------------------------------------------- */

/* Five experts; losses and coefficients are set where an example needs them. */
typedef struct {
    float coeff[25], loss[25], norms[5], cosine[25], rms[5];
    exf_fold_tables t;
} small;

static void small_tables(small *s)
{
    for (int i = 0; i < 25; i++) {
        s->coeff[i] = i % 6 == 0 ? 1 : (float)(1 + i % 5) / 4; /* S[s,t] = (1 + t) / 4 */
        s->loss[i] = i % 6 == 0 ? 1e30f : 0.5f;
        s->cosine[i] = i % 6 == 0;
    }
    for (int e = 0; e < 5; e++) s->norms[e] = s->rms[e] = (float)(e + 1);
    s->t = (exf_fold_tables){
        .coeff = s->coeff, .loss = s->loss, .norms = s->norms, .cosine = s->cosine, .rms = s->rms, .n_experts = 5};
}

static void set_cosine(small *s, int a, int b, float c)
{
    s->cosine[a * 5 + b] = s->cosine[b * 5 + a] = c;
}

static void expect(decode *fold, const small *s, const exf_fold_decode_options *o, const int32_t *ids, const float *w, int rows,
                   int k, const int32_t *want_ids, const double *want)
{
    int32_t got_ids[32];
    float got[32];
    exf_fold_routes io = {.ids = got_ids, .weights = got, .rows = rows, .width = k};
    memcpy(got_ids, ids, (size_t)(rows * k) * 4);
    memcpy(got, w, (size_t)(rows * k) * 4);
    ck_assert_int_eq(fold(&io, &s->t, o), EXF_FOLD_OK);
    for (int i = 0; i < rows * k; i++) {
        ck_assert_msg(got_ids[i] == want_ids[i], "slot %d: expert %d, expected %d", i, (int)got_ids[i], (int)want_ids[i]);
        ck_assert_msg(fabs((double)got[i] - want[i]) <= 2e-7 * fabs(want[i]), "slot %d: weight %.9g, expected %.9g", i,
                      (double)got[i], want[i]);
    }
}
#define IDS (const int32_t[])
#define W (const float[])
#define WANT (const double[])

static const exf_fold_decode_options two = {.pool = 2, .max_loss = EXF_FOLD_NEVER, .ridge = 0.25f};

START_TEST(the_pool_is_what_the_batch_needs_most)
{
    small s;
    small_tables(&s);
    s.loss[0 * 5 + 1] = 0.25f;
    /* w h: 0: .5 + .75, 1: .5 * 2, 2: .25 * 3, so {0, 1}; 2 finds equal losses: 0 is more important */
    expect(exf_fold_decode_cpu, &s, &two, IDS{0, 1, 2, 0}, W{.5f, .5f, .25f, .75f}, 2, 2, IDS{0, 1, 0, 0},
           WANT{.5, .5, .0625, .75});
    s.loss[2 * 5 + 1] = 0.25f; /* now 1 is better for 2 */
    expect(exf_fold_decode_cpu, &s, &two, IDS{0, 1, 2, 0}, W{.5f, .5f, .25f, .75f}, 2, 2, IDS{0, 1, 1, 0}, WANT{.5, .5, .125, .75});
    exf_fold_decode_options o = two;
    o.max_loss = 0.25f; /* a limit is still within it */
    expect(exf_fold_decode_cpu, &s, &o, IDS{0, 1, 2, 0}, W{.5f, .5f, .25f, .75f}, 2, 2, IDS{0, 1, 1, 0}, WANT{.5, .5, .125, .75});
    o.max_loss = 0.2f; /* no target: weight 0, the most important member's id */
    expect(exf_fold_decode_cpu, &s, &o, IDS{0, 1, 2, 0}, W{.5f, .5f, .25f, .75f}, 2, 2, IDS{0, 1, 0, 0}, WANT{.5, .5, 0, .75});
    o = two;
    o.drop = 1;
    expect(exf_fold_decode_cpu, &s, &o, IDS{0, 1, 2, 0}, W{.5f, .5f, .25f, .75f}, 2, 2, IDS{0, 1, 1, 0}, WANT{.5, .5, 0, .75});
    o = two;
    o.importance = EXF_FOLD_IMPORTANCE_ENERGY; /* 0: .25 + .5625, 1: 1, 2: .5625 */
    o.pool = 1;
    expect(exf_fold_decode_cpu, &s, &o, IDS{0, 1, 2, 0}, W{.5f, .5f, .25f, .75f}, 2, 2, IDS{1, 1, 1, 1}, WANT{.25, .5, .125, .375});
    o.importance = EXF_FOLD_IMPORTANCE_NORM;
    expect(exf_fold_decode_cpu, &s, &o, IDS{0, 1, 2, 0}, W{.5f, .5f, .25f, .75f}, 2, 2, IDS{0, 0, 0, 0},
           WANT{.5, .125, .0625, .75});
}
END_TEST

START_TEST(ties_of_importance_go_to_the_lower_id)
{
    small s;
    small_tables(&s);
    for (int e = 0; e < 5; e++) s.norms[e] = 1;
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 2, 1}, W{.25f, .25f, .25f, .25f}, 1, 4, IDS{1, 1, 2, 1},
           WANT{.125, .125, .25, .25});
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 2, 1}, W{0, 0, 0, 0}, 1, 4, IDS{1, 1, 2, 1}, WANT{0, 0, 0, 0});
    /* weight 0 still routes: with {4, 0} in the pool, 3 and 1 are outside of it */
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 0, 1}, W{.5f, 0, .125f, 0}, 1, 4, IDS{4, 4, 0, 4}, WANT{.5, 0, .125, 0});
}
END_TEST

/* Largest term 1: the grid is 2^-36.  2^-38 and 2^-40 are both 0 there, 3 * 2^-38 is 1 and 2^-37 (a tie) is 0. */
START_TEST(importance_has_the_grid_that_the_header_names)
{
    small s;
    small_tables(&s);
    for (int e = 0; e < 5; e++) s.norms[e] = 1;
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 2, 4}, W{1, 0x1p-38f, 0x1p-40f, 0}, 1, 4, IDS{4, 4, 2, 4},
           WANT{1, 0x1.4p-38, 0x1p-40, 0});
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 2, 4}, W{1, 0x1.8p-37f, 0x1p-37f, 0}, 1, 4, IDS{4, 3, 4, 4},
           WANT{1, 0x1.8p-37, 0x1.4p-37, 0});
    /* above 1 the next power of two counts: the grid is 2^-35, .75 and .625 of it are both 1 */
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 2, 4}, W{1.25f, 0x1.8p-36f, 0x1.4p-36f, 0}, 1, 4, IDS{4, 4, 2, 4},
           WANT{1.25, 0x1.8p-36 * 1.25, 0x1.4p-36, 0});
    /* tiny and huge terms have a grid too */
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 2, 4}, W{0x1p-149f, 0x1p-148f, 0x1.8p-147f, 0}, 1, 4, IDS{2, 3, 2, 2},
           WANT{0x1p-149, 0x1p-148, 0x1.8p-147, 0});
    s.norms[3] = s.norms[2] = 3e38f; /* both products are infinite: equal, and larger than 4's */
    expect(exf_fold_decode_cpu, &s, &two, IDS{4, 3, 2, 4}, W{4, 2, 3, 0}, 1, 4, IDS{2, 3, 2, 2}, WANT{3, 2, 3, 0});
    exf_fold_decode_options one = two;
    one.pool = 1;
    expect(exf_fold_decode_cpu, &s, &one, IDS{1, 3, 4, 0}, W{4, 2, 5, 0}, 1, 4, IDS{3, 3, 3, 3}, WANT{4, 2, 5, 0});
}
END_TEST

START_TEST(joint_weights_by_hand)
{
    small s;
    small_tables(&s);
    for (int e = 0; e < 5; e++) s.rms[e] = s.norms[e] = 1;
    set_cosine(&s, 2, 0, 0.25f);
    set_cosine(&s, 2, 1, -0.5f);
    /* 2 -> 1, the larger magnitude.  n = 0, 1, 1; G_nn = [1 0 0; 0 1 1; 0 1 1], rho .25, rhs = .25 (.25, -.5, -.5) */
    expect(exf_fold_decode_joint_cpu, &s, &two, IDS{0, 1, 2}, W{.5f, .75f, .25f}, 1, 3, IDS{0, 1, 1},
           WANT{.5 + .0625 / 1.25, .75 - .125 / 2.25, -.125 / 2.25});
    /* a row that keeps its experts keeps its bits, another row's do not matter */
    expect(exf_fold_decode_joint_cpu, &s, &two, IDS{0, 1, 0, 2}, W{.5f, .75f, .25f, .125f}, 2, 2, IDS{0, 1, 0, 1},
           WANT{.5, .75, .25 + .03125 / 1.25, -.0625 / 1.25});
    for (int e = 0; e < 5; e++) s.rms[e] = 0; /* no system at all: the pair's scalar */
    expect(exf_fold_decode_joint_cpu, &s, &two, IDS{0, 1, 2}, W{.5f, .75f, .25f}, 1, 3, IDS{0, 1, 1},
           WANT{.5, .75, .25 * (double)s.t.coeff[2 * 5 + 1]});
    for (int e = 0; e < 5; e++) s.rms[e] = 1;
    set_cosine(&s, 2, 1, 0.25f); /* equal: 1 is more important */
    exf_fold_decode_options o = two;
    o.ridge = EXF_FOLD_ZERO;
    for (int i = 1; i < 40; i++) { /* singular, and rounding hides it for some: rho becomes 4e-3 */
        for (int e = 0; e < 5; e++) s.rms[e] = (float)i / 7;
        expect(exf_fold_decode_joint_cpu, &s, &o, IDS{0, 1, 2}, W{.5f, .75f, .25f}, 1, 3, IDS{0, 1, 1},
               WANT{.5 + .0625 / 1.004, .75 + .0625 / 2.004, .0625 / 2.004});
    }
}
END_TEST

START_TEST(a_fixed_pool)
{
    int32_t target[5] = {0, 0, 2, 2, 0};
    float scale[5] = {1, 0.5f, 1, -2, 0};
    int64_t ids[] = {0, 1, 2, 3, 4, -1, 5, INT64_C(1) << 40};
    float w[] = {.5f, .5f, .25f, .25f, .125f, 7, 8, NAN};
    int32_t kept_id = 2, signalling = 0x7f800001;
    exf_fold_routes bits = {.ids = &kept_id, .weights = &signalling, .rows = 1, .width = 1};
    exf_fold_routes io = {.ids = ids, .weights = w, .id_type = EXF_FOLD_I64, .rows = 2, .width = 4};
    const int64_t want_ids[] = {0, 0, 2, 2, 0, -1, 5, INT64_C(1) << 40};
    const float want[] = {.5f, .25f, .25f, -.5f, 0, 7, 8};
    ck_assert_int_eq(exf_fold_decode_static_cpu(&io, target, scale, 5), EXF_FOLD_OK);
    ck_assert(!memcmp(ids, want_ids, sizeof ids) && !memcmp(w, want, sizeof want) && w[7] != w[7]);
    ck_assert_int_eq(exf_fold_decode_static_cpu(&bits, target, scale, 5), EXF_FOLD_OK);
    ck_assert(kept_id == 2 && signalling == 0x7f800001); /* not even multiplied by 1 */
}
END_TEST

/* ---- properties over random batches --------------------------------------------------- */

typedef struct {
    int e, k, rows;
} shape;
static const shape shapes[] = {{3, 1, 5},     {3, 3, 1},    {8, 2, 33},    {16, 4, 100},   {60, 6, 63},    {128, 8, 256},
                               {256, 8, 256}, {257, 9, 40}, {512, 10, 50}, {512, 16, 300}, {128, 8, 8192}, {512, 16, 4096}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static int expert_at(const exf_fold_routes *r, int i, int n_experts)
{
    int64_t id = fold_id_at(r, i);
    return id >= 0 && id < n_experts ? (int)id : -1;
}

/* used[e]: 1 where the batch routes to e; returns how many do. */
static int count_experts(char *used, const exf_fold_routes *r, int n_experts)
{
    int n = 0;
    memset(used, 0, FOLD_E);
    for (int i = 0; i < r->rows * r->width; i++) {
        int e = expert_at(r, i, n_experts);
        if (e < 0) continue;
        n += !used[e];
        used[e] = 1;
    }
    return n;
}

/* ---- against the formulas ---------------------------------------------------------------- */

typedef struct {
    int changes, n_pool, pool[FOLD_E]; /* by falling importance */
    char in_pool[FOLD_E], used[FOLD_E];
} naive_pool;

static naive_pool naive_choose(const exf_fold_routes *r, const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    static double sum[FOLD_E];
    naive_pool p = {0};
    memset(sum, 0, sizeof sum);
    p.changes = count_experts(p.used, r, t->n_experts) > o->pool;
    for (int i = 0; i < r->rows * r->width; i++) {
        int e = expert_at(r, i, t->n_experts);
        double w = (double)fold_weight_at(r, i);
        if (e >= 0) sum[e] += o->importance == EXF_FOLD_IMPORTANCE_ENERGY ? pow(w * (double)t->rms[e], 2) : w * (double)t->norms[e];
    }
    while (p.changes && p.n_pool < o->pool) {
        int best = -1;
        for (int e = 0; e < t->n_experts; e++)
            if (p.used[e] && !p.in_pool[e] && (best < 0 || sum[e] > sum[best])) best = e;
        p.in_pool[best] = 1;
        p.pool[p.n_pool++] = best;
    }
    return p;
}

/* The pool's member of least loss, or of least 1 - cos^2; -1 without one. */
static int naive_target(const naive_pool *p, int s, const exf_fold_tables *t, const exf_fold_decode_options *o, int joint)
{
    int best = -1;
    double least = 0;
    for (int j = 0; j < p->n_pool; j++) {
        double c = fabs((double)t->cosine[s * t->n_experts + p->pool[j]]),
               l = joint ? -c : (double)t->loss[s * t->n_experts + p->pool[j]];
        if (!joint && !naive_allowed(l, (double)o->max_loss)) continue;
        if (best < 0 || l < least) {
            best = p->pool[j];
            least = l;
        }
    }
    return best;
}

static int target_cache[FOLD_E];

static void ck_pair_row(const exf_fold_routes *got, const exf_fold_routes *in, int row, const naive_pool *p,
                        const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    for (int i = row * in->width; i < (row + 1) * in->width; i++) {
        int e = expert_at(in, i, t->n_experts);
        double w = (double)fold_weight_at(in, i);
        if (e < 0 || p->in_pool[e]) {
            ck_assert(fold_id_at(got, i) == fold_id_at(in, i) && fold_weight_at(got, i) == fold_weight_at(in, i));
            continue;
        }
        int to = target_cache[e];
        ck_assert_msg(fold_id_at(got, i) == (to < 0 ? p->pool[0] : to), "slot %d: expert %d became %lld, expected %d", i, e,
                      (long long)fold_id_at(got, i), to < 0 ? p->pool[0] : to);
        ck_weight(got, i, to < 0 || o->drop ? 0 : w * (double)t->coeff[e * t->n_experts + to], fabs(w), 1e-6);
    }
}

static void ck_joint_row(const exf_fold_routes *got, const exf_fold_routes *in, int row, const naive_pool *p,
                         const exf_fold_tables *t, const exf_fold_decode_options *o)
{
    int n = 0, at[FOLD_K], old[FOLD_K], id[FOLD_K], moved = 0;
    double w[FOLD_K], k[FOLD_K], x[FOLD_K] = {0}, scale = 0;
    for (int i = row * in->width; i < (row + 1) * in->width; i++) {
        old[n] = expert_at(in, i, t->n_experts);
        if (old[n] < 0) {
            ck_assert(fold_id_at(got, i) == fold_id_at(in, i));
            continue;
        }
        w[n] = (double)fold_weight_at(in, i);
        id[n] = p->in_pool[old[n]] ? old[n] : target_cache[old[n]];
        k[n] = p->in_pool[old[n]] ? w[n] : 0;
        moved += !p->in_pool[old[n]];
        scale += fabs(w[n]);
        at[n++] = i;
    }
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) x[a] += naive_gram(t, id[a], old[b]) * w[b] - naive_gram(t, id[a], id[b]) * k[b];
    if (moved) naive_joint(x, id, n, t, (double)o->ridge);
    for (int a = 0; a < n; a++) {
        ck_assert_int_eq(fold_id_at(got, at[a]), id[a]);
        if (moved)
            ck_weight(got, at[a], k[a] + x[a], scale, 1e-6);
        else
            ck_assert(fold_weight_at(got, at[a]) == fold_weight_at(in, at[a]));
    }
}

/* _i runs through shapes and kinds of tables. */
START_TEST(random_batches_follow_the_formulas)
{
    const shape *s = &shapes[_i % N_SHAPES];
    fold_tables_kind kind = (fold_tables_kind)(_i / N_SHAPES);
    fold_fill_tables(&tables, s->e, 200 + (uint64_t)_i, kind);
    for (int v = 0; v < (s->rows > 1000 ? 4 : 30); v++) {
        uint64_t seed = (uint64_t)(_i * 1000 + v);
        int joint = v % 3 == 2;
        exf_fold_routes io = fold_room(&room, s->rows, s->k, fold_int_of(v), fold_real_of(v / 2));
        fold_fill_routes(&io, s->e, seed, kind == TABLES_EXACT ? ROUTES_EXACT : (fold_routes_kind)(v / 3 % N_ROUTES));
        exf_fold_routes in = fold_copy(&was, &io);
        exf_fold_decode_options o = {.pool = 1 + fold_below(s->e, seed, 1, 0),
                                     .importance = (exf_fold_importance)(v / 5 % 2),
                                     .drop = v % 7 == 0,
                                     .ridge = v % 2 ? 0.01f : 0.1f};
        o.max_loss = v % 4 == 0 ? 0.4f : EXF_FOLD_NEVER;
        ck_assert_int_eq((joint ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu)(&io, &tables.t, &o), EXF_FOLD_OK);
        naive_pool p = naive_choose(&in, &tables.t, &o);
        if (!p.changes) {
            ck_assert(fold_same(&io, &in));
            continue;
        }
        for (int e = 0; e < s->e; e++) target_cache[e] = naive_target(&p, e, &tables.t, &o, joint);
        for (int r = 0; r < s->rows; r++) (joint ? ck_joint_row : ck_pair_row)(&io, &in, r, &p, &tables.t, &o);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "decode");
    tcase_add_test(c, the_pool_is_what_the_batch_needs_most);
    tcase_add_test(c, ties_of_importance_go_to_the_lower_id);
    tcase_add_test(c, importance_has_the_grid_that_the_header_names);
    tcase_add_test(c, joint_weights_by_hand);
    tcase_add_test(c, a_fixed_pool);
    tcase_add_loop_test(c, random_batches_follow_the_formulas, 0, N_SHAPES * N_TABLES);
}
