/* workspace.c - see workspace.h. */
#include "forward/workspace.h"

#include "base/mem.h"
#include "kernels/attention.h"

#include <string.h>

/* Takes n floats from the arena, or only counts them while arena is NULL. */
static float *take(float *arena, size_t *used, size_t n)
{
    float *p = arena ? arena + *used : NULL;
    *used += (n + 15) & ~(size_t)15; /* whole cache lines */
    return p;
}

static size_t carve_mixer(exf_mixer_space *s, const exf_architecture *a, float *arena, size_t t)
{
    size_t used = 0, d = (size_t)a->attention.head_dim;
    s->normed = take(arena, &used, t * (size_t)a->d_model);
    s->q = take(arena, &used, t * (size_t)a->attention.n_heads * d);
    s->heads = take(arena, &used, t * (size_t)a->attention.n_heads * d);
    s->k = take(arena, &used, t * (size_t)a->attention.n_kv_heads * d);
    s->v = take(arena, &used, t * (size_t)a->attention.n_kv_heads * d);
    s->scores = take(arena, &used, exf_attention_workspace((int)t));
    s->logits = take(arena, &used, t * (size_t)a->n_experts);
    return used;
}

static size_t carve_experts(exf_experts_space *s, const exf_architecture *a, float *arena, size_t b)
{
    size_t used = 0, h = (size_t)a->d_model, k = (size_t)a->top_k;
    size_t wide = b * k * (size_t)a->d_expert, dense = b * (size_t)a->d_ffn;
    s->input = take(arena, &used, b * h);
    s->outputs = take(arena, &used, b * k * h);
    s->routed = take(arena, &used, b * h);
    s->gathered = take(arena, &used, b * k * h);
    s->gate = take(arena, &used, wide > dense ? wide : dense);
    s->up = take(arena, &used, wide > dense ? wide : dense);
    s->slots = (int32_t *)take(arena, &used, b * k);
    s->first = (int32_t *)take(arena, &used, (size_t)a->n_experts + 1);
    return used;
}

static size_t arena_floats(const exf_architecture *a, int max_tokens)
{
    exf_mixer_space m;
    exf_experts_space e;
    size_t block = (size_t)(max_tokens < EXF_MOE_BLOCK ? max_tokens : EXF_MOE_BLOCK);
    size_t mixer = carve_mixer(&m, a, NULL, (size_t)max_tokens), experts = carve_experts(&e, a, NULL, block);
    return mixer > experts ? mixer : experts;
}

static size_t head_floats(const exf_architecture *a)
{
    return (size_t)EXF_HEAD_ROWS * ((size_t)a->vocab + (size_t)a->d_model);
}

size_t exf_workspace_bytes(const exf_architecture *a, int max_tokens, int with_head)
{
    return sizeof(float) * (arena_floats(a, max_tokens) + (with_head ? head_floats(a) : 0)) + sizeof(double) * (size_t)a->n_experts;
}

exf_code exf_workspace_new(exf_workspace *w, const exf_architecture *a, int max_tokens, int with_head, exf_err *err)
{
    exf_code rc;
    memset(w, 0, sizeof *w);
    EXF_TRY(exf_mem_new(&w->arena, arena_floats(a, max_tokens), sizeof(float), "workspace", err));
    EXF_TRY(exf_mem_new(&w->scores, (size_t)a->n_experts, sizeof(double), "router scores", err));
    if (with_head) EXF_TRY(exf_mem_new(&w->head, head_floats(a), sizeof(float), "logits", err));
    carve_mixer(&w->mixer, a, w->arena, (size_t)max_tokens);
    carve_experts(&w->experts, a, w->arena, (size_t)(max_tokens < EXF_MOE_BLOCK ? max_tokens : EXF_MOE_BLOCK));
out:
    return rc;
}

void exf_workspace_free(exf_workspace *w)
{
    exf_mem_free(w->arena);
    exf_mem_free(w->scores);
    exf_mem_free(w->head);
    memset(w, 0, sizeof *w);
}
