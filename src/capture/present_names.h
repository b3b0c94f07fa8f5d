/* present_names.h - lists, for messages, the names that a source has where a wanted one is missing. */
#ifndef EXF_CAPTURE_PRESENT_NAMES_H
#define EXF_CAPTURE_PRESENT_NAMES_H
#include "base/text.h"
#include "format/json.h"
#include "format/safetensors.h"

/* Append the names in the file's order, quoted: "\"a\", \"b\""; of more than 12 the first 12 and how
 * many more there are; "none" of an empty list. */
exf_code exf_member_names(const exf_json *object, exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_tensor_names(const exf_st_file *f, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
