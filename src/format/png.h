/* png.h - writes PNG images; the only wrapper of libpng.
 *
 * 8-bit palette images without any chunk of time, text or physical size: equal
 * pictures give equal bytes with the same libpng and zlib.  Writing is atomic
 * (base/file.h). */
#ifndef EXF_FORMAT_PNG_H
#define EXF_FORMAT_PNG_H
#include "base/err.h"

#include <stdint.h>

/* pixel [height, width] indexes palette, whose colours are 8-bit sRGB. */
exf_code exf_png_write(const char *target, int force, const uint8_t *pixel, int width, int height, const uint8_t palette[256][3],
                       exf_err *err) EXF_CHECKED;
#endif
