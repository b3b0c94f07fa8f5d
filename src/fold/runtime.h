/* runtime.h - what a runtime that serves folded models does with a variant: which budgets it runs, how it
 * ranks, chooses targets and folds, so that what is validated is what is served.  exf_variant_parse_on() reads a
 * variant as a runtime runs it.
 *
 * A registry: one file src/fold/runtime_<name>.c per runtime.  The public ones were read in their source
 * (docs/serving.md names the commits); tests/unit/kernels/check_fold_public.c holds the fold functions to them. */
#ifndef EXF_FOLD_RUNTIME_H
#define EXF_FOLD_RUNTIME_H
#include "base/err.h"
#include "exfold/fold.h"
#include "model/architecture.h"

#include <stddef.h>

struct exf_variant; /* fold/variant.h */

typedef struct exf_runtime {
    const char *name;    /* as in the recipe's serve.runtime */
    const char *about;   /* for the manual */
    const char *target;  /* the export that it loads (export/writer.h); NULL: several */
    const char *family;  /* the only family that it serves; NULL: any */
    int max_top_k;       /* the most experts per token */
    const char *prefill, *decode; /* options that each of its P, or D, has unless the variant says otherwise: "rank=score"; "" */
    const char *free_prefill, *free_decode; /* names of the options that a variant may set: "confidence rescale"; NULL: all */
    exf_fold_candidates candidates;
    int decodes_prompts; /* 1: what it does to decode steps it does to prompts too */
    int folds_hashed;    /* 1: it folds layers that route by token id like the others, whether the tables have them or not */
    /* EXF_USAGE naming what it runs, for what options cannot say; NULL: nothing more. */
    exf_code (*check)(const struct exf_variant *v, const exf_architecture *a, exf_err *err);
} exf_runtime;

const exf_runtime *exf_runtime_at(size_t i);           /* in order of name; NULL: past the end */
const exf_runtime *exf_runtime_find(const char *name); /* NULL: unknown */
/* Finds the runtime; EXF_USAGE names the unknown one and the known ones. */
exf_code exf_runtime_require(const char *name, const exf_runtime **out, exf_err *err) EXF_CHECKED;

/* Checks a kind of a variant, "P", and its options, "a=1,b=2" or NULL: EXF_USAGE if the runtime does not have the kind or
 * cannot be told an option; `text` is the whole variant, for the message. */
exf_code exf_runtime_takes(const exf_runtime *r, const char *text, const char *kind, int is_prefill, const char *options,
                           exf_err *err) EXF_CHECKED;
/* Checks a model, of that family (model/family.h): EXF_MODEL if it does not serve it. */
exf_code exf_runtime_serves(const exf_runtime *r, const char *family, const exf_architecture *a, exf_err *err) EXF_CHECKED;
/* Checks validate.prefill_tokens: EXF_USAGE if prompts are set apart where the runtime decodes them too. */
exf_code exf_runtime_takes_prompts(const exf_runtime *r, int64_t prefill_tokens, exf_err *err) EXF_CHECKED;
/* Checks a variant: EXF_USAGE for a budget that it does not run. */
exf_code exf_runtime_check(const exf_runtime *r, const struct exf_variant *v, const exf_architecture *a, exf_err *err) EXF_CHECKED;
#endif
