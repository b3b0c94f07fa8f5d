/* layer_weights.c - see layer_weights.h. */
#include "weights/layer_weights.h"

#include "base/mem.h"
#include "base/progress.h"
#include "base/thread_pool.h"

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

exf_code exf_layer_weights_make_room(exf_layer_weights *lw, exf_role role, size_t floats, exf_err *err)
{
    exf_code rc = EXF_OK;
    lw->w[role] = NULL;
    if (floats > lw->capacity[role]) {
        lw->b->free(lw->held[role]);
        lw->held[role] = NULL;
        lw->capacity[role] = 0;
        EXF_TRY(lw->b->alloc(&lw->held[role], floats, sizeof(float), "layer weights", err));
        lw->capacity[role] = floats;
    }
    if (floats) lw->w[role] = lw->held[role];
out:
    return rc;
}

/* The tensors of a role in a layer. */
typedef struct {
    const exf_model *m;
    exf_role role;
    int layer;
    float *w;    /* [copies, each] */
    size_t each;
} copies_of_role;

static exf_code read_copy(void *self, size_t i, int worker, exf_err *err)
{
    const copies_of_role *c = self;
    (void)worker;
    return exf_model_read(c->m, c->role, c->layer, (int)i, c->w + i * c->each, err);
}

static exf_code read_role(exf_layer_weights *lw, const exf_model *m, exf_role role, int layer, int n_threads, exf_err *err)
{
    size_t each = exf_model_count(m, role, layer), total = 0;
    int copies = exf_model_copies(m, role, layer);
    exf_code rc = EXF_OK;
    lw->w[role] = NULL;
    if (copies == 0) return EXF_OK;
    EXF_TRY(exf_mem_mul(&total, each, (size_t)copies, "layer weights", err));
    EXF_TRY(exf_layer_weights_make_room(lw, role, total, err));
    copies_of_role c = {m, role, layer, lw->w[role], each};
    EXF_TRY(exf_parallel_for((size_t)copies, n_threads, read_copy, &c, err));
    exf_progress_add((double)exf_model_role_bytes(m, role, layer));
out:
    return rc;
}

exf_code exf_layer_weights_read(exf_layer_weights *lw, const exf_model *m, int layer, int n_threads, exf_err *err)
{
    enum { MOST_THREADS = 8 }; /* each has a few megabytes of staging */
    if (n_threads < 1) n_threads = exf_default_threads();
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    int first = layer < 0 ? 0 : EXF_W_FIRST_IN_LAYER, end = layer < 0 ? EXF_W_FIRST_IN_LAYER : EXF_W_COUNT;
    for (int role = first; role < end; role++) {
        if (role == EXF_W_EMBED) continue;
        exf_code rc = read_role(lw, m, (exf_role)role, layer, n_threads, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
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
