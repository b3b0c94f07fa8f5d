/* fold_cpu.h - shared by the CPU functions of exfold/fold.h: a token's routes by rank, and
 * the pool of a decode batch. */
#ifndef EXF_KERNELS_FOLD_CPU_H
#define EXF_KERNELS_FOLD_CPU_H
#include "kernels/fold/fold_internal.h"

/* A token's routes by falling rank; the first n have an expert. */
typedef struct {
    int n;
    int slot[EXF_FOLD_MAX_K], id[EXF_FOLD_MAX_K]; /* id -1: none */
    float w[EXF_FOLD_MAX_K];
} exf_fold_ranked;

void exf_fold_rank_row(exf_fold_ranked *r, const exf_fold_routes *in, int row, const exf_fold_tables *t, exf_fold_rank rank);
/* Index among the first `kept` routes of the one with the least of an omitted expert's losses
 * [E], ties to the earlier; -1 if every loss is above max_loss. */
int exf_fold_target(const exf_fold_ranked *r, int kept, const float *loss, float max_loss);
/* Rescales w [P], the kept weights and then those of slots without an expert, as o says, and writes the row. */
void exf_fold_put_row(const exf_fold_routes *out, int row, const exf_fold_routes *in, const exf_fold_ranked *r, float *w,
                      const exf_fold_prefill_options *o);

/* A batch's experts by falling importance; the first n_pool are kept. */
typedef struct {
    int n_union, n_pool;
    int16_t expert[EXF_FOLD_MAX_E]; /* [n_union], the pool first */
} exf_fold_pool;

/* Returns 0 and leaves *p undefined when the batch routes to no more than o->pool experts. */
int exf_fold_choose_pool(exf_fold_pool *p, const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o);
#endif
