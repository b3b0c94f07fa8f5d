/* figure.h - the list of an inspection's figures; functions that draw one or
 * write its numbers.
 *
 *   norms       mean output norm of every expert, a bar each
 *   similarity  raw similarity of every pair (inspection.h)
 *   aligned     the same after the pair's own scalar
 *   scalar      S[s,t]; colours end at the 99th percentile of |S|, both ways
 *   loss        L[s,t]
 * Colours of similarities and losses run from 0 to 1, or, where all values lie together, around these.
 * A pair that was never observed is grey, and NaN in the numbers. */
#ifndef EXF_INSPECT_FIGURE_H
#define EXF_INSPECT_FIGURE_H
#include "inspect/drawing.h"
#include "inspect/inspection.h"

typedef struct {
    const char *name;                 /* "scalar" */
    const char *needs;                /* the kinds of file that hold it, for messages */
    const char *title, *bar_label;
    exf_colour_map map;
    int hide_self;
    size_t field;                     /* of exf_inspection: a float pointer */
    int is_bars;                      /* [L, E] and not [L, E, E] */
} exf_figure;

/* Returns figure i in the order above; NULL past the end. */
const exf_figure *exf_figure_at(size_t i);
const exf_figure *exf_figure_find(const char *name); /* NULL: unknown */
/* Returns the numbers: [L, E] or [L, E, E] of the inspection; NULL: it lacks them. */
const float *exf_figure_values(const exf_figure *f, const exf_inspection *s);

/* The ends of the colours: those that the figure has by itself; ends around the values, but for a hundredth of them at
 * each end; or two numbers, low below high. */
typedef struct {
    enum { EXF_ENDS_USUAL, EXF_ENDS_DATA, EXF_ENDS_GIVEN } from;
    double low, high; /* EXF_ENDS_GIVEN */
} exf_figure_ends;

/* Finds the ends that EXF_ENDS_USUAL means or, of_data, those that EXF_ENDS_DATA does. */
exf_code exf_figure_range(const exf_figure *f, const exf_inspection *s, int of_data, double *low, double *high,
                          exf_err *err) EXF_CHECKED;
/* Draws the figure on a drawing that was opened.  Bars have no colours to end: `ends` is not looked at.
 * EXF_MODEL where it would be too large. */
exf_code exf_figure_draw(const exf_figure *f, const exf_inspection *s, const exf_figure_ends *ends, exf_drawing *d,
                         exf_err *err) EXF_CHECKED;
/* Writes the numbers as a line per expert (layer,expert,tokens,norm) or per ordered pair of different
 * experts (layer,source,target,tokens,<name>); never observed: nothing after the last comma. */
exf_code exf_figure_csv(const exf_figure *f, const exf_inspection *s, const char *target, int force, exf_err *err) EXF_CHECKED;
/* Writes them as F32 [L, E] or [L, E, E], NaN where never observed; layers in order of the inspection's. */
exf_code exf_figure_npy(const exf_figure *f, const exf_inspection *s, const char *target, int force, exf_err *err) EXF_CHECKED;
#endif
