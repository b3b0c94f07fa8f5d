/* check_fold_variant.c - exf_fold_variant_read() of exfold/fold.h: the calls, options and arrays of a text, and that it refuses
 * what exfold-validate refuses for this runtime. */
#include "tests/support/scratch_fixtures.h"

#include "exfold/fold.h"
#include "fold/runtime.h"
#include "fold/variant.h"

#include <string.h>

static char why[1024];

static exf_fold_variant parsed(const char *text)
{
    exf_fold_variant v = EXF_FOLD_VARIANT_INIT;
    ck_assert_msg(exf_fold_variant_read(&v, text, 0, 0, why, sizeof why) == EXF_FOLD_OK, "%s: %s", text, why);
    return v;
}

static void part(const exf_fold_part *p, exf_fold_part_call call, int number, const char *text, const char *arrays)
{
    ck_assert_int_eq(p->call, call);
    ck_assert_int_eq(p->number, number);
    ck_assert_str_eq(p->text, text);
    ck_assert_str_eq(p->arrays, arrays);
}

START_TEST(prefill_parts)
{
    exf_fold_prefill_options o;
    exf_fold_budget_options b;
    exf_fold_variant v = parsed("P4:max_loss=0,rescale=sum,loss=frobenius");
    part(&v.prefill, EXF_FOLD_PART_PREFILL, 4, "P4:max_loss=0,rescale=sum,loss=frobenius",
         "coeff=coeff loss=frobenius norms=expert_norms");
    ck_assert_int_eq(v.decode.call, EXF_FOLD_PART_NONE);
    memcpy(&o, v.prefill.options, sizeof o);
    ck_assert(o.size == EXF_FOLD_SIZED(exf_fold_prefill_options) && o.keep == 4 && o.rescale == EXF_FOLD_RESCALE_SUM);
    ck_assert(o.max_loss == 0 && o.ridge == EXF_FOLD_RIDGE);
    v = parsed("P3:projector=joint,rank=score,ridge=0,layer=7");
    part(&v.prefill, EXF_FOLD_PART_PREFILL_JOINT, 3, "P3:projector=joint,rank=score,ridge=0,layer=7", "cosine=cosine rms=rms");
    memcpy(&o, v.prefill.options, sizeof o);
    ck_assert(o.ridge == 0 && o.max_loss == EXF_FOLD_NO_LIMIT && v.prefill.layer == 7);
    v = parsed("P3:budget=topp,norms=predicted");
    part(&v.prefill, EXF_FOLD_PART_PREFILL_BUDGET, 3, "P3:budget=topp,norms=predicted",
         "cosine=cosine rms=rms threshold=budgets.3.top_p.predicted.lambda scale=budgets.3.top_p.scale basis=norm_head.basis "
         "theta=norm_head.theta");
    memcpy(&b, v.prefill.options, sizeof b);
    ck_assert(b.rule == EXF_FOLD_BUDGET_TOP_P && v.prefill.predicts == 1 && v.prefill.layer == -1);
}
END_TEST

START_TEST(decode_parts)
{
    exf_fold_decode_options d;
    exf_fold_stand_in_options s;
    exf_fold_variant v = parsed("D64:fold=drop,fallback=drop");
    part(&v.decode, EXF_FOLD_PART_DECODE, 64, "D64:fold=drop,fallback=drop", "coeff=coeff loss=loss norms=expert_norms");
    memcpy(&d, v.decode.options, sizeof d);
    ck_assert(d.drop == 1 && d.pool == 64 && d.max_loss == EXF_FOLD_NO_LIMIT);
    v = parsed("D8:rank=energy,projector=joint");
    part(&v.decode, EXF_FOLD_PART_DECODE_JOINT, 8, "D8:rank=energy,projector=joint", "cosine=cosine rms=rms");
    v = parsed("D8:pool=static,by=reap");
    part(&v.decode, EXF_FOLD_PART_DECODE_STATIC, 8, "D8:pool=static,by=reap",
         "target_ids=pools_by.reap.8.target_ids target_scale=pools_by.reap.8.target_scale");
    v = parsed("D8:pool=static,targets=router,weights=gate");
    part(&v.decode, EXF_FOLD_PART_STAND_INS, 8, "D8:pool=static,targets=router,weights=gate",
         "cosine=cosine rms=rms members=pools.8.members");
    memcpy(&s, v.decode.options, sizeof s);
    ck_assert(s.weights == EXF_FOLD_STAND_INS_GATE && s.pool == 8);
    v = parsed("D16:targets=router+P2:rank=score"); /* in either order */
    part(&v.prefill, EXF_FOLD_PART_PREFILL, 2, "P2:rank=score", "coeff=coeff loss=loss");
    part(&v.decode, EXF_FOLD_PART_STAND_INS, 16, "D16:targets=router", "cosine=cosine rms=rms norms=expert_norms");
    ck_assert_str_eq(v.words, "2 experts per token, one scalar per pair, kept by router weight; 16 experts per decode batch, "
                              "stand-ins by the router, joint weights");
}
END_TEST

/* Spellings that a second grammar once took; kinds and options that no runtime runs; limits of a model. */
START_TEST(what_is_refused)
{
    static const char *const texts[] = {
        "P2:budget=none", "D8:fold=drop,projector=joint", "P2:max_loss=nan", "P2:max_loss=-1", "P2:rank=", "P2,rank=score",
        "P2:rank=score,rank=norm", "P2:", "P2:ridge=0.1", "D8:pool=static,max_loss=0.5", "P2:max_loss=inf",
        "P2:projector=joint,max_loss=0.5", "P02x", "D8:norms=predicted,rank=score", "top2", "random2", "skip1:tau=0.1", "reap8",
        "sere2", "D8:fold=renorm", "D8:fold=random", "P2:projector=diagonal", "P2:projector=layer", "D8:projector=global",
        "P2+P3", "D8+D9", "D8:pool=static,projector=joint", ""};
    exf_fold_variant v = parsed("P4+D8"), before = v;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ck_assert_msg(exf_fold_variant_read(&v, texts[i], 0, 0, why, sizeof why) == EXF_FOLD_BAD_ARGUMENT, "%s is read", texts[i]);
        ck_assert_msg(strstr(why, texts[i]) != NULL, "\"%s\" does not name %s", why, texts[i]);
        ck_assert_int_eq(memcmp(&v, &before, sizeof v), 0);
    }
    ck_assert_int_eq(exf_fold_variant_read(&v, "P9", 16, 8, why, sizeof why), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_str_eq(why, "variant \"P9\" keeps 9 experts per token, the model runs 8");
    ck_assert_int_eq(exf_fold_variant_read(&v, "D17", 16, 8, NULL, 0), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_variant_read(&v, "P8+D16", 16, 8, why, sizeof why), EXF_FOLD_OK);
    v.size = 0;
    ck_assert_int_eq(exf_fold_variant_read(&v, "P4", 0, 0, why, sizeof why), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_variant_read(NULL, "P4", 0, 0, why, sizeof why), EXF_FOLD_BAD_ARGUMENT);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "parts");
    tcase_add_test(c, prefill_parts);
    tcase_add_test(c, decode_parts);
    tcase_add_test(c, what_is_refused);
}
