/* tokenizer_bpe.c - byte-pair encoding: its tables, and encoding with them.  Merging keeps the candidates in a heap, so that a
 * pre-token of n bytes takes n log n, not n squared. */
#include "tokenizer/tokenizer_internal.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

/* ---- tables --------------------------------------------------------- */

/* The bits of a table that n entries fill at most half, so that a search ends. */
static int table_bits(size_t n)
{
    int bits = 4;
    while ((size_t)1 << bits < n * 2 && bits < 40) bits++;
    return bits;
}

exf_code exf_vocabulary_new(exf_vocabulary *w, size_t n, exf_err *err)
{
    size_t slots = (size_t)1 << table_bits(n);
    w->mask = slots - 1;
    w->key = exf_hash_key_new();
    return exf_mem_new(&w->slot, slots, sizeof *w->slot, "vocabulary", err);
}

/* The word's slot, or the free slot where it belongs. */
static size_t word_slot(const exf_vocabulary *w, const char *s, size_t len)
{
    for (size_t i = exf_keyed_hash(&w->key, s, len) & w->mask;; i = (i + 1) & w->mask) {
        const exf_vocabulary_entry *e = &w->slot[i];
        if (e->id_plus_1 == 0 || (e->len == len && memcmp(w->bytes.s + e->at, s, len) == 0)) return i;
    }
}

exf_code exf_vocabulary_put(exf_vocabulary *w, const char *s, size_t len, int32_t id, exf_err *err)
{
    size_t at = w->bytes.len;
    exf_text_append(&w->bytes, s, len);
    exf_code rc = exf_text_end(&w->bytes, err);
    if (rc != EXF_OK) return rc;
    w->slot[word_slot(w, s, len)] = (exf_vocabulary_entry){(uint32_t)at, (uint32_t)len, id + 1};
    w->n++;
    return EXF_OK;
}

int32_t exf_vocabulary_find(const exf_vocabulary *w, const char *s, size_t len)
{
    return w->slot[word_slot(w, s, len)].id_plus_1 - 1;
}

void exf_vocabulary_free(exf_vocabulary *w)
{
    exf_text_free(&w->bytes);
    exf_mem_free(w->slot);
    *w = (exf_vocabulary){0};
}

exf_code exf_merges_new(exf_merges *m, size_t n, exf_err *err)
{
    int bits = table_bits(n);
    m->mask = ((size_t)1 << bits) - 1;
    m->shift = 64 - bits;
    m->key = exf_hash_key_new();
    return exf_mem_new(&m->slot, m->mask + 1, sizeof *m->slot, "merges", err);
}

void exf_merges_put(exf_merges *m, int32_t a, int32_t b, uint32_t rank, int32_t id)
{
    uint64_t key = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) + 1;
    size_t i = (size_t)(exf_keyed_hash_u64(&m->key, key) >> m->shift);
    while (m->slot[i].key != 0 && m->slot[i].key != key) i = (i + 1) & m->mask;
    m->slot[i] = (exf_merge){key, rank, id};
}

void exf_merges_free(exf_merges *m)
{
    exf_mem_free(m->slot);
    *m = (exf_merges){0};
}

/* ---- the model -------------------------------------------------------- */

void exf_bpe_free(exf_bpe *b)
{
    if (!b) return;
    exf_vocabulary_free(&b->vocab);
    exf_merges_free(&b->merges);
    exf_mem_free(b);
}

size_t exf_bpe_count(const exf_bpe *b)
{
    return b->vocab.n;
}

int32_t exf_bpe_size(const exf_bpe *b)
{
    return b->size;
}

int32_t exf_bpe_find(const exf_bpe *b, const char *token, size_t len)
{
    return exf_vocabulary_find(&b->vocab, token, len);
}

/* ---- encoding ------------------------------------------------------- */

static const uint32_t NONE = UINT32_MAX;

static void heap_push(exf_bpe_work *w, uint64_t key)
{
    size_t i = w->n_heap++;
    for (; i && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
}

static uint64_t heap_pop(exf_bpe_work *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= last) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Returns NULL if a, b do not merge.  Encoding spends most of its time in it. */
static const exf_merge *find_merge(const exf_merges *m, int32_t a, int32_t b)
{
    uint64_t key = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) + 1;
    for (size_t i = (size_t)(exf_keyed_hash_u64(&m->key, key) >> m->shift);; i = (i + 1) & m->mask) {
        const exf_merge *e = &m->slot[i];
        if (e->key == key) return e;
        if (e->key == 0) return NULL;
    }
}

/* If the symbol at pos and its right neighbour merge, remember that. */
static void offer_merge(const exf_bpe *b, exf_bpe_work *w, uint32_t pos)
{
    uint32_t next = w->symbol[pos].next;
    const exf_merge *m = next == NONE ? NULL : find_merge(&b->merges, w->symbol[pos].id, w->symbol[next].id);
    if (m) heap_push(w, (uint64_t)m->rank << 32 | pos);
}

/* Lowest rank first, leftmost first among equals: the order of the heap's keys. */
static exf_code merge_all(const exf_bpe *b, exf_bpe_work *w, exf_err *err)
{
    enum { OFTEN = 1 << 16 };
    exf_symbol *s = w->symbol;
    exf_code rc = EXF_OK;
    for (size_t n = 1; w->n_heap; n++) {
        if (n % OFTEN == 0) EXF_TRY(exf_stop_check(err));
        uint64_t key = heap_pop(w);
        uint32_t pos = (uint32_t)key, next = s[pos].next;
        /* An entry is stale when either symbol has merged since it was made. */
        if (s[pos].id < 0 || next == NONE) continue;
        const exf_merge *m = find_merge(&b->merges, s[pos].id, s[next].id);
        if (!m || m->rank != key >> 32) continue;
        s[pos].id = m->id;
        s[pos].next = s[next].next;
        s[next].id = -1;
        if (s[pos].next != NONE) s[s[pos].next].prev = pos;
        if (s[pos].prev != NONE) offer_merge(b, w, s[pos].prev);
        offer_merge(b, w, pos);
    }
out:
    return rc;
}

