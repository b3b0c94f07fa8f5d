/* fuzz.h - what every fuzz target has: its entry, which a fuzzer or replay.c calls, and what must hold. */
#ifndef EXF_TESTS_FUZZ_FUZZ_H
#define EXF_TESTS_FUZZ_FUZZ_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static inline void must(int holds)
{
    if (!holds) abort();
}
#endif
