/* check_variant.c - fold/variant: every spelling to its struct, every refusal with its
 * message, what a model allows. */
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

static void told(const char *name, const char *words)
{
    exf_err e;
    exf_text t = {0};
    exf_variant v;
    ck_ok(exf_variant_parse(&v, name, &e), e);
    ck_ok(exf_variant_words(&v, &t, &e), e);
    ck_assert_str_eq(t.s, words);
    exf_text_free(&t);
}

START_TEST(every_option_has_words)
{
    told("P1", "1 expert per token, one scalar per pair");
    told("P2:projector=joint", "2 experts per token, joint weights");
    told("P4:projector=layer,rank=score", "4 experts per token, one scalar per layer, kept by router weight");
    told("P4:projector=global,rank=norm", "4 experts per token, one scalar for the model, kept by expert norm");
    told("P4:projector=diagonal,max_loss=0.99", "4 experts per token, a diagonal per pair, pairs of loss up to 0.99");
    told("P4:projector=lowrank8", "4 experts per token, a low-rank map per pair, rank 8");
    told("P4:projector=joint,ridge=0.1", "4 experts per token, joint weights, ridge 0.1");
    told("P4:rescale=sum", "4 experts per token, one scalar per pair, weights rescaled to the original sum");
    told("P4:rescale=l2,confidence=on",
         "4 experts per token, one scalar per pair, weights rescaled to the original l2 norm, folded in proportion to 1 - loss");
    told("top4", "4 best experts per token alone, weights renormalised");
    told("top1:drop", "1 best expert per token alone, weights unchanged");
    told("random2:rank=score", "2 experts per token, the others folded into random ones, kept by router weight, seed 1");
    told("D64", "64 experts per decode batch, one scalar per pair");
    told("D64:fold=drop,rank=energy", "64 experts per decode batch chosen by energy, the others dropped");
    told("D64:fold=renorm", "64 experts per decode batch, the others dropped, weights renormalised");
    told("D64:fold=random,batch=8",
         "64 experts per decode batch, the others folded into random ones, seed 1, 8 sequences side by side");
    told("reap64:batch=1", "REAP: the router picks among 64 retained experts, 1 sequence side by side");
    told("D64:pool=static", "static pool of 64 experts by norm, one scalar per pair");
    told("D64:projector=joint,ridge=0.5", "64 experts per decode batch, joint weights, ridge 0.5");
    told("D64:max_loss=0.5", "64 experts per decode batch, one scalar per pair, pairs of loss up to 0.5");
    told("P2:budget=token", "2 experts per token in the mean, by predicted residual against the residual stream, joint weights");
    told("P3:budget=topp", "3 experts per token in the mean, by share of a token's output, joint weights");
    told("P2:projector=joint,layer=3", "2 experts per token, joint weights, in layer 3 alone");
    told("skip2:tau=0.1,factor=output",
         "routes below 0.1 of their token's weights dropped, 2 experts per token at least, times the layer's sensitivity (output)");
    told("skip0:budget=4", "routes below the threshold for 4 experts per token in the mean dropped");
    told("skip0:tau=2,layer=1", "routes below 2 of their token's weights dropped, in layer 1 alone");
    told("reap64:by=frequency", "REAP: the router picks among 64 retained experts by frequency");
    told("P2:projector=joint,norms=predicted,layer=1", "2 experts per token, joint weights, by predicted norms, in layer 1 alone");
    told("P2:norms=mean", "2 experts per token, one scalar per pair");
    told("D64:rank=energy,norms=predicted",
         "64 experts per decode batch chosen by energy, one scalar per pair, by predicted norms");
    told("D64:targets=router", "64 experts per decode batch, stand-ins by the router, joint weights");
    told("D64:targets=router,weights=route,rank=energy",
         "64 experts per decode batch chosen by energy, stand-ins by the router, the router's weights");
    told("D64:pool=static,by=reap,targets=router,weights=gate",
         "static pool of 64 experts by reap, stand-ins by the router, its own gate weight");
    told("D64:pool=static,by=energy", "static pool of 64 experts by energy, one scalar per pair");
    told("reap64", "REAP: the router picks among 64 retained experts");
    told("sere4", "SERE: routes outside the batch's top-4 experts go to the most similar of these");
    told("sere4:rho=0.1",
         "SERE: routes outside the batch's top-4 experts go to the most similar of these, if at least 0.1 similar");
    told("D12+P3", "3 experts per token, one scalar per pair; 12 experts per decode batch, one scalar per pair");
}
END_TEST

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

