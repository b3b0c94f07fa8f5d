/* naive.h - plain double versions of what the kernels do, written from the formulas
 * and not from the kernels, and repeatable numbers to feed both. */
#ifndef EXF_TESTS_NAIVE_H
#define EXF_TESTS_NAIVE_H
#include "kernels/attention/attention.h"

#include <stddef.h>
#include <stdint.h>

/* Zeroed room; failure fails the test; the caller frees with exf_mem_free. */
float *naive_floats(size_t n);
double *naive_doubles(size_t n);

/* Uniform in (-1, 1), a pure function of both. */
float naive_number(uint64_t stream, uint64_t i);
/* A fresh array of n such numbers, times scale. */
float *naive_numbers(size_t n, uint64_t stream, float scale);
/* A fresh copy as doubles. */
double *naive_widened(const float *x, size_t n);

/* y [rows, n] = x [rows, k] w [n, k]^T, ld 0: k. */
void naive_linear(double *y, const double *x, int ld, const float *w, int rows, int n, int k);
/* In place, rows of n that are ld apart. */
void naive_rmsnorm(double *x, int ld, const float *w, int rows, int n, double eps);
double naive_sigmoid(double x);
/* In place; angles as the tables have them. */
void naive_rotate(double *x, const exf_rope_shape *s, const float *cosine, const float *sine);
/* Token by token, with probabilities of its visible keys only. */
void naive_attention(double *out, const double *q, const double *k, const double *v, const exf_attention_shape *s);

/* x := a^-1 x for n unknowns; a is spoilt. */
typedef double naive_square[16][16];
void naive_solve(naive_square a, double *x, int n);
/* Returns rho as exfold/fold.h raises it for a Gram matrix g of n experts. */
double naive_raised(double rho, naive_square g, int n);
/* x := (g + rho mean(diag g) I)^-1 x, rho raised. */
void naive_solve_raised(double *x, naive_square g, int n, double rho);

/* ||a - b|| / ||b||. */
double naive_distance(const float *a, const double *b, size_t n);
#endif
