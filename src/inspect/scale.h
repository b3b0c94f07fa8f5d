/* scale.h - how numbers become colours and places on a picture.
 *
 * Two colour maps, perceptually uniform and safe for the colour-blind (scripts/make_colours.py computes their points); round
 * numbers along an axis, and the range of an axis around its values; the heading above a picture. */
#ifndef EXF_INSPECT_SCALE_H
#define EXF_INSPECT_SCALE_H
#include "inspect/drawing.h"

typedef enum {
    EXF_MAP_SEQUENTIAL, /* dark indigo, green, pale yellow */
    EXF_MAP_DIVERGING   /* blue, near white, orange-red: symmetric in lightness */
} exf_colour_map;

/* Control points of a map, interpolated linearly; colours that a value can have. */
enum { EXF_COLOUR_POINTS = 33, EXF_COLOURS = 256 };

/* Computes the colour at i / (n - 1) of the map, 0 <= i < n, n > 1; in integers, so that it is the same everywhere. */
void exf_colour_at(exf_colour_map map, int i, int n, uint8_t rgb[3]);
/* Returns the colour of a value in [low, high]; values outside get that of the nearer end, NaN that of low. */
exf_ink exf_colour_of(exf_colour_map map, double value, double low, double high);
enum { EXF_TICKS_MAX = 12, EXF_TICK_TEXT = 24 };

typedef struct {
    int n;
    double at[EXF_TICKS_MAX]; /* rising */
    char text[EXF_TICKS_MAX][EXF_TICK_TEXT];
} exf_ticks;

typedef enum {
    EXF_AXIS_REAL,  /* 1, 2 or 5 times a power of ten apart */
    EXF_AXIS_WHOLE, /* the same, at least 1 apart: experts */
    EXF_AXIS_LOG    /* 1, 2 and 5 times powers of ten themselves, or powers alone; ends above 0 */
} exf_axis_kind;

/* Fills at most `max` (at least 2) ticks within [low, high]; none where low is not below high.  No two read the
 * same, and none reads "-0". */
void exf_ticks_at(exf_ticks *t, exf_axis_kind kind, double low, double high, int max);
/* Fills as many of them as keep their numbers apart on an axis of `length` points that runs to the right, or up. */
void exf_ticks_fit(exf_ticks *t, exf_drawing *d, exf_axis_kind kind, double low, double high, double length, double size, int up);
/* Returns the width of the widest of the numbers, in points. */
double exf_ticks_width(const exf_ticks *t, exf_drawing *d, double size);
/* Returns the share of the way from low to high at which a value lies; below 0 or above 1 if it is outside. */
double exf_axis_share(exf_axis_kind kind, double value, double low, double high);
/* Widens [*low, *high] to round numbers, about a tenth of it apart. */
void exf_axis_round_out(double *low, double *high);

/* Returns how many points title and note take from the page's top, for a page of this width, broken into lines where they are
 * too wide; note NULL: none. */
double exf_heading_height(exf_drawing *d, double width, const char *title, const char *note);
/* Draws them, too. */
double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note);
#endif
