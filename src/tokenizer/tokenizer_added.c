/* tokenizer_added.c - added tokens: loads them, and finds them in a text by an automaton. */
#include "tokenizer/tokenizer_internal.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- the automaton -----------------------------------------------------
 * It finds, at every place of a text, the longest of some words that starts there.  The automaton of Aho and Corasick reads
 * words and text from their ends, so that the time is linear in the text's bytes, whatever the words are; forwards, a long
 * word that almost matches would be tried again and again. */

enum { MATCHER_BYTES = 1 << 20 }; /* of all words together; the automaton takes 28 times as much */

static const uint32_t NONE = UINT32_MAX;

/* A node of the trie of reversed words: the last bytes of some word, as many as the node is deep. */
typedef struct {
    uint32_t child, n_children; /* consecutive, by rising byte */
    uint32_t fail;              /* the node of the longest shorter text that is the end of a word too */
    uint32_t word;              /* the longest word with which the text read so far begins; NONE */
    uint32_t lo, hi;            /* while the nodes are made: the words through this node, by their reversed text */
    unsigned char byte;         /* to the left of its parent's text */
} node;

struct exf_matcher {
    node *node; /* by depth; [0]: nothing read */
    size_t n;
    uint32_t from_root[256]; /* child of [0]; 0: none */
};

typedef struct { const exf_added_token *word; uint32_t index; } reversed;

/* The byte in front of the last `depth` ones, or -1. */
static int byte_at(const exf_added_token *w, size_t depth)
{
    return depth < w->len ? (unsigned char)w->text[w->len - 1 - depth] : -1;
}

static int by_reversed_text(const void *pa, const void *pb)
{
    const exf_added_token *a = ((const reversed *)pa)->word, *b = ((const reversed *)pb)->word;
    for (size_t i = 0;; i++) {
        int x = byte_at(a, i), y = byte_at(b, i);
        if (x != y) return x < y ? -1 : 1;
        if (x < 0) return 0;
    }
}

/* Child of a node by a byte; NONE. */
static uint32_t child_of(const exf_matcher *m, uint32_t at, unsigned char byte)
{
    const node *p = &m->node[at];
    uint32_t lo = p->child, hi = p->child + p->n_children;
    if (at == 0) return m->from_root[byte] ? m->from_root[byte] : NONE;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (m->node[mid].byte < byte) lo = mid + 1;
        else hi = mid;
    }
    return lo < p->child + p->n_children && m->node[lo].byte == byte ? lo : NONE;
}

/* From a node over its shorter texts to the first that has a child by the byte. */
static uint32_t next_node(const exf_matcher *m, uint32_t at, unsigned char byte)
{
    uint32_t next;
    while ((next = child_of(m, at, byte)) == NONE && at) at = m->node[at].fail;
    return next == NONE ? 0 : next;
}

/* sorted: the words by their reversed text. */
static void make_nodes(exf_matcher *m, const reversed *sorted, size_t n_words)
{
    m->n = 1;
    m->node[0] = (node){.word = NONE, .hi = (uint32_t)n_words};
    size_t depth = 0, end = 1; /* the nodes of this depth lie in front of end */
    for (uint32_t at = 0; at < m->n; at++) {
        if (at == end) {
            depth++;
            end = m->n;
        }
        node *p = &m->node[at];
        uint32_t lo = p->lo, hi = p->hi;
        p->child = (uint32_t)m->n;
        if (lo < hi && byte_at(sorted[lo].word, depth) < 0) p->word = sorted[lo++].index;
        while (lo < hi) {
            int byte = byte_at(sorted[lo].word, depth);
            node *c = &m->node[m->n++];
            *c = (node){.word = NONE, .lo = lo, .byte = (unsigned char)byte};
            while (lo < hi && byte_at(sorted[lo].word, depth) == byte) lo++;
            c->hi = lo;
            p->n_children++;
        }
        /* Nodes of a depth are complete before those of the next, which fall back to shallower ones. */
        for (uint32_t c = p->child; c < p->child + p->n_children; c++) {
            m->node[c].fail = at ? next_node(m, p->fail, m->node[c].byte) : 0;
            if (!at) m->from_root[m->node[c].byte] = c;
        }
        if (p->word == NONE) p->word = m->node[p->fail].word;
    }
}

/* ---- sets ------------------------------------------------------------- */

exf_code exf_added_add(exf_added *a, int normalized, const char *text, size_t len, int32_t id, exf_err *err)
{
    exf_added_set *set = normalized ? &a->normalized : &a->raw;
    exf_code rc = exf_mem_grow(&set->token, &set->cap, set->n + 1, sizeof *set->token, "added tokens", err);
    if (rc != EXF_OK) return rc;
    exf_added_token *t = &set->token[set->n];
    rc = exf_mem_dup(&t->text, text, len, "added token", err);
    if (rc != EXF_OK) return rc;
    t->len = len;
    t->id = id;
    set->n++;
    if (id >= a->size) a->size = id + 1;
    return EXF_OK;
}

