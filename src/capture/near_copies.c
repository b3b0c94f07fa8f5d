/* near_copies.c - sketches of documents, and groups of documents whose sketches are alike; see near_copies.h. */
#include "capture/near_copies.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- sketches ------------------------------------------------------------------------------------------- */

/* The shingles of a document so far. */
typedef struct {
    uint64_t least[EXF_SKETCH]; /* of the hashes of a bin; UINT64_MAX: it is empty */
    uint64_t word[EXF_SHINGLE]; /* the last words, a ring */
    size_t n_words;
} shingles;

/* The finaliser of splitmix64: every bit of x changes half of the result's. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void add_shingle(shingles *s, size_t n)
{
    const int BIN_BITS = 7;
    _Static_assert(EXF_SKETCH == 1 << 7, "a bin is chosen by 7 bits");
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = mix(h + s->word[(s->n_words - n + i) % EXF_SHINGLE] + 0x9e3779b97f4a7c15u);
    uint64_t *least = &s->least[h >> (64 - BIN_BITS)];
    if (h < *least) *least = h;
}

static void add_word(shingles *s, uint64_t hash)
{
    s->word[s->n_words++ % EXF_SHINGLE] = hash;
    if (s->n_words >= EXF_SHINGLE) add_shingle(s, EXF_SHINGLE);
}

/* Fills each empty bin from a bin that its number alone chooses, the same in all documents. */
static void finish(exf_sketch *out, shingles *s)
{
    memset(out, 0, sizeof *out);
    out->empty = s->n_words == 0;
    if (out->empty) return;
    if (s->n_words < EXF_SHINGLE) add_shingle(s, s->n_words); /* all that there is */
    for (size_t bin = 0; bin < EXF_SKETCH; bin++) {
        size_t from = bin;
        for (uint64_t turn = 1; s->least[from] == UINT64_MAX; turn++) from = mix(bin + (turn << 32)) % EXF_SKETCH;
        out->value[bin] = (uint16_t)mix(s->least[from]);
    }
}

static shingles no_shingles(void)
{
    shingles s = {.n_words = 0};
    memset(s.least, 0xff, sizeof s.least);
    return s;
}

/* Returns the bytes of the word at `text`, of len >= 1. */
static size_t word_length(const char *text, size_t len)
{
    enum { FIRST_OF_U3000 = 0xe3, FIRST_OF_FOUR = 0xf0 }; /* the first bytes of U+3000 on, and of characters of four bytes */
    const unsigned char *c = (const unsigned char *)text;
    size_t n = c[0] >= FIRST_OF_FOUR ? 4 : 3;
    if (c[0] >= FIRST_OF_U3000) return n < len ? n : len;
    for (n = 0; n < len && c[n] > ' ' && c[n] < FIRST_OF_U3000;) n++;
    return n;
}

void exf_sketch_of_text(exf_sketch *out, const char *text, size_t len)
{
    shingles s = no_shingles();
    for (size_t at = 0; at < len;) {
        size_t n = (unsigned char)text[at] > ' ' ? word_length(text + at, len - at) : 0;
        uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
        for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[at + i]) * 0x100000001b3u;
        if (n) add_word(&s, h);
        at += n ? n : 1;
    }
    finish(out, &s);
}

void exf_sketch_of_ids(exf_sketch *out, const int32_t *ids, size_t n)
{
    shingles s = no_shingles();
    for (size_t i = 0; i < n; i++) add_word(&s, (uint64_t)(uint32_t)ids[i]);
    finish(out, &s);
}

void exf_sketch_pack(unsigned char out[EXF_SKETCH_BYTES], const exf_sketch *s)
{
    for (size_t i = 0; i < EXF_SKETCH; i++) out[i] = (unsigned char)s->value[i];
}

void exf_sketch_unpack(exf_sketch *s, const unsigned char packed[EXF_SKETCH_BYTES])
{
    s->empty = 0;
    for (size_t i = 0; i < EXF_SKETCH; i++) s->value[i] = packed[i];
}

