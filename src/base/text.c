/* text.c - see text.h. */
#include "base/text.h"

#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for len bytes and a NUL; 0 if there is none. */
static int grow(exf_text *t, size_t len)
{
    exf_err ignored;
    if (t->refused) return 0;
    if (len < SIZE_MAX - t->len && exf_mem_grow(&t->s, &t->cap, t->len + len + 1, 1, "text", &ignored) == EXF_OK) return 1;
    t->refused = len ? len : 1;
    return 0;
}

void exf_text_append(exf_text *t, const char *bytes, size_t len)
{
    if (!grow(t, len)) return;
    if (len) memcpy(t->s + t->len, bytes, len);
    t->len += len;
    t->s[t->len] = 0;
}

void exf_text_appendf(exf_text *t, const char *fmt, ...)
{
    va_list va;
    va_start(va, fmt);
    exf_text_appendv(t, fmt, va);
    va_end(va);
}

void exf_text_appendv(exf_text *t, const char *fmt, va_list va)
{
    va_list again;
    va_copy(again, va);
    int n = vsnprintf(NULL, 0, fmt, va);
    if (n >= 0 && grow(t, (size_t)n)) {
        vsnprintf(t->s + t->len, (size_t)n + 1, fmt, again);
        t->len += (size_t)n;
    }
    va_end(again);
}

size_t exf_text_append_character(exf_text *t, const char *s, const char *other)
{
    size_t n = exf_printable_bytes(s);
    if (other)
        exf_text_append(t, other, strlen(other));
    else if (n)
        exf_text_append(t, s, n);
    else
        exf_text_append(t, *s == '\n' || *s == '\t' ? " " : "?", 1);
    if (n) return n;
    for (n = 1; ((unsigned char)s[n] & 0xc0) == 0x80;) n++; /* the rest of a character that is refused */
    return n;
}

void exf_text_append_shown(exf_text *t, const char *s)
{
    while (*s) s += exf_text_append_character(t, s, NULL);
}

void exf_text_append_markdown(exf_text *t, const char *s)
{
    while (*s) {
        if (strchr("\\`*_[]<>|#&", *s)) exf_text_append(t, "\\", 1);
        s += exf_text_append_character(t, s, NULL);
    }
}

exf_code exf_text_end(const exf_text *t, exf_err *err)
{
    if (!t->refused) return EXF_OK;
    return exf_fail(err, EXF_NOSPACE, "out of memory: %zu bytes more for a text of %zu", t->refused, t->len);
}

void exf_text_append_word(exf_text *out, const char *s)
{
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+,-./:=@_";
    if (*s && strspn(s, safe) == strlen(s)) {
        exf_text_appendf(out, "%s", s);
        return;
    }
    exf_text_append(out, "'", 1);
    for (; *s; s++)
        if (*s == '\'') exf_text_append(out, "'\\''", 4);
        else exf_text_append(out, s, 1);
    exf_text_append(out, "'", 1);
}

void exf_text_free(exf_text *t)
{
    exf_mem_free(t->s);
    memset(t, 0, sizeof *t);
}

static int starts_a_number(const char *s)
{
    if (*s == '+' || *s == '-') s++;
    return isdigit((unsigned char)*s) || *s == '.';
}

int exf_parse_i64(const char *s, int64_t *out)
{
    if (!starts_a_number(s)) return 0;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end || end == s) return 0;
    *out = v;
    return 1;
}

int exf_parse_f64(const char *s, double *out)
{
    if (!starts_a_number(s) || strpbrk(s, "xXpP")) return 0;
    char *end;
    double v = strtod(s, &end);
    if (*end || end == s || !isfinite(v)) return 0;
    *out = v;
    return 1;
}

const char *exf_real_text(char buf[EXF_REAL_TEXT], double value)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, EXF_REAL_TEXT, "%.*g", digits, value);
        if (strtod(buf, NULL) == value) break;
    }
    if (fabs(value) >= 10 && fabs(value) < 1e6 && strchr(buf, 'e')) /* 60, not 6e+01 */
        snprintf(buf, EXF_REAL_TEXT, "%.0f", value);
    return buf;
}

int exf_parse_bytes(const char *s, uint64_t *out)
{
    static const struct { const char *unit; double factor; } units[] = {
        {"", 1}, {"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
        {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
    };
    size_t digits = strspn(s, "0123456789.");
    char number[32];
    if (digits == 0 || digits >= sizeof number) return 0;
    memcpy(number, s, digits);
    number[digits] = 0;
    double v;
    if (!exf_parse_f64(number, &v)) return 0;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(s + digits, units[i].unit) == 0 && v * units[i].factor < 9e18) {
            *out = (uint64_t)(v * units[i].factor);
            return 1;
        }
    return 0;
}

size_t exf_utf8_valid(const char *bytes, size_t len)
{
    uint32_t point;
    for (size_t i = 0, step; i < len; i += step) {
        step = exf_utf8_decode(bytes + i, len - i, &point);
        if (step == 0) return i;
    }
    return len;
}

const char *exf_human_bytes(char *buf, size_t buf_len, double bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int u = 0;
    while (bytes >= 999.5 && u < 5) {
        bytes /= 1000;
        u++;
    }
    snprintf(buf, buf_len, u && bytes < 99.95 ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return buf;
}

const char *exf_human_seconds(char *buf, size_t buf_len, double seconds)
{
    long s = seconds < 0 || !(seconds < 3.6e8) ? 0 : (long)(seconds + 0.5);
    snprintf(buf, buf_len, "%02ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    return buf;
}

int exf_starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

int exf_ends_with(const char *s, const char *suffix)
{
    size_t a = strlen(s), b = strlen(suffix);
    return a >= b && strcmp(s + a - b, suffix) == 0;
}

exf_code exf_path_join(char **out, const char *base, const char *rel, exf_err *err)
{
    if (rel[0] == '/' || strcmp(base, ".") == 0) return exf_mem_strdup(out, rel, "path", err);
    exf_text t = {0};
    exf_text_appendf(&t, "%s%s%s", base, exf_ends_with(base, "/") ? "" : "/", rel);
    exf_code rc = exf_text_end(&t, err);
    *out = rc == EXF_OK ? t.s : NULL;
    return rc;
}

int exf_path_has_tilde(const char *path)
{
    return path[0] == '~' && (!path[1] || path[1] == '/');
}

exf_code exf_path_dir(char **out, const char *path, exf_err *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return exf_mem_strdup(out, ".", "path", err);
    return exf_mem_dup(out, path, slash == path ? 1 : (size_t)(slash - path), "path", err);
}

const char *exf_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
