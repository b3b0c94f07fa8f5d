/* exfold/fold.h - folding as a runtime calls it: route metadata in, fewer experts out.
 *
 * A router gave every token K experts and weights.  These functions rewrite that so that fewer experts run and the omitted ones'
 * contributions go to kept ones through the calibrated scalars, E_s(x) ~ S[s,t] E_t(x).  The MoE kernel stays as it is.
 *
 *   exf_fold_prefill        [T, K] -> [T, P]       P routes a token (paper, "prefill"); or [T, N], the slots after P empty
 *   exf_fold_prefill_joint  [T, K] -> [T, P]       the same routes, jointly optimal weights
 *   exf_fold_prefill_budget [T, K] -> [T, N]       as many routes as each token needs, the rest empty
 *   exf_fold_decode         [B, K] in place        at most D distinct experts in the batch
 *   exf_fold_decode_joint   [B, K] in place        the same with jointly optimal weights
 *   exf_fold_decode_static  [B, K] in place        a pool fixed beforehand
 *   exf_fold_decode_stand_ins  [B, K] in place     either pool; the router's scores choose what stands in
 *   exf_fold_explain        what one of them does with one token's routes, on the host
 *   exf_fold_layers_load    the tables of a model's layers, from a file
 *   exf_fold_variant_read   "P4:projector=joint+D64", as exfold-validate spells it: which of these calls, with which options
 *
 * docs/folding-in-an-engine.md says which call when.
 *
 * Each has a plain reference, _cpu, on host pointers, and, in a library built with CUDA, _cuda, on device pointers and a stream (a
 * cudaStream_t of the current device); the structs themselves are always in host memory and free to go when the call returns.
 * Nothing is allocated, nothing waits for the device, nothing is kept between calls: all are safe inside CUDA graphs and from
 * several threads.  Both forms do the same operations, each rounded once, in the same order, whatever the launch: what _cpu and
 * _cuda give is equal bit for bit.  16-bit weights are the float32 ones rounded to nearest even.
 *
 * Limits: 3 <= E <= 512, 1 <= K <= 16, K <= E, T and B from 0 (nothing to do).  A pool is chosen among at most 65,536 slots, B K.
 * Returns an exf_fold_status: BAD_ARGUMENT for what contradicts itself or this page, UNSUPPORTED for what is beyond the limits,
 * DEVICE for a launch that CUDA refused, FILE for a file of tables (exf_fold_status_text says so in words); on any but EXF_FOLD_OK
 * nothing was written.  An id outside [0, E), -1 say, is a slot without an expert: it counts for nothing and stays as it is
 * (decode), or ranks last and is never rescaled (prefill).  Weights and tables are taken to be finite; where they are not, weights
 * that depend on them are undefined, ids are the CPU's still (NaN ranks below every number), and no memory is touched that would
 * not have been.
 *
 * Options begin with EXF_FOLD_..._INIT, which writes their defaults and, as `size`, which members the caller knows; then max_loss
 * and ridge are what they say, 0 too.  A struct of a later minor version may be longer: the members that a library does not know
 * must be 0, else it answers UNSUPPORTED, so that an option is never ignored.  `reserved` members are 0 in the same way.
 *
 * API 1.1 had no `size`: its structs began with `keep`, `pool` or `rule`, which are never negative, as `size` is when it is read as
 * an int.  A struct without it is read as 1.1 read it: max_loss and ridge of 0 are the defaults there, EXF_FOLD_ZERO is 0 itself.
 *
 *     exf_fold_routes r = {.ids = ids, .weights = weights, .rows = batch, .width = 8};
 *     exf_fold_tables t = {.coeff = S, .loss = L, .norms = h, .n_experts = 128};
 *     exf_fold_decode_options o = EXF_FOLD_DECODE_INIT;
 *     o.pool = 64;
 *     if (exf_fold_decode_cuda(&r, &t, &o, stream) != EXF_FOLD_OK) ...
 *
 * examples/fold.c is a whole program; cc fold.c $(pkg-config --cflags --libs exfold-fold) */
#ifndef EXFOLD_FOLD_H
#define EXFOLD_FOLD_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* The release that this header came with; what it adds needs a new release, never a new ABI. */
#define EXF_FOLD_VERSION_MAJOR 0
#define EXF_FOLD_VERSION_MINOR 1
#define EXF_FOLD_VERSION_PATCH 1
#define EXF_FOLD_VERSION (EXF_FOLD_VERSION_MAJOR * 10000 + EXF_FOLD_VERSION_MINOR * 100 + EXF_FOLD_VERSION_PATCH)

