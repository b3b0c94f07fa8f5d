/* moe_router_cpu.c - the router; see moe.h. */
#include "kernels/moe/route_weights.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

int exf_router_scratch(int n_experts)
{
    return 3 * n_experts; /* scores, choices, group scores */
}

void exf_router_scores_cpu(double *score, const float *logits, exf_router_score kind, int n_experts)
{
    double top = logits[0], sum = 0;
    for (int e = 0; e < n_experts; e++) {
        double z = logits[e];
        if (kind == EXF_ROUTER_SOFTMAX)
            top = z > top ? z : top;
        else if (kind == EXF_ROUTER_SIGMOID)
            score[e] = 1 / (1 + exp(-z));
        else
            score[e] = sqrt(z > 20 ? z : log1p(exp(z))); /* beyond 20 the difference is below 2^-28, as the reference has it */
    }
    if (kind != EXF_ROUTER_SOFTMAX) return;
    for (int e = 0; e < n_experts; e++) sum += score[e] = exp(logits[e] - top);
    for (int e = 0; e < n_experts; e++) score[e] /= sum;
}

static double group_score(const double *choice, int n, int top2)
{
    double best = choice[0], second = -INFINITY;
    for (int i = 1; i < n; i++) {
        if (choice[i] > best) {
            second = best;
            best = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return top2 && second > -INFINITY ? best + second : best;
}

/* Sets choices in groups that are not kept to the lowest number, where references have -infinity; which choices of
 * experts that do not exist keep, so that these still come last. */
static void keep_groups(double *choice, double *group, const exf_router_rules *r)
{
    int size = r->n_experts / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) group[g] = group_score(choice + g * size, size, r->group_top2);
    for (int kept = 0; kept < r->top_groups; kept++) {
        int best = 0;
        for (int g = 1; g < r->n_groups; g++)
            if (group[g] > group[best]) best = g;
        group[best] = -INFINITY;
    }
    for (int e = 0; e < r->n_experts; e++)
        if (group[e / size] > -INFINITY && choice[e] > -INFINITY) choice[e] = -DBL_MAX;
}

/* Finds the K largest choices, ties to the lower expert, by insertion into a sorted list. */
static void choose_experts(int32_t *ids, const double *score, double *choice, double *group, const exf_router_rules *r)
{
    int have = 0, k = r->top_k;
    for (int e = 0; e < r->n_experts; e++) choice[e] = r->bias ? score[e] + (double)r->bias[e] : score[e];
    if (r->n_groups > 1) keep_groups(choice, group, r);
    for (int e = 0; e < r->n_experts; e++) {
        if (have == k && !(choice[e] > choice[ids[k - 1]])) continue;
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && choice[e] > choice[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = e;
    }
}

void exf_router_cpu(exf_queue *q, int32_t *ids, float *weights, const float *logits, const int32_t *tokens, int n_tokens,
                    const exf_router_rules *r, double *scratch)
{
    (void)q;
    double *score = scratch, *choice = scratch + r->n_experts, *group = choice + r->n_experts;
    for (int t = 0; t < n_tokens; t++) {
        int32_t *chosen = ids + (size_t)t * (size_t)r->top_k;
        exf_router_scores_cpu(score, logits + (size_t)t * (size_t)r->n_experts, r->score, r->n_experts);
        if (r->table)
            for (int k = 0; k < r->top_k; k++) chosen[k] = (int32_t)r->table[(size_t)tokens[t] * (size_t)r->top_k + (size_t)k];
        else
            choose_experts(chosen, score, choice, group, r);
        exf_weigh_routes(chosen, weights + (size_t)t * (size_t)r->top_k, score, r);
    }
}
