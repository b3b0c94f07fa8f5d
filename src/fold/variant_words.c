/* variant_words.c - says in words what a variant does, which batch its name is for, which budget of the tables it asks for, and
 * whether two variants are equal. */
#include "fold/variant.h"

#include "kernels/fold/fold_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void add_projector(exf_text *out, const exf_projector *p, int rank)
{
    exf_text_appendf(out, ", %s", p->words);
    if (p->ranked) exf_text_appendf(out, ", rank %d", rank);
}

/* Returns the number that an option of exfold/fold.h means. */
static double number_of(float option)
{
    return option == EXF_FOLD_ZERO ? 0 : (double)option;
}

/* Appends the loss that is used, its limit, and the ridge, where they differ from the default. */
static void add_numbers(exf_text *out, int frobenius, float max_loss, float ridge)
{
    if (frobenius) exf_text_appendf(out, ", loss by Frobenius norm");
    if (max_loss != 0 && max_loss < EXF_FOLD_NEVER) exf_text_appendf(out, ", pairs of loss up to %g", number_of(max_loss));
    if (ridge != 0 && ridge != EXF_FOLD_RIDGE) exf_text_appendf(out, ", ridge %g", number_of(ridge));
}

/* ---- prefill ------------------------------------------------------------------------ */

static const char *const ranked[] = {"", ", kept by router weight", ", kept by expert norm"};

static void add_prefill_fold(exf_text *out, const exf_variant *v)
{
    static const char *const rescaled[] = {"", ", weights rescaled to the original sum",
                                           ", weights rescaled to the original l2 norm"};
    static const char *const against[] = {"the residual stream", "the residual stream", "the layer's output",
                                          "the measured sensitivity"};
    const exf_fold_prefill_options *o = &v->prefill_options;
    exf_text_appendf(out, "%d expert%s per token%s", o->keep, o->keep == 1 ? "" : "s", v->budget ? " in the mean" : "");
    if (v->budget == EXF_BUDGET_TOP_P)
        exf_text_appendf(out, ", by share of a token's output");
    else if (v->budget)
        exf_text_appendf(out, ", by predicted residual against %s", against[v->sensitivity]);
    add_projector(out, v->prefill_projector, v->prefill_lowrank);
    exf_text_appendf(out, "%s", ranked[o->rank]);
    add_numbers(out, v->prefill_frobenius, o->max_loss, o->ridge);
    exf_text_appendf(out, "%s%s", rescaled[o->rescale], o->confidence ? ", folded in proportion to 1 - loss" : "");
    if (v->prefill_norms) exf_text_appendf(out, ", by predicted norms");
    if (v->only_layer) exf_text_appendf(out, ", in layer %d alone", v->only_layer - 1);
}

static void add_skip(exf_text *out, const exf_variant *v)
{
    int keep = v->prefill_options.keep;
    exf_text_appendf(out, "routes below ");
    if (v->skip_budget)
        exf_text_appendf(out, "the threshold for %d expert%s per token in the mean", v->skip_budget,
                         v->skip_budget == 1 ? "" : "s");
    else
        exf_text_appendf(out, "%g of their token's weights", v->tau);
    exf_text_appendf(out, " dropped");
    if (keep) exf_text_appendf(out, ", %d expert%s per token at least", keep, keep == 1 ? "" : "s");
    if (v->sensitivity) exf_text_appendf(out, ", times the layer's sensitivity (%s)", exf_variant_budget_rule(v));
    if (v->only_layer) exf_text_appendf(out, ", in layer %d alone", v->only_layer - 1);
}

static void add_prefill(exf_text *out, const exf_variant *v)
{
    int keep = v->prefill_options.keep;
    const char *plural = keep == 1 ? "" : "s";
    switch (v->prefill) {
    case EXF_PREFILL_NONE: break;
    case EXF_PREFILL_FOLD: add_prefill_fold(out, v); break;
    case EXF_PREFILL_TOP:
        exf_text_appendf(out, "%d best expert%s per token alone, weights %s", keep, plural,
                         v->renormalise ? "renormalised" : "unchanged");
        break;
    case EXF_PREFILL_RANDOM:
        exf_text_appendf(out, "%d expert%s per token, the others folded into random ones%s, seed %" PRId64, keep, plural,
                         ranked[v->prefill_options.rank], v->seed);
        break;
    case EXF_PREFILL_SKIP:
        add_skip(out, v);
        break;
    }
}

/* ---- decode --------------------------------------------------------------------------- */

