/* check_variant.c - fold/variant: every spelling to its struct, what is none, what
 * a model allows. */
#include "tests/support/scratch_fixtures.h"

#include "fold/variant.h"

#include <stdio.h>
#include <string.h>

/* What a text without options means. */
static exf_variant plain(const char *name)
{
    exf_variant v;
    memset(&v, 0, sizeof v);
    snprintf(v.name, sizeof v.name, "%s", name);
    v.renormalise = 1;
    v.seed = v.decode_seed = 1;
    v.prefill_projector = v.decode_projector = &exf_projector_pair;
    return v;
}

static exf_variant prefill(const char *name, exf_prefill_kind kind, int keep)
{
    exf_variant v = plain(name);
    v.prefill = kind;
    v.prefill_options.keep = keep;
    if (kind == EXF_PREFILL_TOP) v.prefill_options.rank = EXF_FOLD_BY_SCORE;
    return v;
}

static exf_variant decode(const char *name, exf_decode_kind kind, int pool)
{
    exf_variant v = plain(name);
    v.decode = kind;
    v.decode_options.pool = pool;
    return v;
}

static void means(const exf_variant *want)
{
    exf_err e;
    exf_variant v;
    memset(&v, 0x5a, sizeof v);
    ck_ok(exf_variant_parse(&v, want->name, &e), e);
    ck_assert_str_eq(v.name, want->name);
    ck_assert_int_eq(v.prefill, want->prefill);
    ck_assert_ptr_eq(v.prefill_projector, want->prefill_projector);
    ck_assert_int_eq(v.prefill_lowrank, want->prefill_lowrank);
    ck_assert_int_eq(v.prefill_options.keep, want->prefill_options.keep);
    ck_assert_int_eq(v.prefill_options.rank, want->prefill_options.rank);
    ck_assert(v.prefill_options.max_loss == want->prefill_options.max_loss);
    ck_assert_int_eq(v.prefill_options.rescale, want->prefill_options.rescale);
    ck_assert_int_eq(v.prefill_options.confidence, want->prefill_options.confidence);
    ck_assert(v.prefill_options.ridge == want->prefill_options.ridge);
    ck_assert_int_eq(v.renormalise, want->renormalise);
    ck_assert_int_eq(v.seed, want->seed);
    ck_assert_int_eq(v.decode_seed, want->decode_seed);
    ck_assert_int_eq(v.outside, want->outside);
    ck_assert_int_eq(v.batch, want->batch);
    ck_assert_int_eq(v.decode, want->decode);
    ck_assert_ptr_eq(v.decode_projector, want->decode_projector);
    ck_assert_int_eq(v.decode_options.pool, want->decode_options.pool);
    ck_assert_int_eq(v.decode_options.importance, want->decode_options.importance);
    ck_assert(v.decode_options.max_loss == want->decode_options.max_loss);
    ck_assert_int_eq(v.decode_options.drop, want->decode_options.drop);
    ck_assert(v.decode_options.ridge == want->decode_options.ridge);
    ck_assert_int_eq(v.prefill_frobenius, want->prefill_frobenius);
    ck_assert_int_eq(v.decode_frobenius, want->decode_frobenius);
    ck_assert_int_eq(v.decode_options.fallback, want->decode_options.fallback);
    ck_assert_int_eq(v.decode_options.candidates, want->decode_options.candidates);
    ck_assert_int_eq(v.folds_hashed, want->folds_hashed);
    ck_assert(v.rho == want->rho);
    ck_assert_int_eq(v.budget, want->budget);
    ck_assert_int_eq(v.only_layer, want->only_layer);
    ck_assert_int_eq(v.sensitivity, want->sensitivity);
    ck_assert(v.tau == want->tau);
    ck_assert_int_eq(v.pool_by, want->pool_by);
    ck_assert_int_eq(v.by_router, want->by_router);
    ck_assert_int_eq(v.stand_in_weights, want->stand_in_weights);
}

/* `change` is done to what the text means without its options. */
#define MEANS(make, name, kind, n, change)    \
    do {                                      \
        exf_variant v = make(name, kind, n);  \
        change;                               \
        means(&v);                            \
    } while (0)
