/* device_samples.h - fetches the samples of the low-rank basis from a device, a few at a time, so
 * that no other expert output is copied to the host for them. */
#ifndef EXF_ACCUMULATE_DEVICE_SAMPLES_H
#define EXF_ACCUMULATE_DEVICE_SAMPLES_H
#include "accumulate/sampler.h"
#include "kernels/backend.h"

/* Buffers in device memory, and their host copies. */
typedef struct {
    const exf_backend *b;
    int d_model, cap; /* cap: slots fetched at a time, two per sample */
    int32_t *slot, *ids;         /* [cap] in device memory */
    float *raw, *rows;           /* [cap, H] in device memory: outputs as stored, outputs as float32 */
    int32_t *slot_host, *ids_host;
    float *rows_host;
    size_t *sample;              /* [cap / 2] number of each fetched sample */
} exf_device_samples;

uint64_t exf_device_samples_bytes(int d_model); /* bytes of device memory */
exf_code exf_device_samples_open(exf_device_samples *s, const exf_backend *b, int d_model, exf_err *err) EXF_CHECKED;
/* Copies the chosen samples of a device block to the sampler, as exf_sampler_keep() does; waits if the block has any. */
exf_code exf_device_samples_keep(exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, exf_err *err) EXF_CHECKED;
void exf_device_samples_free(exf_device_samples *s); /* accepts zeroed memory */
#endif
