/* sheet.h - draws all layers of a model in one picture: a grid of small panels, one for
 * each layer, with the layer's number, shared axes, a title and a colour bar.  A panel is
 * about 256 pixels wide, each expert a whole number of pixels. */
#ifndef EXF_PICTURE_SHEET_H
#define EXF_PICTURE_SHEET_H
#include "picture/colour.h"

typedef struct {
    const char *title, *note; /* ASCII, a line each; note NULL: none */
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
} exf_bar_sheet;

/* The canvas is made; the caller frees it.  EXF_MODEL where it would be too large. */
exf_code exf_draw_matrices(const exf_matrix_sheet *s, exf_canvas *out, exf_err *err) EXF_CHECKED;
exf_code exf_draw_bars(const exf_bar_sheet *s, exf_canvas *out, exf_err *err) EXF_CHECKED;
#endif
