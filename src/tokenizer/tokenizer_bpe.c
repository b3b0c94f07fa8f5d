/* tokenizer_bpe.c - byte-pair encoding: its tables, which are loaded from the "model" of tokenizer.json or the ranks of a
 * tiktoken file, and encoding with them.  Merging keeps the candidates in a heap, so that a
 * pre-token of n bytes takes n log n, not n squared. */
#include "tokenizer/tokenizer_internal.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdio.h>
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

/* ---- encoding ------------------------------------------------------- */

static const uint32_t NONE = UINT32_MAX;

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
    if (!m) return;
    uint64_t key = (uint64_t)m->rank << 32 | pos;
    size_t i = w->n_heap++;
    for (; i && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
}

/* Lowest rank first, leftmost first among equals: the order of the heap's keys. */
static exf_code merge_all(const exf_bpe *b, exf_bpe_work *w, exf_err *err)
{
    enum { OFTEN = 1 << 16 };
    exf_symbol *s = w->symbol;
    exf_code rc = EXF_OK;
    for (size_t n = 1; w->n_heap; n++) {
        if (n % OFTEN == 0) EXF_TRY(exf_stop_check(err));
        uint64_t key = w->heap[0], end = w->heap[--w->n_heap];
        size_t at = 0, child;
        while ((child = 2 * at + 1) < w->n_heap) {
            if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child]) child++;
            if (w->heap[child] >= end) break;
            w->heap[at] = w->heap[child];
            at = child;
        }
        w->heap[at] = end;
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

/* Refuses a piece with a byte that no token stands for, as released vocabularies lack bytes that their training never saw; the
 * library drops it without a word. */
static exf_code refuse_byte(const exf_bpe *b, const char *bytes, size_t len, exf_err *err)
{
    for (size_t i = 0; i < len; i++)
        if (b->byte_id[(unsigned char)bytes[i]] < 0)
            return exf_fail(err, EXF_MODEL, "the text has the byte 0x%02x, which no token of the model's vocabulary stands for; "
                            "take its character out of the text, as the tokenizers library would do unasked",
                            (unsigned)(unsigned char)bytes[i]);
    return EXF_OK;
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
    if (b->fallback)
        EXF_TRY(add_characters(b, w, pretoken, len, err));
    else if (!add_bytes(b, w, pretoken, len))
        return refuse_byte(b, pretoken, len, err);
    for (uint32_t i = 0; i < w->n_symbols; i++) offer_merge(b, w, i);
    EXF_TRY(merge_all(b, w, err));
    for (uint32_t i = 0; i != NONE; i = w->symbol[i].next) EXF_TRY(exf_ids_add(ids, &w->symbol[i].id, 1, err));
out:
    return rc;
}

/* Appends bytes in the byte alphabet. */
static void map_bytes(const exf_bpe *b, exf_text *out, const char *bytes, size_t len)
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
    else map_bytes(b, &w->mapped, pretoken, len);
    exf_code rc = exf_text_end(&w->mapped, err);
    if (rc != EXF_OK) return rc;
    int32_t id = exf_vocabulary_find(&b->vocab, w->mapped.s, w->mapped.len);
    return id < 0 ? merge_symbols(b, w, pretoken, len, ids, err) : exf_ids_add(ids, &id, 1, err);
}

/* GPT-2's printable stand-in for each byte: itself where that is printable, else
 * U+0100 onwards in increasing order. */
static void make_alphabet(exf_bpe *b)
{
    unsigned next = 0x100;
    for (unsigned c = 0; c < 256; c++) {
        int printable = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
        unsigned point = printable ? c : next++;
        b->alphabet_len[c] = point < 0x80 ? 1 : 2;
        b->alphabet[c][0] = (char)(point < 0x80 ? point : 0xc0 | point >> 6);
        b->alphabet[c][1] = (char)(0x80 | (point & 0x3f));
    }
}

/* ---- tokenizer.json ---------------------------------------------------- */

static exf_code refuse_affixes(const exf_json *model, const char *where, exf_err *err)
{
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof affix / sizeof affix[0]; i++) {
        const exf_json *j = exf_json_get(model, affix[i]);
        size_t len;
        const char *s = exf_json_string(j, &len);
        if (exf_json_type(j) != EXF_JSON_NULL && !(s && len == 0))
            return exf_fail(err, EXF_MODEL, "%s: model BPE with %s \"%s\" is not supported (supported: null or \"\")", where,
                            affix[i], s ? s : exf_json_type_name(j));
    }
    return EXF_OK;
}

