/* tables.h - the folding tables of a model, in memory and on disk as `tables`
 * (artifact_tables.c). */
#ifndef EXF_ARTIFACT_TABLES_H
#define EXF_ARTIFACT_TABLES_H
#include "artifact/artifact.h"
#include "artifact/sketch_set.h"
#include "base/names.h"

/* Loss of a pair that must never be chosen: an unobserved pair, or an expert with itself. */
#define EXF_LOSS_NEVER 1e30f

/* The fact that `cosine` holds correlation matrices, and its value. */
#define EXF_CORRELATIONS_FACT "solve.correlations"
#define EXF_CORRELATIONS_VALID "valid"
/* The squared cosine from which on two experts count as near copies. */
#define EXF_NEAR_COPY 0.9

/* A static decode pool of D experts per layer. */
typedef struct {
    int size;            /* D */
    char by[16];         /* what its members were ranked by, one of exf_pool_criteria: "norm" (the paper's mean norm), ... */
    int32_t *members;    /* [L, D] by falling criterion */
    int32_t *target_ids; /* [L, E] expert that takes over each expert's contribution; itself inside the pool */
    float *target_scale; /* [L, E] 1 inside the pool, 0 if no target was ever observed */
} exf_static_pool;

/* A scalar shared by more than one pair: a sharing pattern with its own losses (docs/method.md, section 2).
 * Its S[s,t] is scalar[l] if the pair was observed, 1 on the diagonal, else 0. */
typedef struct {
    char name[16]; /* "layer", "global" */
    float *scalar; /* [L]; "global": the same L times */
    float *loss;   /* [L, E, E] */
} exf_shared_scalar;

/* The threshold by which a budget's routes are chosen, and what it keeps. */
typedef struct {
    double lambda;  /* >= 0; top_p: p in [0, 1] */
    double mean;    /* mean experts per token that lambda keeps on the route sample, in [1, K]; skip: in (0, K] */
    uint64_t *kept; /* [L, K] sampled tokens that keep 1..K routes; skip: [L, K + 1] that keep 0..K; NULL in tables that no solver
                     * made */
} exf_budget_threshold;

/* A budget per token (docs/method.md, "A budget per token"): what a fold needs to choose how many routes a token keeps.
 * A layer's penalty for one more expert is lambda / scale[l], against the predicted residuals r_1..r_K of the token;
 * with the rule "top_p" lambda is the share p of the token's w rms to reach, and scale is not used.  With the rule "skip", of the
 * variant skip, lambda is the threshold tau of a route's share of its token's weights times scale[l], and scale adds up to 1. */
typedef struct {
    double budget; /* mean experts per token asked for, in [1, K] */
    char rule[16]; /* "stream", "output", "measured", "skip": where scale comes from; or "top_p" */
    double lambda; /* >= 0; top_p: p in [0, 1] */
    double *scale; /* [L] a_l > 0; all 1 for top_p */
    double mean;   /* mean experts per token that lambda keeps on the route sample, in [1, K]; skip: in (0, K] */
    uint64_t *kept; /* [L, K] sampled tokens that keep 1..K routes; skip: [L, K + 1] that keep 0..K; NULL in tables that no solver
                     * made */
    exf_budget_threshold predicted; /* the same by norms that the head predicts, with its own residuals and sums; mean 0: none */
} exf_budget;

/* Returns the threshold by mean norms or, with `predicted`, by norms that the head predicts: mean 0 where the tables have none.
 * Skip asks for no norms: it has one threshold for both. */
exf_budget_threshold exf_budget_threshold_of(const exf_budget *b, int predicted);
/* Returns the fewest routes that a budget's rule may keep of a token: 0 with skip, else 1. */
int exf_budget_least(const exf_budget *b);

/* What predicts log ||u|| of an expert's output u on a token before the expert runs (docs/method.md, section 13): a linear map of
 * the features below.  An expert of which it knows too little has theta = [log rms, 0, ...]. */
typedef struct {
    int q;                                 /* directions; 0: there is no head, and all else is NULL */
    float *basis;                          /* [L, H, q] V */
    float *theta;                          /* [L, E, q + 4] */
    float *explained, *error;              /* [L, E] share of the variance of log ||u|| about log rms, and its standard error */
    float *layer_explained, *layer_error;  /* [L] of all experts of a layer */
} exf_norm_head;

