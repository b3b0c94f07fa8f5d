/* variant.h - a variant is one way to run a model with fewer experts, as a short text:
 * KIND[:option,...], where KIND is a name and a number ("P4", "D64"), and a prefill kind and a decode
 * kind are joined by '+': "P4:rank=score+D64".  exf_variant_kind_at() lists the kinds and their
 * options, from which exfold-variants(7) is made. */
#ifndef EXF_FOLD_VARIANT_H
#define EXF_FOLD_VARIANT_H
#include "artifact/projector.h"
#include "base/names.h"
#include "base/text.h"
#include "exfold/fold.h"

typedef enum { EXF_PREFILL_NONE, EXF_PREFILL_FOLD, EXF_PREFILL_TOP, EXF_PREFILL_RANDOM, EXF_PREFILL_SKIP } exf_prefill_kind;
typedef enum { EXF_DECODE_NONE, EXF_DECODE_DYNAMIC, EXF_DECODE_STATIC, EXF_DECODE_REAP, EXF_DECODE_SERE } exf_decode_kind;

/* How many routes a token keeps: P, or as many as a rule of the tables' budgets says, P in the mean. */
typedef enum { EXF_BUDGET_FIXED, EXF_BUDGET_TOKEN, EXF_BUDGET_TOP_P } exf_budget_kind;
/* The source of a layer's factor: none, or an exf_budget_rule plus 1. */
typedef enum {
    EXF_SENSITIVITY_NONE,
    EXF_SENSITIVITY_STREAM,
    EXF_SENSITIVITY_OUTPUT,
    EXF_SENSITIVITY_MEASURED,
    EXF_SENSITIVITY_SKIP = EXF_RULE_SKIP + 1
} exf_sensitivity;

/* What becomes of a decode route outside the pool: it is folded; or, in baselines, dropped, dropped while the token's other
 * weights keep the sum of all, or folded into a member that is drawn at random. */
typedef enum { EXF_OUTSIDE_FOLDED, EXF_OUTSIDE_DROPPED, EXF_OUTSIDE_RENORMALISED, EXF_OUTSIDE_RANDOM } exf_outside;

enum { EXF_VARIANT_NAME_LEN = 96 };

typedef struct exf_variant {
    char name[EXF_VARIANT_NAME_LEN]; /* the text as the user spelled it */
    exf_prefill_kind prefill;
    const exf_projector *prefill_projector; /* &exf_projector_pair if the text names none */
    int prefill_lowrank;             /* R of a ranked projector, else 0 */
    exf_fold_prefill_options prefill_options;
    exf_budget_kind budget;          /* not FIXED: prefill_options.keep is the mean P that is asked for */
    exf_sensitivity sensitivity;     /* of budget=token, NONE meaning stream; the layer's factor of skip */
    int only_layer;                  /* P, skip: the model's number of the only layer that folds, plus 1; 0: all */
    double tau;                      /* skip; 0 with skip_budget */
    int skip_budget;                 /* skip: the tables' budget whose factors and threshold it has; 0: none */
    int renormalise;                 /* top: 1 renormalises weights, 0 drops routes */
    int64_t seed;                    /* random */
    exf_decode_kind decode;
    const exf_projector *decode_projector;
    exf_fold_decode_options decode_options; /* pool: D (dynamic and static), experts that reap retains, or sere's S */
    exf_outside outside;             /* decode_options.drop is 1 where it is dropped */
    int64_t decode_seed;             /* of EXF_OUTSIDE_RANDOM */
    int batch;                       /* sequences of its decode batches; 0: the text names none */
    exf_pool_criterion pool_by;      /* static; reap: what the retained experts have most of */
    int bare_router;                 /* reap: 1: over the routes of REAP's code */
    int by_router;                   /* 1: the router chooses stand-ins for routes outside the pool */
    exf_fold_stand_in_weights stand_in_weights;
    double rho;                      /* sere */
    int prefill_norms, decode_norms; /* 1: by norms predicted for each token, in place of mean ones */
    int prefill_frobenius, decode_frobenius; /* 1: by the losses of Frobenius norm */
    int folds_hashed;                /* 1: layers that route by token id are folded too; a runtime's, no option says it */
} exf_variant;

struct exf_runtime; /* fold/runtime.h */

/* A text that is being read (variant_read.c). */
typedef struct {
    exf_variant *v;
    const char *text; /* the whole variant, for messages */
    exf_err *err;
    const struct exf_runtime *runtime; /* NULL: any */
} exf_variant_reading;

/* An option of a kind; the row without a name ends the list. */
typedef struct exf_variant_option {
    const char *name;     /* "rank" */
    const char *values;   /* "norm|energy", "X" a number, "N" an integer from 0; NULL: takes no value */
    const char *fallback; /* what holds without it, for the manual */
    const char *about;
    /* The function that sets the option, and the member of exf_variant that it sets; 0 where it knows. */
    exf_code (*set)(const exf_variant_reading *r, const struct exf_variant_option *o, const char *value);
    size_t field;
} exf_variant_option;

typedef struct {
    const char *name;    /* "P" */
    const char *example; /* "P4" */
    const char *about;   /* what the example does */
    int is_prefill, kind;
    const exf_variant_option *options;
} exf_variant_kind;

/* Returns kind i of the table; NULL past the end. */
const exf_variant_kind *exf_variant_kind_at(size_t i);

/* Parses the text.  EXF_USAGE names the part that is not understood and what is expected. */
exf_code exf_variant_parse(exf_variant *v, const char *text, exf_err *err) EXF_CHECKED;
/* Parses the text as the runtime (NULL: any) runs it: the runtime's own options are set unless the text says otherwise. */
exf_code exf_variant_parse_on(const struct exf_runtime *runtime, exf_variant *v, const char *text, exf_err *err) EXF_CHECKED;
/* Returns 1 if models of so many experts, and so many per token, can be folded. */
int exf_variant_folds(int n_experts, int top_k);
/* Checks the variant against a model of E experts and K per token; EXF_MODEL for a model beyond the
 * limits of exfold/fold.h. */
exf_code exf_variant_check(const exf_variant *v, int n_experts, int top_k, exf_err *err) EXF_CHECKED;
/* Appends what the variant does in words, for tables that people read: "P2:projector=joint" is
 * "2 experts per token, joint weights". */
exf_code exf_variant_words(const exf_variant *v, exf_text *out, exf_err *err) EXF_CHECKED;
/* Makes the variant, which has a decode kind and names no batch, one that names it: "P4+D8" is "P4+D8:batch=16".  EXF_USAGE if the
 * name would be too long. */
exf_code exf_variant_set_batch(exf_variant *v, int size, exf_err *err) EXF_CHECKED;
/* Returns 1 if the variants are equal in all but their names.  Both were read by exf_variant_parse(): it zeroes the padding too. */
int exf_variant_equal(const exf_variant *a, const exf_variant *b);
/* Returns 1 if `text` is the name, or the name without the batch that it names. */
int exf_variant_is_named(const char *name, const char *text);
/* Returns the rule of the tables' budget (exf_budget.rule) that the variant asks for; NULL: none. */
const char *exf_variant_budget_rule(const exf_variant *v);
#endif
