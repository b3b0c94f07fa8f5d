/* check_frontier.c - validate/frontier and its pictures: what is swept, what is beaten, and
 * a small validation drawn to the byte (tests/golden/frontier). */
#include "tests/support/validation_fixtures.h"

#include "base/mem.h"
#include "run/validation.h"
#include "validate/frontier.h"

#include <stdlib.h>

/* ---- what is swept ------------------------------------------------------------------- */

static void sweeps(int n_experts, int top_k, int joint, const char *names)
{
    exf_err e;
    exf_architecture a = {.n_experts = n_experts, .top_k = top_k};
    float value = 0;
    exf_tables t = {.cosine = joint ? &value : NULL, .rms = joint ? &value : NULL};
    exf_variant *v;
    exf_text seen = {0};
    size_t n;
    ck_ok(exf_frontier_variants(&v, &n, &a, &t, NULL, &e), e);
    for (size_t i = 0; i < n; i++) {
        exf_text_appendf(&seen, "%s%s", i ? " " : "", v[i].name);
        ck_ok(exf_variant_check(&v[i], n_experts, top_k, &e), e);
        for (size_t j = 0; j < i; j++)
            ck_assert_msg(strcmp(v[i].name, v[j].name) != 0, "%d experts, top-%d: %s stands twice", n_experts, top_k, v[i].name);
    }
    if (names) ck_assert_str_eq(seen.s ? seen.s : "", names);
    exf_mem_free(v);
    exf_text_free(&seen);
}

START_TEST(sweeps_of_budgets)
{
    sweeps(16, 4, 0, "P3 P2 P1 D12 D8 D6 D4 P3+D12 P2+D8");
    sweeps(
        16, 4, 1,
        "P3 P3:projector=joint P2 P2:projector=joint P1 P1:projector=joint "
        "D12 D12:rank=energy,projector=joint D12:rank=energy,targets=router D8 D8:rank=energy,projector=joint "
        "D8:rank=energy,targets=router D6 D6:rank=energy,projector=joint D6:rank=energy,targets=router "
        "D4 D4:rank=energy,projector=joint "
        "D4:rank=energy,targets=router P3:projector=joint+D12:rank=energy,projector=joint "
        "P2:projector=joint+D8:rank=energy,projector=joint");
    sweeps(128, 2, 0, "P1 D96 D64 D48 D32 D16 P1+D96 P1+D64");
    sweeps(8, 1, 0, "D6 D4 D3 D2 D1");
    for (int e = 3; e <= 40; e++) /* every model has a sweep of which nothing stands twice */
        for (int k = 1; k <= e && k <= 16; k++) sweeps(e, k, 1, NULL);
    sweeps(512, 16, 1, NULL);
}
END_TEST

START_TEST(what_the_tables_hold_is_swept)
{
    exf_err e;
    exf_architecture a = {.n_experts = 16, .top_k = 2};
    float value = 0;
    exf_budget budgets[] = {{.budget = 1.5, .rule = "stream"}, {.budget = 1, .rule = "output"}, {.budget = 1, .rule = "top_p"}};
    exf_static_pool pools[] = {{.size = 8, .by = "norm"}, {.size = 8, .by = "energy"}, {.size = 4, .by = "norm"}};
    exf_tables t = {.cosine = &value, .rms = &value, .budget = budgets, .n_budgets = 3, .pool = pools, .n_pools = 3};
    static const char *const added[] = {"P1:budget=token,sensitivity=output", "P1:budget=topp",
                                        "D8:pool=static,by=norm,targets=router", "D8:pool=static,by=energy,targets=router"};
    size_t n, found = 0, choices = 0;
    exf_variant *v;
    ck_ok(exf_frontier_variants(&v, &n, &a, &t, NULL, &e), e);
    for (size_t i = 0; i < n; i++) {
        choices += v[i].budget || v[i].decode == EXF_DECODE_STATIC;
        for (int k = 0; k < 4; k++) found += strcmp(v[i].name, added[k]) == 0;
    }
    ck_assert_uint_eq(found, 4);
    ck_assert_uint_eq(choices, 4);
    exf_mem_free(v);
}
END_TEST

