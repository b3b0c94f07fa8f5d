/* fold_variant.c - exf_fold_variant_read() of exfold/fold.h: a variant's text to the calls, the options and the arrays of a
 * tables.safetensors that it asks for.  The grammar is variant.c's, the runtime's limits are runtime_exfold.c's: libexfold_fold and
 * exfold-validate read the same words. */
#include "fold/runtime.h"
#include "fold/variant.h"
#include "kernels/fold/fold_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

extern const exf_runtime exf_runtime_exfold;

/* Adds a word WHAT=ARRAY to those of the part. */
static void reads(exf_fold_part *p, const char *what, const char *array, ...) EXF_PRINTF(3, 4);
static void reads(exf_fold_part *p, const char *what, const char *array, ...)
{
    size_t n = strlen(p->arrays);
    va_list values;
    n += (size_t)snprintf(p->arrays + n, sizeof p->arrays - n, "%s%s=", n ? " " : "", what);
    va_start(values, array);
    vsnprintf(p->arrays + n, sizeof p->arrays - n, array, values);
    va_end(values);
}

static void set_options(exf_fold_part *p, exf_fold_part_call call, const void *options, size_t n)
{
    p->call = call;
    memcpy(p->options, options, n);
}

/* ---- prefill ------------------------------------------------------------------------------ */

static void set_prefill(exf_fold_part *p, const exf_variant *v)
{
    exf_fold_prefill_options o = v->prefill_options;
    int joint = v->prefill_projector->apply == EXF_APPLY_JOINTLY;
    p->number = o.keep;
    p->predicts = v->prefill_norms;
    p->layer = v->only_layer - 1;
    if (joint) {
        reads(p, "cosine", "cosine");
        reads(p, "rms", "rms");
    } else {
        reads(p, "coeff", "coeff");
        reads(p, "loss", v->prefill_frobenius ? "frobenius" : "loss");
    }
    if (v->budget) {
        exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
        const char *rule = exf_variant_budget_rule(v);
        b.ridge = exf_fold_ridge(o.ridge);
        b.rule = v->budget == EXF_BUDGET_TOP_P ? EXF_FOLD_BUDGET_TOP_P : EXF_FOLD_BUDGET_TOKEN;
        set_options(p, EXF_FOLD_PART_PREFILL_BUDGET, &b, sizeof b);
        reads(p, "threshold", "budgets.%d.%s%s.lambda", p->number, rule, p->predicts ? ".predicted" : "");
        reads(p, "scale", "budgets.%d.%s.scale", p->number, rule);
        return;
    }
    o.size = EXF_FOLD_SIZED(exf_fold_prefill_options);
    o.max_loss = exf_fold_max_loss(o.max_loss);
    o.ridge = exf_fold_ridge(o.ridge);
    set_options(p, joint ? EXF_FOLD_PART_PREFILL_JOINT : EXF_FOLD_PART_PREFILL, &o, sizeof o);
    if (o.rank != EXF_FOLD_BY_SCORE) reads(p, "norms", "expert_norms");
}

/* ---- decode ------------------------------------------------------------------------------- */

/* Adds an array of a static pool; those by mean norm have no criterion in their name. */
static void read_pool(exf_fold_part *p, const exf_variant *v, const char *array)
{
    const char *by = exf_pool_criteria[v->pool_by];
    if (v->pool_by == EXF_POOL_BY_NORM) reads(p, array, "pools.%d.%s", p->number, array);
    else reads(p, array, "pools_by.%s.%d.%s", by, p->number, array);
}

