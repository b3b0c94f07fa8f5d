/* variant_read.c - reads the text of a variant by the table of variant.c; refuses options that do not fit together, and what a
 * model or a runtime lacks. */
#include "fold/variant.h"

#include "fold/runtime.h"
#include "kernels/fold/fold_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { WORD_LEN = 24 };
typedef exf_variant_reading reading;

/* ---- which options fit together, and which models a variant fits ------------------------------------- */

static int is_limited(float max_loss)
{
    return exf_fold_max_loss(max_loss) < EXF_FOLD_NEVER;
}

/* Refuses options that contradict each other, or of which one would be ignored: part of parsing. */
static exf_code check_options(const exf_variant *v, exf_err *err)
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
        {folds && v->budget == EXF_BUDGET_TOKEN && p->ridge != 0 && p->ridge != EXF_FOLD_RIDGE,
         "the lambda of a budget was solved with a ridge of 0.01; with another the mean would not be the budget"},
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

int exf_variant_folds(int n_experts, int top_k)
{
    return n_experts >= EXF_FOLD_MIN_E && n_experts <= EXF_FOLD_MAX_E && top_k <= EXF_FOLD_MAX_K;
}

exf_code exf_variant_check(const exf_variant *v, int n_experts, int top_k, exf_err *err)
{
    int keep = v->prefill_options.keep, pool = v->decode_options.pool;
    if (!exf_variant_folds(n_experts, top_k))
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

/* ---- reading --------------------------------------------------------------------------- */

static exf_code refuse_option(const reading *r, const exf_variant_kind *kind, const char *word)
{
    exf_text known = {0};
    for (const exf_variant_option *o = kind->options; o->name; o++)
        exf_text_appendf(&known, "%s%s", known.len ? ", " : "known: ", o->name);
    exf_code rc = exf_text_end(&known, r->err);
    if (rc == EXF_OK)
        rc = exf_fail(r->err, EXF_USAGE, "variant \"%s\": \"%s\" is no option of %s (%s)", r->text, word, kind->name,
                      known.s ? known.s : "it has none");
    exf_text_free(&known);
    return rc;
}

/* Sets one option; *given has a bit for each option that stood before. */
static exf_code set_option(const reading *r, const exf_variant_kind *kind, char *word, unsigned *given)
{
    char *equals = strchr(word, '=');
    unsigned bit = 1;
    if (equals) *equals = '\0';
    for (const exf_variant_option *o = kind->options; o->name; o++, bit <<= 1)
        if (strcmp(o->name, word) == 0) {
            int bare = o->values == NULL;
            if (bare == (equals != NULL))
                return exf_fail(r->err, EXF_USAGE, "variant \"%s\": %s %s", r->text, word,
                                bare ? "takes no value" : "needs a value");
            if (*given & bit) return exf_fail(r->err, EXF_USAGE, "variant \"%s\": %s is given twice", r->text, word);
            if (bare && *given)
                return exf_fail(r->err, EXF_USAGE, "variant \"%s\": renorm and drop contradict each other", r->text);
            *given |= bit;
            return o->set(r, o, equals ? equals + 1 : "");
        }
    return refuse_option(r, kind, word);
}

static exf_code set_options(const reading *r, const exf_variant_kind *kind, char *text)
{
    unsigned given = 0;
    exf_code rc = EXF_OK;
    for (char *word = text, *next; rc == EXF_OK && word; word = next) {
        next = strchr(word, ',');
        if (next) *next++ = '\0';
        rc = set_option(r, kind, word, &given);
    }
    return rc;
}

static const exf_variant_kind *kind_of(const char *part, int64_t *number)
{
    char word[WORD_LEN];
    size_t letters = 0, digits;
    while (isalpha((unsigned char)part[letters])) letters++;
    digits = strspn(part + letters, "0123456789");
    if (letters >= sizeof word || digits == 0 || digits > 6 || part[letters + digits]) return NULL;
    memcpy(word, part, letters);
    word[letters] = '\0';
    if (!exf_parse_i64(part + letters, number)) return NULL;
    const exf_variant_kind *k;
    for (size_t i = 0; (k = exf_variant_kind_at(i)) && strcmp(k->name, word) != 0;) i++;
    return k && *number >= !(k->is_prefill && k->kind == EXF_PREFILL_SKIP) ? k : NULL;
}

/* Writes the part with its kind in the letters that are meant; returns 0 if it is no kind in any. */
static int kind_but_for_case(const char *part, char *out, size_t size)
{
    int64_t number;
    const exf_variant_kind *k;
    for (size_t i = 0; (k = exf_variant_kind_at(i)); i++) {
        size_t n = strlen(k->name);
        if (strncasecmp(part, k->name, n) != 0) continue;
        snprintf(out, size, "%s%s", k->name, part + n);
        if (kind_of(out, &number)) return 1;
    }
    return 0;
}

static exf_code read_part(const reading *r, char *part)
{
    exf_variant *v = r->v;
    char *options = strchr(part, ':'), near[WORD_LEN + 8];
    int64_t number = 0;
    if (options) *options++ = '\0';
    const exf_variant_kind *kind = kind_of(part, &number);
    if (!kind && kind_but_for_case(part, near, sizeof near))
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": \"%s\" is no kind; did you mean \"%s\"?", r->text, part, near);
    if (!kind)
        return exf_fail(
            r->err, EXF_USAGE,
            "variant \"%s\": \"%s\" is no kind; kinds are P4, top4, skip1, random4, D64, reap64, sere4, with any number from 1 "
            "(skip: from 0)",
            r->text, part);
    if (kind->is_prefill ? v->prefill != EXF_PREFILL_NONE : v->decode != EXF_DECODE_NONE)
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": two %s kinds, expected at most one of prefill and one of decode",
                        r->text, kind->is_prefill ? "prefill" : "decode");
    if (kind->is_prefill) {
        v->prefill = (exf_prefill_kind)kind->kind;
        v->prefill_options.keep = (int)number;
        if (kind->kind == EXF_PREFILL_TOP || kind->kind == EXF_PREFILL_SKIP) v->prefill_options.rank = EXF_FOLD_BY_SCORE;
    } else {
        v->decode = (exf_decode_kind)kind->kind;
        v->decode_options.pool = (int)number;
        if (kind->kind == EXF_DECODE_REAP) v->pool_by = EXF_POOL_BY_REAP;
    }
    exf_code rc = EXF_OK;
    if (r->runtime) { /* does what it does with every variant of the kind, unless the text says otherwise */
        char own[EXF_VARIANT_NAME_LEN];
        EXF_TRY(exf_runtime_takes(r->runtime, r->text, kind->name, kind->is_prefill, options, r->err));
        if (!kind->is_prefill) v->decode_options.candidates = r->runtime->candidates;
        v->folds_hashed = r->runtime->folds_hashed;
        snprintf(own, sizeof own, "%s", kind->is_prefill ? r->runtime->prefill : r->runtime->decode);
        if (*own) EXF_TRY(set_options(r, kind, own));
    }
    if (options) rc = set_options(r, kind, options);
