/* check_fold_public.c - holds the functions of exfold/fold.h, with the options that a runtime profile
 * (src/fold/runtime.h) gives them, to what the public runtimes' kernels do, written down here once more from
 * their description: kept routes, targets, pools and the order of every rounding.
 *
 * Half of the cases lie on coarse grids, so that sums are exact in any order and weights, losses and importance
 * tie often; the others are real numbers.  A public pool depends on the order of its atomic additions where two
 * experts are as good as equal: such cases of real numbers are left out and counted. */
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include "exfold/fold.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_E = 64, MOST_K = 8, MOST_ROWS = 24, CASES = 4000 };

typedef struct {
    int e, k, rows, budget, coarse;
    float coeff[MOST_E * MOST_E], loss[MOST_E * MOST_E], norms[MOST_E];
    int32_t ids[MOST_ROWS * MOST_K];
    float weights[MOST_ROWS * MOST_K];
} given;

/* What a runtime makes of the routes. */
typedef struct {
    int32_t ids[MOST_ROWS * MOST_K];
    float weights[MOST_ROWS * MOST_K];
    int skip; /* its pool depends on the order of additions */
} rewritten;

static given g;
static rewritten theirs;
static uint64_t stream;
static uint64_t drawn;

static uint64_t bits(void)
{
    uint64_t x = (stream << 32) + ++drawn * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static int below(int n)
{
    return (int)(bits() % (uint64_t)n);
}
/* In [0, 1); coarse: a multiple of 1/8. */
static float number(void)
{
    return g.coarse ? (float)below(8) / 8 : (float)(bits() >> 40) / 16777216.0f;
}

/* ---- cases ------------------------------------------------------------------------- */

static void draw_tables(void)
{
    for (int s = 0; s < g.e; s++) {
        g.norms[s] = 0.125f + number();
        for (int t = 0; t < g.e; t++) {
            int never = s == t || below(5) == 0;
            g.loss[s * g.e + t] = never ? EXF_FOLD_NEVER : 1.25f * number();
            g.coeff[s * g.e + t] = s == t ? 1 : never ? 0 : 2 * number() - 0.5f;
        }
    }
    for (int s = 0; s < g.e; s++) /* some experts without any evidence */
        if (below(9) == 0)
            for (int t = 0; t < g.e; t++) {
                g.loss[s * g.e + t] = EXF_FOLD_NEVER;
                g.coeff[s * g.e + t] = s == t;
            }
}

/* Different experts of a row; `sorted`: by falling weight, as a router without a bias has them. */
static void draw_routes(int sorted)
{
    for (int r = 0; r < g.rows; r++) {
        int32_t *ids = g.ids + r * g.k;
        float *w = g.weights + r * g.k;
        for (int k = 0; k < g.k; k++) {
            int taken = 1;
            while (taken) {
                ids[k] = below(g.e);
                taken = 0;
                for (int j = 0; j < k; j++) taken |= ids[j] == ids[k];
            }
            w[k] = below(6) == 0 ? 0 : number();
        }
        for (int i = 1; sorted && i < g.k; i++)
            for (int j = i; j > 0 && w[j] > w[j - 1]; j--) {
                float a = w[j];
                int32_t b = ids[j];
                w[j] = w[j - 1];
                ids[j] = ids[j - 1];
                w[j - 1] = a;
                ids[j - 1] = b;
            }
    }
}

static void draw(uint64_t seed, int power_of_two, int sorted)
{
    stream = seed;
    drawn = 0;
    g.coarse = (int)(seed % 2);
    g.e = power_of_two ? 8 << below(4) : 8 + below(MOST_E - 7);
    g.k = 1 + below(MOST_K);
    g.rows = 1 + below(MOST_ROWS);
    draw_tables();
    draw_routes(sorted);
}

/* ---- the public kernels, prefill ----------------------------------------------------- */

/* vLLM, Qwen3: the first P slots stay; every later one goes to the kept slot of least loss, the first of equals, and
 * counts for nothing where that loss is the sentinel. */
static void qwen3_prefill(int keep)
{
    for (int r = 0; r < g.rows; r++) {
        const int32_t *id = g.ids + r * g.k;
        float *out = theirs.weights + r * keep;
        for (int p = 0; p < keep; p++) {
            theirs.ids[r * keep + p] = id[p];
            out[p] = g.weights[r * g.k + p];
        }
        for (int s = keep; s < g.k; s++) {
            int at = 0;
            for (int p = 1; p < keep; p++)
                if (g.loss[id[s] * g.e + id[p]] < g.loss[id[s] * g.e + id[at]]) at = p;
            float scale = g.loss[id[s] * g.e + id[at]] < 1e30f ? g.coeff[id[s] * g.e + id[at]] : 0.0f;
            float part = g.weights[r * g.k + s] * scale;
            out[at] += part;
        }
    }
}

enum { PLAIN, ROUTER_L2, BLEND };

/* DeepSeek-V4, both runtimes: routes by falling weight, equal ones as they stood; then the same, with the weight
 * that confidence withholds spread over the kept routes (BLEND), or the norm of the weights restored (ROUTER_L2). */
static void v4_prefill(int keep, int mode)
{
    for (int r = 0; r < g.rows; r++) {
        int32_t id[MOST_K];
        float w[MOST_K], kept[MOST_K], before = 0, sum = 0, left = 0, after = 0;
        for (int k = 0; k < g.k; k++) {
            int at = k;
            float mine = g.weights[r * g.k + k], square = mine * mine;
            before += square;
            for (; at > 0 && mine > w[at - 1]; at--) {
                w[at] = w[at - 1];
                id[at] = id[at - 1];
            }
            w[at] = mine;
            id[at] = g.ids[r * g.k + k];
        }
        for (int p = 0; p < keep; p++) {
            kept[p] = w[p];
            sum += w[p];
        }
        for (int s = keep; s < g.k; s++) {
            float least = FLT_MAX, sure = 1;
            int at = 0;
            for (int p = 0; p < keep; p++)
                if (g.loss[id[s] * g.e + id[p]] < least) {
                    least = g.loss[id[s] * g.e + id[p]];
                    at = p;
                }
            int pair = id[s] * g.e + id[at];
            if (mode == BLEND) {
                sure = fminf(fmaxf(1.0f - g.loss[pair], 0.0f), 1.0f);
                float withheld = w[s] * (1.0f - sure);
                left += withheld;
            }
            float part = w[s] * g.coeff[pair];
            part = part * sure;
            w[at] += part;
        }
        if (mode == BLEND && sum > 1e-20f)
            for (int p = 0; p < keep; p++) {
                float share = kept[p] * (left / sum);
                w[p] += share;
            }
        for (int p = 0; p < keep; p++) {
            float square = w[p] * w[p];
            after += square;
        }
        float scale = mode == ROUTER_L2 && after > 1e-20f ? sqrtf(before / after) : 1;
        for (int p = 0; p < keep; p++) {
            theirs.ids[r * keep + p] = id[p];
            theirs.weights[r * keep + p] = w[p] * scale;
        }
    }
}

/* ---- the public kernels, decode ------------------------------------------------------- */

static void add_up(float *importance, int by_score)
{
    for (int e = 0; e < g.e; e++) importance[e] = 0;
    for (int i = 0; i < g.rows * g.k; i++) {
        float term = by_score ? g.weights[i] : g.weights[i] * g.norms[g.ids[i]];
        importance[g.ids[i]] += term;
    }
}

/* All experts by falling importance, then rising number. */
static void order_of(int *order, const float *importance)
{
    for (int e = 0; e < g.e; e++) {
        int at = e;
        for (; at > 0 && importance[e] > importance[order[at - 1]]; at--) order[at] = order[at - 1];
        order[at] = e;
    }
}

/* Real numbers: the last expert in the pool and the first outside are as good as equal. */
static int undecided(const int *order, const float *importance, int budget)
{
    float in = importance[order[budget - 1]], out = budget < g.e ? importance[order[budget]] : 0;
    return !g.coarse && in > 0 && in != out && in - out < 1e-5f * in;
}

/* vLLM, Qwen3: the D first of all experts are the pool, routed to or not; a slot outside takes the member of least
 * loss, the more important of equals, and counts for nothing where that is the sentinel. */
static void qwen3_decode(int budget)
{
    float importance[MOST_E];
    int order[MOST_E];
    add_up(importance, 0);
    order_of(order, importance);
    theirs.skip = undecided(order, importance, budget);
    for (int i = 0; i < g.rows * g.k; i++) {
        int s = g.ids[i], best = 0, inside = budget >= g.e;
        for (int p = 0; p < budget && !inside; p++) {
            inside = order[p] == s;
            if (g.loss[s * g.e + order[p]] < g.loss[s * g.e + order[best]]) best = p;
        }
        int to = inside ? s : order[best];
        float scale = inside ? 1 : g.loss[s * g.e + to] < 1e30f ? g.coeff[s * g.e + to] : 0;
        theirs.ids[i] = to;
        theirs.weights[i] = g.weights[i] * scale;
    }
}

/* DeepSeek-V4: nothing happens if there are no more slots than places.  The pool's members have importance; an expert
 * without any stays.  The others go to the member of least loss, the first of equals, and above the limit all losses are
 * equal: the most important member gets them then, with the pair's own scalar. */
static void v4_decode(int budget, int by_score, float limit)
{
    float importance[MOST_E];
    int order[MOST_E], nothing = budget >= g.e || g.rows * g.k <= budget;
    add_up(importance, by_score);
    order_of(order, importance);
    theirs.skip = !nothing && undecided(order, importance, budget);
    for (int i = 0; i < g.rows * g.k; i++) {
        int s = g.ids[i], to = s, inside = nothing || importance[s] <= 0;
        float least = FLT_MAX;
        for (int p = 0; p < budget && !inside; p++) inside = order[p] == s;
        for (int p = 0; p < budget && !inside && importance[order[p]] > 0; p++) {
            float loss = g.loss[s * g.e + order[p]];
            loss = loss > limit ? 1e30f : loss;
            if (loss < least) {
                least = loss;
                to = order[p];
            }
        }
        theirs.ids[i] = to;
        theirs.weights[i] = g.weights[i] * (to == s ? 1.0f : g.coeff[s * g.e + to]);
    }
}

/* ---- comparison ------------------------------------------------------------------------ */

static int32_t ordered(float v)
{
    int32_t i;
    v += 0.0f;
    memcpy(&i, &v, sizeof i);
    return i < 0 ? INT32_MIN - i : i;
}

static void ck_same_routes(const int32_t *ids, const float *weights, int n, const char *what, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        int64_t apart = (int64_t)ordered(weights[i]) - ordered(theirs.weights[i]);
        ck_assert_msg(ids[i] == theirs.ids[i] && apart >= -1 && apart <= 1,
                      "%s, case %llu (E %d, K %d, rows %d, budget %d), slot %d: %d x %.9g, the runtime has %d x %.9g", what,
                      (unsigned long long)seed, g.e, g.k, g.rows, g.budget, i, (int)ids[i], (double)weights[i], (int)theirs.ids[i],
                      (double)theirs.weights[i]);
    }
}

