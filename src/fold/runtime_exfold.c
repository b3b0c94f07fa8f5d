/* runtime_exfold.c - a runtime of one's own on exfold/fold.h (libexfold_fold): whatever its functions do, which is every P
 * and D but those that act on vectors, for hash layers left alone. */
#include "fold/runtime.h"
#include "fold/variant.h"

#include "kernels/fold/fold_internal.h"

static exf_code check_exfold(const struct exf_variant *v, const exf_architecture *a, exf_err *err)
{
    (void)a;
    if (v->outside == EXF_OUTSIDE_RENORMALISED || v->outside == EXF_OUTSIDE_RANDOM)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": fold=%s is a baseline, which no runtime runs; a validation runs it beside D unless "
                        "validate.baselines is off",
                        v->name, v->outside == EXF_OUTSIDE_RANDOM ? "random" : "renorm");
    if (v->decode == EXF_DECODE_STATIC && v->decode_projector->apply == EXF_APPLY_JOINTLY && !v->by_router)
        return exf_fail(err, EXF_USAGE,
                        "variant \"%s\": exfold has no joint weights for a static pool; it runs pool=static with pair "
                        "scalars or with "
                        "targets=router",
                        v->name);
    if (v->prefill == EXF_PREFILL_NONE || v->prefill_projector->apply != EXF_APPLY_VECTORS) return EXF_OK;
    return exf_fail(err, EXF_USAGE,
                    "variant \"%s\": exfold folds router metadata, projector=%s adds vectors to outputs; it runs "
                    "pair, layer, global "
                    "and joint",
                    v->name, v->prefill_projector->name);
}

const exf_runtime exf_runtime_exfold = {
    .name = "exfold",
    .about = "a runtime of your own on libexfold_fold (exfold/fold.h)",
    .max_top_k = EXF_FOLD_MAX_K,
    .prefill = "",
    .decode = "",
    .check = check_exfold,
};
