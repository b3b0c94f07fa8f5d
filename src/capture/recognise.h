/* recognise.h - tells what kind of source a file is that no manifest describes.
 *
 *   tokens   a .safetensors file with one integer tensor, or one that `field` names
 *   jsonl    the first line that is not blank is a JSON object (or the name ends in .jsonl or .ndjson)
 *   text     anything else that is UTF-8
 *
 * Only the kind is decided, from the first line or the header: whether all of the file is
 * so, the corpus' readers check. */
#ifndef EXF_CAPTURE_RECOGNISE_H
#define EXF_CAPTURE_RECOGNISE_H
#include "base/text.h"
#include "capture/manifest.h"

typedef struct {
    exf_source_format format;
    exf_text field; /* jsonl: the member with the text; tokens: the tensor; else empty */
    exf_text about; /* a clause for the user: "JSON lines, the text is member \"text\"" */
} exf_recognised;

/* field: a member or tensor that the user named; NULL: "text" and the only integer tensor.
 * EXF_MODEL where the file is none of the kinds, or lacks that member or tensor: the message
 * names those it has and the option that chooses one.  *out is freed by the caller, also after an error. */
exf_code exf_recognise(exf_recognised *out, const char *path, const char *field, exf_err *err) EXF_CHECKED;
void exf_recognised_free(exf_recognised *r);
#endif
