/* h5_digest.c - the digest over all objects of a file: its records, those of a file that this process created, and the walk over a
 * file that is read or gone on with; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <string.h>

/* ---- records --------------------------------------------------------------------
 * Every record of the hash starts with a word that says what follows, so that no two payloads give the same bytes. */

static exf_code add_object(exf_hash *hash, const char *path, int is_dataset, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_hash_add_text(hash, "object", err));
    EXF_TRY(exf_hash_add_text(hash, path, err));
    rc = exf_hash_add_text(hash, is_dataset ? "dataset" : "group", err);
out:
    return rc;
}

static exf_code add_attr(exf_hash *hash, const char *name, const exf_h5i_attr_value *v, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_hash_add_text(hash, "attribute", err));
    EXF_TRY(exf_hash_add_text(hash, name, err));
    EXF_TRY(exf_hash_add_text(hash, exf_h5i_kind_name(v->kind), err));
    rc = v->kind == EXF_H5I_TEXT ? exf_hash_add_text(hash, v->text, err) : exf_hash_add_u64(hash, (uint64_t)v->i64, err);
out:
    return rc;
}

static exf_code add_elements(exf_h5 *h, const char *path, const exf_h5i_rows *r, exf_hash *hash, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_hash_add_text(hash, "elements", err));
    EXF_TRY(exf_hash_add_text(hash, exf_dtype_name(r->shape.dtype), err));
    EXF_TRY(exf_hash_add_u64(hash, (uint64_t)r->shape.rank, err));
    for (int i = 0; i < r->shape.rank; i++) EXF_TRY(exf_hash_add_u64(hash, (uint64_t)r->shape.shape[i], err));
    rc = exf_h5i_check_elements(h, path, r, hash, err);
out:
    return rc;
}

/* Refuses a group at the first `len` bytes of a path, in too many others. */
static exf_code fail_depth(const exf_h5 *h, const char *path, int len, exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: %.*s is nested deeper than %d groups", h->path, len, path, EXF_H5I_DEPTH_MAX);
}

/* ---- the objects of a file that was created here ------------------------------------
 * A worker hashes their records and reads elements from their places in the file, while the next objects are made. */

static exf_code hash_made(void *self, exf_err *err)
{
    exf_h5i_made *m = self;
    exf_hash *hash = m->h->hash;
    exf_code rc;
    EXF_TRY(add_object(hash, m->path[0] ? m->path : "/", m->is_dataset, err));
    for (size_t i = 0; i < m->n_attrs; i++) EXF_TRY(add_attr(hash, m->attr[i].name, &m->attr[i].value, err));
    if (m->is_dataset) rc = add_elements(m->h, m->path, &m->r, hash, err);
out:
    return rc;
}

/* Gives the worker all objects until the one at `through` and those within it; NULL: all. */
static exf_code give_made(exf_h5 *h, const char *through, exf_err *err)
{
    exf_code rc = h->hash ? EXF_OK : exf_hash_new(&h->hash, err);
    for (; rc == EXF_OK && h->n_given < h->n_made; h->n_given++) {
        exf_h5i_made *m = h->made[h->n_given];
        const exf_h5i_rows *defined = m->is_dataset ? exf_h5i_find_rows(h, m->path) : NULL;
        if (through && !exf_h5i_is_through(m->path, strlen(m->path), through)) break;
        if (exf_h5i_is_within(m->path, strlen(m->path), "/" EXF_H5_ORIGIN)) continue;
        if (defined) m->r.crc_stored = defined->crc;
        int depth = 0;
        for (const char *c = m->path; *c; c++)
            if (*c == '/' && depth++ == EXF_H5I_DEPTH_MAX) return fail_depth(h, m->path, (int)(c - m->path), err);
        m->given = 1;
        rc = exf_worker_give(&h->hashing, &m->job, hash_made, m, err);
    }
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

static exf_code digest_made(exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err)
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

/* ---- the walk --------------------------------------------------------------------- */

/* The place of a digest's walk. */
typedef struct {
    exf_h5 *h;
    exf_hash *hash;
    const char *path;
    int depth; /* 0: the root */
    hid_t object; /* the one at path, while its attributes are hashed */
} walk;

static exf_code hash_attr(void *self, const char *name, exf_err *err)
{
    walk *w = self;
    exf_h5i_attr_value v;
    exf_code rc;
    if (!exf_h5i_in_digest(w->path, name)) return EXF_OK;
    EXF_TRY(exf_h5i_read_attr(w->h, w->object, w->path, name, &v, err));
    if (v.kind == EXF_H5I_OTHER)
        rc = exf_fail(err, exf_h5i_blame(w->h), "%s: attribute %s of %s is neither a text nor one I64", w->h->path, name, w->path);
    else
        rc = add_attr(w->hash, name, &v, err);
out:
    exf_mem_free(v.text);
    return rc;
}

/* Refuses an object with two names: it could be its own ancestor, and has no one place in the walk; we never write such. */
static exf_code check_only_name(const walk *w, hid_t object, exf_err *err)
{
#if H5_VERSION_GE(1, 12, 0)
    H5O_info2_t info;
    herr_t status = H5Oget_info3(object, &info, H5O_INFO_BASIC);
#else
    H5O_info_t info;
    herr_t status = H5Oget_info2(object, &info, H5O_INFO_BASIC);
#endif
    if (status < 0) return exf_h5i_fail(w->h, err, "cannot look at %s", w->path);
    if (info.rc == 1) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(w->h), "%s: %s is one object under %u names, expected 1", w->h->path, w->path,
                    (unsigned)info.rc);
}

