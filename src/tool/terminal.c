/* terminal.c - see terminal.h. */
#include "tool/terminal.h"

#include "base/printable.h"

#include <stdio.h>

void exf_print_text(const char *text, int width)
{
    while (*text) {
        size_t n = exf_printable_bytes(text);
        if (n) fwrite(text, 1, n, stdout);
        else putchar('?');
        width -= n ? (int)n : 1;
        text += n ? n : 1;
    }
    if (width > 0) printf("%*s", width, "");
}
