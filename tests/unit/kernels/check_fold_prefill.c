/* check_fold_prefill.c - exfold/fold.h, prefill: hand-solved rows, properties, and the
 * formulas in doubles over random tables, shapes and types. */
#include "tests/support/fold_abi_fixtures.h"

static fold_tables tables;
static fold_routes from, to;

static const exf_fold_prefill_options plain = {.keep = 2, .max_loss = EXF_FOLD_NEVER, .ridge = 0.01f};

/* ---- worked examples --------------------------------------------------------------- */

/* Four experts; S[s,t] and L[s,t] as written, norms 1, 2, 4, 8. */
static const float small_coeff[16] = {1, .5f, .25f, 2, -1, 1, .5f, .75f, .25f, .125f, 1, 1, 3, -.5f, .5f, 1};
static const float small_loss[16] = {1e30f, .25f, .5f,   .125f, .75f,  1e30f, .5f, .5f,
                                     .25f,  .25f, 1e30f, 1e30f, .125f, 1.5f,  .5f, 1e30f};
static const float small_norms[4] = {1, 2, 4, 8}, small_rms[4] = {1, 1, 2, 2};
/* Experts 0 and 1 are orthogonal, 2 and 3 lie between. */
static const float small_cosine[16] = {1, 0, .5f, .5f, 0, 1, .5f, -.5f, .5f, .5f, 1, .25f, .5f, -.5f, .25f, 1};
static const exf_fold_tables small_tables = {.coeff = small_coeff, .loss = small_loss, .norms = small_norms,
                                             .cosine = small_cosine, .rms = small_rms, .n_experts = 4};

typedef exf_fold_status prefill(const exf_fold_routes *, const exf_fold_routes *, const exf_fold_tables *,
                                const exf_fold_prefill_options *);

static void expect(prefill *fold, const exf_fold_prefill_options *o, const int32_t *ids, const float *w, int k,
                   const int32_t *want_ids, const double *want)
{
    int32_t in_ids[FOLD_K], out_ids[FOLD_K];
    float in_w[FOLD_K], out_w[FOLD_K];
    exf_fold_routes in = {.ids = in_ids, .weights = in_w, .rows = 1, .width = k},
                    out = {.ids = out_ids, .weights = out_w, .rows = 1, .width = o->keep};
    memcpy(in_ids, ids, (size_t)k * 4);
    memcpy(in_w, w, (size_t)k * 4);
    ck_assert_int_eq(fold(&in, &out, &small_tables, o), EXF_FOLD_OK);
    for (int i = 0; i < o->keep; i++) {
        ck_assert_msg(out_ids[i] == want_ids[i], "route %d: expert %d, expected %d", i, (int)out_ids[i], (int)want_ids[i]);
        ck_assert_msg((double)out_w[i] == want[i] || fabs((double)out_w[i] - want[i]) <= 2e-7 * fabs(want[i]),
                      "route %d: weight %.9g, expected %.9g", i, (double)out_w[i], want[i]);
    }
}
#define IDS (const int32_t[])
#define W (const float[])
#define WANT (const double[])

START_TEST(the_kept_ones_are_the_largest)
{
    exf_fold_prefill_options o = plain;
    o.max_loss = EXF_FOLD_ZERO; /* no loss here is 0, nothing folds: only the choice shows */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.5f, .375f, .125f, .0625f}, 4, IDS{1, 0},
           WANT{.375, .5}); /* .5 .75 .5 .5 */
    o.rank = EXF_FOLD_BY_SCORE;
    expect(exf_fold_prefill_cpu, &o, IDS{3, 0, 2, 1}, W{.1f, .2f, .3f, .4f}, 4, IDS{1, 2}, WANT{(double).4f, (double).3f});
    o.rank = EXF_FOLD_BY_NORM;
    expect(exf_fold_prefill_cpu, &o, IDS{1, 0, 3, 2}, W{.4f, .3f, .2f, .1f}, 4, IDS{3, 2}, WANT{(double).2f, (double).1f});
    o.rank = EXF_FOLD_BY_SCORE;
    expect(exf_fold_prefill_cpu, &o, IDS{3, 0, 2, 1}, W{.25f, .25f, .25f, .25f}, 4, IDS{3, 0},
           WANT{.25, .25}); /* ties: lower slot */
    expect(exf_fold_prefill_cpu, &o, IDS{3, 2, 1}, W{-1, -3, -2}, 3, IDS{3, 1}, WANT{-1, -2});
    expect(exf_fold_prefill_cpu, &o, IDS{3, 2, 1}, W{-0.0f, 0, -1}, 3, IDS{3, 2}, WANT{0, 0}); /* both zeros are one number */
    expect(exf_fold_prefill_cpu, &o, IDS{3, 2, 1}, W{NAN, -INFINITY, -1}, 3, IDS{1, 2}, WANT{-1, -INFINITY});
}
END_TEST

