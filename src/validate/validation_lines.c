/* validation_lines.c - lines of a terminal, which sentences and commands are broken into, and an interval in words; see
 * validation.h. */
#include "validate/validation.h"

#include <math.h>
#include <string.h>

void exf_add_spread(exf_text *out, int digits, double x, double spread)
{
    exf_text_appendf(out, "%.*f ± ", digits, x);
    if (isnan(spread)) exf_text_appendf(out, "-");
    else exf_text_appendf(out, "%.*f", digits, spread);
}

/* Returns 1 for the first byte of a character of UTF-8. */
static int begins_character(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

size_t exf_bytes_of_columns(const char *s, int columns)
{
    size_t n = 0;
    while (s[n] && (columns > 0 || !begins_character(s[n]))) columns -= begins_character(s[n++]);
    return n;
}

int exf_count_lines(const exf_text *t)
{
    int n = 0;
    for (size_t i = 0; i < t->len; i++) n += t->s[i] == '\n';
    return n;
}

/* Returns 1 for a blank at which a line may end.  In a sentence not before a per cent sign, nor on either side of "±"; in a command
 * not within quotes. */
static int may_break(const char *s, size_t at, int is_command)
{
    int quoted = 0;
    if (s[at] != ' ') return 0;
    if (!is_command) return s[at + 1] != '%' && strncmp(s + at + 1, "±", 2) != 0 && !(at > 1 && strncmp(s + at - 2, "±", 2) == 0);
    for (size_t i = 0; i < at; i++) quoted ^= s[i] == '\'';
    return !quoted;
}

/* Returns the bytes of the line that begins at s, whose words begin after `indent` blanks.  A word that is too long for a line is
 * cut, in a command it is whole. */
static size_t line_length(const char *s, size_t n, size_t indent, int room, int is_command)
{
    size_t most = exf_bytes_of_columns(s, room - 2 * is_command), at;
    if (most >= n) return n;
    for (at = most; at > indent; at--)
        if (may_break(s, at, is_command)) return at;
    if (!is_command) return most;
    for (at = most; at < n && !may_break(s, at, 1);) at++;
    return at;
}

void exf_add_wrapped(exf_text *out, const char *s, size_t n, int is_command)
{
    int first = (int)strspn(s, " "), indent = 0;
    for (size_t words_at = (size_t)first; n > 0; words_at = 0) {
        size_t take = line_length(s, n, words_at, EXF_SUMMARY_COLUMNS - indent, is_command);
        exf_text_append(out, s, take);
        for (s += take, n -= take; n > 0 && *s == ' '; n--) s++;
        size_t word = n && is_command ? line_length(s, n, 0, 2, 1) : 0; /* a long one has a line of its own */
        indent = !n ? 0 : first + 4 + (int)word > EXF_SUMMARY_COLUMNS ? first : first + 2;
        exf_text_appendf(out, n && is_command ? " \\\n%*s" : "\n%*s", indent, "");
    }
}

void exf_end_wrapped(exf_text *out, exf_text *line, int is_command)
{
    if (line->refused) out->refused = line->refused;
    else exf_add_wrapped(out, line->s, line->len, is_command);
    exf_text_free(line);
}

void exf_drop_batch(char *name)
{
    char *last = strstr(name, "batch=");
    if (last && last > name && last[6 + strspn(last + 6, "0123456789")] == '\0') last[-1] = '\0';
}
