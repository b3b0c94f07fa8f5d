/* tokenizer_added.h - finds added tokens: texts that become one id wherever they occur,
 * before the text around them is tokenized. */
#ifndef EXF_TOKENIZER_TOKENIZER_ADDED_H
#define EXF_TOKENIZER_TOKENIZER_ADDED_H
#include "tokenizer/tokenizer_bpe.h"
#include "tokenizer/tokenizer_match.h"

typedef struct { char *text; size_t len; int32_t id; } exf_added_token;
typedef struct {
    exf_added_token *token;
    size_t n, cap;
    exf_matcher *matcher; /* NULL for no token */
} exf_added_set;

/* Two sets, as in the library: `raw` (normalized: false) is searched in the text as
 * given, `normalized` (normalized: true, itself converted to NFC if `nfc`) in the
 * normalizer's output for the rest. */
typedef struct { exf_added_set raw, normalized; int32_t size; } exf_added;

/* list: the "added_tokens" array, or NULL.  exf_added_free, also after a failure. */
exf_code exf_added_load(exf_added *a, const exf_json *list, const exf_bpe *bpe, int nfc, const char *where,
                        exf_err *err) EXF_CHECKED;
void exf_added_free(exf_added *a);

/* The tokens of one text that are not looked at yet; zero-initialise, exf_added_work_free. */
typedef struct { exf_word_matches places; } exf_added_work;
void exf_added_work_free(exf_added_work *w);

typedef struct { size_t from, to; int32_t id; } exf_added_match;
/* Looks for the set's tokens in a text; then exf_added_next() gives them one by one. */
exf_code exf_added_scan(const exf_added_set *set, exf_added_work *w, const char *text, size_t len, exf_err *err) EXF_CHECKED;
/* The leftmost token at or after `at`, which never goes back, the longest of those that start there; 0 if none. */
int exf_added_next(const exf_added_set *set, exf_added_work *w, size_t at, exf_added_match *m);
#endif
