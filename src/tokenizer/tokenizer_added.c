/* tokenizer_added.c - see tokenizer_added.h. */
#include "tokenizer/tokenizer_added.h"

#include "base/mem.h"
#include "tokenizer/tokenizer_nfc.h"
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *pa, const void *pb)
{
    const exf_added_token *a = pa, *b = pb;
    int order = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

static exf_code put(exf_added_set *set, const char *text, size_t len, int32_t id, exf_err *err)
{
    exf_code rc = exf_mem_grow(&set->token, &set->cap, set->n + 1, sizeof *set->token, "added tokens", err);
    if (rc != EXF_OK) return rc;
    exf_added_token *t = &set->token[set->n];
    rc = exf_mem_dup(&t->text, text, len, "added token", err);
    if (rc != EXF_OK) return rc;
    t->len = len;
    t->id = id;
    set->n++;
    return EXF_OK;
}

static exf_code refuse_long(const exf_added_set *set, const char *where, exf_err *err)
{
    size_t bytes = 0;
    for (size_t i = 0; i < set->n; i++) bytes += set->token[i].len;
    if (bytes <= EXF_MATCHER_BYTES) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: its added tokens have %zu bytes together, at most %d are accepted", where, bytes,
                    EXF_MATCHER_BYTES);
}

static exf_code refuse_twice(const exf_added_set *set, const char *where, exf_err *err)
{
    for (size_t i = 1; i < set->n; i++)
        if (by_text(&set->token[i - 1], &set->token[i]) == 0)
            return exf_fail(err, EXF_MODEL, "%s: added token \"%s\" is there twice (ids %d and %d)", where, set->token[i].text,
                            set->token[i - 1].id, set->token[i].id);
    return EXF_OK;
}

static exf_code finish(exf_added_set *set, const char *where, exf_err *err)
{
    exf_word *word = NULL;
    exf_code rc;
    if (set->n == 0) return EXF_OK;
    EXF_TRY(refuse_long(set, where, err));
    qsort(set->token, set->n, sizeof *set->token, by_text);
    EXF_TRY(refuse_twice(set, where, err));
    EXF_TRY(exf_mem_new(&word, set->n, sizeof *word, "added tokens", err));
    for (size_t i = 0; i < set->n; i++) word[i] = (exf_word){set->token[i].text, set->token[i].len};
    rc = exf_matcher_new(&set->matcher, word, set->n, err);
out:
    exf_mem_free(word);
    return rc;
}

/* ---- loading -------------------------------------------------------- */

static exf_code refuse_options(const exf_json *j, const char *text, const char *where, exf_err *err)
{
    static const char *const option[] = {"lstrip", "rstrip", "single_word"};
    for (size_t i = 0; i < sizeof option / sizeof option[0]; i++) {
        int on;
        exf_code rc = exf_part_bool(&on, j, option[i], where, "added token", text, err);
        if (rc != EXF_OK) return rc;
        if (on)
            return exf_fail(err, EXF_MODEL, "%s: added token \"%s\" with %s true is not supported (supported: false)", where, text,
                            option[i]);
    }
    return EXF_OK;
}

/* The library goes by the token's text: it has the vocabulary's id or, if it is not
 * in there, the next free one, whatever the file says.  So both must agree. */
static exf_code check_id(int32_t id, const char *text, size_t len, const exf_bpe *bpe, int32_t *next, const char *where,
                         exf_err *err)
{
    int32_t known = exf_bpe_find(bpe, text, len), want = known < 0 ? *next : known;
    if (known < 0) ++*next;
    if (id == want) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: added token \"%s\" has id %d, but %s %d", where, text, id,
                    known < 0 ? "it is not in model.vocab and the next free id is" : "model.vocab gives it", want);
}

static exf_code load_one(exf_added *a, const exf_json *j, const exf_bpe *bpe, exf_nfc_work *nfc, int32_t *next, const char *where,
                         exf_err *err)
{
    size_t len;
    const char *text = exf_json_string(exf_json_type(j) == EXF_JSON_OBJECT ? exf_json_get(j, "content") : NULL, &len);
    int32_t id;
    int normalized;
    exf_code rc;
    if (!text || len == 0)
        return exf_fail(err, EXF_MODEL,
                        "%s: an added token is not an object with a \"content\" that is a string of at least one byte", where);
    EXF_TRY(exf_part_id(&id, exf_json_get(j, "id"), where, "added token", text, err));
    EXF_TRY(refuse_options(j, text, where, err));
    EXF_TRY(exf_part_bool(&normalized, j, "normalized", where, "added token", text, err));
    EXF_TRY(check_id(id, text, len, bpe, next, where, err));
    if (id >= a->size) a->size = id + 1;
    if (normalized && nfc) EXF_TRY(exf_nfc(nfc, &text, &len, err));
    EXF_TRY(put(normalized ? &a->normalized : &a->raw, text, len, id, err));
out:
    return rc;
}

exf_code exf_added_load(exf_added *a, const exf_json *list, const exf_bpe *bpe, int nfc, const char *where, exf_err *err)
{
    int32_t next = (int32_t)exf_bpe_count(bpe);
    exf_nfc_work work = {0};
    exf_code rc = EXF_OK;
    if (exf_json_type(list) != EXF_JSON_NULL && exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: added_tokens is %s, not an array", where, exf_json_type_name(list));
    for (size_t i = 0; i < exf_json_size(list); i++)
        EXF_TRY(load_one(a, exf_json_at(list, i), bpe, nfc ? &work : NULL, &next, where, err));
    EXF_TRY(finish(&a->raw, where, err));
    EXF_TRY(finish(&a->normalized, where, err));
out:
    exf_nfc_free(&work);
    return rc;
}

static void free_set(exf_added_set *set)
{
    for (size_t i = 0; i < set->n; i++) exf_mem_free(set->token[i].text);
    exf_mem_free(set->token);
    exf_matcher_free(set->matcher);
}

void exf_added_free(exf_added *a)
{
    free_set(&a->raw);
    free_set(&a->normalized);
    *a = (exf_added){0};
}

/* ---- finding -------------------------------------------------------- */

exf_code exf_added_scan(const exf_added_set *set, exf_added_work *w, const char *text, size_t len, exf_err *err)
{
    w->places.n = 0;
    return set->n ? exf_matcher_scan(set->matcher, text, len, &w->places, err) : EXF_OK;
}

int exf_added_next(const exf_added_set *set, exf_added_work *w, size_t at, exf_added_match *m)
{
    exf_word_matches *p = &w->places;
    while (p->n && p->match[p->n - 1].at < at) p->n--; /* inside the token before */
    if (p->n == 0) return 0;
    const exf_added_token *t = &set->token[p->match[--p->n].word];
    m->from = p->match[p->n].at;
    m->to = m->from + t->len;
    m->id = t->id;
    return 1;
}

void exf_added_work_free(exf_added_work *w)
{
    exf_word_matches_free(&w->places);
}
