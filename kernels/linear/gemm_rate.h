/* gemm_rate.h - measures how fast a backend multiplies matrices, for a plan's estimated time
 * and a benchmark's lower bound. */
#ifndef EXF_KERNELS_GEMM_RATE_H
#define EXF_KERNELS_GEMM_RATE_H
#include "kernels/backend.h"

/* FLOP/s of one queue (one thread of the CPU, or the GPU) on y = x w^T with x
 * [rows, 1024], w [768, 1024], a layer's product: rows is 128 where memory is the
 * host's, as a worker's block is, else 8192.  Takes a few hundredths of a second. */
exf_code exf_gemm_rate(const exf_backend *backend, exf_compute compute, double *flops_per_second, exf_err *err) EXF_CHECKED;
#endif