out:
    return rc;
}

/* ---- the whole text ------------------------------------------------------------------ */

exf_code exf_variant_parse(exf_variant *v, const char *text, exf_err *err)
{
    return exf_variant_parse_on(NULL, v, text, err);
}

exf_code exf_variant_parse_on(const exf_runtime *runtime, exf_variant *v, const char *text, exf_err *err)
{
    char copy[EXF_VARIANT_NAME_LEN];
    reading r = {v, text, err, runtime};
    exf_code rc = EXF_OK;
    memset(v, 0, sizeof *v);
    if (strlen(text) >= sizeof copy)
        return exf_fail(err, EXF_USAGE, "variant \"%.40s...\" has %zu characters, at most %zu are allowed", text, strlen(text),
                        sizeof copy - 1);
    v->renormalise = 1;
    v->seed = v->decode_seed = 1;
    snprintf(v->name, sizeof v->name, "%s", text);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *part = copy, *next; rc == EXF_OK && part; part = next) {
        next = strchr(part, '+');
        if (next) *next++ = '\0';
        rc = read_part(&r, part);
    }
    if (!v->prefill_projector) v->prefill_projector = v->budget ? &exf_projector_joint : &exf_projector_pair;
    if (!v->decode_projector) v->decode_projector = v->by_router ? &exf_projector_joint : &exf_projector_pair;
    return rc == EXF_OK ? check_options(v, err) : rc;
}
