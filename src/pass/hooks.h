/* hooks.h - what a pass calls: a rewriter of routes, an observer of what experts and head computed, and a lane, which has both.
 *
 * Hook 1, the rewriter, stands between the router and the experts of a MoE layer: it decides which experts run for each
 * token and with what weight.  Hook 2, the observer, stands after the experts and after the head: it reads expert outputs,
 * probes and logits.
 *
 * What they are shown is one type for host memory and GPU memory: `q` tells which.  q NULL: all arrays are in host memory.
 * Else they lie in GPU memory and are computed on q; a reader queues its own work on q after them. */
#ifndef EXF_PASS_HOOKS_H
#define EXF_PASS_HOOKS_H
#include "base/err.h"
#include "base/progress.h"
#include "model/architecture.h"
#include "pass/batch.h"

struct exf_backend; /* kernels/backend.h */
struct exf_queue;

/* ---- what an observer is shown ------------------------------------------------------------- */

/* Consecutive tokens in one MoE layer: in host memory at most EXF_MOE_BLOCK of one sequence; in GPU memory of several sequences,
 * or of a part of one. */
typedef struct {
    struct exf_queue *q;
    const exf_batch *batch; /* NULL: unknown, as in captures, whose blocks are in host memory */
    int layer, moe_index;
    int sweep;                   /* how often this block was shown before */
    size_t row;                  /* of the first token in the whole run */
    size_t sequence;             /* in host memory: the tokens' sequence, and the first token's position in it */
    int position;
    int n_tokens, n_experts, top_k, d_model;
    int worker;                  /* calls with different numbers may run at the same time */
    int rounded;                 /* 1: moe_input and expert_outputs are bfloat16, in GPU memory alone; 0: float32 */
    const void *moe_input;       /* [T, H] the normed hidden states that router and experts read */
    const void *expert_outputs;  /* [T, K, H] unweighted; NULL where grams are known instead */
    const double *grams;         /* [T, K, K] in host memory: the outputs' inner products, from a source without the outputs
                                  * themselves (recordings of rows in CUDA memory); else NULL */
    const int32_t *router_ids;   /* [T, K] as the router chose */
    const float *router_weights; /* [T, K] */
    const int32_t *topk_ids;     /* [T, K] after rewriting */
    const float *topk_weights;   /* [T, K] */
    const float *routed_output;  /* [T, H] sum of weight * output; NULL in GPU memory */
    const float *block_output;   /* [T, H] with shared experts: what is added to the residual stream; NULL in GPU memory */
    const float *stream;         /* [T, stream_width] the residual stream after the layer, all its streams side by side; in the
                                  * last sweep only */
    int stream_width;
    const double *stream_sq;     /* [T] their squared norms, from a source without the stream itself (captures); else NULL */
    const float *router_logits;  /* [T, E] in host memory for an observer that wants them; else NULL */
    const float *slot_logits;    /* [T, K] (kernels/statistics/norm_products.h) in GPU memory, the same */
} exf_moe_block;

/* What router and experts of one MoE layer read, and what the router made of it: consecutive tokens of one sequence, before any
 * expert runs.  In GPU memory q is one of several queues: their blocks come in any order, and may overlap. */
typedef struct {
    struct exf_queue *q;
    int layer;
    size_t row; /* of the first token in the whole run */
    int n_tokens, n_experts, top_k, d_model, worker;
    const float *moe_input; /* [T, H] float32, or as many bytes in two parts (rmsnorm_split of kernels/rows/rows.h) */
    int split;              /* 1: in two parts, in GPU memory alone */
    const float *squares;   /* [T] the rows' sums of squares; a rewriter's `routed` has them if `split` is 1, others do not */
    const float *logits;    /* [T, E] */
    const int32_t *ids;     /* [T, K] as the router chose */
    const float *weights;   /* [T, K] */
} exf_input_block;

/* Consecutive tokens of an exf_common_input_block in GPU memory that belong to one sequence.  Their number is a
 * multiple of EXF_COMMON_INPUT_UNIT (kernels/statistics/layer_sums.h), except at the end of the
 * sequence's tokens. */
typedef struct {
    size_t sequence;
    int first, n_tokens; /* tokens [first, first + n_tokens) */
    int ends;            /* 1: the sequence has no further tokens */
} exf_common_input_part;

