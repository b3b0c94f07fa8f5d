/* variant.h - a variant is one way to run a model with fewer experts, as a short text:
 *
 *   P4        prefill: every token keeps 4 routes, the others are folded into them
 *               projector=pair|layer|global|diagonal|lowrank<R>|joint   rank=score_norm|score|norm
 *               max_loss=X   rescale=none|sum|l2   confidence=on|off    ridge=X (joint)
 *   top4      keeps the 4 best-scored routes:  renorm (default) or drop
 *   random4   folds into a random kept route:  seed=N, rank=...
 *   D64       decode: a batch runs at most 64 experts
 *               pool=dynamic|static   fold=on|drop   rank=norm|energy   projector=pair|layer|global|joint
 *               max_loss=X   ridge=X (joint)
 *   reap64    64 experts are retained, those of largest mean w ||E(x)||; the router picks among them
 *   sere4     re-routes to the most similar of the batch's top-4 experts:  rho=X
 *
 * KIND[:option,...], and a prefill kind and a decode kind joined by '+': "P4:rank=score+D64". */
#ifndef EXF_FOLD_VARIANT_H
#define EXF_FOLD_VARIANT_H
#include "artifact/projector.h"
#include "exfold/fold.h"

typedef enum { EXF_PREFILL_NONE, EXF_PREFILL_FOLD, EXF_PREFILL_TOP, EXF_PREFILL_RANDOM } exf_prefill_kind;
typedef enum { EXF_DECODE_NONE, EXF_DECODE_DYNAMIC, EXF_DECODE_STATIC, EXF_DECODE_REAP, EXF_DECODE_SERE } exf_decode_kind;

enum { EXF_VARIANT_NAME_LEN = 96 };

typedef struct {
    char name[EXF_VARIANT_NAME_LEN]; /* the text as the user spelled it */
    exf_prefill_kind prefill;
    const exf_projector *prefill_projector; /* &exf_projector_pair if the text names none */
    int prefill_lowrank;             /* R of a ranked projector, else 0 */
    exf_fold_prefill_options prefill_options;
    int renormalise;                 /* top: 1 renormalises weights, 0 drops routes */
    int64_t seed;                    /* random */
    exf_decode_kind decode;
    const exf_projector *decode_projector;
    exf_fold_decode_options decode_options; /* pool: D (dynamic and static), experts that reap retains, or sere's S */
    double rho;                      /* sere */
} exf_variant;

/* Parses the text.  EXF_USAGE names the part that is not understood and what is expected. */
exf_code exf_variant_parse(exf_variant *v, const char *text, exf_err *err) EXF_CHECKED;
/* Checks the variant against a model of E experts and K per token; EXF_MODEL for a model beyond the
 * limits of exfold/fold.h. */
exf_code exf_variant_check(const exf_variant *v, int n_experts, int top_k, exf_err *err) EXF_CHECKED;
#endif
