/* hidden.h - the hidden states of all lanes: where they live, and the part of them that
 * is worked on.
 *
 * A lane's are [T, streams, H] float32, in the backend's memory where there is room for
 * them.  Where there is not, they live in pinned host memory, and groups of whole
 * sequences go through two buffers in the backend's: while one is worked on, what was
 * done to the one before goes home and the next one comes, each on a queue of its own,
 * and nothing on the host waits.  Work takes a group and gives it back, in either case;
 * where all are there, one group is the whole run. */
#ifndef EXF_FORWARD_HIDDEN_H
#define EXF_FORWARD_HIDDEN_H
#include "hooks/batch.h"
#include "kernels/backend.h"

typedef struct {
    float *rows; /* [most rows of a group, streams, H] */
    size_t lane, group;
    int full; /* 1: holds that group as it is, at home or, after work, not yet */
} exf_hidden_buffer;

typedef struct {
    const exf_backend *b;
    size_t width; /* floats of a token: streams * H */
    size_t n_rows, n_lanes;
    float **lane; /* [lane][T, streams, H] at home */
    int away;     /* 1: home is pinned host memory */
    exf_sequence_group *group;
    size_t n_groups;
    /* The rest only where they are away. */
    exf_hidden_buffer buffer[2];
    exf_queue *coming, *going;
} exf_hidden;

/* What a group is taken for: to be looked at, to be worked on, to be filled. */
typedef enum { EXF_HIDDEN_READ, EXF_HIDDEN_CHANGE, EXF_HIDDEN_FILL } exf_hidden_use;

/* window: rows that a group may have at most, at least the longest sequence's; 0: all live
 * in b's memory, as one group.  h is zero before. */
exf_code exf_hidden_open(exf_hidden *h, const exf_backend *b, exf_compute compute, const exf_batch *batch, size_t width,
                         size_t n_lanes, size_t window, exf_err *err) EXF_CHECKED;
void exf_hidden_close(exf_hidden *h);
/* Bytes of b's memory and of pinned memory that open will take. */
uint64_t exf_hidden_bytes(const exf_batch *batch, size_t width, size_t n_lanes, size_t window);
uint64_t exf_hidden_host_bytes(const exf_batch *batch, size_t width, size_t n_lanes, size_t window);

/* Pieces of at most `tokens` rows that the groups of such a window are cut into. */
size_t exf_hidden_token_blocks(const exf_batch *batch, size_t window, size_t tokens);

/* The group's rows in b's memory, for work that is queued on q from now on; the next group
 * of the lane is sent for.  Back with the same arguments, before another is taken. */
float *exf_hidden_take(exf_hidden *h, size_t lane, size_t group, exf_hidden_use use, exf_queue *q);
void exf_hidden_give(exf_hidden *h, size_t lane, size_t group, exf_hidden_use use, exf_queue *q);
/* A lane's become another's.  Waits where they are away. */
exf_code exf_hidden_copy(exf_hidden *h, size_t to, size_t from, exf_queue *q, exf_err *err) EXF_CHECKED;
/* Waits until all that was given back is home; a copy that failed is told here, so a pass
 * ends with it. */
exf_code exf_hidden_settle(exf_hidden *h, exf_err *err) EXF_CHECKED;
/* Once settled, rows [row, row + n) of one sequence for what is queued on q from now on, until
 * the next such call. */
const float *exf_hidden_rows(exf_hidden *h, size_t lane, size_t row, size_t n, exf_queue *q);
#endif
