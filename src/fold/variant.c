/* variant.c - see variant.h. */
#include "fold/variant_internal.h"

#include "base/text.h"
#include "kernels/fold/fold_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { WORD_LEN = 24, LARGEST_RANK = 1024 };
typedef exf_variant_reading reading;

/* ---- prefill options --------------------------------------------------------------- */

/* Returns 1 if a prefill fold, or a decode fold, can apply the projector.  Vectors need expert
 * outputs, which a decode fold does not have. */
static int may_fold(const exf_projector *p, int prefill)
{
    return prefill || p->apply != EXF_APPLY_VECTORS;
}

static exf_code unknown_projector(const reading *r, const char *value, int prefill)
{
    exf_text list = {0};
    exf_code rc = EXF_OK;
    const exf_projector *p = exf_projector_after(0);
    for (; rc == EXF_OK && p; p = exf_projector_after(p->place))
        if (may_fold(p, prefill)) rc = exf_text_addf(&list, r->err, "%s%s", list.len ? ", " : "", p->name);
    if (rc == EXF_OK) rc = exf_variant_bad_value(r, "projector", value, list.s);
    exf_text_free(&list);
    return rc;
}

/* Returns 1 if the value is the projector's name, followed by R if it is ranked; *missing 1: R is missing. */
static int spells(const exf_projector *p, const char *value, int *rank, int *missing)
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
    int missing = 0;
    char with_rank[64];
    for (size_t i = 0; (p = exf_projector_at(i)); i++) {
        if (!may_fold(p, prefill) || !spells(p, value, rank, &missing)) continue;
        snprintf(with_rank, sizeof with_rank, "a rank with it, as in %.32s8", p->name);
        if (missing) return exf_variant_bad_value(r, "projector", value, with_rank);
        *out = p;
        return EXF_OK;
    }
    return unknown_projector(r, value, prefill);
}

static exf_code set_projector(const reading *r, const char *value)
{
    return read_projector(r, value, 1, &r->v->prefill_projector, &r->v->prefill_lowrank);
}

static exf_code set_rank(const reading *r, const char *value)
{
    static const char *const words[] = {"score_norm", "score", "norm", NULL};
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "rank", value, words, &kind);
    r->v->prefill_options.rank = (exf_fold_rank)kind;
    return rc;
}

static exf_code set_max_loss(const reading *r, const char *value)
{
    return exf_variant_read_float(r, "max_loss", value, &r->v->prefill_options.max_loss);
}

static exf_code set_rescale(const reading *r, const char *value)
{
    static const char *const words[] = {"none", "sum", "l2", NULL};
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "rescale", value, words, &kind);
    r->v->prefill_options.rescale = (exf_fold_rescale)kind;
    return rc;
}

static exf_code set_confidence(const reading *r, const char *value)
{
    static const char *const words[] = {"off", "on", NULL};
    return exf_variant_read_word(r, "confidence", value, words, &r->v->prefill_options.confidence);
}

static exf_code set_ridge(const reading *r, const char *value)
{
    return exf_variant_read_float(r, "ridge", value, &r->v->prefill_options.ridge);
}

/* Reads which losses choose targets and confidence; the other word is the tables' loss. */
static exf_code read_loss(const reading *r, const char *value, int *frobenius)
{
    static const char *const words[] = {"energy", "frobenius", NULL};
    return exf_variant_read_word(r, "loss", value, words, frobenius);
}

static exf_code set_loss(const reading *r, const char *value)
{
    return read_loss(r, value, &r->v->prefill_frobenius);
}

static exf_code set_renorm(const reading *r, const char *value)
{
    (void)value;
    r->v->renormalise = 1;
    return EXF_OK;
}

static exf_code set_drop(const reading *r, const char *value)
{
    (void)value;
    r->v->renormalise = 0;
    return EXF_OK;
}

static exf_code set_seed(const reading *r, const char *value)
{
    int good = exf_parse_i64(value, &r->v->seed) && r->v->seed >= 0;
    return good ? EXF_OK : exf_variant_bad_value(r, "seed", value, "an integer from 0");
}

/* ---- decode options ------------------------------------------------------------------ */

static exf_code set_pool(const reading *r, const char *value)
{
    static const char *const words[] = {"dynamic", "static", NULL};
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "pool", value, words, &kind);
    r->v->decode = kind ? EXF_DECODE_STATIC : EXF_DECODE_DYNAMIC;
    return rc;
}

