/* axis.h - round numbers along an axis, and the range of an axis around its values. */
#ifndef EXF_INSPECT_AXIS_H
#define EXF_INSPECT_AXIS_H
#include "inspect/drawing.h"

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

/* At most `max` (at least 2) ticks within [low, high]; none where low is not below high.  No two read the
 * same, and "-0" none. */
void exf_ticks_at(exf_ticks *t, exf_axis_kind kind, double low, double high, int max);
/* As many of them as keep their numbers apart on an axis of `length` points that runs to the right, or up. */
void exf_ticks_fit(exf_ticks *t, exf_drawing *d, exf_axis_kind kind, double low, double high, double length, double size, int up);
/* The widest of the numbers, in points. */
double exf_ticks_width(const exf_ticks *t, exf_drawing *d, double size);
/* The share of the way from low to high at which a value lies; below 0 or above 1 if it is outside. */
double exf_axis_share(exf_axis_kind kind, double value, double low, double high);
/* Widens [*low, *high] to round numbers, about a tenth of it apart. */
void exf_axis_round_out(double *low, double *high);

/* The title and the note on top of a picture, broken into lines where they are too wide. */

/* Points that title and note take from the page's top, for a page of this width; note NULL: none. */
double exf_heading_height(exf_drawing *d, double width, const char *title, const char *note);
/* The same, drawn. */
double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note);
#endif
