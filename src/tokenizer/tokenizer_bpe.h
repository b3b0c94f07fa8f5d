/* tokenizer_bpe.h - byte-level byte-pair encoding: loads the "model" of tokenizer.json
 * and encodes one pre-token as ids. */
#ifndef EXF_TOKENIZER_TOKENIZER_BPE_H
#define EXF_TOKENIZER_TOKENIZER_BPE_H
#include "format/json.h"
#include "tokenizer/token_ids.h"

typedef struct exf_bpe exf_bpe; /* immutable after loading */

exf_code exf_bpe_load(exf_bpe **out, const exf_json *model, const char *where, exf_err *err) EXF_CHECKED;
void exf_bpe_free(exf_bpe *b); /* NULL is allowed */
size_t exf_bpe_count(const exf_bpe *b);  /* entries of the vocabulary */
int32_t exf_bpe_size(const exf_bpe *b);  /* one more than its largest id */
int32_t exf_bpe_find(const exf_bpe *b, const char *token, size_t len); /* as written in the file; -1 if absent */

/* Buffers that one thread reuses; zero-initialise, exf_bpe_work_free. */
typedef struct { int32_t id; uint32_t prev, next; } exf_symbol;
typedef struct {
    exf_symbol *symbol; /* the pre-token, as a linked list in an array */
    uint64_t *heap;     /* merges that may apply: rank << 32 | position */
    size_t n_heap, symbol_cap, heap_cap;
    exf_text mapped;    /* the pre-token in the byte alphabet */
} exf_bpe_work;

/* Appends the ids of one pre-token of valid UTF-8 (not empty). */
exf_code exf_bpe_encode(const exf_bpe *b, exf_bpe_work *w, const char *pretoken, size_t len, exf_ids *ids,
                        exf_err *err) EXF_CHECKED;
void exf_bpe_work_free(exf_bpe_work *w);
#endif
