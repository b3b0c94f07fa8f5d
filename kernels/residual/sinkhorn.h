/* sinkhorn.h - makes a small matrix nearly doubly stochastic.
 *
 * c [n, n], from logits, in place and in double:
 *   c = softmax of each row + eps;  columns;  then (iterations - 1) times: rows, columns
 * where "rows" divides each row by (its sum + eps), "columns" each column. */
#ifndef EXF_KERNELS_SINKHORN_H
#define EXF_KERNELS_SINKHORN_H
void exf_sinkhorn_cpu(double *c, int n, int iterations, double eps);
#endif
