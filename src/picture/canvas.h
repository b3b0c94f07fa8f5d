/* canvas.h - a canvas is a picture of at most 256 colours in memory, on which rectangles and
 * letters are drawn.
 *
 * Pixels are indices into a palette, row-major from the top left.  The first
 * EXF_INKS colours have names and stay; the others are a colour map (colour.h).
 * Drawing is clipped at the edges and cannot fail.
 * Ownership: zero-initialise, exf_canvas_free(). */
#ifndef EXF_PICTURE_CANVAS_H
#define EXF_PICTURE_CANVAS_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { EXF_INK_PAPER, EXF_INK_TEXT, EXF_INK_SOFT, EXF_INK_GREY, EXF_INK_BAR, EXF_INK_LOW, EXF_INK_HIGH, EXF_INKS };
enum { EXF_LETTER_WIDTH = 6, EXF_LETTER_HEIGHT = 10 }; /* pixels, blank column and row included */

typedef struct {
    int width, height;      /* pixels */
    uint8_t *pixel;         /* [height, width] */
    uint8_t palette[256][3]; /* 8-bit sRGB */
} exf_canvas;

/* All paper.  EXF_MODEL if it would be over 2^26 pixels. */
exf_code exf_canvas_new(exf_canvas *c, int width, int height, exf_err *err) EXF_CHECKED;
void exf_canvas_free(exf_canvas *c);

void exf_canvas_fill(exf_canvas *c, int x, int y, int width, int height, int ink);
/* A frame of one pixel just outside the rectangle. */
void exf_canvas_frame(exf_canvas *c, int x, int y, int width, int height, int ink);
/* Letters of ASCII from 32 to 126 (others as '?'), `scale` times their size, x and y
 * the top left of the first.  exf_canvas_text_up runs from bottom to top: x and y
 * are the bottom left. */
void exf_canvas_text(exf_canvas *c, int x, int y, int scale, int ink, const char *text);
void exf_canvas_text_up(exf_canvas *c, int x, int y, int scale, int ink, const char *text);
/* Pixels that a text takes in the direction it runs. */
int exf_text_width(const char *text, int scale);

/* 1 where letter c has ink; column in [0, 6), row in [0, 10) (canvas_letters.c). */
int exf_letter_ink(char c, int column, int row);
#endif
