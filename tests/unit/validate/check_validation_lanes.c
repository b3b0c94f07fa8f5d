/* check_validation_lanes.c - validate/validation_lanes: which lanes a validation has for the variants that are asked for. */
#include "tests/support/scratch_fixtures.h"

#include "fold/runtime.h"
#include "validate/validation.h"

#include <string.h>

static exf_err e;
static const exf_architecture arch = {.n_experts = 16, .top_k = 4};
static const exf_tables tables = {.n_layers = 1};

enum { MOST = 8 };

static exf_code ask(exf_lane_list *l, const char *variants, const exf_runtime *runtime, const int64_t *size, size_t n_sizes)
{
    static exf_int_list sizes;
    sizes = (exf_int_list){(int64_t *)size, n_sizes};
    exf_code rc = EXF_OK;
    char text[EXF_VARIANT_NAME_LEN];
    for (size_t n; rc == EXF_OK && *variants; variants += n + (variants[n] == ' ')) {
        exf_variant v;
        n = strcspn(variants, " ");
        snprintf(text, sizeof text, "%.*s", (int)n, variants);
        ck_ok(exf_variant_parse_on(runtime, &v, text, &e), e);
        rc = exf_lanes_ask(l, &v, &sizes, &tables, &e);
    }
    return rc;
}

/* The lanes of variants at the sizes are `asked` and, beside them, `baselines`. */
static void lanes(const char *runtime, const char *variants, const int64_t *size, size_t n_sizes, const char *asked,
                  const char *baselines)
{
    exf_lane_list l = {.n = 0};
    exf_text names = {0}, want = {0};
    ck_ok(ask(&l, variants, runtime ? exf_runtime_find(runtime) : NULL, size, n_sizes), e);
    ck_ok(exf_lanes_add_baselines(&l, &arch, &tables, &e), e);
    ck_ok(exf_lanes_names(&names, &l, &e), e);
    exf_text_appendf(&want, "%s%s%s", asked, *baselines ? " " : "", baselines);
    ck_assert_str_eq(names.s, want.s);
    for (size_t i = 0; i < l.n; i++) {
        ck_assert_int_eq(l.lane[i].role, i < l.n_asked ? EXF_LANE_ASKED : EXF_LANE_BASELINE);
        ck_assert_ptr_eq(l.lane[i].tables, &tables);
        if (l.lane[i].variant.batch) ck_assert_int_eq(l.lane[i].variant.batch, size[l.lane[i].batch]);
        if (l.lane[i].variant.decode == EXF_DECODE_NONE) ck_assert_int_eq(l.lane[i].batch, 0);
    }
    exf_text_free(&names);
    exf_text_free(&want);
    exf_lanes_free(&l);
}

static const int64_t one[] = {16}, two[] = {8, 32}, small[] = {1, 2, 3};

START_TEST(each_decode_variant_runs_at_each_size)
{
    lanes(NULL, "top2 D8:pool=static reap8 sere1:rho=0.5", one, 1, "top2 D8:pool=static reap8 sere1:rho=0.5", "");
    lanes(NULL, "top2 D8:pool=static reap8 sere1:rho=0.5 D4:pool=static+top2:drop", two, 2,
          "top2 D8:pool=static,batch=8 D8:pool=static,batch=32 reap8:batch=8 reap8:batch=32 sere1:rho=0.5,batch=8 "
          "sere1:rho=0.5,batch=32 D4:pool=static,batch=8+top2:drop D4:pool=static,batch=32+top2:drop",
          "");
    lanes(NULL, "reap8:batch=32 top1+reap9:batch=8", two, 2, "reap8:batch=32 top1+reap9:batch=8", "");
    lanes(NULL, "reap8:batch=16", one, 1, "reap8:batch=16", "");
}
END_TEST

START_TEST(baselines_run_at_each_size_of_pool_and_batch)
{
    lanes(NULL, "P2", one, 1, "P2", "top2:drop top2:renorm random2");
    lanes(NULL, "P2 P1:rank=norm", one, 1, "P2 P1:rank=norm",
          "top2:drop top2:renorm random2 top1:drop top1:renorm random1:rank=norm");
    lanes(NULL, "D8", one, 1, "D8", "D8:fold=drop D8:fold=renorm D8:fold=random");
    lanes(NULL, "D8", two, 2, "D8:batch=8 D8:batch=32",
          "D8:fold=drop,batch=8 D8:fold=renorm,batch=8 D8:fold=random,batch=8 D8:fold=drop,batch=32 D8:fold=renorm,batch=32 "
          "D8:fold=random,batch=32");
    lanes(NULL, "P3+D12:rank=score", one, 1, "P3+D12:rank=score",
          "top3:drop+D12:rank=score,fold=drop top3:renorm+D12:rank=score,fold=renorm random3+D12:rank=score,fold=random");
}
END_TEST

START_TEST(baselines_rank_as_the_first_plain_variant_of_their_size)
{
    lanes(NULL, "P2:projector=joint P2:budget=token P2:rank=score P2", one, 1,
          "P2:projector=joint P2:budget=token P2:rank=score P2", "top2:drop top2:renorm random2:rank=score");
    lanes(NULL, "D8:rank=energy,targets=router D8:rank=energy,projector=joint", one, 1,
          "D8:rank=energy,targets=router D8:rank=energy,projector=joint",
          "D8:rank=energy,fold=drop D8:rank=energy,fold=renorm D8:rank=energy,fold=random");
    lanes("vllm-qwen3", "P2", one, 1, "P2", "top2:drop top2:renorm random2:rank=score");
}
END_TEST

