/* difference.h - compares two tables of one model. */
#ifndef EXF_INSPECT_DIFFERENCE_H
#define EXF_INSPECT_DIFFERENCE_H
#include "inspect/inspection.h"

/* The change from a to b in one layer.  NaN: nothing was observed in both, or nothing was routed. */
typedef struct {
    int layer;             /* the model's number; -1: all layers together */
    uint64_t pairs;        /* ordered pairs of different experts */
    uint64_t observed_a, observed_b, gained, lost; /* gained: in b only; lost: in a only */
    double scalar[4];      /* |S_b - S_a| over pairs observed in both: median, 90 %, 99 %, largest */
    double loss[4];        /* |L_b - L_a| likewise */
    double norm;           /* largest |h_b - h_a| / h_a */
    uint64_t sources;      /* experts */
    uint64_t flips;        /* sources whose best target (least loss, ties to the lower number) is another,
                            * or which have one in a or b only */
    double flip_traffic;   /* share of routed tokens, a's and b's, whose expert flipped */
} exf_layer_difference;

/* The change of the static pool of one size, all layers together. */
typedef struct {
    int size;
    uint64_t places, members; /* members of b that are none of a, among all places */
    double target_traffic;    /* share of routed tokens whose expert goes to another target */
    const char *by;         /* its criterion */
} exf_pool_difference;

/* Fills rows [L + 1], the last for all layers together.  EXF_MODEL names both values where the
 * two are no tables or differ in experts or layers; path_a and path_b are for that message. */
exf_code exf_compare(const exf_inspection *a, const char *path_a, const exf_inspection *b, const char *path_b,
                     exf_layer_difference *rows, exf_err *err) EXF_CHECKED;
/* Compares pool i of a with b's of the same size and criterion; returns 0 if b has none. */
int exf_compare_pool(const exf_inspection *a, int i, const exf_inspection *b, exf_pool_difference *out);

/* A fact of the provenance that only one has (the other is NULL) or that differs. */
typedef struct { const char *key, *a, *b; } exf_fact_change;
/* Finds the next in order of key; *i and *j start at 0.  Returns 0 if there are no more. */
int exf_next_fact_change(const exf_provenance *a, const exf_provenance *b, size_t *i, size_t *j, exf_fact_change *out);

/* Returns 1 if counts, scalars, losses, norms and pools are equal, bit for bit; other parts that
 * either may have (shared scalars, vectors) are not looked at. */
int exf_same_numbers(const exf_inspection *a, const exf_inspection *b);
#endif