/* What this page describes.  A minor version adds: what was compiled or written for an earlier one goes on as it was. */
#define EXF_FOLD_API_MAJOR 1
#define EXF_FOLD_API_MINOR 6
#define EXF_FOLD_API (EXF_FOLD_API_MAJOR * 100 + EXF_FOLD_API_MINOR)

#define EXF_FOLD_ABI 2         /* changes when programs must be compiled anew; the shared library's soname has it */
#define EXF_FOLD_NEVER 1e30f   /* a loss from here on: no target */
#define EXF_FOLD_NO_LIMIT EXF_FOLD_NEVER /* for max_loss: every pair that was observed */
#define EXF_FOLD_RIDGE 1e-2f   /* the default of `ridge` */
#define EXF_FOLD_ZERO (-1.0f)  /* for max_loss and ridge: 0 itself, in a struct with and without `size` */
/* What `size` is of a struct of options; the bit tells it from what API 1.1 had in its place. */
#define EXF_FOLD_SIZE_BIT 0x80000000u
#define EXF_FOLD_SIZED(type) (EXF_FOLD_SIZE_BIT | (uint32_t)sizeof(type))

#if defined(__GNUC__)
#define EXF_FOLD_CHECKED __attribute__((warn_unused_result))
#else
#define EXF_FOLD_CHECKED
#endif

typedef enum { EXF_FOLD_OK, EXF_FOLD_BAD_ARGUMENT, EXF_FOLD_UNSUPPORTED, EXF_FOLD_DEVICE, EXF_FOLD_FILE } exf_fold_status;

/* Returns the meaning of a status as a phrase for a message; of any other number too.  The text is static. */
const char *exf_fold_status_text(exf_fold_status status);
/* EXF_FOLD_VERSION, EXF_FOLD_ABI and EXF_FOLD_API of the library that runs: for a program that was linked with one
 * and meets another, and for one that loads the library by name (a library of API 1.1 has no exf_fold_api). */
int exf_fold_version(void);
int exf_fold_abi(void);
int exf_fold_api(void);

typedef enum { EXF_FOLD_F32, EXF_FOLD_BF16, EXF_FOLD_F16 } exf_fold_real;
typedef enum { EXF_FOLD_I32, EXF_FOLD_I64 } exf_fold_int;

/* Row-major and contiguous.  A batch may be padded, as that of a captured graph is: the rows from *count on, and those whose
 * mask is 0, are padding, as if none of their slots had an expert.  They enter no pool and decode leaves them as they are;
 * prefill writes their first slots as they are (and a budget empty ones, without `padding`).  *count below 0 is 0, above `rows`
 * is `rows`.  Both are read when the kernel runs, in memory as the routes are, and overlap nothing that is written.  A prefill
 * takes them from `in`; those of `out` are NULL or the same.
 *
 * `norms` are what a token's experts are expected to put out, in place of what they put out in the mean: the number n of each
 * slot stands wherever its expert's h, rms or relative norm does below, in the order of routes, in G, in residuals and in
 * importance, and the tables need none of them then.  An expert that decode's joint forms put in a slot's place has its own norm
 * of G times n over that of the slot's own expert (its own where that is not above 0): these need norms of G.  Norms are taken to
 * be finite and above 0, overlap nothing that is written, and are NULL in `out`; a call that reads no mean norm reads none of
 * them.
 *
 * Tables with a norm head (docs/method.md, section 13) predict them from the block's normed input x, the router's logits z and
 * the weights w before any expert runs, with V [H, q] and theta [E, q + 4] of the layer, norm_head.basis and norm_head.theta of
 * the file:
 *     p = V'x                                             a product [rows, H] [H, q]
 *     phi = [1, p, z[e] - mean(z), log(max(w, 1e-6)), log(max(||x||, 1e-10))]
 *     n = exp(theta[e] . phi)                             q + 4 products of each route */
typedef struct {
    void *ids;     /* [rows, width] */
    void *weights; /* [rows, width] */
    exf_fold_int id_type;
    exf_fold_real weight_type;
    int rows, width;
    const int32_t *count; /* how many rows there are; NULL: `rows` */
    const uint8_t *mask;  /* [rows] not 0: a row; NULL: all are */
    const float *norms;   /* [rows, width] n of each route; NULL: its expert's mean norm, h or rms */
    int reserved[8 - 3 * (int)(sizeof(void *) / sizeof(int))]; /* 0 */
} exf_fold_routes;

