/* reuse_outputs_cpu.c - see reuse_outputs.h. */
#include "kernels/moe/reuse_outputs.h"

#include <string.h>

/* Returns the slot of a token's own routes that ran expert id, or -1. */
static int slot_of(const int32_t *ran, int top_k, int32_t id)
{
    for (int k = 0; id >= 0 && k < top_k; k++)
        if (ran[k] == id) return k;
    return -1;
}

void exf_reuse_outputs_cpu(const exf_reuse_call *c)
{
    size_t row = (size_t)c->d_model * exf_number_bytes(c->to.number);
    char *to = (char *)(uintptr_t)c->to.p;
    const char *from = c->from.p;
    for (int i = 0; i < c->n_tokens * c->top_k; i++) {
        int base = i - i % c->top_k, at = slot_of(c->ran + base, c->top_k, c->wanted[i]);
        c->missing[i] = at < 0 ? c->wanted[i] : -1;
        if (at >= 0) memcpy(to + (size_t)i * row, from + (size_t)(base + at) * row, row);
        if (c->wanted[i] < 0) memset(to + (size_t)i * row, 0, row);
    }
}
