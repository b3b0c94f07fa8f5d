/* make_deepseek_v4.c - tables in the shape of DeepSeek-V4-Flash, for files of full
 * size without the model: 43 layers of 256 experts, top-6.  Layer 0 is not in the
 * tables, layer 1 has no evidence, elsewhere a ninth of the pairs has none and
 * every 64th expert is cold.
 * usage: make_deepseek_v4 TABLES.h5 */
#include "artifact/tables.h"
#include "base/mem.h"

#include <stdio.h>

enum { LAYERS = 43, FIRST = 1, L = LAYERS - FIRST, D = 64, E = 256, CELLS = E * E, COLD = 64 };

/* Numbers that look like losses: 0.25 and more, at most 1.2; every expert has some below 0.5. */
static float loss_of(uint32_t i)
{
    uint32_t x = i * 2654435761u;
    return 0.25f + (float)(x >> 12) * 0.95f / (float)(1u << 20);
}

static void fill(exf_tables *t)
{
    for (uint32_t i = 0; i < L * CELLS; i++) {
        uint32_t s = i / E % E, d = i % E, seen = s != d && s % COLD && d % COLD,
                 never = !seen || i / CELLS == 0 || (s + 2 * d) % 9 == 0;
        t->coeff[i] = s == d ? 1 : never ? 0 : 1.5f - loss_of(i);
        t->loss[i] = never ? EXF_LOSS_NEVER : loss_of(i);
        t->frobenius[i] = never ? EXF_LOSS_NEVER : loss_of(i) / 2 + 0.125f;
        t->count[i] = seen ? 50 : 0;
    }
    for (uint32_t i = 0; i < L * E; i++) {
        t->expert_norms[i] = 1 + (float)(i % 97) / 8;
        t->expert_count[i] = i % COLD ? 50 * 251 / 5 : 0; /* 50 tokens with each of 251 others, 5 at a time */
    }
    for (int i = 0; i < L * D; i++) t->pool[0].members[i] = i % D;
}

int main(int argc, char **argv)
{
    static const exf_run_shape shape = {.n_experts = E, .top_k = 6, .d_model = 4096, .n_sequences = 56, .n_tokens = 252 / 6 * 2510};
    exf_err e = {.code = EXF_OK, .msg = ""};
    exf_tables t = {.n_layers = 0};
    int32_t number[L];
    for (int l = 0; l < L; l++) number[l] = l + FIRST;
    exf_code rc =
        argc == 2 ? exf_tables_new(&t, &shape, number, L, (const int64_t[]){D}, 1, &e) : exf_fail(&e, EXF_USAGE, "no file named");
    if (rc == EXF_OK) rc = exf_mem_new(&t.frobenius, (size_t)L * CELLS, sizeof *t.frobenius, "losses", &e);
    if (rc == EXF_OK) rc = exf_provenance_add(&t.provenance, &e, "model.family", "deepseek_v4");
    if (rc == EXF_OK) rc = exf_provenance_add(&t.provenance, &e, "model.layers", "%d", LAYERS);
    if (rc == EXF_OK) {
        fill(&t);
        rc = exf_tables_write(&t, argv[1], 1, NULL, &e);
    }
    if (rc != EXF_OK) fprintf(stderr, "make_deepseek_v4: %s\n", e.msg);
    exf_tables_free(&t);
    return (int)rc;
}
