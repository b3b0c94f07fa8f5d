/* err.c - formatting of failures; see err.h for the rules. */
#include "base/err.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
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
    if (!err || err->code == EXF_SIGINT || err->code == EXF_SIGTERM) return; /* a stop does not concern a file */
    char front[sizeof err->msg], old[sizeof err->msg];
    va_list va;
    va_start(va, fmt);
    vsnprintf(front, sizeof front, fmt, va);
    va_end(va);
    memcpy(old, err->msg, sizeof old);
    exf_fail(err, err->code, "%s%s", front, old);
}

/* ---- printable text ---------------------------------------------------------------------------- */

size_t exf_utf8_decode(const char *s, size_t left, uint32_t *point)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c < 0xc0 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf8 ? 4 : 0;
    *point = n < 2 ? c : c & (0x7fu >> n);
    if (n > left) return 0;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
        *point = *point << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return *point < least[n] || *point > 0x10ffff || (*point >= 0xd800 && *point < 0xe000) ? 0 : n;
}

size_t exf_printable_bytes(const char *s)
{
    static const uint32_t obeyed[][2] = {{0, 0x1f}, {0x7f, 0x9f}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
    uint32_t point;
    size_t n = exf_utf8_decode(s, 4, &point);
    for (size_t i = 0; i < sizeof obeyed / sizeof *obeyed; i++)
        if (point >= obeyed[i][0] && point <= obeyed[i][1]) return 0;
    return n;
}

void exf_make_printable(char *s)
{
    while (*s) {
        size_t n = exf_printable_bytes(s);
        if (!n) *s = '?';
        s += n ? n : 1;
    }
}

/* ---- stop -------------------------------------------------------------------------------------- */

static atomic_int requested; /* lock-free, so that a signal handler may set it while threads read it */
static atomic_int requests, deferred;

void exf_stop_request(int signal_number)
{
    requested = signal_number;
    requests++;
}

int exf_stop_requested(void)
{
    return requested;
}

void exf_stop_defer(int on)
{
    deferred = on;
}

exf_code exf_stop_check(exf_err *err)
{
    int signal_number = requested;
    if (signal_number == 0 || (deferred && requests < 2)) return EXF_OK;
    return exf_fail(err, signal_number == SIGINT ? EXF_SIGINT : EXF_SIGTERM, "stopped by signal %d; no output was written",
                    signal_number);
}
