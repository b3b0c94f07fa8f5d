/* golden_run.h - runs a checkpoint under tests/golden and keeps what the forward
 * showed, to be compared with the float32 answers of the reference. */
#ifndef EXF_TESTS_GOLDEN_RUN_H
#define EXF_TESTS_GOLDEN_RUN_H
#include "format/safetensors.h"
#include "pass/forward.h"
#include "kernels/backend.h"

enum { GOLDEN_LAYERS = 64 };

/* Everything one pass showed, rows in batch order; arrays by layer number. */
typedef struct {
    size_t n_rows;
    int top_k, d_model, vocab;
    float *moe_input[GOLDEN_LAYERS], *expert_outputs[GOLDEN_LAYERS], *routed[GOLDEN_LAYERS], *block[GOLDEN_LAYERS],
        *weights[GOLDEN_LAYERS];
    int32_t *ids[GOLDEN_LAYERS];
    float *logits;
} golden_seen;

/* An observer that keeps what it sees of a run of n_rows tokens in *seen. */
exf_observer golden_observer(golden_seen *seen, const exf_model *m, size_t n_rows);
/* Runs batch through the model on a backend, on `threads` workers if it is the
 * CPU's.  Failures fail the test. */
void golden_forward(golden_seen *seen, const exf_model *m, const exf_batch *batch, const exf_backend *backend, exf_compute compute,
                    int threads);
void golden_free(golden_seen *seen);

/* The whole tensor as a fresh array of 4-byte elements; the caller frees. */
void *golden_tensor(const exf_st_file *f, const char *name, size_t *n);
/* ||a - b|| / ||b||. */
double golden_distance(const float *a, const float *b, size_t n);

/* ---- the goldens: tests/golden/<family> ------------------------------------ */
/* A family is added to this list and as a directory. */
extern const char *const golden_families[];
int golden_n_families(void);

typedef struct {
    const char *family;
    exf_model *model;
    exf_st_file *answers;
    int32_t *ids;
    exf_span span[16];
    exf_batch batch;
} golden_case;

void golden_open(golden_case *c, const char *family);
void golden_close(golden_case *c);
/* Every recorded tensor of every layer within `limit` (relative Frobenius) of the
 * reference's float32 answer; ids equal but where weights differ by < tie. */
void golden_compare(const golden_case *c, const golden_seen *s, double limit, float tie);
/* The same for a forward in bfloat16, whose router may choose another expert where
 * scores are close: the outputs of a layer are compared over the tokens that chose
 * the reference's experts in it and in every layer before, the share of those is to
 * be at least `agreement`, and what was found is printed. */
void golden_compare_rounded(const golden_case *c, const golden_seen *s, double limit, double agreement);
#endif
