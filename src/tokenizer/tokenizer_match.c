/* tokenizer_match.c - see tokenizer_match.h. */
#include "tokenizer/tokenizer_match.h"

#include "base/mem.h"
#include "base/stop.h"

#include <stdlib.h>
#include <string.h>

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

typedef struct { const exf_word *word; uint32_t index; } reversed;

/* The byte in front of the last `depth` ones, or -1. */
static int byte_at(const exf_word *w, size_t depth)
{
    return depth < w->len ? (unsigned char)w->text[w->len - 1 - depth] : -1;
}

static int by_reversed_text(const void *pa, const void *pb)
{
    const exf_word *a = ((const reversed *)pa)->word, *b = ((const reversed *)pb)->word;
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
static uint32_t step(const exf_matcher *m, uint32_t at, unsigned char byte)
{
    uint32_t next;
    while ((next = child_of(m, at, byte)) == NONE && at) at = m->node[at].fail;
    return next == NONE ? 0 : next;
}

/* Adds the children of a node of this depth. */
static void add_children(exf_matcher *m, uint32_t at, size_t depth, const reversed *sorted)
{
    uint32_t lo = m->node[at].lo, hi = m->node[at].hi;
    m->node[at].child = (uint32_t)m->n;
    if (lo < hi && byte_at(sorted[lo].word, depth) < 0) m->node[at].word = sorted[lo++].index;
    while (lo < hi) {
        int byte = byte_at(sorted[lo].word, depth);
        node *c = &m->node[m->n++];
        *c = (node){.word = NONE, .lo = lo, .byte = (unsigned char)byte};
        while (lo < hi && byte_at(sorted[lo].word, depth) == byte) lo++;
        c->hi = lo;
        m->node[at].n_children++;
    }
}

/* Nodes of a depth are complete before those of the next, which fall back to shallower ones. */
static void link_children(exf_matcher *m, uint32_t at)
{
    const node *p = &m->node[at];
    for (uint32_t c = p->child; c < p->child + p->n_children; c++) {
        m->node[c].fail = at ? step(m, p->fail, m->node[c].byte) : 0;
        if (!at) m->from_root[m->node[c].byte] = c;
    }
}

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
        add_children(m, at, depth, sorted);
        link_children(m, at);
        if (m->node[at].word == NONE) m->node[at].word = m->node[m->node[at].fail].word;
    }
}

exf_code exf_matcher_new(exf_matcher **out, const exf_word *word, size_t n, exf_err *err)
{
    reversed *sorted = NULL;
    size_t bytes = 0;
    exf_code rc;
    *out = NULL;
    for (size_t i = 0; i < n; i++) bytes += word[i].len;
    EXF_TRY(exf_mem_new(out, 1, sizeof **out, "matcher of added tokens", err));
    EXF_TRY(exf_mem_new(&(*out)->node, bytes + 1, sizeof *(*out)->node, "matcher of added tokens", err));
    EXF_TRY(exf_mem_new(&sorted, n, sizeof *sorted, "matcher of added tokens", err));
    for (size_t i = 0; i < n; i++) sorted[i] = (reversed){&word[i], (uint32_t)i};
    qsort(sorted, n, sizeof *sorted, by_reversed_text);
    make_nodes(*out, sorted, n);
out:
    exf_mem_free(sorted);
    if (rc != EXF_OK) {
        exf_matcher_free(*out);
        *out = NULL;
    }
    return rc;
}

void exf_matcher_free(exf_matcher *m)
{
    if (m) exf_mem_free(m->node);
    exf_mem_free(m);
}

exf_code exf_matcher_scan(const exf_matcher *m, const char *text, size_t len, exf_word_matches *out, exf_err *err)
{
    enum { OFTEN = 1 << 22 };
    uint32_t at = 0;
    exf_code rc = EXF_OK;
    out->n = 0;
    if (len > UINT32_MAX)
        return exf_fail(err, EXF_MODEL, "a text of %zu bytes is too long to tokenize (at most %u)", len, UINT32_MAX);
    for (size_t i = len; i-- > 0;) {
        if (i % OFTEN == 0) EXF_TRY(exf_stop_check(err));
        at = step(m, at, (unsigned char)text[i]);
        uint32_t word = m->node[at].word;
        if (word == NONE) continue;
        EXF_TRY(exf_mem_grow(&out->match, &out->cap, out->n + 1, sizeof *out->match, "added tokens of a text", err));
        out->match[out->n++] = (exf_word_match){(uint32_t)i, word};
    }
out:
    return rc;
}

void exf_word_matches_free(exf_word_matches *m)
{
    exf_mem_free(m->match);
    *m = (exf_word_matches){0};
}
