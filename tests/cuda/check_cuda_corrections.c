/* check_cuda_corrections.c - corrections on the GPU beside the CPU's: the same bits where every
 * sum is exact and where no product with a basis is taken, else within the bound of
 * kernels/fold/correction.h, at shapes made from the kernels' constants; prefill positions,
 * slots without an expert, rows that were not rewritten, a whole variant on blocks that span
 * sequences. */
#include "fold/fold_rewriter.h"
#include "kernels/fold/correction.h"
#include "tests/support/fold_fixtures.h"
#include "tests/support/pairwise.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

static exf_err e;

enum { TOKENS, EXPERTS, TOP_K, KEEP, HIDDEN, RANK, DIAGONAL, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 33},    {"experts", 3, 64}, {"top-k", 1, 16},  {"kept", 1, 16},
                                       {"hidden", 1, 513}, {"rank", 0, 17},    {"diagonal", 0, 1}};

static const boundary boundaries[] = {
    {"fold/correction_cuda.cu", "LANES", TOP_K, 16},
    {"fold/correction_cuda.cu", "i >= kept", KEEP, 2},
    {"fold/correction_cuda.cu", "LANES", KEEP, 16},
    {"fold/correction_cuda.cu", "THREADS", TOKENS, 256 / 16}, /* of 16 lanes each */
    {"fold/correction_cuda.cu", "WARPS", TOKENS, 8},
    {"fold/correction_cuda.cu", "h % 4 == 0", HIDDEN, 4},
    {"fold/correction_cuda.cu", "STEP", HIDDEN, 8},
    {"fold/correction_cuda.cu", "SLAB", HIDDEN, 256},
    {"fold/correction_cuda.cu", "SLAB", HIDDEN, 2 * 256},
    {"fold/correction_cuda.cu", "if (t->rank)", RANK, 1},
    {"fold/correction_cuda.cu", "#pragma unroll 4", RANK, 4},
    {"fold/correction_cuda.cu", "COLUMNS", RANK, 8},
    {"fold/correction_cuda.cu", "COLUMNS", RANK, 2 * 8},
};

static int is_valid(const shape *s)
{
    return s->at[TOP_K] <= s->at[EXPERTS] && s->at[KEEP] <= s->at[TOP_K];
}

static pairwise cases;

static const exf_fold_rank orders[] = {EXF_FOLD_BY_SCORE_NORM, EXF_FOLD_BY_SCORE, EXF_FOLD_BY_NORM};

/* One layer on the host: tables, a call, what is corrected. */
typedef struct {
    exf_correction_tables t;
    exf_correction_call c;
    float *coeff, *loss, *norms, *diagonal, *basis, *matrix, *outputs, *weights, *routed;
    int32_t *pair, *ids, *topk_ids;
    unsigned char *prefill;
} layer_here;

enum { PAIRS = 60, FIRST_PAIR = 1000 };

