/* one_device_fixtures.h - one device for all cases of a program. */
#ifndef EXF_TESTS_ONE_DEVICE_FIXTURES_H
#define EXF_TESTS_ONE_DEVICE_FIXTURES_H
#include "tests/support/device_fixtures.h"

static device d;

static inline void open_device_f32(void)
{
    d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
}

static inline void open_device_bf16(void)
{
    d = device_open(EXF_COMPUTE_BF16, EXF_TENSOR_CORES_AUTO);
}

/* The kernels of GPUs that are no Hopper (mma.sync), on any that has them. */
static inline void open_device_bf16_mma(void)
{
    d = device_open(EXF_COMPUTE_BF16, EXF_TENSOR_CORES_MMA);
}

static inline void close_device(void)
{
    device_close(&d);
}
#endif