/* One layer's tables, float32; E = n_experts.  What a function does not name may be NULL.  `cosine` of tables that exfold-solve
 * made is a correlation matrix, positive definite; means of cosines, which are not of the same tokens, need not be one
 * (docs/method.md, section 14). */
typedef struct {
    const float *coeff;  /* [E, E] S[s,t], row = source */
    const float *loss;   /* [E, E] L[s,t]; >= EXF_FOLD_NEVER: never */
    const float *norms;  /* [E] h, mean output norm */
    const float *cosine; /* [E, E] correlation of two experts' outputs; joint forms only */
    const float *rms;    /* [E] root mean square output norm; joint forms and energy only */
    int n_experts;
    int reserved_int;        /* 0 */
    const float *relative_norms; /* [E] the norms of joint forms, whose ratios are those of the tokens that two experts share;
                                  * NULL: rms */
    const void *reserved[5]; /* NULL */
} exf_fold_tables;

/* ---- prefill -------------------------------------------------------------- */
/* The number by which routes are ranked: w h, w, or h. */
typedef enum { EXF_FOLD_BY_SCORE_NORM, EXF_FOLD_BY_SCORE, EXF_FOLD_BY_NORM } exf_fold_rank;
/* Afterwards the kept weights are multiplied so that their sum, or the root of the sum of their squares, is the original K weights'
 * (left alone unless both are above 0). */
typedef enum { EXF_FOLD_RESCALE_NONE, EXF_FOLD_RESCALE_SUM, EXF_FOLD_RESCALE_L2 } exf_fold_rescale;

typedef struct {
    uint32_t size;       /* of EXF_FOLD_PREFILL_INIT */
    exf_fold_rank rank;
    float max_loss;      /* a pair above it is no target; 0: only pairs without loss; EXF_FOLD_NO_LIMIT */
    exf_fold_rescale rescale;
    int confidence;      /* 1: c = clamp(1 - L[s,t], 0, 1); (w S) c goes to the target and w (1 - c) to the
                          * kept routes in proportion to their original weights (to nobody where the
                          * sum of those is not above 0); c = 0 without a target */
    float ridge;         /* rho, joint form only; 0: none */
    int keep;            /* P, 1 to the width N of out; 0: N */
    int repeat;          /* 1: an empty slot has the id of the first kept route instead of -1 */
    int reserved[8];     /* 0 */
} exf_fold_prefill_options;
#define EXF_FOLD_PREFILL_INIT                                                                                                  \
    {EXF_FOLD_SIZED(exf_fold_prefill_options), EXF_FOLD_BY_SCORE_NORM, EXF_FOLD_NO_LIMIT, EXF_FOLD_RESCALE_NONE, 0,            \
     EXF_FOLD_RIDGE, 0, 0, {0}}

/* out [T, N], of in's types, N from P to K: P routes by falling rank, ties to the lower slot, then N - P empty slots: id -1 and
 * weight 0, which kernels skip (-1 whatever `repeat` where no slot of the row has an expert).  With N = K and a mask of the rows in
 * prefill one call does for a step that decodes too, whose rows are left.  Each omitted route goes to the kept one of least loss,
 * ties to the earlier; w~[t] += w[s] S[s,t], in order of rank; without a target it is dropped.  All in float32, sums in order of
 * rank.  With P = K the routes come out reordered and otherwise as they were.  out must not overlap in.
 * Uses coeff, loss, norms (not with BY_SCORE). */
exf_fold_status exf_fold_prefill_cpu(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                     const exf_fold_prefill_options *o) EXF_FOLD_CHECKED;
exf_fold_status exf_fold_prefill_cuda(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                      const exf_fold_prefill_options *o, void *stream) EXF_FOLD_CHECKED;
/* The same kept set with w~_B = w_B + (G_BB + rho mean(diag G_BB) I)^-1 G_BO w_O, where
 * G[a,b] = cosine[a,b] n[a] n[b], n being relative_norms, or rms without them; solved in double (L D L'), B in order of rank.
 * Cosines of tables that no solver made valid need not fit together, and a system that barely factors has weights of tens:
 * a pivot must keep 2^-7 of its own diagonal (G[a,a] + rho mean(diag)), else rho is doubled, to 1e-3 at least, until all do.
 * After fourteen times, or with a mean diagonal of 0, each omitted route goes by its pair's scalar to the kept one of largest
 * |cosine|, ties to the earlier: w~[t] += w[s] S[s,t] in float32, in order of rank (nothing without coeff).
 * max_loss, confidence are ignored.  Uses cosine, relative_norms or rms, coeff as said, norms (not with BY_SCORE). */