#define P(name, n, change) MEANS(prefill, name, EXF_PREFILL_FOLD, n, change)
#define D(name, n, change) MEANS(decode, name, EXF_DECODE_DYNAMIC, n, change)

START_TEST(prefill_spellings)
{
    P("P4:loss=frobenius", 4, v.prefill_frobenius = 1);
    P("P4:loss=energy", 4, (void)0);
    D("D8:rank=score", 8, v.decode_options.importance = EXF_FOLD_IMPORTANCE_SCORE);
    D("D8:loss=frobenius,fallback=first", 8, v.decode_frobenius = v.decode_options.fallback = 1);
    D("D8:fallback=drop", 8, (void)0);
    P("P4", 4, (void)0);
    P("P1", 1, (void)0);
    P("P999999", 999999, (void)0);
    P("P4:projector=pair", 4, v.prefill_projector = exf_projector_find("pair"));
    P("P4:projector=layer", 4, v.prefill_projector = exf_projector_find("layer"));
    P("P4:projector=global", 4, v.prefill_projector = exf_projector_find("global"));
    P("P4:projector=diagonal", 4, v.prefill_projector = exf_projector_find("diagonal"));
    P("P4:projector=lowrank8", 4, (v.prefill_projector = exf_projector_find("lowrank"), v.prefill_lowrank = 8));
    P("P4:projector=lowrank1024", 4, (v.prefill_projector = exf_projector_find("lowrank"), v.prefill_lowrank = 1024));
    P("P4:projector=joint", 4, v.prefill_projector = exf_projector_find("joint"));
    P("P4:rank=score_norm", 4, (void)0);
    P("P4:rank=score", 4, v.prefill_options.rank = EXF_FOLD_BY_SCORE);
    P("P4:rank=norm", 4, v.prefill_options.rank = EXF_FOLD_BY_NORM);
    P("P4:max_loss=0.99", 4, v.prefill_options.max_loss = 0.99f);
    P("P4:max_loss=0", 4, v.prefill_options.max_loss = EXF_FOLD_ZERO);
    P("P4:rescale=none", 4, (void)0);
    P("P4:rescale=sum", 4, v.prefill_options.rescale = EXF_FOLD_RESCALE_SUM);
    P("P4:rescale=l2", 4, v.prefill_options.rescale = EXF_FOLD_RESCALE_L2);
    P("P4:confidence=on", 4, v.prefill_options.confidence = 1);
    P("P4:confidence=off", 4, (void)0);
    P("P4:projector=joint,ridge=0", 4,
      (v.prefill_projector = exf_projector_find("joint"), v.prefill_options.ridge = EXF_FOLD_ZERO));
    P("P4:ridge=0.5,projector=joint", 4, (v.prefill_projector = exf_projector_find("joint"), v.prefill_options.ridge = 0.5f));
    P("P4:max_loss=0.9,rescale=sum,confidence=on,rank=norm,projector=layer", 4,
      (v.prefill_options = (exf_fold_prefill_options){
           .keep = 4, .rank = EXF_FOLD_BY_NORM, .max_loss = 0.9f, .rescale = EXF_FOLD_RESCALE_SUM, .confidence = 1},
       v.prefill_projector = exf_projector_find("layer")));
    P("P4:projector=joint,rescale=l2", 4,
      (v.prefill_projector = exf_projector_find("joint"), v.prefill_options.rescale = EXF_FOLD_RESCALE_L2));
    P("P4:projector=diagonal,max_loss=0.5", 4,
      (v.prefill_projector = exf_projector_find("diagonal"), v.prefill_options.max_loss = 0.5f));
    P("P4:budget=token", 4, (v.prefill_projector = exf_projector_find("joint"), v.budget = EXF_BUDGET_TOKEN));
    P("P4:sensitivity=measured,budget=token,ridge=0.01", 4,
      (v.prefill_projector = exf_projector_find("joint"), v.budget = EXF_BUDGET_TOKEN, v.sensitivity = EXF_SENSITIVITY_MEASURED,
       v.prefill_options.ridge = EXF_FOLD_RIDGE));
    P("P4:layer=0", 4, v.only_layer = 1);
    P("P4:budget=topp,projector=joint", 4, (v.prefill_projector = exf_projector_find("joint"), v.budget = EXF_BUDGET_TOP_P));
    MEANS(prefill, "skip2:tau=0.25", EXF_PREFILL_SKIP, 2, (v.tau = 0.25, v.prefill_options.rank = EXF_FOLD_BY_SCORE));
    MEANS(prefill, "skip1:factor=output,tau=1", EXF_PREFILL_SKIP, 1,
          (v.tau = 1, v.sensitivity = EXF_SENSITIVITY_OUTPUT, v.prefill_options.rank = EXF_FOLD_BY_SCORE));
    MEANS(prefill, "skip0:tau=0.5,layer=3", EXF_PREFILL_SKIP, 0,
          (v.tau = 0.5, v.only_layer = 4, v.prefill_options.rank = EXF_FOLD_BY_SCORE));
    MEANS(prefill, "skip0:budget=4", EXF_PREFILL_SKIP, 0, (v.skip_budget = 4, v.prefill_options.rank = EXF_FOLD_BY_SCORE));
    MEANS(prefill, "skip1:tau=0.01,factor=skip", EXF_PREFILL_SKIP, 1,
          (v.tau = 0.01, v.sensitivity = EXF_SENSITIVITY_SKIP, v.prefill_options.rank = EXF_FOLD_BY_SCORE));
    MEANS(prefill, "top4", EXF_PREFILL_TOP, 4, (void)0);
    MEANS(prefill, "top4:renorm", EXF_PREFILL_TOP, 4, (void)0);
    MEANS(prefill, "top4:drop", EXF_PREFILL_TOP, 4, v.renormalise = 0);
    MEANS(prefill, "random4", EXF_PREFILL_RANDOM, 4, (void)0);
    MEANS(prefill, "random4:seed=0", EXF_PREFILL_RANDOM, 4, v.seed = 0);
    MEANS(prefill, "random4:seed=9223372036854775807,rank=score", EXF_PREFILL_RANDOM, 4,
          (v.seed = INT64_MAX, v.prefill_options.rank = EXF_FOLD_BY_SCORE));
}
END_TEST

