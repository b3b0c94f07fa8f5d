/* made_from.h - tells of which tables a file was made.
 *
 * Every file that is made from tables holds the word `tables_digest` and, within 48 bytes of it, the
 * digest of the tables: exports among their facts, validation.json in its provenance, Markdown,
 * SVG and YAML in a comment, a report among its facts. */
#ifndef EXF_ARTIFACT_MADE_FROM_H
#define EXF_ARTIFACT_MADE_FROM_H
#include "base/hash.h"
#include "base/text.h"

#define EXF_MADE_FROM "tables_digest"

/* Writes the digest that the file holds, or "" where it holds none or is no regular file.  Of a file
 * beyond 64 MiB only the first and the last MiB are read. */
exf_code exf_made_from(const char *path, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* Adds "<!-- tables_digest: HEX -->", a line that Markdown and XML do not show. */
exf_code exf_made_from_comment(exf_text *out, const char *hex, exf_err *err) EXF_CHECKED;
#endif
