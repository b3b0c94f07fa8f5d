/* provenance.c - see provenance.h. */
#include "artifact/provenance.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdarg.h>
#include <string.h>

static size_t position(const exf_provenance *p, const char *key)
{
    size_t i = 0;
    while (i < p->n && strcmp(p->key[i], key) < 0) i++;
    return i;
}

const char *exf_provenance_get(const exf_provenance *p, const char *key)
{
    size_t i = position(p, key);
    return i < p->n && strcmp(p->key[i], key) == 0 ? p->value[i] : NULL;
}

static exf_code insert(exf_provenance *p, const char *key, const char *value, exf_err *err)
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
    size_t at = position(p, key);
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
    exf_code rc = exf_text_addv(&value, err, fmt, va);
    va_end(va);
    if (rc == EXF_OK) rc = insert(p, key, value.s, err);
    exf_text_free(&value);
    return rc;
}

exf_code exf_provenance_copy(exf_provenance *to, const exf_provenance *from, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < from->n; i++) rc = insert(to, from->key[i], from->value[i], err);
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

static exf_code write_group(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err)
{
    exf_code rc = exf_h5_group(h, group, err);
    return rc == EXF_OK ? exf_facts_append(p, group, h, err) : rc;
}

exf_code exf_provenance_write(const exf_provenance *p, exf_h5 *h, exf_err *err)
{
    return write_group(p, "/provenance", h, err);
}

exf_code exf_facts_write(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err)
{
    return p->n ? write_group(p, group, h, err) : EXF_OK;
}

typedef struct {
    exf_provenance *p;
    exf_h5 *h;
    const char *group;
} reading;

/* Adds to *out today's name of a fact: older files end the names of some digests in sha256 (provenance.h). */
static exf_code name_today(exf_text *out, const char *name, exf_err *err)
{
    static const char *const digests[] = {"weights_sha256", "tokens_sha256", "sequences_sha256", "statistics_sha256"};
    size_t n = strlen(name) - strlen("sha256");
    for (size_t i = 0; i < sizeof digests / sizeof *digests; i++)
        if (exf_ends_with(name, digests[i])) return exf_text_addf(out, err, "%.*sdigest", (int)n, name);
    return exf_text_addf(out, err, "%s", name);
}

static exf_code read_one(void *self, const char *name, exf_err *err)
{
    reading *r = self;
    char *value = NULL;
    exf_text today = {0};
    exf_code rc;
    EXF_TRY(name_today(&today, name, err));
    EXF_TRY(exf_h5_get_text(r->h, r->group, name, &value, err));
    rc = insert(r->p, today.s, value, err);
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

typedef struct {
    const char *name;
    int listed;
} search;

static exf_code look(void *self, const char *name, exf_err *err)
{
    search *s = self;
    (void)err;
    s->listed |= strcmp(name, s->name) == 0;
    return EXF_OK;
}

exf_code exf_facts_read(exf_provenance *p, const char *group, exf_h5 *h, exf_err *err)
{
    reading r = {p, h, group};
    search s = {group + 1, 0};
    exf_code rc = exf_h5_members(h, "/", look, &s, err);
    return rc == EXF_OK && s.listed ? exf_h5_attrs(h, group, read_one, &r, err) : rc;
}
