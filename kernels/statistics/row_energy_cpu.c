/* row_energy_cpu.c - see row_energy.h. */
#include "kernels/statistics/row_energy.h"

#include "kernels/rows/simd.h"

EXF_SIMD_CLONES double exf_row_energy(const float *row, int n)
{
    return exf_dot(row, row, n);
}