START_TEST(the_best_criterion_of_each_pool)
{
    static const struct { const char *name; double kl; } rows[] = {
        {"original", 0}, {"D8:pool=static", 0.4}, {"D8:pool=static,by=reap", 0.3}, {"D8:pool=static,by=energy", 0.3},
        {"D4:pool=static,by=reap", 0.1}, {"D8:targets=router,by=norm,pool=static", 0.2},
        {"D8:pool=static,targets=router,by=energy", 0.1}, {"D8", 0.05}};
    exf_variant_result shown[8] = {{.name = ""}};
    exf_validation v = {.variant = shown, .n_variants = 8};
    size_t best[8];
    for (int i = 0; i < 8; i++) {
        snprintf(shown[i].name, sizeof shown[i].name, "%s", rows[i].name);
        shown[i].all.kl_mean = rows[i].kl;
    }
    ck_assert_uint_eq(exf_best_pools(best, &v), 2);
    ck_assert_uint_eq(best[0], 2); /* a tie: the earlier */
    ck_assert_uint_eq(best[1], 6);
    ck_assert_str_eq(exf_pool_criterion_of(&shown[1]), "norm");
    ck_assert_str_eq(exf_pool_criterion_of(&shown[7]), "");
}
END_TEST

static void runs(int n_experts, int top_k, const char *runtime, const char *names)
{
    exf_err e;
    exf_architecture a = {.n_experts = n_experts, .top_k = top_k};
    float value = 0;
    exf_tables t = {.cosine = &value, .rms = &value};
    exf_variant *v;
    exf_text seen = {0};
    size_t n;
    ck_ok(exf_frontier_variants(&v, &n, &a, &t, exf_runtime_find(runtime), &e), e);
    for (size_t i = 0; i < n; i++) exf_text_appendf(&seen, "%s%s", i ? " " : "", v[i].name);
    ck_assert_str_eq(seen.s ? seen.s : "", names);
    exf_mem_free(v);
    exf_text_free(&seen);
}

/* No joint weights where a public plugin serves, no budget that it does not run. */
START_TEST(sweeps_stay_inside_what_a_runtime_runs)
{
    runs(128, 8, "vllm-qwen3", "P4 P2 P1 D64 D32 D16 P4+D64");
    runs(60, 4, "vllm-qwen3", "P2 P1");
    runs(256, 6, "vllm-deepseek-v4", "P5 P4 P3 P2 P1 D192 D128 D96 D64 D32 P4+D192 P3+D128");
    runs(16, 2, "exfold",
         "P1 P1:projector=joint D12 D12:rank=energy,projector=joint D12:rank=energy,targets=router D8 "
         "D8:rank=energy,projector=joint D8:rank=energy,targets=router D6 D6:rank=energy,projector=joint "
         "D6:rank=energy,targets=router D4 D4:rank=energy,projector=joint D4:rank=energy,targets=router "
         "D2 D2:rank=energy,projector=joint D2:rank=energy,targets=router "
         "P1:projector=joint+D12:rank=energy,projector=joint "
         "P1:projector=joint+D8:rank=energy,projector=joint");
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    exf_err e;
    exf_architecture a = {.n_experts = 16, .top_k = 4};
    exf_tables t = {.cosine = NULL};
    exf_variant *v;
    size_t n;
    exf_mem_fail_at(1);
    ck_fails(exf_frontier_variants(&v, &n, &a, &t, NULL, &e), EXF_NOSPACE, e, "0.1 MiB");
    exf_mem_fail_at(0);
    ck_assert_ptr_null(v);
}
END_TEST

/* ---- what is beaten -------------------------------------------------------------------- */

static void marks(const results *r, const char *want)
{
    unsigned char on[RESULTS_MOST];
    exf_frontier_mark(on, &r->v);
    for (size_t i = 0; i < r->v.n_variants; i++)
        ck_assert_msg(on[i] == (want[i] == '*'), "%s is %s the frontier", r->variant[i].name, on[i] ? "on" : "not on");
}

