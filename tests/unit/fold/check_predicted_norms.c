/* check_predicted_norms.c - folds by norms that the tables' head predicts: a rewriter beside the functions of exfold/fold.h, with
 * norms that are computed here from the formula. */
#include "tests/support/fake_device.h"
#include "tests/support/norm_head_fixtures.h"

#include "fold/fold_rewriter_internal.h"
#include "kernels/fold/fold_cpu.h"

/* The norm of an expert that the router chose for a token. */
static float norm_of(const head_case *h, size_t row, int id)
{
    size_t k = 0;
    while (k + 1 < K && h->c.ids[row * K + k] != id) k++;
    return h->norms[row * K + k];
}

/* ---- what should come out ------------------------------------------------------------------ */

static void expect_prefill(const head_case *h, const exf_fold_rewriter *f, exf_routes *r, int index)
{
    const exf_variant *v = f->v;
    exf_fold_tables t = exf_fold_rewriter_tables(f, index, f->prefill_coeff, f->prefill_loss);
    for (size_t s = 0; s < F_SEQUENCES; s++)
        for (int i = 0; i < exf_decode_schedule_prefill(&h->c.schedule, h->c.span[s].n_tokens); i++) {
            size_t row = h->c.span[s].offset + (size_t)i;
            int32_t ids[K], *to = r->ids + row * K;
            float w[K], n[K], *to_w = r->weights + row * K;
            for (int k = 0; k < K; k++) n[k] = norm_of(h, row, to[k]);
            exf_fold_routes in = {.ids = to, .weights = to_w, .rows = 1, .width = K, .norms = v->prefill_norms ? n : NULL},
                            out = {.ids = ids, .weights = w, .rows = 1, .width = v->budget ? K : v->prefill_options.keep};
            exf_fold_budget_options b = {0};
            if (v->budget) b = exf_fold_budget_of(f, index);
            if (v->budget == EXF_BUDGET_TOKEN)
                ck_assert(b.penalty == (float)(v->prefill_norms ? f->budget->predicted.lambda / f->budget->scale[index]
                                                                : f->budget->lambda / f->budget->scale[index]));
            exf_fold_status status = v->budget ? exf_fold_prefill_budget_cpu(&in, &out, NULL, &t, &b)
                                     : v->prefill_projector->apply == EXF_APPLY_JOINTLY
                                         ? exf_fold_prefill_joint_cpu(&in, &out, &t, &v->prefill_options)
                                         : exf_fold_prefill_cpu(&in, &out, &t, &v->prefill_options);
            ck_assert_int_eq(status, EXF_FOLD_OK);
            for (int k = 0; k < K; k++) {
                to[k] = k < out.width ? ids[k] : -1;
                to_w[k] = k < out.width ? w[k] : 0;
            }
        }
}

static exf_fold_status decode(const exf_fold_rewriter *f, const exf_fold_routes *io, const exf_fold_tables *t, int index,
                              const float *logits)
{
    const exf_variant *v = f->v;
    exf_fold_stand_in_options o = {.pool = v->decode_options.pool, .importance = v->decode_options.importance,
                                   .weights = v->stand_in_weights, .ridge = v->decode_options.ridge};
    exf_fold_scores scores = {.choice = logits};
    int16_t target[E];
    if (v->by_router) return exf_fold_decode_stand_ins_cpu(io, &scores, NULL, t, &o);
    if (!f->pool)
        return (v->decode_projector->apply == EXF_APPLY_JOINTLY ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu)(
            io, t, &v->decode_options);
    exf_fold_decode_options fixed = {.pool = f->pool->size, .members = f->pool->members + index * f->pool->size};
    exf_fold_pool pool;
    fixed.size = EXF_FOLD_SIZED(exf_fold_decode_options);
    ck_assert(exf_fold_choose_pool(&pool, io, t, &fixed));
    for (int i = 0; i < pool.n_union; i++)
        target[pool.expert[i]] =
            (int16_t)(i < pool.n_pool ? -1 : exf_fold_pool_likest(&pool, t->cosine + (size_t)pool.expert[i] * E));
    exf_fold_join_rows(io, target, t, EXF_FOLD_RIDGE);
    return EXF_FOLD_OK;
}

