/* sheet.h - draws all layers of a model on one page: a grid of small panels, one for each layer, with
 * the layer's number, shared axes, a title and a colour bar.
 *
 * The page is as wide as the text of a paper's page (516 points, 7.2 inches) at most; the number of
 * columns is the one with the largest panels.  In a PNG each expert is a whole number of pixels, at
 * least 300 pixels an inch. */
#ifndef EXF_INSPECT_SHEET_H
#define EXF_INSPECT_SHEET_H
#include "inspect/scale.h"

typedef struct {
    const char *title, *note; /* UTF-8, a line each; note NULL: none.  What is too wide is broken between words */
    int n_layers, n_experts;  /* L, E */
    const int32_t *layer_number; /* [L] */
} exf_sheet;

/* L matrices [E, E], source experts downwards, target experts to the right. */
typedef struct {
    exf_sheet sheet;
    const float *value;     /* [L, E, E]; NaN: no evidence, drawn grey */
    double low, high;       /* the ends of the colours; values beyond have the end's */
    exf_colour_map map;
    int hide_self;          /* leave the diagonal blank */
    const char *bar_label;  /* beside the colour bar */
} exf_matrix_sheet;

/* A bar per expert, each layer with an axis of its own from 0.  The least and the
 * largest are marked and named; one more than three times all others does not set the
 * axis and is hatched.  Cold experts are grey and neither. */
typedef struct {
    exf_sheet sheet;
    const float *value;     /* [L, E], none negative */
    const uint64_t *tokens; /* [L, E]; 0: cold */
    const char *value_label; /* of the axes */
} exf_bar_sheet;

/* Draw a sheet on a drawing that was opened, and begin its page.  EXF_MODEL where it would be too large. */
exf_code exf_draw_matrices(const exf_matrix_sheet *s, exf_drawing *d, exf_err *err) EXF_CHECKED;
exf_code exf_draw_bars(const exf_bar_sheet *s, exf_drawing *d, exf_err *err) EXF_CHECKED;
#endif
