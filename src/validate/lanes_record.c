/* lanes_record.c - see lanes_record.h. */
#include "validate/lanes_record.h"

#include "base/mem.h"

#include <string.h>

#define NAME "lanes"
enum { N_ARRAYS = 3 };

exf_code exf_lanes_record_new(exf_lanes_record *k, size_t n_lanes, int n, exf_err *err)
{
    exf_code rc;
    size_t all;
    *k = (exf_lanes_record){.n_lanes = n_lanes, .n = n};
    EXF_TRY(exf_mem_mul(&all, n_lanes, (size_t)n, "lanes", err));
    EXF_TRY(exf_mem_new(&k->error_sq, all, sizeof *k->error_sq, "lanes", err));
    EXF_TRY(exf_mem_new(&k->norm_sq, all, sizeof *k->norm_sq, "lanes", err));
    EXF_TRY(exf_mem_new(&k->usage, all, sizeof *k->usage, "lanes", err));
out:
    return rc;
}

void exf_lanes_record_free(exf_lanes_record *k)
{
    exf_mem_free(k->error_sq);
    exf_mem_free(k->norm_sq);
    exf_mem_free(k->usage);
    memset(k, 0, sizeof *k);
}

static void list_arrays(const exf_lanes_record *k, exf_tensor t[N_ARRAYS])
{
    int64_t lanes = (int64_t)k->n_lanes, n = k->n;
    t[0] = (exf_tensor){.name = "error_sq", .dtype = EXF_DT_U64, .rank = 3, .shape = {lanes, n, 3}, .data = k->error_sq};
    t[1] = (exf_tensor){.name = "norm_sq", .dtype = EXF_DT_U64, .rank = 3, .shape = {lanes, n, 3}, .data = k->norm_sq};
    t[2] = (exf_tensor){.name = "usage", .dtype = EXF_DT_U64, .rank = 3, .shape = {lanes, n, 4}, .data = k->usage};
}

exf_code exf_lanes_record_put(const exf_lanes_record *k, exf_resume *r, int layer, exf_err *err)
{
    exf_tensor t[N_ARRAYS];
    list_arrays(k, t);
    return exf_resume_put(r, NAME, layer, t, N_ARRAYS, err);
}

exf_code exf_lanes_record_get(exf_lanes_record *k, const exf_resume *r, int layer, exf_err *err)
{
    exf_tensor t[N_ARRAYS];
    exf_st_file *f = NULL;
    exf_code rc;
    list_arrays(k, t);
    EXF_TRY(exf_resume_get(r, NAME, layer, &f, err));
    EXF_TRY(exf_resume_read(f, &t[0], k->error_sq, err));
    EXF_TRY(exf_resume_read(f, &t[1], k->norm_sq, err));
    EXF_TRY(exf_resume_read(f, &t[2], k->usage, err));
out:
    exf_st_close(f);
    return rc;
}
