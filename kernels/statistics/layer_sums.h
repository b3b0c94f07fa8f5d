/* layer_sums.h - adds up the sums of one layer's routed expert outputs: pair sums and expert
 * sums, the sufficient statistics of the tables (docs/method.md, section 1; paper, appendix "shared
 * scalar").
 *
 * For every token and every ordered pair s != t of its top-K, with source output
 * u = E_s(x), target output v = E_t(x), both unweighted, and weight
 * w = ||u|| (source_norm), 1 (none) or the router's weight of s (router):
 *
 *   pair sums [E, E], row s, column t         expert sums [E]
 *     dot        w <v,u>                        norm_sum          ||E_e(x)||
 *     target_sq  w ||v||^2                      sq_sum            ||E_e(x)||^2
 *     source_sq  w ||u||^2                      route_weight_sum  w_e
 *     dot0       <u,v>                          contribution_sum  w_e ||E_e(x)||
 *     sq0        ||u||^2                        energy_sum        (w_e ||E_e(x)||)^2
 *     cosine_sum <u,v> / (||u|| ||v||)          norm_count        1
 *     count      1
 *
 * and of the layer empty_slots, 1 for each slot without an expert.  A cosine with an output of norm 0 is 0.
 *
 * Products are double (eight lanes, fixed order over H); sums are exact
 * (base/exact.h), so they do not depend on the order of tokens. */

#ifndef EXF_KERNELS_LAYER_SUMS_H
#define EXF_KERNELS_LAYER_SUMS_H
#include "base/err.h"
#include "base/exact.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- faults: a term that the exact sums cannot hold -----------------------------------------
 * The sentences are the same whether the host or a device finds it.  The caller prefixes where: layer, sequence, token. */

/* The fault that a device notes: the one of the smallest place, then of the smallest a and b.  Zeroed: none. */
typedef struct {
    unsigned long long place; /* complement of the row of the run, or of the sequence; 0: none */
    int32_t lock;             /* 1 while a thread writes the others; 0 when a queue is done */
    int32_t a, b;             /* an expert, or source and target, or a pair's number and a column */
    double x, y;
} exf_sums_fault;

/* The place of a fault: a row or a sequence; the other of the two is -1. */
typedef struct { int64_t row, sequence; } exf_sums_place;

/* The functions return EXF_NUMERIC.  route_weight: NULL where all experts were run. */
exf_code exf_output_fault(exf_err *err, int expert, double squared_norm, const double *route_weight);
exf_code exf_sequence_fault(exf_err *err, uint64_t sequence, int source, int target, double dot, double target_sq);
exf_code exf_vector_fault(exf_err *err, int source, int target, double sum);
exf_code exf_root_fault(exf_err *err, double weight);

/* ---- sums of routed outputs ---------------------------------------------------------------- */

typedef enum { EXF_WEIGHT_SOURCE_NORM, EXF_WEIGHT_NONE, EXF_WEIGHT_ROUTER } exf_weighting;

/* The arrays of one layer's sums; each zeroed or holding earlier sums. */
typedef struct {
    exf_exact *dot, *target_sq, *source_sq, *dot0, *sq0, *cosine_sum; /* [E, E] */
    uint64_t *count;                                                  /* [E, E] */
    exf_exact *norm_sum, *sq_sum, *route_weight_sum, *contribution_sum, *energy_sum; /* [E] */
    uint64_t *norm_count;                                /* [E] */
    uint64_t *empty_slots;                               /* [1] */
} exf_layer_sums;

/* Adds n_tokens tokens: outputs [T, K, H], or with outputs NULL their inner products, grams [T, K, K]; ids [T, K] (distinct within
 * a token; -1: the slot is empty, and only counted as such), weights [T, K].  EXF_NUMERIC naming token and expert when a product
 * is not finite or leaves the range of exf_exact; the sums are then undefined.
 * scratch: K*K doubles, for the inner products of a token's outputs. */
