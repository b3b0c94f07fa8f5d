/* backend_memory.cuh - GPU memory and pinned host memory, counted; exf_gpu_operations and
 * exf_backend (backend.h) say what each function does. */
#ifndef EXF_KERNELS_BACKEND_MEMORY_CUH
#define EXF_KERNELS_BACKEND_MEMORY_CUH
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

exf_code exf_alloc_cuda(void *out, size_t n, size_t size, const char *what, exf_err *err);
void exf_free_cuda(void *p);
exf_code exf_alloc_staging_cuda(void *out, size_t bytes, const char *what, exf_err *err);
void exf_free_staging_cuda(void *p);
exf_code exf_pin_cuda(void *memory, size_t bytes, const char *what, exf_err *err);
void exf_unpin_cuda(void *memory);
void exf_memory_cuda(uint64_t *now, uint64_t *peak);
void exf_memory_reset_peak_cuda(void);
exf_code exf_memory_left_cuda(uint64_t *bytes, exf_err *err);
#endif
