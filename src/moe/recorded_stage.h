/* recorded_stage.h - sends recorded hidden states to the GPU, block after block, while the
 * experts work on the block before.
 *
 * Several threads read a block's rows into pinned memory, from where they cross on a CUDA
 * stream of their own into one of two buffers in GPU memory, while the experts read the
 * other. */
#ifndef EXF_MOE_RECORDED_STAGE_H
#define EXF_MOE_RECORDED_STAGE_H
#include "kernels/backend.h"
#include "moe/recorded.h"

typedef struct {
    const exf_backend *b;
    exf_queue *q;     /* of the uploads */
    float *host[2];   /* [rows, H] pinned */
    float *device[2]; /* [rows, H] in GPU memory */
    size_t width;     /* H */
    size_t n_blocks;  /* sent so far */
    int threads;
} exf_recorded_stage;

/* Allocates buffers for blocks of at most `rows` rows; s is zero before, and closing a zeroed stage is allowed. */
exf_code exf_recorded_stage_open(exf_recorded_stage *s, const exf_backend *b, exf_compute compute, size_t rows, size_t width,
                                 int threads, exf_err *err) EXF_CHECKED;
void exf_recorded_stage_close(exf_recorded_stage *s);
/* Returns the bytes of GPU memory that a stage holds; it holds as many of pinned memory. */
uint64_t exf_recorded_stage_bytes(size_t rows, size_t width);

/* Sends rows [row, row + n) of the layer to *out in GPU memory.  Work may read them that is queued
 * on q after this call and before the next one. */
exf_code exf_recorded_stage_send(exf_recorded_stage *s, const exf_recorded *r, int layer, size_t row, size_t n, exf_queue *q,
                                 float **out, exf_err *err) EXF_CHECKED;
#endif
