/* variant.c - the grammar of variants: the table of kinds and their options, and how the value of each is read; variant_read.c
 * reads a whole text by it. */
#include "fold/variant.h"

#include "base/text.h"
#include "kernels/fold/fold_internal.h"
#include "model/architecture.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { LARGEST_RANK = 1024 };

typedef exf_variant_reading reading;

/* ---- values ------------------------------------------------------------------------- */

static exf_code refuse_value(const reading *r, const char *option, const char *value, const char *expected)
{
    return exf_fail(r->err, EXF_USAGE, "variant \"%s\": %s=%s, expected %s", r->text, option, value, expected);
}

/* Reads one of the words of o->values, "norm|energy|score", as its place among them. */
static exf_code read_word(const reading *r, const exf_variant_option *o, const char *value, int *place)
{
    exf_text list = {0};
    const char *word = o->values;
    *place = 0;
    for (size_t n;; word += n + 1, ++*place) {
        n = strcspn(word, "|");
        if (strlen(value) == n && memcmp(word, value, n) == 0) return EXF_OK;
        if (!word[n]) break;
    }
    for (const char *c = o->values; *c; c++) exf_text_append(&list, *c == '|' ? ", " : c, *c == '|' ? 2 : 1);
    exf_code rc = exf_text_end(&list, r->err);
    if (rc == EXF_OK) rc = refuse_value(r, o->name, value, list.s);
    exf_text_free(&list);
    return rc;
}

/* Reads a number from 0 to `high`. */
static exf_code read_real(const reading *r, const exf_variant_option *o, const char *value, double high, double *out)
{
    char expected[48];
    if (exf_parse_f64(value, out) && *out >= 0 && *out <= high) return EXF_OK;
    snprintf(expected, sizeof expected, "a number from 0 to %g", high);
    return refuse_value(r, o->name, value, expected);
}

/* Sets an int or an enum to the place of the word. */
static exf_code set_word(const reading *r, const exf_variant_option *o, const char *value)
{
    int place = 0;
    exf_code rc = read_word(r, o, value, &place);
    memcpy((char *)r->v + o->field, &place, sizeof place);
    return rc;
}

/* Sets an enum to the place of the word plus 1: its first member is no word but what holds without the option. */
static exf_code set_choice(const reading *r, const exf_variant_option *o, const char *value)
{
    int place = 0;
    exf_code rc = read_word(r, o, value, &place);
    place++;
    memcpy((char *)r->v + o->field, &place, sizeof place);
    return rc;
}

/* Sets an option of exfold/fold.h, whose 0 is the default: a 0 that was given is EXF_FOLD_ZERO. */
static exf_code set_float(const reading *r, const exf_variant_option *o, const char *value)
{
    double x = 0;
    exf_code rc = read_real(r, o, value, 1e30, &x);
    float out = (float)x == 0 ? EXF_FOLD_ZERO : (float)x;
    memcpy((char *)r->v + o->field, &out, sizeof out);
    return rc;
}

/* Sets a threshold; rho is one of similarities, which are at most 1. */
static exf_code set_threshold(const reading *r, const exf_variant_option *o, const char *value)
{
    double x = 0;
    exf_code rc = read_real(r, o, value, o->field == offsetof(exf_variant, rho) ? 1 : 1e30, &x);
    memcpy((char *)r->v + o->field, &x, sizeof x);
    return rc;
}

static exf_code set_confidence(const reading *r, const exf_variant_option *o, const char *value)
{
    r->v->prefill_options.confidence = strcmp(value, "on") == 0;
    return r->v->prefill_options.confidence || strcmp(value, "off") == 0 ? EXF_OK : refuse_value(r, o->name, value, "off, on");
}

/* Sets what top does with the kept weights. */
static exf_code set_kept(const reading *r, const exf_variant_option *o, const char *value)
{
    (void)value;
    r->v->renormalise = strcmp(o->name, "renorm") == 0;
    return EXF_OK;
}