/* The features of a routed slot, phi = [1, V'x (q), z[e] less the mean of z, log max(w, 1e-6), log ||x||]: x is the hidden state
 * that router and experts read, z has the router's logits, w is the expert's router weight. */
enum { EXF_NORM_MOST = 256 /* directions */, EXF_NORM_BESIDE = 4 /* features beside them */ };

static inline size_t exf_norm_features(int q)
{
    return (size_t)q + EXF_NORM_BESIDE;
}

/* Returns the mean of a token's router logits [E], which features take from the expert's own. */
double exf_norm_logit_mean(const float *logits, int n_experts);

/* Fills the features of a slot from V'x, which has q elements. */
void exf_norm_features_of(double *phi, const double *projected, int q, double logit_above_mean, double weight, double norm);

/* Returns exp(theta phi), the norm that a head predicts from the features of a slot. */
float exf_norm_predicted(const float *theta, const double *phi, int q);

/* Standard error of a pair that fewer than two sequences observed. */
#define EXF_ERROR_UNKNOWN 1e30f

/* The shape of an array that acts on vectors; N pairs as in exf_vectors. */
typedef enum {
    EXF_STORED_PAIRS,  /* [N, H] of each pair */
    EXF_STORED_LOSSES, /* [L, E, E] the projector's own losses; the scalar's for a pair without vectors */
    EXF_STORED_BASIS,  /* [L, H, R] orthonormal columns */
    EXF_STORED_RANKS   /* [N, R, H] of each pair, on the first R columns of the basis: an array for each R */
} exf_stored_shape;

/* An array that a projector stores (artifact/projector.h), at /vectors/<name>, or at /vectors/<name>/<R>/c. */
typedef struct {
    const char *name;
    exf_stored_shape shape;
} exf_stored_array;

typedef struct {
    const exf_stored_array *stored;
    int rank; /* R, if the shape has one */
    float *data;
} exf_vector_array;

/* The arrays of the pairs that have vectors: at most a given number per layer, those of largest
 * source_sq.  All other pairs keep their scalar. */
typedef struct {
    int64_t n_pairs; /* N, all layers together; 0: no pair has vectors and all below is NULL */
    int64_t room;    /* pairs for which a solver that has no file yet made room in pair and array; 0: for n_pairs */
    int32_t *pair;   /* [N, 3] layer index, source, target; ascending */
    int64_t *first;  /* [L + 1] a layer's first pair; not in the file */
    exf_vector_array *array; /* in order of projectors, then of what each stores, then of R */
    int n_arrays;
} exf_vectors;

/* The tables of a model.  An array that the file lacks is NULL: a file of version 1 has no cosine
 * and nothing after it. "Unobserved" is a pair without tokens, or with fewer than the recipe's
 * calibrate.min_pair_tokens: its loss is never, its scalar 0, whatever its count. */