static exf_code set_fold(const reading *r, const char *value)
{
    static const char *const words[] = {"on", "drop", NULL};
    return exf_variant_read_word(r, "fold", value, words, &r->v->decode_options.drop);
}

static exf_code set_importance(const reading *r, const char *value)
{
    static const char *const words[] = {"norm", "energy", "score", NULL};
    int kind = 0;
    exf_code rc = exf_variant_read_word(r, "rank", value, words, &kind);
    r->v->decode_options.importance = (exf_fold_importance)kind;
    return rc;
}

static exf_code set_decode_projector(const reading *r, const char *value)
{
    int rank;
    return read_projector(r, value, 0, &r->v->decode_projector, &rank);
}

static exf_code set_decode_max_loss(const reading *r, const char *value)
{
    return exf_variant_read_float(r, "max_loss", value, &r->v->decode_options.max_loss);
}

static exf_code set_decode_loss(const reading *r, const char *value)
{
    return read_loss(r, value, &r->v->decode_frobenius);
}

static exf_code set_fallback(const reading *r, const char *value)
{
    static const char *const words[] = {"drop", "first", NULL};
    return exf_variant_read_word(r, "fallback", value, words, &r->v->decode_options.fallback);
}

static exf_code set_decode_ridge(const reading *r, const char *value)
{
    return exf_variant_read_float(r, "ridge", value, &r->v->decode_options.ridge);
}

static exf_code set_rho(const reading *r, const char *value)
{
    return exf_variant_read_real(r, "rho", value, 1, &r->v->rho); /* similarities are at most 1 */
}

/* ---- kinds --------------------------------------------------------------------------- */

static const exf_variant_option fold_options[] = {
    {"projector", "pair|layer|global|diagonal|lowrank<R>|joint", "pair",
     "what stands in for an omitted route: a scalar of its pair, layer or model; vectors; or weights solved jointly",
     set_projector},
    {"rank", "score_norm|score|norm", "score_norm", "kept routes are those of largest w h, w or h", set_rank},
    {"max_loss", "X", "none", "pairs with a loss above X are no targets", set_max_loss},
    {"rescale", "none|sum|l2", "none", "kept weights keep the sum, or the root of summed squares, of the original ones",
     set_rescale},
    {"confidence", "on|off", "off", "a share L of an omitted weight is spread over all kept routes", set_confidence},
    {"loss", "energy|frobenius", "energy",
     "the L of a pair: the share of energy that its scalar misses, or of the Frobenius norm; projector=pair alone", set_loss},
    {"ridge", "X", "1e-2", "joint: share of the mean diagonal that is added to it", set_ridge},
    {"budget", "token|topp", "none",
     "P is the mean: each token keeps the routes that its predicted residual, or a share of its w rms, asks for, weighed jointly; "
     "from /budgets/<P> in the tables",
     exf_variant_set_budget},
    {"sensitivity", "stream|output|measured", "stream",
     "budget=token: an error of a layer counts relative to the residual stream, to the layer's output, or as it was measured",
     exf_variant_set_sensitivity},
    {"layer", "N", "all", "only this layer folds: what it does to the model alone", exf_variant_set_layer},
    {NULL, NULL, NULL, NULL, NULL}};
static const exf_variant_option top_options[] = {
    {"renorm", NULL, "on", "kept weights keep the sum of the original ones", set_renorm},
    {"drop", NULL, "off", "kept weights stay as they are", set_drop},
    {NULL, NULL, NULL, NULL, NULL}};
static const exf_variant_option skip_options[] = {
    {"tau", "X", "none, and one is needed", "routes with w times the layer's factor below X are dropped", exf_variant_set_tau},
    {"factor", "none|stream|output|measured", "none",
     "the layer's sensitivity over the mean of all layers, from the tables' budgets", exf_variant_set_factor},
    {NULL, NULL, NULL, NULL, NULL}};
static const exf_variant_option random_options[] = {
    {"rank", "score_norm|score|norm", "score_norm", "as of P", set_rank},
    {"seed", "N", "1", "of the draw", set_seed},
    {NULL, NULL, NULL, NULL, NULL}};