/* whole: small integers, so that every product and sum is exact. */
static float *numbers(size_t n, uint64_t seed, int whole)
{
    float *x = test_memory(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = whole ? (float)((int)(exf_rng_u64(seed, 3, i) % 5) - 2) : of_bf16(to_bf16(real_at(seed, i, 1)));
    return x;
}

/* Distinct experts; every ninth row has slots without one. */
static void fill_routes(layer_here *l, int n_experts)
{
    int k = l->c.top_k;
    for (int t = 0; t < l->c.n_tokens; t++)
        for (int i = 0; i < k; i++) {
            int at = t * k + i;
            l->ids[at] = (int32_t)((exf_rng_u64(5, 1, (uint64_t)t) + (uint64_t)i) % (uint64_t)n_experts);
            if (t % 9 == 8 && i % 3 == 1) l->ids[at] = -1;
            l->topk_ids[at] = i < l->c.keep ? 0 : -1; /* who is kept does not matter, that the others are not does */
            if (t % 7 == 6) l->topk_ids[at] = 0;      /* a row that was not rewritten */
        }
}

static void fill_tables(layer_here *l, int n_experts, int with_pairs)
{
    size_t cells = (size_t)n_experts * (size_t)n_experts;
    for (size_t i = 0; i < cells; i++) {
        l->loss[i] = i % 7 == 3 ? EXF_FOLD_NEVER : (float)(exf_rng_u64(6, 2, i) % 16) / 16; /* ties, too */
        l->pair[i] = with_pairs && i % 3 != 1 ? FIRST_PAIR + (int32_t)exf_rng_below(PAIRS, 6, 4, i) : -1;
    }
}

static layer_here layer_new(const shape *s, int whole)
{
    int n_experts = s->at[EXPERTS], rank = s->at[RANK], diagonal = s->at[DIAGONAL];
    size_t n = (size_t)s->at[TOKENS], k = (size_t)s->at[TOP_K], h = (size_t)s->at[HIDDEN],
           cells = (size_t)n_experts * (size_t)n_experts;
    layer_here l = {.c = {.n_tokens = (int)n,
                          .top_k = (int)k,
                          .d_model = (int)h,
                          .keep = s->at[KEEP],
                          .by = orders[(s->at[TOKENS] + rank) % 3],
                          .max_loss = 0.875f}};
    l.coeff = numbers(cells, 1, whole);
    l.loss = test_memory(cells, sizeof *l.loss);
    l.pair = test_memory(cells, sizeof *l.pair);
    l.norms = numbers((size_t)n_experts, 2, whole);
    l.ids = test_memory(n * k, sizeof *l.ids);
    l.topk_ids = test_memory(n * k, sizeof *l.topk_ids);
    l.weights = numbers(n * k, 3, whole);
    l.outputs = numbers(n * k * h, 4, whole);
    l.routed = numbers(n * h, 5, whole);
    l.prefill = test_memory(n, 1);
    for (size_t i = 0; i < n; i++) l.prefill[i] = i % 5 != 4;
    fill_routes(&l, n_experts);
    fill_tables(&l, n_experts, rank || diagonal);
    l.diagonal = diagonal ? numbers(PAIRS * h, 6, whole) : NULL;
    l.basis = rank ? numbers((size_t)rank * h, 7, whole) : NULL;
    l.matrix = rank ? numbers(PAIRS * (size_t)rank * h, 8, whole) : NULL;
    l.t = (exf_correction_tables){.n_experts = n_experts,
                                  .coeff = l.coeff,
                                  .loss = l.loss,
                                  .norms = l.norms,
                                  .pair = l.pair,
                                  .first = FIRST_PAIR,
                                  .diagonal = l.diagonal,
                                  .basis = l.basis,
                                  .c = l.matrix,
                                  .rank = rank,
                                  .scalar = rank > 0};
    l.c.outputs = exf_f32(l.outputs);
    l.c.router_ids = l.ids;
    l.c.router_weights = l.weights;
    l.c.topk_ids = l.topk_ids;
    l.c.prefill = l.prefill;
    return l;
}

static void layer_free(layer_here *l)
{
    void *all[] = {l->coeff,   l->loss,   l->pair,    l->norms,    l->ids,   l->topk_ids, l->weights,
                   l->outputs, l->routed, l->prefill, l->diagonal, l->basis, l->matrix};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
}

/* ---- the same layer on the GPU ------------------------------------------------------------------- */

enum { MOST = 16 };
typedef struct {
    void *p[MOST];
    int n;
} held;

static void *put(held *a, const void *host, size_t bytes)
{
    ck_assert_int_lt(a->n, MOST);
    return host ? a->p[a->n++] = device_put(&d, host, bytes ? bytes : 1) : NULL;
}

static void *put_outputs(held *a, const layer_here *l, size_t n, int rounded)
{
    uint16_t *half = test_memory(n, 2);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(l->outputs[i]);
    void *p = rounded ? put(a, half, n * 2) : put(a, l->outputs, n * 4);
    exf_mem_free(half);
    return p;
}

/* The corrected rows; the caller frees. */
static float *on_gpu(const layer_here *l, int rounded)
{
    held a = {.n = 0};
    exf_correction_tables t = l->t;
    exf_correction_call c = l->c;
    size_t cells = (size_t)t.n_experts * (size_t)t.n_experts, n = (size_t)c.n_tokens, slots = n * (size_t)c.top_k,
           h = (size_t)c.d_model;
    t.coeff = put(&a, l->coeff, cells * 4);
    t.loss = put(&a, l->loss, cells * 4);
    t.pair = put(&a, l->pair, cells * 4);
    t.norms = put(&a, l->norms, (size_t)t.n_experts * 4);
    t.diagonal = put(&a, l->diagonal, PAIRS * h * 4);
    t.basis = put(&a, l->basis, (size_t)t.rank * h * 4);
    t.c = put(&a, l->matrix, PAIRS * (size_t)t.rank * h * 4);
    c.outputs = (exf_matrix){put_outputs(&a, l, slots * h, rounded), rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32};
    c.router_ids = put(&a, l->ids, slots * 4);
    c.router_weights = put(&a, l->weights, slots * 4);
    c.topk_ids = put(&a, l->topk_ids, slots * 4);
    c.prefill = put(&a, c.prefill, n);
    a.p[a.n++] = c.workspace = device_put(&d, NULL, exf_correction_workspace(c.n_tokens, c.top_k, t.rank));
    float *routed = put(&a, l->routed, n * h * 4);
    d.b->gpu->correct_routes(d.q, routed, &t, &c);
    float *out = device_get(&d, routed, n * h * 4);
    for (int i = 0; i < a.n; i++) d.b->free(a.p[i]);
    return out;
}

static void compare(const layer_here *l, const float *got, double bound, const char *what)
{
    size_t n = (size_t)l->c.n_tokens * (size_t)l->c.d_model, changed = 0;
    float *want = test_memory(n, sizeof *want);
    memcpy(want, l->routed, n * sizeof *want);
    exf_correct_routes_cpu(want, &l->t, &l->c);
    for (size_t i = 0; i < n; i++) {
        changed += want[i] != l->routed[i];
        if (!(fabs((double)got[i] - (double)want[i]) <= bound * (1 + fabs((double)want[i]))))
            ck_abort_msg("%s: row %zu, column %zu: %.9g, expected %.9g", what, i / (size_t)l->c.d_model,
                         i % (size_t)l->c.d_model, (double)got[i], (double)want[i]);
    }
    ck_assert_msg(changed || l->c.n_tokens < 15 || l->c.keep == l->c.top_k, "%s: nothing was corrected", what);
    exf_mem_free(want);
}

static void check_layer(const shape *s, int whole, double bound)
{
    layer_here l = layer_new(s, whole);
    for (int rounded = 0; rounded < 2; rounded++)
        for (int all = 0; all < 2; all++) {
            char what[320];
            snprintf(what, sizeof what, "%s%s, %s", rounded ? "bfloat16" : "float32", all ? ", all prefill" : "",
                     pairwise_name(dimensions, DIMENSIONS, s));
            l.c.prefill = all ? NULL : l.prefill;
            float *got = on_gpu(&l, rounded), *again = on_gpu(&l, rounded);
            ck_assert_mem_eq(got, again, (size_t)l.c.n_tokens * (size_t)l.c.d_model * sizeof *got);
            compare(&l, got, bound, what);
            exf_mem_free(got);
            exf_mem_free(again);
        }
    layer_free(&l);
}

/* Integers from -2 to 2: z of 513 columns is at most 2052, and sums of 17 terms of 15 routes stay below 2^24. */
START_TEST(integers_are_exact)
{
    check_layer(&cases.shapes[_i], 1, 0);
}
END_TEST

/* The CPU's bits where there is no basis.  Else the bound on z (correction.h) is 1e-4 at 513 columns of random signs, and what is
 * seen is a fiftieth of it. */
START_TEST(reals_are_near)
{
    check_layer(&cases.shapes[_i], 0, cases.shapes[_i].at[RANK] ? 1e-4 : 0);
}
END_TEST

START_TEST(no_token_is_nothing_to_do)
{
    exf_correction_tables t = {.n_experts = 3};
    exf_correction_call c = {.top_k = 2, .d_model = 8, .keep = 1};
    d.b->gpu->correct_routes(d.q, NULL, &t, &c);
    ck_ok(d.b->finish(d.q, &e), e);
}
END_TEST

/* ---- a whole variant ------------------------------------------------------------------------------- */

static const char *const texts[] = {"P1:projector=diagonal", "P2:projector=diagonal,max_loss=0.4",
                                    "P2:projector=lowrank3,rank=score"};

/* A layer's rows after the variant's corrections, in blocks of `piece` tokens on the GPU, or 0: by sequences on the host. */
static float *corrected(const fold_case *c, exf_fold_rewriter *f, int layer, int piece)
{
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    exf_routes after = f_routes(c, layer);
    size_t k = (size_t)c->arch.top_k, slots = F_TOKENS * k, n = F_TOKENS * F_H;
    float *outputs = naive_numbers(slots * F_H, 81, 1), *routed = naive_numbers(n, 82, 1);
    held a = {.n = 0};
    f_rewrite(f, &after);
    int32_t *ids = put(&a, c->ids, slots * 4), *made = put(&a, after.ids, slots * 4);
    float *weights = put(&a, c->weights, slots * 4), *there = put(&a, routed, n * 4), *out = put(&a, outputs, slots * F_H * 4);
    for (int at = 0; piece && at < F_TOKENS; at += piece) {
        size_t slot = (size_t)at * k;
        exf_moe_block b = {.layer = layer,
                              .batch = &c->batch,
                              .row = (size_t)at,
                              .n_tokens = F_TOKENS - at < piece ? F_TOKENS - at : piece,
                              .n_experts = c->arch.n_experts,
                              .top_k = (int)k,
                              .d_model = F_H,
                              .q = d.q,
                              .expert_outputs = out + slot * F_H,
                              .router_ids = ids + slot,
                              .router_weights = weights + slot,
                              .topk_ids = made + slot};
        ck_ok(w->correct(w->self, &b, there + at * F_H, &e), e);
    }
    for (size_t s = 0; !piece && s < F_SEQUENCES; s++) {
        size_t row = c->span[s].offset;
        exf_moe_block b = {.layer = layer,
                           .sequence = s,
                           .row = row,
                           .n_tokens = c->span[s].n_tokens,
                           .n_experts = c->arch.n_experts,
                           .top_k = (int)k,
                           .d_model = F_H,
                           .router_ids = c->ids + row * k,
                           .router_weights = c->weights + row * k,
                           .topk_ids = after.ids + row * k,
                           .expert_outputs = outputs + row * k * F_H};
        ck_ok(w->correct(w->self, &b, routed + row * F_H, &e), e);
    }
    if (piece) {
        exf_mem_free(routed);
        routed = device_get(&d, there, n * 4);
    }
    for (int i = 0; i < a.n; i++) d.b->free(a.p[i]);
    exf_mem_free(outputs);
    f_free_routes(&after);
    return routed;
}

START_TEST(a_variant_is_the_hosts)
{
    static const int splits[] = {0, 2, 40}, pieces[] = {F_TOKENS, 17};
    fold_case c;
    fold_open(&c, 8, 4, splits[_i], 1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        exf_variant v;
        exf_fold_rewriter *f = f_folder(&c, &v, texts[i]);
        const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
        ck_ok(w->device_open(w->self, d.b, &e), e);
        for (int layer = 1; layer < 4; layer++)
            for (int p = 0; p < 2; p++) {
                float *want = corrected(&c, f, layer, 0), *got = corrected(&c, f, layer, pieces[p]);
                for (size_t at = 0; at < F_TOKENS * F_H; at++)
                    ck_assert_msg(fabs((double)got[at] - (double)want[at]) <= 1e-5 * (1 + fabs((double)want[at])),
                                  "%s: layer %d, row %zu: %.9g, expected %.9g", texts[i], layer, at / F_H, (double)got[at],
                                  (double)want[at]);
                exf_mem_free(want);
                exf_mem_free(got);
            }
        exf_fold_rewriter_free(f);
    }
    fold_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    pairwise_shapes(&cases, "corrections", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    tcase_add_unchecked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, integers_are_exact, 0, cases.n_shapes);
    tcase_add_loop_test(t, reals_are_near, 0, cases.n_shapes);
    tcase_add_test(t, no_token_is_nothing_to_do);
    tcase_add_loop_test(t, a_variant_is_the_hosts, 0, 3);
}