static void expect_decode(const head_case *h, const exf_fold_rewriter *f, exf_routes *r, int index)
{
    const exf_decode_schedule *s = &h->c.schedule;
    exf_fold_tables t = exf_fold_rewriter_tables(f, index, f->decode_coeff, f->decode_loss);
    for (size_t step = 0; step < s->n_steps; step++) {
        int32_t ids[F_SEQUENCES * K];
        float w[F_SEQUENCES * K], n[F_SEQUENCES * K], scores[F_SEQUENCES * E];
        int rows = (int)(s->first[step + 1] - s->first[step]);
        exf_fold_routes io = {.ids = ids, .weights = w, .rows = rows, .width = K, .norms = f->v->decode_norms ? n : NULL};
        for (int i = 0; i < rows; i++) {
            size_t row = s->row[s->first[step] + (size_t)i];
            naive_row of_router = {{0}, {0}, {0}, {0}};
            naive_scores(&of_router, h->c.logits + row * E, r->bias, E);
            for (int e = 0; e < E; e++) scores[i * E + e] = (float)of_router.choice[e];
            for (int k = 0; k < K; k++) {
                ids[i * K + k] = r->ids[row * K + (size_t)k];
                w[i * K + k] = r->weights[row * K + (size_t)k];
                n[i * K + k] = norm_of(h, row, ids[i * K + k]);
            }
        }
        ck_assert_int_eq(decode(f, &io, &t, index, scores), EXF_FOLD_OK);
        for (int i = 0; i < rows; i++) {
            size_t row = s->row[s->first[step] + (size_t)i];
            memcpy(r->ids + row * K, ids + i * K, K * sizeof *ids);
            memcpy(r->weights + row * K, w + i * K, K * sizeof *w);
        }
    }
}

/* ---- folds ----------------------------------------------------------------------------------- */

static size_t different_slots(const exf_routes *a, const exf_routes *b)
{
    size_t n = 0;
    for (size_t i = 0; i < F_TOKENS * K; i++) n += a->ids[i] != b->ids[i] || a->weights[i] != b->weights[i];
    return n;
}

static void check_layer(head_case *h, exf_fold_rewriter *f, int layer, int index)
{
    exf_err err;
    exf_routes is = f_routes(&h->c, layer), want = f_routes(&h->c, layer);
    ck_ok(show(h, f, layer, &err), err);
    for (size_t i = 0; i < F_TOKENS * K; i++) {
        double n = predicted(h, index, i / K, (int)(i % K));
        h->norms[i] = f->norms[i];
        ck_assert_msg(fabs((double)f->norms[i] - n) <= 1e-6 * n, "slot %zu: norm %.9g, expected %.9g", i, (double)f->norms[i], n);
    }
    if (f->v->prefill != EXF_PREFILL_NONE) expect_prefill(h, f, &want, index);
    if (f->v->decode != EXF_DECODE_NONE) expect_decode(h, f, &want, index);
    for (int twice = 0; twice < 2; twice++) { /* a probe's routes, and then the lane's own */
        exf_routes again = f_routes(&h->c, layer);
        again.probe = twice == 0;
        f_rewrite(f, &again);
        ck_assert_msg(different_slots(&again, &want) == 0, "%s: layer %d", f->v->name, layer);
        ck_assert_uint_gt(different_slots(&again, &is), 0);
        f_free_routes(&again);
    }
    f_free_routes(&is);
    f_free_routes(&want);
}

START_TEST(routes_are_folded_by_the_norms_of_their_token)
{
    static const int splits[] = {0, 2, 1000};
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
        head_case h;
        exf_variant v;
        open_case(&h, splits[s]);
        exf_fold_rewriter *f = f_folder(&h.c, &v, texts[_i]);
        ck_assert(exf_fold_rewriter_callbacks(f)->routed);
        if (splits[s] < 1000 || v.prefill != EXF_PREFILL_NONE) {
            check_layer(&h, f, 1, 0);
            check_layer(&h, f, 3, 1);
        }
        exf_fold_rewriter_free(f);
        close_case(&h);
    }
}
END_TEST

