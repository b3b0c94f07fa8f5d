/* layer_weights.c - see layer_weights.h. */
#include "forward/layer_weights.h"

#include "base/mem.h"

#include <string.h>

static exf_code read_role(exf_layer_weights *lw, const exf_model *m, exf_role role, int layer, exf_err *err)
{
    size_t each = exf_model_count(m, role), total = 0;
    int copies = exf_model_copies(m, role, layer);
    exf_code rc = EXF_OK;
    lw->w[role] = NULL;
    if (copies == 0) return EXF_OK;
    EXF_TRY(exf_mem_mul(&total, each, (size_t)copies, "layer weights", err));
    if (total > lw->room[role]) {
        exf_mem_free(lw->held[role]);
        lw->held[role] = NULL;
        lw->room[role] = 0;
        EXF_TRY(exf_mem_new(&lw->held[role], total, sizeof(float), "layer weights", err));
        lw->room[role] = total;
    }
    lw->w[role] = lw->held[role];
    for (int e = 0; e < copies; e++) EXF_TRY(exf_model_read(m, role, layer, e, lw->w[role] + (size_t)e * each, err));
out:
    return rc;
}

exf_code exf_layer_weights_read(exf_layer_weights *lw, const exf_model *m, int layer, exf_err *err)
{
    for (int role = EXF_W_MIXER_NORM; role < EXF_W_COUNT; role++) {
        exf_code rc = read_role(lw, m, (exf_role)role, layer, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

void exf_layer_weights_free(exf_layer_weights *lw)
{
    for (int role = 0; role < EXF_W_COUNT; role++) exf_mem_free(lw->held[role]);
    memset(lw, 0, sizeof *lw);
}

size_t exf_layer_weights_size(const exf_model *m)
{
    size_t total = 0;
    for (int role = EXF_W_MIXER_NORM; role < EXF_W_COUNT; role++) {
        size_t most = 0;
        for (int l = 0; l < m->arch.n_layers; l++) {
            size_t n = (size_t)exf_model_copies(m, (exf_role)role, l) * exf_model_count(m, (exf_role)role);
            most = n > most ? n : most;
        }
        total += most;
    }
    return total;
}
