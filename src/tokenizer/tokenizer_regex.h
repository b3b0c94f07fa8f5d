/* tokenizer_regex.h - translates a pre-tokenizer's pattern from Oniguruma (Ruby syntax)
 * to PCRE2, so that both match the same texts.
 *
 * The released patterns use a small common subset of both languages.  A construct
 * outside of it often compiles in both and matches different texts ("\h" is a
 * hexadecimal digit in one and a blank in the other; "&&" in a class is an
 * intersection in one and two ampersands in the other).  So only the subset is
 * accepted; everything else is refused by name:
 *
 *   any character, .  ^  $  |  *  +  ?  *?  *+ ...  {n} {n,} {n,m} (not lazy or possessive)
 *   (...)  (?:...)  (?i:...)  (?=...)  (?!...)  (?<=...)  (?<!...)  (?>...)
 *   [...] without nested classes and &&
 *   \s \S \d \D \p{general category} \P{...} \A \z \n \r \t \f \e \a \xHH \x{H...} \punctuation
 *   in (?i:...) ASCII only, and no letters that fold into one character (ss, st, ff, fi, fl)
 *
 * PCRE2 must compile it with UTF, UCP, MULTILINE (Ruby's ^ and $ match at every line) and
 * "\n" as the only newline. */
#ifndef EXF_TOKENIZER_TOKENIZER_REGEX_H
#define EXF_TOKENIZER_TOKENIZER_REGEX_H
#include "base/text.h"

exf_code exf_regex_translate(exf_text *out, const char *pattern, size_t len, const char *where, exf_err *err) EXF_CHECKED;
#endif