static exf_fold_tables tables(void)
{
    return (exf_fold_tables){.coeff = g.coeff, .loss = g.loss, .norms = g.norms, .n_experts = g.e};
}

static void ck_prefill(exf_fold_prefill_options o, const char *what, uint64_t seed)
{
    int32_t ids[MOST_ROWS * MOST_K];
    float weights[MOST_ROWS * MOST_K];
    exf_fold_tables t = tables();
    exf_fold_routes in = {.ids = g.ids, .weights = g.weights, .rows = g.rows, .width = g.k},
                    out = {.ids = ids, .weights = weights, .rows = g.rows, .width = g.budget};
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_same_routes(ids, weights, g.rows * g.budget, what, seed);
}

static int ck_decode(exf_fold_decode_options o, const char *what, uint64_t seed)
{
    exf_fold_tables t = tables();
    exf_fold_routes io = {.ids = g.ids, .weights = g.weights, .rows = g.rows, .width = g.k};
    if (theirs.skip) return 0;
    o.pool = g.budget;
    ck_assert_int_eq(exf_fold_decode_cpu(&io, &t, &o), EXF_FOLD_OK);
    ck_same_routes(g.ids, g.weights, g.rows * g.k, what, seed);
    return 1;
}

/* ---- the runtimes ------------------------------------------------------------------------- */

