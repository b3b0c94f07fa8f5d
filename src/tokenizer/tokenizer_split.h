/* tokenizer_split.h - the pre-tokenizer cuts text into the pre-tokens that the BPE model
 * encodes one by one; the only wrapper of PCRE2.
 *
 * Categories (\p{L}, Digits) are those of the installed PCRE2's Unicode version:
 * characters that are newer count as unassigned. */
#ifndef EXF_TOKENIZER_TOKENIZER_SPLIT_H
#define EXF_TOKENIZER_TOKENIZER_SPLIT_H
#include "format/json.h"

typedef struct exf_splitter exf_splitter; /* immutable after loading */

/* part: the "pre_tokenizer" object. */
exf_code exf_splitter_load(exf_splitter **out, const exf_json *part, const char *where, exf_err *err) EXF_CHECKED;
void exf_splitter_free(exf_splitter *s); /* NULL is allowed */

typedef struct exf_split_work exf_split_work; /* one text's match data and budget of steps */
exf_code exf_split_work_new(exf_split_work **out, exf_err *err) EXF_CHECKED;
void exf_split_work_free(exf_split_work *w); /* NULL is allowed */

/* Calls emit for each pre-token (never empty) in order, until it fails.  The time is linear in the text where a pattern decides
 * within 128 steps and the next 128 bytes; what it does beyond, items of the pattern and eighths of the bytes that it reads, is
 * counted.  EXF_MODEL where that is more than 100 million and 200 for each byte of the work's text, or 2 billion: a number
 * that depends on pattern, text and PCRE2 alone. */
typedef exf_code exf_pretoken_fn(void *ctx, const char *pretoken, size_t len, exf_err *err);
exf_code exf_splitter_run(const exf_splitter *s, exf_split_work *w, const char *text, size_t len, exf_pretoken_fn *emit, void *ctx,
                          exf_err *err) EXF_CHECKED;
#endif
