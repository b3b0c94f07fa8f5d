/* printable.c - see printable.h. */
#include "base/printable.h"

#include <stdint.h>

/* *point: the character at s.  Returns its bytes, 0 if it is no UTF-8. */
static size_t decode(const char *s, uint32_t *point)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c < 0xc0 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf8 ? 4 : 0;
    *point = n < 2 ? c : c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
        *point = *point << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return *point < least[n] || *point > 0x10ffff || (*point >= 0xd800 && *point < 0xe000) ? 0 : n;
}

size_t exf_printable_bytes(const char *s)
{
    static const uint32_t obeyed[][2] = {{0, 0x1f}, {0x7f, 0x9f}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
    uint32_t point;
    size_t n = decode(s, &point);
    for (size_t i = 0; i < sizeof obeyed / sizeof *obeyed; i++)
        if (point >= obeyed[i][0] && point <= obeyed[i][1]) return 0;
    return n;
}

void exf_make_printable(char *s)
{
    while (*s) {
        size_t n = exf_printable_bytes(s);
        if (!n) *s = '?';
        s += n ? n : 1;
    }
}
