/* fold_status.c - what a rewriter gives the calls of exfold/fold.h, and what it says when they refuse; see
 * fold_rewriter_internal.h. */
#include "fold/fold_rewriter_internal.h"

#include "kernels/fold/fold_internal.h"

exf_fold_tables exf_fold_rewriter_tables(const exf_fold_rewriter *f, int index, const float *coeff, const float *loss)
{
    size_t e = (size_t)f->t->shape.n_experts, cells = (size_t)index * e * e;
    return (exf_fold_tables){
        .coeff = (coeff ? coeff : f->t->coeff) + cells, .loss = loss + cells, .norms = f->t->expert_norms + (size_t)index * e,
        .cosine = f->t->cosine ? f->t->cosine + cells : NULL, .rms = f->t->rms ? f->t->rms + (size_t)index * e : NULL,
        .relative_norms = f->t->relative_norms ? f->t->relative_norms + (size_t)index * e : NULL,
        .n_experts = (int)e,
    };
}

/* Returns the error for a model, or for decode batches, beyond a limit of exfold/fold.h. */
static exf_code refuse_limits(const exf_fold_rewriter *f, const char *what, exf_err *err)
{
    int n = f->a->n_experts, k = f->a->top_k;
    if (n < EXF_FOLD_MIN_E || n > EXF_FOLD_MAX_E)
        return exf_fail(err, EXF_MODEL, "variant \"%s\": %s folding takes %d to %d experts, the model has %d", f->v->name, what,
                        EXF_FOLD_MIN_E, EXF_FOLD_MAX_E, n);
    if (k > EXF_FOLD_MAX_K)
        return exf_fail(err, EXF_MODEL, "variant \"%s\": %s folding takes at most %d experts per token, the model runs %d",
                        f->v->name, what, EXF_FOLD_MAX_K, k);
    return exf_fail(err, EXF_USAGE,
                    "variant \"%s\": %s folding takes at most %d routes a step; a decode batch here has %d sequences of %d",
                    f->v->name, what, EXF_FOLD_MAX_SLOTS, f->schedule->widest, k);
}

static exf_code refuse_prefill(const exf_fold_rewriter *f, exf_err *err)
{
    const exf_fold_prefill_options *o = &f->v->prefill_options;
    return exf_fail(
        err, EXF_INTERNAL,
        "variant \"%s\": prefill folding refuses to keep %d of %d routes to %d experts with "
        "rank %d, rescale %d, max_loss %g, ridge %g",
        f->v->name, o->keep, f->a->top_k, f->a->n_experts, (int)o->rank, (int)o->rescale,
        (double)exf_fold_max_loss(o->max_loss), (double)exf_fold_ridge(o->ridge));
}

static exf_code refuse_decode(const exf_fold_rewriter *f, exf_err *err)
{
    const exf_fold_decode_options *o = &f->v->decode_options;
    return exf_fail(
        err, EXF_INTERNAL,
        "variant \"%s\": decode folding refuses a pool of %d for %d routes to %d experts with rank %d, max_loss %g, ridge %g",
        f->v->name, o->pool, f->a->top_k, f->a->n_experts, (int)o->importance,
        (double)exf_fold_max_loss(o->max_loss), (double)exf_fold_ridge(o->ridge));
}

exf_code exf_fold_failed(const exf_fold_rewriter *f, exf_fold_status status, exf_fold_phase phase, exf_err *err)
{
    const char *what = phase == EXF_FOLD_PHASE_PREFILL ? "prefill" : "decode";
    switch (status) {
    case EXF_FOLD_OK: return EXF_OK;
    case EXF_FOLD_BAD_ARGUMENT: return phase == EXF_FOLD_PHASE_PREFILL ? refuse_prefill(f, err) : refuse_decode(f, err);
    case EXF_FOLD_UNSUPPORTED: return refuse_limits(f, what, err);
    case EXF_FOLD_DEVICE: return exf_fail(err, EXF_DEVICE, "variant \"%s\": CUDA refused to launch %s folding", f->v->name, what);
    case EXF_FOLD_FILE: break; /* of the loader alone */
    }
    return exf_fail(err, EXF_INTERNAL, "variant \"%s\": %s folding returned status %d, which is none of exfold/fold.h", f->v->name,
                    what, (int)status);
}
