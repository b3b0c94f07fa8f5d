/* tokenizer_added.c - see tokenizer_added.h. */
#include "model/tokenizer_added.h"

#include "base/mem.h"
#include "model/tokenizer_nfc.h"
#include "model/tokenizer_internal.h"

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

static exf_code finish(exf_added_set *set, const char *where, exf_err *err)
{
    if (set->n) qsort(set->token, set->n, sizeof *set->token, by_text);
    for (size_t i = 0; i < set->n; i++) {
        if (i && by_text(&set->token[i - 1], &set->token[i]) == 0)
            return exf_fail(err, EXF_MODEL, "%s: added token \"%s\" is there twice (ids %d and %d)", where, set->token[i].text,
                            set->token[i - 1].id, set->token[i].id);
        set->first[(unsigned char)set->token[i].text[0] + 1]++;
    }
    for (int c = 0; c < 256; c++) set->first[c + 1] += set->first[c];
    return EXF_OK;
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
}

void exf_added_free(exf_added *a)
{
    free_set(&a->raw);
    free_set(&a->normalized);
    *a = (exf_added){0};
}

/* ---- finding -------------------------------------------------------- */

/* Of the tokens lo .. hi - 1, which agree on their first `depth` bytes and are
 * longer: the first whose byte there is >= c. */
static size_t lower_bound(const exf_added_set *set, size_t lo, size_t hi, size_t depth, int c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)set->token[mid].text[depth] < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* The longest token that text starts with, or NULL. */
static const exf_added_token *longest(const exf_added_set *set, const char *text, size_t len)
{
    unsigned char c = (unsigned char)text[0];
    size_t lo = set->first[c], hi = set->first[c + 1];
    const exf_added_token *best = NULL;
    for (size_t depth = 1; lo < hi; depth++) {
        if (set->token[lo].len == depth) best = &set->token[lo++];
        if (depth == len) break;
        c = (unsigned char)text[depth];
        lo = lower_bound(set, lo, hi, depth, c);
        hi = lower_bound(set, lo, hi, depth, c + 1);
    }
    return best;
}

int exf_added_find(const exf_added_set *set, const char *text, size_t len, size_t at, exf_added_match *m)
{
    if (set->n == 0) return 0;
    for (size_t i = at; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (set->first[c] == set->first[c + 1]) continue;
        const exf_added_token *t = longest(set, text + i, len - i);
        if (!t) continue;
        *m = (exf_added_match){i, i + t->len, t->id};
        return 1;
    }
    return 0;
}