START_TEST(decode_spellings)
{
    D("D64", 64, (void)0);
    D("D64:pool=dynamic", 64, (void)0);
    D("D64:pool=static", 64, v.decode = EXF_DECODE_STATIC);
    D("D64:fold=on", 64, (void)0);
    D("D64:fold=drop", 64, (v.decode_options.drop = 1, v.outside = EXF_OUTSIDE_DROPPED));
    D("D64:pool=static,fold=drop", 64,
      (v.decode = EXF_DECODE_STATIC, v.decode_options.drop = 1, v.outside = EXF_OUTSIDE_DROPPED));
    D("D64:fold=renorm", 64, (v.decode_options.drop = 1, v.outside = EXF_OUTSIDE_RENORMALISED));
    D("D64:fold=random", 64, v.outside = EXF_OUTSIDE_RANDOM);
    D("D64:seed=9,fold=random,batch=32", 64, (v.outside = EXF_OUTSIDE_RANDOM, v.decode_seed = 9, v.batch = 32));
    D("D64:batch=1", 64, v.batch = 1);
    MEANS(decode, "reap64:batch=65536", EXF_DECODE_REAP, 64, (v.pool_by = EXF_POOL_BY_REAP, v.batch = 65536));
    MEANS(decode, "sere4:batch=8,rho=0.5", EXF_DECODE_SERE, 4, (v.batch = 8, v.rho = 0.5));
    D("D64:rank=norm", 64, (void)0);
    D("D64:norms=predicted", 64, v.decode_norms = 1);
    D("D64:norms=mean", 64, (void)0);
    D("D64:rank=energy", 64, v.decode_options.importance = EXF_FOLD_IMPORTANCE_ENERGY);
    D("D64:projector=pair", 64, (void)0);
    D("D64:projector=layer", 64, v.decode_projector = exf_projector_find("layer"));
    D("D64:projector=global", 64, v.decode_projector = exf_projector_find("global"));
    D("D64:projector=joint", 64, v.decode_projector = exf_projector_find("joint"));
    D("D64:projector=joint,rank=energy,ridge=0.25", 64,
      (v.decode_projector = exf_projector_find("joint"), v.decode_options.importance = EXF_FOLD_IMPORTANCE_ENERGY,
       v.decode_options.ridge = 0.25f));
    D("D64:max_loss=0.5,fold=drop", 64,
      (v.decode_options.max_loss = 0.5f, v.decode_options.drop = 1, v.outside = EXF_OUTSIDE_DROPPED));
    D("D64:targets=router", 64, (v.decode_projector = exf_projector_find("joint"), v.by_router = 1));
    D("D64:weights=gate,targets=router,pool=static,by=reap", 64,
      (v.decode = EXF_DECODE_STATIC, v.decode_projector = exf_projector_find("joint"), v.by_router = 1,
       v.stand_in_weights = EXF_FOLD_STAND_INS_GATE, v.pool_by = EXF_POOL_BY_REAP));
    D("D64:targets=router,weights=route", 64,
      (v.decode_projector = exf_projector_find("joint"), v.by_router = 1, v.stand_in_weights = EXF_FOLD_STAND_INS_ROUTE));
    D("D64:pool=static,by=energy,projector=joint", 64,
      (v.decode = EXF_DECODE_STATIC, v.decode_projector = exf_projector_find("joint"), v.pool_by = EXF_POOL_BY_ENERGY));
    MEANS(decode, "reap64", EXF_DECODE_REAP, 64, v.pool_by = EXF_POOL_BY_REAP);
    MEANS(decode, "reap64:by=frequency", EXF_DECODE_REAP, 64, v.pool_by = EXF_POOL_BY_FREQUENCY);
    MEANS(decode, "reap64:by=weighted_ean", EXF_DECODE_REAP, 64, v.pool_by = EXF_POOL_BY_WEIGHTED_EAN);
    MEANS(decode, "reap64:by=norm", EXF_DECODE_REAP, 64, (void)0);
    D("D64:pool=static,by=ean", 64, (v.decode = EXF_DECODE_STATIC, v.pool_by = EXF_POOL_BY_EAN));
    MEANS(decode, "sere4", EXF_DECODE_SERE, 4, (void)0);
    MEANS(decode, "sere4:rho=0.125", EXF_DECODE_SERE, 4, v.rho = 0.125);
}
END_TEST

