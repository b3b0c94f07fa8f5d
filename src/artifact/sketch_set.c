/* sketch_set.c - the sketches of the documents that an artifact is of: put together, written and read; see sketch_set.h. */
#include "artifact/sketch_set.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char dataset[] = "/document_sketches";

static int rising(const void *a, const void *b)
{
    return memcmp(a, b, EXF_SKETCH_BYTES);
}

exf_code exf_sketch_set_add(exf_sketch_set *s, const unsigned char (*sketch)[EXF_SKETCH_BYTES], size_t n, exf_err *err)
{
    unsigned char (*all)[EXF_SKETCH_BYTES] = NULL;
    size_t kept = 0;
    if (n == 0) return EXF_OK;
    exf_code rc = exf_mem_new(&all, s->n + n, sizeof *all, "sketches of documents", err);
    if (rc != EXF_OK) return rc;
    if (s->n) memcpy(all, s->sketch, s->n * sizeof *all);
    memcpy(all + s->n, sketch, n * sizeof *all);
    qsort(all, s->n + n, sizeof *all, rising);
    for (size_t i = 0; i < s->n + n && kept < EXF_MOST_SKETCHES; i++)
        if (kept == 0 || rising(all[kept - 1], all[i]) != 0) memmove(all[kept++], all[i], sizeof *all);
    exf_sketch_set_free(s);
    *s = (exf_sketch_set){kept, all};
    return EXF_OK;
}

exf_code exf_sketch_set_join(exf_sketch_set *s, const exf_sketch_set *other, exf_err *err)
{
    return exf_sketch_set_add(s, (const unsigned char (*)[EXF_SKETCH_BYTES])other->sketch, other->n, err);
}

int exf_sketch_set_same(const exf_sketch_set *a, const exf_sketch_set *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->sketch, b->sketch, a->n * sizeof *a->sketch) == 0);
}

exf_code exf_sketch_set_write(const exf_sketch_set *s, exf_h5 *h, exf_err *err)
{
    const exf_tensor sketches = {
        .name = dataset, .dtype = EXF_DT_U8, .rank = 2, .shape = {(int64_t)s->n, EXF_SKETCH_BYTES}, .data = s->sketch};
    return s->n ? exf_h5_write(h, &sketches, err) : EXF_OK;
}

exf_code exf_sketch_set_read(exf_sketch_set *s, exf_h5 *h, exf_err *err)
{
    exf_tensor found;
    int is_there;
    exf_code rc;
    EXF_TRY(exf_h5_exists(h, dataset, &is_there, err));
    if (!is_there) goto out;
    EXF_TRY(exf_h5_describe(h, dataset, &found, err));
    const exf_tensor sketches = {.name = dataset, .dtype = EXF_DT_U8, .rank = 2, .shape = {found.shape[0], EXF_SKETCH_BYTES}};
    EXF_TRY(exf_h5_expect(h, &sketches, err)); /* before memory is taken for so many */
    if (found.shape[0] < 1 || found.shape[0] > EXF_MOST_SKETCHES) {
        rc = exf_fail(err, EXF_FORMAT, "%s: %s has %lld rows, expected 1 to %d", exf_h5_path(h), dataset, (long long)found.shape[0],
                      EXF_MOST_SKETCHES);
        goto out;
    }
    EXF_TRY(exf_mem_new(&s->sketch, (size_t)found.shape[0], sizeof *s->sketch, "sketches of documents", err));
    s->n = (size_t)found.shape[0];
    EXF_TRY(exf_h5_read(h, &sketches, s->sketch, err));
    for (size_t i = 1; rc == EXF_OK && i < s->n; i++)
        if (rising(s->sketch[i - 1], s->sketch[i]) >= 0)
            rc = exf_fail(err, EXF_FORMAT, "%s: %s[%zu] does not come after row %zu, expected rising rows", exf_h5_path(h),
                          dataset, i, i - 1);
out:
    if (rc != EXF_OK) exf_sketch_set_free(s);
    return rc;
}

void exf_sketch_set_free(exf_sketch_set *s)
{
    exf_mem_free(s->sketch);
    *s = (exf_sketch_set){0};
}