typedef struct {
    exf_run_shape shape;
    int n_layers;         /* L, MoE layers */
    int32_t *layer_number; /* [L] the model's layer numbers */
    float *coeff;         /* [L, E, E] S[s,t]: E_s(x) ~ S E_t(x); 1 on the diagonal, 0 unobserved */
    float *loss;          /* [L, E, E] relative reconstruction loss; EXF_LOSS_NEVER on the diagonal and unobserved */
    float *expert_norms;  /* [L, E] h, mean output norm; a cold expert has the median of those above 0 */
    uint64_t *count;      /* [L, E, E] tokens in which a pair was observed; 0: unobserved */
    uint64_t *expert_count; /* [L, E] tokens routed to an expert; 0: cold */
    uint64_t *empty_slots; /* [L] slots of a layer's tokens without an expert; NULL: 0 */
    float *cosine;        /* [L, E, E] mean cosine of two experts' outputs on shared tokens, made a correlation matrix: positive
                           * definite, 1 on the diagonal, an unobserved pair as the others have it (docs/method.md, section 14).
                           * Without EXF_CORRELATIONS_FACT the means themselves, 0 unobserved */
    float *relative_norms; /* [L, E] norms whose ratios are those on the tokens that two experts share */
    float *least_eigenvalue, *median_cosine_sq, *near_copies; /* [L] of the measured means: the matrix's least eigenvalue, the
                           * median squared cosine of observed pairs, the share of their tokens in pairs of EXF_NEAR_COPY or more;
                           * NULL, as relative_norms, without EXF_CORRELATIONS_FACT */
    float *rms;           /* [L, E] root mean square output norm; a cold expert has the median of those above 0 */
    float *contribution;  /* [L, E] mean w ||E_e(x)|| over the expert's tokens (REAP's score); 0 cold */
    uint64_t *bare_count; /* [L, E] as expert_count, expert_norms and contribution, but of the tokens of common input and of the */
    float *bare_norms, *bare_contribution; /* experts that REAP's code gives them; 0 cold; all three or none */
    float *similarity;    /* [L, E, E] 1 - d/dmax, d the root mean square of ||E_s - E_t|| over the tokens of the
                           * pair, dmax the layer's largest; 1 on the diagonal, 0 unobserved */
    float *frobenius;     /* [L, E, E] ||U - S V||_F / ||U||_F over the pair's tokens, none weighted; as loss on the diagonal and
                           * unobserved */
    float *std_error;     /* [L, E, E] of S, weighted jackknife over sequences; EXF_ERROR_UNKNOWN below two sequences, 0 on the
                           * diagonal; NULL where the statistics lack its sums */
    float *half_scalar[2], *half_loss[2]; /* [L, E, E] coeff and loss of each half of the data alone (statistics.h); NULL where
                                           * the statistics lack its sums or a half has no sequence; one block each, half 0's */
    exf_static_pool *pool;
    int n_pools;
    uint64_t *sequence_digest; /* [n_sequences] the first 8 bytes of each sequence's SHA-256 (data.h), rising; NULL: not known */
    exf_sketch_set sketches;   /* of the documents of these sequences; empty: not known */
    exf_shared_scalar *shared; /* by name */
    int n_shared;
    exf_budget *budget; /* by falling budget, then by rule; NULL where the recipe asked for none */
    int n_budgets;
    exf_norm_head norm_head;
    exf_vectors vectors;
    exf_provenance provenance;
} exf_tables;

/* Allocates the arrays of version 1; the others are NULL until a solver or the functions below allocate them. */
exf_code exf_tables_new(exf_tables *t, const exf_run_shape *shape, const int32_t *layer_number, int n_layers,
                        const int64_t *pool_sizes, size_t n_pools, exf_err *err) EXF_CHECKED;
/* Adds a static pool by norm of that size, which is to be solved; EXF_USAGE for a size that the model has not.  After an error
 * t is freed as before. */
exf_code exf_tables_add_pool(exf_tables *t, int64_t size, exf_err *err) EXF_CHECKED;
/* Adds a sharing pattern of that name at its place in t->shared; EXF_INTERNAL if the name is too long. */
exf_code exf_tables_add_shared(exf_tables *t, const char *name, exf_shared_scalar **out, exf_err *err) EXF_CHECKED;
/* Returns 1 if `cosine` holds correlation matrices: the tables' EXF_CORRELATIONS_FACT says so. */
int exf_tables_valid_correlations(const exf_tables *t);
/* Allocates cosine and what beside it came with EXF_CORRELATIONS_FACT. */
exf_code exf_tables_add_correlations(exf_tables *t, exf_err *err) EXF_CHECKED;
/* Allocates half_scalar and half_loss. */
exf_code exf_tables_add_halves(exf_tables *t, exf_err *err) EXF_CHECKED;
/* Returns tables whose coeff and loss are those of half 0 or 1 of the data; t has them.  All arrays are borrowed from t, so that
 * nobody frees the result; what else t has (pools, measures, budgets) is of the whole data. */
exf_tables exf_tables_half(const exf_tables *t, int half);
/* Returns 1 if the tables' pairs are of common input: every expert ran on the same tokens. */
int exf_tables_of_common_input(const exf_tables *t);
/* The tables' index of a layer of the model; -1: they do not hold it. */
int exf_tables_index(const exf_tables *t, int layer);
void exf_tables_free(exf_tables *t);

/* Writes a file of tables; its digest goes into `digest`, unless that is NULL. */
exf_code exf_tables_write(const exf_tables *t, const char *target, int force, char digest[EXF_SHA256_HEX],
                          exf_err *err) EXF_CHECKED;