/* A head that knows nothing predicts rms: then all is as by mean norms where these are rms. */
START_TEST(a_head_of_means_folds_as_the_mean)
{
    exf_err err;
    head_case h;
    exf_variant v, by_mean;
    char mean[EXF_VARIANT_NAME_LEN];
    const char *at = strstr(texts[_i], "norms=predicted");
    snprintf(mean, sizeof mean, "%.*snorms=mean%s", (int)(at - texts[_i]), texts[_i], at + strlen("norms=predicted"));
    open_case(&h, 0);
    memset(h.c.tables.norm_head.theta, 0, F_TABLES * E * FEATURES * sizeof(float));
    for (int i = 0; i < F_BUDGETS; i++) h.c.tables.budget[i].predicted.lambda = h.c.tables.budget[i].lambda;
    for (size_t i = 0; i < F_TABLES * E; i++) {
        h.c.tables.rms[i] = h.c.tables.expert_norms[i] = (float)(1 << i % 3);
        h.c.tables.norm_head.theta[i * FEATURES] = logf(h.c.tables.rms[i]);
    }
    exf_fold_rewriter *f = f_folder(&h.c, &v, texts[_i]), *g = f_folder(&h.c, &by_mean, mean);
    exf_routes a = f_routes(&h.c, 3), b = f_routes(&h.c, 3);
    ck_ok(show(&h, f, 3, &err), err);
    for (size_t i = 0; i < F_TOKENS * K; i++) f->norms[i] = rintf(f->norms[i]); /* exp and log round */
    f_rewrite(f, &a);
    f_rewrite(g, &b);
    if (!strstr(mean, "predicted")) ck_assert_msg(different_slots(&a, &b) == 0, "%s", mean);
    f_free_routes(&a);
    f_free_routes(&b);
    exf_fold_rewriter_free(f);
    exf_fold_rewriter_free(g);
    close_case(&h);
}
END_TEST

/* The fake device has the host's functions: what is compared is which norms get where. */
START_TEST(a_device_folds_by_the_same_norms)
{
    exf_err err;
    const exf_backend *b = fake_device((uint64_t)1 << 40);
    exf_queue *q;
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &err), err);
    device_folds_by_predicted_norms(b, q, texts[_i]);
    b->close(q);
}
END_TEST

START_TEST(a_device_refuses_what_is_no_norm)
{
    exf_err err;
    const exf_backend *b = fake_device((uint64_t)1 << 40);
    exf_queue *q;
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &err), err);
    device_refuses_what_is_no_norm(b, q);
    b->close(q);
}
END_TEST

START_TEST(what_cannot_be_predicted_is_refused)
{
    exf_err err;
    head_case h;
    exf_variant v;
    exf_fold_rewriter *f;
    open_case(&h, 0);
    f = f_folder(&h.c, &v, "P2:norms=predicted");
    h.c.tables.norm_head.theta[((size_t)E + (size_t)h.c.ids[2 * K + 1]) * FEATURES] = 100;
    ck_assert_int_eq(show(&h, f, 3, &err), EXF_NUMERIC);
    ck_assert_msg(strstr(err.msg, "variant \"P2:norms=predicted\": layer 3, token ") && strstr(err.msg, "predicts inf for expert"),
                  "%s", err.msg);
    ck_ok(show(&h, f, 2, &err), err); /* no tables, nothing predicted */
    exf_fold_rewriter_free(f);
    f = f_folder(&h.c, &v, "D3:norms=predicted,fold=random");
    ck_assert_int_eq(exf_fold_rewriter_callbacks(f)->device_open(f, NULL, &err), EXF_USAGE);
    ck_assert_str_eq(err.msg, "variant \"D3:norms=predicted,fold=random\": folds by predicted norms on the CPU alone; set "
                              "runtime.backend to cpu");
    exf_fold_rewriter_free(f);
    h.c.tables.budget[10].predicted.mean = 0; /* 2 by stream */
    ck_ok(exf_variant_parse(&v, "P2:norms=predicted,budget=token", &err), err);
    ck_assert_int_eq(exf_fold_rewriter_new(&f, &v, &h.c.tables, &h.c.arch, &h.c.schedule, &err), EXF_USAGE);
    ck_assert_str_eq(err.msg, "variant \"P2:norms=predicted,budget=token\": the budget of 2 experts per token by \"stream\" has no "
                              "lambda by predicted norms; calibrate again with calibrate.route_sample above 0");
    ck_ok(exf_variant_parse(&v, "P2:norms=predicted", &err), err);
    exf_norm_head_free(&h.c.tables.norm_head);
    memset(&h.c.tables.norm_head, 0, sizeof h.c.tables.norm_head);
    ck_assert_int_eq(exf_fold_rewriter_new(&f, &v, &h.c.tables, &h.c.arch, &h.c.schedule, &err), EXF_USAGE);
    ck_assert_str_eq(err.msg, "variant \"P2:norms=predicted\": the tables hold no norm head; set calibrate.norm_head and calibrate "
                              "again");
    close_case(&h);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "all");
    tcase_add_loop_test(c, a_device_folds_by_the_same_norms, 0, TEXTS);
    tcase_add_test(c, a_device_refuses_what_is_no_norm);
    tcase_add_loop_test(c, routes_are_folded_by_the_norms_of_their_token, 0, TEXTS);
    tcase_add_loop_test(c, a_head_of_means_folds_as_the_mean, 0, TEXTS);
    tcase_add_test(c, what_cannot_be_predicted_is_refused);
}
