/* drawing_internal.h - the parts of a drawing; shared by drawing.c, drawing_file.c and their test, and the only includer of
 * Cairo. */
#ifndef EXF_INSPECT_DRAWING_INTERNAL_H
#define EXF_INSPECT_DRAWING_INTERNAL_H
#include "base/file.h"
#include "base/text.h"
#include "inspect/drawing.h"

#include <cairo-ft.h>
#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <cairo.h>

typedef enum { EXF_DRAWING_PNG, EXF_DRAWING_SVG, EXF_DRAWING_PDF } exf_drawing_kind;

struct exf_drawing {
    exf_output_file *file;
    exf_drawing_kind kind;
    cairo_t *measure; /* on a surface of one pixel: measures texts before the page is there */
    cairo_t *page;    /* NULL before exf_drawing_page() */
    exf_box extent;
    exf_text bytes; /* of the file */
    const char *note_key, *note; /* NULL: none */
    exf_box *text;  /* [n_texts] of the page */
    size_t n_texts, room;
    exf_code rc; /* the first failure of a shape, with its message */
    exf_err err;
};
#endif