/* Tokens of one MoE layer with the outputs of every expert on them: in host memory of one sequence, in GPU memory of several. */
typedef struct {
    struct exf_queue *q;
    int layer, moe_index;
    int n_tokens;                /* in GPU memory the capacity of outputs, the same however the run is cut; tokens that no part
                                  * names are undefined */
    int n_experts, top_k, d_model, worker;
    const void *outputs;         /* [n, E, H] unweighted */
    int rounded;                 /* 1: outputs is bfloat16, in GPU memory alone; 0: float32 */
    const float *router_logits;  /* [T of the run, E] in host memory, wherever the outputs are, for an observer that wants them;
                                  * else NULL */
    /* In host memory: */
    size_t sequence;
    const size_t *row;           /* [n] of each token in the whole run; ascending */
    const int32_t *router_ids;   /* [n, K] */
    const float *router_weights; /* [n, K] */
    /* In GPU memory: */
    const exf_common_input_part *part; /* [n_parts] in order of sequences; itself in host memory */
    int n_parts;
    const int32_t *device_row;   /* [n] row_offset + device_row[i] is token i's row in the whole run */
    size_t row_offset;
} exf_common_input_block;

/* Routed outputs of the first lane and, for the same hidden states, of another lane's rewriter: consecutive tokens, in host memory
 * of one sequence. */
typedef struct {
    struct exf_queue *q;
    const exf_batch *batch;
    int layer, moe_index;
    size_t row;
    size_t sequence; /* in host memory, as the next one */
    int position;
    int n_tokens, top_k, d_model, worker;
    const int32_t *topk_ids; /* [T, K] after rewriting */
    const float *original;   /* [T, H] the first lane's routed output */
    const float *rewritten;  /* [T, H] */
} exf_probe_block;

typedef struct {
    struct exf_queue *q;
    size_t sequence, row;
    int position, n_tokens, vocab, worker;
    const float *logits; /* [n_tokens, vocab] */
    const int32_t *next; /* [n_tokens] in GPU memory: the token that follows each; undefined after the last token of a sequence */
} exf_logits_block;

/* ---- the two hooks ------------------------------------------------------------------------- */

/* Where a layer is, in this order. */
typedef enum {
    EXF_AT_INPUTS_BEGIN, /* told only to an observer that has `input`: before the router runs on any token */
    EXF_AT_LAYER_BEGIN,  /* the routes are known; no expert has run */
    EXF_AT_INPUTS_END,   /* as EXF_AT_INPUTS_BEGIN: all inputs were shown; what they are computed on is done when q is */
    EXF_AT_SWEEP_END,    /* all blocks of a sweep were shown */
    EXF_AT_LAYER_END,    /* of the lane */
    EXF_AT_LAYER_DONE,   /* of all lanes, in a pass on a GPU alone, when all that was queued in the layer is done: an observer reads
                          * what it had copied to staging memory */
    EXF_N_MOMENTS
} exf_moment_kind;

typedef struct {
    exf_moment_kind at;
    int layer, moe_index, sweep;
    struct exf_queue *q;    /* NULL on the CPU */
    exf_progress *progress; /* at the layer's end: what is said of the layer, which the observer may change */
} exf_moment;

/* An observer may leave any function NULL. */
typedef struct {
    void *self;
    int sweeps;        /* how often a layer's blocks are shown, the experts computed anew each time; 0 means 1 */
    int common_input_tokens; /* tokens of each sequence, evenly spaced, on which all experts run for `common_input` */
    int wants_router_logits; /* 1: common input and blocks in host memory come with router_logits */
    int wants_slot_logits;   /* 1: blocks come with slot_logits in GPU memory, with router_logits in host memory */
    int reads_device;  /* 1: a pass on a GPU shows blocks and logits in GPU memory; 0: it copies them to host memory.  Inputs,
                        * common input and probes it shows in GPU memory to every observer */
    /* Called before the first layer.  gpu: the backend of a pass on a GPU; NULL on the CPU. */
    exf_code (*begin)(void *self, int n_workers, const struct exf_backend *gpu, exf_err *err);
    /* The most that the observer holds in the backend's GPU memory; NULL: nothing. */
    uint64_t (*device_bytes)(const void *self, const struct exf_backend *b);
    exf_code (*at)(void *self, const exf_moment *m, exf_err *err); /* tells where a layer is */
    /* What router and experts of the whole run read, before any expert runs. */
    exf_code (*input)(void *self, const exf_input_block *b, exf_err *err); /* called concurrently */
    exf_code (*block)(void *self, const exf_moe_block *b, exf_err *err);   /* called concurrently */
    /* Tokens that all experts ran on, before the first sweep; in layers that route by token id too. */
    exf_code (*common_input)(void *self, const exf_common_input_block *b, exf_err *err); /* called concurrently */
    /* This lane's rewriter applied to the first lane's hidden states; never called for the first lane. */
    exf_code (*probe)(void *self, const exf_probe_block *b, exf_err *err); /* called concurrently */
    /* Called concurrently; NULL: the head does not run.  All lanes' logits of the same tokens come one
     * after the other, lane by lane, on the same worker. */
    exf_code (*logits)(void *self, const exf_logits_block *b, exf_err *err);
    /* Called before a resume point after `done` layers is saved: completes what the layers' ends left to other
     * threads, and writes the observer's own records. */
    exf_code (*settle)(void *self, int done, exf_err *err);
} exf_observer;

