/* golden_run.h - runs a checkpoint under tests/golden and keeps what the forward
 * showed, to be compared with the float32 answers of the reference. */
#ifndef EXF_TESTS_GOLDEN_RUN_H
#define EXF_TESTS_GOLDEN_RUN_H
#include "format/safetensors.h"
#include "forward/forward.h"

enum { GOLDEN_LAYERS = 64 };

/* Everything one pass showed, rows in batch order; arrays by layer number. */
typedef struct {
    size_t n_rows;
    int top_k, d_model, vocab;
    float *moe_input[GOLDEN_LAYERS], *expert_outputs[GOLDEN_LAYERS], *routed[GOLDEN_LAYERS], *block[GOLDEN_LAYERS], *weights[GOLDEN_LAYERS];
    int32_t *ids[GOLDEN_LAYERS];
    float *logits;
} golden_seen;

/* Runs batch through the model on `threads` workers.  Failures fail the test. */
void golden_forward(golden_seen *seen, const exf_model *m, const exf_batch *batch, int threads);
void golden_free(golden_seen *seen);

/* The whole tensor as a fresh array of 4-byte elements; the caller frees. */
void *golden_tensor(const exf_st_file *f, const char *name, size_t *n);
/* ||a - b|| / ||b||. */
double golden_distance(const float *a, const float *b, size_t n);
#endif
