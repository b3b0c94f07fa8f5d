/* yaml_write.c - writes scalars of YAML so that every reader takes them for the text they are; see yaml.h. */
#include "format/yaml.h"

#include <string.h>
#include <strings.h>

/* Returns the length of the character at s if it would end or fold a line inside quotes, or may stand in no YAML file;
 * 0 for any other.  *escape is its name in double quotes, NULL where that is \x and the last byte. */
static size_t breaks_line(const char *s, const char **escape)
{
    static const struct { const char *bytes, *escape; } breaks[] = {{"\xc2\x85", "\\N"}, {"\xe2\x80\xa8", "\\L"},
                                                                    {"\xe2\x80\xa9", "\\P"},
                                                                    {"\xef\xbf\xbe", "\\uFFFE"}, {"\xef\xbf\xbf", "\\uFFFF"}};
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        *escape = breaks[i].escape;
        if (strncmp(s, breaks[i].bytes, strlen(breaks[i].bytes)) == 0) return strlen(breaks[i].bytes);
    }
    *escape = NULL;
    if ((unsigned char)*s < ' ' || *s == 0x7f) return *s != 0;
    return (unsigned char)s[0] == 0xc2 && (unsigned char)s[1] < 0xa0 ? 2 : 0;
}

/* Appends s in double quotes, in which everything can be spelled. */
static void append_escaped(exf_text *out, const char *s)
{
    const char *escape;
    exf_text_append(out, "\"", 1);
    for (size_t n; *s; s += n ? n : 1) {
        n = breaks_line(s, &escape);
        if (!n)
            exf_text_appendf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
        else if (escape)
            exf_text_appendf(out, "%s", escape);
        else
            exf_text_appendf(out, "\\x%02X", (unsigned)(unsigned char)s[n - 1]);
    }
    exf_text_append(out, "\"", 1);
}

static void append_quoted(exf_text *out, const char *s)
{
    const char *escape;
    for (const char *p = s; *p; p++)
        if (breaks_line(p, &escape)) {
            append_escaped(out, s);
            return;
        }
    exf_text_append(out, "'", 1);
    for (; *s; s++) exf_text_appendf(out, *s == '\'' ? "''" : "%c", *s);
    exf_text_append(out, "'", 1);
}

/* ---- what stands without quotes ------------------------------------------------------------ */

/* Returns 1 if s has nothing that is a sign of YAML anywhere, and is no marker of dots and dashes; . and .. are paths. */
static int is_word(const char *s)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-";
    return (strspn(s, plain) == strlen(s) && strspn(s, ".-") < strlen(s)) || strcmp(s, ".") == 0 || strcmp(s, "..") == 0;
}

/* Returns 1 for null and for truths in YAML 1.1 or 1.2, in any mixture of cases. */
static int is_keyword(const char *s)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(s, words[i]) == 0) return 1;
    return 0;
}

/* Returns 1 for 1999-12-31 and 1999-1-1, alone or with a time of day after them. */
static int is_date(const char *s)
{
    static const char digits[] = "0123456789";
    size_t month, day;
    if (strspn(s, digits) != 4 || s[4] != '-') return 0;
    month = strspn(s + 5, digits);
    if (month < 1 || month > 2 || s[5 + month] != '-') return 0;
    day = strspn(s + 6 + month, digits);
    const char *rest = s + 6 + month + day;
    return day >= 1 && day <= 2 && (!*rest || ((*rest == 't' || *rest == 'T') && rest[1] >= '0' && rest[1] <= '9'));
}

/* Returns 1 for what YAML 1.1 or 1.2 could take for a number: decimal with "_", point and exponent, 0x, 0o, 0b, infinity, NaN. */
static int is_number(const char *s)
{
    static const struct { char letter; const char *digits; } bases[] = {
        {'x', "0123456789abcdefABCDEF_"}, {'X', "0123456789abcdefABCDEF_"}, {'o', "01234567_"}, {'O', "01234567_"},
        {'b', "01_"}, {'B', "01_"}};
    if (*s == '+' || *s == '-') s++;
    if (strcasecmp(s, ".inf") == 0 || strcasecmp(s, ".nan") == 0) return 1;
    for (size_t i = 0; i < sizeof bases / sizeof *bases && *s == '0'; i++)
        if (s[1] == bases[i].letter && s[2]) return strspn(s + 2, bases[i].digits) == strlen(s + 2);
    size_t digits = strspn(s, "0123456789_.");
    if (*s == '_' || strcspn(s, "0123456789") >= digits) return 0;
    s += digits;
    if (*s != 'e' && *s != 'E') return !*s;
    s += 1 + (s[1] == '+' || s[1] == '-');
    return *s && strspn(s, "0123456789_") == strlen(s);
}

exf_code exf_yaml_add_scalar(exf_text *out, const char *s, exf_err *err)
{
    if (s[exf_utf8_valid(s, strlen(s))])
        return exf_fail(err, EXF_USAGE, "the name %s is not valid UTF-8, which a file of YAML cannot hold", s);
    if (is_word(s) && !is_keyword(s) && !is_date(s) && !is_number(s))
        exf_text_append(out, s, strlen(s));
    else
        append_quoted(out, s);
    return exf_text_end(out, err);
}

exf_code exf_yaml_add_value(exf_text *out, const char *s, exf_err *err)
{
    if (!is_number(s) && strcmp(s, "true") != 0 && strcmp(s, "false") != 0) return exf_yaml_add_scalar(out, s, err);
    exf_text_append(out, s, strlen(s));
    return exf_text_end(out, err);
}
