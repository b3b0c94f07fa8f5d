/* reuse_outputs_cpu.c - see reuse_outputs.h. */
#include "kernels/moe/reuse_outputs.h"

#include <string.h>

/* The slot of a token's own routes that ran expert id, counted from its first; EXF_SOURCE_OTHER, EXF_SOURCE_NONE. */
static int source_of(const int32_t *ran, int top_k, int32_t id)
{
    if (id < 0) return EXF_SOURCE_NONE;
    for (int k = 0; k < top_k; k++)
        if (ran[k] == id) return k;
    return EXF_SOURCE_OTHER;
}

static void copy_row(const exf_reuse_call *c, int slot)
{
    size_t row = (size_t)c->d_model * exf_number_bytes(c->to.number);
    char *to = (char *)(uintptr_t)c->to.p + (size_t)slot * row;
    int from = c->source[slot];
    if (from == EXF_SOURCE_NONE) memset(to, 0, row);
    if (from >= 0) memcpy(to, (const char *)c->from.p + (size_t)from * row, row);
}

void exf_reuse_outputs_cpu(const exf_reuse_call *c)
{
    for (int i = 0; i < c->n_tokens * c->top_k; i++) {
        int base = i - i % c->top_k, source = source_of(c->ran + base, c->top_k, c->wanted[i]);
        c->source[i] = source >= 0 ? base + source : source;
        c->missing[i] = source == EXF_SOURCE_OTHER ? c->wanted[i] : -1;
        if (c->to.p) copy_row(c, i);
    }
}
