/* sheet.h - draws all layers of a model on one page: a grid of small panels, one for each layer, with
 * the layer's number, shared axes, a title and a colour bar.
 *
 * The page is as wide as the text of a paper's page (516 points, 7.2 inches) at most; the number of
 * columns is the one with the largest panels.  In a PNG each expert is a whole number of pixels, at
 * least 300 pixels an inch. */
#ifndef EXF_INSPECT_SHEET_H
#define EXF_INSPECT_SHEET_H
#include "inspect/axis.h"
#include "inspect/colour.h"

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

/* The drawing was opened; its page is begun here.  EXF_MODEL where it would be too large. */
exf_code exf_draw_matrices(const exf_matrix_sheet *s, exf_drawing *d, exf_err *err) EXF_CHECKED;
exf_code exf_draw_bars(const exf_bar_sheet *s, exf_drawing *d, exf_err *err) EXF_CHECKED;

/* Positions of a sheet's panels; shared by sheet_*.c only.  All lengths are points. */

#define EXF_SHEET_LABEL 7.0 /* size of a layer's label and of an axis' name */
#define EXF_SHEET_TICK 6.0  /* size of an axis' numbers */
#define EXF_SHEET_MARGIN 8.0
#define EXF_SHEET_GAP 5.0
#define EXF_SHEET_STROKE 2.5 /* length of a tick's stroke */

/* The room that a kind of sheet needs around its panels, and the panels' shape: height by width. */
typedef struct {
    double left, right, bottom; /* of all panels */
    double head, gap_x;         /* above each, between two */
    double lowest, highest;     /* shape */
} exf_panel_needs;

typedef struct {
    int columns, rows;
    double panel_width, panel_height;
    double left, top;         /* of the first panel */
    double step_x, step_y;    /* from panel to panel */
    double right, bottom;     /* just after the last panels */
    double page_width, page_height;
    double pixels_per_point;  /* in a PNG, where an expert is `pixels` wide */
    int pixels;
} exf_panel_grid;

/* Chooses columns and rows with the largest panels on a page of at most 516 x 460 points and cuts the page
 * to them.  Edges of panels lie on whole pixels. */
void exf_panel_grid_place(exf_panel_grid *g, exf_drawing *d, const exf_sheet *s, const exf_panel_needs *needs);
/* Begins the page of the grid and draws title and note. */
exf_code exf_panel_grid_page(const exf_panel_grid *g, const exf_sheet *s, exf_drawing *d, exf_err *err) EXF_CHECKED;
exf_box exf_panel_box(const exf_panel_grid *g, int i);
/* 1 if no panel is below panel i. */
int exf_panel_is_lowest(const exf_panel_grid *g, int i, int n);
/* "layer 7", or "7" where that is too wide for `room`. */
void exf_draw_layer_label(exf_drawing *d, const exf_sheet *s, exf_box panel, int i, double room, double above);
/* Ticks and numbers of experts under a panel. */
void exf_draw_expert_ticks(exf_drawing *d, exf_box panel, int n_experts);
/* Ticks and numbers left of a panel; (share of the height from the top) x height is where each lies. */
void exf_draw_left_ticks(exf_drawing *d, exf_box panel, const exf_ticks *t, const double share[EXF_TICKS_MAX]);
#endif