static exf_code load_vocab(exf_bpe *b, const exf_json *model, const char *where, exf_err *err)
{
    const exf_json *vocab = exf_json_get(model, "vocab");
    unsigned char *seen = NULL; /* one bit per id */
    exf_code rc;
    if (exf_json_type(vocab) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s: model.vocab is %s, not an object", where, exf_json_type_name(vocab));
    EXF_TRY(exf_mem_new(&seen, EXF_TOKEN_ID_LIMIT / 8, 1, "set of token ids", err));
    EXF_TRY(exf_vocabulary_new(&b->vocab, exf_json_size(vocab), err));
    for (void *it = exf_json_first(vocab); it; it = exf_json_next(vocab, it)) {
        const char *token = exf_json_key(it);
        int32_t id;
        EXF_TRY(exf_part_id(&id, exf_json_value(it), where, "vocabulary token", token, err));
        if (seen[id / 8] >> id % 8 & 1) {
            rc = exf_fail(err, EXF_MODEL, "%s: vocabulary token \"%s\": its id %d belongs to another token already", where, token,
                          id);
            goto out;
        }
        seen[id / 8] |= (unsigned char)(1 << id % 8);
        if (id >= b->size) b->size = id + 1;
        EXF_TRY(exf_vocabulary_put(&b->vocab, token, strlen(token), id, err));
    }
out:
    exf_mem_free(seen);
    return rc;
}

/* The tokens "<0x00>" to "<0xFF>", and unk_token, which stands for characters that have no token and lack one for a byte. */
static exf_code find_fallback(exf_bpe *b, const exf_json *model, const char *where, exf_err *err)
{
    const exf_json *unk = exf_json_get(model, "unk_token");
    size_t len;
    const char *text = exf_json_string(unk, &len);
    char name[8];
    b->unk_id = -1;
    if (!text && exf_json_type(unk) != EXF_JSON_NULL)
        return exf_fail(err, EXF_MODEL, "%s: model BPE: unk_token is %s, not a string", where, exf_json_type_name(unk));
    if (text && (b->unk_id = exf_vocabulary_find(&b->vocab, text, len)) < 0)
        return exf_fail(err, EXF_MODEL, "%s: model BPE: unk_token \"%s\" is not in model.vocab", where, text);
    for (int c = 0; c < 256; c++) {
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)c);
        b->byte_id[c] = exf_vocabulary_find(&b->vocab, name, strlen(name));
        char letter = (char)c;
        b->letter_id[c] = c < 0x80 ? exf_vocabulary_find(&b->vocab, &letter, 1) : -1;
    }
    if (exf_json_type(exf_json_get(model, "fuse_unk")) == EXF_JSON_NULL) return EXF_OK;
    return exf_part_bool(&b->fuse_unk, model, "fuse_unk", where, "model", "BPE", err);
}

/* j: ["a", "b"] or "a b". */
static exf_code load_merge(exf_bpe *b, exf_text *both, const exf_json *j, size_t rank, const char *where, exf_err *err)
{
    size_t len, part_len[3] = {0};
    const char *text = exf_json_string(j, &len), *blank = text ? memchr(text, ' ', len) : NULL;
    const char *part[3] = {text, blank ? blank + 1 : NULL, NULL}; /* a, b, ab */
    int32_t id[3];
    /* The first line of an old merges.txt; the library skips it as well. */
    if (text && len >= 8 && memcmp(text, "#version", 8) == 0) return EXF_OK;
    if (blank) {
        part_len[0] = (size_t)(blank - text);
        part_len[1] = len - part_len[0] - 1;
        if (memchr(part[1], ' ', part_len[1])) part[1] = NULL;
    } else if (exf_json_type(j) == EXF_JSON_ARRAY && exf_json_size(j) == 2) {
        for (size_t i = 0; i < 2; i++) part[i] = exf_json_string(exf_json_at(j, i), &part_len[i]);
    }
    if (!part[0] || !part[1])
        return exf_fail(err, EXF_MODEL, "%s: model.merges[%zu] is neither [\"a\", \"b\"] nor \"a b\"", where, rank);
    both->len = 0;
    exf_text_append(both, part[0], part_len[0]);
    exf_text_append(both, part[1], part_len[1]);
    exf_code rc = exf_text_end(both, err);
    if (rc != EXF_OK) return rc;
    part[2] = both->s;
    part_len[2] = both->len;
    for (int i = 0; i < 3; i++)
        if ((id[i] = exf_vocabulary_find(&b->vocab, part[i], part_len[i])) < 0)
            return exf_fail(err, EXF_MODEL, "%s: merge \"%.*s %.*s\" (model.merges[%zu]): \"%.*s\" is not in model.vocab", where,
                            (int)part_len[0], part[0], (int)part_len[1], part[1], rank, (int)part_len[i], part[i]);
    if (exf_starts_with_metaspace(part[1], part_len[1]) && !exf_ends_with_metaspace(part[0], part_len[0])) b->words = 0;
    exf_merges_put(&b->merges, id[0], id[1], (uint32_t)rank, id[2]);
    return EXF_OK;
}

