/* sums_fault_cpu.c - the sentences of sums_fault.h. */
#include "kernels/statistics/sums_fault.h"

exf_code exf_output_fault(exf_err *err, int expert, double squared_norm, const double *route_weight)
{
    if (!route_weight)
        return exf_fail(err, EXF_NUMERIC, "the output of expert %d has squared norm %g, outside the range of the sums", expert,
                        squared_norm);
    return exf_fail(err, EXF_NUMERIC,
                    "the output of expert %d has squared norm %g and router weight %g, outside the range of the sums", expert,
                    squared_norm, *route_weight);
}

exf_code exf_sequence_fault(exf_err *err, uint64_t sequence, int source, int target, double dot, double target_sq)
{
    return exf_fail(err, EXF_NUMERIC,
                    "sequence %llu, pair %d -> %d: sums %g and %g have squares outside the range of the sums",
                    (unsigned long long)sequence, source, target, dot, target_sq);
}

exf_code exf_vector_fault(exf_err *err, int source, int target, double sum)
{
    return exf_fail(err, EXF_NUMERIC, "pair %d -> %d: a vector sum of %g is outside the range of the sums", source, target, sum);
}
