/* drawing_file.c - a drawing from its name to its bytes: the font, the page on which shapes are drawn, the note, and what is
 * written; see drawing.h. */
#include "inspect/drawing_internal.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

/* ---- the file: its suffix, its page, its note and its bytes ------------------------------------- */

enum { SIDE_MOST = 32000, PIXELS_MOST = 1 << 26 };

static const char *const suffixes[] = {[EXF_DRAWING_PNG] = ".png", [EXF_DRAWING_SVG] = ".svg", [EXF_DRAWING_PDF] = ".pdf"};

/* Returns the kind of drawing that a path names; -1: none. */
static int find_kind(const char *path)
{
    for (int i = 0; i < (int)(sizeof suffixes / sizeof *suffixes); i++)
        if (exf_ends_with(path, suffixes[i])) return i;
    return -1;
}

int exf_picture_is_named(const char *path)
{
    return find_kind(path) >= 0;
}

/* ---- the font ---------------------------------------------------------------------------------- */

static const char family[] = "DejaVu Sans";

/* Asks Cairo which font it found: it takes strokes of its own if none is installed, and another font if ours is not. */
static exf_code check_font(cairo_t *c, exf_err *err)
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

/* ---- the page --------------------------------------------------------------------------------- */

static cairo_status_t keep_bytes(void *drawing, const unsigned char *bytes, unsigned n)
{
    exf_drawing *d = drawing;
    if (d->rc == EXF_OK) {
        exf_text_append(&d->bytes, (const char *)bytes, n);
        d->rc = exf_text_end(&d->bytes, &d->err);
    }
    return d->rc == EXF_OK ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static exf_code check_status(const exf_drawing *d, cairo_status_t status, exf_err *err)
{
    if (status == CAIRO_STATUS_SUCCESS) return EXF_OK;
    return exf_fail(err, status == CAIRO_STATUS_NO_MEMORY ? EXF_NOSPACE : EXF_INTERNAL, "%s: cairo: %s",
                    exf_output_file_path(d->file), cairo_status_to_string(status));
}

/* Makes *out, which draws on the surface and owns it: letters with the same outlines at every size, on every surface. */
static exf_code draw_on(const exf_drawing *d, cairo_surface_t *s, cairo_t **out, exf_err *err)
{
    cairo_font_options_t *o = cairo_font_options_create();
    *out = cairo_create(s);
    cairo_surface_destroy(s);
    cairo_font_options_set_antialias(o, CAIRO_ANTIALIAS_GRAY);
    cairo_font_options_set_hint_style(o, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(o, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(*out, o);
    cairo_font_options_destroy(o);
    cairo_select_font_face(*out, family, CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    return check_status(d, cairo_status(*out), err);
}

exf_code exf_drawing_open(exf_drawing **out, const char *path, int force, exf_err *err)
{
    exf_drawing *d = NULL;
    int kind = find_kind(path);
    exf_code rc;
    *out = NULL;
    if (kind < 0) return exf_fail(err, EXF_USAGE, "%s: a picture's name ends in %s", path, EXF_PICTURE_SUFFIXES);
    EXF_TRY(exf_mem_new(&d, 1, sizeof *d, "picture", err));
    d->kind = (exf_drawing_kind)kind;
    EXF_TRY(exf_output_file_begin(&d->file, path, force, err));
    EXF_TRY(draw_on(d, cairo_image_surface_create(CAIRO_FORMAT_RGB24, 1, 1), &d->measure, err));
    EXF_TRY(check_font(d->measure, err));
    *out = d;
    return EXF_OK;
out:
    exf_drawing_abort(d);
    return rc;
}

/* Makes a PDF of version 1.4, which every journal takes; without a date, so that two runs give the same file. */
static cairo_surface_t *make_pdf_surface(exf_drawing *d, const char *title)
{
    char keywords[256];
    cairo_surface_t *s = cairo_pdf_surface_create_for_stream(keep_bytes, d, d->extent.width, d->extent.height);
    cairo_pdf_surface_restrict_to_version(s, CAIRO_PDF_VERSION_1_4);
    cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_TITLE, title);
    cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_CREATOR, "ExFold");
    cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_CREATE_DATE, NULL);
    if (d->note) {
        snprintf(keywords, sizeof keywords, "%s: %s", d->note_key, d->note);
        cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_KEYWORDS, keywords);
    }
    return s;
}

