/* h5_made.c - the objects of a file that this process created, and their digest; see h5.h.
 *
 * Such a file has no object that was not made here.  A record of each is kept, in the order of the digest's walk, so that the
 * digest needs no word of libhdf5, which serves one thread: a worker hashes the records and reads elements from their places in
 * the file, while the next objects are made. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <string.h>

typedef struct {
    char *name;
    exf_h5i_attr_value value;
} made_attr;

struct exf_h5i_made {
    exf_h5 *h;
    char *path;            /* "" is the root */
    int is_dataset, given; /* 1: it was given to be hashed */
    exf_h5i_rows r;        /* of a dataset */
    made_attr *attr;       /* by name */
    size_t n_attrs, cap_attrs;
    exf_job job;           /* its hashing */
};

/* ---- records --------------------------------------------------------------------- */

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

/* Returns whether the first n characters of a path lead to another object or within it. */
static int is_within(const char *path, size_t n, const char *other)
{
    size_t m = strlen(other);
    return n >= m && memcmp(path, other, m) == 0 && (n == m || path[m] == '/');
}

/* Returns whether the walk comes by that object until it leaves `through`. */
static int is_through(const char *path, size_t n, const char *through)
{
    return compare_paths(path, n, through) <= 0 || is_within(path, n, through);
}

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

exf_code exf_h5i_begin_made(exf_h5 *h, exf_err *err)
{
    exf_worker_open(&h->hashing);
    return exf_h5i_note_made(h, "/", 1, NULL, err);
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
    if (h->hashed && is_through(path, n, h->hashed)) return fail_late(h, path, len, err);
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

/* Finds a noted object; NULL: the file's objects are not noted. */
static exf_h5i_made *find_made(const exf_h5 *h, const char *path)
{
    int found;
    size_t at = find_place(h, path, strlen(path), &found);
    return found ? h->made[at] : NULL;
}

int exf_h5i_is_made(const exf_h5 *h, const char *path)
{
    return find_made(h, path) != NULL;
}

exf_code exf_h5i_note_attr(exf_h5 *h, const char *object, const char *name, const exf_h5i_attr_value *v, exf_err *err)
{
    exf_h5i_made *m = find_made(h, object);
    made_attr a = {.value = {.kind = v->kind, .i64 = v->i64}};
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

void exf_h5i_note_checksum(exf_h5 *h, const char *path, uint32_t crc)
{
    exf_h5i_made *m = find_made(h, path);
    if (m && !m->given) m->r.crc_stored = crc;
}

void exf_h5i_end_made(exf_h5 *h)
{
    exf_worker_close(&h->hashing);
    for (size_t i = 0; i < h->n_made; i++) free_made(h->made[i]);
    exf_mem_free(h->made);
    exf_mem_free(h->hashed);
    exf_hash_free(h->hash);
}

/* ---- the digest ------------------------------------------------------------------- */

static exf_code hash_made(void *self, exf_err *err)
{
    exf_h5i_made *m = self;
    exf_hash *hash = m->h->hash;
    exf_code rc;
    EXF_TRY(exf_h5i_hash_object(hash, m->path[0] ? m->path : "/", m->is_dataset, err));
    for (size_t i = 0; i < m->n_attrs; i++) EXF_TRY(exf_h5i_hash_attr(hash, m->attr[i].name, &m->attr[i].value, err));
    if (m->is_dataset) rc = exf_h5i_hash_elements(m->h, m->path, &m->r, hash, err);
out:
    return rc;
}

static exf_code check_depth(const exf_h5i_made *m, exf_err *err)
{
    int depth = 0;
    for (const char *c = m->path; *c; c++)
        if (*c == '/' && depth++ == EXF_H5I_DEPTH_MAX) return exf_h5i_fail_depth(m->h, m->path, (int)(c - m->path), err);
    return EXF_OK;
}

/* Gives the worker all objects until the one at `through` and those within it; NULL: all. */
static exf_code give_made(exf_h5 *h, const char *through, exf_err *err)
{
    exf_code rc = h->hash ? EXF_OK : exf_hash_new(&h->hash, err);
    for (; rc == EXF_OK && h->n_given < h->n_made; h->n_given++) {
        exf_h5i_made *m = h->made[h->n_given];
        const exf_h5i_rows *defined = m->is_dataset ? exf_h5i_find_rows(h, m->path) : NULL;
        if (through && !is_through(m->path, strlen(m->path), through)) break;
        if (is_within(m->path, strlen(m->path), "/" EXF_H5_ORIGIN)) continue;
        if (defined) m->r.crc_stored = defined->crc;
        EXF_TRY(check_depth(m, err));
        m->given = 1;
        rc = exf_worker_give(&h->hashing, &m->job, hash_made, m, err);
    }
out:
    return rc;
}

exf_code exf_h5_digest_through(exf_h5 *h, const char *path, exf_err *err)
{
    char *hashed = NULL;
    exf_code rc;
    if (!h->n_made) return exf_fail(err, EXF_INTERNAL, "%s: was not begun here, and is hashed when it is complete", h->path);
    EXF_TRY(exf_mem_strdup(&hashed, path, "path of an object", err));
    exf_mem_free(h->hashed);
    h->hashed = hashed;
    rc = give_made(h, path, err);
out:
    return rc;
}

exf_code exf_h5i_digest_made(exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_hash *whole;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(give_made(h, NULL, err));
    EXF_TRY(exf_worker_wait(&h->hashing, 0, err));
    whole = h->hash;
    h->hash = NULL;
    exf_mem_free(h->hashed);
    h->hashed = NULL;
    for (; h->n_given > 0; h->n_given--) h->made[h->n_given - 1]->given = 0; /* another digest begins anew */
    rc = exf_hash_end(whole, hex, err);
out:
    return rc;
}
