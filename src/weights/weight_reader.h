/* weight_reader.h - a weight reader loads chunks to a device for one thread: it reads a chunk
 * from the checkpoint as it is stored into pinned memory, copies it on its own queue and
 * dequantizes it on the device.  Calls on one reader come from one thread. */
#ifndef EXF_WEIGHTS_WEIGHT_READER_H
#define EXF_WEIGHTS_WEIGHT_READER_H
#include "weights/shared_chunks.h"
#include "weights/weight_plan.h"

/* Seconds that readers spent on reading files, and on copying and dequantizing; bytes read; how many readers. */
typedef struct {
    double reading, sending;
    uint64_t bytes;
    int readers;
} exf_weight_loader_times;

typedef struct {
    const exf_model *model;
    const exf_backend *b;
    exf_queue *q;
    exf_shared_chunks *shared; /* where chunks are read for all ranks of the node; NULL: this process reads them itself */
    char *host;   /* pinned memory: codes, then scales */
    char *device; /* device memory for chunks that are dequantized there */
    int *bad;
    exf_weight_loader_times times;
} exf_weight_reader;

/* Opens a reader. device: bytes of the largest chunk that the device dequantizes. */
exf_code exf_weight_reader_open(exf_weight_reader *r, const exf_model *m, const exf_backend *b, exf_compute compute, size_t device,
                                exf_err *err) EXF_CHECKED;
void exf_weight_reader_close(exf_weight_reader *r); /* a zeroed reader is allowed */
/* Allocates pinned memory for the largest chunk; separate from opening, since it takes milliseconds. */
exf_code exf_weight_reader_pin(exf_weight_reader *r, size_t bytes, exf_err *err) EXF_CHECKED;
void exf_weight_reader_unpin(exf_weight_reader *r);

/* Loads the i-th chunk of the plan to its place in `slot` and waits for the copy.  number: the chunk's among shared ones. */
exf_code exf_weight_reader_send(exf_weight_reader *r, const exf_weight_plan *plan, size_t i, uint64_t number, char *slot,
                                exf_err *err) EXF_CHECKED;
/* Finishes a plan whose chunks are all loaded: EXF_NUMERIC for values that bfloat16 cannot hold;
 * fills router_split. */
exf_code exf_weight_reader_end(exf_weight_reader *r, const exf_weight_plan *plan, char *slot, exf_err *err) EXF_CHECKED;
#endif