static void refused(const char *text, const char *message)
{
    exf_err e;
    exf_variant v;
    ck_assert_msg(exf_variant_parse(&v, text, &e) == EXF_USAGE, "\"%s\" is taken", text);
    ck_assert_str_eq(e.msg, message);
    ck_assert_int_eq(exf_variant_parse(&v, text, NULL), EXF_USAGE);
}

#define OF_P                                                                                                                \
    "is no option of P (known: projector, rank, max_loss, rescale, confidence, loss, ridge, budget, sensitivity, norms, layer)"
#define OF_D                                                                                                                \
    "is no option of D (known: pool, fold, seed, rank, projector, targets, weights, by, max_loss, loss, fallback, ridge, norms, " \
    "batch)"
#define A_STATIC_POOL "a static pool has pair scalars or joint weights, no rank (by says what its experts are) and no max_loss"
#define A_BUDGET "a budget keeps routes by w rms and weighs them jointly; it takes no rank, no rescale and no other projector"
#define PREDICTED_P "norms=predicted is of joint weights, and of routes kept by norm whose projector is a scalar"
#define PREDICTED_D "norms=predicted is of pools by norm or energy, and of joint weights"
#define NO_KIND(text, part)                       \
    refused(text, "variant \"" text "\": \"" part \
                  "\" is no kind; kinds are P4, top4, skip1, random4, D64, reap64, sere4, with any number from 1 (skip: from 0)")

START_TEST(kinds_that_are_none)
{
    NO_KIND("", "");
    NO_KIND("P", "P");
    NO_KIND("P0", "P0");
    NO_KIND("P-1", "P-1");
    NO_KIND("P4 ", "P4 ");
    NO_KIND(" P4", " P4");
    NO_KIND("P4x", "P4x");
    NO_KIND("P1000000", "P1000000");
    NO_KIND("4", "4");
    refused("p4", "variant \"p4\": \"p4\" is no kind; did you mean \"P4\"?");
    refused("TOP4", "variant \"TOP4\": \"TOP4\" is no kind; did you mean \"top4\"?");
    NO_KIND("Q4:rank=score", "Q4");
    NO_KIND("aVeryLongNameOfAKindThatIsNone4", "aVeryLongNameOfAKindThatIsNone4");
    NO_KIND("P4+", "");
    NO_KIND("+D8", "");
    NO_KIND("P4++D8", "");
    NO_KIND("P4,D8", "P4,D8");
    refused("P4+top2", "variant \"P4+top2\": two prefill kinds, expected at most one of prefill and one of decode");
    refused("D4+reap8", "variant \"D4+reap8\": two decode kinds, expected at most one of prefill and one of decode");
    refused("P4+D8+D4", "variant \"P4+D8+D4\": two decode kinds, expected at most one of prefill and one of decode");
    refused("P4:max_loss=0.123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890",
            "variant \"P4:max_loss=0.12345678901234567890123456...\" has 104 characters, at most 95 are allowed");
}
END_TEST

START_TEST(options_that_are_none)
{
    refused("P4:", "variant \"P4:\": \"\" " OF_P);
    refused("P4:rank=score,",
            "variant \"P4:rank=score,\": \"\" " OF_P);
    refused("P4:seed=1",
            "variant \"P4:seed=1\": \"seed\" " OF_P);
    refused("P4:Rank=score",
            "variant \"P4:Rank=score\": \"Rank\" " OF_P);
    refused("top4:rank=score", "variant \"top4:rank=score\": \"rank\" is no option of top (known: renorm, drop)");
    refused("random4:projector=pair",
            "variant \"random4:projector=pair\": \"projector\" is no option of random (known: rank, seed)");
    refused("D8:rescale=sum",
            "variant \"D8:rescale=sum\": \"rescale\" " OF_D);
    refused("reap8:rank=norm", "variant \"reap8:rank=norm\": \"rank\" is no option of reap (known: by, router, batch)");
    refused("sere4:fold=drop", "variant \"sere4:fold=drop\": \"fold\" is no option of sere (known: rho, batch)");
    refused("P4:rank", "variant \"P4:rank\": rank needs a value");
    refused("top4:drop=1", "variant \"top4:drop=1\": drop takes no value");
    refused("top4:renorm=", "variant \"top4:renorm=\": renorm takes no value");
}
END_TEST