/* Reads tables and refuses those that break the rules above: non-finite numbers, negative losses, a
 * diagonal that is not (1, never), a pair without tokens that has a loss, norms below 0, a norm of 0 of an
 * expert without tokens, pool ids outside [0, E), an expert twice in a pool, counts that cannot be (data.h), cosines and
 * similarities outside their range.  t->vectors stay empty, since they may be gigabytes: exf_tables_read_vectors() reads
 * them.  Tables that others made are read too, from safetensors: tables_safetensors.c. */
exf_code exf_tables_read(exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Reads the .safetensors file of tables that others made: EXF_FORMAT naming what tables_safetensors.c does not expect. */
exf_code exf_tables_read_safetensors(exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Checks tables in memory by the same rules: EXF_FORMAT naming path, dataset and cell. */
exf_code exf_tables_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Checks [L, E, E] losses other than those of the pair's own scalar: finite, at least 0, never where
 * the pair's own loss is never. */
exf_code exf_losses_check(const exf_tables *t, const float *loss, const char *name, const char *path, exf_err *err) EXF_CHECKED;

/* ---- tables by name (artifact_tables.c) ---------------------------------- */

/* Lists the contents of a tables file as named tensors: export targets
 * without a layout of their own write them, exfold-inspect verify compares them.
 *
 *   coeff, loss                       F32 [L, E, E]   count         U64 [L, E, E]
 *   expert_norms                      F32 [L, E]      expert_count  U64 [L, E]
 *   cosine, similarity, frobenius, std_error  F32 [L, E, E]   rms, relative_norms, contribution  F32 [L, E]
 *   least_eigenvalue, median_cosine_sq, near_copies  F32 [L]
 *   pools.<D>.members I32 [L, D], pools.<D>.target_ids I32 [L, E], pools.<D>.target_scale F32 [L, E]
 *   shared.<name>.scalar F32 [L], shared.<name>.loss F32 [L, E, E]
 *   norm_head.<part> F32, as tables_norms.c has them
 *   vectors.pair I32 [N, 3], vectors.diagonal F32 [N, H], vectors.diagonal_loss F32 [L, E, E],
 *   vectors.basis F32 [L, H, R], vectors.lowrank.<R>.c F32 [N, R, H]
 *
 *   half_scalar, half_loss            F32 [2, L, E, E], if `halves`: exports leave them out
 *
 * What the tables lack is not in the list. */
enum { EXF_TABLE_NAME = 64 };

typedef struct {
    exf_tensor *tensor; /* data borrowed from the tables */
    char (*name)[EXF_TABLE_NAME];
    size_t n;
} exf_table_list;

exf_code exf_table_list_make(exf_table_list *l, const exf_tables *t, int halves, exf_err *err) EXF_CHECKED;
void exf_table_list_free(exf_table_list *l);

/* ---- experts by a criterion (tables.c) ------------------------------------ */

/* By what the experts of a layer are ranked. */
typedef struct {
    exf_pool_criterion by; /* not energy, which is in the statistics alone */
    int bare;              /* 1: over the routes of REAP's code; 0: over the model's */
} exf_expert_rank;

/* EXF_USAGE, with the command that mends it, where the tables do not say what experts have of it. */
exf_code exf_tables_rank_check(const exf_tables *t, exf_expert_rank r, exf_err *err) EXF_CHECKED;
/* Returns what an expert of layer index l has of it; sums over routes are a mean times their number. */
double exf_tables_score(const exf_tables *t, exf_expert_rank r, size_t l, size_t expert);
/* Allocates the bare arrays. */
exf_code exf_tables_add_bare(exf_tables *t, exf_err *err) EXF_CHECKED;

/* ---- vectors (tables_vectors.c) ------------------------------------------ */

/* Returns the array of that name and rank, or NULL; rank 0: of any R. */
const exf_vector_array *exf_vectors_find(const exf_vectors *v, const char *name, int rank);
float *exf_vectors_data(const exf_vectors *v, const char *name, int rank);
/* Writes the array's name: "diagonal", or "lowrank/8/c". */
enum { EXF_VECTOR_NAME = 40 };
void exf_vector_array_name(char out[EXF_VECTOR_NAME], const exf_vector_array *a);
void exf_vectors_free(exf_vectors *v);
/* What a projector stores (artifact/projector.h); the array without a name ends each list. */
extern const exf_stored_array exf_stored_diagonal[], exf_stored_lowrank[];
const exf_stored_array *exf_stored_array_find(const char *name); /* NULL: no projector stores it */
/* Adds the array of that name at its place in t->vectors, whose pairs are listed, or returns the one
 * that exists; rank: R, or 0 if the shape has none.  EXF_INTERNAL: no projector stores such a name. */
exf_code exf_vectors_add(exf_tables *t, const char *name, int rank, float **out, exf_err *err) EXF_CHECKED;
exf_tensor exf_vector_array_tensor(const exf_tables *t, const exf_vector_array *a); /* without a name */

/* Returns 1 if arrays of that shape have a row for each pair. */
static inline int exf_stored_by_pair(exf_stored_shape shape)
{
    return shape == EXF_STORED_PAIRS || shape == EXF_STORED_RANKS;
}

/* ---- vectors in files (tables_vectors_file.c) ----------------------------- */

/* Writes the vectors; nothing for tables without any. */
exf_code exf_vectors_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the file's vectors into t->vectors, which exf_tables_read() leaves empty. */
exf_code exf_tables_read_vectors(exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Checks vectors in memory by the rules of reading: EXF_FORMAT naming path, dataset and element. */
exf_code exf_vectors_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;

/* ---- sequences (tables_sequences.c) -------------------------------------- */

/* Fills sequence_digest and sketches from the list of the statistics, which has shape.n_sequences; does nothing where it is not
 * known. */
struct exf_sequence_list;
exf_code exf_tables_take_sequences(exf_tables *t, const struct exf_sequence_list *s, exf_err *err) EXF_CHECKED;
/* Returns 1 if the tables are of the sequence of that digest. */
int exf_tables_has_sequence(const exf_tables *t, const unsigned char sha256[32]);
/* Write and read both; nothing for tables without any. */
exf_code exf_tables_sequences_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_tables_sequences_read(exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Checks their order: EXF_FORMAT naming path and element. */
exf_code exf_tables_sequences_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;

/* ---- budgets (tables_budgets.c) ------------------------------------------ */

enum { EXF_BUDGET_PARTS = 7 };
/* Describes part i of a budget, with its name in the group, "predicted/mean"; the data are borrowed, NULL where it has none. */
exf_tensor exf_budget_tensor(const exf_tables *t, const exf_budget *b, int i);
/* Writes the budgets; nothing for tables without any. */
exf_code exf_budgets_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the budgets of a file that has the group into t->budget, in their order. */
exf_code exf_budgets_read(exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Checks budgets in memory: EXF_FORMAT naming path and dataset. */
exf_code exf_budgets_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Adds a budget at its place and allocates its arrays; *out stays valid until the next is added. */
exf_code exf_budgets_add(exf_tables *t, double budget, const char *rule, exf_budget **out, exf_err *err) EXF_CHECKED;
/* Makes room for a budget's threshold by predicted norms. */
exf_code exf_budgets_add_predicted(const exf_tables *t, exf_budget *b, exf_err *err) EXF_CHECKED;
/* Removes one of t's budgets. */
void exf_budgets_remove(exf_tables *t, exf_budget *b);

/* ---- the norm head (tables_norms.c) --------------------------------------- */

enum { EXF_NORM_HEAD_PARTS = 6 };
/* Describes part i of the head, with its name in the group; the data are borrowed. */
exf_tensor exf_norm_head_tensor(const exf_tables *t, int i);
/* Allocates a head of q directions; after an error t is freed as before. */
exf_code exf_norm_head_new(exf_tables *t, int q, exf_err *err) EXF_CHECKED;
void exf_norm_head_free(exf_norm_head *n); /* accepts zeroed memory */
uint64_t exf_norm_head_bytes(const exf_run_shape *shape, int n_layers, int q); /* 0 where q is */
/* Returns the tokens below which an expert goes by its rms. */
uint64_t exf_norm_head_tokens(int q);
/* Returns log rms of expert `at` of [L, E], which such an expert's head predicts. */
double exf_norm_head_mean(const exf_tables *t, size_t at);
/* Writes the head; nothing for tables without one. */
exf_code exf_norm_head_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the head of a file that has the group. */
exf_code exf_norm_head_read(exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Checks a head in memory: EXF_FORMAT naming path, dataset and element. */
exf_code exf_norm_head_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
#endif
