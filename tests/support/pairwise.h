/* pairwise.h - makes the shapes of a kernel's test from the constants that shape its work.
 *
 * A test lists the constants as rows of `boundary`.  A dimension then takes the values below, at and above each of
 * its boundaries, and pairwise_shapes() crosses the dimensions: every two values of two dimensions meet in a shape, if
 * a shape with them is valid.  scripts/check-boundaries.sh holds the rows against the sources: a constant of kernels/
 * has a row, or a reason in tests/cuda/no-boundaries.txt. */
#ifndef EXF_TESTS_PAIRWISE_H
#define EXF_TESTS_PAIRWISE_H
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRWISE_DIMENSIONS = 8, PAIRWISE_VALUES = 48, PAIRWISE_SHAPES = 512 };

/* A constant `name` (or the text of a literal: "k <= 8") of the file kernels/`file`; value in units of the dimension. */
typedef struct {
    const char *file, *name;
    int dimension, value;
} boundary;

/* A dimension's smallest and largest value; values outside are not tried. */
typedef struct {
    const char *name;
    int least, most;
} dimension;

typedef struct {
    int at[PAIRWISE_DIMENSIONS];
} shape;

/* The shapes of one operation, and the values that they cross. */
typedef struct {
    int n_dimensions, n_values[PAIRWISE_DIMENSIONS], value[PAIRWISE_DIMENSIONS][PAIRWISE_VALUES];
    int n_shapes, n_pairs, n_impossible; /* pairs of values, and those of them that no valid shape was found for */
    shape shapes[PAIRWISE_SHAPES];
    char met[PAIRWISE_DIMENSIONS * PAIRWISE_DIMENSIONS * PAIRWISE_VALUES * PAIRWISE_VALUES]; /* pairs that a shape has */
} pairwise;

/* Shapes are made while a suite is, outside of any test: there Check cannot report. */
static inline void pairwise_require(int holds, const char *what, const char *limit)
{
    if (holds) return;
    fprintf(stderr, "pairwise.h: %s: too many %s\n", what, limit);
    exit(EXIT_FAILURE);
}

static inline void pairwise_value(pairwise *p, const dimension *dims, int i, int value)
{
    int at = 0;
    if (value < dims[i].least || value > dims[i].most) return;
    while (at < p->n_values[i] && p->value[i][at] != value) at++;
    if (at < p->n_values[i]) return;
    pairwise_require(at < PAIRWISE_VALUES, dims[i].name, "values");
    p->value[i][p->n_values[i]++] = value;
}

/* A candidate with the two values given, the other dimensions drawn. */
static inline shape pairwise_candidate(const pairwise *p, int i, int x, int j, int y, uint64_t turn)
{
    shape s = {{0}};
    for (int k = 0; k < p->n_dimensions; k++) {
        int drawn = (int)exf_rng_below((uint64_t)p->n_values[k], (uint64_t)p->n_shapes, turn, (uint64_t)k);
        s.at[k] = p->value[k][k == i ? x : k == j ? y : drawn];
    }
    return s;
}

static inline int pairwise_index(const pairwise *p, int i, int value)
{
    int at = 0;
    while (p->value[i][at] != value) at++;
    return at;
}

static inline char *pairwise_cell(pairwise *p, int i, int x, int j, int y)
{
    return &p->met[((i * PAIRWISE_DIMENSIONS + j) * PAIRWISE_VALUES + x) * PAIRWISE_VALUES + y];
}

/* Counts the pairs of s that no shape has yet; marks them if `mark`. */
static inline int pairwise_new_pairs(pairwise *p, const shape *s, int mark)
{
    int n = 0;
    for (int i = 0; i < p->n_dimensions; i++)
        for (int j = i + 1; j < p->n_dimensions; j++) {
            char *cell = pairwise_cell(p, i, pairwise_index(p, i, s->at[i]), j, pairwise_index(p, j, s->at[j]));
            n += !*cell;
            if (mark) *cell = 1;
        }
    return n;
}

/* Finds, of 400 candidates with two given values, the valid one that meets most new pairs; 0: none is valid. */
static inline int pairwise_best(pairwise *p, int i, int x, int j, int y, int (*is_valid)(const shape *), shape *best)
{
    int most = 0;
    for (uint64_t turn = 0; turn < 400; turn++) {
        shape s = pairwise_candidate(p, i, x, j, y, turn);
        if (is_valid && !is_valid(&s)) continue;
        int n = pairwise_new_pairs(p, &s, 0);
        if (n > most) *best = s;
        most = n > most ? n : most;
    }
    return most;
}

/* Makes the shapes.  A dimension without a boundary takes its smallest and its largest value; every one takes its smallest.
 * is_valid, or NULL: which shapes the operation takes, and which are small enough for a test.  The order and the
 * shapes depend on the arguments alone. */
static inline void pairwise_shapes(pairwise *p, const char *op, const boundary *b, size_t n_boundaries, const dimension *dims,
                                   int n_dimensions, int (*is_valid)(const shape *))
{
    memset(p, 0, sizeof *p);
    p->n_dimensions = n_dimensions;
    for (int i = 0; i < n_dimensions; i++) pairwise_value(p, dims, i, dims[i].least);
    for (size_t r = 0; r < n_boundaries; r++)
        for (int off = -1; off <= 1; off++) pairwise_value(p, dims, b[r].dimension, b[r].value + off);
    for (int i = 0; i < n_dimensions; i++)
        if (p->n_values[i] == 1) pairwise_value(p, dims, i, dims[i].most);
    for (int i = 0; i < n_dimensions; i++)
        for (int j = i + 1; j < n_dimensions; j++)
            for (int x = 0; x < p->n_values[i]; x++)
                for (int y = 0; y < p->n_values[j]; y++) {
                    shape s;
                    p->n_pairs++;
                    if (*pairwise_cell(p, i, x, j, y)) continue;
                    if (!pairwise_best(p, i, x, j, y, is_valid, &s)) {
                        p->n_impossible++;
                        continue;
                    }
                    pairwise_require(p->n_shapes < PAIRWISE_SHAPES, op, "shapes");
                    pairwise_new_pairs(p, &s, 1);
                    p->shapes[p->n_shapes++] = s;
                }
    printf("%s: %zu boundaries, %d shapes, %d pairs of values, %d of them in no valid shape\n", op, n_boundaries, p->n_shapes,
           p->n_pairs, p->n_impossible);
}

/* "n 65, e 32, ...": a shape in a failure's message; one at a time. */
static inline const char *pairwise_name(const dimension *dims, int n_dimensions, const shape *s)
{
    static char text[256];
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n_dimensions && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %d", i ? ", " : "", dims[i].name, s->at[i]);
    return text;
}

/* Returns what a failure names: what is checked, and the shape; valid until the next call. */
static inline const char *pairwise_label(const char *what, const dimension *dims, int n_dimensions, const shape *s)
{
    static char text[320];
    snprintf(text, sizeof text, "%s, %s", what, pairwise_name(dims, n_dimensions, s));
    return text;
}
#endif
