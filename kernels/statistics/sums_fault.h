/* sums_fault.h - a term that the exact sums cannot hold: what is known of it, and the sentences that say so, which are the same
 * whether the host or a device finds it.  The caller prefixes where: layer, sequence, token. */
#ifndef EXF_KERNELS_SUMS_FAULT_H
#define EXF_KERNELS_SUMS_FAULT_H
#include "base/err.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The fault that a device notes: the one of the smallest place, then of the smallest a and b.  Zeroed: none. */
typedef struct {
    unsigned long long place; /* complement of the row of the run, or of the sequence; 0: none */
    int32_t lock;             /* 1 while a thread writes the others; 0 when a queue is done */
    int32_t a, b;             /* an expert, or source and target, or a pair's number and a column */
    double x, y;
} exf_sums_fault;

/* The place of a fault: a row or a sequence; the other of the two is -1. */
typedef struct { int64_t row, sequence; } exf_sums_place;

/* The functions return EXF_NUMERIC.  route_weight: NULL where all experts were run. */
exf_code exf_output_fault(exf_err *err, int expert, double squared_norm, const double *route_weight);
exf_code exf_sequence_fault(exf_err *err, uint64_t sequence, int source, int target, double dot, double target_sq);
exf_code exf_vector_fault(exf_err *err, int source, int target, double sum);
#ifdef __cplusplus
}
#endif
#endif
