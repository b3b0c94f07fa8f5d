/* variant_choices.c - the options of budgets per token, stand-ins, pools by a criterion and skipping; see variant_internal.h. */
#include "fold/variant_internal.h"

#include "base/text.h"
#include "kernels/fold/fold_internal.h"
#include "model/architecture.h"

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
