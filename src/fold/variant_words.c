/* variant_words.c - says in words what a variant does; see variant.h. */
#include "fold/variant.h"
#include "fold/variant_internal.h"

#include "base/text.h"
#include "kernels/fold/fold_internal.h"
#include "model/architecture.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Appends how a fold replaces the experts it leaves out. */
static exf_code add_projector(const exf_projector *p, int rank, exf_text *out, exf_err *err)
{
    exf_code rc = exf_text_addf(out, err, ", %s", p->words);
    return rc == EXF_OK && p->ranked ? exf_text_addf(out, err, ", rank %d", rank) : rc;
}

/* Appends the options of a number, where they differ from the default. */
/* Returns the number that an option means. */
static double meant(float option)
{
    return option == EXF_FOLD_ZERO ? 0 : (double)option;
}

static exf_code add_numbers(float max_loss, float ridge, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (max_loss != 0 && max_loss < EXF_FOLD_NEVER) rc = exf_text_addf(out, err, ", pairs of loss up to %g", meant(max_loss));
    if (rc == EXF_OK && ridge != 0 && ridge != EXF_FOLD_RIDGE) rc = exf_text_addf(out, err, ", ridge %g", meant(ridge));
    return rc;
}

static exf_code add_loss(int frobenius, exf_text *out, exf_err *err)
{
    return frobenius ? exf_text_addf(out, err, ", loss by Frobenius norm") : EXF_OK;
}

/* ---- prefill ------------------------------------------------------------------------ */

static exf_code add_rank(exf_fold_rank rank, exf_text *out, exf_err *err)
{
    static const char *const words[] = {"", ", kept by router weight", ", kept by expert norm"};
    return exf_text_addf(out, err, "%s", words[rank]);
}

/* Says by what the routes of a token are counted. */
static exf_code add_budget(const exf_variant *v, exf_text *out, exf_err *err)
{
    static const char *const against[] = {"the residual stream", "the residual stream", "the layer's output",
                                          "the measured sensitivity"};
    if (v->budget == EXF_BUDGET_TOP_P) return exf_text_addf(out, err, ", by share of a token's output");
    return v->budget ? exf_text_addf(out, err, ", by predicted residual against %s", against[v->sensitivity]) : EXF_OK;
}

static exf_code add_skip(const exf_variant *v, exf_text *out, exf_err *err)
{
    int keep = v->prefill_options.keep;
    exf_code rc = exf_text_addf(out, err, "routes below %g dropped, %d expert%s per token at least", v->tau, keep,
                                keep == 1 ? "" : "s");
    if (rc != EXF_OK || v->sensitivity == EXF_SENSITIVITY_NONE) return rc;
    return exf_text_addf(out, err, ", times the layer's sensitivity (%s)", exf_sensitivity_name(v->sensitivity));
}

static exf_code add_prefill_fold(const exf_variant *v, exf_text *out, exf_err *err)
{
    static const char *const rescaled[] = {"", ", weights rescaled to the original sum",
                                           ", weights rescaled to the original l2 norm"};
    const exf_fold_prefill_options *o = &v->prefill_options;
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "%d expert%s per token%s", o->keep, o->keep == 1 ? "" : "s", v->budget ? " in the mean" : ""));
    EXF_TRY(add_budget(v, out, err));
    EXF_TRY(add_projector(v->prefill_projector, v->prefill_lowrank, out, err));
    EXF_TRY(add_rank(o->rank, out, err));
    EXF_TRY(add_loss(v->prefill_frobenius, out, err));
    EXF_TRY(add_numbers(o->max_loss, o->ridge, out, err));
    EXF_TRY(exf_text_addf(out, err, "%s%s", rescaled[o->rescale], o->confidence ? ", folded in proportion to 1 - loss" : ""));
    if (v->only_layer) EXF_TRY(exf_text_addf(out, err, ", in layer %d alone", v->only_layer - 1));
out:
    return rc;
}

static exf_code add_random(const exf_variant *v, exf_text *out, exf_err *err)
{
    int keep = v->prefill_options.keep;
    exf_code rc = exf_text_addf(out, err, "%d expert%s per token, the others folded into random ones", keep, keep == 1 ? "" : "s");
    if (rc == EXF_OK) rc = add_rank(v->prefill_options.rank, out, err);
    return rc == EXF_OK ? exf_text_addf(out, err, ", seed %" PRId64, v->seed) : rc;
}

static exf_code add_prefill(const exf_variant *v, exf_text *out, exf_err *err)
{
    int keep = v->prefill_options.keep;
    switch (v->prefill) {
    case EXF_PREFILL_NONE: return EXF_OK;
    case EXF_PREFILL_FOLD: return add_prefill_fold(v, out, err);
    case EXF_PREFILL_TOP:
        return exf_text_addf(out, err, "%d best expert%s per token alone, weights %s", keep, keep == 1 ? "" : "s",
                             v->renormalise ? "renormalised" : "unchanged");
    case EXF_PREFILL_RANDOM: return add_random(v, out, err);
    case EXF_PREFILL_SKIP: return add_skip(v, out, err);
    }
    return EXF_OK;
}

