/* check_lanes.c - several lanes in one pass, over every family's golden checkpoint: they
 * are one up to the first router, and from there each is what it would be alone. */
#include "tests/support/lanes_fixtures.h"

START_TEST(lanes_without_rewriters_are_one)
{
    golden_case c;
    golden_seen alone;
    lanes_run two = {.n = 2, .probes = {0, 1}};
    golden_open(&c, golden_families[_i]);
    golden_forward(&alone, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    lanes_forward(&two, &c, 2);
    assert_same_lane(&c, &alone, &two.seen[0]);
    assert_same_lane(&c, &alone, &two.seen[1]);
    golden_free(&alone);
    lanes_free(&two);
    golden_close(&c);
}
END_TEST

/* A lane is in a pass of several what it is as the only one. */
START_TEST(a_lane_is_what_it_is_alone)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    const exf_rewriter odd = {.rewrite = rewrite_oddly}, pruned = {.self = &c.model->arch.n_experts, .retained_experts = prune},
                       corrected = {.rewrite = rewrite_oddly, .correct = correct_by_first};
    lanes_run all = {.n = 4, .rewriter = {{0}, odd, pruned, corrected}, .probes = {0, 1, 1, 1}};
    lanes_forward(&all, &c, 1);
    for (int i = 0; i < all.n; i++) {
        lanes_run one = {.n = 1, .rewriter = {all.rewriter[i]}};
        lanes_forward(&one, &c, 1);
        assert_same_lane(&c, &one.seen[0], &all.seen[i]);
        lanes_free(&one);
    }
    ck_assert_msg(memcmp(all.seen[0].logits, all.seen[1].logits, c.batch.n_tokens * (size_t)c.model->arch.vocab * sizeof(float)) !=
                      0,
                  "%s: the rewriter changes nothing", c.family);
    lanes_free(&all);
    golden_close(&c);
}
END_TEST

START_TEST(nothing_rewritten_probes_to_the_original)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    lanes_run r = {.n = 3, .rewriter = {{0}, {.rewrite = rewrite_nothing}}, .probes = {0, 1, 1}};
    lanes_forward(&r, &c, 1);
    for (int lane = 1; lane < 3; lane++)
        for (int l = 0; l < c.model->arch.n_layers; l++) {
            size_t n = c.batch.n_tokens * (size_t)c.model->arch.d_model;
            const probe_seen *p = &r.probe[lane];
            ck_assert_uint_eq(atomic_load(&p->seen[l]), c.model->arch.is_moe[l] ? c.batch.n_tokens : 0);
            if (!c.model->arch.is_moe[l]) continue;
            assert_same_bits(p->original[l], r.seen[0].routed[l], n, c.family, "the original's outputs", l);
            assert_same_bits(p->rewritten[l], r.seen[0].routed[l], n, c.family, "the probe's outputs", l);
            assert_same_bits(p->ids[l], r.seen[0].ids[l], c.batch.n_tokens * (size_t)c.model->arch.top_k, c.family,
                             "the probe's ids", l);
        }
    lanes_free(&r);
    golden_close(&c);
}
END_TEST

/* In the first MoE layer a lane still has the first one's hidden states: its probe says what it then does. */
static void assert_probe_is_the_lane(const golden_case *c, const lanes_run *r, int lane, const char *what)
{
    int l = first_moe_layer(&c->model->arch);
    size_t h = (size_t)c->model->arch.d_model, k = (size_t)c->model->arch.top_k;
    const float *probe = r->probe[lane].rewritten[l], *own = r->seen[lane].routed[l];
    assert_same_bits(r->probe[lane].ids[l], r->seen[lane].ids[l], c->batch.n_tokens * k, c->family, what, l);
    for (size_t row = 0; row < c->batch.n_tokens; row++) {
        double d = golden_distance(probe + row * h, own + row * h, h);
        ck_assert_msg(d <= 1e-5 || memcmp(probe + row * h, own + row * h, h * sizeof(float)) == 0,
                      "%s: %s: row %zu of the probe is %.1e from what the lane did", c->family, what, row, d);
    }
}