exf_fold_status exf_fold_prefill_joint_cpu(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                           const exf_fold_prefill_options *o) EXF_FOLD_CHECKED;
exf_fold_status exf_fold_prefill_joint_cuda(const exf_fold_routes *in, const exf_fold_routes *out, const exf_fold_tables *t,
                                            const exf_fold_prefill_options *o, void *stream) EXF_FOLD_CHECKED;

/* The rule that decides how many routes P a token keeps (docs/method.md, section 9). */
typedef enum { EXF_FOLD_BUDGET_TOKEN, EXF_FOLD_BUDGET_TOP_P } exf_fold_budget_rule;

typedef struct {
    uint32_t size;       /* of EXF_FOLD_BUDGET_INIT */
    float penalty;       /* TOKEN: lambda / a_l, at least 0: what one more route must save; it has no default */
    float share;         /* TOP_P: p, above 0 and at most 1; it has no default */
    int least, most;     /* bounds of P; 0: 1, and the width of out */
    int repeat;          /* 1: an empty slot has the id of the first kept route instead of -1 */
    float ridge;         /* rho, as above */
    exf_fold_budget_rule rule;
    float factor;        /* what the weights lack: the runtime multiplies the experts' sum by it afterwards, as some do with a
                          * model's routed scaling factor.  The penalty is in units of whole weights; 0: 1 */
    int padding;         /* 1: rows of padding have their first N slots as they are, as in the forms above, and `kept` 0 */
    int reserved[6];     /* 0 */
} exf_fold_budget_options;
#define EXF_FOLD_BUDGET_INIT                                                                                                   \
    {EXF_FOLD_SIZED(exf_fold_budget_options), 0, 0, 0, 0, 0, EXF_FOLD_RIDGE, EXF_FOLD_BUDGET_TOKEN, 0, 0, {0}}

/* out [T, N] of in's types, N from 1 to K: a token's routes by falling w rms (ties to the lower slot), the first P of them kept and
 * weighted jointly; the other slots are empty: id -1 and weight 0, which kernels skip.  kept: int32 [T], P of each token, or NULL.
 * A slot without an expert is no route: P is at most the number n of routes, and 0 where there is none (ids are then -1 whatever
 * `repeat`, but in a row of padding that of its first slot, if that is an expert's).
 * One factorisation M = G + rho mean(diag G) I = L D L' of all n routes in that order gives both:
 *   predicted residuals  r_P = w_O' (M_OO - M_OB M_BB^-1 M_BO) w_O - rho mean(diag G) w_O' w_O
 *                            = sum over j >= P of  D_j (L'w)_j^2 - rho mean(diag G) w_j^2
 *   joint weights        w~_B = w_B + M_BB^-1 G_BO w_O  =  w_B + L_BB'^-1 L_OB' w_O
 * TOKEN takes the P of least factor^2 r_P + penalty P, computed as r_P + (penalty / factor^2) P in which the quotient is a
 * float32; TOP_P the least P whose routes have `share` of the sum of all w rms; ties to the smaller P, within least..most and n.
 * In double, sums in order of rank (r_P from the last); rho is raised as in the joint form; where that does not help every
 * r_P is 0 and omitted routes go as there.  With P = n weights stay as they were.  out and kept must not overlap in.  G has
 * rms here.  Uses cosine, rms, coeff as there. */
exf_fold_status exf_fold_prefill_budget_cpu(const exf_fold_routes *in, const exf_fold_routes *out, int32_t *kept,
                                            const exf_fold_tables *t, const exf_fold_budget_options *o) EXF_FOLD_CHECKED;
exf_fold_status exf_fold_prefill_budget_cuda(const exf_fold_routes *in, const exf_fold_routes *out, int32_t *kept,
                                             const exf_fold_tables *t, const exf_fold_budget_options *o,
                                             void *stream) EXF_FOLD_CHECKED;

