/* sheet_internal.h - positions of a sheet's panels; shared by sheet_*.c only. */
#ifndef EXF_PICTURE_SHEET_INTERNAL_H
#define EXF_PICTURE_SHEET_INTERNAL_H
#include "picture/sheet.h"

/* Pixels.  Letters are TEXT times the font's size. */
enum {
    TEXT = 2, LINE = EXF_LETTER_HEIGHT * TEXT, GLYPH = EXF_LETTER_WIDTH * TEXT,
    MARGIN = 28, GAP = 14, TICK = 6, PANEL_TARGET = 256, BAR_WIDTH = 26
};

typedef struct {
    int columns, rows;
    int panel_width, panel_height;
    int left, top;         /* of the first panel */
    int step_x, step_y;    /* from panel to panel */
    int right, bottom;     /* just behind the last panels */
    int cell;              /* pixels of an expert */
} exf_panel_grid;

/* Fills columns, rows, steps and edges from panel_width, panel_height, left, step_x - panel_width and
 * step_y - panel_height, which gap_x and gap_y are; top from the title and note. */
void exf_panel_grid_place(exf_panel_grid *g, const exf_sheet *s, int gap_x, int gap_y);
/* Makes the canvas of the grid with `right` and `bottom` more pixels and draws title and note. */
exf_code exf_panel_grid_canvas(const exf_panel_grid *g, const exf_sheet *s, int right, int bottom, exf_canvas *out,
                               exf_err *err) EXF_CHECKED;
int exf_panel_x(const exf_panel_grid *g, int i);
int exf_panel_y(const exf_panel_grid *g, int i);
/* 1 if no panel is below panel i. */
int exf_panel_is_lowest(const exf_panel_grid *g, int i, int n);
/* Ticks and numbers of experts under a panel. */
void exf_draw_expert_ticks(exf_canvas *c, const exf_panel_grid *g, int i, int n_experts);
/* Number with this many digits behind the point, "-0" never. */
void exf_number_text(char *buf, size_t n, double value, int digits);
#endif
