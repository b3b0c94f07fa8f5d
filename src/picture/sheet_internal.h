/* sheet_internal.h - positions of a sheet's panels; shared by sheet_*.c only.  All lengths are points. */
#ifndef EXF_PICTURE_SHEET_INTERNAL_H
#define EXF_PICTURE_SHEET_INTERNAL_H
#include "picture/axis.h"
#include "picture/sheet.h"

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
