/* recorded.h - normed hidden states, and optionally routes, that another program recorded, in place of a pass.
 *
 * On a GPU they are sent block after block, while the experts work on the block before: several threads read a
 * block's rows into pinned memory, from where they cross on a CUDA stream of their own into one of two buffers in
 * GPU memory, while the experts read the other. */
#ifndef EXF_PASS_RECORDED_H
#define EXF_PASS_RECORDED_H
#include "base/err.h"
#include "kernels/backend.h"
#include "model/model.h"

/* Rows are numbered over the whole batch; the functions are called from several threads. */
typedef struct {
    unsigned char has_input[EXF_MAX_LAYERS];  /* by the model's layer number; 1: the layer is replayed */
    unsigned char has_routes[EXF_MAX_LAYERS]; /* 1: routes are recorded; 0: the router runs */
    void *self;
    /* Reads rows [row, row + n) of the input of router and experts of a layer: dst [n, H], finite. */
    exf_code (*input)(void *self, int layer, size_t row, size_t n, float *dst, exf_err *err);
    /* Reads recorded routes: ids [n, K], distinct in [0, E) or -1, and weights [n, K]. */
    exf_code (*routes)(void *self, int layer, size_t row, size_t n, int32_t *ids, float *weights, exf_err *err);
} exf_recorded;

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