static const exf_variant_option pool_options[] = {
    {"pool", "dynamic|static", "dynamic", "the experts of most importance in the batch, or those of /pools/<D> in the tables",
     set_pool},
    {"fold", "on|drop", "on", "routes outside the pool are folded in place, or dropped", set_fold},
    {"rank", "norm|energy|score", "norm", "an expert's importance is the sum of w h, (w rms)^2 or w over its routes",
     set_importance},
    {"projector", "pair|layer|global|joint", "pair", "as of P; expert outputs, which vectors need, are not there",
     set_decode_projector},
    {"targets", "expert|router", "expert",
     "a route outside the pool goes to the member that its expert is nearest to, or to the one that the router scores next and the "
     "token has not",
     exf_variant_set_targets},
    {"weights", "joint|route|gate", "joint",
     "targets=router: solved jointly; the router's own, renormalised as it does; or a stand-in's own beside the kept ones as they "
     "are",
     exf_variant_set_weights},
    {"by", "norm|reap|energy", "norm", "pool=static: what its experts have most of: mean norm, mean w norm, or summed (w norm)^2",
     exf_variant_set_by},
    {"max_loss", "X", "none", "as of P", set_decode_max_loss},
    {"loss", "energy|frobenius", "energy", "as of P", set_decode_loss},
    {"fallback", "drop|first", "drop",
     "a route without a target is dropped, or goes to the pool's most important expert with that pair's scalar", set_fallback},
    {"ridge", "X", "1e-2", "as of P", set_decode_ridge},
    {NULL, NULL, NULL, NULL, NULL}};
static const exf_variant_option reap_options[] = {{NULL, NULL, NULL, NULL, NULL}};
static const exf_variant_option sere_options[] = {
    {"rho", "X", "0", "a route stays where no primary expert is more similar than X", set_rho}, {NULL, NULL, NULL, NULL, NULL}};

static const exf_variant_kind kinds[] = {
    {"P", "P4", "prefill: 4 routes a token; each omitted one is folded into the kept one of least loss", 1, EXF_PREFILL_FOLD,
     fold_options},
    {"top", "top4", "prefill: the 4 best-scored routes alone", 1, EXF_PREFILL_TOP, top_options},
    {"skip", "skip1", "prefill: routes below a threshold are dropped, in the manner of MoDES (arXiv 2511.15690); at least 1 stays",
     1, EXF_PREFILL_SKIP, skip_options},
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

static exf_code unknown_option(const reading *r, const exf_variant_kind *kind, const char *word)
{
    exf_text known = {0};
    exf_code rc = EXF_OK;
    for (const exf_variant_option *o = kind->options; rc == EXF_OK && o->name; o++)
        rc = exf_text_addf(&known, r->err, "%s%s", known.len ? ", " : "", o->name);
    if (rc == EXF_OK)
        rc = exf_fail(r->err, EXF_USAGE, "variant \"%s\": \"%s\" is no option of %s (%s%s)", r->text, word, kind->name,
                      known.s ? "known: " : "it has none", known.s ? known.s : "");
    exf_text_free(&known);
    return rc;
}

/* Sets one option; given: a bit for each option that stood before. */
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
            return o->set(r, equals ? equals + 1 : "");
        }
    return unknown_option(r, kind, word);
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
    exf_variant_terms terms = {.options = ""};
    exf_code rc = r->terms(r->runtime, r->text, kind, options, &terms, r->err);
    if (rc != EXF_OK) return rc;
    if (!kind->is_prefill) r->v->decode_options.candidates = terms.candidates;
    r->v->folds_hashed = terms.folds_hashed;
    if (!*terms.options) return EXF_OK;
    snprintf(own, sizeof own, "%s", terms.options);
    return set_options(r, kind, own);
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
    if (!exf_parse_i64(part + letters, number) || *number < 1) return NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, word) == 0) return &kinds[i];
    return NULL;
}

static exf_code read_part(const reading *r, char *part)
{
    exf_variant *v = r->v;
    char *options = strchr(part, ':');
    int64_t number = 0;
    if (options) *options++ = '\0';
    const exf_variant_kind *kind = kind_of(part, &number);
    if (!kind)
        return exf_fail(
            r->err, EXF_USAGE,
            "variant \"%s\": \"%s\" is no kind; kinds are P4, top4, skip1, random4, D64, reap64, sere4, with any number from 1",
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
    }
    exf_code rc = r->terms ? set_runtime(r, kind, options) : EXF_OK;
    return rc == EXF_OK && options ? set_options(r, kind, options) : rc;
}

static int is_limited(float max_loss)
{
    return exf_fold_max_loss(max_loss) < EXF_FOLD_NEVER;
}