/* ---- decode ------------------------------------------------------------------ */
/* An expert's importance in a batch: the sum over its slots of w h, of (w rms)^2, or of w. */
typedef enum { EXF_FOLD_IMPORTANCE_NORM, EXF_FOLD_IMPORTANCE_ENERGY, EXF_FOLD_IMPORTANCE_SCORE } exf_fold_importance;
/* The experts that compete for the pool, which matters where weights are 0 (weights being at least 0): those routed to, of weight 0
 * too; all E, those not routed to with importance 0, so that a pool with places left over takes them, and an expert routed to with
 * weights of 0 alone may stand outside; or those with a term above 0, while the others stay as they are. */
typedef enum { EXF_FOLD_POOL_OF_ROUTED, EXF_FOLD_POOL_OF_ALL, EXF_FOLD_POOL_OF_POSITIVE } exf_fold_candidates;

typedef struct {
    uint32_t size;       /* of EXF_FOLD_DECODE_INIT */
    exf_fold_importance importance;
    float max_loss;      /* as in prefill */
    int drop;            /* 1: a remapped slot gets weight 0 (the baseline that folds nothing) */
    float ridge;         /* as in prefill */
    int fallback;        /* 1: a slot without a target becomes (m, w S[s,m]), m the pool's most important member */
    exf_fold_candidates candidates;
    int pool;            /* D >= 1; it has no default */
    const int32_t *members; /* [D] in memory as the routes are: a pool fixed beforehand, of distinct ids in [0, E) (others are
                             * ignored), the earlier the more important; `importance` is not used and `candidates` is 0.
                             * NULL: the pool is chosen from the batch */
    int reserved[8 - (int)(sizeof(void *) / sizeof(int))]; /* 0 */
} exf_fold_decode_options;
#define EXF_FOLD_DECODE_INIT                                                                                                   \
    {EXF_FOLD_SIZED(exf_fold_decode_options), EXF_FOLD_IMPORTANCE_NORM, EXF_FOLD_NO_LIMIT, 0, EXF_FOLD_RIDGE, 0,               \
     EXF_FOLD_POOL_OF_ROUTED, 0, 0, {0}}

/* The rows are one decode batch.  Routed union: the distinct ids, of weight 0 too.  At most D of them: nothing changes.  Else the
 * pool is the D of largest importance, ties to the lower id, and every slot outside it becomes (target, w S[s,target]): the pool
 * member of least loss, ties to the one of larger importance (then lower id); weight 0 without a target (the id is then the pool's
 * most important member; `fallback` keeps the weight).
 * Importance does not depend on the order of slots: each term, float32, is rounded (nearest, ties to even) to a multiple of 2^-36
 * of the smallest power of two that is no less than the batch's largest term in magnitude, and added as a 64-bit integer.
 * With `members` every slot outside of them moves, however few experts the batch routes to; with no expert among them nothing does.
 * Uses coeff, loss, norms (rms with ENERGY, neither with SCORE or members). */
exf_fold_status exf_fold_decode_cpu(const exf_fold_routes *io, const exf_fold_tables *t,
                                    const exf_fold_decode_options *o) EXF_FOLD_CHECKED;
exf_fold_status exf_fold_decode_cuda(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o,
                                     void *stream) EXF_FOLD_CHECKED;
/* The same pool; a slot outside takes the member of largest |cosine|, that is of least 1 - cosine^2 (the same ties).  With a row's
 * new ids n, old ids i and weights w, kept weights k (0 on remapped slots):
 *   w~ = k + (G_nn + rho mean(diag G_nn) I)^-1 (G_ni w - G_nn k)
 * in double, slots in order, rho raised as in prefill (where that does not help a remapped slot weighs w S[i,n], or 0 without
 * coeff; kept slots cancel in the right-hand side and are left out); rows without a remapped slot stay as they are.
 * drop and max_loss are ignored, fallback and candidates are UNSUPPORTED unless 0.  Uses cosine, relative_norms or rms, coeff as
 * said (and norms with NORM, unless there are members). */
exf_fold_status exf_fold_decode_joint_cpu(const exf_fold_routes *io, const exf_fold_tables *t,
                                          const exf_fold_decode_options *o) EXF_FOLD_CHECKED;
exf_fold_status exf_fold_decode_joint_cuda(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o,
                                           void *stream) EXF_FOLD_CHECKED;