static exf_code set_seed(const reading *r, const exf_variant_option *o, const char *value)
{
    int64_t seed;
    if (!exf_parse_i64(value, &seed) || seed < 0) return refuse_value(r, o->name, value, "an integer from 0");
    memcpy((char *)r->v + o->field, &seed, sizeof seed);
    return EXF_OK;
}

static exf_code set_outside(const reading *r, const exf_variant_option *o, const char *value)
{
    int place = 0;
    exf_code rc = read_word(r, o, value, &place);
    r->v->outside = (exf_outside)place;
    r->v->decode_options.drop = place == EXF_OUTSIDE_DROPPED || place == EXF_OUTSIDE_RENORMALISED;
    return rc;
}

static exf_code set_batch(const reading *r, const exf_variant_option *o, const char *value)
{
    int64_t size;
    if (!exf_parse_i64(value, &size) || size < 1 || size > EXF_FOLD_MAX_SLOTS)
        return refuse_value(r, o->name, value, "a number of sequences from 1");
    r->v->batch = (int)size;
    return EXF_OK;
}

static exf_code set_layer(const reading *r, const exf_variant_option *o, const char *value)
{
    int64_t layer;
    if (!exf_parse_i64(value, &layer) || layer < 0 || layer >= EXF_MAX_LAYERS)
        return refuse_value(r, o->name, value, "the number of a layer, from 0");
    r->v->only_layer = (int)layer + 1;
    return EXF_OK;
}

/* Sets skip's factor; skip's own rule is no place after the others'. */
static exf_code set_factor(const reading *r, const exf_variant_option *o, const char *value)
{
    int place = 0;
    exf_code rc = read_word(r, o, value, &place);
    r->v->sensitivity = place > EXF_SENSITIVITY_MEASURED ? EXF_SENSITIVITY_SKIP : (exf_sensitivity)place;
    return rc;
}

static exf_code set_skip_budget(const reading *r, const exf_variant_option *o, const char *value)
{
    int64_t budget;
    if (!exf_parse_i64(value, &budget) || budget < 1 || budget > EXF_FOLD_MAX_K)
        return refuse_value(r, o->name, value, "a number of experts per token from 1");
    r->v->skip_budget = (int)budget;
    return EXF_OK;
}

/* Sets what the experts that reap retains have most of. */
static exf_code set_criterion(const reading *r, const exf_variant_option *o, const char *value)
{
    int place = 0;
    exf_code rc = read_word(r, o, value, &place);
    if (rc == EXF_OK) r->v->pool_by = (exf_pool_criterion)exf_name_place(exf_pool_criteria, EXF_POOL_CRITERIA, value);
    return rc;
}

/* Returns 1 if a prefill fold, or a decode fold, can apply the projector.  Vectors need expert
 * outputs, which a decode fold does not have. */
static int may_fold(const exf_projector *p, int prefill)
{
    return prefill || p->apply != EXF_APPLY_VECTORS;
}

static exf_code read_projector(const reading *r, const char *value, int prefill, const exf_projector **out, int *rank)
{
    const exf_projector *p;
    exf_text list = {0};
    char with_rank[64];
    for (size_t i = 0; (p = exf_projector_at(i)); i++) {
        int64_t number = 0; /* R after the name of a ranked one */
        size_t n = strlen(p->name);
        if (!may_fold(p, prefill) || strncmp(value, p->name, n) != 0 || (!p->ranked && value[n])) continue;
        snprintf(with_rank, sizeof with_rank, "a rank with it, as in %.32s8", p->name);
        if (p->ranked && !value[n]) return refuse_value(r, "projector", value, with_rank);
        if (p->ranked && (!exf_parse_i64(value + n, &number) || number < 1 || number > LARGEST_RANK)) continue;
        if (p->ranked) *rank = (int)number;
        *out = p;
        return EXF_OK;
    }
    for (p = exf_projector_after(0); p; p = exf_projector_after(p->place))
        if (may_fold(p, prefill)) exf_text_appendf(&list, "%s%s", list.len ? ", " : "", p->name);
    exf_code rc = exf_text_end(&list, r->err);
    if (rc == EXF_OK) rc = refuse_value(r, "projector", value, list.s);
    exf_text_free(&list);
    return rc;
}

