/* drawing_text.c - the letters of a drawing; see drawing.h. */
#include "base/mem.h"
#include "picture/drawing_internal.h"

#include <string.h>

static const char family[] = "DejaVu Sans";

void exf_drawing_set_font(cairo_t *c)
{
    cairo_font_options_t *o = cairo_font_options_create();
    cairo_font_options_set_antialias(o, CAIRO_ANTIALIAS_GRAY);
    cairo_font_options_set_hint_style(o, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(o, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(c, o);
    cairo_font_options_destroy(o);
    cairo_select_font_face(c, family, CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
}

/* Cairo takes strokes of its own if no font is installed, and another font if ours is not. */
exf_code exf_drawing_check_font(cairo_t *c, exf_err *err)
{
    cairo_scaled_font_t *font = cairo_get_scaled_font(c);
    char found[64] = "none";
    if (cairo_scaled_font_get_type(font) == CAIRO_FONT_TYPE_FT) {
        FT_Face face = cairo_ft_scaled_font_lock_face(font);
        if (face && face->family_name) {
            strncpy(found, face->family_name, sizeof found - 1);
            found[sizeof found - 1] = '\0';
        }
        if (face) cairo_ft_scaled_font_unlock_face(font);
    }
    if (strcmp(found, family) == 0) return EXF_OK;
    return exf_fail(err, EXF_IO, "pictures are lettered in the font %s, which is not installed (found: %s); install it with: %s",
                    family, found, "apt-get install fonts-dejavu-core");
}

double exf_text_width(exf_drawing *d, double size, const char *text)
{
    cairo_text_extents_t e;
    cairo_set_font_size(d->measure, size);
    cairo_text_extents(d->measure, text, &e);
    return e.x_advance;
}

/* Keeps the box that a text covers. */
static void keep_box(exf_drawing *d, exf_box box)
{
    if (d->rc != EXF_OK) return;
    d->rc = exf_mem_grow(&d->text, &d->room, d->n_texts + 1, sizeof *d->text, "texts of a picture", &d->err);
    if (d->rc == EXF_OK) d->text[d->n_texts++] = box;
}

static double offset_of(exf_anchor anchor, double width)
{
    return anchor == EXF_START ? 0 : anchor == EXF_MIDDLE ? -width / 2 : -width;
}

void exf_draw_text(exf_drawing *d, double x, double y, exf_anchor anchor, double size, exf_ink ink, const char *text)
{
    cairo_text_extents_t e;
    cairo_set_font_size(d->page, size);
    cairo_text_extents(d->page, text, &e);
    double left = x + offset_of(anchor, e.x_advance);
    exf_drawing_set_ink(d->page, ink);
    cairo_move_to(d->page, left, y);
    cairo_show_text(d->page, text);
    keep_box(d, (exf_box){left + e.x_bearing, y + e.y_bearing, e.width, e.height});
}

void exf_draw_text_up(exf_drawing *d, double x, double y, exf_anchor anchor, double size, exf_ink ink, const char *text)
{
    static const double quarter_turn = -1.57079632679489661923;
    cairo_text_extents_t e;
    cairo_set_font_size(d->page, size);
    cairo_text_extents(d->page, text, &e);
    double bottom = y - offset_of(anchor, e.x_advance);
    exf_drawing_set_ink(d->page, ink);
    cairo_save(d->page);
    cairo_translate(d->page, x, bottom);
    cairo_rotate(d->page, quarter_turn);
    cairo_move_to(d->page, 0, 0);
    cairo_show_text(d->page, text);
    cairo_restore(d->page);
    keep_box(d, (exf_box){x + e.y_bearing, bottom - e.x_bearing - e.width, e.height, e.width});
}

const exf_box *exf_drawing_texts(const exf_drawing *d, size_t *n)
{
    *n = d->n_texts;
    return d->text;
}

int exf_boxes_meet(const exf_box *a, const exf_box *b)
{
    return a->x < b->x + b->width && b->x < a->x + a->width && a->y < b->y + b->height && b->y < a->y + a->height;
}
