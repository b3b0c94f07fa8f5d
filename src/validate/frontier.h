/* frontier.h - judges a validation: makes variants over a grid of P and D, says what each row folds, costs and is served by,
 * and marks those that are worth their cost.
 *
 * Prefill and decode are two questions with a cost each, operations per token and expert bytes per decode step (cost.h), so that
 * there is a frontier of P and, for each size of decode batches, one of D.  A combination P+D is on neither: which pair to
 * serve is recommendation.h's question. */
#ifndef EXF_VALIDATE_FRONTIER_H
#define EXF_VALIDATE_FRONTIER_H
#include "fold/runtime.h"
#include "validate/cost.h"
#include "validate/validate.h"

/* Lists P = 1..K-1 and D = E/8, E/4, 3E/8, E/2, 3E/4 (those from K on), each with pair scalars and,
 * if the tables have the arrays for it, with joint weights, and D with stand-ins by the router; the budgets
 * per token of the tables; their static pools where a size has several criteria; combinations of middle
 * budgets; and, of these P and D, what each public runtime that serves the family (NULL: none does) runs, spelled with its
 * options.  Of these a runtime (NULL: none) leaves out what it does not run.  The caller frees *out. */
exf_code exf_frontier_variants(exf_variant **out, size_t *n, const exf_architecture *a, const exf_tables *t, const char *family,
                               const exf_runtime *runtime, exf_err *err) EXF_CHECKED;

/* ---- rows ---------------------------------------------------------------------------------------- */

typedef enum {
    EXF_ROW_ORIGINAL,
    EXF_ROW_PREFILL, /* folds prefill alone */
    EXF_ROW_DECODE,  /* decode alone */
    EXF_ROW_BOTH
} exf_row_kind;

/* A public runtime that runs a row. */
typedef struct {
    const exf_runtime *runtime;
    int by_its_own; /* 1: with options of its own beside the row's, so that its figures are others */
} exf_server;

enum { EXF_SERVERS = 8 };

/* What a row of a validation is, beside its figures. */
typedef struct {
    exf_variant variant; /* zero of the original; a half has that of its row */
    exf_row_kind kind;
    int competes;    /* 1: it may be on a frontier: was asked for, folds by tables, and its batches constrain it */
    int on_frontier;
    size_t twin;     /* the plain fold of the same P or D, by pair scalars, which costs no more; 0: none */
    size_t lost_to;  /* the twin, where its KL is lower; 0: it is not, or there is none */
    exf_cost cost;
    size_t baseline;     /* its best one (validation.h); 0: it has none, or its batches do not constrain it, or nobody asked */
    exf_difference gain; /* the KL of that baseline less the row's: above 0, the tables gain */
    exf_server server[EXF_SERVERS]; /* [n_servers] */
    int n_servers;
    int in_plugin;   /* 1: python/exfold_vllm runs it as it is */
} exf_row;

/* What rows are judged by. */
typedef struct {
    const exf_validation *v;
    const exf_cost_model *cost;
    const exf_architecture *a;
    const char *family;         /* of the model */
    const exf_runtime *runtime; /* as which variants were parsed; NULL: none */
    double prefill_share;       /* of the tokens, the part that is prefill, in which alone P folds */
    double flops_per_token;     /* of the whole model, the mean over the run's tokens, whose sequences are its context */
} exf_judged;

/* Returns the part of a run's tokens that is prefill. */
double exf_prefill_share(const exf_batch *whole, const exf_decode_schedule *schedule);
/* Makes the rows [n_variants] of a validation, with the marks of the frontiers.  The caller frees *out. */
exf_code exf_rows_make(exf_row **out, const exf_judged *of, exf_err *err) EXF_CHECKED;
/* Returns what a frontier goes over: operations per token of PREFILL, expert bytes per step of DECODE. */
double exf_row_cost(const exf_row *row, exf_row_kind kind);
/* Returns the same of the original, in decode batches of a size. */
double exf_original_cost(const exf_judged *of, exf_row_kind kind, int batch);
/* Returns 1 if it is the plain fold of a P, or a D: by pair scalars, with no option but its batches. */
int exf_is_plain_fold(const exf_judged *of, const exf_variant *v);
/* Returns the share of the whole model's cost that is left where its routed experts cost `cost`: of the operations of a token of
 * the run, or of the bytes of all weights that a decode step reads.  NAN: not known. */
double exf_whole_share(const exf_judged *of, double cost, exf_row_kind kind, int batch);
/* Returns 1 if row i is one to choose from: it is of the kind (decode: of the batch size), competes, costs less than the
 * original, is run as it is by the runtime (NULL: any row may be chosen), and did not lose to a plain fold of which that is so. */
int exf_row_may_serve(const exf_judged *of, const exf_row *row, size_t i, exf_row_kind kind, int batch, const exf_runtime *runtime);
/* Returns 1 if row i has a twin and its KL is not lower beyond the noise of the paired difference: the plain fold stands for both
 * of them. */
int exf_row_gains_nothing(const exf_judged *of, const exf_row *row, size_t i);
/* A plain fold costs no more than another of its P or D where the difference is less than this share of the original's cost. */
#define EXF_TWIN_TIE 0.01
/* Costs that differ by less than this share of the original's are one: a pool is not always full. */
#define EXF_COST_TIE 0.005

/* Returns 1 if the runtime (NULL: some public runtime; "exfold": our plugin) runs the row as it is. */
int exf_row_is_served(const exf_row *row, const exf_runtime *runtime);

/* Returns the domain in which row i has the largest mean KL. */
size_t exf_worst_domain(const exf_validation *v, size_t i);

/* Writes the rows of a frontier by rising cost to line [n_variants] and returns how many: of the rows that may serve
 * (exf_row_may_serve), the cheapest, then each time the cheapest of those with a KL that
 * is lower beyond the noise of the paired difference; of those of one cost (EXF_COST_TIE) the one of lowest KL.  A row that
 * gains nothing over its twin is left out where that may stand there. */
size_t exf_frontier_line(size_t *line, const exf_judged *of, const exf_row *row, exf_row_kind kind, int batch);

/* ---- best pools ---------------------------------------------------------------------------------- */

/* Of variants that differ in the criterion of their static pool alone, finds the best. */

/* Writes to best [n_variants] the numbers of the variants with static pools that have the least KL among at least
 * two that differ from them in `by` alone, in the order of the variants; ties to the earlier.  Returns how many. */
size_t exf_best_pools(size_t *best, const exf_validation *v, const exf_row *row);
/* Returns 1 if the variants of two rows differ in nothing but the criterion of their static pool. */
int exf_same_but_pool(const exf_row *a, const exf_row *b);

#endif
