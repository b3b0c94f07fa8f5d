/* h5_running.c - the digest of a file that is being written; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* So many members are hashed with each that is added: those that waited for it follow little by little. */
enum { AT_ONCE = 2 };

struct exf_h5_running {
    exf_hash *hash;
    char *group;
    char **name;   /* [n] in the order of the digest */
    char *added;   /* [n] 1: complete */
    size_t n, next; /* next: how many are hashed */
    int begun;     /* 1: the root's head and the group's are hashed */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

exf_code exf_h5_running_new(exf_h5_running **out, const char *group, const char *const *names, size_t n, exf_err *err)
{
    exf_h5_running *r = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "digest", err));
    EXF_TRY(exf_mem_strdup(&r->group, group, "digest", err));
    EXF_TRY(exf_mem_new(&r->name, n, sizeof *r->name, "digest", err));
    EXF_TRY(exf_mem_new(&r->added, n, 1, "digest", err));
    for (; r->n < n; r->n++) EXF_TRY(exf_mem_strdup(&r->name[r->n], names[r->n], "digest", err));
    if (n) qsort(r->name, n, sizeof *r->name, by_name);
    rc = exf_hash_new(&r->hash, err);
out:
    if (rc != EXF_OK)
        exf_h5_running_free(r);
    else
        *out = r;
    return rc;
}

void exf_h5_running_free(exf_h5_running *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n; i++) exf_mem_free(r->name[i]);
    exf_hash_free(r->hash);
    exf_mem_free(r->group);
    exf_mem_free(r->name);
    exf_mem_free(r->added);
    exf_mem_free(r);
}

/* ---- the walk over the root ------------------------------------------------------------------ */

typedef struct {
    exf_h5i_walk at;
    const exf_h5_running *r;
    int side; /* of the group on which members are hashed: below 0 before it, above 0 behind it */
} part;

static exf_code hash_on_side(void *self, const char *name, exf_err *err)
{
    part *p = self;
    int side = strcmp(name, p->r->group);
    return (side < 0) == (p->side < 0) && side != 0 ? exf_h5i_hash_member(&p->at, name, err) : EXF_OK;
}

static exf_code hash_side(const exf_h5_running *r, exf_h5 *h, int side, exf_err *err)
{
    part p = {{h, r->hash, "/", 0}, r, side};
    return exf_h5_members(h, "/", hash_on_side, &p, err);
}

/* Hashes the head of an object, "" the root or "/NAME" a group of it. */
static exf_code hash_head(const exf_h5_running *r, exf_h5 *h, const char *path, exf_err *err)
{
    exf_h5i_walk at = {h, r->hash, *path ? path : "/", *path != 0};
    int is_group;
    return exf_h5i_hash_head(&at, &is_group, err);
}

static exf_code begin(exf_h5_running *r, exf_h5 *h, const char *path, exf_err *err)
{
    exf_code rc;
    if (r->begun) return EXF_OK;
    r->begun = 1;
    EXF_TRY(hash_head(r, h, "", err));
    EXF_TRY(hash_side(r, h, -1, err));
    rc = hash_head(r, h, path, err);
out:
    return rc;
}

/* Hashes members that are complete, up to the first that is not and up to so many. */
static exf_code hash_ready(exf_h5_running *r, exf_h5 *h, size_t most, exf_err *err)
{
    exf_text path = {0};
    exf_code rc;
    EXF_TRY(exf_text_addf(&path, err, "/%s", r->group));
    EXF_TRY(begin(r, h, path.s, err));
    exf_h5i_walk at = {h, r->hash, path.s, 1};
    for (; most > 0 && r->next < r->n && r->added[r->next]; r->next++, most--)
        EXF_TRY(exf_h5i_hash_member(&at, r->name[r->next], err));
out:
    exf_text_free(&path);
    return rc;
}

exf_code exf_h5_running_add(exf_h5_running *r, exf_h5 *h, const char *name, exf_err *err)
{
    char *const *found = bsearch(&name, r->name, r->n, sizeof *r->name, by_name);
    size_t i = found ? (size_t)(found - r->name) : 0;
    if (!found || r->added[i])
        return exf_fail(err, EXF_INTERNAL, "%s: /%s/%s is %s", h->path, r->group, name,
                        found ? "added to the digest twice" : "not among the members of the digest");
    r->added[i] = 1;
    return hash_ready(r, h, AT_ONCE, err);
}

exf_code exf_h5_running_end(exf_h5_running *r, exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_hash *hash;
    exf_code rc;
    EXF_TRY(hash_ready(r, h, r->n, err));
    if (r->next < r->n)
        return exf_fail(err, EXF_INTERNAL, "%s: /%s/%s is missing from the digest", h->path, r->group, r->name[r->next]);
    EXF_TRY(hash_side(r, h, 1, err));
    hash = r->hash;
    r->hash = NULL;
    rc = exf_hash_end(hash, hex, err);
out:
    return rc;
}
