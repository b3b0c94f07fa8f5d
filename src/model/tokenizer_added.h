/* tokenizer_added.h - finds added tokens: texts that become one id wherever they occur,
 * before the text around them is tokenized. */
#ifndef EXF_MODEL_TOKENIZER_ADDED_H
#define EXF_MODEL_TOKENIZER_ADDED_H
#include "model/tokenizer_bpe.h"

typedef struct { char *text; size_t len; int32_t id; } exf_added_token;
typedef struct {
    exf_added_token *token; /* sorted by text, so that prefixes come first */
    size_t n, cap;
    uint32_t first[257];    /* tokens that start with byte c: first[c] .. first[c + 1] - 1 */
} exf_added_set;

/* Two sets, as in the library: `raw` (normalized: false) is searched in the text as
 * given, `normalized` (normalized: true, itself converted to NFC if `nfc`) in the
 * normalizer's output for the rest. */
typedef struct { exf_added_set raw, normalized; int32_t size; } exf_added;

/* list: the "added_tokens" array, or NULL.  exf_added_free, also after a failure. */
exf_code exf_added_load(exf_added *a, const exf_json *list, const exf_bpe *bpe, int nfc, const char *where,
                        exf_err *err) EXF_CHECKED;
void exf_added_free(exf_added *a);

typedef struct { size_t from, to; int32_t id; } exf_added_match;
/* The leftmost token at or after `at`, the longest of those that start there; 0 if none. */
int exf_added_find(const exf_added_set *set, const char *text, size_t len, size_t at, exf_added_match *m);
#endif
