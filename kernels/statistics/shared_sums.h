/* shared_sums.h - lets the processes of one host read each other's GPU memory, and adds up the sums that lie in it.
 *
 * A process shares what it allocated; another one opens it by the handle, whose bytes reach it in any way, and reads it over
 * NVLink or PCIe.  Neither waits for the other: callers agree on when memory is complete, and when it may change again. */
#ifndef EXF_KERNELS_SHARED_SUMS_H
#define EXF_KERNELS_SHARED_SUMS_H
#include "base/err.h"
#include "base/exact.h"
#include "kernels/operation.h"

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char bytes[64];
} exf_memory_handle;

/* Makes the handle of memory of alloc(). */
exf_code exf_share_memory_cuda(exf_memory_handle *out, void *memory, exf_err *err) EXF_CHECKED;
/* Opens another process's memory; EXF_DEVICE where this GPU cannot reach it, or the container forbids it. */
exf_code exf_open_memory_cuda(void **out, const exf_memory_handle *h, exf_err *err) EXF_CHECKED;
void exf_close_memory_cuda(void *opened); /* NULL is allowed */

/* Add from[i] to to[i], of n exact sums (base/exact.h) or integers in two's complement; `from` may be opened memory.  *wrapped, in
 * device memory, zero or of an earlier call, becomes the complement of the smallest i whose sum left the range and wrapped. */
void exf_add_exact_cuda(exf_queue *q, exf_exact *to, const exf_exact *from, size_t n, uint64_t *wrapped);
void exf_add_integers_cuda(exf_queue *q, int64_t *to, const int64_t *from, size_t n, uint64_t *wrapped);
#ifdef __cplusplus
}
#endif
#endif
