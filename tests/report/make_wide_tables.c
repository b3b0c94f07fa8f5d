/* make_wide_tables.c - tables of 48 layers of 128 experts, whose report is as large as that of a
 * released model.  Every number follows from layer index l, source s and target t by a formula
 * that in_chromium.py has too: what the page shows is compared with it.
 * usage: make_wide_tables TABLES.h5 */
#include "artifact/tables.h"
#include "base/mem.h"

#include <stdio.h>

enum { L = 48, E = 128, K = 8, CELLS = E * E, LAYER_STEP = 2, COLD = 37, WARM = E - 1 };

/* Expert COLD is never routed to.  The others stand in a ring, and pairs at a distance of a multiple of 9 were never seen
 * together; the tokens of the others follow from their distance, so that every expert has as many in all. */
enum { FURTHEST = WARM / 2, DISTANCES = FURTHEST - FURTHEST / 9, STEP = 560, ROW = STEP * DISTANCES * (3 * DISTANCES - 1) };

static uint32_t distance(uint32_t s, uint32_t t)
{
    uint32_t a = s - (s > COLD), b = t - (t > COLD), apart = a > b ? a - b : b - a;
    return apart <= FURTHEST ? apart : WARM - apart;
}

static int is_seen(uint32_t s, uint32_t t)
{
    return s != COLD && t != COLD && distance(s, t) % 9 != 0;
}

static uint64_t tokens_of(uint32_t l, uint32_t s, uint32_t t)
{
    uint32_t d = distance(s, t);
    return STEP * (1 + 3 * (uint64_t)((d - d / 9 - 1 + l) % DISTANCES));
}

static void fill_cell(exf_tables *x, uint32_t l, uint32_t s, uint32_t t)
{
    size_t i = (size_t)l * CELLS + s * E + t;
    int seen = is_seen(s, t);
    x->coeff[i] = s == t ? 1 : seen ? (float)((int)((31 * s + 17 * t + 7 * l) % 257) - 128) / 128 : 0;
    x->loss[i] = seen ? (float)((13 * s + 29 * t + 3 * l) % 1021) / 1024 : EXF_LOSS_NEVER;
    x->count[i] = seen ? tokens_of(l, s, t) : 0;
    x->similarity[i] = s == t ? 1 : seen ? (float)((s + t + 5 * l) % 128) / 128 : 0;
    x->std_error[i] = s == t ? 0 : seen ? (float)((s * t + l) % 64) / 1024 : EXF_ERROR_UNKNOWN;
}

static void fill_pool(const exf_static_pool *p)
{
    for (uint32_t l = 0; l < L; l++)
        for (uint32_t k = 0; k < (uint32_t)p->size; k++) p->members[l * (uint32_t)p->size + k] = (int32_t)((5 * k + l) % E);
}

static void fill(exf_tables *x)
{
    for (int i = 0; i < x->n_pools; i++) fill_pool(&x->pool[i]);
    for (uint32_t l = 0; l < L; l++) {
        for (uint32_t s = 0; s < E; s++)
            for (uint32_t t = 0; t < E; t++) fill_cell(x, l, s, t);
        for (uint32_t e = 0; e < E; e++) {
            x->expert_norms[l * E + e] = 1 + (float)((7 * e + l) % 97) / 8;
            x->expert_count[l * E + e] = e == COLD ? 0 : ROW / (K - 1);
        }
    }
}

static exf_code make(exf_tables *x, exf_err *err)
{
    static const exf_run_shape shape = {.n_experts = E, .top_k = K, .d_model = 2048, .n_sequences = 32,
                                        .n_tokens = (int64_t)WARM * (ROW / (K - 1)) / K};
    static const int64_t pools[] = {64, 32};
    int32_t number[L];
    exf_code rc;
    for (int l = 0; l < L; l++) number[l] = LAYER_STEP * l + 1;
    EXF_TRY(exf_tables_new(x, &shape, number, L, pools, 2, err));
    EXF_TRY(exf_mem_new(&x->similarity, (size_t)L * CELLS, sizeof *x->similarity, "similarity", err));
    EXF_TRY(exf_mem_new(&x->std_error, (size_t)L * CELLS, sizeof *x->std_error, "standard errors", err));
    EXF_TRY(exf_provenance_add(&x->provenance, err, "model.family", "%s", "made_for_a_test"));
    fill(x);
out:
    return rc;
}

int main(int argc, char **argv)
{
    exf_err e = {.code = EXF_OK, .msg = ""};
    exf_tables t = {.n_layers = 0};
    exf_code rc = argc == 2 ? make(&t, &e) : exf_fail(&e, EXF_USAGE, "no file named");
    if (rc == EXF_OK) rc = exf_tables_write(&t, argv[1], 1, NULL, &e);
    if (rc != EXF_OK) fprintf(stderr, "make_wide_tables: %s\n", e.msg);
    exf_tables_free(&t);
    return (int)rc;
}