START_TEST(what_was_asked_for_is_not_run_again)
{
    lanes(NULL, "top2 P2 random2:seed=1,rank=score_norm", one, 1, "top2 P2 random2:seed=1,rank=score_norm", "top2:drop");
    lanes(NULL, "random2:seed=2 P2 top2:drop", one, 1, "random2:seed=2 P2 top2:drop", "top2:renorm random2");
    lanes(NULL, "D8 D8:fold=drop,batch=8 D8:fold=random", two, 2,
          "D8:batch=8 D8:batch=32 D8:fold=drop,batch=8 D8:fold=random,batch=8 D8:fold=random,batch=32",
          "D8:fold=renorm,batch=8 D8:fold=drop,batch=32 D8:fold=renorm,batch=32");
}
END_TEST

START_TEST(what_folds_nothing_has_no_baseline)
{
    lanes(NULL, "D8", small, 3, "D8:batch=1 D8:batch=2 D8:batch=3",
          "D8:fold=drop,batch=3 D8:fold=renorm,batch=3 D8:fold=random,batch=3"); /* 4 and 8 routes are 8 experts at most */
    lanes(NULL, "P4 D16 P4+D16 P2:layer=1 skip1:tau=0.5 D8:fold=renorm P2+reap8 top2+D8", one, 1,
          "P4 D16 P4+D16 P2:layer=1 skip1:tau=0.5 D8:fold=renorm P2+reap8 top2+D8", "");
}
END_TEST

/* What no option says of a runtime holds for the baselines too. */
START_TEST(baselines_have_the_pool_of_the_runtime)
{
    exf_lane_list l = {.n = 0};
    ck_ok(ask(&l, "D8", exf_runtime_find("vllm-deepseek-v4"), one, 1), e);
    ck_ok(exf_lanes_add_baselines(&l, &arch, &tables, &e), e);
    ck_assert_uint_eq(l.n, 4);
    for (size_t i = 0; i < l.n; i++) {
        ck_assert_int_eq(l.lane[i].variant.decode_options.candidates, EXF_FOLD_POOL_OF_POSITIVE);
        ck_assert_int_eq(l.lane[i].variant.folds_hashed, 1);
    }
    exf_lanes_free(&l);
}
END_TEST

static void halves(const char *variants, const int64_t *size, size_t n_sizes, const char *names)
{
    float value[2];
    exf_tables t = {.half_scalar = {&value[0], &value[1]}, .half_loss = {&value[0], &value[1]}};
    exf_lane_list l = {.n = 0};
    exf_text seen = {0};
    ck_ok(ask(&l, variants, NULL, size, n_sizes), e);
    ck_ok(exf_lanes_add_halves(&l, &arch, &tables, &e), e);
    ck_assert_uint_eq(l.n, l.n_asked); /* tables without them */
    ck_ok(exf_lanes_add_halves(&l, &arch, &t, &e), e);
    for (size_t i = l.n_asked; i < l.n; i++) {
        const exf_validate_lane *lane = &l.lane[i];
        exf_text_appendf(&seen, "%s%s", i > l.n_asked ? ", " : "", lane->variant.name);
        ck_assert_int_eq(lane->role, EXF_LANE_HALF);
        ck_assert_ptr_eq(lane->tables->coeff, &value[strstr(lane->variant.name, "half 2") != NULL]);
        ck_assert_ptr_eq(lane->tables->loss, lane->tables->coeff);
    }
    ck_ok(exf_text_end(&seen, &e), e);
    ck_assert_str_eq(seen.s ? seen.s : "", names);
    exf_text_free(&seen);
    exf_lanes_free(&l);
}

START_TEST(the_first_plain_rows_run_by_halves)
{
    halves("P2:projector=joint P1 P2 D8:targets=router D8:rank=energy D4", one, 1,
           "P1 half 1, P1 half 2, D8:rank=energy half 1, D8:rank=energy half 2");
    halves("P2+D8 D12", two, 2, "D12:batch=8 half 1, D12:batch=8 half 2");
    halves("P4 P2:loss=frobenius P3:layer=2 D8:fold=drop D8:pool=static top2 P2:budget=topp P2+D8", one, 1, "");
    halves("P2:max_loss=0.1250000000000,rescale=sum,rank=norm,confidence=on,loss=energy,projector=pair", one, 1,
           ""); /* no room in a name */
}
END_TEST

static void refused(const char *variants, const int64_t *size, size_t n_sizes, const char *says)
{
    exf_lane_list l = {.n = 0};
    ck_fails(ask(&l, variants, NULL, size, n_sizes), EXF_USAGE, e, says);
    exf_lanes_free(&l);
}

START_TEST(refusals)
{
    refused("P2 P2", one, 1, "\"P2\" twice");
    refused("D8 D8:batch=32", two, 2, "\"D8:batch=32\" twice");
    refused("D8:batch=4", one, 1, "\"D8:batch=4\" batch=4 validate.decode_batch=16,4");
    refused("D8:batch=16", two, 2, "batch=16 validate.decode_batch=8,32,16");
    refused("P2:projector=joint,rescale=sum,rank=norm,ridge=0.12345678+D8:projector=joint,rank=energy", two, 2, "batch=8 95");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, each_decode_variant_runs_at_each_size);
    tcase_add_test(t, baselines_run_at_each_size_of_pool_and_batch);
    tcase_add_test(t, baselines_rank_as_the_first_plain_variant_of_their_size);
    tcase_add_test(t, what_was_asked_for_is_not_run_again);
    tcase_add_test(t, what_folds_nothing_has_no_baseline);
    tcase_add_test(t, baselines_have_the_pool_of_the_runtime);
    tcase_add_test(t, the_first_plain_rows_run_by_halves);
    tcase_add_test(t, refusals);
}