double exf_sketch_similarity(const exf_sketch *a, const exf_sketch *b)
{
    int equal = 0;
    if (a->empty || b->empty) return 0;
    for (size_t i = 0; i < EXF_SKETCH; i++) equal += a->value[i] == b->value[i];
    return (double)equal / EXF_SKETCH;
}

/* ---- groups --------------------------------------------------------------------------------------------- */

/* Two sketches of similarity s agree in one of these bands of 4 values with probability 1 - (1 - s^4)^32, all but 1 at 0.8. */
enum { BAND = 4, BANDS = EXF_SKETCH / BAND };

/* A sketch by its values of a band, or by all of them. */
typedef struct {
    uint64_t values;
    const exf_sketch *sketch; /* in the caller's array, whose index tells the document */
} entry;

static int by_sketch(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return memcmp(x->sketch, y->sketch, sizeof *x->sketch);
}

static int by_values(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->values == y->values ? by_sketch(a, b) : x->values < y->values ? -1 : 1;
}

/* Returns the lowest index of the group of i, and shortens the way to it. */
static size_t root_of(size_t *group, size_t i)
{
    while (group[i] != i) i = group[i] = group[group[i]];
    return i;
}

static void join(size_t *group, size_t i, size_t k)
{
    i = root_of(group, i);
    k = root_of(group, k);
    group[i < k ? k : i] = i < k ? i : k;
}

/* Joins the documents of a run, which agree in a band, that are alike.  Each is compared with the first ones of the run that are
 * like none before them, MOST of them: thousands of documents that share a band, as those of one template do, cost no square. */
static void join_run(size_t *group, const entry *run, size_t n, const exf_sketch *first)
{
    enum { MOST = 16 };
    const exf_sketch *leader[MOST];
    size_t leaders = 0;
    for (size_t i = 0; i < n; i++) {
        size_t own = (size_t)(run[i].sketch - first), k = 0;
        while (k < leaders && root_of(group, own) != root_of(group, (size_t)(leader[k] - first)) &&
               exf_sketch_similarity(run[i].sketch, leader[k]) < EXF_SAME_DOCUMENT)
            k++;
        if (k < leaders)
            join(group, own, (size_t)(leader[k] - first));
        else if (leaders < MOST)
            leader[leaders++] = run[i].sketch;
    }
}

/* Keeps one entry of equal sketches, whose documents it joins.  Returns how many are left. */
static size_t join_equal(size_t *group, entry *all, size_t n, const exf_sketch *first)
{
    size_t kept = 0;
    qsort(all, n, sizeof *all, by_sketch);
    for (size_t i = 0; i < n; i++) {
        if (kept && by_sketch(&all[kept - 1], &all[i]) == 0)
            join(group, (size_t)(all[i].sketch - first), (size_t)(all[kept - 1].sketch - first));
        else
            all[kept++] = all[i];
    }
    return kept;
}

exf_code exf_near_copies_find(size_t *group, const exf_sketch *sketch, size_t n, exf_err *err)
{
    entry *all = NULL;
    size_t m = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&all, n, sizeof *all, "near copies", err));
    for (size_t i = 0; i < n; i++) {
        group[i] = i;
        if (!sketch[i].empty) all[m++].sketch = &sketch[i];
    }
    m = join_equal(group, all, m, sketch);
    for (size_t band = 0; band < BANDS; band++) {
        EXF_TRY(exf_stop_check(err));
        for (size_t i = 0; i < m; i++) memcpy(&all[i].values, all[i].sketch->value + band * BAND, sizeof all[i].values);
        qsort(all, m, sizeof *all, by_values);
        for (size_t i = 0, end; i < m; i = end) {
            for (end = i + 1; end < m && all[end].values == all[i].values;) end++;
            if (end - i > 1) join_run(group, all + i, end - i, sketch);
        }
    }
    for (size_t i = 0; i < n; i++) group[i] = root_of(group, i);
out:
    exf_mem_free(all);
    return rc;
}
