/* yaml_write.h - writes scalars of YAML documents so that exf_yaml_parse() reads them back. */
#ifndef EXF_FORMAT_YAML_WRITE_H
#define EXF_FORMAT_YAML_WRITE_H
#include "base/text.h"

/* Appends s, which must be valid UTF-8.  A scalar that needs no quotes stands plain; any other
 * that fits a line is quoted the single way, in which only the quote itself is doubled; what
 * would break a line is escaped in double quotes. */
exf_code exf_yaml_add_scalar(exf_text *out, const char *s, exf_err *err) EXF_CHECKED;
#endif