START_TEST(omitted_routes_go_where_they_lose_least)
{
    exf_fold_prefill_options o = plain;
    /* ranks: 3 (4), 1 (1), 2 (.5), 0 (.25).  2 -> 1 (2 -> 3 was never seen): .125/8; 0 -> 3 (.125 < .25): .25*2 */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.25f, .5f, .125f, .5f}, 4, IDS{3, 1}, WANT{1, .515625});
    o.max_loss = 0.125f; /* only 0 -> 3 is left; a limit is still within it */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.25f, .5f, .125f, .5f}, 4, IDS{3, 1}, WANT{1, .5});
    o.max_loss = 0.1f;
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.25f, .5f, .125f, .5f}, 4, IDS{3, 1}, WANT{.5, .5});
    o.max_loss = EXF_FOLD_NEVER; /* 2's losses to 0 and 1 are equal: the earlier by rank, which is 1, then 0 */
    o.rank = EXF_FOLD_BY_SCORE;
    expect(exf_fold_prefill_cpu, &o, IDS{0, 2, 1}, W{.25f, .125f, .5f}, 3, IDS{1, 0}, WANT{.515625, .25});
    expect(exf_fold_prefill_cpu, &o, IDS{0, 2, 1}, W{.5f, .125f, .25f}, 3, IDS{0, 1}, WANT{.53125, .25});
    o.keep = 1;
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1}, W{.75f, .25f}, 2, IDS{0}, WANT{.5}); /* .75 + .25 * -1 */
    expect(exf_fold_prefill_cpu, &o, IDS{3}, W{.75f}, 1, IDS{3}, WANT{.75});
}
END_TEST

START_TEST(the_safeguards)
{
    exf_fold_prefill_options o = plain;
    o.rescale = EXF_FOLD_RESCALE_SUM; /* 1 and .515625 to a sum of 1.375 */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.25f, .5f, .125f, .5f}, 4, IDS{3, 1},
           WANT{1.375 / 1.515625, .515625 * 1.375 / 1.515625});
    o.rescale = EXF_FOLD_RESCALE_L2;
    double f = sqrt((.0625 + .25 + .015625 + .25) / (1 + .515625 * .515625));
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.25f, .5f, .125f, .5f}, 4, IDS{3, 1}, WANT{f, .515625 * f});
    o.rescale = EXF_FOLD_RESCALE_NONE;
    o.confidence = 1; /* 2 -> 1: c = .75, 0 -> 3: c = .875; spread .03125 + .03125 over .5 and .5 */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.25f, .5f, .125f, .5f}, 4, IDS{3, 1},
           WANT{.5 + .25 * .875 * 2 + .03125, .5 + .125 * .75 * .125 + .03125});
    o.max_loss = 0.125f; /* 2 has no target: c = 0, all of it is spread */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 2, 3}, W{.25f, .5f, .125f, .5f}, 4, IDS{3, 1},
           WANT{.5 + .25 * .875 * 2 + .078125, .5 + .078125});
    o.max_loss = EXF_FOLD_NEVER;
    o.keep = 1; /* 3 -> 1 has loss 1.5: c = 0 although there is a target */
    o.rank = EXF_FOLD_BY_SCORE;
    expect(exf_fold_prefill_cpu, &o, IDS{1, 3}, W{.75f, .25f}, 2, IDS{1}, WANT{1});
    o.rescale = EXF_FOLD_RESCALE_SUM; /* sums not above 0 are left alone, and nothing is spread over them */
    expect(exf_fold_prefill_cpu, &o, IDS{1, 3}, W{0, 0}, 2, IDS{1}, WANT{0});
    expect(exf_fold_prefill_cpu, &o, IDS{1, 3}, W{-.25f, -.75f}, 2, IDS{1}, WANT{-.25});
    o = plain;
    o.max_loss = EXF_FOLD_ZERO; /* a factor that no float32 holds */
    o.rescale = EXF_FOLD_RESCALE_SUM;
    o.rank = EXF_FOLD_BY_NORM;
    o.keep = 1;
    expect(exf_fold_prefill_cpu, &o, IDS{0, 3}, W{1e30f, 1e-30f}, 2, IDS{3}, WANT{(double)1e-30f});
    o.keep = 2; /* nothing omitted, nothing computed: infinity times 0 is not */
    o.confidence = 1;
    expect(exf_fold_prefill_cpu, &o, IDS{0, 3}, W{1, INFINITY}, 2, IDS{3, 0}, WANT{INFINITY, 1});
}
END_TEST

