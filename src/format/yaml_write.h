/* yaml_write.h - writes scalars of YAML documents so that exf_yaml_parse() reads them back. */
#ifndef EXF_FORMAT_YAML_WRITE_H
#define EXF_FORMAT_YAML_WRITE_H
#include "base/text.h"

/* Appends s, which must be valid UTF-8, so that every reader of YAML takes it for this text.  A word stands plain; what
 * YAML 1.1 or 1.2 could take for null, a truth, a number or a date is quoted, as is all else: the single way, in which
 * only the quote itself is doubled, or, where a character would break the line, in double quotes with escapes. */
exf_code exf_yaml_add_scalar(exf_text *out, const char *s, exf_err *err) EXF_CHECKED;
/* The same for a value that may be a number or a truth: these stand plain. */
exf_code exf_yaml_add_value(exf_text *out, const char *s, exf_err *err) EXF_CHECKED;
#endif
