/* canvas.c - see canvas.h. */
#include "picture/canvas.h"

#include "base/mem.h"

#include <string.h>

enum { PIXELS_MAX = 1 << 26 };

static const uint8_t inks[EXF_INKS][3] = {
    [EXF_INK_PAPER] = {255, 255, 255}, [EXF_INK_TEXT] = {28, 30, 34},   [EXF_INK_SOFT] = {120, 124, 132},
    [EXF_INK_GREY] = {190, 190, 190},  [EXF_INK_BAR] = {160, 180, 204}, [EXF_INK_LOW] = {14, 72, 148},
    [EXF_INK_HIGH] = {200, 88, 32},
};

exf_code exf_canvas_new(exf_canvas *c, int width, int height, exf_err *err)
{
    memset(c, 0, sizeof *c);
    if (width < 1 || height < 1 || height > PIXELS_MAX / width)
        return exf_fail(err, EXF_MODEL, "a picture of %d x %d pixels is more than the %d that fit; choose fewer layers", width,
                        height, PIXELS_MAX);
    exf_code rc = exf_mem_new(&c->pixel, (size_t)width * (size_t)height, 1, "picture", err);
    if (rc != EXF_OK) return rc;
    c->width = width;
    c->height = height;
    memcpy(c->palette, inks, sizeof inks);
    return EXF_OK;
}

void exf_canvas_free(exf_canvas *c)
{
    exf_mem_free(c->pixel);
    memset(c, 0, sizeof *c);
}

void exf_canvas_fill(exf_canvas *c, int x, int y, int width, int height, int ink)
{
    int left = x < 0 ? 0 : x, right = x + width > c->width ? c->width : x + width;
    int top = y < 0 ? 0 : y, bottom = y + height > c->height ? c->height : y + height;
    for (int row = top; row < bottom && left < right; row++)
        memset(c->pixel + (size_t)row * (size_t)c->width + left, ink, (size_t)(right - left));
}

void exf_canvas_frame(exf_canvas *c, int x, int y, int width, int height, int ink)
{
    exf_canvas_fill(c, x - 1, y - 1, width + 2, 1, ink);
    exf_canvas_fill(c, x - 1, y + height, width + 2, 1, ink);
    exf_canvas_fill(c, x - 1, y, 1, height, ink);
    exf_canvas_fill(c, x + width, y, 1, height, ink);
}

/* ---- letters ------------------------------------------------------------------ */

/* A quarter of a doubled dot: inked where both neighbours at its corner are and the
 * other two differ, so that diagonals come out smooth; otherwise the dot itself. */
static int quarter(char letter, int column, int row, int right, int below)
{
    int dx = right ? 1 : -1, dy = below ? 1 : -1, self = exf_letter_ink(letter, column, row);
    int beside = exf_letter_ink(letter, column + dx, row), above = exf_letter_ink(letter, column, row + dy);
    int away = exf_letter_ink(letter, column - dx, row), under = exf_letter_ink(letter, column, row - dy);
    return beside == above && beside != under && above != away ? beside : self;
}

/* Whether the letter has ink at a dot of its enlarged cell. */
static int dot(char letter, int x, int y, int scale)
{
    int column = x / scale, row = y / scale;
    if (scale < 2) return exf_letter_ink(letter, column, row);
    return quarter(letter, column, row, 2 * (x % scale) >= scale, 2 * (y % scale) >= scale);
}

static void letter(exf_canvas *c, int x, int y, int up, int scale, int ink, char which)
{
    for (int v = 0; v < EXF_LETTER_HEIGHT * scale; v++)
        for (int u = 0; u < EXF_LETTER_WIDTH * scale; u++)
            if (dot(which, u, v, scale)) exf_canvas_fill(c, up ? x + v : x + u, up ? y - u : y + v, 1, 1, ink);
}

void exf_canvas_text(exf_canvas *c, int x, int y, int scale, int ink, const char *text)
{
    for (; *text; text++, x += EXF_LETTER_WIDTH * scale) letter(c, x, y, 0, scale, ink, *text);
}

void exf_canvas_text_up(exf_canvas *c, int x, int y, int scale, int ink, const char *text)
{
    for (; *text; text++, y -= EXF_LETTER_WIDTH * scale) letter(c, x, y, 1, scale, ink, *text);
}

int exf_text_width(const char *text, int scale)
{
    return (int)strlen(text) * EXF_LETTER_WIDTH * scale;
}
