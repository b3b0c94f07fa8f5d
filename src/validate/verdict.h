/* verdict.h - says what the tables gain: every variant that folds by them, beside the same number of experts without their targets.
 *
 * A baseline of a prefill fold P is top<P>, whose omitted routes are dropped or the kept weights renormalised, or random<P>,
 * which folds into any kept route; of a decode fold D at one batch size it is the same kind of pool with `fold` another than on;
 * of both together it is such a pair.  Whether such a lane was asked for or ran as a baseline makes no difference.  Variants that
 * fold one layer alone have none; those whose batches are not constrained are left out. */
#ifndef EXF_VALIDATE_VERDICT_H
#define EXF_VALIDATE_VERDICT_H
#include "base/text.h"
#include "validate/validate.h"

/* A variant that folds by the tables and its best baseline. */
typedef struct {
    size_t row;     /* the variant */
    size_t best;    /* its baseline of least mean KL, ties to the earlier variant */
    int folds_prefill, folds_decode;
    exf_difference kl, log_ppl; /* the best baseline's less the row's: above 0, the tables gain */
} exf_gain;

typedef struct {
    exf_gain *gain; /* [n] of the variants that were asked for and have baselines, in their order */
    size_t n;
    size_t n_beyond; /* those that gain KL beyond the noise */
    size_t n_harm;   /* those that lose KL beyond the noise */
    size_t prefill, decode; /* in gain the one that folds prefill alone, or decode alone, and gains the largest share of its
                             * baseline's KL: they speak for the tables; n: none */
    size_t unconstrained;   /* the first variant that is left out since its batches are not constrained; 0: none */
} exf_verdict;

/* Fills the verdict; the caller frees it, also after an error. */
exf_code exf_verdict_find(exf_verdict *out, const exf_validation *v, exf_err *err) EXF_CHECKED;
void exf_verdict_free(exf_verdict *d);

/* Writes the baselines of variant `row` to list [n_variants] in their order and returns how many: what exf_kl_difference() can
 * compare it with one by one. */
size_t exf_baselines_of(size_t *list, const exf_validation *v, size_t row);

/* Appends lines, each with its newline: in how many rows the tables gain beyond the noise and what share of the baseline's KL, in
 * which they do harm and in which they are worth nothing; the best prefill row's sentence, the best decode row's; why there is no
 * verdict, where there is none. */
void exf_verdict_words(const exf_validation *v, const exf_verdict *d, exf_text *out);
#endif