/* Refuses options of which one would be ignored. */
static exf_code check_together(const reading *r)
{
    const exf_variant *v = r->v;
    exf_apply prefill = v->prefill_projector->apply, decode = v->decode_projector->apply;
    int vectors = prefill == EXF_APPLY_VECTORS;
    const exf_fold_prefill_options *p = &v->prefill_options;
    int guarded = p->confidence || p->rescale != EXF_FOLD_RESCALE_NONE;
    if ((vectors && guarded) || (prefill == EXF_APPLY_JOINTLY && (p->confidence || is_limited(p->max_loss))))
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": this projector cannot be combined with %s", r->text,
                        vectors ? "rescale or confidence" : "max_loss or confidence");
    if (v->decode == EXF_DECODE_STATIC &&
        ((decode != EXF_APPLY_PAIR && decode != EXF_APPLY_JOINTLY) || v->decode_options.importance != EXF_FOLD_IMPORTANCE_NORM ||
         is_limited(v->decode_options.max_loss)))
        return exf_fail(r->err, EXF_USAGE,
                        "variant \"%s\": a static pool has pair scalars or joint weights, no rank (by says what its experts are) "
                        "and no max_loss",
                        r->text);
    if (decode == EXF_APPLY_JOINTLY && (v->decode_options.drop || is_limited(v->decode_options.max_loss)))
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": projector=joint cannot be combined with fold=drop or max_loss",
                        r->text);
    int other_targets = decode != EXF_APPLY_PAIR || v->decode == EXF_DECODE_STATIC || v->by_router;
    if ((v->prefill_frobenius && (prefill != EXF_APPLY_PAIR || v->budget)) || (v->decode_frobenius && other_targets))
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": loss=frobenius is of projector=pair and of dynamic pools alone",
                        r->text);
    if (v->decode_options.fallback && (decode == EXF_APPLY_JOINTLY || v->decode == EXF_DECODE_STATIC || v->by_router ||
                                       v->decode_options.drop))
        return exf_fail(r->err, EXF_USAGE,
                        "variant \"%s\": fallback=first cannot be combined with projector=joint, targets=router, pool=static or "
                        "fold=drop",
                        r->text);
    if ((p->ridge != 0 && prefill != EXF_APPLY_JOINTLY) || (v->decode_options.ridge != 0 && decode != EXF_APPLY_JOINTLY))
        return exf_fail(r->err, EXF_USAGE, "variant \"%s\": ridge is of projector=joint alone", r->text);
    return EXF_OK;
}

exf_code exf_variant_parse(exf_variant *v, const char *text, exf_err *err)
{
    return exf_variant_parse_on(v, text, NULL, NULL, err);
}

exf_code exf_variant_parse_on(exf_variant *v, const char *text, exf_variant_terms_fn terms, const void *runtime, exf_err *err)
{
    char copy[EXF_VARIANT_NAME_LEN];
    reading r = {v, text, err, terms, runtime};
    exf_code rc = EXF_OK;
    memset(v, 0, sizeof *v);
    if (strlen(text) >= sizeof copy)
        return exf_fail(err, EXF_USAGE, "variant \"%.40s...\" has %zu characters, at most %zu are allowed", text, strlen(text),
                        sizeof copy - 1);
    v->renormalise = 1;
    v->seed = 1;
    snprintf(v->name, sizeof v->name, "%s", text);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *part = copy, *next; rc == EXF_OK && part; part = next) {
        next = strchr(part, '+');
        if (next) *next++ = '\0';
        rc = read_part(&r, part);
    }
    if (!v->prefill_projector) v->prefill_projector = v->budget ? &exf_projector_joint : &exf_projector_pair;
    if (!v->decode_projector) v->decode_projector = v->by_router ? &exf_projector_joint : &exf_projector_pair;
    if (rc == EXF_OK) rc = check_together(&r);
    if (rc == EXF_OK) rc = exf_variant_check_budget(&r);
    return rc == EXF_OK ? exf_variant_check_stand_ins(&r) : rc;
}

exf_code exf_variant_check(const exf_variant *v, int n_experts, int top_k, exf_err *err)
{
    int keep = v->prefill_options.keep, pool = v->decode_options.pool;
    if (n_experts < EXF_FOLD_MIN_E || n_experts > EXF_FOLD_MAX_E || top_k > EXF_FOLD_MAX_K)
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