static int power_of_two_up_to(int n)
{
    int p = 1;
    while (2 * p <= n) p *= 2;
    return p >> below(4) > 0 ? p >> below(4) : 1;
}

START_TEST(prefill_of_qwen3_in_vllm)
{
    for (uint64_t seed = 0; seed < CASES; seed++) {
        draw(seed, 1, 1);
        g.budget = power_of_two_up_to(g.k);
        if (g.budget == 0 || seed % 7 == 0) g.budget = g.k; /* P = K: the routes stay */
        qwen3_prefill(g.budget);
        ck_prefill((exf_fold_prefill_options){.rank = EXF_FOLD_BY_SCORE}, "Qwen3 prefill", seed);
    }
}
END_TEST

/* With P = K the plugins leave the routes in the router's order, of which this one's is a reordering. */
START_TEST(prefill_of_deepseek_v4)
{
    for (uint64_t seed = 0; seed < CASES; seed++) {
        int mode = (int)(seed / 2 % 3);
        draw(seed + 10000, 0, mode == ROUTER_L2);
        g.budget = 1 + below(g.k);
        v4_prefill(g.budget, mode);
        ck_prefill((exf_fold_prefill_options){.rank = EXF_FOLD_BY_SCORE, .confidence = mode == BLEND,
                                              .rescale = mode == ROUTER_L2 ? EXF_FOLD_RESCALE_L2 : EXF_FOLD_RESCALE_NONE},
                   "DeepSeek-V4 prefill", seed);
    }
}
END_TEST

