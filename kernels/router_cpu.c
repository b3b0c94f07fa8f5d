/* router_cpu.c - see router.h. */
#include "kernels/router.h"

#include <math.h>
#include <stddef.h>

static void softmax(double *p, const float *logits, int n)
{
    double top = logits[0], sum = 0;
    for (int e = 1; e < n; e++) top = logits[e] > top ? logits[e] : top;
    for (int e = 0; e < n; e++) sum += p[e] = exp(logits[e] - top);
    for (int e = 0; e < n; e++) p[e] /= sum;
}

/* The k largest of p by insertion into a sorted list: K is small. */
static void choose(int32_t *ids, const double *p, int n, int k)
{
    int have = 0;
    for (int e = 0; e < n; e++) {
        if (have == k && !(p[e] > p[ids[k - 1]])) continue;
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && p[e] > p[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = e;
    }
}

void exf_router_softmax_cpu(int32_t *ids, float *weights, const float *logits, int n_tokens, int n_experts, int top_k, int renormalise,
                            double *scratch)
{
    for (int t = 0; t < n_tokens; t++) {
        int32_t *chosen = ids + (size_t)t * (size_t)top_k;
        softmax(scratch, logits + (size_t)t * (size_t)n_experts, n_experts);
        choose(chosen, scratch, n_experts, top_k);
        double sum = 0;
        for (int k = 0; k < top_k; k++) sum += scratch[chosen[k]];
        for (int k = 0; k < top_k; k++)
            weights[(size_t)t * (size_t)top_k + (size_t)k] = (float)(renormalise ? scratch[chosen[k]] / sum : scratch[chosen[k]]);
    }
}