static exf_code load_merges(exf_bpe *b, const exf_json *model, const char *where, exf_err *err)
{
    const exf_json *merges = exf_json_get(model, "merges");
    exf_text both = {0};
    exf_code rc;
    if (exf_json_type(merges) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: model.merges is %s, not an array", where, exf_json_type_name(merges));
    EXF_TRY(exf_merges_new(&b->merges, exf_json_size(merges), err));
    for (size_t i = 0; i < exf_json_size(merges); i++) EXF_TRY(load_merge(b, &both, exf_json_at(merges, i), i, where, err));
out:
    exf_text_free(&both);
    return rc;
}

exf_code exf_bpe_load(exf_bpe **out, const exf_json *model, const char *where, exf_err *err)
{
    exf_code rc;
    exf_bpe *b;
    *out = NULL;
    EXF_TRY(exf_mem_new(&b, 1, sizeof *b, "BPE model", err));
    *out = b;
    make_alphabet(b);
    if (exf_json_type(exf_json_get(model, "byte_fallback")) != EXF_JSON_NULL)
        EXF_TRY(exf_part_bool(&b->fallback, model, "byte_fallback", where, "model", "BPE", err));
    if (strcmp(exf_part_type(model), "BPE") != 0) {
        rc = exf_fail(err, EXF_MODEL, "%s: model \"%s\" is not supported (supported: BPE)", where, exf_part_type(model));
        goto out;
    }
    EXF_TRY(exf_part_off(model, "dropout", where, "model BPE", err));
    if (!b->fallback) EXF_TRY(exf_part_off(model, "unk_token", where, "model BPE", err));
    EXF_TRY(refuse_affixes(model, where, err));
    if (exf_json_type(exf_json_get(model, "ignore_merges")) != EXF_JSON_NULL)
        EXF_TRY(exf_part_bool(&b->ignore_merges, model, "ignore_merges", where, "model", "BPE", err));
    EXF_TRY(load_vocab(b, model, where, err));
    if (b->fallback) EXF_TRY(find_fallback(b, model, where, err));
    else
        for (int c = 0; c < 256; c++) b->byte_id[c] = exf_vocabulary_find(&b->vocab, b->alphabet[c], b->alphabet_len[c]);
    b->words = b->fallback && !b->ignore_merges && exf_vocabulary_find(&b->vocab, EXF_METASPACE, EXF_METASPACE_LEN) >= 0;
    EXF_TRY(load_merges(b, model, where, err));
out:
    if (rc != EXF_OK) {
        exf_bpe_free(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- ranks ------------------------------------------------------------- */

/* Counts the pairs of tokens that make a token together, and puts them into the merges, all at its rank. */
static size_t walk_splits(exf_bpe *b, const exf_vocabulary_entry *token, int put)
{
    const char *s = b->vocab.bytes.s + token->at;
    int32_t rank = token->id_plus_1 - 1;
    size_t n = 0;
    for (size_t at = 1; rank >= 0 && at < token->len; at++) {
        if (((unsigned char)s[at] & 0xc0) == 0x80) continue; /* within a letter of the byte alphabet */
        int32_t left = exf_vocabulary_find(&b->vocab, s, at), right = exf_vocabulary_find(&b->vocab, s + at, token->len - at);
        if (left < 0 || right < 0) continue;
        if (put) exf_merges_put(&b->merges, left, right, (uint32_t)rank, rank);
        n++;
    }
    return n;
}

exf_code exf_bpe_of_ranks(exf_bpe **out, const exf_rank *token, size_t n, const char *where, exf_err *err)
{
    exf_code rc;
    exf_bpe *b;
    exf_text text = {0};
    size_t splits = 0;
    *out = NULL;
    EXF_TRY(exf_mem_new(&b, 1, sizeof *b, "BPE model", err));
    *out = b;
    make_alphabet(b);
    b->ignore_merges = 1;
    b->size = (int32_t)n;
    EXF_TRY(exf_vocabulary_new(&b->vocab, n, err));
    for (size_t i = 0; i < n; i++) { /* in the byte alphabet */
        text.len = 0;
        map_bytes(b, &text, (const char *)token[i].bytes, token[i].len);
        EXF_TRY(exf_text_end(&text, err));
        int32_t known = exf_vocabulary_find(&b->vocab, text.s, text.len);
        if (known >= 0) {
            rc = exf_fail(err, EXF_MODEL, "%s: ranks %d and %zu have the same token", where, (int)known, i);
            goto out;
        }
        EXF_TRY(exf_vocabulary_put(&b->vocab, text.s, text.len, (int32_t)i, err));
    }
    for (int c = 0; c < 256; c++) b->byte_id[c] = exf_vocabulary_find(&b->vocab, b->alphabet[c], b->alphabet_len[c]);
    for (size_t i = 0; i <= b->vocab.mask; i++) splits += walk_splits(b, &b->vocab.slot[i], 0);
    EXF_TRY(exf_merges_new(&b->merges, splits, err));
    for (size_t i = 0; i <= b->vocab.mask; i++) (void)walk_splits(b, &b->vocab.slot[i], 1);
out:
    exf_text_free(&text);
    if (rc != EXF_OK) {
        exf_bpe_free(*out);
        *out = NULL;
    }
    return rc;
}
