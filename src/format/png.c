/* png.c - see png.h. */
#include "format/png.h"

#include "base/file.h"

#include <png.h>
#include <setjmp.h>
#include <stddef.h>

typedef struct {
    exf_output_file *file;
    exf_code rc;
    exf_err *err;
} sink;

/* libpng leaves a failed call by a jump; the message is written before it. */
static void on_error(png_structp png, png_const_charp message)
{
    sink *s = png_get_error_ptr(png);
    if (s->rc == EXF_OK) s->rc = exf_fail(s->err, EXF_INTERNAL, "%s: libpng: %s", exf_output_file_path(s->file), message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void on_bytes(png_structp png, png_bytep bytes, size_t n)
{
    sink *s = png_get_io_ptr(png);
    s->rc = exf_output_file_write(s->file, bytes, n, s->err);
    if (s->rc != EXF_OK) png_error(png, "write");
}

static void on_flush(png_structp png)
{
    (void)png;
}

/* Everything that may jump, and no variable that a jump could spoil. */
static void encode(png_structp png, png_infop info, sink *s, const uint8_t *pixel, int width, int height, png_const_colorp palette)
{
    if (setjmp(png_jmpbuf(png))) return;
    png_set_write_fn(png, s, on_bytes, on_flush);
    png_set_compression_level(png, 9);
    png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE);
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8, PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_PLTE(png, info, palette, 256);
    png_write_info(png, info);
    for (int y = 0; y < height; y++) png_write_row(png, pixel + (size_t)y * (size_t)width);
    png_write_end(png, info);
}

exf_code exf_png_write(const char *target, int force, const uint8_t *pixel, int width, int height, const uint8_t palette[256][3],
                       exf_err *err)
{
    sink s = {.err = err};
    png_color colours[256];
    for (int i = 0; i < 256; i++) colours[i] = (png_color){palette[i][0], palette[i][1], palette[i][2]};
    exf_code rc = exf_output_file_begin(&s.file, target, force, err);
    if (rc != EXF_OK) return rc;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &s, on_error, on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (info)
        encode(png, info, &s, pixel, width, height, colours);
    else
        s.rc = exf_fail(err, EXF_NOSPACE, "%s: no memory for libpng", target);
    png_destroy_write_struct(&png, &info);
    if (s.rc == EXF_OK) return exf_output_file_commit(s.file, err);
    exf_output_file_abort(s.file);
    return s.rc;
}
