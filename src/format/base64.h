/* base64.h - bytes as base64 text (RFC 4648, with padding). */
#ifndef EXF_FORMAT_BASE64_H
#define EXF_FORMAT_BASE64_H
#include "base/text.h"

exf_code exf_base64_add(exf_text *out, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
#endif
