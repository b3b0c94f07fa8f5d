/* heading.c - see heading.h. */
#include "picture/heading.h"

#include <stdio.h>
#include <string.h>

enum { LINE_MOST = 512 };

static const double margin = 8, title_size = 9, note_size = 6.5, leading = 1.35;

/* Bytes of the text that fit into the width, up to a blank or the end; a word that is wider stays whole. */
static size_t bytes_of_line(exf_drawing *d, double width, double size, const char *text)
{
    size_t fits = 0;
    for (size_t at = 0; at == 0 || text[at - 1];) {
        char line[LINE_MOST];
        size_t end = at + strcspn(text + at, " ");
        snprintf(line, sizeof line, "%.*s", (int)end, text);
        if (fits && exf_text_width(d, size, line) > width) break;
        fits = end;
        if (!text[end]) break;
        at = end + 1;
    }
    return fits;
}

/* Moves *y below the lines. */
static void add_lines(exf_drawing *d, double width, double size, exf_ink ink, const char *text, int draw, double *y)
{
    while (text && *text) {
        char line[LINE_MOST];
        size_t n = bytes_of_line(d, width - 2 * margin, size, text);
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        *y += size * leading;
        if (draw) exf_draw_text(d, margin, *y - (leading - 1) * size, EXF_START, size, ink, line);
        text += n + (text[n] == ' ');
    }
}

static double heading(exf_drawing *d, double width, const char *title, const char *note, int draw)
{
    double y = margin * 0.6;
    add_lines(d, width, title_size, EXF_INK_TEXT, title, draw, &y);
    add_lines(d, width, note_size, EXF_INK_SOFT, note, draw, &y);
    return y + 4;
}

double exf_heading_height(exf_drawing *d, double width, const char *title, const char *note)
{
    return heading(d, width, title, note, 0);
}

double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note)
{
    return heading(d, width, title, note, 1);
}