exf_code exf_layer_sums_add_cpu(const exf_layer_sums *m, int n_experts, int top_k, int d_model, int n_tokens, const float *outputs,
                                const double *grams, const int32_t *ids, const float *weights, exf_weighting weighting,
                                double *scratch, exf_err *err) EXF_CHECKED;

/* Adds only the expert sums, for tokens whose pair sums come from common input. */
exf_code exf_layer_sums_add_experts_cpu(const exf_layer_sums *m, int top_k, int d_model, int n_tokens, const float *outputs,
                                        const int32_t *ids, const float *weights, exf_err *err) EXF_CHECKED;

/* ---- outputs in device memory ------------------------------------------------
 * The same sums, kept in device memory and copied to the host once per layer.  An inner product is
 * added up in float32 over runs of 64 elements and in double from there on: <u,v> is
 * within 2^-18 ||u|| ||v|| of the exact one (and far nearer where signs mix), norms
 * and weights follow from it.
 * Terms are then rounded to the grid of exf_exact and added as integers, so the
 * sums depend on no order, no split and no number of queues. */
typedef struct {
    int n_experts, top_k, d_model, n_tokens;
    exf_matrix outputs;  /* [T, K, H] */
    const int32_t *ids;   /* [T, K]; -1: an empty slot */
    const float *weights; /* [T, K] */
    exf_weighting weighting;
    int experts_only;     /* 1: the expert sums alone */
    double *sq;           /* [T, K] gets the squared norms of the outputs; NULL: they are not wanted */
    int64_t row;          /* of the first token, for messages */
} exf_layer_sums_call;

/* ---- outputs that another program has in a GPU's memory, on a CUDA stream of its own ---------------------------------- */

/* Rows of an engine in CUDA memory; what they become in host memory. */
typedef struct {
    int top_k, d_model, n_tokens;
    exf_matrix outputs;      /* [T, K, H] aligned to 16 bytes */
    const int32_t *ids;      /* [T, K] */
    const float *weights;    /* [T, K] */
    const double *stream_sq; /* [T] or NULL */
    void *stream;            /* cudaStream_t, whose work so far makes these */
    double *grams;           /* [T, K, K] in host memory gets the inner products of a token's outputs, with the bits of
                              * exf_layer_sums_add_cpu: double, eight lanes in fixed order over H */
    int32_t *host_ids;       /* in host memory get copies */
    float *host_weights;
    double *host_stream_sq;
} exf_grams_call;

/* Queues the products and copies on the stream and waits for them.  EXF_DEVICE: CUDA failed, or the build is without it. */
exf_code exf_layer_sums_grams_cuda(const exf_grams_call *c, exf_err *err) EXF_CHECKED;

/* Sums over sequences, for a jackknife: with a = scale times a sequence's own dot and
 * b = scale times its own target_sq, each rounded once to double; and the pair sums of some sequences alone, one half. */
typedef struct {
    exf_exact *aa, *ab, *bb; /* [E, E] */
    uint64_t *sequences;     /* [E, E] that observed the pair */
    exf_exact *half_dot, *half_target_sq, *half_source_sq; /* [E, E] */
    uint64_t *half_count;    /* [E, E] */
} exf_sequence_sums;

/* Bytes of GPU memory for the sums of a layer; zero them before the first call. */
size_t exf_layer_sums_bytes_cuda(int n_experts);
void exf_layer_sums_add_cuda(exf_queue *q, void *sums, const exf_layer_sums_call *c);
/* Waits, copies the sums to `to` and, where not NULL, `over`, at the bus's rate if these are pinned, and zeroes them.  EXF_NUMERIC,
 * naming experts, where a term was out of range; *place then says where. */
exf_code exf_layer_sums_take_cuda(exf_queue *q, void *sums, const exf_layer_sums *to, const exf_sequence_sums *over,
                                  int n_experts, exf_sums_place *place, exf_err *err) EXF_CHECKED;