exf_code exf_drawing_page(exf_drawing *d, double width, double height, double pixels_per_point, const char *title, exf_err *err)
{
    double across = ceil(width * pixels_per_point - 1e-6), down = ceil(height * pixels_per_point - 1e-6); /* at least all of it */
    cairo_surface_t *s;
    exf_code rc;
    d->extent = (exf_box){0, 0, width, height};
    if (d->kind == EXF_DRAWING_PNG) {
        if (across > SIDE_MOST || down > SIDE_MOST || across * down > PIXELS_MOST)
            return exf_fail(err, EXF_MODEL,
                            "a picture of %.0f x %.0f pixels is more than the %d that fit; choose fewer layers, or .svg or .pdf",
                            across, down, PIXELS_MOST);
        s = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)across, (int)down);
    } else if (d->kind == EXF_DRAWING_SVG) {
        s = cairo_svg_surface_create_for_stream(keep_bytes, d, width, height);
        cairo_svg_surface_set_document_unit(s, CAIRO_SVG_UNIT_PT);
    } else {
        s = make_pdf_surface(d, title);
    }
    EXF_TRY(draw_on(d, s, &d->page, err));
    cairo_set_source_rgb(d->page, 1, 1, 1);
    cairo_paint(d->page);
    if (d->kind == EXF_DRAWING_PNG) cairo_scale(d->page, pixels_per_point, pixels_per_point);
out:
    return rc;
}

/* ---- ids of an SVG ----------------------------------------------------------------------------- */

enum { NAME_MOST = 24 };

/* "surface123" of id="surface123" or #surface123. */
typedef struct {
    char name[NAME_MOST];
    size_t number;
} id;

typedef struct {
    id *list;
    size_t n, room;
} ids;

/* Finds the number of an id, or gives it the next. */
static exf_code find_number(ids *all, const char *s, size_t len, size_t *number, exf_err *err)
{
    for (size_t i = all->n; i-- > 0;)
        if (strncmp(all->list[i].name, s, len) == 0 && !all->list[i].name[len]) {
            *number = all->list[i].number;
            return EXF_OK;
        }
    exf_code rc = exf_mem_grow(&all->list, &all->room, all->n + 1, sizeof *all->list, "ids of a picture", err);
    if (rc != EXF_OK) return rc;
    id *new = &all->list[all->n];
    memcpy(new->name, s, len);
    new->name[len] = '\0';
    *number = new->number = all->n++;
    return EXF_OK;
}

/* Renumbers ids in the order in which they first occur: Cairo numbers the surfaces of a process, so that a
 * second picture would differ from the same picture alone.  *out has the text to write. */
static exf_code renumber_ids(const exf_text *svg, exf_text *out, exf_err *err)
{
    ids all = {0};
    size_t from = 0, len, number;
    exf_code rc = EXF_OK;
    for (size_t at = 1; at < svg->len; at++) {
        const char *s = svg->s + at;
        if (s[-1] != '#' && !(at >= 4 && memcmp(s - 4, "id=\"", 4) == 0)) continue;
        size_t word = strspn(s, "abcdefghijklmnopqrstuvwxyz-"), digits = strspn(s + word, "0123456789");
        len = word + digits;
        if (!word || !digits || (s[len] != '"' && s[len] != ')') || len >= NAME_MOST) continue;
        EXF_TRY(find_number(&all, s, len, &number, err));
        exf_text_append(out, svg->s + from, at + word - from);
        exf_text_appendf(out, "%zu", number);
        from = at + len;
    }
    exf_text_append(out, svg->s + from, svg->len - from);
    rc = exf_text_end(out, err);
out:
    exf_mem_free(all.list);
    return rc;
}

