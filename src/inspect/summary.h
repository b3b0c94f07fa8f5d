/* summary.h - quantiles, and a summary of each layer of an inspection, and of all layers together, in a dozen numbers. */
#ifndef EXF_INSPECT_SUMMARY_H
#define EXF_INSPECT_SUMMARY_H
#include "format/json_write.h"
#include "inspect/inspection.h"

/* Sorts in place, rising; none may be NaN. */
void exf_sort(double *x, size_t n);
/* Returns the number at the fraction q of the way through n sorted ones, the lower of two between;
 * NaN where there are none.  q = 0.5 is the lower median. */
double exf_quantile(const double *sorted, size_t n, double q);
/* Returns the mean in the order given; NaN where there are none. */
double exf_mean(const double *x, size_t n);

/* Pairs are ordered pairs of different experts.  NaN: the files lack the numbers, or nothing
 * was observed. */
typedef struct {
    int layer;               /* the model's number; -1: all layers together */
    uint64_t pairs, observed;
    uint64_t vectors;        /* pairs with vectors, of a basis */
    uint64_t experts, cold;  /* cold: never routed to */
    double tokens[3];        /* quartiles of the tokens that saw an observed pair: its sample size */
    double loss;             /* median over observed pairs */
    double below_half;       /* share of observed pairs with a loss under 0.5 */
    double best[3];          /* quartiles, over sources that have a target, of the best target's loss */
    double similarity, aligned; /* means over observed pairs (inspection.h) */
    double norm_min, norm_max;  /* mean output norm; cold experts only where all are */
    int expert_min, expert_max; /* whose; all layers together: */
    int layer_min, layer_max;   /* and in which layer, the model's number */
} exf_layer_summary;

/* Fills rows [L + 1], the last for all layers together: quantiles, shares and means over all
 * their pairs. */
exf_code exf_summarise(const exf_inspection *s, exf_layer_summary *rows, exf_err *err) EXF_CHECKED;

/* What a budget per token keeps of a layer's sampled tokens. */

/* Returns the mean number of experts that a layer's sampled tokens keep. */
double exf_budget_layer_mean(const exf_inspection *s, const exf_budget *b, int layer_index);
/* Adds "budgets": an object for each, with lambda, scale, mean, and for each layer the mean and the tokens that keep
 * 1..K routes. */
void exf_budgets_json(exf_jw *w, const exf_inspection *s);
#endif
