/* chunk_bytes.h - reads the stored bytes of a weight chunk: for this rank alone, or once for all ranks of its node. */
#ifndef EXF_WEIGHTS_CHUNK_BYTES_H
#define EXF_WEIGHTS_CHUNK_BYTES_H
#include "weights/shared_chunks.h"
#include "weights/weight_plan.h"

/* Return the bytes of a chunk's codes and scales. */
size_t exf_chunk_code_bytes(const exf_weight_chunk *p);
size_t exf_chunk_scale_bytes(const exf_weight_chunk *p);

/* Reads a chunk to `room`, of exf_floats_offset() bytes: codes, then scales.  *read grows by the bytes. */
exf_code exf_chunk_read(const exf_weight_chunk *p, char *room, exf_raw_rows *rows, uint64_t *read, exf_err *err) EXF_CHECKED;
/* Called after exf_shared_chunk_take(): reads the chunk into its slot for all ranks if this one is to, else records what
 * another read.  c->rows.codes is NULL where a chunk is too large for a slot: each rank then reads its own. */
exf_code exf_chunk_share(exf_shared_chunks *s, const exf_weight_chunk *p, exf_shared_chunk *c, uint64_t *read,
                         exf_err *err) EXF_CHECKED;
/* Converts a chunk's bytes to float32 [n_rows, cols]. */
exf_code exf_chunk_decode(const exf_weight_chunk *p, const exf_raw_rows *rows, float *dst, exf_err *err) EXF_CHECKED;
#endif