/* Tells the observer where a layer is; one without `at` is not told. */
static inline exf_code exf_observer_tell(const exf_observer *o, const exf_moment *m, exf_err *err)
{
    return o->at ? o->at(o->self, m, err) : EXF_OK;
}

/* Routes of all tokens of the run in one MoE layer of one lane. */
typedef struct {
    struct exf_queue *q; /* on which a rewriter queues its work where the arrays are in GPU memory; NULL: host memory */
    int layer, moe_index; /* the model's layer number; its number among the MoE layers */
    const exf_batch *batch;
    int n_experts, top_k;
    int probe;      /* 1: these are the first lane's routes, rewritten for a probe */
    int by_token;   /* 1: the layer routes by token id (a hash layer), not by a score */
    int32_t *ids;   /* [T, K]; -1: the slot runs no expert.  An id may repeat in a row. */
    float *weights; /* [T, K] */
    const float *logits; /* [T, E] of the router, for a rewriter that wants them; else NULL */
    const float *bias;   /* [E] that the router adds to its scores when it chooses; NULL: none, or no logits */
} exf_routes;

/* A rewriter may leave any function NULL.  It is called once per layer with the routes of the whole run, since a decode
 * batch spans sequences.  It keeps no state between layers but what `routed` shows it: equal routes give equal results, because a
 * layer's routes may be rewritten twice (see exf_routes.probe). */
typedef struct {
    void *self;
    int wants_logits; /* 1: `rewrite` reads the router's logits, or `device_rewrite` if there is one */
    /* Experts that the router may choose in this layer, [E] of 0 or 1; NULL: all. */
    const unsigned char *(*retained_experts)(void *self, int moe_index);
    exf_code (*rewrite)(void *self, exf_routes *routes, exf_err *err);
    /* Shown every token of the routes that `rewrite` gets next, of a probe too.  Called concurrently; of a block in GPU memory it
     * queues its work on b->q. */
    exf_code (*routed)(void *self, const exf_input_block *b, exf_err *err);
    /* Does the same on a GPU; NULL: the pass fetches the routes, calls `rewrite` and sends them back.  Its counters are complete
     * when the queue is. */
    exf_code (*device_rewrite)(void *self, const exf_routes *routes, exf_err *err);
    /* Adds to the routed output [T, H] of a block what router weights cannot express (diagonal and
     * low-rank projectors).  Called concurrently; of a block in GPU memory it queues its work on b->q. */
    exf_code (*correct)(void *self, const exf_moe_block *b, float *routed, exf_err *err);
    /* Called once before the first layer of a pass on a GPU. */
    exf_code (*device_open)(void *self, const struct exf_backend *b, exf_err *err);
    uint64_t device_bytes; /* the most that the rewriter holds in GPU memory */
} exf_rewriter;

typedef struct {
    const exf_rewriter *rewriter; /* NULL: routes stay as the router made them */
    const exf_observer *observer; /* NULL: nothing is observed */
} exf_lane;

/* Returns the lane's observer, or one without functions. */
static inline const exf_observer *exf_lane_observer(const exf_lane *lane)
{
    static const exf_observer nobody = {.self = NULL};
    return lane->observer ? lane->observer : &nobody;
}

#endif