/* B = {0, 1}, orthogonal, rms 1: G_BB = I and (1 + rho) x = G_BO w_O. */
START_TEST(joint_weights_by_hand)
{
    exf_fold_prefill_options o = plain;
    o.rank = EXF_FOLD_BY_SCORE;
    o.ridge = 0.25f;
    expect(exf_fold_prefill_joint_cpu, &o, IDS{0, 1, 2, 3}, W{.5f, .25f, .125f, .125f}, 4, IDS{0, 1},
           WANT{.5 + (.125 * 1 + .125 * 1) / 1.25, .25 + (.125 - .125) / 1.25});
    o.ridge = EXF_FOLD_ZERO;
    expect(exf_fold_prefill_joint_cpu, &o, IDS{1, 2, 0}, W{.5f, .125f, .25f}, 3, IDS{1, 0}, WANT{.625, .375});
    o.rescale = EXF_FOLD_RESCALE_SUM;
    expect(exf_fold_prefill_joint_cpu, &o, IDS{1, 2, 0}, W{.5f, .125f, .25f}, 3, IDS{1, 0}, WANT{.625 * .875, .375 * .875});
}
END_TEST

/* Two opposite unit experts and one like both: no vectors have such inner products. */
START_TEST(a_system_that_is_no_gram_matrix_is_raised_by_small_steps)
{
    static const float cosine[16] = {1, -1, 1, 0, -1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1}, ones[4] = {1, 1, 1, 1};
    exf_fold_tables t = {.norms = ones, .cosine = cosine, .rms = ones, .n_experts = 4};
    int32_t ids[] = {0, 1, 2, 3}, out_ids[3];
    float w[] = {.5f, .25f, .125f, 0}, out_w[3];
    exf_fold_routes in = {.ids = ids, .weights = w, .rows = 1, .width = 4},
                    out = {.ids = out_ids, .weights = out_w, .rows = 1, .width = 3};
    exf_fold_prefill_options o = {.keep = 3, .rank = EXF_FOLD_BY_SCORE, .ridge = EXF_FOLD_ZERO};
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK); /* nothing to make up for: w_B whatever rho */
    for (int i = 0; i < 3; i++) ck_assert(out_ids[i] == ids[i] && out_w[i] == w[i]);
    /* B = {0, 1}, opposite; expert 2's inner products are (1, 1).  The second pivot is 1 + rho - 1 / (1 + rho), of which
     * 2^-7 (1 + rho) is asked: rho 0 -> 1e-3, 2e-3, 4e-3 */
    o.keep = 2;
    out.width = 2;
    in.width = 3;
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    double rho = 4e-3, x = .125 / rho; /* [1+rho, -1; -1, 1+rho] (x, x) = (.125, .125) */
    ck_assert(fabs((double)out_w[0] - (.5 + x)) < 1e-4 && fabs((double)out_w[1] - (.25 + x)) < 1e-4);
    /* an eigenvalue of -1 of all three, and 3's likeness to 1 alone to make up for: tens where a pivot of 2^-26 will do */
    static const float worse[16] = {1, 1, 1, 0, 1, 1, -1, .5f, 1, -1, 1, 0, 0, .5f, 0, 1};
    t.cosine = worse;
    w[3] = .0625f;
    o.keep = out.width = 3;
    in.width = 4;
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    double right[3] = {0, .5 * .0625, 0};
    naive_joint(right, (int[]){0, 1, 2}, 3, &t, 1.024); /* 1e-3 2^10: the third pivot of 0.512 would be below 0 */
    for (int i = 0; i < 3; i++)
        ck_assert_msg(fabs((double)out_w[i] - ((double)w[i] + right[i])) < 1e-6, "%g, expected %g", (double)out_w[i],
                      (double)w[i] + right[i]);
}
END_TEST

