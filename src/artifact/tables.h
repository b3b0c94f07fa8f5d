/* tables.h - the folding tables of a model, in memory and on disk as `tables`
 * (artifact_tables.c). */
#ifndef EXF_ARTIFACT_TABLES_H
#define EXF_ARTIFACT_TABLES_H
#include "artifact/artifact.h"

/* Loss of a pair that must never be chosen: never observed, or itself. */
#define EXF_LOSS_NEVER 1e30f

/* A static decode pool of D experts per layer. */
typedef struct {
    int size;            /* D */
    int32_t *members;    /* [L, D] by falling expert norm */
    int32_t *target_ids; /* [L, E] where each expert's contribution goes; itself inside the pool */
    float *target_scale; /* [L, E] 1 inside the pool, 0 where no target was ever observed */
} exf_pool;

typedef struct {
    exf_run_shape shape;
    int n_layers;         /* L, MoE layers */
    int32_t *layer_number; /* [L] the model's numbers */
    float *coeff;         /* [L, E, E] S[s,t]: E_s(x) ~ S E_t(x); 1 on the diagonal, 0 unobserved */
    float *loss;          /* [L, E, E] relative reconstruction loss; EXF_LOSS_NEVER on the diagonal and unobserved */
    float *expert_norms;  /* [L, E] h, mean output norm; a cold expert has the median of the others */
    uint64_t *count;      /* [L, E, E] tokens behind a pair; 0: unobserved */
    uint64_t *expert_count; /* [L, E] tokens routed to an expert; 0: cold */
    exf_pool *pool;
    int n_pools;
    exf_provenance provenance;
} exf_tables;

exf_code exf_tables_new(exf_tables *t, const exf_run_shape *shape, const int32_t *layer_number, int n_layers, const int64_t *pool_sizes,
                        size_t n_pools, exf_err *err) EXF_CHECKED;
void exf_tables_free(exf_tables *t);

exf_code exf_tables_write(const exf_tables *t, const char *target, int force, exf_err *err) EXF_CHECKED;
/* Refuses what breaks the rules above: non-finite numbers, negative losses, a
 * diagonal that is not (1, never), a pair without tokens that has a loss, norms
 * that are not above 0, pool ids outside [0, E). */
exf_code exf_tables_read(exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
#endif
