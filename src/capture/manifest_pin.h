/* manifest_pin.h - writes the checksums of a manifest's files into it. */
#ifndef EXF_CAPTURE_MANIFEST_PIN_H
#define EXF_CAPTURE_MANIFEST_PIN_H
#include "base/err.h"

/* Replaces the word in each `sha256: unpinned` of the manifest at `path` by the
 * SHA-256 of that source's file, adds the key to sources that have none, and changes
 * nothing else: comments and layout stay.  The file is exchanged as a whole, after what
 * was written has been read back.  Sources that are pinned are compared with their files
 * first.  EXF_USAGE where the text cannot be edited, EXF_MODEL or EXF_IO as a source's file says.
 * *n_pinned counts the sources that were changed; with 0 nothing is written. */
exf_code exf_manifest_pin(const char *path, int *n_pinned, exf_err *err) EXF_CHECKED;
#endif