/* Cosines that no multiple of the identity mends: what is omitted goes by its pair's scalar to the likest kept route. */
START_TEST(where_no_raise_helps_pairs_scalars_are_used)
{
    static const float cosine[16] = {1, 3e4f, .5f, -.25f, 3e4f, 1, -.75f, .25f, .5f, -.75f, 1, 0, -.25f, .25f, 0, 1},
                       ones[4] = {1, 1, 1, 1}, zeros[4] = {0};
    static const float coeff[16] = {1, 2, 3, 4, 5, 1, 6, 7, .5f, -2, 1, 8, 4, 9, 9, 1};
    exf_fold_tables t = {.coeff = coeff, .norms = ones, .cosine = cosine, .rms = ones, .n_experts = 4};
    int32_t ids[] = {0, 1, 2, 3}, out_ids[2];
    float w[] = {.5f, .25f, .125f, .0625f}, out_w[2];
    exf_fold_routes in = {.ids = ids, .weights = w, .rows = 1, .width = 4},
                    out = {.ids = out_ids, .weights = out_w, .rows = 1, .width = 2};
    exf_fold_prefill_options o = {.keep = 2, .rank = EXF_FOLD_BY_SCORE};
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_assert(out_w[0] == .5f + .0625f * 4 && out_w[1] == .25f + .125f * -2); /* 3: a tie, the earlier; 2: the likest */
    t.coeff = NULL;
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_assert(out_w[0] == .5f && out_w[1] == .25f);
    t.rms = zeros; /* a mean diagonal of 0 */
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_assert(out_w[0] == .5f && out_w[1] == .25f);
}
END_TEST

/* G has relative norms where there are any; the order of routes goes on by h. */
START_TEST(joint_weights_go_by_relative_norms)
{
    static const float cosine[9] = {1, 0, .5f, 0, 1, 0, .5f, 0, 1}, rms[3] = {1, 1, 1}, relative[3] = {2, 1, 1},
                       norms[3] = {1, 1, 1};
    exf_fold_tables t = {.norms = norms, .cosine = cosine, .rms = rms, .relative_norms = relative, .n_experts = 3};
    int32_t ids[] = {0, 1, 2}, out_ids[2];
    float w[] = {.5f, .25f, .125f}, out_w[2];
    exf_fold_routes in = {.ids = ids, .weights = w, .rows = 1, .width = 3},
                    out = {.ids = out_ids, .weights = out_w, .rows = 1, .width = 2};
    exf_fold_prefill_options o = {.keep = 2, .rank = EXF_FOLD_BY_SCORE_NORM, .ridge = EXF_FOLD_ZERO};
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_assert(out_w[0] == .5f + .125f * .5f * 1 / 2 && out_w[1] == .25f); /* 2 is half of what 0 has in its direction */
    t.relative_norms = NULL;
    ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_assert(out_w[0] == .5f + .125f * .5f);
}
END_TEST