static void add_pool(exf_text *out, const exf_variant *v)
{
    const exf_fold_decode_options *o = &v->decode_options;
    static const char *const importance[] = {"", " chosen by energy", " chosen by router weight"};
    static const char *const weighed[] = {"joint weights", "the router's weights", "its own gate weight"};
    const char *plural = o->pool == 1 ? "" : "s";
    if (v->decode == EXF_DECODE_STATIC)
        exf_text_appendf(out, "static pool of %d expert%s by %s", o->pool, plural, exf_pool_criteria[v->pool_by]);
    else
        exf_text_appendf(out, "%d expert%s per decode batch", o->pool, plural);
    exf_text_appendf(out, "%s", importance[o->importance]);
    if (v->outside == EXF_OUTSIDE_RANDOM)
        exf_text_appendf(out, ", the others folded into random ones, seed %" PRId64, v->decode_seed);
    else if (o->drop)
        exf_text_appendf(out, ", the others dropped%s", v->outside == EXF_OUTSIDE_RENORMALISED ? ", weights renormalised" : "");
    else if (v->by_router)
        exf_text_appendf(out, ", stand-ins by the router, %s", weighed[v->stand_in_weights]);
    else
        add_projector(out, v->decode_projector, 0);
    add_numbers(out, v->decode_frobenius, o->max_loss, o->ridge);
    if (v->decode_norms) exf_text_appendf(out, ", by predicted norms");
    if (o->fallback) exf_text_appendf(out, ", the most important expert where there is no target");
}

static void add_decode(exf_text *out, const exf_variant *v)
{
    int pool = v->decode_options.pool;
    switch (v->decode) {
    case EXF_DECODE_NONE: break;
    case EXF_DECODE_DYNAMIC:
    case EXF_DECODE_STATIC: add_pool(out, v); break;
    case EXF_DECODE_REAP:
        exf_text_appendf(out, "REAP: the router picks among %d retained experts", pool);
        if (v->pool_by != EXF_POOL_BY_REAP) exf_text_appendf(out, " by %s", exf_pool_criteria[v->pool_by]);
        if (v->bare_router) exf_text_appendf(out, ", over the routes of REAP's code");
        break;
    case EXF_DECODE_SERE:
        exf_text_appendf(out, "SERE: routes outside the batch's top-%d experts go to the most similar of these", pool);
        if (v->rho > 0) exf_text_appendf(out, ", if at least %g similar", v->rho);
        break;
    }
    if (v->batch) exf_text_appendf(out, ", %d sequence%s side by side", v->batch, v->batch == 1 ? "" : "s");
}

exf_code exf_variant_words(const exf_variant *v, exf_text *out, exf_err *err)
{
    add_prefill(out, v);
    if (v->prefill != EXF_PREFILL_NONE && v->decode != EXF_DECODE_NONE) exf_text_appendf(out, "; ");
    add_decode(out, v);
    return exf_text_end(out, err);
}

/* ---- the batch in its name ---------------------------------------------------------------- */

exf_code exf_variant_set_batch(exf_variant *v, int size, exf_err *err)
{
    char name[EXF_VARIANT_NAME_LEN] = "";
    const char *part = v->name, *plus = strchr(part, '+');
    const exf_variant_kind *k;
    size_t letters = 0, i = 0;
    while (isalpha((unsigned char)part[letters])) letters++;
    while ((k = exf_variant_kind_at(i)) && (strlen(k->name) != letters || memcmp(k->name, part, letters) != 0)) i++;
    if (plus && !(k && !k->is_prefill)) part = plus + 1; /* the part of a decode kind, "D8:rank=energy" */
    size_t n = strcspn(part, "+");
    int at = (int)(part - v->name) + (int)n, options = memchr(part, ':', n) != NULL;
    int room = snprintf(name, sizeof name, "%.*s%sbatch=%d%s", at, v->name, options ? "," : ":", size, part + n);
    if (room >= (int)sizeof name)
        return exf_fail(err, EXF_USAGE, "variant \"%s\" has %d characters with batch=%d, at most %zu are allowed", v->name, room,
                        size, sizeof name - 1);
    memcpy(v->name, name, sizeof name);
    v->batch = size;
    return EXF_OK;
}

int exf_variant_is_named(const char *name, const char *text)
{
    const char *batch = strstr(name, "batch=");
    if (strcmp(name, text) == 0) return 1;
    if (!batch || batch == name) return 0;
    const char *after = batch + strcspn(batch, ",+");
    size_t before = (size_t)(batch - name) - (*after != ','); /* with the ':' or ',' that the next option needs */
    after += *after == ',';
    return strlen(text) == before + strlen(after) && memcmp(text, name, before) == 0 && strcmp(text + before, after) == 0;
}

/* ---- its budget ------------------------------------------------------------------------- */

const char *exf_variant_budget_rule(const exf_variant *v)
{
    if (v->skip_budget) return exf_budget_rules[EXF_RULE_SKIP];
    if (v->budget == EXF_BUDGET_TOP_P) return exf_budget_rules[EXF_RULE_TOP_P];
    if (v->sensitivity) return exf_budget_rules[v->sensitivity - 1];
    return v->budget == EXF_BUDGET_TOKEN ? exf_budget_rules[EXF_RULE_STREAM] : NULL;
}

int exf_variant_equal(const exf_variant *a, const exf_variant *b)
{
    exf_variant x, y;
    memcpy(&x, a, sizeof x); /* an assignment need not copy the padding */
    memcpy(&y, b, sizeof y);
    memset(x.name, 0, sizeof x.name);
    memset(y.name, 0, sizeof y.name);
    return memcmp(&x, &y, sizeof x) == 0;
}
