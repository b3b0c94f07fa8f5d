/* device_samples.h - fetches the samples of the low-rank basis from a device, a few at a
 * time, so that no other output need come to the host for it. */
#ifndef EXF_ACCUMULATE_DEVICE_SAMPLES_H
#define EXF_ACCUMULATE_DEVICE_SAMPLES_H
#include "accumulate/sampler.h"
#include "kernels/backend.h"

/* The device's arrays, and what they become on the host. */
typedef struct {
    const exf_backend *b;
    int d_model, cap; /* slots at a time: two a sample */
    int32_t *slot, *ids;         /* [cap] there */
    float *raw, *rows;           /* [cap, H] there: as they were, as float32 */
    int32_t *slot_host, *ids_host;
    float *rows_host;
    size_t *sample;              /* [cap / 2] */
} exf_device_samples;

uint64_t exf_device_samples_bytes(int d_model); /* of the device's memory */
exf_code exf_device_samples_open(exf_device_samples *s, const exf_backend *b, int d_model, exf_err *err) EXF_CHECKED;
/* exf_sampler_keep() of a block on the device; waits if it has any of the chosen. */
exf_code exf_device_samples_keep(exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, exf_err *err) EXF_CHECKED;
void exf_device_samples_free(exf_device_samples *s); /* what is zero is fine */
#endif
