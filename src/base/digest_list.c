/* digest_list.c - see digest_list.h. */
#include "base/digest_list.h"

#include <string.h>

int exf_digest_list_next(const char **text, exf_digest_entry *out)
{
    const char *s = *text;
    size_t name = strcspn(s, ": "), hex = EXF_SHA256_HEX - 1;
    if (!*s) return 0;
    if (s[name] != ':' || name == 0 || name >= EXF_DIGEST_NAME) return -1;
    const char *digits = s + name + 1;
    if (strspn(digits, "0123456789abcdef") != hex) return -1;
    if (digits[hex] != 0 && digits[hex] != ' ') return -1;
    memcpy(out->name, s, name);
    out->name[name] = 0;
    memcpy(out->hex, digits, hex);
    out->hex[hex] = 0;
    *text = digits + hex + (digits[hex] == ' ');
    return 1;
}

int exf_digest_list_find(const char *text, const char *name, char hex[EXF_SHA256_HEX])
{
    exf_digest_entry e;
    while (exf_digest_list_next(&text, &e) == 1)
        if (strcmp(e.name, name) == 0) {
            memcpy(hex, e.hex, sizeof e.hex);
            return 1;
        }
    return 0;
}
