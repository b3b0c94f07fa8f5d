/* budget_summary.c - see budget_summary.h. */
#include "inspect/budget_summary.h"

double exf_budget_layer_mean(const exf_inspection *s, const exf_budget *b, int layer_index)
{
    size_t k = (size_t)s->shape.top_k;
    const uint64_t *kept = b->kept + (size_t)layer_index * k;
    uint64_t sum = 0, n = 0;
    for (size_t p = 0; p < k; p++) {
        sum += kept[p] * (p + 1);
        n += kept[p];
    }
    return n ? (double)sum / (double)n : 0;
}

static void add_layer(exf_jw *w, const exf_inspection *s, const exf_budget *b, int l)
{
    exf_jw_open(w, NULL, '{');
    exf_jw_int(w, "layer", s->layer_number[l]);
    exf_jw_real(w, "scale", b->scale[l]);
    exf_jw_real(w, "mean", exf_budget_layer_mean(s, b, l));
    exf_jw_open(w, "kept", '[');
    for (int64_t p = 0; p < s->shape.top_k; p++) exf_jw_count(w, NULL, b->kept[l * s->shape.top_k + p]);
    exf_jw_close(w);
    exf_jw_close(w);
}

void exf_budgets_json(exf_jw *w, const exf_inspection *s)
{
    if (!s->n_budgets) return;
    exf_jw_open(w, "budgets", '[');
    for (int i = 0; i < s->n_budgets; i++) {
        const exf_budget *b = &s->budget[i];
        exf_jw_open(w, NULL, '{');
        exf_jw_real(w, "budget", b->budget);
        exf_jw_text(w, "rule", b->rule);
        exf_jw_real(w, "lambda", b->lambda);
        exf_jw_real(w, "mean", b->mean);
        exf_jw_open(w, "layers", '[');
        for (int l = 0; l < s->n_layers; l++) add_layer(w, s, b, l);
        exf_jw_close(w);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}
