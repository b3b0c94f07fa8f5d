/* device_basis.c - the basis of rows in device memory; see device_basis.h. */
#include "accumulate/device_basis.h"

#include "accumulate/accumulate_internal.h"
#include "base/mem.h"
#include "kernels/linear/linear.h"

#include <math.h>
#include <string.h>

/* Lists the arrays with their sizes: into s, or, with s NULL, their bytes alone. */
static exf_code allocate_arrays(exf_device_basis *s, uint64_t *bytes, size_t h, size_t k, exf_err *err)
{
    exf_device_basis none = {.b = NULL}, *o = s ? s : &none;
    const struct {
        void *out;
        size_t n, size;
    } all[] = {{&o->rows, EXF_RESIDUAL_ROWS * h, sizeof *o->rows},
               {&o->product, h * h, sizeof *o->product},
               {&o->gram, h * h, sizeof *o->gram},
               {&o->sum, h, sizeof *o->sum},
               {&o->start, h * k, sizeof *o->start},
               {&o->subspace, h * k, sizeof *o->subspace},
               {&o->image, h * k, sizeof *o->image},
               {&o->small, k * k, sizeof *o->small},
               {&o->factor, k * k, sizeof *o->factor},
               {&o->ridge, 1, sizeof *o->ridge}};
    exf_code rc = EXF_OK;
    *bytes = 0;
    for (size_t i = 0; rc == EXF_OK && i < sizeof all / sizeof *all; i++) {
        *bytes += (uint64_t)all[i].n * all[i].size;
        if (s) rc = s->b->alloc(all[i].out, all[i].n, all[i].size, "basis", err);
    }
    return rc;
}

uint64_t exf_device_basis_bytes(int d_model, int directions)
{
    uint64_t bytes = 0;
    exf_err none;
    exf_code rc = allocate_arrays(NULL, &bytes, (size_t)d_model, (size_t)exf_basis_columns(directions, d_model), &none);
    return rc == EXF_OK ? bytes : 0;
}

exf_code exf_device_basis_open(exf_device_basis *s, const exf_backend *b, int d_model, int directions, uint64_t seed, exf_err *err)
{
    size_t h = (size_t)d_model, k = (size_t)exf_basis_columns(directions, d_model);
    uint64_t bytes;
    exf_code rc;
    *s = (exf_device_basis){.b = b, .d_model = d_model, .directions = directions, .columns = (int)k, .seed = seed};
    EXF_TRY(allocate_arrays(s, &bytes, h, k, err));
    EXF_TRY(b->gpu->alloc_staging((void *)&s->host, (k * k + h * k) * sizeof *s->host, "basis", err));
out:
    return rc;
}

void exf_device_basis_free(exf_device_basis *s)
{
    void *all[] = {s->rows, s->product, s->gram, s->sum, s->start, s->subspace, s->image, s->small, s->factor, s->ridge};
    for (size_t i = 0; s->b && i < sizeof all / sizeof *all; i++) s->b->free(all[i]);
    if (s->b) s->b->gpu->free_staging(s->host);
    memset(s, 0, sizeof *s);
}

/* Sends the columns that every search starts from, once. */
static void send_start(exf_device_basis *s, exf_queue *q)
{
    size_t n = (size_t)s->d_model * (size_t)s->columns, k = (size_t)s->columns;
    double *host = s->host + k * k;
    if (s->started) return;
    exf_basis_start(host, s->d_model, s->columns, s->seed, 0);
    s->b->upload(q, s->start, host, n * sizeof *host);
    s->started = 1;
}

/* Rotates the subspace to eigenvectors: those of `small`, which the host finds. */
static exf_code rotate(exf_device_basis *s, double *basis, exf_queue *q, const exf_subspace_call *c, exf_err *err)
{
    size_t h = (size_t)s->d_model, k = (size_t)s->columns, r = (size_t)s->directions;
    double *small = s->host, *to = s->host + k * k, *value = NULL;
    exf_code rc;
    s->b->copy(q, small, s->small, k * k * sizeof *small);
    EXF_TRY(s->b->finish(q, err));
    for (size_t i = 0; i < k * k; i++)
        if (!isfinite(small[i])) {
            rc = exf_fail(err, EXF_NUMERIC, "the second moments of the rows that a basis is made from are not finite");
            goto out;
        }
    EXF_TRY(exf_mem_new(&value, k, sizeof *value, "basis", err));
    EXF_TRY(exf_linalg_eigen(small, value, s->columns, err));
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < r; j++) to[i * r + j] = small[i * k + j];
    s->b->copy(q, s->factor, to, k * r * sizeof *to);
    s->b->gpu->subspace_rotate(q, c, s->factor, s->directions);
    s->b->copy(q, to, s->image, h * r * sizeof *to);
    EXF_TRY(s->b->finish(q, err));
    memcpy(basis, to, h * r * sizeof *to);
    exf_basis_choose_signs(basis, s->directions, s->d_model);
out:
    exf_mem_free(value);
    return rc;
}

exf_code exf_device_basis_find(exf_device_basis *s, double *basis, exf_queue *q, exf_residual_call c, size_t n, int about_mean,
                               exf_err *err)
{
    exf_subspace_call to = {.d_model = s->d_model, .columns = s->columns, .n = (int64_t)n, .gram = s->gram,
                            .sum = about_mean ? s->sum : NULL, .start = s->start, .subspace = s->subspace, .image = s->image,
                            .small = s->small, .factor = s->factor, .ridge = s->ridge};
    c.d_model = s->d_model;
    c.rows = s->rows;
    c.product = s->product;
    c.gram = s->gram;
    c.sum = to.sum ? s->sum : NULL;
    send_start(s, q);
    s->b->gpu->residual_moments(q, &c);
    s->b->gpu->subspace_iterate(q, &to, EXF_BASIS_ITERATIONS);
    return rotate(s, basis, q, &to, err);
}