START_TEST(the_frontier_is_what_nobody_beats)
{
    results *r = results_begin();
    marks(r, "*");
    results_add(r, "worse at the same cost", 0.1, 4, 16);
    marks(r, "*.");
    results_add(r, "cheaper per token", 0.1, 2, 16);
    marks(r, "*.*");
    results_add(r, "cheaper per batch", 0.3, 4, 8);
    marks(r, "*.**");
    results_add(r, "beaten by the second", 0.2, 2, 16);
    results_add(r, "beaten by nobody in both", 0.2, 3, 12);
    marks(r, "*.**.*");
    results_add(r, "beats the third and the fifth", 0.2, 2, 8);
    marks(r, "*.*...*");
    results_add(r, "the same again: neither beats the other", 0.2, 2, 8);
    marks(r, "*.*...**");
    results_add(r, "as good, dearer in one", 0.2, 2.5, 8);
    marks(r, "*.*...**.");
}
END_TEST

START_TEST(the_cheapest_within_a_kl)
{
    results *r = results_begin();
    results_add(r, "A", 0.05, 3, 15);
    results_add(r, "B", 0.1, 2, 14);
    results_add(r, "C", 0.1, 3.5, 8);
    results_add(r, "D", 0.4, 1, 4);
    results_add(r, "E", 0.09, 2, 14);
    results_add(r, "dear", 0.001, 4, 16);
    static const struct { double limit; size_t token, batch; } cases[] = {{0, 0, 0}, {0.04, 0, 0}, {0.05, 1, 1}, {0.09, 5, 5},
                                                                          {0.1, 5, 3}, {0.39, 5, 3}, {0.4, 4, 4}, {9, 4, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_uint_eq(exf_frontier_cheapest(&r->v, cases[i].limit, 0), cases[i].token);
        ck_assert_uint_eq(exf_frontier_cheapest(&r->v, cases[i].limit, 1), cases[i].batch);
    }
}
END_TEST

START_TEST(noise_beats_nobody)
{
    results *r = results_begin();
    results_add(r, "A", 0.1, 2, 8)->all.kl_se = 0.02;
    results_add(r, "worse than A within the noise", 0.14, 2, 8)->all.kl_se = 0.02;
    results_add(r, "worse than A beyond the noise", 0.2, 2, 8)->all.kl_se = 0.02;
    results_add(r, "as good as A, and dearer", 0.1, 3, 8)->all.kl_se = 0.02;
    marks(r, "***.*");
}
END_TEST

START_TEST(the_line_buys_what_is_beyond_the_noise)
{
    size_t line[RESULTS_MOST];
    results *r = results_begin();
    results_add(r, "a better one within the noise", 0.38, 2, 4)->all.kl_se = 0.01;
    results_add(r, "the cheapest", 0.4, 1, 9)->all.kl_se = 0.01;
    results_add(r, "beyond the noise", 0.1, 3, 8)->all.kl_se = 0.01;
    results_add(r, "the same cost, worse", 0.2, 3, 8)->all.kl_se = 0.01;
    results_add(r, "dearer and worse", 0.3, 3.5, 12)->all.kl_se = 0.01;
    results_add(r, "no KL, no place", 0, 4, 16);
    static const size_t token[] = {2, 3}, batch[] = {1, 3};
    ck_assert_uint_eq(exf_frontier_line(line, &r->v, 0), 2);
    ck_assert_mem_eq(line, token, sizeof token);
    ck_assert_uint_eq(exf_frontier_line(line, &r->v, 1), 2);
    ck_assert_mem_eq(line, batch, sizeof batch);
    ck_assert_uint_eq(exf_frontier_line(line, &results_begin()->v, 0), 0);
}
END_TEST

/* ---- pictures --------------------------------------------------------------------------- */

static results *small(void)
{
    results *r = results_begin();
    results_add(r, "P3", 0.02, 3, 15);
    results_add(r, "P2:projector=joint,ridge=0.1", 0.1, 2, 13.5);
    results_add(r, "D8:pool=static,fold=drop", 1.2, 3.2, 8);
    results_add(r, "D8", 0.15, 3.5, 8);
    results_add(r, "P4", 0, 4, 16); /* a KL of 0 has no place on a logarithmic axis */
    return r;
}

static char *file_of(const char *path)
{
    exf_err e;
    char *s;
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "no %s", path);
    ck_ok(exf_mem_new(&s, 1 << 20, 1, "file", &e), e);
    ck_assert_uint_lt(fread(s, 1, (1 << 20) - 1, f), (1 << 20) - 1);
    fclose(f);
    return s;
}

