/* tokenizer_table.h - the two hash tables of a BPE model: token text to id, and
 * pair of ids to merge.  Open addressing with keyed hashes; both are filled once, then only read. */
#ifndef EXF_TOKENIZER_TOKENIZER_TABLE_H
#define EXF_TOKENIZER_TOKENIZER_TABLE_H
#include "base/keyed_hash.h"
#include "base/text.h"

typedef struct { uint32_t at, len; int32_t id_plus_1; } exf_vocabulary_entry; /* id_plus_1 == 0: free */
typedef struct {
    exf_text bytes; /* every token's text, end to end */
    exf_vocabulary_entry *slot;
    size_t mask, n;
    exf_hash_key key;
} exf_vocabulary;

/* Allocates slots for n tokens.  Zero-initialise; exf_vocabulary_free, also after a failure. */
exf_code exf_vocabulary_new(exf_vocabulary *w, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_vocabulary_put(exf_vocabulary *w, const char *s, size_t len, int32_t id, exf_err *err) EXF_CHECKED;
int32_t exf_vocabulary_find(const exf_vocabulary *w, const char *s, size_t len); /* -1 if absent */
void exf_vocabulary_free(exf_vocabulary *w);

typedef struct { uint64_t key; uint32_t rank; int32_t id; } exf_merge; /* key 0: free */
typedef struct {
    exf_merge *slot;
    size_t mask;
    int shift;
    exf_hash_key key;
} exf_merges;

exf_code exf_merges_new(exf_merges *m, size_t n, exf_err *err) EXF_CHECKED;
/* A pair that the table has already gets the new rank. */
void exf_merges_put(exf_merges *m, int32_t a, int32_t b, uint32_t rank, int32_t id);
void exf_merges_free(exf_merges *m);

/* Inline because encoding spends most of its time in it.  NULL if a, b do not merge. */
static inline const exf_merge *exf_merges_find(const exf_merges *m, int32_t a, int32_t b)
{
    uint64_t key = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) + 1;
    for (size_t i = (size_t)(exf_keyed_hash_u64(&m->key, key) >> m->shift);; i = (i + 1) & m->mask) {
        const exf_merge *e = &m->slot[i];
        if (e->key == key) return e;
        if (e->key == 0) return NULL;
    }
}
#endif