static int by_text(const void *pa, const void *pb)
{
    const exf_added_token *a = pa, *b = pb;
    int order = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Makes the matcher of a set that is complete; its tokens must differ. */
static exf_code build_matcher(exf_added_set *set, const char *where, exf_err *err)
{
    reversed *sorted = NULL;
    exf_code rc;
    size_t bytes = 0;
    if (set->n == 0) return EXF_OK;
    for (size_t i = 0; i < set->n; i++) bytes += set->token[i].len;
    if (bytes > MATCHER_BYTES)
        return exf_fail(err, EXF_MODEL, "%s: its added tokens have %zu bytes together, at most %d are accepted", where, bytes,
                        MATCHER_BYTES);
    qsort(set->token, set->n, sizeof *set->token, by_text);
    for (size_t i = 1; i < set->n; i++)
        if (by_text(&set->token[i - 1], &set->token[i]) == 0)
            return exf_fail(err, EXF_MODEL, "%s: added token \"%s\" is there twice (ids %d and %d)", where, set->token[i].text,
                            set->token[i - 1].id, set->token[i].id);
    EXF_TRY(exf_mem_new(&set->matcher, 1, sizeof *set->matcher, "matcher of added tokens", err));
    EXF_TRY(exf_mem_new(&set->matcher->node, bytes + 1, sizeof *set->matcher->node, "matcher of added tokens", err));
    EXF_TRY(exf_mem_new(&sorted, set->n, sizeof *sorted, "matcher of added tokens", err));
    for (size_t i = 0; i < set->n; i++) sorted[i] = (reversed){&set->token[i], (uint32_t)i};
    qsort(sorted, set->n, sizeof *sorted, by_reversed_text);
    make_nodes(set->matcher, sorted, set->n);
out:
    exf_mem_free(sorted);
    return rc;
}

exf_code exf_added_end(exf_added *a, const char *where, exf_err *err)
{
    exf_code rc = build_matcher(&a->raw, where, err);
    return rc == EXF_OK ? build_matcher(&a->normalized, where, err) : rc;
}

void exf_added_free(exf_added *a)
{
    exf_added_set *sets[] = {&a->raw, &a->normalized};
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < sets[k]->n; i++) exf_mem_free(sets[k]->token[i].text);
        exf_mem_free(sets[k]->token);
        if (sets[k]->matcher) exf_mem_free(sets[k]->matcher->node);
        exf_mem_free(sets[k]->matcher);
    }
    *a = (exf_added){0};
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

static exf_code load_one(exf_added *a, const exf_json *j, const exf_bpe *bpe, const exf_normalizer *normalizer,
                         exf_normal_work *work, int32_t *next, const char *where, exf_err *err)
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
    /* The library goes by the token's text: it has the vocabulary's id or, if it is not
     * in there, the next free one, whatever the file says.  So both must agree. */
    int32_t known = exf_vocabulary_find(&bpe->vocab, text, len), want = known < 0 ? (*next)++ : known;
    if (id != want)
        return exf_fail(err, EXF_MODEL, "%s: added token \"%s\" has id %d, but %s %d", where, text, id,
                        known < 0 ? "it is not in model.vocab and the next free id is" : "model.vocab gives it", want);
    if (normalized) EXF_TRY(exf_normalize(normalizer, work, &text, &len, err));
    rc = exf_added_add(a, normalized, text, len, id, err);
out:
    return rc;
}

exf_code exf_added_load(exf_added *a, const exf_json *list, const exf_bpe *bpe, const exf_normalizer *normalizer,
                        const char *where, exf_err *err)
{
    int32_t next = (int32_t)bpe->vocab.n;
    exf_normal_work work = {.text = {0}};
    exf_code rc = EXF_OK;
    if (exf_json_type(list) != EXF_JSON_NULL && exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: added_tokens is %s, not an array", where, exf_json_type_name(list));
    for (size_t i = 0; i < exf_json_size(list); i++)
        EXF_TRY(load_one(a, exf_json_at(list, i), bpe, normalizer, &work, &next, where, err));
    rc = exf_added_end(a, where, err);
out:
    exf_normal_work_free(&work);
    return rc;
}

/* ---- finding -------------------------------------------------------- */

int32_t exf_added_find(const exf_added *a, const char *text)
{
    const exf_added_set *sets[] = {&a->raw, &a->normalized};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sets[k]->n; i++)
            if (strcmp(sets[k]->token[i].text, text) == 0) return sets[k]->token[i].id;
    return -1;
}

exf_code exf_added_scan(const exf_added_set *set, exf_added_work *w, const char *text, size_t len, exf_err *err)
{
    enum { OFTEN = 1 << 22 };
    uint32_t at = 0;
    exf_code rc = EXF_OK;
    w->n = 0;
    if (set->n == 0) return EXF_OK;
    if (len > UINT32_MAX)
        return exf_fail(err, EXF_MODEL, "a text of %zu bytes is too long to tokenize (at most %u)", len, UINT32_MAX);
    for (size_t i = len; i-- > 0;) {
        if (i % OFTEN == 0) EXF_TRY(exf_stop_check(err));
        at = next_node(set->matcher, at, (unsigned char)text[i]);
        uint32_t word = set->matcher->node[at].word;
        if (word == NONE) continue;
        EXF_TRY(exf_mem_grow(&w->match, &w->cap, w->n + 1, sizeof *w->match, "added tokens of a text", err));
        w->match[w->n++] = (exf_word_match){(uint32_t)i, word};
    }
out:
    return rc;
}

int exf_added_next(const exf_added_set *set, exf_added_work *w, size_t at, exf_added_match *m)
{
    while (w->n && w->match[w->n - 1].at < at) w->n--; /* inside the token before */
    if (w->n == 0) return 0;
    const exf_added_token *t = &set->token[w->match[--w->n].word];
    m->from = w->match[w->n].at;
    m->to = m->from + t->len;
    m->id = t->id;
    return 1;
}
