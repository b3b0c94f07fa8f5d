/* layer_weights.c - see layer_weights.h. */
#include "weights/layer_weights.h"

#include <string.h>

int exf_is_product(exf_role role)
{
    static const unsigned char product[EXF_W_COUNT] = {
        [EXF_W_HEAD] = 1, [EXF_W_DENSE_GATE] = 1, [EXF_W_DENSE_UP] = 1, [EXF_W_DENSE_DOWN] = 1, [EXF_W_EXPERT_GATE] = 1,
        [EXF_W_EXPERT_UP] = 1,
        [EXF_W_EXPERT_DOWN] = 1, [EXF_W_SHARED_GATE] = 1, [EXF_W_SHARED_UP] = 1, [EXF_W_SHARED_DOWN] = 1, [EXF_W_Q] = 1,
        [EXF_W_K] = 1,
        [EXF_W_V] = 1, [EXF_W_O] = 1, [EXF_W_Q_A] = 1, [EXF_W_Q_B] = 1, [EXF_W_KV_A] = 1, [EXF_W_KV_B] = 1, [EXF_W_DELTA_QKV] = 1,
        [EXF_W_DELTA_Z] = 1, [EXF_W_DELTA_B] = 1, [EXF_W_DELTA_A] = 1, [EXF_W_DELTA_OUT] = 1, [EXF_W_KV] = 1, [EXF_W_O_A] = 1,
        [EXF_W_O_B] = 1,
        [EXF_W_COMPRESS_KV] = 1, [EXF_W_COMPRESS_GATE] = 1, [EXF_W_INDEX_Q] = 1, [EXF_W_INDEX_WEIGHTS] = 1, [EXF_W_INDEX_KV] = 1,
        [EXF_W_INDEX_GATE] = 1,
    };
    return product[role];
}

void exf_layer_weights_free(exf_layer_weights *lw)
{
    for (int role = 0; lw->b && role < EXF_W_COUNT; role++) lw->b->free(lw->held[role]);
    memset(lw, 0, sizeof *lw);
}

size_t exf_layer_weights_size(const exf_model *m)
{
    size_t total = 0;
    for (int role = EXF_W_FIRST_IN_LAYER; role < EXF_W_COUNT; role++) {
        size_t most = 0;
        for (int l = 0; l < m->arch.n_layers; l++) {
            size_t n = (size_t)exf_model_copies(m, (exf_role)role, l) * exf_model_count(m, (exf_role)role, l);
            most = n > most ? n : most;
        }
        total += most;
    }
    return total;
}