typedef exf_code (*drawing)(const exf_validation *v, const unsigned char *on, exf_text *out, exf_err *err);

static char *drawn(const results *r, drawing draw)
{
    exf_err e;
    unsigned char on[RESULTS_MOST];
    exf_text t = {0};
    exf_frontier_mark(on, &r->v);
    ck_ok(draw(&r->v, on, &t, &e), e);
    ck_assert_uint_eq(strlen(t.s), t.len);
    return t.s;
}

static void same_as_file(const results *r, drawing draw, const char *path)
{
    char *seen = drawn(r, draw), *want = file_of(path);
    ck_assert_msg(strcmp(seen, want) == 0, "%s is no more what is drawn:\n%s", path, seen);
    exf_text t = {.s = seen};
    exf_text_free(&t);
    exf_mem_free(want);
}

START_TEST(text_to_the_byte)
{
    same_as_file(small(), exf_frontier_text, "tests/golden/frontier/chart.txt");
}
END_TEST

static exf_code draw_picture(const results *r, exf_err *err)
{
    unsigned char on[RESULTS_MOST];
    exf_drawing *d = NULL;
    exf_frontier_mark(on, &r->v);
    exf_code rc = exf_drawing_open(&d, exf_scratch("frontier.svg"), 1, err);
    if (rc == EXF_OK) rc = exf_frontier_draw(&r->v, on, d, err);
    if (rc == EXF_OK) return exf_drawing_close(d, err);
    exf_drawing_abort(d);
    return rc;
}

/* The bytes of the SVG. */
static char *drawn_picture(const results *r)
{
    exf_err e;
    ck_ok(draw_picture(r, &e), e);
    return file_of(exf_scratch("frontier.svg"));
}

static void well_formed(const results *r)
{
    exf_text t = {.s = drawn_picture(r)};
    ck_assert_ptr_nonnull(strstr(t.s, "</svg>"));
    ck_assert_ptr_null(strstr(t.s, "nan"));
    ck_assert_ptr_null(strstr(t.s, "inf"));
    exf_text_free(&t);
    t.s = drawn(r, exf_frontier_text);
    ck_assert_msg(!strstr(t.s, "nan %") && !strstr(t.s, "inf"), "%s", t.s);
    exf_text_free(&t);
}

START_TEST(pictures_are_well_formed)
{
    well_formed(small());
    well_formed(results_begin()); /* nothing but the original */
    results *r = results_begin();
    results_add(r, "P4", 0, 4, 16); /* nothing with a KL */
    well_formed(r);
    r = results_begin();
    results_add(r, "one", 0.5, 1, 2);
    well_formed(r);
    r = results_begin();
    for (int i = 0; i < 60; i++) { /* more than there are letters */
        char name[8];
        snprintf(name, sizeof name, "P%d", i + 1);
        results_add(r, name, pow(10, i / 20.0 - 3), 4 - i * 0.05, 16 - i * 0.2);
    }
    well_formed(r);
}
END_TEST

/* Every position prefill: no decode step, so no expert per batch. */
START_TEST(without_decode_steps)
{
    results *r = results_begin();
    r->variant[0].experts_per_batch = 0;
    results_add(r, "P3", 0.02, 3, 0);
    results_add(r, "P2", 0.1, 2, 0);
    well_formed(r);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("frontier");
    TCase *t = tcase_create("all");
    tcase_add_test(t, sweeps_of_budgets);
    tcase_add_test(t, what_the_tables_hold_is_swept);
    tcase_add_test(t, the_best_criterion_of_each_pool);
    tcase_add_test(t, sweeps_stay_inside_what_a_runtime_runs);
    tcase_add_test(t, every_allocation_may_fail);
    tcase_add_test(t, the_frontier_is_what_nobody_beats);
    tcase_add_test(t, noise_beats_nobody);
    tcase_add_test(t, the_line_buys_what_is_beyond_the_noise);
    tcase_add_test(t, the_cheapest_within_a_kl);
    tcase_add_test(t, text_to_the_byte);
    tcase_add_test(t, pictures_are_well_formed);
    tcase_add_test(t, without_decode_steps);
    suite_add_tcase(s, t);
    return s;
}
