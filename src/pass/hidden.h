/* hidden.h - storage of the hidden states of all lanes, and access to them group by group.
 *
 * A lane's hidden states are [T, streams, H] float32.  If they fit, they stay in the
 * backend's memory and one group is the whole run.  Otherwise they stay in pinned host
 * memory: a group of whole sequences is uploaded to one of two GPU buffers, computed on and
 * downloaded again.  While one group is computed on, the group before is downloaded and the
 * next one uploaded, each on a queue of its own; the host waits for none of it. */
#ifndef EXF_PASS_HIDDEN_H
#define EXF_PASS_HIDDEN_H
#include "kernels/backend.h"
#include "pass/batch.h"

typedef struct {
    float *rows; /* [most rows of a group, streams, H] */
    size_t lane, group;
    int valid; /* 1: rows has the newest values of that group of that lane; host memory may have older ones */
} exf_hidden_buffer;

typedef struct {
    const exf_backend *b;
    size_t width; /* floats of a token: streams * H */
    size_t n_rows, n_lanes;
    float **lane; /* [lane][T, streams, H] in pinned host memory if host_resident, else in b's memory */
    int host_resident; /* 1: hidden states stay in pinned host memory between uses */
    exf_sequence_group *group;
    size_t n_groups;
    /* Buffers and copy queues are used only if host_resident. */
    exf_hidden_buffer buffer[2];
    exf_queue *to_gpu, *to_host;
} exf_hidden;

/* The caller reads a group's rows, reads and updates them, or overwrites all of them. */
typedef enum { EXF_HIDDEN_READ, EXF_HIDDEN_CHANGE, EXF_HIDDEN_FILL } exf_hidden_use;

/* Allocates the storage.  window: the most rows of a group, at least those of the longest
 * sequence; 0: all rows stay in b's memory, as one group.  h need not be initialised. */
exf_code exf_hidden_open(exf_hidden *h, const exf_backend *b, exf_compute compute, const exf_batch *batch, size_t width,
                         size_t n_lanes, size_t window, exf_err *err) EXF_CHECKED;
void exf_hidden_close(exf_hidden *h);
/* Returns the bytes of b's memory, and sets *host to those of pinned memory, that exf_hidden_open() allocates. */
uint64_t exf_hidden_bytes(const exf_batch *batch, size_t width, size_t n_lanes, size_t window, uint64_t *host);

/* The number of pieces of at most `tokens` rows into which the groups of such a window are cut. */
size_t exf_hidden_token_blocks(const exf_batch *batch, size_t window, size_t tokens);

/* exf_hidden_take() returns the group's rows in b's memory, for work queued on q afterwards, and
 * starts the upload of the lane's next group.  exf_hidden_give() starts the download of changed
 * rows; it is called with the same arguments before another group is taken. */
float *exf_hidden_take(exf_hidden *h, size_t lane, size_t group, exf_hidden_use use, exf_queue *q);
void exf_hidden_give(exf_hidden *h, size_t lane, size_t group, exf_hidden_use use, exf_queue *q);
/* Copies the hidden states of lane `from` to lane `to`; waits for q if they are in host memory. */
exf_code exf_hidden_copy(exf_hidden *h, size_t to, size_t from, exf_queue *q, exf_err *err) EXF_CHECKED;
/* Waits for all uploads and downloads and reports a copy that failed, so a pass ends with
 * this call. */
exf_code exf_hidden_settle(exf_hidden *h, exf_err *err) EXF_CHECKED;
/* Returns rows [row, row + n) of one sequence in b's memory, for work queued on q before the next
 * such call; exf_hidden_settle() was called before. */
const float *exf_hidden_rows(exf_hidden *h, size_t lane, size_t row, size_t n, exf_queue *q);
#endif
