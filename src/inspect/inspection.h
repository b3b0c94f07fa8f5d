/* inspection.h - an inspection holds the contents of an artifact of any kind, and of its
 * statistics if given, layer by layer in memory; summaries, pictures and reports read it. */
#ifndef EXF_INSPECT_INSPECTION_H
#define EXF_INSPECT_INSPECTION_H
#include "artifact/data.h"
#include "accumulate/statistics.h"
#include "artifact/tables.h"
#include "format/json.h"

/* Matrices have a row per source expert.  A pointer is NULL if the files lack its numbers;
 * an inspection owns all arrays. */
typedef struct {
    const exf_artifact *kind; /* of the first file */
    int64_t version;          /* of the first file */
    exf_run_shape shape;
    int n_layers;             /* L */
    int32_t *layer_number;    /* [L] */
    uint64_t *count;          /* [L, E, E] tokens that saw a pair */
    uint64_t *expert_count;   /* [L, E] */
    uint64_t *empty_slots;    /* [L] slots of a layer's tokens without an expert; NULL: 0 */
    float *norms;             /* [L, E] mean output norm; a cold expert has the tables' value, or NaN */
    float *coeff, *loss;      /* [L, E, E] as in tables.h */
    float *std_error;         /* [L, E, E] as in tables.h */
    float *half_scalar[2], *half_loss[2]; /* [L, E, E] as in tables.h; one block each */
    float *similarity;        /* [L, E, E] raw (exf_geometry); NaN unobserved, 1 on the diagonal */
    float *aligned;           /* [L, E, E] the same after the pair's own scalar */
    float *explained;         /* [L, E] as in tables.h: share of the variance of an expert's log norms; 0: it goes by its rms */
    float *layer_explained, *layer_error; /* [L] as in tables.h */
    float *least_eigenvalue, *median_cosine_sq, *near_copies; /* [L] as in tables.h */
    exf_static_pool *pool;           /* tables only */
    int n_pools;
    exf_budget *budget;              /* tables only */
    int n_budgets;
    exf_sequence_list sequences; /* of a capture or statistics, where known */
    exf_provenance provenance;
    char *part; /* of which part of its data the first file is (artifact/data.h); NULL: of the whole */
} exf_inspection;

/* Reads a file of any of our kinds.  beside NULL, or the statistics of the tables at
 * path: EXF_MODEL naming both files and what differs if they are of another model, of
 * other layers or of other data.  Ownership: exf_inspection_free(), also after an error. */
exf_code exf_inspection_read(exf_inspection *s, const char *path, const char *beside, exf_err *err) EXF_CHECKED;
/* Makes an inspection of tables in memory, taking their arrays; t is emptied. */
void exf_inspection_take_tables(exf_inspection *s, exf_tables *t);
/* Removes all layers but those of a list of the model's layer numbers, "0,3,8-11" ("all": none
 * is removed), from all arrays; the pools are removed whole.  EXF_USAGE for a malformed list or
 * one that names a layer that the inspection lacks. */
exf_code exf_inspection_select(exf_inspection *s, const char *layers, exf_err *err) EXF_CHECKED;
void exf_inspection_free(exf_inspection *s);

/* Returns 1 where two different experts were observed together, in tables often enough to have a
 * loss; at = (layer E + source) E + target. */
int exf_inspection_observed(const exf_inspection *s, size_t at);

/* ---- geometry ------------------------------------------------------------------------------ */

/* Computes the similarity of two experts' outputs, raw and after the pair's best
 * scalar (docs/method.md, section 5; paper, "Full-Layer Expert Geometry").
 *
 * With u, v the outputs of s and t on the n tokens that were routed to both,
 *   d[s,t] = sqrt(sum ||u - v||^2 / n),          raw     = 1 - d[s,t] / dmax
 *   a[s,t] = sqrt(min_S sum ||u - S v||^2 / n),  aligned = 1 - (a[s,t] + a[t,s]) / 2 dmax
 * and dmax the layer's largest d.  Unweighted sums dot0 and sq0, in double; aligned is
 * never below raw.
 * Both arrays are [E, E], symmetric; 1 on the diagonal, NaN where the pair was never observed.  loss: the layer's [E, E] of the
 * tables, which may ask for more tokens of a pair than one; NULL: one is enough. */
void exf_geometry(const exf_layer_statistics *s, const float *loss, float *raw, float *aligned);

/* ---- specifications ------------------------------------------------------------------------- */

/* The specifications of the file formats, embedded by the build: the comments on top of src/artifact/artifact_<kind>.c, and
 * those of artifact.h and provenance.h, which all kinds share, as "artifact" and "provenance". */

