/* device_corrections.h - the corrections of a variant on a device: the tables of the layer that
 * is being run are in the device's memory, one layer's at a time. */
#ifndef EXF_FOLD_DEVICE_CORRECTIONS_H
#define EXF_FOLD_DEVICE_CORRECTIONS_H
#include "kernels/backend.h"

/* The device's arrays; those of a length of 0 are NULL. */
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
    const exf_backend *b; /* NULL: nothing is on a device */
    exf_queue *q;         /* of the last block; NULL: there was none */
    int index;            /* of the layer whose tables are on the device; -1: none */
    void *array[EXF_CORRECT_ARRAYS];
    unsigned char *prefill; /* [T of the run] on the host: 1 where a token is prefill; NULL: all are */
} exf_device_corrections;

void exf_device_corrections_free(exf_device_corrections *c); /* what is zero is fine */
#endif