static void set_decode(exf_fold_part *p, const exf_variant *v)
{
    exf_fold_decode_options o = v->decode_options;
    int joint = v->decode_projector->apply == EXF_APPLY_JOINTLY, fixed = v->decode == EXF_DECODE_STATIC;
    p->number = o.pool;
    p->predicts = v->decode_norms;
    p->layer = -1;
    o.size = EXF_FOLD_SIZED(exf_fold_decode_options);
    o.max_loss = exf_fold_max_loss(o.max_loss);
    o.ridge = exf_fold_ridge(o.ridge);
    if (v->by_router) {
        exf_fold_stand_in_options s = EXF_FOLD_STAND_IN_INIT;
        s.importance = o.importance;
        s.weights = v->stand_in_weights;
        s.ridge = o.ridge;
        s.pool = p->number;
        set_options(p, EXF_FOLD_PART_STAND_INS, &s, sizeof s);
    } else if (fixed) {
        p->call = EXF_FOLD_PART_DECODE_STATIC;
        read_pool(p, v, "target_ids");
        read_pool(p, v, "target_scale");
        return;
    } else {
        set_options(p, joint ? EXF_FOLD_PART_DECODE_JOINT : EXF_FOLD_PART_DECODE, &o, sizeof o);
    }
    if (joint) {
        reads(p, "cosine", "cosine");
    } else {
        reads(p, "coeff", "coeff");
        reads(p, "loss", v->decode_frobenius ? "frobenius" : "loss");
    }
    if (joint || o.importance == EXF_FOLD_IMPORTANCE_ENERGY) reads(p, "rms", "rms");
    if (fixed) read_pool(p, v, "members");
    else if (o.importance == EXF_FOLD_IMPORTANCE_NORM) reads(p, "norms", "expert_norms");
}

/* ---- the whole ---------------------------------------------------------------------------- */

/* Copies the part of the text that is of the kind, "P4:rank=score" of "P4:rank=score+D64". */
static void copy_text(exf_fold_part *p, const char *text, char kind)
{
    if (*text != kind && strchr(text, '+')) text = strchr(text, '+') + 1;
    snprintf(p->text, sizeof p->text, "%.*s", (int)strcspn(text, "+"), text);
    if (!p->predicts) return;
    reads(p, "basis", "norm_head.basis");
    reads(p, "theta", "norm_head.theta");
}

/* Refuses shared scalars, whose table a runtime would have to make. */
static exf_code check_projector(const exf_variant *v, const exf_projector *p, exf_err *err)
{
    if (p->apply == EXF_APPLY_PAIR || p->apply == EXF_APPLY_JOINTLY) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "variant \"%s\": projector=%s, expected pair, joint", v->name, p->name);
}

static exf_code read_variant(exf_variant *v, const char *text, int n_experts, int top_k, exf_text *words, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_variant_parse_on(&exf_runtime_exfold, v, text, err));
    EXF_TRY(exf_runtime_check(&exf_runtime_exfold, v, NULL, err));
    EXF_TRY(check_projector(v, v->prefill_projector, err));
    EXF_TRY(check_projector(v, v->decode_projector, err));
    if (n_experts) EXF_TRY(exf_variant_check(v, n_experts, top_k, err));
    rc = exf_variant_words(v, words, err);
out:
    return rc;
}

exf_fold_status exf_fold_variant_read(exf_fold_variant *v, const char *text, int n_experts, int top_k, char *why, size_t why_bytes)
{
    exf_fold_variant ours = EXF_FOLD_VARIANT_INIT;
    exf_variant read;
    exf_text words = {0};
    exf_err err = {EXF_OK, ""};
    if (!v || !text || v->size != EXF_FOLD_SIZED(exf_fold_variant)) return EXF_FOLD_BAD_ARGUMENT;
    if (read_variant(&read, text, n_experts, top_k, &words, &err) == EXF_OK) {
        if (read.prefill != EXF_PREFILL_NONE) {
            set_prefill(&ours.prefill, &read);
            copy_text(&ours.prefill, text, 'P');
        }
        if (read.decode != EXF_DECODE_NONE) {
            set_decode(&ours.decode, &read);
            copy_text(&ours.decode, text, 'D');
        }
        snprintf(ours.words, sizeof ours.words, "%s", words.s);
        *v = ours;
    }
    if (why && why_bytes) snprintf(why, why_bytes, "%s", err.msg);
    exf_text_free(&words);
    return err.code == EXF_OK ? EXF_FOLD_OK : EXF_FOLD_BAD_ARGUMENT;
}
