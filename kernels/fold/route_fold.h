/* route_fold.h - folds the routes of a whole run in GPU memory, in place: prefill rows one by one, decode rows step by step of
 * their batches; and counts the experts that run.
 *
 * The folds are those of exfold/fold.h, by the kernels that runtimes call; this adds what a run needs around them: which rows,
 * which batches, empty slots.  Routes become those of the functions on the CPU, bit for bit. */
#ifndef EXF_KERNELS_ROUTE_FOLD_H
#define EXF_KERNELS_ROUTE_FOLD_H
#include "exfold/fold.h"
#include "kernels/moe/moe.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays, here and below, lie in GPU memory unless the text says otherwise. */
typedef struct {
    int32_t *ids;    /* [T, K]; -1: the slot runs no expert */
    float *weights;  /* [T, K] */
    size_t n_tokens; /* T */
    int top_k;       /* K */
    const float *norms; /* [T, K] of the routes as the router chose them; NULL: their experts' mean norms */
    const int32_t *routed; /* [T, K] these routes' experts; NULL: those of ids, slot by slot.  Prefill takes ids for these. */
} exf_run_routes;

/* Returns the rows of a tile: a call folds one tile after another.  widest: most rows of a step; scored: E where the tile holds
 * scores of all experts, else 0. */
static inline size_t exf_route_tile(size_t n_tokens, int widest, int scored)
{
    const size_t most = 65536, most_scored = 8192;
    size_t limit = scored ? most_scored : most, rows = n_tokens < limit ? n_tokens : limit;
    return rows < (size_t)widest ? (size_t)widest : rows;
}
/* Returns the bytes of a workspace for tiles with scores (where scored is not 0) and without. */
static inline size_t exf_route_fold_workspace(size_t n_tokens, int widest, int top_k, int scored)
{
    size_t slot = (size_t)top_k * (sizeof(int32_t) + 2 * sizeof(float));
    size_t plain = exf_route_tile(n_tokens, widest, 0) * slot;
    size_t beside = exf_route_tile(n_tokens, widest, scored) * (slot + 2 * (size_t)scored * sizeof(float));
    return scored && beside > plain ? beside : plain;
}

/* ---- prefill ---------------------------------------------------------------------------------------- */

/* exf_fold_prefill, exf_fold_prefill_joint, exf_fold_prefill_budget; and baselines that runtimes do not have: the P routes of
 * largest rank alone, and the first P by weight, from none, with those of which factor * w is at least tau times the sum of the
 * row's weights. */
typedef enum {
    EXF_PREFILL_BY_PAIR,
    EXF_PREFILL_JOINED,
    EXF_PREFILL_BY_BUDGET,
    EXF_PREFILL_KEPT,
    EXF_PREFILL_ABOVE
} exf_prefill_form;

typedef struct {
    exf_prefill_form form;
    exf_fold_tables tables;
    exf_fold_prefill_options options; /* not BY_BUDGET */
    exf_fold_budget_options budget;   /* BY_BUDGET */
    int keep;                         /* P of KEPT and ABOVE */
    int renorms;                      /* KEPT: 1: the kept weights have the sum of all, where theirs is above 0 */
    double factor, tau;               /* ABOVE */
    const unsigned char *prefill;     /* [T] 1: the row is rewritten; NULL: all rows are */
    void *workspace;
    int widest;                       /* as of the workspace */
} exf_prefill_call;

/* Rewrites rows to P routes and K - P empty slots of id -1 and weight 0.  On any status but EXF_FOLD_OK nothing is changed. */
exf_fold_status exf_prefill_routes_cuda(exf_queue *q, const exf_run_routes *r, const exf_prefill_call *c);

/* ---- decode ----------------------------------------------------------------------------------------- */

/* The rows of a step are a batch. */
typedef struct {
    size_t n_steps, n_rows;
    const size_t *first;         /* [n_steps + 1] index in `row` of each step's first row */
    const size_t *row;           /* [n_rows] rows of the run, step after step, each once */
    const size_t *first_on_host; /* `first` in host memory */
    int widest;                  /* most rows of a step */
} exf_route_steps;

/* exf_fold_decode, exf_fold_decode_joint, exf_fold_decode_static, exf_fold_decode_stand_ins. */
typedef enum { EXF_STEPS_BY_PAIR, EXF_STEPS_JOINED, EXF_STEPS_REMAPPED, EXF_STEPS_BY_ROUTER } exf_steps_form;

typedef struct {
    exf_steps_form form;
    exf_route_steps steps;
    exf_fold_tables tables;
    exf_fold_decode_options options; /* BY_PAIR, JOINED */
    const int32_t *target_ids;       /* [E] REMAPPED */
    const float *target_scale;       /* [E] REMAPPED */
    exf_fold_stand_in_options stand_ins; /* BY_ROUTER, and all of the next four */
    const int32_t *members;          /* [D] the pool; NULL: each step's own */
    const float *logits;             /* [T, E] */
    const float *bias;               /* [E] added to scores where experts are chosen, or NULL */
    exf_router_score score;
    int drops;                       /* 1: slots whose expert changes get weight 0 */
    int renorms;                     /* 1: then a token's weights have the sum that they had before, where theirs is above 0 */
    void *workspace;
} exf_steps_call;

exf_fold_status exf_step_routes_cuda(exf_queue *q, const exf_run_routes *r, const exf_steps_call *c);

/* ---- what runs -------------------------------------------------------------------------------------- */

/* Add to *count the distinct experts of each row, or of each step; the slots of n that run an expert. */
void exf_count_row_experts_cuda(exf_queue *q, uint64_t *count, const exf_run_routes *r);
void exf_count_step_experts_cuda(exf_queue *q, uint64_t *count, const exf_run_routes *r, const exf_route_steps *s, int n_experts);
void exf_count_slots_cuda(exf_queue *q, uint64_t *count, const int32_t *ids, size_t n);

/* Copies bytes between GPU memory and staging memory, or within either, by a kernel: it does not wait in the GPU's copy engines
 * after larger copies of other queues. */
void exf_carry_cuda(exf_queue *q, void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
