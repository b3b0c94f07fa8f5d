/* row_energy.h - the squared norm of a float32 row: products and sums in double, eight lanes in fixed order. On a GPU
 * it is the norm_sq of output_errors.h. */
#ifndef EXF_KERNELS_ROW_ENERGY_H
#define EXF_KERNELS_ROW_ENERGY_H

double exf_row_energy(const float *row, int n);
#endif
