/* provenance.c - facts of an artifact: adding, writing and reading them; see provenance.h. */
#include "artifact/provenance.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static size_t find_key(const exf_provenance *p, const char *key)
{
    size_t i = 0;
    while (i < p->n && strcmp(p->key[i], key) < 0) i++;
    return i;
}

const char *exf_provenance_get(const exf_provenance *p, const char *key)
{
    size_t i = find_key(p, key);
    return i < p->n && strcmp(p->key[i], key) == 0 ? p->value[i] : NULL;
}

static exf_code insert_fact(exf_provenance *p, const char *key, const char *value, exf_err *err)
{
    exf_code rc;
    char *k = NULL, *v = NULL;
    const char *old = exf_provenance_get(p, key);
    if (old && strcmp(old, value) == 0) return EXF_OK;
    if (old) return exf_fail(err, EXF_INTERNAL, "provenance \"%s\" is \"%s\" and \"%s\"", key, old, value);
    EXF_TRY(exf_mem_grow(&p->key, &p->cap_key, p->n + 1, sizeof *p->key, "provenance", err));
    EXF_TRY(exf_mem_grow(&p->value, &p->cap_value, p->n + 1, sizeof *p->value, "provenance", err));
    EXF_TRY(exf_mem_strdup(&k, key, "provenance", err));
    EXF_TRY(exf_mem_strdup(&v, value, "provenance", err));
    size_t at = find_key(p, key);
    memmove(p->key + at + 1, p->key + at, (p->n - at) * sizeof *p->key);
    memmove(p->value + at + 1, p->value + at, (p->n - at) * sizeof *p->value);
    p->key[at] = k;
    p->value[at] = v;
    p->n++;
    return EXF_OK;
out:
    exf_mem_free(k);
    exf_mem_free(v);
    return rc;
}

exf_code exf_provenance_add(exf_provenance *p, exf_err *err, const char *key, const char *fmt, ...)
{
    exf_text value = {0};
    va_list va;
    va_start(va, fmt);
    exf_text_appendv(&value, fmt, va);
    va_end(va);
    exf_code rc = exf_text_end(&value, err);
    if (rc == EXF_OK) rc = insert_fact(p, key, value.s, err);
    exf_text_free(&value);
    return rc;
}

exf_code exf_provenance_copy(exf_provenance *to, const exf_provenance *from, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < from->n; i++) rc = insert_fact(to, from->key[i], from->value[i], err);
    return rc;
}

void exf_provenance_free(exf_provenance *p)
{
    for (size_t i = 0; i < p->n; i++) {
        exf_mem_free(p->key[i]);
        exf_mem_free(p->value[i]);
    }
    exf_mem_free(p->key);
    exf_mem_free(p->value);
    memset(p, 0, sizeof *p);
}

exf_code exf_facts_append(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n; i++) rc = exf_h5_put_text(h, group, p->key[i], p->value[i], err);
    return rc;
}

exf_code exf_facts_write(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err)
{
    exf_code rc = p->n ? exf_h5_group(h, group, err) : EXF_OK;
    return rc == EXF_OK ? exf_facts_append(p, group, h, err) : rc;
}

typedef struct {
    exf_provenance *p;
    exf_h5 *h;
    const char *group;
} reading;

/* Reads a fact under today's name: older files end the names of some digests in sha256 (provenance.h). */
static exf_code read_one(void *self, const char *name, exf_err *err)
{
    static const char *const digests[] = {"weights_sha256", "tokens_sha256", "sequences_sha256", "statistics_sha256"};
    reading *r = self;
    const char *ending = "";
    size_t n = strlen(name);
    char *value = NULL;
    exf_text today = {0};
    exf_code rc;
    for (size_t i = 0; i < sizeof digests / sizeof *digests; i++)
        if (exf_ends_with(name, digests[i])) ending = "digest";
    exf_text_appendf(&today, "%.*s%s", (int)(*ending ? n - strlen("sha256") : n), name, ending);
    EXF_TRY(exf_text_end(&today, err));
    EXF_TRY(exf_h5_get_text(r->h, r->group, name, &value, err));
    rc = insert_fact(r->p, today.s, value, err);
out:
    exf_text_free(&today);
    exf_mem_free(value);
    return rc;
}

exf_code exf_provenance_read(exf_provenance *p, exf_h5 *h, exf_err *err)
{
    reading r = {p, h, "/provenance"};
    return exf_h5_attrs(h, r.group, read_one, &r, err);
}