START_TEST(values_that_are_none)
{
    refused("P4:projector=dense",
            "variant \"P4:projector=dense\": projector=dense, expected pair, layer, global, diagonal, lowrank, joint");
    refused("P4:projector=lowrank", "variant \"P4:projector=lowrank\": projector=lowrank, expected a rank with it, as in lowrank8");
    refused("P4:projector=lowrank0",
            "variant \"P4:projector=lowrank0\": projector=lowrank0, expected pair, layer, global, diagonal, lowrank, joint");
    refused("P4:projector=lowrank1025",
            "variant \"P4:projector=lowrank1025\": projector=lowrank1025, expected pair, layer, global, diagonal, lowrank, joint");
    refused("P4:rank=", "variant \"P4:rank=\": rank=, expected score_norm, score, norm");
    refused("P4:rank=energy", "variant \"P4:rank=energy\": rank=energy, expected score_norm, score, norm");
    refused("P4:rank=score=norm", "variant \"P4:rank=score=norm\": rank=score=norm, expected score_norm, score, norm");
    refused("P4:rescale=l1", "variant \"P4:rescale=l1\": rescale=l1, expected none, sum, l2");
    refused("P4:confidence=yes", "variant \"P4:confidence=yes\": confidence=yes, expected off, on");
    refused("P4:max_loss=-0.1", "variant \"P4:max_loss=-0.1\": max_loss=-0.1, expected a number from 0 to 1e+30");
    refused("P4:max_loss=nan", "variant \"P4:max_loss=nan\": max_loss=nan, expected a number from 0 to 1e+30");
    refused("P4:max_loss=inf", "variant \"P4:max_loss=inf\": max_loss=inf, expected a number from 0 to 1e+30");
    refused("P4:max_loss= 1", "variant \"P4:max_loss= 1\": max_loss= 1, expected a number from 0 to 1e+30");
    refused("random4:seed=-1", "variant \"random4:seed=-1\": seed=-1, expected an integer from 0");
    refused("random4:seed=1.5", "variant \"random4:seed=1.5\": seed=1.5, expected an integer from 0");
    refused("random4:rank=best", "variant \"random4:rank=best\": rank=best, expected score_norm, score, norm");
    refused("D8:pool=fixed", "variant \"D8:pool=fixed\": pool=fixed, expected dynamic, static");
    refused("D8:fold=off", "variant \"D8:fold=off\": fold=off, expected on, drop, renorm, random");
    refused("D8:batch=0", "variant \"D8:batch=0\": batch=0, expected a number of sequences from 1");
    refused("D8:batch=8.5", "variant \"D8:batch=8.5\": batch=8.5, expected a number of sequences from 1");
    refused("D8:rank=router", "variant \"D8:rank=router\": rank=router, expected norm, energy, score");
    refused("P4:norms=own", "variant \"P4:norms=own\": norms=own, expected mean, predicted");
    refused("P4:loss=squared", "variant \"P4:loss=squared\": loss=squared, expected energy, frobenius");
    refused("D8:fallback=on", "variant \"D8:fallback=on\": fallback=on, expected drop, first");
    refused("P4:projector=joint,loss=frobenius",
            "variant \"P4:projector=joint,loss=frobenius\": loss=frobenius is of projector=pair and of dynamic pools alone");
    refused("D8:pool=static,loss=frobenius",
            "variant \"D8:pool=static,loss=frobenius\": loss=frobenius is of projector=pair and of dynamic pools alone");
    refused("D8:fold=drop,fallback=first", "variant \"D8:fold=drop,fallback=first\": fallback=first cannot be combined with "
                                           "projector=joint, targets=router, pool=static, nor with a fold but on");
    refused("D8:projector=diagonal", "variant \"D8:projector=diagonal\": projector=diagonal, expected pair, layer, global, joint");
    refused("D8:max_loss=x", "variant \"D8:max_loss=x\": max_loss=x, expected a number from 0 to 1e+30");
    refused("D8:projector=joint,ridge=-1", "variant \"D8:projector=joint,ridge=-1\": ridge=-1, expected a number from 0 to 1e+30");
    refused("P4:layer=-1", "variant \"P4:layer=-1\": layer=-1, expected the number of a layer, from 0");
    refused("P4:budget=row", "variant \"P4:budget=row\": budget=row, expected token, topp");
    refused("P4:budget=token,sensitivity=none",
            "variant \"P4:budget=token,sensitivity=none\": sensitivity=none, expected stream, output, measured");
    refused("skip1:tau=1,factor=kl", "variant \"skip1:tau=1,factor=kl\": factor=kl, expected none, stream, output, "
                                       "measured, skip");
    refused("D8:pool=static,by=score", "variant \"D8:pool=static,by=score\": by=score, expected norm, reap, energy, "
                                      "frequency, ean, weighted_ean");
    refused("D8:targets=router,weights=own",
            "variant \"D8:targets=router,weights=own\": weights=own, expected joint, route, gate");
    refused("sere4:rho=1.01", "variant \"sere4:rho=1.01\": rho=1.01, expected a number from 0 to 1");
    refused("sere4:rho=much", "variant \"sere4:rho=much\": rho=much, expected a number from 0 to 1");
}
END_TEST

