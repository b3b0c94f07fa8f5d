/* stream_energy.h - adds up the squared norms of a layer's residual stream, exactly, over the blocks that show it
 * (pass/observer.h), for the sensitivities of budgets per token (docs/method.md, section 9). */
#ifndef EXF_ACCUMULATE_STREAM_ENERGY_H
#define EXF_ACCUMULATE_STREAM_ENERGY_H
#include "artifact/statistics.h"
#include "pass/observer.h"
#include "kernels/backend.h"

typedef struct {
    exf_exact *sum;   /* [n_workers] */
    uint64_t *count;  /* [n_workers] tokens */
    int n_workers;
    const exf_backend *b;       /* a device's; NULL: blocks come in host memory */
    exf_output_errors *device;  /* in device memory */
    exf_queue *q;               /* queue of the last device block; NULL: none in this layer */
    uint64_t device_count;
} exf_stream_energy;

exf_code exf_stream_energy_new(exf_stream_energy *s, int n_workers, exf_err *err) EXF_CHECKED;
exf_code exf_stream_energy_open_device(exf_stream_energy *s, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Adds a block's energies if it shows the stream; blocks of different workers may come from several threads.  A token's
 * energy is a sum of products in double, eight lanes in fixed order.  EXF_NUMERIC: a finite energy is out of range. */
exf_code exf_stream_energy_add(exf_stream_energy *s, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
/* Queues a device block's energies; squares are added up in double. */
void exf_stream_energy_add_device(exf_stream_energy *s, const exf_device_block *b);
/* Adds what came since the last call to `to`; waits for the device. */
exf_code exf_stream_energy_take(exf_stream_energy *s, const exf_layer_statistics *to, int layer, exf_err *err) EXF_CHECKED;
void exf_stream_energy_free(exf_stream_energy *s); /* accepts zeroed memory */
#endif
