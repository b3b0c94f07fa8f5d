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
/* Returns the page from corner to corner. */
exf_box exf_drawing_extent(const exf_drawing *d);
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
#endif