/* ---- the note -------------------------------------------------------------------------------- */

void exf_drawing_note(exf_drawing *d, const char *key, const char *value)
{
    d->note_key = key;
    d->note = value;
}

static void add_u32(exf_text *out, unsigned long v)
{
    const char bytes[4] = {(char)(v >> 24 & 0xff), (char)(v >> 16 & 0xff), (char)(v >> 8 & 0xff), (char)(v & 0xff)};
    exf_text_append(out, bytes, sizeof bytes);
}

/* Adds the note to a PNG as a tEXt chunk, before the last one: length, type, key, NUL, value, CRC of type and data. */
static exf_code note_png(const exf_drawing *d, exf_text *png, exf_err *err)
{
    enum { END_CHUNK = 12 }; /* bytes of a PNG's last chunk, IEND */
    char end[END_CHUNK];
    exf_text body = {0};
    exf_text_appendf(&body, "tEXt%s", d->note_key);
    exf_text_append(&body, "", 1);
    exf_text_appendf(&body, "%s", d->note);
    exf_code rc = exf_text_end(&body, err);
    if (rc == EXF_OK) {
        memcpy(end, png->s + png->len - END_CHUNK, END_CHUNK);
        png->len -= END_CHUNK;
        add_u32(png, body.len - 4);
        exf_text_append(png, body.s, body.len);
        add_u32(png, crc32(0, (const unsigned char *)body.s, (unsigned)body.len));
        exf_text_append(png, end, END_CHUNK);
        rc = exf_text_end(png, err);
    }
    exf_text_free(&body);
    return rc;
}

/* ---- the bytes ---------------------------------------------------------------------------------- */

exf_code exf_drawing_close(exf_drawing *d, exf_err *err)
{
    exf_text svg = {0};
    cairo_surface_t *s = cairo_get_target(d->page);
    cairo_status_t status = cairo_status(d->page);
    exf_code rc;
    if (status == CAIRO_STATUS_SUCCESS && d->kind == EXF_DRAWING_PNG) status = cairo_surface_write_to_png_stream(s, keep_bytes, d);
    cairo_surface_finish(s); /* after which bytes are complete */
    if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_status(s);
    rc = d->rc;
    if (rc != EXF_OK) *err = d->err;
    if (rc == EXF_OK) rc = check_status(d, status, err);
    if (rc != EXF_OK) goto out;
    if (d->kind == EXF_DRAWING_SVG) EXF_TRY(renumber_ids(&d->bytes, &svg, err));
    exf_text *bytes = svg.s ? &svg : &d->bytes;
    if (d->note && d->kind == EXF_DRAWING_PNG) EXF_TRY(note_png(d, bytes, err));
    if (d->note && d->kind == EXF_DRAWING_SVG) { /* a PDF has it since its page began */
        exf_text_appendf(bytes, "<!-- %s: %s -->\n", d->note_key, d->note);
        EXF_TRY(exf_text_end(bytes, err));
    }
    EXF_TRY(exf_output_file_write(d->file, bytes->s, bytes->len, err));
    rc = exf_output_file_commit(d->file, err);
    d->file = NULL;
out:
    exf_text_free(&svg);
    exf_drawing_abort(d);
    return rc;
}

void exf_drawing_abort(exf_drawing *d)
{
    if (!d) return;
    if (d->page) {
        d->rc = d->rc == EXF_OK ? EXF_INTERNAL : d->rc; /* what Cairo still writes is dropped */
        cairo_destroy(d->page);
    }
    if (d->measure) cairo_destroy(d->measure);
    exf_output_file_abort(d->file);
    exf_text_free(&d->bytes);
    exf_mem_free(d->text);
    exf_mem_free(d);
}
