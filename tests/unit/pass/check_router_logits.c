/* check_router_logits.c - the logits that a rewriter is shown are those that its lane's routes, or a
 * probe's, came from: the router's rules give the same ids and weights from them again.  And what is shown before routes are
 * rewritten is what the router read and chose, on a device too. */
#include "tests/support/fake_device.h"
#include "tests/support/lanes_fixtures.h"

/* What a rewriter checks, and how many rows it checked. */
typedef struct {
    const golden_case *c;
    atomic_size_t rows, probes;
} watched;

/* factors: [E], filled where the model's router has these. */
static exf_router_rules rules_of(const golden_case *c, int layer, const float *bias, float *factors)
{
    const exf_architecture *a = &c->model->arch;
    exf_err err;
    int scaled = exf_model_copies(c->model, EXF_W_EXPERT_SCALE, layer) > 0;
    if (scaled) ck_ok(exf_model_read(c->model, EXF_W_EXPERT_SCALE, layer, 0, factors, &err), err);
    const exf_router_spec *r = &a->router;
    return (exf_router_rules){.score = r->score, .n_experts = a->n_experts, .top_k = a->top_k, .n_groups = r->n_groups,
                              .top_groups = r->top_groups, .group_top2 = r->group_score == EXF_GROUP_TOP2_SUM,
                              .renormalise = r->renormalise, .epsilon = r->epsilon, .scaling = r->scaling, .bias = bias,
                              .expert_scale = scaled ? factors : NULL};
}

/* Routes the logits again, then does something, so that the lane parts from the others. */
static exf_code route_again(void *self, exf_routes *r, exf_err *err)
{
    watched *w = self;
    float factors[EXF_MAX_EXPERTS];
    exf_router_rules rules = rules_of(w->c, r->layer, r->bias, factors);
    int32_t ids[16];
    float weights[16];
    double scratch[3 * EXF_MAX_EXPERTS];
    size_t k = (size_t)r->top_k;
    ck_assert_ptr_nonnull(r->logits);
    for (size_t row = 0; row < r->batch->n_tokens && !r->by_token; row++) {
        exf_router_cpu(NULL, ids, weights, r->logits + row * (size_t)r->n_experts, NULL, 1, &rules, scratch);
        ck_assert_msg(memcmp(ids, r->ids + row * k, k * sizeof *ids) == 0 &&
                          memcmp(weights, r->weights + row * k, k * sizeof *weights) == 0,
                      "%s: layer %d, row %zu: other routes (probe %d)", w->c->family, r->layer, row, r->probe);
        atomic_fetch_add(r->probe ? &w->probes : &w->rows, 1);
    }
    return rewrite_oddly(NULL, r, err);
}

/* The same in the memory of the fake device, which is the host's. */
static exf_code route_again_there(void *self, const exf_routes *d, exf_err *err)
{
    exf_routes r = {.layer = d->layer, .batch = d->batch, .n_experts = d->n_experts, .top_k = d->top_k, .probe = d->probe,
                    .by_token = d->by_token, .ids = d->ids, .weights = d->weights, .logits = d->logits, .bias = d->bias};
    return route_again(self, &r, err);
}

static exf_code sees_none(void *self, exf_routes *r, exf_err *err)
{
    ck_assert_ptr_null(r->logits);
    return rewrite_nothing(self, r, err);
}

static size_t scored_layers(const golden_case *c)
{
    size_t n = 0;
    for (int l = 0; l < c->model->arch.n_layers; l++) n += c->model->arch.is_moe[l] && !is_hashed(c, l);
    return n;
}

/* Lanes that want logits, one that prunes between them and one that wants none; `there` of the first two are rewritten in GPU
 * memory. */
static void run_lanes(const char *family, const exf_backend *b, int there)
{
    golden_case c;
    golden_open(&c, family);
    watched w[2] = {{.c = &c}, {.c = &c}};
    lanes_run r = {.n = 5, .backend = b, .probes = {0, 1, 1, 0, 1}};
    r.rewriter[1] = (exf_rewriter){.self = &w[0], .rewrite = route_again, .wants_logits = 1};
    r.rewriter[2] = (exf_rewriter){.self = &c.model->arch.n_experts, .retained_experts = prune};
    r.rewriter[3] = (exf_rewriter){.rewrite = sees_none};
    r.rewriter[4] = (exf_rewriter){.self = &w[1], .rewrite = route_again, .wants_logits = 1};
    for (int i = 0; i < there; i++) r.rewriter[i ? 4 : 1].device_rewrite = route_again_there;
    lanes_forward(&r, &c, 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(w[i].rows, scored_layers(&c) * c.batch.n_tokens);
        ck_assert_uint_eq(w[i].probes, scored_layers(&c) * c.batch.n_tokens);
    }
    lanes_free(&r);
    golden_close(&c);
}

START_TEST(routes_come_from_the_logits)
{
    run_lanes(golden_families[_i], NULL, 0);
}
END_TEST

START_TEST(routes_come_from_the_logits_on_a_device)
{
    for (int there = 0; there <= 2; there++) run_lanes(golden_families[_i], fake_device((uint64_t)1 << 40), there);
}
END_TEST

START_TEST(one_lane_has_its_own)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    watched w = {.c = &c};
    lanes_run r = {.n = 1};
    r.rewriter[0] = (exf_rewriter){.self = &w, .rewrite = route_again, .wants_logits = 1};
    lanes_forward(&r, &c, 2);
    ck_assert_uint_eq(w.rows, scored_layers(&c) * c.batch.n_tokens);
    lanes_free(&r);
    golden_close(&c);
}
END_TEST

