/* device_corrections.h - applies the corrections of a variant on a device: device memory holds the
 * tables of one layer at a time, the one that is computed. */
#ifndef EXF_FOLD_DEVICE_CORRECTIONS_H
#define EXF_FOLD_DEVICE_CORRECTIONS_H
#include "kernels/backend.h"

/* Arrays in device memory; those of length 0 are NULL. */
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
#endif
