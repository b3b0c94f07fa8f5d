/* tokenizer_match.h - finds, at every place of a text, the longest of some words that starts there.
 *
 * The automaton of Aho and Corasick reads words and text from their ends, so that the time is linear in the
 * text's bytes, whatever the words are; forwards, a long word that almost matches would be tried again and again. */
#ifndef EXF_TOKENIZER_TOKENIZER_MATCH_H
#define EXF_TOKENIZER_TOKENIZER_MATCH_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct { const char *text; size_t len; } exf_word;
typedef struct exf_matcher exf_matcher; /* immutable after loading */

enum { EXF_MATCHER_BYTES = 1 << 20 }; /* of all words together; the automaton takes 28 times as much */

/* word: [n], different from each other and not empty, of at most EXF_MATCHER_BYTES bytes together; not kept. */
exf_code exf_matcher_new(exf_matcher **out, const exf_word *word, size_t n, exf_err *err) EXF_CHECKED;
void exf_matcher_free(exf_matcher *m); /* NULL is allowed */

typedef struct { uint32_t at, word; } exf_word_match;
/* The places of one text, the last one first; zero-initialise, exf_word_matches_free. */
typedef struct { exf_word_match *match; size_t n, cap; } exf_word_matches;

/* Replaces *out by all places of the text where a word starts. */
exf_code exf_matcher_scan(const exf_matcher *m, const char *text, size_t len, exf_word_matches *out, exf_err *err) EXF_CHECKED;
void exf_word_matches_free(exf_word_matches *m);
#endif