/* ---- what is shown before routes are rewritten ------------------------------------------------ */

enum { SHOWN_ROWS = 1024 };
typedef struct {
    const golden_case *c;
    int on_device;
    float *square[GOLDEN_LAYERS]; /* [SHOWN_ROWS] squares of what the router read; 0: not shown yet */
    atomic_size_t rewritten;
} shown;

/* Keeps the squares, and routes the logits again. */
static void keep_shown(shown *s, const exf_input_block *b)
{
    float factors[EXF_MAX_EXPERTS];
    exf_router_rules rules = rules_of(s->c, b->layer, NULL, factors);
    size_t k = (size_t)b->top_k, h = (size_t)b->d_model;
    double scratch[3 * EXF_MAX_EXPERTS];
    for (size_t t = 0; t < (size_t)b->n_tokens; t++) {
        float *to = &s->square[b->layer][b->row + t];
        int32_t ids[16];
        float weights[16];
        *to = 0;
        for (size_t i = 0; i < h; i++) *to += b->moe_input[t * h + i] * b->moe_input[t * h + i];
        if (is_hashed(s->c, b->layer) || exf_model_copies(s->c->model, EXF_W_ROUTER_BIAS, b->layer)) continue;
        exf_router_cpu(NULL, ids, weights, b->logits + t * (size_t)b->n_experts, NULL, 1, &rules, scratch);
        ck_assert_msg(memcmp(ids, b->ids + t * k, k * sizeof *ids) == 0 &&
                          memcmp(weights, b->weights + t * k, k * sizeof *weights) == 0,
                      "%s: layer %d, row %zu: other routes", s->c->family, b->layer, b->row + t);
    }
}

/* The fake device's memory is the host's. */
static exf_code show(void *self, const exf_input_block *b, exf_err *err)
{
    shown *s = self;
    (void)err;
    ck_assert(s->on_device == (b->q != NULL) && !b->split);
    keep_shown(s, b);
    return EXF_OK;
}

/* All rows were shown, since the routes were rewritten last. */
static exf_code rewrite_shown(void *self, exf_routes *r, exf_err *err)
{
    shown *s = self;
    for (size_t row = 0; row < r->batch->n_tokens; row++)
        ck_assert_msg(s->square[r->layer][row] > 0, "%s: layer %d, row %zu", s->c->family, r->layer, row);
    atomic_fetch_add(&s->rewritten, 1);
    return rewrite_oddly(NULL, r, err);
}

static void run_shown(shown *s, const golden_case *c, const exf_backend *b)
{
    lanes_run r = {.n = 2, .backend = b};
    *s = (shown){.c = c, .on_device = b != NULL};
    ck_assert_uint_le(c->batch.n_tokens, SHOWN_ROWS);
    for (int l = 0; l < GOLDEN_LAYERS; l++) s->square[l] = test_memory(SHOWN_ROWS, 4);
    r.rewriter[1] = (exf_rewriter){.self = s, .rewrite = rewrite_shown, .routed = show};
    lanes_forward(&r, c, 1);
    ck_assert_uint_gt(s->rewritten, 0);
    lanes_free(&r);
}

START_TEST(a_device_shows_what_the_host_does)
{
    golden_case c;
    shown cpu, fake;
    golden_open(&c, golden_families[_i]);
    run_shown(&cpu, &c, NULL);
    run_shown(&fake, &c, fake_device((uint64_t)1 << 40));
    ck_assert_uint_eq(cpu.rewritten, fake.rewritten);
    for (int l = 0; l < GOLDEN_LAYERS; l++) {
        for (size_t row = 0; row < c.batch.n_tokens; row++)
            ck_assert_msg(fabsf(cpu.square[l][row] - fake.square[l][row]) <= 1e-3f * cpu.square[l][row],
                          "%s: layer %d, row %zu: %g, on the host %g", c.family, l, row, (double)fake.square[l][row],
                          (double)cpu.square[l][row]);
        exf_mem_free(cpu.square[l]);
        exf_mem_free(fake.square[l]);
    }
    golden_close(&c);
}
END_TEST

START_TEST(plans_count_them)
{
    exf_rewriter wants = {.rewrite = sees_none, .wants_logits = 1};
    exf_lane lanes[2] = {{NULL, NULL}, {&wants, NULL}};
    exf_demand one = exf_demand_of(&lanes[1], 1, &exf_backend_cpu), both = exf_demand_of(lanes, 2, &exf_backend_cpu),
               none = exf_demand_of(lanes, 1, &exf_backend_cpu);
    ck_assert_uint_eq(exf_demand_logits_bytes(&none, 10, 16), 0);
    ck_assert_uint_eq(exf_demand_logits_bytes(&one, 10, 16), 10 * 16 * 4);
    ck_assert_uint_eq(exf_demand_logits_bytes(&both, 10, 16), 2 * 10 * 16 * 4);
    wants.device_rewrite = route_again_there;
    both = exf_demand_of(lanes, 2, fake_device((uint64_t)1 << 40));
    ck_assert_uint_eq(exf_demand_logits_bytes(&both, 10, 16), 0);
    ck_assert_int_eq(both.device_logits, 2);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    int n = golden_n_families();
    tcase_add_loop_test(t, routes_come_from_the_logits, 0, n);
    tcase_add_loop_test(t, routes_come_from_the_logits_on_a_device, 0, n);
    tcase_add_loop_test(t, one_lane_has_its_own, 0, n);
    tcase_add_loop_test(t, a_device_shows_what_the_host_does, 0, n);
    tcase_add_test(t, plans_count_them);
}