/* ---- decode --------------------------------------------------------------------------- */

static exf_code add_pool(const exf_variant *v, exf_text *out, exf_err *err)
{
    const exf_fold_decode_options *o = &v->decode_options;
    static const char *const criterion[] = {"", " by contribution", " by energy"};
    static const char *const weighed[] = {"joint weights", "the router's weights", "its own gate weight"};
    const char *plural = o->pool == 1 ? "" : "s";
    exf_code rc;
    if (v->decode == EXF_DECODE_STATIC)
        EXF_TRY(exf_text_addf(out, err, "static pool of %d expert%s%s", o->pool, plural, criterion[v->pool_by]));
    else
        EXF_TRY(exf_text_addf(out, err, "%d expert%s per decode batch", o->pool, plural));
    if (o->importance == EXF_FOLD_IMPORTANCE_ENERGY) EXF_TRY(exf_text_addf(out, err, " chosen by energy"));
    if (o->importance == EXF_FOLD_IMPORTANCE_SCORE) EXF_TRY(exf_text_addf(out, err, " chosen by router weight"));
    if (o->drop)
        EXF_TRY(exf_text_addf(out, err, ", the others dropped"));
    else if (v->by_router)
        EXF_TRY(exf_text_addf(out, err, ", stand-ins by the router, %s", weighed[v->stand_in_weights]));
    else
        EXF_TRY(add_projector(v->decode_projector, 0, out, err));
    EXF_TRY(add_loss(v->decode_frobenius, out, err));
    EXF_TRY(add_numbers(o->max_loss, o->ridge, out, err));
    if (o->fallback) EXF_TRY(exf_text_addf(out, err, ", the most important expert where there is no target"));
out:
    return rc;
}

static exf_code add_sere(const exf_variant *v, exf_text *out, exf_err *err)
{
    exf_code rc = exf_text_addf(out, err, "SERE: routes outside the batch's top-%d experts go to the most similar of these",
                                v->decode_options.pool);
    return rc == EXF_OK && v->rho > 0 ? exf_text_addf(out, err, ", if above similarity %g", v->rho) : rc;
}

static exf_code add_decode(const exf_variant *v, exf_text *out, exf_err *err)
{
    switch (v->decode) {
    case EXF_DECODE_NONE: return EXF_OK;
    case EXF_DECODE_DYNAMIC:
    case EXF_DECODE_STATIC: return add_pool(v, out, err);
    case EXF_DECODE_REAP:
        return exf_text_addf(out, err, "REAP: the router picks among %d retained experts", v->decode_options.pool);
    case EXF_DECODE_SERE: return add_sere(v, out, err);
    }
    return EXF_OK;
}

exf_code exf_variant_words(const exf_variant *v, exf_text *out, exf_err *err)
{
    exf_code rc = add_prefill(v, out, err);
    if (rc == EXF_OK && v->prefill != EXF_PREFILL_NONE && v->decode != EXF_DECODE_NONE) rc = exf_text_addf(out, err, "; ");
    return rc == EXF_OK ? add_decode(v, out, err) : rc;
}

/* ---- variant values ---------------------------------------------------------------------------- */

/* Reads the values of a variant's options; see variant_internal.h. */

exf_code exf_variant_bad_value(const exf_variant_reading *r, const char *option, const char *value, const char *expected)
{
    return exf_fail(r->err, EXF_USAGE, "variant \"%s\": %s=%s, expected %s", r->text, option, value, expected);
}

exf_code exf_variant_read_word(const exf_variant_reading *r, const char *option, const char *value, const char *const *words,
                               int *out)
{
    exf_text list = {0};
    for (int i = 0; words[i]; i++)
        if (strcmp(words[i], value) == 0) {
            *out = i;
            return EXF_OK;
        }
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && words[i]; i++) rc = exf_text_addf(&list, r->err, "%s%s", i ? ", " : "", words[i]);
    if (rc == EXF_OK) rc = exf_variant_bad_value(r, option, value, list.s);
    exf_text_free(&list);
    return rc;
}

exf_code exf_variant_read_real(const exf_variant_reading *r, const char *option, const char *value, double high, double *out)
{
    char expected[48];
    if (exf_parse_f64(value, out) && *out >= 0 && *out <= high) return EXF_OK;
    snprintf(expected, sizeof expected, "a number from 0 to %g", high);
    return exf_variant_bad_value(r, option, value, expected);
}

exf_code exf_variant_read_float(const exf_variant_reading *r, const char *option, const char *value, float *out)
{
    double x = 0;
    exf_code rc = exf_variant_read_real(r, option, value, 1e30, &x);
    *out = (float)x == 0 ? EXF_FOLD_ZERO : (float)x;
    return rc;
}

/* ---- variant choices --------------------------------------------------------------------------- */