START_TEST(a_probe_says_what_the_lane_does)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    void *n = &c.model->arch.n_experts;
    lanes_run r = {.n = 6, .probes = {0, 1, 1, 1, 1, 1}};
    r.rewriter[1] = (exf_rewriter){.rewrite = rewrite_oddly};
    r.rewriter[2] = (exf_rewriter){.self = n, .retained_experts = prune};
    r.rewriter[3] = (exf_rewriter){.correct = correct_by_first};
    r.rewriter[4] = (exf_rewriter){.self = n, .rewrite = rewrite_oddly, .correct = correct_by_first};
    r.rewriter[5] = (exf_rewriter){.self = n, .retained_experts = prune, .rewrite = rewrite_oddly, .correct = correct_by_first};
    lanes_forward(&r, &c, 1);
    assert_probe_is_the_lane(&c, &r, 1, "odd routes");
    assert_probe_is_the_lane(&c, &r, 2, "pruned experts");
    assert_probe_is_the_lane(&c, &r, 3, "corrected");
    assert_probe_is_the_lane(&c, &r, 4, "odd routes, corrected");
    assert_probe_is_the_lane(&c, &r, 5, "pruned experts, odd routes, corrected");
    lanes_free(&r);
    golden_close(&c);
}
END_TEST

/* ---- every probe against all experts' outputs ------------------------------------- */

typedef struct {
    const golden_case *c;
    float *outputs[GOLDEN_LAYERS]; /* [T, E, H] */
    size_t worst_layer;
} everything;

static exf_code keep_common(void *self, const exf_common_input_block *b, exf_err *err)
{
    everything *s = self;
    size_t width = (size_t)b->n_experts * (size_t)b->d_model;
    (void)err;
    for (int i = 0; i < b->n_tokens; i++)
        memcpy(s->outputs[b->layer] + b->row[i] * width, (const float *)b->outputs + (size_t)i * width, width * sizeof(float));
    return EXF_OK;
}

/* A row of a probe: ids by the rewriter, weights as it made them of the first lane's. */
static void assert_probed_row(const everything *s, int layer, size_t row, const probe_seen *p, const float *weights)
{
    const exf_architecture *a = &s->c->model->arch;
    size_t h = (size_t)a->d_model, k = (size_t)a->top_k;
    double difference = 0, size = 0;
    for (size_t j = 0; j < h; j++) {
        double sum = 0;
        for (size_t i = 0; i < k; i++) {
            int32_t id = p->ids[layer][row * k + i];
            if (id >= 0)
                sum += (double)weights[row * k + i] * (double)s->outputs[layer][(row * (size_t)a->n_experts + (size_t)id) * h + j];
        }
        difference += (sum - (double)p->rewritten[layer][row * h + j]) * (sum - (double)p->rewritten[layer][row * h + j]);
        size += sum * sum;
    }
    ck_assert_msg(difference <= 1e-10 * size, "%s: layer %d, row %zu: the probe is %.1e from the sum of its experts", s->c->family,
                  layer, row, sqrt(difference / size));
}