static exf_code append_symbols(const exf_bpe_work *w, exf_ids *ids, exf_err *err)
{
    for (uint32_t i = 0; i != NONE; i = w->symbol[i].next) {
        exf_code rc = exf_ids_add(ids, &w->symbol[i].id, 1, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

static void add_symbol(exf_bpe_work *w, int32_t id)
{
    uint32_t at = w->n_symbols++;
    w->symbol[at] = (exf_symbol){id, at ? at - 1 : NONE, NONE};
    if (at) w->symbol[at - 1].next = at;
}

/* The tokens of a character's bytes; 0 if one of these has none. */
static int add_bytes(const exf_bpe *b, exf_bpe_work *w, const char *character, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (b->byte_id[(unsigned char)character[i]] < 0) return 0;
    for (size_t i = 0; i < len; i++) add_symbol(w, b->byte_id[(unsigned char)character[i]]);
    return 1;
}

/* Refuses a piece with a byte that no token stands for; the library drops it without a word. */
static exf_code refuse_byte(const exf_bpe *b, const char *bytes, size_t len, exf_err *err)
{
    for (size_t i = 0; i < len; i++)
        if (b->byte_id[(unsigned char)bytes[i]] < 0)
            return exf_fail(err, EXF_MODEL, "the text has the byte 0x%02x, which no token of the model's vocabulary stands for; "
                            "take its character out of the text, as the tokenizers library would do unasked",
                            (unsigned)(unsigned char)bytes[i]);
    return EXF_OK;
}

static exf_code add_bytes_of_piece(const exf_bpe *b, exf_bpe_work *w, const char *text, size_t len, exf_err *err)
{
    return add_bytes(b, w, text, len) ? EXF_OK : refuse_byte(b, text, len, err);
}

/* A symbol for each character, or for each byte of one that is no token.  As in the library, an unk_token waits for the next
 * character that is a token, or unfused for the next one that is unknown, and bytes go before it. */
static exf_code add_characters(const exf_bpe *b, exf_bpe_work *w, const char *text, size_t len, exf_err *err)
{
    int waiting = 0;
    for (size_t i = 0, n; i < len; i += n) {
        unsigned char c = (unsigned char)text[i];
        n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        int32_t id = c < 0x80 ? b->letter_id[c] : exf_vocabulary_find(&b->vocab, text + i, n);
        if (id < 0 && add_bytes(b, w, text + i, n)) continue;
        if (id < 0 && b->unk_id < 0) return refuse_byte(b, text + i, n, err);
        if (waiting && (id >= 0 || !b->fuse_unk)) add_symbol(w, b->unk_id);
        waiting = id < 0;
        if (id >= 0) add_symbol(w, id);
    }
    if (waiting) add_symbol(w, b->unk_id);
    return EXF_OK;
}

static exf_code merge_symbols(const exf_bpe *b, exf_bpe_work *w, const char *pretoken, size_t len, exf_ids *ids, exf_err *err)
{
    exf_code rc;
    if (len >= NONE) return exf_fail(err, EXF_MODEL, "a piece of %zu bytes is too long to tokenize (at most %u)", len, NONE - 1);
    EXF_TRY(exf_mem_grow(&w->symbol, &w->symbol_cap, len, sizeof *w->symbol, "symbols of a piece", err));
    /* At most len - 1 pairs to begin with, and each merge takes one and adds two. */
    EXF_TRY(exf_mem_grow(&w->heap, &w->heap_cap, 2 * len, sizeof *w->heap, "merge candidates of a piece", err));
    w->n_heap = 0;
    w->n_symbols = 0;
    EXF_TRY(b->fallback ? add_characters(b, w, pretoken, len, err) : add_bytes_of_piece(b, w, pretoken, len, err));
    for (uint32_t i = 0; i < w->n_symbols; i++) offer_merge(b, w, i);
    EXF_TRY(merge_all(b, w, err));
    EXF_TRY(append_symbols(w, ids, err));
out:
    return rc;
}

void exf_bpe_map(const exf_bpe *b, exf_text *out, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];
        exf_text_append(out, b->alphabet[c], b->alphabet_len[c]);
    }
}

exf_code exf_bpe_encode(const exf_bpe *b, exf_bpe_work *w, const char *pretoken, size_t len, exf_ids *ids, exf_err *err)
{
    if (!b->ignore_merges) return merge_symbols(b, w, pretoken, len, ids, err);
    w->mapped.len = 0;
    if (b->fallback) exf_text_append(&w->mapped, pretoken, len);
    else exf_bpe_map(b, &w->mapped, pretoken, len);
    exf_code rc = exf_text_end(&w->mapped, err);
    if (rc != EXF_OK) return rc;
    int32_t id = exf_vocabulary_find(&b->vocab, w->mapped.s, w->mapped.len);
    return id < 0 ? merge_symbols(b, w, pretoken, len, ids, err) : exf_ids_add(ids, &id, 1, err);
}

void exf_bpe_work_free(exf_bpe_work *w)
{
    exf_mem_free(w->symbol);
    exf_mem_free(w->heap);
    exf_text_free(&w->mapped);
    *w = (exf_bpe_work){0};
}
