/* tokenizer_decode.c - token ids back to text, to show what a model is given; see tokenizer.h. */
#include "tokenizer/tokenizer_internal.h"

#include "base/mem.h"

#include <string.h>

typedef struct { const char *s; size_t len; int raw; } piece; /* raw: an added token, which stands for its own text */

struct exf_decoder {
    piece *piece; /* [n] by id; s NULL: no token has it */
    size_t n;
    const exf_bpe *bpe;
    short byte_of[0x180]; /* by code point of the byte alphabet; -1 */
};

static void take_added(exf_decoder *d, const exf_added_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        if ((size_t)set->token[i].id < d->n) d->piece[set->token[i].id] = (piece){set->token[i].text, set->token[i].len, 1};
}

exf_code exf_decoder_new(exf_decoder **out, const exf_tokenizer *t, exf_err *err)
{
    const exf_bpe *bpe = t->bpe;
    size_t n = (size_t)t->facts.size;
    exf_code rc;
    exf_decoder *d = NULL;
    *out = NULL;
    EXF_TRY(exf_mem_new(&d, 1, sizeof *d, "texts of tokens", err));
    *d = (exf_decoder){.n = n, .bpe = bpe};
    EXF_TRY(exf_mem_new(&d->piece, n, sizeof *d->piece, "texts of tokens", err));
    memset(d->byte_of, -1, sizeof d->byte_of);
    for (int c = 0; c < 256; c++) {
        const unsigned char *a = (const unsigned char *)bpe->alphabet[c];
        d->byte_of[bpe->alphabet_len[c] == 1 ? a[0] : (a[0] & 0x1f) << 6 | (a[1] & 0x3f)] = (short)c;
    }
    for (size_t i = 0; i <= bpe->vocab.mask; i++) {
        const exf_vocabulary_entry *e = &bpe->vocab.slot[i];
        if (e->id_plus_1 > 0 && (size_t)e->id_plus_1 <= n)
            d->piece[e->id_plus_1 - 1] = (piece){bpe->vocab.bytes.s + e->at, e->len, 0};
    }
    take_added(d, &t->added.raw);
    take_added(d, &t->added.normalized);
    *out = d;
    return EXF_OK;
out:
    exf_decoder_free(d);
    return rc;
}

/* Appends a token of the byte alphabet as bytes; what is no letter of it stands for itself. */
static void append_bytes(const exf_decoder *d, const piece *p, exf_text *out)
{
    for (size_t i = 0, n; i < p->len; i += n) {
        unsigned char c = (unsigned char)p->s[i];
        n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        unsigned point = n == 1 ? c : n == 2 ? (c & 0x1fu) << 6 | ((unsigned char)p->s[i + 1] & 0x3fu) : 0x180;
        char byte = (char)(point < 0x180 ? d->byte_of[point] : -1);
        if (point < 0x180 && d->byte_of[point] >= 0) exf_text_append(out, &byte, 1);
        else exf_text_append(out, p->s + i, n);
    }
}

/* Appends a token of characters, whose blanks are "▁"; or the byte that "<0x41>" is. */
static void append_characters(const exf_decoder *d, const piece *p, int32_t id, exf_text *out)
{
    for (int c = 0; c < 256; c++)
        if (d->bpe->byte_id[c] == id) {
            char byte = (char)c;
            exf_text_append(out, &byte, 1);
            return;
        }
    for (size_t i = 0; i < p->len;) {
        int blank = exf_starts_with_metaspace(p->s + i, p->len - i);
        exf_text_append(out, blank ? " " : p->s + i, 1);
        i += blank ? EXF_METASPACE_LEN : 1;
    }
}

exf_code exf_decode(const exf_decoder *d, const int32_t *id, size_t n, exf_text *out, exf_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const piece *p = id[i] >= 0 && (size_t)id[i] < d->n ? &d->piece[id[i]] : NULL;
        if (!p || !p->s) exf_text_appendf(out, "<token %d>", (int)id[i]);
        else if (p->raw) exf_text_append(out, p->s, p->len);
        else if (d->bpe->fallback) append_characters(d, p, id[i], out);
        else append_bytes(d, p, out);
    }
    return exf_text_end(out, err);
}

void exf_decoder_free(exf_decoder *d)
{
    if (!d) return;
    exf_mem_free(d->piece);
    exf_mem_free(d);
}
