/* registry.c - finds names in lists, and the nearest of those there are; see registry.h. */
#include "base/registry.h"

#include "base/mem.h"

#include <string.h>

enum { NEAREST_MAX = 64 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b
 * (optimal string alignment); words longer than a key are far. */
static size_t edit_distance(const char *a, const char *b)
{
    static const size_t far = NEAREST_MAX + 1;
    size_t la = strlen(a), lb = strlen(b), row[3][NEAREST_MAX + 1]; /* of i, i-1, i-2 by i % 3 */
    if (la > NEAREST_MAX || lb > NEAREST_MAX) return far;
    for (size_t j = 0; j <= lb; j++) row[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            now[j] = least(least(up[j], now[j - 1]) + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = least(now[j], up2[j - 2] + 1);
        }
    }
    return row[la % 3][lb];
}

const char *exf_nearest(const char *word, const char *const *candidates)
{
    const char *best = NULL;
    size_t fewest = strlen(word) / 3 + 1;
    for (; *candidates; candidates++) {
        size_t d = edit_distance(word, *candidates);
        if (d < fewest || (d == fewest && !best)) {
            fewest = d;
            best = *candidates;
        }
    }
    return best;
}

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

/* Adds `(known: a, b)`, and `; did you mean "a"?` where one is near to `name`. */
static exf_code list_known(exf_text *out, const exf_registry *d, const char *name, exf_err *err)
{
    const char **names = NULL, *near;
    size_t n = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&names, d->n + 1, sizeof *names, "names", err));
    exf_text_appendf(out, "(known: ");
    for (size_t i = 0; i < d->n; i++) {
        if (!counts(d, i)) continue;
        exf_text_appendf(out, "%s%s", n ? ", " : "", name_of(d->entry[i]));
        names[n++] = name_of(d->entry[i]);
    }
    exf_text_appendf(out, ")");
    near = exf_nearest(name, names);
    if (near) exf_text_appendf(out, "; did you mean \"%.80s\"?", near);
    rc = exf_text_end(out, err);
out:
    exf_mem_free(names);
    return rc;
}

exf_code exf_registry_require(const void **out, const exf_registry *d, const char *where, const char *name, exf_err *err)
{
    exf_text known = {0};
    *out = exf_registry_find(d, name);
    if (*out) return EXF_OK;
    exf_code rc = list_known(&known, d, name, err);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_USAGE, "%s: \"%s\" is not known %s", where, name, known.s);
    exf_text_free(&known);
    return rc;
}
