/* recommendation.h - from a limit and a validation to what to serve: the cheapest row of prefill, and of decode at each batch
 * size, whose cost in quality stays within the limit with its whole confidence interval. */
#ifndef EXF_VALIDATE_RECOMMENDATION_H
#define EXF_VALIDATE_RECOMMENDATION_H
#include "validate/frontier.h"
#include "validate/validate.h"

/* Metrics: the mean KL from the original, the difference of log PPL to it, or the ratio of the PPLs. */
typedef enum { EXF_LIMIT_KL, EXF_LIMIT_LOG_PPL, EXF_LIMIT_PPL_RATIO } exf_limit_metric;

typedef struct {
    exf_limit_metric metric;
    double most;
} exf_limit;

/* Parses "kl=0.05".  EXF_USAGE. */
exf_code exf_limit_parse(exf_limit *l, const char *text, exf_err *err) EXF_CHECKED;
/* Returns "kl", "log_ppl" or "ppl_ratio"; in words, "KL". */
const char *exf_limit_name(const exf_limit *l);
const char *exf_limit_words(const exf_limit *l);
/* Returns a row's value in the limit's metric, with the half-width of its 95 % interval. */
exf_difference exf_limit_value(const exf_limit *l, const exf_validation *v, size_t i);

typedef struct {
    size_t row; /* 0: no such row was run, or none that folds anything */
    int holds;  /* 0: the row is the nearest to the limit, whose interval reaches beyond it */
} exf_choice;

/* Chooses among the rows of a kind that compete and cost less than the original: the cheapest within the limit, of those
 * of one cost (EXF_COST_TIE) the one of lowest value, and the plain fold rather than a row that gains nothing over it; where none
 * is, the one whose interval ends lowest.  runtime: of those that it runs as they are; NULL: of all. */
exf_choice exf_recommend(const exf_limit *l, const exf_judged *of, const exf_row *row, exf_row_kind kind, int batch,
                         const exf_runtime *runtime);
/* Returns the row that folds prefill as row p and decode as row d; 0: it was not run. */
size_t exf_find_together(const exf_judged *of, const exf_row *row, size_t p, size_t d);
#endif