/* D = 1 and D = E among them. */
static int draw_budget(uint64_t seed)
{
    return seed % 11 == 0 ? 1 : seed % 13 == 0 ? g.e : 1 + below(g.e < 24 ? g.e : 24);
}

START_TEST(decode_of_qwen3_in_vllm)
{
    int compared = 0;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        draw(seed + 20000, 1, 1);
        g.budget = draw_budget(seed);
        while (g.budget & (g.budget - 1)) g.budget &= g.budget - 1;
        qwen3_decode(g.budget);
        compared += ck_decode((exf_fold_decode_options){.candidates = EXF_FOLD_POOL_OF_ALL}, "Qwen3 decode", seed);
    }
    ck_assert_int_gt(compared, CASES - 10);
}
END_TEST

/* _i 0: vLLM, importance by norm, every third case with a limit; 1: SGLang, by score. */
START_TEST(decode_of_deepseek_v4)
{
    int compared = 0;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        float limit = _i == 0 && seed / 2 % 3 == 0 ? 0.375f : EXF_FOLD_NEVER;
        draw(seed + 30000, 0, 0);
        g.budget = draw_budget(seed);
        v4_decode(g.budget, _i, limit);
        compared += ck_decode((exf_fold_decode_options){.importance = _i ? EXF_FOLD_IMPORTANCE_SCORE : EXF_FOLD_IMPORTANCE_NORM,
                                                        .max_loss = limit, .fallback = 1, .candidates = EXF_FOLD_POOL_OF_POSITIVE},
                              _i ? "SGLang decode" : "DeepSeek-V4 decode", seed);
    }
    ck_assert_int_gt(compared, CASES - 10);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "public runtimes");
    tcase_add_test(c, prefill_of_qwen3_in_vllm);
    tcase_add_test(c, prefill_of_deepseek_v4);
    tcase_add_test(c, decode_of_qwen3_in_vllm);
    tcase_add_loop_test(c, decode_of_deepseek_v4, 0, 2);
}
