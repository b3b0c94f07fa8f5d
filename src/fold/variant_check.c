/* variant_check.c - which options of a variant fit together, and which models it fits. */
#include "fold/variant.h"

#include "kernels/fold/fold_internal.h"

static int is_limited(float max_loss)
{
    return exf_fold_max_loss(max_loss) < EXF_FOLD_NEVER;
}

exf_code exf_variant_check_options(const exf_variant *v, exf_err *err)
{
    const exf_fold_prefill_options *p = &v->prefill_options;
    const exf_fold_decode_options *d = &v->decode_options;
    exf_apply prefill = v->prefill_projector->apply, decode = v->decode_projector->apply;
    int folds = v->prefill == EXF_PREFILL_FOLD, pool_is_static = v->decode == EXF_DECODE_STATIC;
    int joint = prefill == EXF_APPLY_JOINTLY, decode_joint = decode == EXF_APPLY_JOINTLY;
    int joint_stand_ins = v->stand_in_weights == EXF_FOLD_STAND_INS_JOINT, draws = v->outside == EXF_OUTSIDE_RANDOM;
    int pool_by_norm = !pool_is_static && d->importance != EXF_FOLD_IMPORTANCE_SCORE, joint_slots = decode_joint && joint_stand_ins;
    const struct {
        int refused;
        const char *why;
    } rules[] = {
        {prefill == EXF_APPLY_VECTORS && (p->confidence || p->rescale),
         "this projector cannot be combined with rescale or confidence"},
        {joint && (p->confidence || is_limited(p->max_loss)), "this projector cannot be combined with max_loss or confidence"},
        {pool_is_static && ((decode != EXF_APPLY_PAIR && !decode_joint) || d->importance || is_limited(d->max_loss)),
         "a static pool has pair scalars or joint weights, no rank (by says what its experts are) and no max_loss"},
        {decode_joint && (v->outside || is_limited(d->max_loss)),
         "projector=joint cannot be combined with max_loss, nor with a fold but on"},
        {(v->prefill_frobenius && (prefill != EXF_APPLY_PAIR || v->budget)) ||
             (v->decode_frobenius && (decode != EXF_APPLY_PAIR || pool_is_static || v->by_router)),
         "loss=frobenius is of projector=pair and of dynamic pools alone"},
        {d->fallback && (decode_joint || pool_is_static || v->by_router || v->outside),
         "fallback=first cannot be combined with projector=joint, targets=router, pool=static, nor with a fold but on"},
        {(p->ridge != 0 && !joint) || (d->ridge != 0 && !decode_joint), "ridge is of projector=joint alone"},
        {v->prefill == EXF_PREFILL_SKIP && v->tau == 0 && !v->skip_budget,
         "skip needs a threshold above 0, as in skip1:tau=0.1, or a budget of the tables, as in skip0:budget=4"},
        {v->skip_budget && (v->tau != 0 || v->sensitivity), "skip's budget has its own tau and factor"},
        {folds && v->sensitivity && v->budget != EXF_BUDGET_TOKEN, "sensitivity is of budget=token alone"},
        {folds && v->budget && (!joint || p->rank || p->rescale),
         "a budget keeps routes by w rms and weighs them jointly; it takes no rank, no rescale and no other projector"},
        {v->pool_by != EXF_POOL_BY_NORM && !pool_is_static && v->decode != EXF_DECODE_REAP,
         "by is of pool=static alone; a batch's pool has rank"},
        {!v->by_router && !joint_stand_ins, "weights is of targets=router alone"},
        {v->by_router && (v->outside || d->max_loss != 0 || !decode_joint),
         "where the router chooses targets, their weights are said by weights; it takes no fold, no max_loss and no other "
         "projector"},
        {v->by_router && !joint_stand_ins && d->ridge != 0, "ridge is of weights=joint alone"},
        {v->prefill_norms && (prefill == EXF_APPLY_VECTORS || (!joint && p->rank == EXF_FOLD_BY_SCORE)),
         "norms=predicted is of joint weights, and of routes kept by norm whose projector is a scalar"},
        {v->decode_norms && !pool_by_norm && !joint_slots, "norms=predicted is of pools by norm or energy, and of joint weights"},
        {draws && (is_limited(d->max_loss) || v->decode_frobenius), "fold=random draws its targets whatever their loss"},
        {!draws && v->decode_seed != 1, "seed is of fold=random alone"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].refused) return exf_fail(err, EXF_USAGE, "variant \"%s\": %s", v->name, rules[i].why);
    return EXF_OK;
}

exf_code exf_variant_check(const exf_variant *v, int n_experts, int top_k, exf_err *err)
{
    int keep = v->prefill_options.keep, pool = v->decode_options.pool;
    if (n_experts < EXF_FOLD_MIN_E || n_experts > EXF_FOLD_MAX_E || top_k > EXF_FOLD_MAX_K)
        return exf_fail(err, EXF_MODEL,
                        "variant \"%s\": folding takes %d to %d experts and at most %d per token, the model has %d and runs %d",
                        v->name, EXF_FOLD_MIN_E, EXF_FOLD_MAX_E, EXF_FOLD_MAX_K, n_experts, top_k);
    if (v->prefill != EXF_PREFILL_NONE && keep > top_k)
        return exf_fail(err, EXF_USAGE, "variant \"%s\" keeps %d experts per token, the model runs %d", v->name, keep, top_k);
    if (v->decode == EXF_DECODE_SERE && pool > top_k)
        return exf_fail(err, EXF_USAGE, "variant \"%s\" takes %d primary experts per token, the model runs %d", v->name, pool,
                        top_k);
    if (v->decode != EXF_DECODE_NONE && pool > n_experts)
        return exf_fail(err, EXF_USAGE, "variant \"%s\" keeps %d experts, the model has %d", v->name, pool, n_experts);
    if (v->decode == EXF_DECODE_REAP && pool < top_k)
        return exf_fail(err, EXF_USAGE, "variant \"%s\" leaves %d experts, fewer than the %d that a token runs", v->name, pool,
                        top_k);
    return EXF_OK;
}
