/* err.c - formatting of failures; see err.h for the rules. */
#include "base/err.h"

#include "base/printable.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *exf_code_name(exf_code code)
{
    switch (code) {
#define X(name, value, text) \
    case EXF_##name: return #name;
        EXF_CODES(X)
#undef X
    }
    return "?";
}

const char *exf_code_text(exf_code code)
{
    switch (code) {
#define X(name, value, text) \
    case EXF_##name: return text;
        EXF_CODES(X)
#undef X
    }
    return "?";
}

exf_code exf_fail(exf_err *err, exf_code code, const char *fmt, ...)
{
    if (!err) return code;
    va_list va;
    va_start(va, fmt);
    err->code = code;
    vsnprintf(err->msg, sizeof err->msg, fmt, va);
    va_end(va);
    exf_make_printable(err->msg); /* it may quote bytes of a hostile file */
    return code;
}

exf_code exf_fail_errno(exf_err *err, int errnum, const char *fmt, ...)
{
    int full = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG || errnum == ENOMEM;
    exf_code code = full ? EXF_NOSPACE : EXF_IO;
    if (!err) return code;
    char what[sizeof err->msg];
    va_list va;
    va_start(va, fmt);
    vsnprintf(what, sizeof what, fmt, va);
    va_end(va);
    return exf_fail(err, code, "%s: %s", what, strerror(errnum));
}

void exf_err_prefix(exf_err *err, const char *fmt, ...)
{
    if (!err || err->code == EXF_SIGINT || err->code == EXF_SIGTERM) return; /* a stop is no fault of a file */
    char front[sizeof err->msg], old[sizeof err->msg];
    va_list va;
    va_start(va, fmt);
    vsnprintf(front, sizeof front, fmt, va);
    va_end(va);
    memcpy(old, err->msg, sizeof old);
    exf_fail(err, err->code, "%s%s", front, old);
}
