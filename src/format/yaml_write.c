/* yaml_write.c - see yaml_write.h. */
#include "format/yaml_write.h"

#include <string.h>

/* Length of a character that would end or fold a line inside quotes, or that no YAML
 * file may hold: 0, or its bytes at s; *escape its name in double quotes, NULL where
 * that is \x and the last byte. */
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

/* In double quotes, in which everything can be spelled. */
static exf_code add_escaped(exf_text *out, const char *s, exf_err *err)
{
    const char *escape;
    exf_code rc;
    EXF_TRY(exf_text_add(out, "\"", 1, err));
    while (*s) {
        size_t n = breaks_line(s, &escape);
        if (!n)
            rc = exf_text_addf(out, err, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
        else
            rc = escape ? exf_text_addf(out, err, "%s", escape)
                        : exf_text_addf(out, err, "\\x%02X", (unsigned)(unsigned char)s[n - 1]);
        if (rc != EXF_OK) goto out;
        s += n ? n : 1;
    }
    EXF_TRY(exf_text_add(out, "\"", 1, err));
out:
    return rc;
}

exf_code exf_yaml_add_scalar(exf_text *out, const char *s, exf_err *err)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-";
    const char *escape;
    exf_code rc;
    if (*s && strspn(s, plain) == strlen(s) && strcmp(s, "-") != 0) return exf_text_addf(out, err, "%s", s);
    for (const char *p = s; *p; p++)
        if (breaks_line(p, &escape)) return add_escaped(out, s, err);
    EXF_TRY(exf_text_add(out, "'", 1, err));
    for (; *s; s++) EXF_TRY(exf_text_addf(out, err, *s == '\'' ? "''" : "%c", *s));
    EXF_TRY(exf_text_add(out, "'", 1, err));
out:
    return rc;
}