/* A number that no float32 holds is neither infinity nor a fold that fails later. */
START_TEST(numbers_beyond_float32)
{
    refused("P4:projector=joint,ridge=1e39",
            "variant \"P4:projector=joint,ridge=1e39\": ridge=1e39, expected a number from 0 to 1e+30");
    refused("D8:projector=joint,ridge=1e31",
            "variant \"D8:projector=joint,ridge=1e31\": ridge=1e31, expected a number from 0 to 1e+30");
    refused("P4:max_loss=1e300", "variant \"P4:max_loss=1e300\": max_loss=1e300, expected a number from 0 to 1e+30");
    refused("D8:max_loss=1e39", "variant \"D8:max_loss=1e39\": max_loss=1e39, expected a number from 0 to 1e+30");
    P("P4:max_loss=1e30", 4, v.prefill_options.max_loss = EXF_FOLD_NEVER);
}
END_TEST

/* Nobody can tell which was meant. */
START_TEST(options_given_twice)
{
    refused("P4:rank=score,rank=norm", "variant \"P4:rank=score,rank=norm\": rank is given twice");
    refused("P4:rank=score,rank=score", "variant \"P4:rank=score,rank=score\": rank is given twice");
    refused("D8:fold=on,pool=static,fold=drop", "variant \"D8:fold=on,pool=static,fold=drop\": fold is given twice");
    refused("top4:drop,drop", "variant \"top4:drop,drop\": drop is given twice");
    refused("top4:renorm,drop", "variant \"top4:renorm,drop\": renorm and drop contradict each other");
    P("P4:rank=score+D8:rank=energy", 4,
      (v.prefill_options.rank = EXF_FOLD_BY_SCORE, v.decode = EXF_DECODE_DYNAMIC, v.decode_options.pool = 8,
       v.decode_options.importance = EXF_FOLD_IMPORTANCE_ENERGY));
}
END_TEST

