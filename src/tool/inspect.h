/* inspect.h - what exfold-inspect shows, on stdout. */
#ifndef EXF_TOOL_INSPECT_H
#define EXF_TOOL_INSPECT_H
#include "base/err.h"

/* Kind, version, provenance, and per layer: coverage, cold experts, losses, norms. */
exf_code exf_inspect_file(const char *path, exf_err *err) EXF_CHECKED;
/* The payload's SHA-256 alone. */
exf_code exf_inspect_digest(const char *path, exf_err *err) EXF_CHECKED;
/* One JSON string per line on stdin, one JSON array of ids per line out. */
exf_code exf_inspect_tokenize(const char *model_dir, exf_err *err) EXF_CHECKED;
#endif
