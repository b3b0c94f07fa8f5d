/* registry.c - see registry.h. */
#include "base/registry.h"

#include "base/mem.h"

#include <string.h>

static const char *name_of(const void *entry)
{
    return *(const char *const *)entry;
}

static int counts(const exf_registry *d, size_t i)
{
    return !d->counts || d->counts(d->entry[i]);
}

const void *exf_registry_find(const exf_registry *d, const char *name)
{
    for (size_t i = 0; i < d->n; i++)
        if (counts(d, i) && strcmp(name_of(d->entry[i]), name) == 0) return d->entry[i];
    return NULL;
}

exf_code exf_registry_known(exf_text *out, const exf_registry *d, const char *word, const char *name, exf_err *err)
{
    const char **names = NULL, *near;
    size_t n = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&names, d->n + 1, sizeof *names, "names", err));
    EXF_TRY(exf_text_addf(out, err, "(%s: ", word));
    for (size_t i = 0; i < d->n; i++) {
        if (!counts(d, i)) continue;
        EXF_TRY(exf_text_addf(out, err, "%s%s", n ? ", " : "", name_of(d->entry[i])));
        names[n++] = name_of(d->entry[i]);
    }
    EXF_TRY(exf_text_addf(out, err, ")"));
    near = exf_nearest(name, names);
    if (near) EXF_TRY(exf_text_addf(out, err, "; did you mean \"%.80s\"?", near));
out:
    exf_mem_free(names);
    return rc;
}

exf_code exf_registry_require(const void **out, const exf_registry *d, const char *where, const char *name, exf_err *err)
{
    exf_text known = {0};
    *out = exf_registry_find(d, name);
    if (*out) return EXF_OK;
    exf_code rc = exf_registry_known(&known, d, "known", name, err);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_USAGE, "%s: \"%s\" is not known %s", where, name, known.s);
    exf_text_free(&known);
    return rc;
}
