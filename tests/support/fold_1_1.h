/* fold_1_1.h - the structs of exfold/fold.h as API 1.1 had them: what a program that was compiled then passes. */
#ifndef EXF_TESTS_FOLD_1_1_H
#define EXF_TESTS_FOLD_1_1_H
#include "exfold/fold.h"

typedef struct {
    void *ids, *weights;
    exf_fold_int id_type;
    exf_fold_real weight_type;
    int rows, width;
    int reserved[8];
} routes_1_1;

typedef struct {
    int keep;
    exf_fold_rank rank;
    float max_loss;
    exf_fold_rescale rescale;
    int confidence;
    float ridge;
    int reserved[10];
} prefill_1_1;

typedef struct {
    exf_fold_budget_rule rule;
    float penalty, share;
    int least, most, repeat;
    float ridge;
    int reserved[9];
} budget_1_1;

typedef struct {
    int pool;
    exf_fold_importance importance;
    float max_loss;
    int drop;
    float ridge;
    int fallback;
    exf_fold_candidates candidates;
    int reserved[9];
} decode_1_1;

typedef struct {
    int pool;
    exf_fold_importance importance;
    exf_fold_stand_in_weights weights;
    float ridge;
    int reserved[12];
} stand_in_1_1;
#endif
