/* tokenizer_regex.h - a pre-tokenizer's pattern, written for Oniguruma (Ruby
 * syntax), as a pattern that PCRE2 reads the same way.
 *
 * The released patterns use a small common core of both languages, and what is
 * outside of it often compiles in both and matches something else ("\h" is a
 * hexadecimal digit to one and a blank to the other; "&&" in a class is an
 * intersection to one and two ampersands to the other).  So only the core is let
 * through; everything else is refused by name:
 *
 *   any character, .  ^  $  |  *  +  ?  *?  *+ ...  {n} {n,} {n,m} (not lazy or possessive)
 *   (...)  (?:...)  (?i:...)  (?=...)  (?!...)  (?<=...)  (?<!...)  (?>...)
 *   [...] without nested classes and &&
 *   \s \S \d \D \p{general category} \P{...} \A \z \n \r \t \f \e \a \xHH \x{H...} \punctuation
 *   in (?i:...) ASCII only, and no letters that fold into one character (ss, st, ff, fi, fl)
 *
 * The options it is for: UTF, UCP, MULTILINE (Ruby's ^ and $ are at every line) and
 * "\n" as the only newline. */
#ifndef EXF_MODEL_TOKENIZER_REGEX_H
#define EXF_MODEL_TOKENIZER_REGEX_H
#include "base/text.h"

exf_code exf_regex_translate(exf_text *out, const char *pattern, size_t len, const char *where, exf_err *err) EXF_CHECKED;
#endif
