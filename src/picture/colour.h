/* colour.h - two colour maps, perceptually uniform and safe for the colour-blind
 * (scripts/make_colours.py computes their points), and round numbers for axes. */
#ifndef EXF_PICTURE_COLOUR_H
#define EXF_PICTURE_COLOUR_H
#include "picture/canvas.h"

typedef enum {
    EXF_MAP_SEQUENTIAL, /* dark indigo, green, pale yellow */
    EXF_MAP_DIVERGING   /* blue, near white, orange-red: symmetric in lightness */
} exf_colour_map;

/* The colour at i / (n - 1) of the map, 0 <= i < n, n > 1; integers only, so the same everywhere. */
void exf_colour_at(exf_colour_map map, int i, int n, uint8_t rgb[3]);
/* Fills the rest of the canvas's palette with the map. */
void exf_colour_load(exf_canvas *c, exf_colour_map map);
/* The palette's index for a value in [low, high]; values outside get the nearer end's. */
int exf_colour_index(double value, double low, double high);

/* Round numbers (1, 2 or 5 times a power of ten apart) within [low, high], rising, as
 * many as fit into max (at least 2); returns how many, 0 where low is not below high.
 * *digits: behind the point, so that no two read the same. */
enum { EXF_TICKS_MAX = 12 };
int exf_ticks(double low, double high, int max, double tick[EXF_TICKS_MAX], int *digits);
#endif
