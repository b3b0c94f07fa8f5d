/* fold_scores_fixtures.h - a router's scores of all experts, of any type, for the tests of stand-ins. */
#ifndef EXF_TESTS_FOLD_SCORES_FIXTURES_H
#define EXF_TESTS_FOLD_SCORES_FIXTURES_H
#include "tests/support/fold_abi_fixtures.h"

enum { FOLD_SCORES = 1 << 20 };

typedef enum { SCORES_PLAIN, SCORES_TIED, SCORES_AWKWARD, N_SCORES } fold_scores_kind;

/* Room for choice and gate scores. */
typedef struct {
    float choice[FOLD_SCORES], gate[FOLD_SCORES];
    exf_fold_scores s;
} fold_scores;

static inline void fold_put_real(void *array, exf_fold_real type, int i, float v)
{
    if (type == EXF_FOLD_F32)
        ((float *)array)[i] = v;
    else
        ((uint16_t *)array)[i] = fold_to_half(v, type);
}

static inline float fold_score_at(const void *array, exf_fold_real type, int i)
{
    return type == EXF_FOLD_F32 ? ((const float *)array)[i] : fold_half(array, type, i);
}

static inline size_t fold_score_bytes(const exf_fold_scores *s, int rows, int n_experts)
{
    return (size_t)rows * (size_t)n_experts * (s->type == EXF_FOLD_F32 ? 4 : 2);
}

/* [rows, E] probabilities; AWKWARD: a third of them is no stand-in, and some are negative; TIED: few values. */
static inline void fold_fill_scores(fold_scores *f, int rows, int n_experts, exf_fold_real type, uint64_t seed,
                                    fold_scores_kind kind, int with_gate)
{
    static const float odd[] = {-INFINITY, NAN, -0.5f, 0, -0.0f};
    ck_assert_int_le(rows * n_experts, FOLD_SCORES);
    for (int i = 0; i < rows * n_experts; i++) {
        double u = fold_uniform(seed, 51, (uint64_t)i);
        float v = kind == SCORES_TIED ? (float)(1 + (int)(u * 3)) / 4 : (float)(0.01 + u);
        fold_put_real(f->gate, type, i, v);
        if (kind == SCORES_AWKWARD && fold_uniform(seed, 52, (uint64_t)i) < 0.4) v = odd[fold_below(5, seed, 53, (uint64_t)i)];
        fold_put_real(f->choice, type, i, v);
    }
    f->s = (exf_fold_scores){.choice = f->choice, .gate = with_gate ? f->gate : NULL, .type = type};
}
#endif