/* id -> target_ids[id], weight *= target_scale[id]; int32 [E] and float32 [E], as in the tables' pools.  Identity and 1 leave a
 * slot bit for bit as it was.  Any number of slots. */
exf_fold_status exf_fold_decode_static_cpu(const exf_fold_routes *io, const int32_t *target_ids, const float *target_scale,
                                           int n_experts) EXF_FOLD_CHECKED;
exf_fold_status exf_fold_decode_static_cuda(const exf_fold_routes *io, const int32_t *target_ids, const float *target_scale,
                                            int n_experts, void *stream) EXF_FOLD_CHECKED;

/* The router's scores of all experts, in memory as the routes are. */
typedef struct {
    const void *choice; /* [rows, E] what the router chooses by, the larger the better: its probability, with the selection
                         * bias where the family has one.  -infinity or NaN: never a stand-in */
    const void *gate;   /* [rows, E] what its weights are proportional to, where that is not `choice`; else NULL.
                         * Of GATE and ROUTE alone */
    exf_fold_real type;
    int reserved[7];    /* 0 */
} exf_fold_scores;

/* The weights of a token's slots afterwards. */
typedef enum { EXF_FOLD_STAND_INS_JOINT, EXF_FOLD_STAND_INS_ROUTE, EXF_FOLD_STAND_INS_GATE } exf_fold_stand_in_weights;

typedef struct {
    uint32_t size;       /* of EXF_FOLD_STAND_IN_INIT */
    exf_fold_importance importance; /* of a pool chosen by batch */
    exf_fold_stand_in_weights weights;
    float ridge;         /* as in prefill; JOINT alone */
    int pool;            /* D >= 1; it has no default */
    int reserved[11];    /* 0 */
} exf_fold_stand_in_options;
#define EXF_FOLD_STAND_IN_INIT                                                                                                 \
    {EXF_FOLD_SIZED(exf_fold_stand_in_options), EXF_FOLD_IMPORTANCE_NORM, EXF_FOLD_STAND_INS_JOINT, EXF_FOLD_RIDGE, 0, {0}}

/* The pool: members int32 [D], distinct and in [0, E) (others are ignored); or, where members is NULL, chosen from the
 * batch as exf_fold_decode does, which then changes nothing where at most D experts are routed to.
 * A row's slots outside of the pool, those first whose own experts have the largest choice scores, take the pool members of
 * largest choice score that the row does not hold already, each once, ties to the lower id: the order of slots is of no
 * consequence (but for what rho is raised to, of cosines that are no correlation matrix).  Where none is left the slot gets the
 * pool's most important (or first) member with weight 0.
 *   JOINT  as exf_fold_decode_joint, n being the ids of the slots that hold an expert now, and G_nn without the
 *          slots for which none was left
 *   GATE   a stand-in e weighs g(e) sum w / sum g(i), sums over the row's original slots; kept slots stay
 *   ROUTE  the same, then all are multiplied so that their sum is the original one (left alone unless both are
 *          above 0): the router's own weights among the pool, where it renormalises
 * GATE and ROUTE are computed in float32, sums in order of slots; a sum of g that is not above 0 leaves
 * stand-ins weight 0.  Rows that hold no expert outside of the pool stay as they are.  With members any number of slots.
 * Uses cosine, relative_norms or rms, and coeff as joint decode does (JOINT), norms or rms (a pool by batch). */
exf_fold_status exf_fold_decode_stand_ins_cpu(const exf_fold_routes *io, const exf_fold_scores *s, const int32_t *members,
                                              const exf_fold_tables *t, const exf_fold_stand_in_options *o) EXF_FOLD_CHECKED;
exf_fold_status exf_fold_decode_stand_ins_cuda(const exf_fold_routes *io, const exf_fold_scores *s, const int32_t *members,
                                               const exf_fold_tables *t, const exf_fold_stand_in_options *o,
                                               void *stream) EXF_FOLD_CHECKED;

/* ---- why ------------------------------------------------------------------------ */
/* The function that a token's routes are explained for, and the struct of its options. */
typedef enum {
    EXF_FOLD_CALL_PREFILL,        /* exf_fold_prefill_options */
    EXF_FOLD_CALL_PREFILL_JOINT,  /* the same */
    EXF_FOLD_CALL_PREFILL_BUDGET, /* exf_fold_budget_options, whose bounds are those of an output as wide as the routes */
    EXF_FOLD_CALL_DECODE,         /* exf_fold_decode_options */
    EXF_FOLD_CALL_DECODE_JOINT    /* the same */
} exf_fold_call;

