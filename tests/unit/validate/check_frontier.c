/* check_frontier.c - validate/frontier, validate/recommendation and the picture: what is swept, who serves a row, what is worth its
 * cost, what is recommended. */
#include "tests/support/validation_fixtures.h"

#include "base/mem.h"
#include "validate/frontier.h"
#include "validate/recommendation.h"
#include "validate/validation.h"

#include <stdlib.h>

/* ---- what is swept ------------------------------------------------------------------- */

static const char *family_of_sweep; /* NULL: one that no public runtime serves */

static void sweeps(int n_experts, int top_k, int joint, const char *names)
{
    exf_err e;
    exf_architecture a = {.n_experts = n_experts, .top_k = top_k};
    float value = 0;
    exf_tables t = {.cosine = joint ? &value : NULL, .rms = joint ? &value : NULL};
    exf_variant *v;
    exf_text seen = {0};
    size_t n;
    ck_ok(exf_frontier_variants(&v, &n, &a, &t, family_of_sweep, NULL, &e), e);
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

/* Of a family that public runtimes serve, what these run is measured beside it, spelled so that the row is theirs. */
START_TEST(what_public_runtimes_run_is_swept)
{
    family_of_sweep = "qwen3_moe";
    sweeps(16, 4, 0, "P3 P2 P1 D12 D8 D6 D4 P2:rank=score P1:rank=score P3+D12 P2+D8");
    family_of_sweep = "deepseek_v4"; /* two runtimes, whose pools differ */
    sweeps(4, 2, 0, "P1 D3 D2 P1:rank=score,loss=frobenius,confidence=on D3:rank=score,loss=frobenius,fallback=first "
                    "D2:rank=score,loss=frobenius,fallback=first D3:loss=frobenius,fallback=first D2:loss=frobenius,fallback=first "
                    "P1+D3 P1+D2");
    family_of_sweep = NULL;
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
    ck_ok(exf_frontier_variants(&v, &n, &a, &t, family_of_sweep, NULL, &e), e);
    for (size_t i = 0; i < n; i++) {
        choices += v[i].budget || v[i].decode == EXF_DECODE_STATIC;
        for (int k = 0; k < 4; k++) found += strcmp(v[i].name, added[k]) == 0;
    }
    ck_assert_uint_eq(found, 4);
    ck_assert_uint_eq(choices, 4);
    exf_mem_free(v);
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
    ck_ok(exf_frontier_variants(&v, &n, &a, &t, family_of_sweep, exf_runtime_find(runtime), &e), e);
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

/* ---- rows ------------------------------------------------------------------------------------ */

static exf_row *rows_of(const exf_judged *of)
{
    exf_err e;
    exf_row *row;
    ck_ok(exf_rows_make(&row, of, &e), e);
    return row;
}

/* The names of the rows on a frontier, by rising cost. */
static void frontier_is(const results *r, exf_row_kind kind, int batch, const char *names)
{
    exf_judged of = results_judged(r);
    exf_row *row = rows_of(&of);
    size_t line[RESULTS_MOST], n = exf_frontier_line(line, &of, row, kind, batch);
    exf_text seen = {0};
    for (size_t i = 0; i < n; i++) {
        exf_text_appendf(&seen, "%s%s", i ? " " : "", r->variant[line[i]].name);
        ck_assert_msg(row[line[i]].on_frontier, "%s is not marked", r->variant[line[i]].name);
    }
    ck_assert_str_eq(seen.s ? seen.s : "", names);
    exf_text_free(&seen);
    exf_mem_free(row);
}

START_TEST(each_row_buys_what_is_beyond_the_noise)
{
    results *r = results_begin();
    frontier_is(r, EXF_ROW_PREFILL, 0, "");
    results_add(r, "P1", 0.4, 1, 14);
    results_noise(results_add(r, "P2", 0.39, 2, 15), 0.02); /* within the noise of its difference to P1 */
    frontier_is(r, EXF_ROW_PREFILL, 0, "P1");
    results_add(r, "P3", 0.1, 3, 15);
    results_add(r, "P3:rank=score", 0.2, 3, 15); /* the same cost, worse */
    results_add(r, "P3:rank=norm", 0.15, 3.5, 15); /* dearer and worse */
    results_add(r, "P3:projector=joint", 0.09, 3.01, 15); /* the same cost but for the third digit, better */
    frontier_is(r, EXF_ROW_PREFILL, 0, "P1 P3:projector=joint");
    results_add(r, "P4", 0, 4, 16); /* costs what the original does */
    frontier_is(r, EXF_ROW_PREFILL, 0, "P1 P3:projector=joint");
}
END_TEST

/* Noise that two rows have in common is none of their difference. */
START_TEST(noise_is_of_the_paired_difference)
{
    results *r = results_begin();
    results_noise(results_add(r, "P1", 0.40, 1, 14), 0.1);
    results_noise(results_add(r, "P2", 0.38, 2, 14), 0.1);
    frontier_is(r, EXF_ROW_PREFILL, 0, "P1 P2");
    r->kl[2][0] += 25;
    r->kl[2][1] -= 25;
    frontier_is(r, EXF_ROW_PREFILL, 0, "P1");
    r->v.n_clusters = 1; /* nothing is known of the noise: nothing is beyond it */
    frontier_is(r, EXF_ROW_PREFILL, 0, "P1");
}
END_TEST

START_TEST(prefill_and_decode_are_two_questions)
{
    results *r = results_begin();
    r->v.n_batch_sizes = 2;
    results_add(r, "P2", 0.1, 2, 2);
    results_add(r, "D8", 0.2, 3, 8);
    results_add(r, "D12", 0.1, 1, 12);
    results_add(r, "D6", 0.3, 4, 6)->batch = 1;
    results_add(r, "P1+D4", 0.05, 1, 1); /* on neither */
    frontier_is(r, EXF_ROW_PREFILL, 0, "P2");
    frontier_is(r, EXF_ROW_DECODE, 0, "D8 D12");
    frontier_is(r, EXF_ROW_DECODE, 1, "D6");
}
END_TEST

/* Of a run whose first half alone is prefill, a row that runs 3 of 4 experts in the mean runs 2 there. */
START_TEST(prefill_costs_what_its_tokens_do)
{
    results *r = results_begin();
    results_add(r, "P2", 0.1, 3, 2);
    results_add(r, "P2+D8", 0.1, 3, 2);
    exf_judged of = results_judged(r);
    of.prefill_share = 0.5;
    exf_row *row = rows_of(&of);
    ck_assert(exf_row_cost(&row[1], EXF_ROW_PREFILL) == 2 && row[2].cost.flops == 3);
    ck_assert(exf_original_cost(&of, EXF_ROW_PREFILL, 0) == 4 && exf_original_cost(&of, EXF_ROW_DECODE, 1) == 10);
    exf_mem_free(row);
}
END_TEST

/* Half of the experts are not half of the model: 6 of 10 operations and 10 of 26 bytes are of what always runs. */
START_TEST(shares_of_the_whole_model)
{
    results *r = results_begin();
    exf_judged of = results_judged(r);
    ck_assert_double_eq_tol(exf_whole_share(&of, 2, EXF_ROW_PREFILL, 0), 0.8, 1e-12);
    ck_assert_double_eq_tol(exf_whole_share(&of, 8, EXF_ROW_DECODE, 0), 18.0 / 26, 1e-12);
    ck_assert_double_eq_tol(exf_whole_share(&of, 16, EXF_ROW_DECODE, 0), 1, 1e-12);
    of.flops_per_token = 0;
    ck_assert(isnan(exf_whole_share(&of, 2, EXF_ROW_PREFILL, 0)));
}
END_TEST

START_TEST(what_does_not_compete)
{
    results *r = results_begin();
    results_add(r, "P1", 0.4, 1, 14);
    results_add(r, "top1:drop", 0.1, 1, 14); /* needs no tables, whoever asked for it */
    results_add(r, "random1", 0.1, 1, 14)->role = EXF_LANE_BASELINE;
    results_add(r, "P1 half 1", 0.1, 1, 14)->role = EXF_LANE_HALF;
    results_add(r, "P1:layer=0", 0.1, 1, 14);
    results_add(r, "D8", 0.2, 4, 8);
    results_add(r, "D10", 0, 4, 10)->constraint = EXF_FEW_EXPERTS;
    results_add(r, "D9:fold=drop", 0.1, 4, 9);
    frontier_is(r, EXF_ROW_PREFILL, 0, "P1");
    frontier_is(r, EXF_ROW_DECODE, 0, "D8");
}
END_TEST

/* The runtimes of a row: ~ before those that run it with options of their own. */
static void served(const char *name, const char *family, const char *runtimes)
{
    results *r = results_begin();
    results_add(r, name, 0.1, 2, 8);
    exf_judged of = results_judged(r);
    of.family = family;
    exf_row *row = rows_of(&of);
    exf_text seen = {0};
    for (int i = 0; i < row[1].n_servers; i++)
        exf_text_appendf(&seen, "%s%s%s", i ? " " : "", row[1].server[i].by_its_own ? "~" : "", row[1].server[i].runtime->name);
    ck_assert_msg(strcmp(seen.s ? seen.s : "", runtimes) == 0, "%s: %s", name, seen.s ? seen.s : "");
    exf_text_free(&seen);
    exf_mem_free(row);
}

START_TEST(who_serves_a_row)
{
    served("P2", "qwen3_moe", "~vllm-qwen3"); /* which keeps routes by router weight */
    served("P2:rank=score", "qwen3_moe", "vllm-qwen3");
    served("P3:rank=score", "qwen3_moe", ""); /* no power of two */
    served("P2:projector=joint", "qwen3_moe", "");
    served("D8", "qwen3_moe", "vllm-qwen3");
    served("D8:pool=static", "qwen3_moe", "vllm-qwen3 vllm-qwen3-speed");
    served("D8:rank=energy", "qwen3_moe", "");
    served("P2+D8", "qwen3_moe", "~vllm-qwen3");
    served("P2", "glm4_moe", "");
    served("P2", "deepseek_v4", "~sglang-deepseek-v4 ~vllm-deepseek-v4");
    served("P2:rank=score,loss=frobenius,confidence=on", "deepseek_v4", "sglang-deepseek-v4 vllm-deepseek-v4");
}
END_TEST

/* ---- what is recommended --------------------------------------------------------------------- */

static const char *runtime_of_choice; /* NULL: any row is a choice */

static void recommends(const results *r, const char *limit, exf_row_kind kind, const char *name, int holds)
{
    exf_err e;
    exf_limit l;
    exf_judged of = results_judged(r);
    exf_row *row = rows_of(&of);
    ck_ok(exf_limit_parse(&l, limit, &e), e);
    exf_choice c = exf_recommend(&l, &of, row, kind, 0, runtime_of_choice ? exf_runtime_find(runtime_of_choice) : NULL);
    const char *seen = c.row ? r->variant[c.row].name : "";
    ck_assert_msg(strcmp(seen, name) == 0 && c.holds == holds, "%s: %s %s", limit, seen, c.holds ? "holds" : "is near");
    exf_mem_free(row);
}

START_TEST(the_cheapest_within_a_limit)
{
    results *r = results_begin();
    recommends(r, "kl=9", EXF_ROW_PREFILL, "", 0);
    results_add(r, "P3", 0.05, 3, 15);
    results_add(r, "P2", 0.1, 2, 14);
    results_add(r, "P2:projector=joint", 0.09, 2, 14);
    results_add(r, "P1", 0.4, 1, 14);
    results_add(r, "P4", 0, 4, 16); /* saves nothing */
    results_add(r, "top1", 0.01, 1, 14);
    results_add(r, "D8", 0.1, 4, 8);
    recommends(r, "kl=0.04", EXF_ROW_PREFILL, "P3", 0);
    recommends(r, "kl=0.05", EXF_ROW_PREFILL, "P3", 1);
    recommends(r, "kl=0.09", EXF_ROW_PREFILL, "P2:projector=joint", 1);
    recommends(r, "kl=0.4", EXF_ROW_PREFILL, "P1", 1);
    recommends(r, "kl=0.1", EXF_ROW_DECODE, "D8", 1);
    recommends(r, "ppl_ratio=1.021", EXF_ROW_PREFILL, "P2:projector=joint", 1); /* PPL 5.09 of 5 */
    recommends(r, "log_ppl=0.0101", EXF_ROW_PREFILL, "P3", 1);
}
END_TEST

/* What a runtime runs as written is chosen among its own rows. */
START_TEST(the_cheapest_in_a_runtime)
{
    results *r = results_begin();
    results_add(r, "P3:projector=joint", 0.03, 3, 15);
    results_add(r, "P2:projector=joint", 0.04, 2, 15);
    results_add(r, "P2", 0.05, 2, 15);
    results_add(r, "P2:rank=score", 0.06, 2, 15);
    results_add(r, "D8", 0.1, 4, 8);
    results_add(r, "D8:pool=static", 0.3, 4, 8);
    recommends(r, "kl=0.05", EXF_ROW_PREFILL, "P2:projector=joint", 1);
    runtime_of_choice = "vllm-qwen3";
    recommends(r, "kl=0.05", EXF_ROW_PREFILL, "P2:rank=score", 0);
    recommends(r, "kl=0.07", EXF_ROW_PREFILL, "P2:rank=score", 1);
    recommends(r, "kl=0.4", EXF_ROW_DECODE, "D8", 1);
    runtime_of_choice = "vllm-qwen3-speed"; /* which has no dynamic pool, so that the better D8 is no choice */
    recommends(r, "kl=0.4", EXF_ROW_PREFILL, "", 0);
    recommends(r, "kl=0.4", EXF_ROW_DECODE, "D8:pool=static", 1);
    runtime_of_choice = NULL;
}
END_TEST

/* A variant that was built is neither recommended nor on a frontier where the plain fold of that P or D, which costs no more, does
 * better, though it be a little cheaper or within the limit too. */
START_TEST(plain_folds_are_never_beaten_by_worse)
{
    results *r = results_begin();
    results_add(r, "P3", 0.1, 3, 15);
    results_add(r, "P3:budget=token,sensitivity=stream", 0.2, 2.97, 15); /* 0.75 % of the original's cost less */
    results_add(r, "P2", 0.5, 2, 15);
    results_add(r, "P2:budget=topp", 0.4, 2.03, 15);
    results_add(r, "D8", 0.1, 4, 8);
    results_add(r, "D8:rank=energy,projector=joint", 0.2, 4, 7.9);
    results_add(r, "D8:rank=energy,targets=router", 0.05, 4, 8);
    recommends(r, "kl=0.3", EXF_ROW_PREFILL, "P3", 1);
    recommends(r, "kl=0.45", EXF_ROW_PREFILL, "P2:budget=topp", 1);
    recommends(r, "kl=0.3", EXF_ROW_DECODE, "D8:rank=energy,targets=router", 1);
    frontier_is(r, EXF_ROW_PREFILL, 0, "P2 P2:budget=topp P3");
    frontier_is(r, EXF_ROW_DECODE, 0, "D8:rank=energy,targets=router");
    exf_judged of = results_judged(r);
    exf_row *row = rows_of(&of);
    ck_assert(row[2].lost_to == 1 && !row[1].lost_to && !row[4].lost_to && row[6].lost_to == 5 && !row[7].lost_to);
    exf_mem_free(row);
}
END_TEST

/* Of rows of one P that cost the same, the plain fold stands unless another is better beyond the noise of the paired difference. */
START_TEST(a_gain_within_the_noise_is_none)
{
    results *r = results_begin();
    results_add(r, "P2", 0.1, 2, 14);
    results_noise(results_add(r, "P2:projector=joint", 0.09, 2, 14), 0.01);
    results_add(r, "D8", 0.1, 4, 8);
    results_noise(results_add(r, "D8:rank=energy,targets=router", 0.09, 4, 7.9), 0.01);
    recommends(r, "kl=0.2", EXF_ROW_PREFILL, "P2", 1);
    recommends(r, "kl=0.2", EXF_ROW_DECODE, "D8", 1);
    frontier_is(r, EXF_ROW_PREFILL, 0, "P2");
    frontier_is(r, EXF_ROW_DECODE, 0, "D8");
    results_noise(&r->variant[1], 0.01); /* the same sequences are hard for both: their difference has no noise */
    recommends(r, "kl=0.2", EXF_ROW_PREFILL, "P2:projector=joint", 1);
    frontier_is(r, EXF_ROW_PREFILL, 0, "P2:projector=joint");
    r = results_begin();
    results_noise(results_add(r, "P2", 0.1, 2, 14), 0.01);
    results_add(r, "P2:projector=joint", 0.09, 2, 14);
    recommends(r, "kl=0.2", EXF_ROW_PREFILL, "P2", 1);
    recommends(r, "kl=0.11", EXF_ROW_PREFILL, "P2:projector=joint", 1); /* which the plain fold does not hold */
    results_add(r, "P2:rank=norm", 0.095, 2, 14); /* another that is no gain either */
    recommends(r, "kl=0.2", EXF_ROW_PREFILL, "P2", 1);
}
END_TEST

START_TEST(the_whole_interval_is_within_the_limit)
{
    results *r = results_begin();
    results_noise(results_add(r, "P2", 0.04, 2, 14), 0.01); /* Student's t of 3 degrees of freedom is 3.18 */
    recommends(r, "kl=0.07", EXF_ROW_PREFILL, "P2", 0);
    recommends(r, "kl=0.0719", EXF_ROW_PREFILL, "P2", 1);
    r->v.n_clusters = 1; /* no interval: nothing holds */
    recommends(r, "kl=9", EXF_ROW_PREFILL, "P2", 0);
}
END_TEST

START_TEST(limits_that_cannot_be)
{
    static const char *const bad[] = {"", "kl", "kl=", "kl=0", "kl=-1", "kl=nan", "kl=0.1x", "ppl=6", "ppl_ratio=1", "kl_p99=1"};
    exf_err e;
    exf_limit l;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_fails(exf_limit_parse(&l, bad[i], &e), EXF_USAGE, e, "validate.limit");
}
END_TEST

START_TEST(the_best_criterion_of_each_pool)
{
    static const struct { const char *name; double kl; } rows[] = {
        {"D8:pool=static", 0.4}, {"D8:pool=static,by=reap", 0.3}, {"D8:pool=static,by=energy", 0.3},
        {"D4:pool=static,by=reap", 0.1}, {"D8:targets=router,by=norm,pool=static", 0.2},
        {"D8:pool=static,targets=router,by=energy", 0.1}, {"D8", 0.05}};
    results *r = results_begin();
    size_t best[8];
    for (int i = 0; i < 7; i++) results_add(r, rows[i].name, rows[i].kl, 4, 8);
    exf_judged of = results_judged(r);
    exf_row *row = rows_of(&of);
    ck_assert_uint_eq(exf_best_pools(best, &r->v, row), 2);
    ck_assert_uint_eq(best[0], 2); /* a tie: the earlier */
    ck_assert_uint_eq(best[1], 6);
    exf_mem_free(row);
}
END_TEST

static size_t together(const exf_judged *of)
{
    exf_row *row = rows_of(of);
    size_t both = exf_find_together(of, row, 1, 2);
    exf_mem_free(row);
    return both;
}

START_TEST(a_pair_that_was_measured_together)
{
    results *r = results_begin();
    results_add(r, "P2:rank=score", 0.05, 2, 15);
    results_add(r, "D8", 0.1, 4, 8);
    exf_judged of = results_judged(r);
    ck_assert_uint_eq(together(&of), 0);
    results_add(r, "P2+D8", 0.15, 2, 8);
    ck_assert_uint_eq(together(&of), 0);
    results_add(r, "D8+P2:rank=score", 0.15, 2, 8)->batch = 1;
    ck_assert_uint_eq(together(&of), 0);
    r->variant[4].batch = 0;
    ck_assert_uint_eq(together(&of), 4);
    of.runtime = exf_runtime_find("vllm-qwen3"); /* as which P2 is the same */
    snprintf(r->variant[1].name, sizeof r->variant[1].name, "P2");
    ck_assert_uint_eq(together(&of), 3);
}
END_TEST

/* ---- pictures --------------------------------------------------------------------------- */

static results *small(void)
{
    results *r = results_begin();
    results_add(r, "P3", 0.02, 3, 15);
    results_add(r, "P2:projector=joint,ridge=0.1", 0.1, 2, 13.5);
    results_noise(results_add(r, "D8:pool=static", 1.2, 3.2, 7), 0.1);
    results_add(r, "D8", 0.15, 3.5, 8);
    results_add(r, "D12", 0, 4, 12); /* a KL of 0 has no place on a logarithmic axis */
    return r;
}

static exf_code draw_picture(const results *r, exf_err *err)
{
    exf_validate_report report = {.of = results_judged(r)};
    exf_drawing *d = NULL;
    exf_row *row = rows_of(&report.of);
    report.row = row;
    exf_code rc = exf_drawing_open(&d, exf_scratch("frontier.svg"), 1, err);
    if (rc == EXF_OK) rc = exf_frontier_draw(&report, d, err);
    exf_mem_free(row);
    if (rc == EXF_OK) return exf_drawing_close(d, err);
    exf_drawing_abort(d);
    return rc;
}

static void well_formed(const results *r)
{
    exf_err e;
    char *s;
    ck_ok(draw_picture(r, &e), e);
    FILE *f = fopen(exf_scratch("frontier.svg"), "rb");
    ck_assert_ptr_nonnull(f);
    ck_ok(exf_mem_new(&s, 1 << 20, 1, "file", &e), e);
    ck_assert_uint_lt(fread(s, 1, (1 << 20) - 1, f), (1 << 20) - 1);
    fclose(f);
    ck_assert_ptr_nonnull(strstr(s, "</svg>"));
    ck_assert_ptr_null(strstr(s, "nan"));
    ck_assert_ptr_null(strstr(s, "inf"));
    exf_mem_free(s);
}

START_TEST(pictures_are_well_formed)
{
    well_formed(small());
    well_formed(results_begin()); /* nothing but the original */
    results *r = results_begin();
    results_add(r, "P3", 0, 3, 16); /* nothing with a KL */
    well_formed(r);
    r = results_begin();
    results_add(r, "P1", 0.5, 1, 2);
    r->v.n_clusters = 1; /* whose error is not known */
    well_formed(r);
    r = results_begin();
    r->v.n_batch_sizes = 2;
    for (int i = 0; i < 60; i++) { /* more than there are letters */
        char name[8];
        snprintf(name, sizeof name, "%c%d", "PD"[i % 2], i + 1);
        results_add(r, name, pow(10, i / 20.0 - 3), 4 - i * 0.05, 16 - i * 0.2)->batch = i % 4 == 1;
    }
    well_formed(r);
}
END_TEST

/* Every position prefill: no decode step, so no expert per batch. */
START_TEST(without_decode_steps)
{
    results *r = results_begin();
    r->variant[0].experts_per_batch = r->layer[0].experts_per_batch = r->size[0].experts = 0;
    results_add(r, "P3", 0.02, 3, 0);
    results_add(r, "D8", 0, 4, 0);
    frontier_is(r, EXF_ROW_DECODE, 0, "");
    well_formed(r);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, sweeps_of_budgets);
    tcase_add_test(t, what_public_runtimes_run_is_swept);
    tcase_add_test(t, what_the_tables_hold_is_swept);
    tcase_add_test(t, the_best_criterion_of_each_pool);
    tcase_add_test(t, sweeps_stay_inside_what_a_runtime_runs);
    tcase_add_test(t, each_row_buys_what_is_beyond_the_noise);
    tcase_add_test(t, noise_is_of_the_paired_difference);
    tcase_add_test(t, prefill_and_decode_are_two_questions);
    tcase_add_test(t, prefill_costs_what_its_tokens_do);
    tcase_add_test(t, shares_of_the_whole_model);
    tcase_add_test(t, what_does_not_compete);
    tcase_add_test(t, who_serves_a_row);
    tcase_add_test(t, the_cheapest_within_a_limit);
    tcase_add_test(t, the_cheapest_in_a_runtime);
    tcase_add_test(t, plain_folds_are_never_beaten_by_worse);
    tcase_add_test(t, a_gain_within_the_noise_is_none);
    tcase_add_test(t, the_whole_interval_is_within_the_limit);
    tcase_add_test(t, limits_that_cannot_be);
    tcase_add_test(t, a_pair_that_was_measured_together);
    tcase_add_test(t, pictures_are_well_formed);
    tcase_add_test(t, without_decode_steps);
}