/* Ends a sequence: the tokens added since the last call (or the last take) are one. */
void exf_layer_sums_close_sequence_cuda(exf_queue *q, void *sums, int n_experts, double scale, uint64_t sequence);
/* Adds (add 1) the pair sums so far to those of the half, or takes them from these (add 0): called with 0 before a run of sequences
 * of that half and with 1 after it, it leaves their sums there. */
void exf_layer_sums_turn_half_cuda(exf_queue *q, void *sums, int n_experts, int add);

/* Returns 1 if the cell of a pair has cosine_sum, 0 if it has dot0: both are the same for source and target exchanged, so that each
 * needs one of the two cells. */
static inline EXF_HD int exf_cell_has_cosine(int source, int target)
{
    return source > target;
}

/* Cells of the sums before and after the terms of a few tokens are added: what was added is their difference, exactly.  A row of
 * experts has a cell for each pair of them and one for each expert. */
enum { EXF_CELL_VALUES = 6, EXF_CELL_WORDS = 32 };
typedef struct {
    int n_experts, n_rows, width;
    const int32_t *ids; /* [n_rows, width] distinct within a row; -1: no expert, whose cells give 0 */
    uint64_t *before;   /* [n_rows, width, width, EXF_CELL_WORDS] scratch in device memory */
    double *added;      /* [n_rows, width, width, EXF_CELL_VALUES] in device memory: [i, a, b] gets dot, target_sq, source_sq,
                         * what exf_cell_has_cosine() says, sq0 and count of source a and target b; [i, a, a] norm_sum, sq_sum,
                         * route_weight_sum, contribution_sum, energy_sum and norm_count of expert a */
} exf_cells_call;
void exf_layer_sums_cells_before_cuda(exf_queue *q, const void *sums, const exf_cells_call *c);
void exf_layer_sums_cells_added_cuda(exf_queue *q, const void *sums, const exf_cells_call *c);

/* ---- pair sums of common input: of tokens on which all E experts of a layer ran, every ordered pair ---- */

/* Tokens of a sequence whose terms are added in double before they are added exactly. */
enum { EXF_COMMON_INPUT_UNIT = 8 };

/* Adds only the pair sums, of common input: outputs [T, E, H] of all experts, every
 * ordered pair s != t.  A token's products are one symmetric matrix product in double
 * (dot = (W U) V'), its pairs' terms are added up over the call in order of tokens, in
 * double, and that total is added exactly: equal calls give equal bits in any order.
 * EXF_WEIGHT_ROUTER is EXF_INTERNAL, for the router weighs its choices only.
 * scratch: exf_layer_sums_common_input_scratch() doubles. */
exf_code exf_layer_sums_add_common_input_cpu(const exf_layer_sums *m, int n_experts, int d_model, int n_tokens,
                                             const float *outputs, exf_weighting weighting, double *scratch,
                                             exf_err *err) EXF_CHECKED;
size_t exf_layer_sums_common_input_scratch(int n_experts, int d_model);

/* Common input on a device: first the Gram matrices C[s, t] = <u_s, u_t> of all tokens in
 * one call, then sums over some of these tokens.  A product accumulates in float32 over H:
 * within H 2^-24 ||u|| ||v|| of the exact one.  A token's bits do not depend on where in
 * the call it is nor on what is beside it, but they may on how many products the call
 * makes: callers keep to one number and pay for what they do not use.
 * The sums are those of exf_layer_sums_add_common_input_cpu: norms and weights from the diagonal of
 * C, terms in double in order of tokens over EXF_COMMON_INPUT_UNIT of them, counted from the
 * call's first, each unit's total added exactly.  A norm above 2^20 is out of range. */
typedef struct {
    int n_experts, d_model;
    int n_products;     /* tokens for which outputs has memory, used or not */
    exf_matrix outputs; /* [n_products, E, H] */
    void *gram_matrices; /* gram_matrices_bytes() of device memory; read by exf_common_input_call */
} exf_gram_call;

