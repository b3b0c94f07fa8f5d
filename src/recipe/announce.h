/* announce.h - tells on stdout what was written. */
#ifndef EXF_RECIPE_ANNOUNCE_H
#define EXF_RECIPE_ANNOUNCE_H
#include "base/err.h"

/* "wrote PATH  1.2 MB  digest ..." of an artifact, as exfold-inspect digest prints it;
 * "wrote PATH  1.2 MB  sha256 ..." of any other file, as sha256sum prints it; of a
 * directory a line per file. */
exf_code exf_announce(const char *path, exf_err *err) EXF_CHECKED;
/* The same of an artifact whose digest is known. */
exf_code exf_announce_digest(const char *path, const char *digest, exf_err *err) EXF_CHECKED;

/* Prints on stdout what comes from a file: nothing that a terminal would obey passes. */

/* Prints a text, padded with blanks to at least `width` bytes, "?" for what exf_printable_bytes() refuses. */
void exf_print_text(const char *text, int width);
#endif