START_TEST(a_prefill_and_a_decode_kind_together)
{
    P("P4:rank=score+D64", 4,
      (v.prefill_options.rank = EXF_FOLD_BY_SCORE, v.decode = EXF_DECODE_DYNAMIC, v.decode_options.pool = 64));
    P("D64:rank=energy+P4:rank=norm", 4,
      (v.prefill_options.rank = EXF_FOLD_BY_NORM, v.decode = EXF_DECODE_DYNAMIC, v.decode_options.pool = 64,
       v.decode_options.importance = EXF_FOLD_IMPORTANCE_ENERGY));
    MEANS(prefill, "top2:drop+reap8", EXF_PREFILL_TOP, 2,
          (v.renormalise = 0, v.decode = EXF_DECODE_REAP, v.decode_options.pool = 8,
           v.pool_by = EXF_POOL_BY_REAP));
    P("P4+D8:fold=random,seed=3", 4,
      (v.decode = EXF_DECODE_DYNAMIC, v.decode_options.pool = 8, v.outside = EXF_OUTSIDE_RANDOM, v.decode_seed = 3));
    MEANS(prefill, "random1:seed=2+sere1:rho=1", EXF_PREFILL_RANDOM, 1,
          (v.seed = 2, v.decode = EXF_DECODE_SERE, v.decode_options.pool = 1, v.rho = 1));
}
END_TEST

/* ---- words ----------------------------------------------------------------------------- */