static exf_code set_projector(const reading *r, const exf_variant_option *o, const char *value)
{
    (void)o;
    return read_projector(r, value, 1, &r->v->prefill_projector, &r->v->prefill_lowrank);
}

static exf_code set_decode_projector(const reading *r, const exf_variant_option *o, const char *value)
{
    int rank;
    (void)o;
    return read_projector(r, value, 0, &r->v->decode_projector, &rank);
}

/* ---- kinds --------------------------------------------------------------------------- */

#define AT(field) offsetof(exf_variant, field)
#define END {NULL, NULL, NULL, NULL, NULL, 0}
/* Of every decode kind. */
#define BATCH \
    {"batch", "N", "each", "sequences that decode side by side, one of validate.decode_batch; without it, each of these in turn", \
     set_batch, 0}

static const exf_variant_option fold_options[] = {
    {"projector", "pair|layer|global|diagonal|lowrank<R>|joint", "pair",
     "what stands in for an omitted route: a scalar of its pair, layer or model; vectors; or weights solved jointly",
     set_projector, 0},
    {"rank", "score_norm|score|norm", "score_norm", "kept routes are those of largest w h, w or h", set_word,
     AT(prefill_options.rank)},
    {"max_loss", "X", "none", "pairs with a loss above X are no targets", set_float, AT(prefill_options.max_loss)},
    {"rescale", "none|sum|l2", "none", "kept weights keep the sum, or the root of summed squares, of the original ones",
     set_word, AT(prefill_options.rescale)},
    {"confidence", "on|off", "off", "a share L of an omitted weight is spread over all kept routes", set_confidence, 0},
    {"loss", "energy|frobenius", "energy",
     "the L of a pair: the share of energy that its scalar misses, or of the Frobenius norm; projector=pair alone",
     set_word, AT(prefill_frobenius)},
    {"ridge", "X", "1e-2", "joint: share of the mean diagonal that is added to it", set_float, AT(prefill_options.ridge)},
    {"budget", "token|topp", "none",
     "P is the mean: each token keeps the routes that its predicted residual, or a share of its w rms, asks for, weighed jointly; "
     "from /budgets/<P> in the tables",
     set_choice, AT(budget)},
    {"sensitivity", "stream|output|measured", "stream",
     "budget=token: an error of a layer counts relative to the residual stream, to the layer's output, or as it was measured",
     set_choice, AT(sensitivity)},
    {"norms", "mean|predicted", "mean",
     "h and rms are an expert's mean norms, or the norm that the tables' head (calibrate.norm_head) predicts for the token",
     set_word, AT(prefill_norms)},
    {"layer", "N", "all", "only this layer folds: what it does to the model alone", set_layer, 0},
    END};
static const exf_variant_option top_options[] = {
    {"renorm", NULL, "on", "kept weights keep the sum of the original ones", set_kept, 0},
    {"drop", NULL, "off", "kept weights stay as they are", set_kept, 0},
    END};
static const exf_variant_option skip_options[] = {
    {"tau", "X", "none, and one is needed", "routes whose share of the token's w times the layer's factor is below X are dropped",
     set_threshold, AT(tau)},
    {"factor", "none|stream|output|measured|skip", "none",
     "the layer's sensitivity over the mean of all layers, from the tables' budgets; skip: MoDES' own, what leaving out the layer "
     "did to the model, over the sum of all layers",
     set_factor, 0},
    {"budget", "N", "none", "factor and tau are those of /budgets/<N>/skip in the tables, which keep N routes in the mean",
     set_skip_budget, 0},
    {"layer", "N", "all", "only this layer skips: with a tau above 1, what leaving out its routed experts does", set_layer, 0},
    END};
static const exf_variant_option random_options[] = {
    {"rank", "score_norm|score|norm", "score_norm", "as of P", set_word, AT(prefill_options.rank)},
    {"seed", "N", "1", "of the draw", set_seed, AT(seed)},
    END};
