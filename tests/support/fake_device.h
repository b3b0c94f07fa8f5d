/* fake_device.h - a backend that computes on the CPU, in the CPU's order, behind a door
 * that says its memory is elsewhere: readers, plans, windows and mirrors work as on a
 * device, and every result must be the CPU's bit for bit.  Float32 only. */
#ifndef EXF_TESTS_FAKE_DEVICE_H
#define EXF_TESTS_FAKE_DEVICE_H
#include "kernels/backend.h"

/* One at a time; `room` bytes are free on it. */
const exf_backend *fake_device(uint64_t room);
#endif