START_TEST(slots_without_an_expert_rank_last_and_stay)
{
    static const int64_t nobody[] = {-1, 4, INT64_C(1) << 32, INT64_MIN};
    for (int i = 0; i < 4; i++) {
        int64_t ids[] = {nobody[i], 0, nobody[i], 3}, out_ids[3];
        float w[] = {9, .25f, 7, .5f}, out_w[3];
        exf_fold_routes in = {.ids = ids, .weights = w, .id_type = EXF_FOLD_I64, .rows = 1, .width = 4},
                        out = {.ids = out_ids, .weights = out_w, .id_type = EXF_FOLD_I64, .rows = 1, .width = 3};
        exf_fold_prefill_options o = plain;
        o.keep = 3;
        o.rescale = EXF_FOLD_RESCALE_SUM;
        ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &small_tables, &o), EXF_FOLD_OK);
        ck_assert(out_ids[0] == 3 && out_ids[1] == 0 && out_ids[2] == nobody[i]);
        ck_assert(out_w[0] == .5f && out_w[1] == .25f && out_w[2] == 9);
        o.keep = out.width = 1; /* 0 -> 3: .5 + .25 * 2, and rescaled to .75: the 9 and 7 are nobody's */
        ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &small_tables, &o), EXF_FOLD_OK);
        ck_assert(out_ids[0] == 3 && out_w[0] == .75f);
        ids[1] = ids[3] = nobody[i];
        ck_assert_int_eq(exf_fold_prefill_joint_cpu(&in, &out, &small_tables, &o), EXF_FOLD_OK);
        ck_assert(out_ids[0] == nobody[i] && out_w[0] == 9);
    }
}
END_TEST

START_TEST(one_expert_in_two_slots)
{
    exf_fold_prefill_options o = plain;
    o.rank = EXF_FOLD_BY_SCORE; /* 0 is kept twice, 3 goes to the first */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 3, 0}, W{.25f, .125f, .5f}, 3, IDS{0, 0}, WANT{.5 + .375, .25});
    /* kept once and omitted once: a pair with itself was never observed */
    expect(exf_fold_prefill_cpu, &o, IDS{0, 1, 0}, W{.5f, .25f, .125f}, 3, IDS{0, 1}, WANT{.5, .25 + .0625});
    o.ridge = .5f; /* joint: G = [1 1; 1 1], x = .125 / (2 + .5) each */
    expect(exf_fold_prefill_joint_cpu, &o, IDS{0, 3, 0}, W{.25f, .125f, .5f}, 3, IDS{0, 0}, WANT{.5 + .05, .25 + .05});
}
END_TEST

/* ---- properties over random routes ---------------------------------------------------- */

/* ---- against the formulas ---------------------------------------------------------------- */

typedef struct {
    int n, id[FOLD_K];
    double w[FOLD_K], key[FOLD_K];
    int64_t raw[FOLD_K];
} naive_row;

/* The row's slots by falling rank: repeatedly the first of the largest. */
static naive_row naive_rank(const exf_fold_routes *in, int row, const exf_fold_tables *t, exf_fold_rank rank)
{
    naive_row all = {0}, r = {0};
    int taken[FOLD_K] = {0};
    for (int k = 0; k < in->width; k++) {
        int64_t id = fold_id_at(in, row * in->width + k);
        all.raw[k] = id;
        all.id[k] = id >= 0 && id < t->n_experts ? (int)id : -1;
        all.w[k] = (double)fold_weight_at(in, row * in->width + k);
        double h = all.id[k] < 0 ? 0 : (double)t->norms[all.id[k]];
        all.key[k] = all.id[k] < 0 ? -INFINITY : rank == EXF_FOLD_BY_SCORE ? all.w[k] : rank == EXF_FOLD_BY_NORM ? h : all.w[k] * h;
        r.n += all.id[k] >= 0;
    }
    for (int i = 0; i < in->width; i++) {
        int best = -1;
        for (int k = 0; k < in->width; k++)
            if (!taken[k] && (best < 0 || all.key[k] > all.key[best])) best = k;
        taken[best] = 1;
        r.id[i] = all.id[best];
        r.w[i] = all.w[best];
        r.raw[i] = all.raw[best];
    }
    return r;
}

static void naive_pairs(double *w, const naive_row *r, int kept, const exf_fold_tables *t, const exf_fold_prefill_options *o)
{
    double original = 0;
    for (int i = 0; i < kept; i++) original += r->w[i];
    for (int j = kept; j < r->n; j++) {
        const float *loss = t->loss + r->id[j] * t->n_experts;
        int best = -1;
        for (int i = 0; i < kept; i++)
            if (naive_allowed((double)loss[r->id[i]], (double)o->max_loss) && (best < 0 || loss[r->id[i]] < loss[r->id[best]]))
                best = i;
        double c = best < 0 ? 0 : o->confidence ? fmin(fmax(1 - (double)loss[r->id[best]], 0), 1) : 1;
        if (best >= 0) w[best] += r->w[j] * c * (double)t->coeff[r->id[j] * t->n_experts + r->id[best]];
        for (int i = 0; i < kept && o->confidence && original > 0; i++) w[i] += r->w[j] * (1 - c) * r->w[i] / original;
    }
}