typedef struct {
    const exf_gram_call *of;
    int first, n_tokens;  /* the call's tokens [first, first + n_tokens) */
    exf_weighting weighting; /* not the router's */
    const int32_t *row;   /* on the device: row_offset + row[i] is token first + i's, for messages */
    int64_t row_offset;
} exf_common_input_call;

/* Tokens of one call that fill a device, at most 32 MB of products; a multiple of the unit. */
static inline int exf_gram_tokens(int n_experts)
{
    int64_t most = ((int64_t)8 << 20) / ((int64_t)n_experts * n_experts) / EXF_COMMON_INPUT_UNIT * EXF_COMMON_INPUT_UNIT;
    return most < EXF_COMMON_INPUT_UNIT ? EXF_COMMON_INPUT_UNIT : most > 128 ? 128 : (int)most;
}

/* Bytes of gram_matrices. */
size_t exf_gram_matrices_bytes_cuda(int n_experts, int n_products);
void exf_gram_matrices_cuda(exf_queue *q, const exf_gram_call *c);
/* Must not run while another queue adds to the same sums (exf_layer_sums_bytes_cuda). */
void exf_layer_sums_add_common_input_cuda(exf_queue *q, void *sums, const exf_common_input_call *c);

/* ---- element-wise products of pairs, on a device, for the diagonal projector (accumulate/vector_sums.h) ----
 *
 *   vu[p] += w v*u, vv[p] += w v*v    [H], of the tokens that chose both of pair p's experts
 *
 * with u, v and w as above.  Terms are double (w from a double norm), added up in order of tokens over a unit, which is the
 * caller's: as many calls as it likes, the first of which begins it and the last ends it.  A unit's total is then added
 * exactly, so only what a unit is matters, not how the run is cut into calls. */

/* Two slots of one token, counted from the call's first. */
typedef struct {
    int32_t source, target;
} exf_pair_slots;

/* The sums of a layer; all arrays are in device memory. */
typedef struct {
    exf_exact *vu, *vv;  /* [P, H] */
    double *open;        /* [P, 2, H] totals of a unit that later calls continue */
    const int32_t *pair; /* [P, 2] source, target */
    int n_pairs;
    exf_sums_fault *bad; /* of the smallest first row of a call whose sums left the range: pair, column and sum */
} exf_diagonal_sums;

typedef struct {
    int top_k, d_model, n_tokens;
    exf_matrix outputs;   /* [T, K, H] */
    const int32_t *ids;   /* [T, K] distinct within a token; -1: an empty slot */
    const float *weights; /* [T, K] */
    exf_weighting weighting;
    double *root;         /* [T, K] scratch */
    int begins, ends;     /* 1: the unit's first, last call */
    int64_t row;          /* of the first token, for messages */
} exf_diagonal_call;

void exf_diagonal_add_cuda(exf_queue *q, const exf_diagonal_sums *to, const exf_diagonal_call *c);

/* ---- the scalar of a pair, in closed form (docs/method.md, section 2; paper, eq. "shared scalar") ----
 *
 *   S = clip(dot / (target_sq + lambda)), 0 where there is nothing to divide by
 *
 * It is here because both the second sweep of accumulate and solve use it. */

typedef struct {
    double ridge; /* lambda >= 0 */
    int clip;     /* 0: not clipped, the limits mean nothing */
    double clip_min, clip_max;
} exf_scalar_rule;

static inline double exf_pair_scalar(const exf_scalar_rule *r, double dot, double target_sq)
{
    double divisor = target_sq + r->ridge, s = divisor > 0 ? dot / divisor : 0;
    if (!r->clip) return s;
    return s < r->clip_min ? r->clip_min : s > r->clip_max ? r->clip_max : s;
}

#ifdef __cplusplus
}
#endif
#endif
