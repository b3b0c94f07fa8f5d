/* naive_fold.h - folding in double, row by row and batch by batch, written from the
 * formulas (method, sections 3, 8, 9 and 10) and not from the kernels. */
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
    int inside[NAIVE_E], first;   /* the static pool's members, and the first of them */
    int member[NAIVE_E];          /* its members in the file's order */
    double lambda, sensitivity, factor, tau; /* of a budget, and of skip: a_l, a_l over the mean of all layers, threshold */
} naive_layer;

typedef struct {
    int id[NAIVE_K]; /* -1: none */
    double w[NAIVE_K];
    double gate[NAIVE_E], choice[NAIVE_E]; /* the router's scores; 0 where nothing reads them */
} naive_row;

/* Layer `index` of the tables, with the scalars of a projector and what else the variant reads; pool 0: none. */
naive_layer naive_layer_of(const exf_tables *t, int index, const exf_projector *projector, int pool, const exf_variant *v);
/* Fills a row's scores from a softmax router's logits [E] and its bias [E] or NULL. */
void naive_scores(naive_row *row, const float *logits, const float *bias, int n_experts);
/* Takes the tables' losses of Frobenius norm in place of the others. */
void naive_by_frobenius(naive_layer *l, const exf_tables *t, int index);
/* The row's slots by falling rank, slots without an expert last. */
naive_row naive_ranked(const naive_row *row, const naive_layer *l, exf_fold_rank rank);
/* A prefill row; slot: of the row's first slot in the run, for random. */
void naive_prefill(naive_row *row, const naive_layer *l, const exf_variant *v, int layer, size_t slot);
/* A decode batch of n rows; slot [n]: of each row's first slot in the run, for random. */
void naive_decode(naive_row *row, int n, const naive_layer *l, const exf_variant *v, int layer, const size_t *slot);
/* The limit that an option `max_loss` of exfold/fold.h means. */
double naive_limit(float max_loss);
#endif
