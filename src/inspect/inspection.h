/* inspection.h - what one or two files say about every layer, in memory, whatever their
 * kind: the ground on which summaries, pictures and reports stand. */
#ifndef EXF_INSPECT_INSPECTION_H
#define EXF_INSPECT_INSPECTION_H
#include "artifact/sequences.h"
#include "artifact/tables.h"

/* Matrices have a row per source expert.  Pointers are NULL for what the files do not
 * hold; an inspection owns all that it points at. */
typedef struct {
    const exf_artifact *kind; /* of the first file */
    int64_t version;          /* of the first file */
    exf_run_shape shape;
    int n_layers;             /* L */
    int32_t *layer_number;    /* [L] */
    uint64_t *count;          /* [L, E, E] tokens behind a pair */
    uint64_t *expert_count;   /* [L, E] */
    float *norms;             /* [L, E] mean output norm; a cold expert has the tables' value, or NaN */
    float *coeff, *loss;      /* [L, E, E] as in tables.h */
    float *std_error;         /* [L, E, E] as in tables.h */
    float *similarity;        /* [L, E, E] raw (geometry.h); NaN unobserved, 1 on the diagonal */
    float *aligned;           /* [L, E, E] the same after the pair's own scalar */
    exf_static_pool *pool;           /* tables only */
    int n_pools;
    exf_sequence_list sequences; /* of a capture or statistics, where known */
    exf_provenance provenance;
} exf_inspection;

/* Reads a file of any of our kinds.  beside NULL, or the statistics of the tables at
 * path: EXF_MODEL naming both files and what differs if they are of another model, of
 * other layers or of other data.  Ownership: exf_inspection_free(), also after an error. */
exf_code exf_inspection_read(exf_inspection *s, const char *path, const char *beside, exf_err *err) EXF_CHECKED;
/* Tables that are in memory already; t is emptied. */
void exf_inspection_take_tables(exf_inspection *s, exf_tables *t);
/* Keeps the layers of a list of model's layer numbers, "0,3,8-11" ("all": as it was), in
 * all arrays but the pools', which are given up; EXF_USAGE for a list that is none or names a layer
 * that is not there. */
exf_code exf_inspection_select(exf_inspection *s, const char *layers, exf_err *err) EXF_CHECKED;
void exf_inspection_free(exf_inspection *s);

/* 1 where two different experts were observed together, in tables often enough to have a
 * loss; at = (layer E + source) E + target. */
int exf_inspection_observed(const exf_inspection *s, size_t at);
#endif
