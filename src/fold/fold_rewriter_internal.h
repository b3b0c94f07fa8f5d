/* fold_rewriter_internal.h - the fold rewriter's state, shared by fold_*.c. */
#ifndef EXF_FOLD_FOLD_REWRITER_INTERNAL_H
#define EXF_FOLD_FOLD_REWRITER_INTERNAL_H
#include "fold/fold_rewriter.h"
#include "kernels/backend.h"

/* Arrays in device memory, which holds the tables of one layer at a time, the one that is computed; those of length 0 are
 * NULL. */
enum {
    EXF_CORRECT_COEFF,
    EXF_CORRECT_LOSS,
    EXF_CORRECT_NORMS,
    EXF_CORRECT_PAIR,
    EXF_CORRECT_DIAGONAL,
    EXF_CORRECT_C,
    EXF_CORRECT_BASIS,
    EXF_CORRECT_PREFILL,
    EXF_CORRECT_WORKSPACE,
    EXF_CORRECT_ARRAYS
};

typedef struct {
    const exf_backend *b; /* NULL: the pass does not run on a device */
    exf_queue *q;         /* queue of the last block; NULL: no block yet */
    int index;            /* index of the layer whose tables are on the device; -1: none */
    void *array[EXF_CORRECT_ARRAYS];
    unsigned char *prefill; /* [T of the run] in host memory: 1 if a token is prefill; NULL: all tokens are */
} exf_device_corrections;

void exf_device_corrections_free(exf_device_corrections *c); /* accepts zeroed memory */

/* The arrays of one layer that folds read, from their host arrays to one piece of GPU memory. */
enum {
    EXF_FOLD_PREFILL_COEFF,
    EXF_FOLD_PREFILL_LOSS,
    EXF_FOLD_DECODE_COEFF,
    EXF_FOLD_DECODE_LOSS,
    EXF_FOLD_NORMS,
    EXF_FOLD_COSINE,
    EXF_FOLD_RMS,
    EXF_FOLD_RELATIVE_NORMS,
    EXF_FOLD_TARGET_IDS,
    EXF_FOLD_TARGET_SCALE,
    EXF_FOLD_MEMBERS,
    EXF_FOLD_LAYER_ARRAYS
};

/* What a variant needs to fold in GPU memory, and the counters of what runs. */
typedef struct {
    const exf_backend *b;    /* NULL: the pass does not run on a device */
    int index;               /* index of the layer whose tables are there; -1: none */
    unsigned char *sent, *tables; /* that layer's arrays in staging memory, and on the device */
    exf_route_steps *steps;  /* [n_counted] */
    unsigned char *prefill;  /* [T] NULL: every row is prefill */
    void *workspace;         /* NULL: nothing is folded */
    uint64_t *count;         /* [MoE layers, 1 + n_counted] distinct experts of all rows, and of the steps of each schedule */
    uint64_t *counted;       /* the same in staging memory: complete when the layer is */
    unsigned char *layers;   /* [MoE layers] 1: the layer was counted there */
    float *basis, *theta;    /* the tables' norm head; NULL: no norms are predicted */
    uint16_t *rows;          /* V as rows (norm_head.h) */
    float *norms;            /* [T, K] that it predicts of the layer's routes, */
    int32_t *routed;         /* [T, K] which are these */
    uint64_t *bad, *bad_there; /* the smallest row with a norm that is none, in staging memory and on the device */
} exf_device_fold;

struct exf_fold_rewriter {
    exf_rewriter rewriter;
    const exf_variant *v; /* NULL: only counts */
    const exf_tables *t;
    const exf_architecture *a;
    const exf_decode_schedule *schedule;
    int table_of[EXF_MAX_LAYERS]; /* the model's layer number -> index in the tables, -1: none */
    int layer_of[EXF_MAX_LAYERS]; /* number of the MoE layer -> the model's layer number */
    float *prefill_coeff, *decode_coeff; /* [L, E, E] of a shared scalar; NULL: the pairs' own */
    const float *prefill_loss, *decode_loss; /* [L, E, E] */
    const exf_budget *budget;            /* of a variant that asks for one, or whose factor is one's */
    double lambda;                       /* its threshold, by mean norms or by predicted ones */
    double mean_scale;                   /* mean of its layers' sensitivities; 1 for factors that add up to 1 */
    float *scores;                       /* [threads, 2, widest, E] choice and gate scores of a decode step; NULL: not read */
    int32_t *routed_ids;                 /* [T, K] the router's choice of the layer, and the norms that the head predicts of it; */
    float *norms;                        /* NULL: mean norms are read alone */
    const exf_static_pool *pool;         /* the static pool of a variant that has one */
    unsigned char *retained;         /* [L, E] experts that reap retains */
    int32_t *vector_of;           /* [L, E, E] a pair's number among the vectors, -1: none */
    float *basis;                 /* [L, R, H] the columns of the projector's basis as rows */
    exf_correction_tables vectors; /* diagonal, c, rank and scalar, of all layers */
    exf_device_corrections on_device; /* used if the pass runs on a device */
    exf_device_fold device_fold;      /* the same */
    const exf_decode_schedule *counted; /* [n_counted] whose steps are counted */
    int n_counted, n_moe_layers;
    exf_expert_usage *usage;           /* [n_counted, MoE layers] */
    int32_t *ids;                 /* [decode rows, K] gathered by step */
    float *weights, *step_norms;  /* step_norms NULL: mean norms */
    unsigned char *seen;          /* [E] scratch of the expert usage */
};