/* Hashes what an object is beside the members of a group: path, kind, attributes, elements. */
static exf_code hash_itself(walk *w, H5I_type_t *kind, exf_err *err)
{
    exf_h5i_rows r;
    exf_code rc = exf_h5i_open(w->h, w->path, &w->object, err);
    if (rc != EXF_OK) return rc;
    *kind = H5Iget_type(w->object);
    EXF_TRY(check_only_name(w, w->object, err));
    if (*kind != H5I_GROUP && *kind != H5I_DATASET) {
        rc = exf_fail(err, exf_h5i_blame(w->h), "%s: %s is neither a group nor a dataset", w->h->path, w->path);
        goto out;
    }
    EXF_TRY(add_object(w->hash, w->path, *kind == H5I_DATASET, err));
    EXF_TRY(exf_h5i_visit_attrs(w->h, w->object, w->path, hash_attr, w, err));
    if (*kind != H5I_DATASET) goto out;
    EXF_TRY(exf_h5i_find_elements(w->h, w->path, w->object, &r, err));
    rc = add_elements(w->h, w->path, &r, w->hash, err);
out:
    H5Oclose(w->object);
    return rc;
}

static exf_code hash_member(void *self, const char *name, exf_err *err);

static exf_code hash_object(walk *w, exf_err *err)
{
    H5I_type_t kind;
    exf_code rc = hash_itself(w, &kind, err);
    return rc == EXF_OK && kind == H5I_GROUP ? exf_h5_members(w->h, w->path, hash_member, w, err) : rc;
}

static exf_code hash_member(void *self, const char *name, exf_err *err)
{
    const walk *up = self;
    exf_text path = {0};
    exf_code rc;
    if (up->depth == 0 && strcmp(name, EXF_H5_ORIGIN) == 0) return EXF_OK;
    if (up->depth == EXF_H5I_DEPTH_MAX) return fail_depth(up->h, up->path, (int)strlen(up->path), err);
    exf_text_appendf(&path, "%s/%s", up->depth ? up->path : "", name);
    EXF_TRY(exf_text_end(&path, err));
    walk w = {up->h, up->hash, path.s, up->depth + 1, H5I_INVALID_HID};
    rc = hash_object(&w, err);
out:
    exf_text_free(&path);
    return rc;
}

exf_code exf_h5_digest(exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_hash *hash = NULL, *whole;
    exf_code rc;
    if (h->n_made) return digest_made(h, hex, err);
    EXF_TRY(exf_hash_new(&hash, err));
    exf_hash_beside(hash);
    walk w = {h, hash, "/", 0, H5I_INVALID_HID};
    EXF_TRY(hash_object(&w, err));
    whole = hash;
    hash = NULL;
    rc = exf_hash_end(whole, hex, err);
out:
    exf_hash_free(hash);
    return rc;
}