exf_code exf_facts_read(exf_provenance *p, const char *group, exf_h5 *h, exf_err *err)
{
    reading r = {p, h, group};
    int found;
    exf_code rc = exf_h5_exists(h, group, &found, err);
    return rc == EXF_OK && found ? exf_h5_attrs(h, group, read_one, &r, err) : rc;
}

/* ---- of which tables a file was made ------------------------------------------------------------ */

enum { DIGITS = EXF_SHA256_HEX - 1, NEAR = 48, WHOLE = 64 << 20, END = 1 << 20 };

/* Finds exactly 64 hexadecimal digits that begin within NEAR bytes of at. */
static int find_digits(const char *at, const char *end, char hex[EXF_SHA256_HEX])
{
    size_t n;
    for (const char *p = at; p < end && p < at + NEAR; p += n ? n : 1) {
        for (n = 0; p + n < end && p[n] && strchr("0123456789abcdef", p[n]);) n++;
        if (n != DIGITS) continue;
        memcpy(hex, p, DIGITS);
        hex[DIGITS] = 0;
        return 1;
    }
    return 0;
}

static int find_word(const char *bytes, size_t n, char hex[EXF_SHA256_HEX])
{
    static const char word[] = EXF_MADE_FROM;
    const char *end = bytes + n;
    for (const char *at = bytes; (at = memchr(at, word[0], (size_t)(end - at))); at++) {
        if ((size_t)(end - at) < strlen(word)) return 0;
        if (memcmp(at, word, strlen(word)) == 0 && find_digits(at + strlen(word), end, hex)) return 1;
    }
    return 0;
}

exf_code exf_made_from(const char *path, char hex[EXF_SHA256_HEX], exf_err *err)
{
    struct stat st;
    exf_file *f = NULL;
    char *bytes = NULL;
    exf_code rc;
    hex[0] = 0;
    if (stat(path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? EXF_OK : exf_fail_errno(err, errno, "%s: cannot look up", path);
    if (!S_ISREG(st.st_mode)) return EXF_OK;
    EXF_TRY(exf_file_open(&f, path, err));
    uint64_t size = exf_file_size(f);
    size_t part = size <= WHOLE ? (size_t)size : END;
    if (!part) goto out;
    EXF_TRY(exf_mem_new(&bytes, part, 1, "file", err));
    EXF_TRY(exf_file_read(f, 0, bytes, part, err));
    if (find_word(bytes, part, hex) || part == size) goto out;
    EXF_TRY(exf_file_read(f, size - part, bytes, part, err));
    find_word(bytes, part, hex);
out:
    exf_mem_free(bytes);
    exf_file_close(f);
    return rc;
}

exf_code exf_made_from_comment(exf_text *out, const char *hex, exf_err *err)
{
    exf_text_appendf(out, "<!-- %s: %s -->\n", EXF_MADE_FROM, hex);
    return exf_text_end(out, err);
}

/* ---- sums that are known to be wrong ------------------------------------------------------------ */

static int fact_is(const exf_provenance *p, const char *key, const char *text)
{
    const char *value = exf_provenance_get(p, key);
    return value && strcmp(value, text) == 0;
}

int exf_is_by_gpu(const exf_provenance *p)
{
    return exf_provenance_get(p, "capture.backend") && !fact_is(p, "capture.backend", "cpu");
}

int exf_sums_version(const exf_provenance *p, int64_t top_k, int64_t d_model)
{
    return exf_is_by_gpu(p) && fact_is(p, "accumulate.pairs", "corouted") && top_k > 8 && d_model > 2048 ? 2 : 1;
}

exf_code exf_sums_check_version(const exf_provenance *p, const char *path, int64_t top_k, int64_t d_model, exf_err *err)
{
    const char *made = exf_provenance_get(p, EXF_ACCUMULATE_NUMBERS_FACT);
    if (exf_sums_version(p, top_k, d_model) == 1 || (made && strcmp(made, "1") != 0)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: its sums of pairs, made on a GPU by ExFold %s, are wrong: for %lld experts per token (above 8) of %lld "
                    "elements (above 2048) that release added products twice; make it again: exfold-calibrate "
                    "exfold_recipe.yaml --force",
                    path, exf_provenance_get(p, "accumulate.version") ? exf_provenance_get(p, "accumulate.version") : "0.1.0",
                    (long long)top_k, (long long)d_model);
}