static void naive_joint_row(double *w, const naive_row *r, int kept, const exf_fold_tables *t, const exf_fold_prefill_options *o)
{
    double x[FOLD_K] = {0};
    for (int i = 0; i < kept; i++)
        for (int j = kept; j < r->n; j++) x[i] += naive_gram(t, r->id[i], r->id[j]) * r->w[j];
    if (r->n > kept) naive_joint(x, r->id, kept, t, (double)o->ridge);
    for (int i = 0; i < kept; i++) w[i] += x[i];
}

static void ck_row(const exf_fold_routes *out, const exf_fold_routes *in, int row, const exf_fold_tables *t,
                   const exf_fold_prefill_options *o, int joint)
{
    naive_row r = naive_rank(in, row, t, o->rank);
    int kept = r.n < o->keep ? r.n : o->keep;
    double w[FOLD_K], before = 0, after = 0, scale = 0;
    memcpy(w, r.w, sizeof w);
    (joint ? naive_joint_row : naive_pairs)(w, &r, kept, t, o);
    for (int i = 0; i < r.n; i++) before += o->rescale == EXF_FOLD_RESCALE_L2 ? r.w[i] * r.w[i] : r.w[i];
    for (int i = 0; i < kept; i++) after += o->rescale == EXF_FOLD_RESCALE_L2 ? w[i] * w[i] : w[i];
    double f = o->rescale == EXF_FOLD_RESCALE_NONE || !(before > 0) || !(after > 0) ? 1 : before / after;
    if (o->rescale == EXF_FOLD_RESCALE_L2) f = sqrt(f);
    for (int i = 0; i < r.n; i++) scale += 2 * fabs(r.w[i]);
    for (int i = 0; i < kept; i++) scale += fabs(w[i]);
    if (o->rescale == EXF_FOLD_RESCALE_SUM && after > 0 && after < 1e-3 * scale) return; /* cancelled: no digits left to compare */
    for (int i = 0; i < o->keep; i++) {
        ck_assert_msg(fold_id_at(out, row * o->keep + i) == r.raw[i], "row %d, route %d: expert %lld, expected %lld", row, i,
                      (long long)fold_id_at(out, row * o->keep + i), (long long)r.raw[i]);
        double amplified = o->rescale == EXF_FOLD_RESCALE_SUM && after > 0 ? 1 + fabs(scale / after) : 1;
        ck_weight(out, row * o->keep + i, i < kept ? w[i] * f : r.w[i], (scale + fabs(r.w[i])) * f * amplified, 3e-6);
    }
}

/* _i runs through shapes, kinds of tables and of routes. */
START_TEST(random_rows_follow_the_formulas)
{
    const fold_shape *s = &fold_shapes[_i % N_FOLD_SHAPES];
    fold_tables_kind kind = (fold_tables_kind)(_i / N_FOLD_SHAPES % N_TABLES);
    fold_fill_tables(&tables, s->e, 100 + (uint64_t)_i, kind);
    for (int v = 0; v < 36; v++) {
        uint64_t seed = (uint64_t)(_i * 1000 + v);
        exf_fold_routes in = fold_room(&from, s->rows, s->k, fold_int_of(v), fold_real_of(v / 2));
        exf_fold_prefill_options o = {.keep = 1 + fold_below(s->k, seed, 1, 0),
                                      .rank = (exf_fold_rank)(v % 3),
                                      .rescale = (exf_fold_rescale)(v / 3 % 3),
                                      .confidence = v / 9 % 2,
                                      .ridge = v % 2 ? 1e-2f : 0.1f};
        o.max_loss = v % 4 == 0 ? 0.5f : EXF_FOLD_NEVER;
        exf_fold_routes out = fold_room(&to, s->rows, o.keep, in.id_type, in.weight_type);
        fold_fill_routes(&in, s->e, seed, kind == TABLES_EXACT ? ROUTES_EXACT : (fold_routes_kind)(v / 4 % N_ROUTES));
        int joint = v % 5 == 0;
        ck_assert_int_eq((joint ? exf_fold_prefill_joint_cpu : exf_fold_prefill_cpu)(&in, &out, &tables.t, &o), EXF_FOLD_OK);
        for (int r = 0; r < s->rows; r++) ck_row(&out, &in, r, &tables.t, &o, joint);
    }
}
END_TEST

