/* heading.h - the title and the note on top of a picture, broken into lines where they are too wide. */
#ifndef EXF_PICTURE_HEADING_H
#define EXF_PICTURE_HEADING_H
#include "picture/drawing.h"

/* Points that title and note take from the page's top, for a page of this width; note NULL: none. */
double exf_heading_height(exf_drawing *d, double width, const char *title, const char *note);
/* The same, drawn. */
double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note);
#endif