START_TEST(a_name_says_its_batch)
{
    static const struct {
        const char *name, *with;
    } rows[] = {{"D8", "D8:batch=16"}, {"D8:rank=energy", "D8:rank=energy,batch=16"}, {"P4+D8", "P4+D8:batch=16"},
                {"D8+P4:rank=norm", "D8:batch=16+P4:rank=norm"}, {"top2:drop+sere1:rho=1", "top2:drop+sere1:rho=1,batch=16"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exf_err e;
        exf_variant v, again;
        ck_ok(exf_variant_parse(&v, rows[i].name, &e), e);
        ck_ok(exf_variant_set_batch(&v, 16, &e), e);
        ck_assert_str_eq(v.name, rows[i].with);
        ck_ok(exf_variant_parse(&again, rows[i].with, &e), e);
        ck_assert_mem_eq(&again, &v, sizeof v);
        ck_assert(exf_variant_is_named(v.name, rows[i].with) && exf_variant_is_named(v.name, rows[i].name));
        ck_assert(!exf_variant_is_named(rows[i].name, rows[i].with));
    }
    ck_assert(exf_variant_is_named("D8:batch=16,rank=energy", "D8:rank=energy"));
    ck_assert(!exf_variant_is_named("D8:batch=16", "D8:batch=8"));
    ck_assert(!exf_variant_is_named("D8:batch=16", "D"));
    ck_assert(!exf_variant_is_named("D8:batch=16", "D8:"));
    ck_assert(!exf_variant_is_named("D8", "D16"));
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------ */

/* Each is refused, and the message names it (a long one by its beginning). */
static void are_refused(const char *const *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        exf_variant v;
        char named[40];
        snprintf(named, sizeof named, "\"%.30s", text[i]);
        ck_assert_msg(exf_variant_parse(&v, text[i], &e) == EXF_USAGE, "\"%s\" is taken", text[i]);
        ck_assert_msg(strstr(e.msg, named) != NULL, "%s", e.msg);
    }
}

static const char *const no_kinds[] = {
    "", "P", "P0", "P-1", "P4 ", " P4", "P4x", "P1000000", "4", "p4", "TOP4", "Q4:rank=score",
    "aVeryLongNameOfAKindThatIsNone4", "P4+", "+D8", "P4++D8", "P4,D8", "P4+top2", "D4+reap8", "P4+D8+D4",
    "P4:max_loss=0.123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890",
};

/* Unknown ones, without a value that they need or with one that they do not take, given twice. */
static const char *const no_options[] = {
    "P4:", "P4:rank=score,", "P4:seed=1", "P4:Rank=score", "top4:rank=score", "random4:projector=pair",
    "D8:rescale=sum", "reap8:rank=norm", "sere4:fold=drop", "P4:rank", "top4:drop=1", "top4:renorm=",
    "P4:rank=score,rank=norm", "P4:rank=score,rank=score", "D8:fold=on,pool=static,fold=drop", "top4:drop,drop",
    "top4:renorm,drop",
};

/* A number that no float32 holds is neither infinity nor a fold that fails later. */
static const char *const no_values[] = {
    "P4:projector=dense", "P4:projector=lowrank", "P4:projector=lowrank0", "P4:projector=lowrank1025", "P4:rank=",
    "P4:rank=energy", "P4:rank=score=norm", "P4:rescale=l1", "P4:confidence=yes", "P4:max_loss=-0.1", "P4:max_loss=nan",
    "P4:max_loss=inf", "P4:max_loss= 1", "random4:seed=-1", "random4:seed=1.5", "random4:rank=best", "D8:pool=fixed",
    "D8:fold=off", "D8:batch=0", "D8:batch=8.5", "D8:rank=router", "P4:norms=own", "P4:loss=squared", "D8:fallback=on",
    "P4:projector=joint,loss=frobenius", "D8:pool=static,loss=frobenius", "D8:fold=drop,fallback=first",
    "D8:projector=diagonal", "D8:max_loss=x", "D8:projector=joint,ridge=-1", "P4:layer=-1", "P4:budget=row",
    "P4:budget=token,sensitivity=none", "skip1:tau=1,factor=kl", "D8:pool=static,by=score",
    "D8:targets=router,weights=own", "sere4:rho=1.01", "sere4:rho=much", "P4:projector=joint,ridge=1e39",
    "D8:projector=joint,ridge=1e31", "P4:max_loss=1e300", "D8:max_loss=1e39",
};

/* Options that would be ignored. */
static const char *const no_use[] = {
    "P4:projector=diagonal,rescale=sum", "P4:confidence=on,projector=lowrank8", "P4:projector=joint,max_loss=0.5",
    "P4:projector=joint,confidence=on", "D8:pool=static,rank=energy", "D8:projector=layer,pool=static",
    "D8:pool=static,max_loss=0.5", "D8:seed=2", "P4:projector=diagonal,norms=predicted",
    "P4:rank=score,norms=predicted", "D8:rank=score,norms=predicted", "D8:pool=static,norms=predicted",
    "D8:rank=score,targets=router,weights=gate,norms=predicted", "D8:fold=random,max_loss=0.5",
    "D8:fold=random,loss=frobenius", "D8:projector=joint,fold=drop", "D8:max_loss=0.5,projector=joint",
    "P4:budget=topp,sensitivity=output", "P4:budget=token,rank=score", "P4:projector=pair,budget=topp",
    "P4:budget=token,max_loss=0.5", "skip1", "skip0:budget=4,tau=0.1", "skip0:budget=4,factor=output", "D8:by=energy",
    "D8:weights=route", "D8:targets=router,projector=pair", "D8:targets=router,weights=gate,ridge=0.1",
    "P4:budget=token,ridge=0.1", "P4:ridge=0.1", "D8:ridge=0.1,projector=layer", "P4:projector=joint+D8:ridge=0.1",
};

START_TEST(what_is_no_variant)
{
    are_refused(no_kinds, COUNT(no_kinds));
    are_refused(no_options, COUNT(no_options));
    are_refused(no_values, COUNT(no_values));
    are_refused(no_use, COUNT(no_use));
    P("P4:max_loss=1e30", 4, v.prefill_options.max_loss = EXF_FOLD_NEVER);
    P("P4:rank=score+D8:rank=energy", 4,
      (v.prefill_options.rank = EXF_FOLD_BY_SCORE, v.decode = EXF_DECODE_DYNAMIC, v.decode_options.pool = 8,
       v.decode_options.importance = EXF_FOLD_IMPORTANCE_ENERGY));
}
END_TEST

/* ---- what a model allows ----------------------------------------------------------------- */

static exf_code check(const char *text, int n_experts, int top_k, exf_err *e)
{
    exf_variant v;
    ck_ok(exf_variant_parse(&v, text, e), *e);
    return exf_variant_check(&v, n_experts, top_k, e);
}

START_TEST(limits_of_a_model)
{
    exf_err e;
    static const char *const fit[] = {"P4",    "top4",   "random4:seed=2", "D16",   "D1",    "D16:pool=static",
                                      "reap4", "reap16", "sere4",          "sere1", "P4+D16"};
    for (size_t i = 0; i < sizeof fit / sizeof *fit; i++) ck_ok(check(fit[i], 16, 4, &e), e);
    ck_fails(check("P5", 16, 4, &e), EXF_USAGE, e, "\"P5\" 5 4");
    ck_fails(check("top5:drop", 16, 4, &e), EXF_USAGE, e, "\"top5:drop\" 5 4");
    ck_fails(check("random9", 16, 4, &e), EXF_USAGE, e, "\"random9\" 9 4");
    ck_fails(check("D17", 16, 4, &e), EXF_USAGE, e, "\"D17\" 17 16");
    ck_fails(check("P4+D17:pool=static", 16, 4, &e), EXF_USAGE, e, "17 16");
    ck_fails(check("reap17", 16, 4, &e), EXF_USAGE, e, "\"reap17\" 17 16");
    ck_fails(check("reap3", 16, 4, &e), EXF_USAGE, e, "\"reap3\" 3 4");
    ck_fails(check("sere5", 16, 4, &e), EXF_USAGE, e, "\"sere5\" 5 4");
    ck_ok(check("P1", 3, 1, &e), e);
    ck_ok(check("P16+D512", 512, 16, &e), e);
    ck_fails(check("P1", 2, 1, &e), EXF_MODEL, e,
             "\"P1\" 3 512 16 2 1");
    ck_fails(check("P1", 513, 1, &e), EXF_MODEL, e, "513 1");
    ck_fails(check("P1", 512, 17, &e), EXF_MODEL, e, "512 17");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, prefill_spellings);
    tcase_add_test(t, decode_spellings);
    tcase_add_test(t, a_prefill_and_a_decode_kind_together);
    tcase_add_test(t, a_name_says_its_batch);
    tcase_add_test(t, what_is_no_variant);
    tcase_add_test(t, limits_of_a_model);
}
