/* chunk_bytes.c - see chunk_bytes.h. */
#include "weights/chunk_bytes.h"

size_t exf_chunk_code_bytes(const exf_weight_chunk *p)
{
    return exf_weight_source_code_bytes(&p->at.w, p->n_rows, p->at.cols);
}

size_t exf_chunk_scale_bytes(const exf_weight_chunk *p)
{
    return exf_weight_source_scale_bytes(&p->at.w, p->n_rows, p->at.cols);
}

static exf_code read_to(const exf_weight_chunk *p, char *codes, char *scales, exf_raw_rows *rows, uint64_t *read, exf_err *err)
{
    *read += exf_chunk_code_bytes(p) + exf_chunk_scale_bytes(p);
    return exf_weight_source_raw(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols, codes, scales, rows, err);
}

exf_code exf_chunk_read(const exf_weight_chunk *p, char *room, exf_raw_rows *rows, uint64_t *read, exf_err *err)
{
    return read_to(p, room, room + exf_scales_offset(exf_chunk_code_bytes(p)), rows, read, err);
}

/* Reads a chunk into its slot for all ranks of the node, unless it is too large. */
static exf_code read_for_all(exf_shared_chunks *s, const exf_weight_chunk *p, exf_shared_chunk *c, uint64_t *read, exf_err *err)
{
    exf_code rc = EXF_OK;
    c->rows = (exf_raw_rows){.codes = NULL};
    if (exf_shared_chunk_fits(exf_chunk_code_bytes(p), exf_chunk_scale_bytes(p)))
        EXF_TRY(read_to(p, c->at, exf_shared_chunk_scales(c), &c->rows, read, err));
    exf_shared_chunk_filled(s, c);
out:
    return rc;
}

exf_code exf_chunk_share(exf_shared_chunks *s, const exf_weight_chunk *p, exf_shared_chunk *c, uint64_t *read, exf_err *err)
{
    if (c->reads) return read_for_all(s, p, c, read, err);
    return c->rows.codes ? exf_weight_source_took(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols, &c->rows, err) : EXF_OK;
}

exf_code exf_chunk_decode(const exf_weight_chunk *p, const exf_raw_rows *rows, float *dst, exf_err *err)
{
    return exf_weight_source_decode(&p->at.w, rows, p->at.row + p->row, p->n_rows, p->at.cols, dst, err);
}
