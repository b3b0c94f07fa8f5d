/* tokenizer_table.c - see tokenizer_table.h. */
#include "tokenizer/tokenizer_table.h"

#include "base/mem.h"

#include <string.h>

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
    exf_code rc = exf_text_add(&w->bytes, s, len, err);
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
