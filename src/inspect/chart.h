/* chart.h - draws points of a quantity over its cost: panels side by side, one for each kind of cost, with
 * one logarithmic axis of the quantity, error bars, and the line of the points that are worth their cost. */
#ifndef EXF_INSPECT_CHART_H
#define EXF_INSPECT_CHART_H
#include "inspect/drawing.h"

typedef struct {
    double cost;
    double value, error; /* above 0, or the point has no place; the bar goes from value - error to value + error */
    const char *tag;     /* a letter or two beside the point */
    int filled;
} exf_chart_point;

typedef struct {
    const char *cost_label;
    double reference;             /* the cost of what all points are compared with: a dashed line */
    const exf_chart_point *point; /* [n] */
    size_t n;
    const size_t *line;           /* [n_line] points by rising cost; the line is level from one to the next's cost */
    size_t n_line;
} exf_chart_panel;

typedef struct {
    const char *title, *note, *value_label, *reference_label;
    const exf_chart_panel *panel;
    size_t n_panels;
    const char *const *legend; /* [n_legend] below the panels */
    size_t n_legend;
} exf_chart;

/* Draws the chart on a drawing that was opened, and begins its page.  No two texts overlap. */
exf_code exf_draw_chart(const exf_chart *c, exf_drawing *d, exf_err *err) EXF_CHECKED;
#endif