START_TEST(a_probe_is_the_sum_of_its_experts)
{
    golden_case c;
    exf_err err = {.code = EXF_OK};
    probe_seen p;
    golden_seen first;
    golden_open(&c, golden_families[_i]);
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    const exf_architecture *a = &c.model->arch;
    size_t n = c.batch.n_tokens;
    everything s = {.c = &c};
    for (int l = 0; l < a->n_layers; l++) s.outputs[l] = test_memory(n * (size_t)a->n_experts * (size_t)a->d_model, 4);
    probe_open(&p, c.model, n);
    exf_observer all = {.self = &s, .common_input_tokens = 1 << 20, .common_input = keep_common},
                 probe = {.self = &p, .probe = keep_probe};
    exf_rewriter odd = {.rewrite = rewrite_oddly};
    exf_lane lanes[] = {{NULL, &all}, {&odd, &probe}};
    exf_forward_options options = {.backend = &exf_backend_cpu, .threads = 1};
    exf_forward_report report;
    ck_ok(exf_forward(c.model, &c.batch, lanes, 2, &options, &report, &err), err);
    golden_forward(&first, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    for (int l = 0; l < a->n_layers; l++) {
        if (!a->is_moe[l]) continue;
        exf_routes again = {.layer = l, .batch = &c.batch, .n_experts = a->n_experts, .top_k = a->top_k, .ids = first.ids[l],
                            .weights = first.weights[l]};
        ck_ok(rewrite_oddly(NULL, &again, &err), err);
        assert_same_bits(p.ids[l], again.ids, n * (size_t)a->top_k, c.family, "rewritten ids", l);
        for (size_t row = 0; row < n; row++) assert_probed_row(&s, l, row, &p, again.weights);
    }
    for (int l = 0; l < a->n_layers; l++) exf_mem_free(s.outputs[l]);
    golden_free(&first);
    probe_free(&p);
    golden_close(&c);
}
END_TEST

/* ---- retained experts --------------------------------------------------------------------- */

/* A router without the pruned experts, from its logits: softmax, no groups.  shift: on the logits, or NULL. */
static void route_survivors(const exf_architecture *a, const float *input, const float *router, const float *shift,
                            const unsigned char *retained, int32_t *ids, double *weights)
{
    double p[EXF_MAX_EXPERTS], sum = 0, top = -INFINITY;
    for (int e = 0; e < a->n_experts; e++) {
        p[e] = shift ? (double)shift[e] : 0;
        for (int j = 0; j < a->d_model; j++) p[e] += (double)input[j] * (double)router[e * a->d_model + j];
        if (retained[e]) top = fmax(top, p[e]);
    }
    for (int e = 0; e < a->n_experts; e++) sum += p[e] = retained[e] ? exp(p[e] - top) : 0;
    for (int k = 0; k < a->top_k; k++) {
        int best = -1;
        for (int e = 0; e < a->n_experts; e++) {
            int taken = !retained[e];
            for (int i = 0; i < k; i++) taken |= ids[i] == e;
            if (!taken && (best < 0 || p[e] > p[best])) best = e;
        }
        ids[k] = best;
        weights[k] = p[best] / sum;
    }
    double chosen = 0;
    for (int k = 0; k < a->top_k; k++) chosen += weights[k];
    for (int k = 0; k < a->top_k; k++)
        weights[k] = (a->router.renormalise ? weights[k] / (chosen + a->router.epsilon) : weights[k]) * a->router.scaling;
}

/* Puts a norm of the router's own in place of the experts', which the input has, into the rows of its matrix. */
static void take_router_norm(const golden_case *c, int layer, float *router)
{
    const exf_architecture *a = &c->model->arch;
    float *own = test_memory((size_t)a->d_model, 4), *experts = test_memory((size_t)a->d_model, 4);
    exf_err err;
    ck_ok(exf_model_read(c->model, EXF_W_ROUTER_NORM, layer, 0, own, &err), err);
    ck_ok(exf_model_read(c->model, EXF_W_FFN_NORM, layer, 0, experts, &err), err);
    for (int i = 0; i < a->n_experts * a->d_model; i++)
        router[i] *= own[i % a->d_model] / experts[i % a->d_model] * (float)a->router.input_scale;
    exf_mem_free(own);
    exf_mem_free(experts);
}

/* Multiplies weights by factors of the experts, and sorts them again. */
static void take_factors(const float *factors, int top_k, int32_t *ids, double *weights)
{
    for (int k = 0; k < top_k; k++) {
        int32_t id = ids[k];
        double w = weights[k] * (double)factors[id];
        int at = k;
        for (; at > 0 && w > weights[at - 1]; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = w;
    }
}

static void assert_routes_of_survivors(const golden_case *c, const golden_seen *s, int layer, const unsigned char *retained)
{
    const exf_architecture *a = &c->model->arch;
    size_t k = (size_t)a->top_k;
    int32_t ids[EXF_MAX_TOP_K];
    double weights[EXF_MAX_TOP_K];
    exf_err err;
    float *router = test_memory(exf_model_count(c->model, EXF_W_ROUTER, layer), 4), *shift = NULL;
    ck_ok(exf_model_read(c->model, EXF_W_ROUTER, layer, 0, router, &err), err);
    if (exf_model_copies(c->model, EXF_W_ROUTER_SHIFT, layer)) {
        shift = test_memory((size_t)a->n_experts, 4);
        ck_ok(exf_model_read(c->model, EXF_W_ROUTER_SHIFT, layer, 0, shift, &err), err);
    }
    float *factors = a->router.expert_scaled ? test_memory((size_t)a->n_experts, 4) : NULL;
    if (factors) ck_ok(exf_model_read(c->model, EXF_W_EXPERT_SCALE, layer, 0, factors, &err), err);
    if (a->residual.normed) take_router_norm(c, layer, router);
    for (size_t row = 0; row < c->batch.n_tokens; row++) {
        route_survivors(a, s->moe_input[layer] + row * (size_t)a->d_model, router, shift, retained, ids, weights);
        if (factors) take_factors(factors, a->top_k, ids, weights);
        for (size_t i = 0; i < k; i++) {
            double seen = (double)s->weights[layer][row * k + i];
            ck_assert_msg(fabs(seen - weights[i]) <= 1e-5 * weights[i], "%s: layer %d, row %zu, slot %zu: weight %g, expected %g",
                          c->family, layer, row, i, seen, weights[i]);
            if (i + 1 == k || weights[i] - weights[i + 1] > 1e-5 * weights[i]) /* no tie */
                ck_assert_msg(s->ids[layer][row * k + i] == ids[i] || (i && weights[i - 1] - weights[i] <= 1e-5 * weights[i]),
                              "%s: layer %d, row %zu, slot %zu: expert %d, expected %d", c->family, layer, row, i,
                              (int)s->ids[layer][row * k + i], (int)ids[i]);
        }
    }
    exf_mem_free(router);
    exf_mem_free(shift);
    exf_mem_free(factors);
}

/* The token decides in a hash layer, whoever survives. */
static void assert_hash_layer(const golden_case *c, const lanes_run *r, int lane, int layer)
{
    size_t slots = c->batch.n_tokens * (size_t)c->model->arch.top_k;
    assert_same_bits(r->probe[lane].ids[layer], r->seen[0].ids[layer], slots, c->family, "ids of a hash layer's probe", layer);
    if (layer != first_moe_layer(&c->model->arch)) return; /* another input, another order of weights */
    assert_same_bits(r->seen[lane].ids[layer], r->seen[0].ids[layer], slots, c->family, "a hash layer's ids", layer);
    assert_same_bits(r->seen[lane].weights[layer], r->seen[0].weights[layer], slots, c->family, "a hash layer's weights", layer);
}

static void assert_all_alive(const golden_case *c, const int32_t *ids, int layer, const unsigned char *retained, const char *who)
{
    int k = c->model->arch.top_k;
    for (size_t i = 0; i < c->batch.n_tokens * (size_t)k; i++) {
        ck_assert_msg(retained[ids[i]], "%s: layer %d, slot %zu: %s runs pruned expert %d", c->family, layer, i, who, (int)ids[i]);
        for (size_t j = i - i % (size_t)k; j < i; j++)
            ck_assert_msg(ids[j] != ids[i], "%s: layer %d, slot %zu: expert %d twice", c->family, layer, i, (int)ids[i]);
    }
}

START_TEST(pruned_experts_are_never_chosen)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    const exf_architecture *a = &c.model->arch;
    void *n = &c.model->arch.n_experts;
    lanes_run r = {.n = 3,
                   .rewriter = {{0}, {.self = n, .retained_experts = prune}, {.self = n, .retained_experts = prune_most}},
                   .probes = {0, 1, 1}};
    lanes_forward(&r, &c, 1);
    for (int lane = 1; lane < 3; lane++)
        for (int l = 0, moe = 0; l < a->n_layers; l++) {
            if (!a->is_moe[l]) continue;
            const unsigned char *retained = r.rewriter[lane].retained_experts(n, moe++);
            if (is_hashed(&c, l)) {
                assert_hash_layer(&c, &r, lane, l);
                continue;
            }
            assert_all_alive(&c, r.seen[lane].ids[l], l, retained, "the lane");
            assert_all_alive(&c, r.probe[lane].ids[l], l, retained, "the probe");
            int biased = exf_model_copies(c.model, EXF_W_ROUTER_BIAS, l) > 0;
            if (a->router.score == EXF_ROUTER_SOFTMAX && a->router.n_groups == 1 && !biased)
                assert_routes_of_survivors(&c, &r.seen[lane], l, retained);
        }
    lanes_free(&r);
    golden_close(&c);
}
END_TEST

/* ---- cost, threads, memory -------------------------------------------------------------- */

START_TEST(one_lane_costs_what_was_foretold)
{
    golden_case c;
    lanes_run one = {.n = 1};
    golden_open(&c, golden_families[_i]);
    lanes_forward(&one, &c, 1);
    double told = exf_forward_flops(&c.model->arch, &c.batch, 1);
    ck_assert_msg(fabs(one.report.flops - told) <= 1e-9 * told, "%s: %.17g operations, foretold %.17g", c.family, one.report.flops,
                  told);
    lanes_free(&one);
    golden_close(&c);
}
END_TEST

static void assert_same_probe(const golden_case *c, const probe_seen *a, const probe_seen *b)
{
    size_t n = c->batch.n_tokens * (size_t)c->model->arch.d_model;
    for (int l = 0; l < c->model->arch.n_layers; l++) {
        assert_same_bits(a->original[l], b->original[l], n, c->family, "originals", l);
        assert_same_bits(a->rewritten[l], b->rewritten[l], n, c->family, "probes", l);
    }
}

START_TEST(threads_change_no_bit)
{
    golden_case c;
    golden_open(&c, golden_families[_i]);
    void *n = &c.model->arch.n_experts;
    const exf_rewriter odd = {.rewrite = rewrite_oddly},
                       pruned = {.self = n, .retained_experts = prune, .correct = correct_by_first};
    lanes_run one = {.n = 3, .rewriter = {{0}, odd, pruned}, .probes = {0, 1, 1}},
              two = {.n = 3, .rewriter = {{0}, odd, pruned}, .probes = {0, 1, 1}};
    lanes_forward(&one, &c, 1);
    lanes_forward(&two, &c, 2);
    ck_assert_int_eq(two.report.workers, c.batch.n_sequences < 2 ? 1 : 2);
    ck_assert(one.report.flops == two.report.flops && one.report.weight_bytes == two.report.weight_bytes);
    for (int i = 0; i < 3; i++) assert_same_lane(&c, &one.seen[i], &two.seen[i]);
    for (int i = 1; i < 3; i++) assert_same_probe(&c, &one.probe[i], &two.probe[i]);
    lanes_free(&one);
    lanes_free(&two);
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    int n = golden_n_families();
    tcase_add_loop_test(t, lanes_without_rewriters_are_one, 0, n);
    tcase_add_loop_test(t, a_lane_is_what_it_is_alone, 0, n);
    tcase_add_loop_test(t, nothing_rewritten_probes_to_the_original, 0, n);
    tcase_add_loop_test(t, a_probe_says_what_the_lane_does, 0, n);
    tcase_add_loop_test(t, a_probe_is_the_sum_of_its_experts, 0, n);
    tcase_add_loop_test(t, pruned_experts_are_never_chosen, 0, n);
    tcase_add_loop_test(t, one_lane_costs_what_was_foretold, 0, n);
    tcase_add_loop_test(t, threads_change_no_bit, 0, n);
}