/* Returns line i of the named specification, without its newline; NULL past the last, or for an unknown name. */
const char *exf_specification_line(const char *name, size_t i);
/* Returns name i of the list, "artifact" and "provenance" first; NULL past the last. */
const char *exf_specification_name(size_t i);

/* ---- a summary of each layer ------------------------------------------------------------------------ */

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
    uint64_t experts, cold;  /* cold: never routed to */
    double tokens[3];        /* quartiles of the tokens that saw an observed pair: its sample size */
    double loss;             /* median over observed pairs */
    double below_half;       /* share of observed pairs with a loss under 0.5 */
    double best[3];          /* quartiles, over sources that have a target, of the best target's loss */
    double stable;           /* share of routed tokens whose source has the same best target by either half of the text */
    double cost;             /* what the targets of one half of the text cost on the other (exf_choice_cost) */
    double explained, explained_error; /* share of the variance of log norms that the norm head explains; all layers: means */
    uint64_t by_rms;         /* experts whose norm it does not predict */
    double least_eigenvalue; /* of the matrix of mean cosines; all layers: the least */
    double cosine_sq, near_copies; /* median squared cosine of a pair, share of pairs' tokens in near copies; all layers: means */
    double similarity, aligned; /* means over observed pairs (exf_geometry) */
    double norm_min, norm_max;  /* mean output norm; cold experts only where all are */
    int expert_min, expert_max; /* whose; all layers together: */
    int layer_min, layer_max;   /* and in which layer, the model's number */
} exf_layer_summary;

/* Fills rows [L + 1], the last for all layers together: quantiles, shares and means over all
 * their pairs. */
exf_code exf_summarise(const exf_inspection *s, exf_layer_summary *rows, exf_err *err) EXF_CHECKED;

/* Returns the mean number of experts that a layer's sampled tokens keep; NaN: the budget leaves the layer out. */
double exf_budget_layer_mean(const exf_inspection *s, const exf_budget *b, int layer_index);
/* Adds "pools": size, criterion and each layer's members. */
void exf_pools_json(exf_jw *w, const exf_inspection *s);
/* Adds "budgets": an object for each, with lambda, scale, mean, and for each layer the mean and the tokens that keep
 * 1..K routes. */
void exf_budgets_json(exf_jw *w, const exf_inspection *s);

/* ---- what changed between two tables of one model --------------------------------------------------- */

/* The change from a to b in one layer.  NaN: nothing was observed in both, or nothing was routed. */
typedef struct {
    int layer;             /* the model's number; -1: all layers together */
    uint64_t pairs;        /* ordered pairs of different experts */
    uint64_t observed_a, observed_b, gained, lost; /* gained: in b only; lost: in a only */
    double scalar[4];      /* |S_b - S_a| over pairs observed in both: median, 90 %, 99 %, largest */
    double loss[4];        /* |L_b - L_a| likewise */
    double norm;           /* largest |h_b - h_a| / h_a */
    uint64_t sources;      /* experts */
    uint64_t flips;        /* sources whose best target (least loss, ties to the lower number) is another,
                            * or which have one in a or b only */
    double flip_traffic;   /* share of routed tokens, a's and b's, whose expert flipped */
    double cost;           /* what the targets of each cost by the sums of the other (exf_choice_cost) */
} exf_layer_difference;

/* The change of the static pool of one size, all layers together. */
typedef struct {
    int size;
    uint64_t places, members; /* members of b that are none of a, among all places */
    double target_traffic;    /* share of routed tokens whose expert goes to another target */
    const char *by;         /* its criterion */
} exf_pool_difference;

/* Fills rows [L + 1], the last for all layers together.  EXF_MODEL names both values where the
 * two are no tables or differ in experts or layers; path_a and path_b are for that message. */
exf_code exf_compare(const exf_inspection *a, const char *path_a, const exf_inspection *b, const char *path_b,
                     exf_layer_difference *rows, exf_err *err) EXF_CHECKED;
/* Compares pool i of a with b's of the same size and criterion; returns 0 if b has none. */
int exf_compare_pool(const exf_inspection *a, int i, const exf_inspection *b, exf_pool_difference *out);

/* A fact of the provenance that only one has (the other is NULL) or that differs. */
typedef struct { const char *key, *a, *b; } exf_fact_change;
/* Finds the next in order of key; *i and *j start at 0.  Returns 0 if there are no more. */
int exf_next_fact_change(const exf_provenance *a, const exf_provenance *b, size_t *i, size_t *j, exf_fact_change *out);

/* Returns 1 if counts, scalars, losses, norms and pools are equal, bit for bit, and the scalars and losses of halves where both
 * have them; other parts that either may have (shared scalars, vectors) are not looked at. */
int exf_same_numbers(const exf_inspection *a, const exf_inspection *b);
#endif
