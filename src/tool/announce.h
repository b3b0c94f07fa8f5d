/* announce.h - tells on stdout what was written. */
#ifndef EXF_TOOL_ANNOUNCE_H
#define EXF_TOOL_ANNOUNCE_H
#include "base/err.h"

/* "wrote PATH  1.2 MB  digest ..." of an artifact, as exfold-inspect digest prints it;
 * "wrote PATH  1.2 MB  sha256 ..." of any other file, as sha256sum prints it; of a
 * directory a line per file. */
exf_code exf_announce(const char *path, exf_err *err) EXF_CHECKED;
/* The same of an artifact whose digest is known. */
exf_code exf_announce_digest(const char *path, const char *digest, exf_err *err) EXF_CHECKED;
#endif