START_TEST(options_that_would_be_ignored)
{
    refused("P4:projector=diagonal,rescale=sum",
            "variant \"P4:projector=diagonal,rescale=sum\": this projector cannot be combined with rescale or confidence");
    refused("P4:confidence=on,projector=lowrank8",
            "variant \"P4:confidence=on,projector=lowrank8\": this projector cannot be combined with rescale or confidence");
    refused("P4:projector=joint,max_loss=0.5",
            "variant \"P4:projector=joint,max_loss=0.5\": this projector cannot be combined with max_loss or confidence");
    refused("P4:projector=joint,confidence=on",
            "variant \"P4:projector=joint,confidence=on\": this projector cannot be combined with max_loss or confidence");
    refused("D8:pool=static,rank=energy",
            "variant \"D8:pool=static,rank=energy\": " A_STATIC_POOL);
    refused("D8:projector=layer,pool=static",
            "variant \"D8:projector=layer,pool=static\": " A_STATIC_POOL);
    refused("D8:pool=static,max_loss=0.5",
            "variant \"D8:pool=static,max_loss=0.5\": " A_STATIC_POOL);
    refused("D8:seed=2", "variant \"D8:seed=2\": seed is of fold=random alone");
    refused("P4:projector=diagonal,norms=predicted", "variant \"P4:projector=diagonal,norms=predicted\": " PREDICTED_P);
    refused("P4:rank=score,norms=predicted", "variant \"P4:rank=score,norms=predicted\": " PREDICTED_P);
    refused("D8:rank=score,norms=predicted", "variant \"D8:rank=score,norms=predicted\": " PREDICTED_D);
    refused("D8:pool=static,norms=predicted", "variant \"D8:pool=static,norms=predicted\": " PREDICTED_D);
    refused("D8:rank=score,targets=router,weights=gate,norms=predicted",
            "variant \"D8:rank=score,targets=router,weights=gate,norms=predicted\": " PREDICTED_D);
    refused("D8:fold=random,max_loss=0.5",
            "variant \"D8:fold=random,max_loss=0.5\": fold=random draws its targets whatever their loss");
    refused("D8:fold=random,loss=frobenius",
            "variant \"D8:fold=random,loss=frobenius\": fold=random draws its targets whatever their loss");
    refused("D8:projector=joint,fold=drop",
            "variant \"D8:projector=joint,fold=drop\": projector=joint cannot be combined with max_loss, nor with a fold but on");
    refused("D8:max_loss=0.5,projector=joint",
            "variant \"D8:max_loss=0.5,projector=joint\": projector=joint cannot be combined with max_loss, nor with a fold "
            "but on");
    refused("P4:budget=topp,sensitivity=output",
            "variant \"P4:budget=topp,sensitivity=output\": sensitivity is of budget=token alone");
    refused("P4:budget=token,rank=score",
            "variant \"P4:budget=token,rank=score\": " A_BUDGET);
    refused("P4:projector=pair,budget=topp",
            "variant \"P4:projector=pair,budget=topp\": " A_BUDGET);
    refused("P4:budget=token,max_loss=0.5",
            "variant \"P4:budget=token,max_loss=0.5\": this projector cannot be combined with max_loss or confidence");
    refused("skip1", "variant \"skip1\": skip needs a threshold above 0, as in skip1:tau=0.1, or a budget of the "
                     "tables, as in skip0:budget=4");
    refused("skip0:budget=4,tau=0.1", "variant \"skip0:budget=4,tau=0.1\": skip's budget has its own tau and factor");
    refused("skip0:budget=4,factor=output", "variant \"skip0:budget=4,factor=output\": skip's budget has its own tau and factor");
    refused("D8:by=energy", "variant \"D8:by=energy\": by is of pool=static alone; a batch's pool has rank");
    refused("D8:weights=route", "variant \"D8:weights=route\": weights is of targets=router alone");
    refused("D8:targets=router,projector=pair",
            "variant \"D8:targets=router,projector=pair\": where the router chooses targets, their weights are said by weights; it "
            "takes no fold, no max_loss and no other projector");
    refused("D8:targets=router,weights=gate,ridge=0.1",
            "variant \"D8:targets=router,weights=gate,ridge=0.1\": ridge is of weights=joint alone");
    refused("P4:budget=token,ridge=0.1", "variant \"P4:budget=token,ridge=0.1\": the lambda of a budget was solved with a ridge of "
            "0.01; with another the mean would not be the budget");
    refused("P4:ridge=0.1", "variant \"P4:ridge=0.1\": ridge is of projector=joint alone");
    refused("D8:ridge=0.1,projector=layer", "variant \"D8:ridge=0.1,projector=layer\": ridge is of projector=joint alone");
    refused("P4:projector=joint+D8:ridge=0.1", "variant \"P4:projector=joint+D8:ridge=0.1\": ridge is of projector=joint alone");
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

Suite *exf_suite(void)
{
    Suite *s = suite_create("variant");
    TCase *t = tcase_create("all");
    tcase_add_test(t, prefill_spellings);
    tcase_add_test(t, decode_spellings);
    tcase_add_test(t, a_prefill_and_a_decode_kind_together);
    tcase_add_test(t, every_option_has_words);
    tcase_add_test(t, a_name_says_its_batch);
    tcase_add_test(t, kinds_that_are_none);
    tcase_add_test(t, options_that_are_none);
    tcase_add_test(t, values_that_are_none);
    tcase_add_test(t, numbers_beyond_float32);
    tcase_add_test(t, options_given_twice);
    tcase_add_test(t, options_that_would_be_ignored);
    tcase_add_test(t, limits_of_a_model);
    suite_add_tcase(s, t);
    return s;
}
