/* budget_summary.h - what a budget per token keeps of a layer's sampled tokens. */
#ifndef EXF_INSPECT_BUDGET_SUMMARY_H
#define EXF_INSPECT_BUDGET_SUMMARY_H
#include "format/json_write.h"
#include "inspect/inspection.h"

/* Returns the mean number of experts that a layer's sampled tokens keep. */
double exf_budget_layer_mean(const exf_inspection *s, const exf_budget *b, int layer_index);
/* Adds "budgets": an object for each, with lambda, scale, mean, and for each layer the mean and the tokens that keep
 * 1..K routes. */
void exf_budgets_json(exf_jw *w, const exf_inspection *s);
#endif