/* ---- number formats ------------------------------------------------------------------------- */

START_TEST(every_16_bit_number_passes_through)
{
    exf_fold_real type = _i ? EXF_FOLD_F16 : EXF_FOLD_BF16;
    exf_fold_routes in = fold_room(&from, FOLD_SLOTS, 1, EXF_FOLD_I32, type),
                    out = fold_room(&to, FOLD_SLOTS, 1, EXF_FOLD_I32, type);
    exf_fold_prefill_options o = {.keep = 1, .rank = EXF_FOLD_BY_SCORE, .max_loss = EXF_FOLD_NEVER};
    for (int i = 0; i < FOLD_SLOTS; i++) {
        ((uint16_t *)in.weights)[i] = (uint16_t)i;
        ((int32_t *)in.ids)[i] = i % 4;
    }
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &small_tables, &o), EXF_FOLD_OK);
    for (int i = 0; i < FOLD_SLOTS; i++) {
        float was = fold_weight_at(&in, i), is = fold_weight_at(&out, i);
        ck_assert_msg(was != was ? is != is : ((uint16_t *)out.weights)[i] == i, "%#x became %#x", (unsigned)i,
                      ((uint16_t *)out.weights)[i]);
    }
}
END_TEST

/* Products of all 16-bit numbers with a scale round as ours do: static remapping shows a product bare. */
START_TEST(products_round_to_nearest_even)
{
    static const float scales[] = {1.00390625f, 0.333333343f, -3.0f, 0x1p-10f, 0x1.8p-13f, 300.0f, 0x1.002p0f};
    exf_fold_real type = _i ? EXF_FOLD_F16 : EXF_FOLD_BF16;
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        float scale[4] = {scales[s], scales[s], scales[s], scales[s]};
        int32_t target[4] = {1, 2, 3, 0};
        exf_fold_routes in = fold_room(&from, FOLD_SLOTS, 1, EXF_FOLD_I32, type);
        for (int i = 0; i < FOLD_SLOTS; i++) {
            ((uint16_t *)in.weights)[i] = (uint16_t)i;
            ((int32_t *)in.ids)[i] = i % 4;
        }
        exf_fold_routes out = fold_copy(&to, &in);
        ck_assert_int_eq(exf_fold_decode_static_cpu(&out, target, scale, 4), EXF_FOLD_OK);
        for (int i = 0; i < FOLD_SLOTS; i++) {
            float product = fold_weight_at(&in, i) * scales[s], is = fold_weight_at(&out, i);
            unsigned bits = ((uint16_t *)out.weights)[i];
            ck_assert_int_eq(((int32_t *)out.ids)[i], (i + 1) % 4);
            if (product != product || isinf(product))
                ck_assert(product != product ? is != is : is == product);
            else
                ck_assert_msg(bits == fold_to_half(product, type), "%a is %#x, expected %#x", (double)product, bits,
                              fold_to_half(product, type));
        }
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "prefill");
    tcase_add_test(c, the_kept_ones_are_the_largest);
    tcase_add_test(c, omitted_routes_go_where_they_lose_least);
    tcase_add_test(c, the_safeguards);
    tcase_add_test(c, joint_weights_by_hand);
    tcase_add_test(c, a_system_that_is_no_gram_matrix_is_raised_by_small_steps);
    tcase_add_test(c, where_no_raise_helps_pairs_scalars_are_used);
    tcase_add_test(c, joint_weights_go_by_relative_norms);
    tcase_add_test(c, slots_without_an_expert_rank_last_and_stay);
    tcase_add_test(c, one_expert_in_two_slots);
    tcase_add_loop_test(c, random_rows_follow_the_formulas, 0, N_FOLD_SHAPES * N_TABLES);
    tcase_add_loop_test(c, every_16_bit_number_passes_through, 0, 2);
    tcase_add_loop_test(c, products_round_to_nearest_even, 0, 2);
}
