/* naive_fold.h - folding in double, row by row and batch by batch, written from the
 * formulas (method, sections 3 and 8) and not from the kernels. */
#ifndef EXF_TESTS_NAIVE_FOLD_H
#define EXF_TESTS_NAIVE_FOLD_H
#include "artifact/tables.h"
#include "fold/variant.h"

enum { NAIVE_K = 8, NAIVE_E = 16 };

/* One layer; S and L as the variant's projector has them. */
typedef struct {
    int n_experts, top_k;
    double coeff[NAIVE_E][NAIVE_E], loss[NAIVE_E][NAIVE_E], cosine[NAIVE_E][NAIVE_E], similarity[NAIVE_E][NAIVE_E];
    double norm[NAIVE_E], rms[NAIVE_E];
    int target[NAIVE_E];          /* of a static pool */
    double scale[NAIVE_E];
} naive_layer;

typedef struct {
    int id[NAIVE_K]; /* -1: none */
    double w[NAIVE_K];
} naive_row;

/* Layer `index` of the tables, with the scalars of a projector and the pool of a size, 0: none. */
naive_layer naive_layer_of(const exf_tables *t, int index, const exf_projector *projector, int pool);
/* The row's slots by falling rank, slots without an expert last. */
naive_row naive_ranked(const naive_row *row, const naive_layer *l, exf_fold_rank rank);
/* A prefill row; slot: of the row's first slot in the run, for random. */
void naive_prefill(naive_row *row, const naive_layer *l, const exf_variant *v, int layer, size_t slot);
/* A decode batch of n rows. */
void naive_decode(naive_row *row, int n, const naive_layer *l, const exf_variant *v);
/* The limit that an option `max_loss` of exfold/fold.h means. */
double naive_limit(float max_loss);
#endif