/* What becomes of a route. */
typedef enum {
    EXF_FOLD_FATE_NONE,        /* the slot has no expert, or its row is padding */
    EXF_FOLD_FATE_KEPT,        /* its expert runs */
    EXF_FOLD_FATE_FOLDED,      /* its weight times `scalar` goes to `target` */
    EXF_FOLD_FATE_FALLBACK,    /* the same, though no pair is allowed: `target` is the pool's most important expert */
    EXF_FOLD_FATE_SOLVED,      /* joint: kept weights were solved to stand for it (decode: and its slot is now `target`'s) */
    EXF_FOLD_FATE_NO_PAIR,     /* dropped: no pair with a kept expert was observed */
    EXF_FOLD_FATE_ABOVE_LIMIT, /* dropped: the least loss, that of `target`, is above max_loss */
    EXF_FOLD_FATE_DROPPED,     /* dropped, because `drop` is on; `target` would have taken it */
    EXF_FOLD_FATE_UNSOLVED     /* the joint system has no solution: its weight times `scalar` goes to `target` */
} exf_fold_fate;
/* Returns a fate as a phrase for a message.  The text is static. */
const char *exf_fold_fate_text(exf_fold_fate fate);

typedef struct {
    exf_fold_fate fate;
    int expert;   /* -1: none */
    int target;   /* the expert above, or -1 */
    int place;    /* from 0, by rank among the token's routes, or by importance in the batch (of `members`: their order; -1 outside
                   * of them); -1 where nothing was ranked */
    float weight; /* as routed */
    float ranked_by; /* the number that `place` follows: of the route in prefill, the route's term of its expert's sum in decode */
    float loss;   /* of the pair (expert, target), in joint decode 1 - cosine^2; EXF_FOLD_NEVER without a target */
    float scalar; /* S of that pair, times the confidence where that is on; 0 where nothing goes to `target`; SOLVED: 0 */
    float result; /* the weight afterwards: of the kept route, or in decode of the slot; 0 where the route is left out */
    int reserved[7];
} exf_fold_explained;

/* Fills slots [K] with what the call would do to the row's routes, in host memory like all it is given; changes nothing else.
 * Decode chooses its pool from all rows.  The statuses are those of the call. */
exf_fold_status exf_fold_explain(exf_fold_explained *slots, exf_fold_call call, const exf_fold_routes *in, int row,
                                 const exf_fold_tables *t, const void *options) EXF_FOLD_CHECKED;

/* ---- the tables of a model ---------------------------------------------------------- */
/* All layers' tables, stacked: a caller's own arrays, or those of a file.  exf_fold_layers_at takes one layer out; the arrays
 * may be anywhere, so that a caller copies them to a device and writes the new addresses into a copy of the struct. */
typedef struct {
    uint32_t size;         /* of EXF_FOLD_LAYERS_INIT */
    int n_layers, n_experts;
    int reserved_int;      /* 0 */
    const float *coeff;    /* [L, E, E] */
    const float *loss;     /* [L, E, E] */
    const float *norms;    /* [L, E] */
    const float *cosine;   /* [L, E, E], or NULL */
    const float *rms;      /* [L, E], or NULL */
    const int32_t *numbers; /* [L] the model's number of each layer, in host memory; NULL: 0 .. L-1 */
    void *file;            /* what exf_fold_layers_free frees; NULL in a caller's own */
    const float *relative_norms; /* [L, E], or NULL */
    const void *reserved[4]; /* NULL */
} exf_fold_layers;
#define EXF_FOLD_LAYERS_INIT {EXF_FOLD_SIZED(exf_fold_layers), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}}

/* An array of a file. */
typedef struct {
    const void *data;
    size_t bytes;
    char type[8];     /* as the file spells it: F32, I32, I64, ... */
    int n_dims;
    int64_t shape[8]; /* [n_dims] */
} exf_fold_array;

/* Opens tables.safetensors, which exfold-export writes, or any .safetensors file with `coeff` and `loss` [L, E, E], and if it has
 * them `expert_norms`, `rms`, `relative_norms` [L, E] and `cosine` [L, E, E], all F32 and finite; the metadata `layer_numbers` are
 * the numbers.  *l is EXF_FOLD_LAYERS_INIT.  Arrays stay in the file, which is mapped: it must not be changed in place while it is
 * open.  On FILE (it cannot be read, or is no such file) *l stays so and why [why_bytes], which may be NULL, has a sentence that
 * begins with the path. */
