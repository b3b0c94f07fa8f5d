/* announce.h - tells on stdout what was written. */
#ifndef EXF_TOOL_ANNOUNCE_H
#define EXF_TOOL_ANNOUNCE_H
#include "base/err.h"

/* "wrote PATH  1.2 MB  sha256 ...": of the payload for artifacts, of the bytes for
 * exports; of a directory a line per file. */
exf_code exf_announce(const char *path, exf_err *err) EXF_CHECKED;
#endif
