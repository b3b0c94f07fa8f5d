/* h5_made.c - the record of the objects that this process made in a file that it created; see h5.h.
 *
 * Such a file has no object that was not made here.  A record of each is kept, in the order of the digest's walk, so that the
 * digest needs no word of libhdf5, which serves one thread (h5_digest.c). */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <string.h>

/* ---- places in the walk -------------------------------------------------------- */

/* Returns the rank of a character of a path: the shorter of two names comes first, with all that is in its group. */
static int rank_of(char c)
{
    return c == 0 ? 0 : c == '/' ? 1 : 1 + (unsigned char)c;
}

/* Compares n characters of a path with another path, as the walk comes by them. */
static int compare_paths(const char *path, size_t n, const char *other)
{
    size_t i = 0;
    while (i < n && path[i] == other[i]) i++;
    return rank_of(i < n ? path[i] : 0) - rank_of(other[i]);
}

/* Returns where the object is among those that were made, or where it would be. */
static size_t find_place(const exf_h5 *h, const char *path, size_t n, int *found)
{
    size_t low = 0, high = h->n_made;
    if (n == 1) n = 0; /* the root */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_paths(path, n, h->made[middle]->path) > 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < h->n_made && compare_paths(path, n, h->made[low]->path) == 0;
    return low;
}

int exf_h5i_is_within(const char *path, size_t n, const char *other)
{
    size_t m = strlen(other);
    return n >= m && memcmp(path, other, m) == 0 && (n == m || path[m] == '/');
}

int exf_h5i_is_through(const char *path, size_t n, const char *through)
{
    return compare_paths(path, n, through) <= 0 || exf_h5i_is_within(path, n, through);
}

int exf_h5i_in_digest(const char *object, const char *attr)
{
    if (strcmp(attr, EXF_H5_CHECKSUM) == 0) return 0; /* follows from the elements */
    return strcmp(object, "/") != 0 || strcmp(attr, EXF_H5_CONTAINER) != 0;
}

/* ---- records --------------------------------------------------------------------- */

static exf_code fail_late(const exf_h5 *h, const char *path, int n, exf_err *err)
{
    return exf_fail(err, EXF_INTERNAL, "%s: %.*s is written after the digest came by its place", h->path, n, path);
}

static void free_made(exf_h5i_made *m)
{
    for (size_t i = 0; i < m->n_attrs; i++) {
        exf_mem_free(m->attr[i].name);
        exf_mem_free(m->attr[i].value.text);
    }
    exf_mem_free(m->attr);
    exf_mem_free(m->path);
    exf_mem_free(m);
}

exf_code exf_h5i_note_made(exf_h5 *h, const char *path, int len, const exf_h5i_rows *r, exf_err *err)
{
    size_t n = len > 1 ? (size_t)len : 0, at;
    exf_h5i_made *m = NULL;
    int found;
    exf_code rc;
    if (!h->hashing.open) return EXF_OK;
    at = find_place(h, path, n, &found);
    if (found) return exf_fail(err, EXF_INTERNAL, "%s: %.*s was made before", h->path, len, path);
    if (h->hashed && exf_h5i_is_through(path, n, h->hashed)) return fail_late(h, path, len, err);
    EXF_TRY(exf_mem_grow(&h->made, &h->cap_made, h->n_made + 1, sizeof *h->made, "objects", err));
    EXF_TRY(exf_mem_new(&m, 1, sizeof *m, "object", err));
    EXF_TRY(exf_mem_dup(&m->path, path, n, "object path", err));
    m->h = h;
    m->is_dataset = r != NULL;
    if (r) m->r = *r;
    memmove(h->made + at + 1, h->made + at, (h->n_made++ - at) * sizeof *h->made);
    h->made[at] = m;
    return EXF_OK;
out:
    if (m) free_made(m);
    return rc;
}

exf_h5i_made *exf_h5i_find_made(const exf_h5 *h, const char *path)
{
    int found;
    size_t at = find_place(h, path, strlen(path), &found);
    return found ? h->made[at] : NULL;
}

exf_code exf_h5i_note_attr(exf_h5 *h, const char *object, const char *name, const exf_h5i_attr_value *v, exf_err *err)
{
    exf_h5i_made *m = exf_h5i_find_made(h, object);
    exf_h5i_made_attr a = {.value = {.kind = v->kind, .i64 = v->i64}};
    size_t at = 0;
    exf_code rc;
    if (!m || !exf_h5i_in_digest(object, name)) return EXF_OK;
    if (m->given) return fail_late(h, object, (int)strlen(object), err);
    EXF_TRY(exf_mem_grow(&m->attr, &m->cap_attrs, m->n_attrs + 1, sizeof *m->attr, "attributes", err));
    if (v->text) EXF_TRY(exf_mem_strdup(&a.value.text, v->text, "attribute", err));
    EXF_TRY(exf_mem_strdup(&a.name, name, "attribute", err));
    while (at < m->n_attrs && strcmp(m->attr[at].name, name) < 0) at++;
    memmove(m->attr + at + 1, m->attr + at, (m->n_attrs++ - at) * sizeof *m->attr);
    m->attr[at] = a;
    return EXF_OK;
out:
    exf_mem_free(a.value.text);
    return rc;
}

void exf_h5i_end_made(exf_h5 *h)
{
    exf_worker_close(&h->hashing);
    for (size_t i = 0; i < h->n_made; i++) free_made(h->made[i]);
    exf_mem_free(h->made);
    exf_mem_free(h->hashed);
    exf_hash_free(h->hash);
}
