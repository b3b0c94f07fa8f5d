/* drawing.h - a drawing is one page of shapes, letters and coloured cells, which Cairo draws and
 * which becomes PNG, SVG or PDF by the suffix of its file.
 *
 * Unit: the point, 1/72 inch; x to the right, y downwards, from the page's top left.
 * Use: exf_drawing_open(), then measure texts and decide on the layout, exf_drawing_page(), shapes,
 * exf_drawing_close().  Shapes cannot fail; what goes wrong with them is an error of
 * exf_drawing_close().  Equal calls give equal bytes with the same Cairo and the same font: no
 * file names a time.  Letters are those of DejaVu Sans; in SVG they are outlines, in PDF the font
 * is embedded, so that neither needs a font to be looked at.
 * Files are written atomically (base/file.h). */
#ifndef EXF_INSPECT_DRAWING_H
#define EXF_INSPECT_DRAWING_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct exf_drawing exf_drawing;
typedef uint32_t exf_ink; /* 0xRRGGBB, sRGB */

enum {
    EXF_INK_PAPER = 0xffffff, EXF_INK_TEXT = 0x1c1e22, EXF_INK_SOFT = 0x787c84, EXF_INK_FAINT = 0xdfe1e5,
    EXF_INK_GREY = 0xbebebe, EXF_INK_BAR = 0xa0b4cc, EXF_INK_LOW = 0x0e4894, EXF_INK_HIGH = 0xc85820
};

typedef struct {
    double x, y, width, height;
} exf_box;

typedef enum { EXF_START, EXF_MIDDLE, EXF_END } exf_anchor; /* the part of a text that lies at its x */

/* ---- the file (drawing_file.c) ------------------------------------------------------------------ */

/* The suffixes of pictures, for messages. */
#define EXF_PICTURE_SUFFIXES ".png, .svg or .pdf"
enum { EXF_PICTURE_SUFFIX_LEN = 4 };
/* Returns 1 if a file of this name can be a picture. */
int exf_picture_is_named(const char *path);

/* Begins the file of a drawing.  EXF_USAGE: another suffix; EXF_IO: it exists and force is 0, or DejaVu
 * Sans is not installed. */
exf_code exf_drawing_open(exf_drawing **out, const char *path, int force, exf_err *err) EXF_CHECKED;
/* Begins the page, all paper: its size in points, the pixels of a point where the file is a PNG, and the
 * title that a PDF has in its properties (UTF-8).  EXF_MODEL where a PNG would be too large. */
exf_code exf_drawing_page(exf_drawing *d, double width, double height, double pixels_per_point, const char *title,
                          exf_err *err) EXF_CHECKED;
/* Sets a note that the file holds and does not show: a comment of an SVG, the keywords of a PDF, a text chunk
 * of a PNG.  ASCII, without "--"; borrowed until the drawing is closed; called before exf_drawing_page(). */
void exf_drawing_note(exf_drawing *d, const char *key, const char *value);
/* Writes the file and frees d, also on failure. */
exf_code exf_drawing_close(exf_drawing *d, exf_err *err) EXF_CHECKED;
/* Removes what was written and frees d; NULL is allowed. */
void exf_drawing_abort(exf_drawing *d);

/* ---- letters (drawing.c); size in points, text in UTF-8, one line ------------------------- */
double exf_text_width(exf_drawing *d, double size, const char *text);
/* Draws text; y is the line on which letters stand. */
void exf_draw_text(exf_drawing *d, double x, double y, exf_anchor anchor, double size, exf_ink ink, const char *text);
/* Draws text from bottom to top; x is the line, y where the anchor lies. */
void exf_draw_text_up(exf_drawing *d, double x, double y, exf_anchor anchor, double size, exf_ink ink, const char *text);
/* Returns the boxes that the texts of the page cover, in the order in which they were drawn; valid until the next text. */
const exf_box *exf_drawing_texts(const exf_drawing *d, size_t *n);
/* Returns 1 if the boxes have a common area. */
int exf_boxes_meet(const exf_box *a, const exf_box *b);

/* ---- shapes (drawing.c) ------------------------------------------------------------------------ */
void exf_draw_fill(exf_drawing *d, exf_box box, exf_ink ink);
/* Draws a thin line around the box. */
void exf_draw_frame(exf_drawing *d, exf_box box, exf_ink ink);
/* Draws a line through the points xy [n][2]. */
void exf_draw_line(exf_drawing *d, const double (*xy)[2], size_t n, double width, exf_ink ink);
void exf_draw_dashes(exf_drawing *d, double x0, double y0, double x1, double y1, double dash, exf_ink ink);
/* Draws a dot, filled with its ink or with paper. */
void exf_draw_dot(exf_drawing *d, double x, double y, double radius, exf_ink ink, int filled);
/* Draws a triangle that points down to (x, y). */
void exf_draw_pointer(exf_drawing *d, double x, double y, double size, exf_ink ink);
/* Draws cells, ink [rows, columns] row-major from the top left.  Cells of few rows and columns are shapes; many are an
 * image without smoothing, of at least 300 pixels an inch. */
void exf_draw_cells(exf_drawing *d, exf_box box, int columns, int rows, const exf_ink *ink);
/* Fills the box with colours that run from the bottom, ink[0], to the top; n > 1. */
void exf_draw_gradient(exf_drawing *d, exf_box box, const exf_ink *ink, int n);

/* ---- scales (drawing_scale.c) ----------------------------------------------------------------------------------------- */

/* A scale turns numbers into colours and places on a picture: two colour maps, perceptually uniform and safe for the colour-blind
 * (scripts/make_colours.py computes their points); round numbers along an axis, and the range of an axis around its values; the
 * heading above a picture (drawing.c). */

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

/* Draws title and note, unless they are only measured (draw 0), for a page of this width, broken into lines where they are too
 * wide; note NULL: none.  Returns how many points they take from the page's top. */
double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note, int draw);

/* ---- charts ----------------------------------------------------------------------------------------- */

/* A chart shows points of a quantity over its cost: panels side by side, one for each kind of cost, with
 * one logarithmic axis of the quantity, error bars, and the line of the points that are worth their cost. */

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

/* ---- sheets ----------------------------------------------------------------------------------------- */

/* A sheet shows all layers of a model on one page: a grid of small panels, one for each layer, with
 * the layer's number, shared axes, a title and a colour bar.
 *
 * The page is as wide as the text of a paper's page (516 points, 7.2 inches) at most; the number of
 * columns is the one with the largest panels.  In a PNG each expert is a whole number of pixels, at
 * least 300 pixels an inch. */

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
