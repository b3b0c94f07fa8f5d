/* one_device_fixtures.h - one device for all cases of a program. */
#ifndef EXF_TESTS_ONE_DEVICE_FIXTURES_H
#define EXF_TESTS_ONE_DEVICE_FIXTURES_H
#include "tests/support/device_fixtures.h"

static device d;

static inline void open_device_f32(void)
{
    d = device_open(EXF_COMPUTE_F32);
}

static inline void open_device_bf16(void)
{
    d = device_open(EXF_COMPUTE_BF16);
}

static inline void close_device(void)
{
    device_close(&d);
}
#endif
