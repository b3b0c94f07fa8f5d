/* fold_rewriter_internal.h - what the parts of a fold rewriter share: fold_rewriter.c, fold_prefill.c,
 * fold_decode.c, fold_vectors.c. */
#ifndef EXF_FOLD_FOLD_REWRITER_INTERNAL_H
#define EXF_FOLD_FOLD_REWRITER_INTERNAL_H
#include "fold/fold_rewriter.h"

struct exf_fold_rewriter {
    exf_rewriter rewriter;
    const exf_variant *v; /* NULL: only counts */
    const exf_tables *t;
    const exf_architecture *a;
    const exf_decode_schedule *schedule;
    int table_of[EXF_MAX_LAYERS]; /* the model's layer number -> index in the tables, -1: none */
    int layer_of[EXF_MAX_LAYERS]; /* number of the MoE layer -> the model's layer number */
    float *prefill_coeff, *decode_coeff; /* [L, E, E] of a shared scalar; NULL: the pairs' */
    const float *prefill_loss, *decode_loss; /* [L, E, E] */
    const exf_static_pool *pool;         /* static */
    unsigned char *retained;         /* [L, E] reap */
    int32_t *vector_of;           /* [L, E, E] a pair's number among the vectors, -1: none */
    const exf_lowrank *lowrank;   /* projector=lowrank */
    exf_expert_usage *usage;           /* [MoE layers] */
    int32_t *ids;                 /* [decode rows, K] gathered by step */
    float *weights;
    unsigned char *seen;          /* [E] scratch of the expert usage */
};

/* One layer's tables as the kernels take them. */
exf_fold_tables exf_fold_rewriter_tables(const exf_fold_rewriter *f, int index, const float *coeff, const float *loss);

/* Rewrites the prefill positions, or the decode positions, of all routes. */
exf_code exf_fold_prefill_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err) EXF_CHECKED;
exf_code exf_fold_decode_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err) EXF_CHECKED;

/* Finds the vectors that the variant asks for, and a pair's place among them. */
exf_code exf_fold_vectors_open(exf_fold_rewriter *f, exf_err *err) EXF_CHECKED;
/* exf_rewriter.correct: adds w (d * v) or w (S v + (v Q) C) of every omitted route. */
exf_code exf_fold_vectors_correct(void *self, const exf_moe_block *b, float *routed, exf_err *err) EXF_CHECKED;

exf_code exf_fold_failed(const exf_fold_rewriter *f, exf_fold_status status, const char *what, exf_err *err) EXF_CHECKED;
#endif