/* ---- fold_status.c ----------------------------------------------------------------------------------- */

/* Returns one layer's tables in the form that kernels take. */
exf_fold_tables exf_fold_rewriter_tables(const exf_fold_rewriter *f, int index, const float *coeff, const float *loss);
/* Turns a status of exfold/fold.h into an error with the values that disagree: EXF_MODEL or
 * EXF_USAGE naming the limit, EXF_INTERNAL for inconsistent arguments, EXF_DEVICE for a failed
 * launch. */
typedef enum { EXF_FOLD_PHASE_PREFILL, EXF_FOLD_PHASE_DECODE } exf_fold_phase;
exf_code exf_fold_failed(const exf_fold_rewriter *f, exf_fold_status status, exf_fold_phase phase, exf_err *err) EXF_CHECKED;

/* ---- fold_prefill.c, fold_decode.c, fold_vectors.c ------------------------------------------------------ */

/* Rewrites the prefill positions, or the decode positions, of all routes. */
exf_code exf_fold_prefill_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err) EXF_CHECKED;
exf_code exf_fold_decode_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err) EXF_CHECKED;
/* Return the function of exfold/fold.h that D folds a step by, and its options; members: a static pool's, NULL: none. */
exf_steps_form exf_fold_decode_form_of(const exf_variant *v);
exf_fold_decode_options exf_fold_decode_options_of(const exf_fold_rewriter *f, const int32_t *members);
exf_fold_stand_in_options exf_fold_stand_ins_of(const exf_fold_rewriter *f);

/* Finds the vectors that the variant asks for, and the number of each pair among them. */
exf_code exf_fold_vectors_open(exf_fold_rewriter *f, exf_err *err) EXF_CHECKED;
/* Adds w (M v) of every omitted route of a block in host or GPU memory (exf_rewriter.correct). */
exf_code exf_fold_vectors_correct(void *self, const exf_moe_block *b, float *routed, exf_err *err) EXF_CHECKED;
/* Implement exf_rewriter.device_open and device_bytes. */
exf_code exf_fold_device_open(void *self, const struct exf_backend *b, exf_err *err) EXF_CHECKED;
uint64_t exf_fold_device_bytes(const exf_fold_rewriter *f);

/* ---- fold_norms.c ------------------------------------------------------------------------------------- */

/* Allocates what norms=predicted needs; EXF_USAGE where the tables have no norm head. */
exf_code exf_fold_norms_open(exf_fold_rewriter *f, exf_err *err) EXF_CHECKED;
/* Predicts the norms of the routes of a block in host or GPU memory (exf_rewriter.routed). */
exf_code exf_fold_norms_predict(void *self, const exf_input_block *b, exf_err *err) EXF_CHECKED;
/* Fills the norms [K] of a row of the run whose routes are now ids [K]: experts that the router chose, in any order, or none. */
void exf_fold_norms_of(const exf_fold_rewriter *f, size_t row, const int32_t *ids, float *norms, size_t k);

/* ---- fold_device.c ------------------------------------------------------------------------------------ */

/* Returns 1 if all that the variant does to routes can be done in GPU memory. */
int exf_fold_runs_on_device(const exf_fold_rewriter *f);
/* Returns the GPU memory that it then holds. */
uint64_t exf_fold_routes_bytes(const exf_fold_rewriter *f);
exf_code exf_fold_routes_open(exf_fold_rewriter *f, const exf_backend *b, exf_err *err) EXF_CHECKED;
void exf_fold_routes_close(exf_fold_rewriter *f);
/* Implements exf_rewriter.device_rewrite. */
exf_code exf_fold_routes_rewrite(void *self, const exf_routes *r, exf_err *err);
/* Adds what was counted on the device to the usage; the device has finished. */
void exf_fold_routes_collect(exf_fold_rewriter *f);

/* Returns the budget that the variant's prefill keeps routes by in a layer of the tables. */
exf_fold_budget_options exf_fold_budget_of(const exf_fold_rewriter *f, int index);
/* Return the layer's factor of skip, and its threshold. */
double exf_fold_skip_factor(const exf_fold_rewriter *f, int index);
double exf_fold_skip_threshold(const exf_fold_rewriter *f);
#endif