/* The options of budgets per token, stand-ins, pools by a criterion and skipping; see variant_internal.h. */

exf_code exf_variant_set_budget(const exf_variant_reading *r, const char *value)
{
    static const char *const words[] = {"token", "topp", NULL};
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "budget", value, words, &kind);
    r->v->budget = kind ? EXF_BUDGET_TOP_P : EXF_BUDGET_TOKEN;
    return rc;
}

static const char *const sensitivities[] = {"none", "stream", "output", "measured", NULL};

exf_code exf_variant_set_sensitivity(const exf_variant_reading *r, const char *value)
{
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "sensitivity", value, sensitivities + 1, &kind);
    r->v->sensitivity = (exf_sensitivity)(kind + 1);
    return rc;
}

const char *exf_sensitivity_name(exf_sensitivity s)
{
    return sensitivities[s];
}

exf_code exf_variant_set_layer(const exf_variant_reading *r, const char *value)
{
    int64_t layer;
    if (!exf_parse_i64(value, &layer) || layer < 0 || layer >= EXF_MAX_LAYERS)
        return exf_variant_bad_value(r, "layer", value, "the number of a layer, from 0");
    r->v->only_layer = (int)layer + 1;
    return EXF_OK;
}

exf_code exf_variant_set_targets(const exf_variant_reading *r, const char *value)
{
    static const char *const words[] = {"expert", "router", NULL};
    return exf_variant_read_word(r, "targets", value, words, &r->v->by_router);
}

exf_code exf_variant_set_weights(const exf_variant_reading *r, const char *value)
{
    static const char *const words[] = {"joint", "route", "gate", NULL};
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "weights", value, words, &kind);
    r->v->stand_in_weights = (exf_fold_stand_in_weights)kind;
    return rc;
}

static const char *const criteria[] = {"norm", "reap", "energy", NULL};

exf_code exf_variant_set_by(const exf_variant_reading *r, const char *value)
{
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "by", value, criteria, &kind);
    r->v->pool_by = (exf_pool_criterion)kind;
    return rc;
}

const char *exf_pool_criterion_name(exf_pool_criterion c)
{
    return criteria[c];
}

exf_code exf_variant_set_tau(const exf_variant_reading *r, const char *value)
{
    return exf_variant_read_real(r, "tau", value, 1e30, &r->v->tau);
}

exf_code exf_variant_set_factor(const exf_variant_reading *r, const char *value)
{
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "factor", value, sensitivities, &kind);
    r->v->sensitivity = (exf_sensitivity)kind;
    return rc;
}

exf_code exf_variant_check_budget(const exf_variant_reading *r)
{
    const exf_variant *v = r->v;
    const exf_fold_prefill_options *o = &v->prefill_options;
    if (v->prefill == EXF_PREFILL_SKIP && v->tau == 0)
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": skip needs a threshold above 0, as in skip1:tau=0.1", r->text);
    if (v->prefill != EXF_PREFILL_FOLD) return EXF_OK;
    if (v->sensitivity != EXF_SENSITIVITY_NONE && v->budget != EXF_BUDGET_TOKEN)
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": sensitivity is of budget=token alone", r->text);
    if (v->budget != EXF_BUDGET_FIXED && (v->prefill_projector->apply != EXF_APPLY_JOINTLY || o->rank || o->rescale))
        return exf_fail(r->err, EXF_USAGE,
                        "variant \"%s\": a budget keeps routes by w rms and weighs them jointly; it takes no rank, no rescale and "
                        "no other projector",
                        r->text);
    return EXF_OK;
}

exf_code exf_variant_check_stand_ins(const exf_variant_reading *r)
{
    const exf_variant *v = r->v;
    const exf_fold_decode_options *o = &v->decode_options;
    if (v->pool_by != EXF_POOL_BY_NORM && v->decode != EXF_DECODE_STATIC)
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": by is of pool=static alone; a batch's pool has rank", r->text);
    if (!v->by_router && v->stand_in_weights != EXF_FOLD_STAND_INS_JOINT)
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": weights is of targets=router alone", r->text);
    if (v->by_router && (o->drop || o->max_loss != 0 || v->decode_projector->apply != EXF_APPLY_JOINTLY))
        return exf_fail(r->err, EXF_USAGE,
                        "variant \"%s\": where the router chooses targets, their weights are said by weights; it takes no fold, no "
                        "max_loss and no other projector",
                        r->text);
    if (v->by_router && v->stand_in_weights != EXF_FOLD_STAND_INS_JOINT && o->ridge != 0)
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": ridge is of weights=joint alone", r->text);
    return EXF_OK;
}

const char *exf_variant_budget_rule(const exf_variant *v)
{
    if (v->budget == EXF_BUDGET_TOP_P) return "top_p";
    if (v->budget == EXF_BUDGET_TOKEN && v->sensitivity == EXF_SENSITIVITY_NONE) return "stream";
    return v->sensitivity == EXF_SENSITIVITY_NONE ? NULL : exf_sensitivity_name(v->sensitivity);
}
