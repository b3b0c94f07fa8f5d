/* variant.c - the grammar of variants: the table of kinds and their options, reading a text, and refusing options that do
 * not fit together, and what a model or a runtime lacks. */
#include "fold/variant.h"

#include "base/text.h"
#include "fold/runtime.h"
#include "kernels/fold/fold_internal.h"
#include "model/architecture.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { WORD_LEN = 24, LARGEST_RANK = 1024 };

/* The state of reading a variant. */
typedef struct exf_variant_reading {
    exf_variant *v;
    const char *text; /* the whole variant, for messages */
    exf_err *err;
    const exf_runtime *runtime; /* NULL: any */
} reading;

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

static exf_code set_tau(const reading *r, const exf_variant_option *o, const char *value)
{
    return read_real(r, o, value, 1e30, &r->v->tau);
}

static exf_code set_rho(const reading *r, const exf_variant_option *o, const char *value)
{
    return read_real(r, o, value, 1, &r->v->rho); /* similarities are at most 1 */
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

/* Returns 1 if the value is the projector's name, followed by R if it is ranked; *missing 1: R is missing. */
static int names_projector(const exf_projector *p, const char *value, int *rank, int *missing)
{
    int64_t r = 0;
    size_t n = strlen(p->name);
    if (strncmp(value, p->name, n) != 0) return 0;
    *missing = p->ranked && value[n] == '\0';
    if (!p->ranked) return value[n] == '\0';
    if (!*missing && (!exf_parse_i64(value + n, &r) || r < 1 || r > LARGEST_RANK)) return 0;
    *rank = (int)r;
    return 1;
}

static exf_code read_projector(const reading *r, const char *value, int prefill, const exf_projector **out, int *rank)
{
    const exf_projector *p;
    exf_text list = {0};
    int missing = 0;
    char with_rank[64];
    for (size_t i = 0; (p = exf_projector_at(i)); i++) {
        if (!may_fold(p, prefill) || !names_projector(p, value, rank, &missing)) continue;
        snprintf(with_rank, sizeof with_rank, "a rank with it, as in %.32s8", p->name);
        if (missing) return refuse_value(r, "projector", value, with_rank);
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
     set_tau, 0},
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
    {"rho", "X", "0", "a route stays where no primary expert is as similar as X; 0: every route goes", set_rho, 0}, BATCH, END};

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

/* Sets what the runtime does with every variant of the kind; refuses a kind or an option that it does not have. */
static exf_code set_runtime(const reading *r, const exf_variant_kind *kind, const char *options)
{
    char own[EXF_VARIANT_NAME_LEN];
    exf_code rc = exf_runtime_takes(r->runtime, r->text, kind->name, kind->is_prefill, options, r->err);
    if (rc != EXF_OK) return rc;
    if (!kind->is_prefill) r->v->decode_options.candidates = r->runtime->candidates;
    r->v->folds_hashed = r->runtime->folds_hashed;
    snprintf(own, sizeof own, "%s", kind->is_prefill ? r->runtime->prefill : r->runtime->decode);
    return *own ? set_options(r, kind, own) : EXF_OK;
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
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int least = !(kinds[i].is_prefill && kinds[i].kind == EXF_PREFILL_SKIP);
        if (strcmp(kinds[i].name, word) == 0) return *number < least ? NULL : &kinds[i];
    }
    return NULL;
}

/* Writes the part with its kind in the letters that are meant; returns 0 if it is no kind in any. */
static int kind_but_for_case(const char *part, char *out, size_t size)
{
    int64_t number;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i].name);
        if (strncasecmp(part, kinds[i].name, n) != 0) continue;
        snprintf(out, size, "%s%s", kinds[i].name, part + n);
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
    exf_code rc = r->runtime ? set_runtime(r, kind, options) : EXF_OK;
    return rc == EXF_OK && options ? set_options(r, kind, options) : rc;
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
