/* weight_reader.h - one thread's way of bringing weights to a device: a chunk comes from the
 * checkpoint as it is stored into pinned memory, crosses on the reader's own queue and is
 * decoded there.  Calls on one reader come from one thread. */
#ifndef EXF_WEIGHTS_WEIGHT_READER_H
#define EXF_WEIGHTS_WEIGHT_READER_H
#include "weights/weight_plan.h"
#include "weights/weight_loader.h"

typedef struct {
    const exf_model *model;
    const exf_backend *b;
    exf_queue *q;
    char *host;   /* pinned: room for codes, then for scales */
    char *device; /* codes, then scales, where a chunk is decoded there */
    int *bad;
    exf_weight_loader_times times;
} exf_weight_reader;

/* device: bytes of the largest chunk that is decoded there. */
exf_code exf_weight_reader_open(exf_weight_reader *r, const exf_model *m, const exf_backend *b, exf_compute compute, size_t device,
                                exf_err *err) EXF_CHECKED;
void exf_weight_reader_close(exf_weight_reader *r); /* what was not opened, being zero, too */
/* Pinned memory for the largest chunk; on its own, since it takes milliseconds. */
exf_code exf_weight_reader_pin(exf_weight_reader *r, size_t bytes, exf_err *err) EXF_CHECKED;
void exf_weight_reader_unpin(exf_weight_reader *r);

/* The i-th chunk of the plan into its place in `slot`; waits until it is there. */
exf_code exf_weight_reader_send(exf_weight_reader *r, const exf_weight_plan *plan, size_t i, char *slot, exf_err *err) EXF_CHECKED;
/* What needs all chunks: looks for values that bfloat16 has not, and splits the router. */
exf_code exf_weight_reader_end(exf_weight_reader *r, const exf_weight_plan *plan, char *slot, exf_err *err) EXF_CHECKED;
#endif
