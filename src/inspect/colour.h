/* colour.h - two colour maps, perceptually uniform and safe for the colour-blind
 * (scripts/make_colours.py computes their points). */
#ifndef EXF_INSPECT_COLOUR_H
#define EXF_INSPECT_COLOUR_H
#include "inspect/drawing.h"

typedef enum {
    EXF_MAP_SEQUENTIAL, /* dark indigo, green, pale yellow */
    EXF_MAP_DIVERGING   /* blue, near white, orange-red: symmetric in lightness */
} exf_colour_map;

/* Points of a map, between which colours run straight; colours that a value can have. */
enum { EXF_COLOUR_POINTS = 33, EXF_COLOURS = 256 };

/* The colour at i / (n - 1) of the map, 0 <= i < n, n > 1; integers only, so the same everywhere. */
void exf_colour_at(exf_colour_map map, int i, int n, uint8_t rgb[3]);
/* The colour of a value in [low, high]; values outside get the nearer end's, NaN that of low. */
exf_ink exf_colour_of(exf_colour_map map, double value, double low, double high);
#endif
