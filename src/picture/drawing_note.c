/* drawing_note.c - writes a note that a picture's file holds and does not show; see drawing.h. */
#include "picture/drawing_internal.h"

#include <string.h>
#include <zlib.h>

enum { END_CHUNK = 12 }; /* bytes of a PNG's last chunk, IEND */

void exf_drawing_note(exf_drawing *d, const char *key, const char *value)
{
    d->note_key = key;
    d->note = value;
}

static void put_u32(char out[4], unsigned long v)
{
    for (int i = 0; i < 4; i++) out[i] = (char)(v >> (24 - 8 * i) & 0xff);
}

/* Adds a tEXt chunk: length, type, key, NUL, value, CRC of type and data. */
static exf_code add_chunk(exf_text *out, const char *key, const char *value, exf_err *err)
{
    exf_text body = {0};
    char number[4];
    exf_code rc;
    EXF_TRY(exf_text_addf(&body, err, "tEXt%s", key));
    EXF_TRY(exf_text_add(&body, "", 1, err));
    EXF_TRY(exf_text_addf(&body, err, "%s", value));
    put_u32(number, body.len - 4);
    EXF_TRY(exf_text_add(out, number, sizeof number, err));
    EXF_TRY(exf_text_add(out, body.s, body.len, err));
    put_u32(number, crc32(0, (const unsigned char *)body.s, (unsigned)body.len));
    EXF_TRY(exf_text_add(out, number, sizeof number, err));
out:
    exf_text_free(&body);
    return rc;
}

/* Puts the chunk before the last one. */
static exf_code note_png(const exf_drawing *d, exf_text *bytes, exf_err *err)
{
    char end[END_CHUNK];
    exf_code rc;
    memcpy(end, bytes->s + bytes->len - END_CHUNK, END_CHUNK);
    bytes->len -= END_CHUNK;
    EXF_TRY(add_chunk(bytes, d->note_key, d->note, err));
    EXF_TRY(exf_text_add(bytes, end, END_CHUNK, err));
out:
    return rc;
}

exf_code exf_drawing_add_note(const exf_drawing *d, exf_text *bytes, exf_err *err)
{
    if (!d->note || d->kind == EXF_DRAWING_PDF) return EXF_OK;
    return d->kind == EXF_DRAWING_PNG ? note_png(d, bytes, err)
                                      : exf_text_addf(bytes, err, "<!-- %s: %s -->\n", d->note_key, d->note);
}