static const exf_variant_option pool_options[] = {
    {"pool", "dynamic|static", "dynamic", "the experts of most importance in the batch, or those of /pools/<D> in the tables",
     set_choice, AT(decode)},
    {"fold", "on|drop|renorm|random", "on",
     "routes outside the pool are folded in place; dropped; dropped while the token's other weights keep the sum of all; or folded "
     "into a member drawn at random",
     set_outside, 0},
    {"seed", "N", "1", "of the draw of fold=random", set_seed, AT(decode_seed)},
    {"rank", "norm|energy|score", "norm", "an expert's importance is the sum of w h, (w rms)^2 or w over its routes",
     set_word, AT(decode_options.importance)},
    {"projector", "pair|layer|global|joint", "pair", "as of P; expert outputs, which vectors need, are not there",
     set_decode_projector, 0},
    {"targets", "expert|router", "expert",
     "a route outside the pool goes to the member that its expert is nearest to, or to the one that the router scores next and the "
     "token has not",
     set_word, AT(by_router)},
    {"weights", "joint|route|gate", "joint",
     "targets=router: solved jointly; the router's own, renormalised as it does; or a stand-in's own beside the kept ones as they "
     "are",
     set_word, AT(stand_in_weights)},
    {"by", "norm|reap|energy|frequency|ean|weighted_ean", "norm",
     "pool=static: what its experts have most of: mean norm, mean w norm, summed (w norm)^2, or REAP's other criteria: routes, "
     "summed norm, summed w norm",
     set_word, AT(pool_by)},
    {"max_loss", "X", "none", "as of P", set_float, AT(decode_options.max_loss)},
    {"loss", "energy|frobenius", "energy", "as of P", set_word, AT(decode_frobenius)},
    {"fallback", "drop|first", "drop",
     "a route without a target is dropped, or goes to the pool's most important expert with that pair's scalar",
     set_word, AT(decode_options.fallback)},
    {"ridge", "X", "1e-2", "as of P", set_float, AT(decode_options.ridge)},
    {"norms", "mean|predicted", "mean", "as of P", set_word, AT(decode_norms)},
    BATCH,
    END};
static const exf_variant_option reap_options[] = {
    {"by", "reap|norm|frequency|ean|weighted_ean", "reap",
     "what the retained experts have most of: mean w norm, mean norm, routes, summed norm, or summed w norm", set_criterion, 0},
    {"router", "model|code", "model",
     "whose routes that is over: the model's, or those of REAP's code, which chooses by a softmax of the bare logits "
     "(calibrate.bare_router); where they run, the model's router picks among the retained",
     set_word, AT(bare_router)},
    BATCH, END};
static const exf_variant_option sere_options[] = {
    {"rho", "X", "0", "a route stays where no primary expert is as similar as X; 0: every route goes", set_threshold, AT(rho)},
    BATCH, END};

static const exf_variant_kind kinds[] = {
    {"P", "P4", "prefill: 4 routes a token; each omitted one is folded into the kept one of least loss", 1, EXF_PREFILL_FOLD,
     fold_options},
    {"top", "top4", "prefill: the 4 best-scored routes alone", 1, EXF_PREFILL_TOP, top_options},
    {"skip", "skip1",
     "prefill: routes below a threshold are dropped, as MoDES does (arXiv 2511.15690); at least 1 stays, with skip0 none need", 1,
     EXF_PREFILL_SKIP, skip_options},
    {"random", "random4", "prefill: 4 routes, the others folded into a random one", 1, EXF_PREFILL_RANDOM, random_options},
    {"D", "D64", "decode: 64 experts a batch, those of most importance; routes outside are folded in place", 0, EXF_DECODE_DYNAMIC,
     pool_options},
    {"reap", "reap64", "decode: the 64 experts of largest mean w ||E(x)||; the router picks among them", 0, EXF_DECODE_REAP,
     reap_options},
    {"sere", "sere4", "decode: routes outside the batch's top-4 experts go to the most similar of these", 0, EXF_DECODE_SERE,
     sere_options},
};

const exf_variant_kind *exf_variant_kind_at(size_t i)
{
    return i < sizeof kinds / sizeof *kinds ? &kinds[i] : NULL;
}