exf_fold_status exf_fold_layers_load(exf_fold_layers *l, const char *path, char *why, size_t why_bytes) EXF_FOLD_CHECKED;
/* The same from a file's bytes, at an address that 8 divides; they must stay until exf_fold_layers_free. */
exf_fold_status exf_fold_layers_read(exf_fold_layers *l, const void *bytes, size_t n_bytes, char *why,
                                     size_t why_bytes) EXF_FOLD_CHECKED;
/* Closes the file, if there is one, and makes *l EXF_FOLD_LAYERS_INIT. */
void exf_fold_layers_free(exf_fold_layers *l);
/* Returns the index of the layer that has this number in the model; -1: there is none. */
int exf_fold_layers_index(const exf_fold_layers *l, int number);
/* Fills *t with the tables of the layer of this number; BAD_ARGUMENT where there is none. */
exf_fold_status exf_fold_layers_at(const exf_fold_layers *l, int number, exf_fold_tables *t) EXF_FOLD_CHECKED;
/* Finds any array of the file by its name, "pools.64.target_ids" say; BAD_ARGUMENT where there is none. */
exf_fold_status exf_fold_layers_find(const exf_fold_layers *l, const char *name, exf_fold_array *a) EXF_FOLD_CHECKED;

/* ---- variants ------------------------------------------------------------------------ */
/* The function that a part of a variant calls, and the struct of its options. */
typedef enum {
    EXF_FOLD_PART_NONE,           /* the variant has no such part */
    EXF_FOLD_PART_PREFILL,        /* exf_fold_prefill_options */
    EXF_FOLD_PART_PREFILL_JOINT,  /* the same */
    EXF_FOLD_PART_PREFILL_BUDGET, /* exf_fold_budget_options, less `penalty` (threshold / scale), `share` (threshold) */
    EXF_FOLD_PART_DECODE,         /* exf_fold_decode_options */
    EXF_FOLD_PART_DECODE_JOINT,   /* the same */
    EXF_FOLD_PART_DECODE_STATIC,  /* none */
    EXF_FOLD_PART_STAND_INS       /* exf_fold_stand_in_options */
} exf_fold_part_call;

typedef struct {
    exf_fold_part_call call;
    int number;           /* P, with a budget the mean; or D */
    int predicts;         /* 1: the routes must have predicted norms */
    int layer;            /* the model's number of the only layer that folds; -1: all */
    char text[96];        /* the part as it was spelled: "D64:rank=energy" */
    char arrays[512];     /* what it reads of a tables.safetensors, words WHAT=ARRAY separated by blanks: "coeff=coeff
                           * loss=frobenius norms=expert_norms".  WHAT is a member of exf_fold_tables; members, target_ids,
                           * target_scale of a pool; threshold, scale of a budget; basis, theta of the norm head */
    uint64_t options[32]; /* the struct of its call, to be copied out; it has its `size` */
    int reserved[8];      /* 0 */
} exf_fold_part;

typedef struct {
    uint32_t size;        /* of EXF_FOLD_VARIANT_INIT */
    int reserved_int;     /* 0 */
    exf_fold_part prefill, decode;
    char words[256];      /* what it does, for people: "4 experts per token, joint weights" */
} exf_fold_variant;
#define EXF_FOLD_VARIANT_INIT {EXF_FOLD_SIZED(exf_fold_variant), 0, {EXF_FOLD_PART_NONE, 0, 0, 0, "", "", {0}, {0}}, \
                               {EXF_FOLD_PART_NONE, 0, 0, 0, "", "", {0}, {0}}, ""}

/* Reads a variant as exfold-validate --runtime exfold does: P and D, their options, and which go together.  n_experts and top_k
 * are the model's, against which P and D are checked; 0: they are not.  BAD_ARGUMENT: why [why_bytes], which may be NULL, has a
 * sentence that names the variant, what is wrong and what is expected; *v stays as it was. */
exf_fold_status exf_fold_variant_read(exf_fold_variant *v, const char *text, int n_experts, int top_k, char *why,
                                      size_t why_bytes) EXF_FOLD_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
