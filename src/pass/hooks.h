/* hooks.h - what a pass calls: a rewriter of routes, an observer of what experts and head computed, a lane, which has both,
 * and in a replay the reader of a recording.
 *
 * Hook 1, the rewriter, stands between the router and the experts of a MoE layer: it decides which experts run for each
 * token and with what weight.  Hook 2, the observer, stands after the experts and after the head: it reads expert outputs,
 * probes and logits.  A pass on the CPU shows blocks of host memory to `block`, `common_input`, `probe` and `logits`.  A
 * pass on a GPU shows arrays in GPU memory to the functions whose names begin with device_; it copies a block to the host
 * and calls `block` only in sweeps that the observer does not read on the GPU. */
#ifndef EXF_PASS_HOOKS_H
#define EXF_PASS_HOOKS_H
#include "base/err.h"
#include "base/progress.h"
#include "model/architecture.h"
#include "pass/batch.h"

struct exf_backend; /* kernels/backend.h */
struct exf_queue;

/* ---- what an observer is shown ------------------------------------------------------------- */

/* Consecutive tokens of one sequence in one MoE layer; all arrays are float32 or int32 in host memory. */
typedef struct {
    int layer, moe_index;
    size_t sequence, row; /* row: of the first token in the whole run */
    int position;         /* of the first token in its sequence */
    int n_tokens, n_experts, top_k, d_model;
    int worker;                  /* calls with different numbers may run at the same time */
    int sweep;                   /* how often this block was shown before */
    const float *moe_input;      /* [T, H] the normed hidden states that router and experts read */
    const int32_t *router_ids;   /* [T, K] as the router chose */
    const float *router_weights; /* [T, K] */
    const int32_t *topk_ids;     /* [T, K] after rewriting */
    const float *topk_weights;   /* [T, K] */
    const float *expert_outputs; /* [T, K, H] unweighted */
    const float *routed_output;  /* [T, H] sum of weight * output */
    const float *block_output;   /* [T, H] with shared experts: what is added to the residual stream */
    const float *stream;         /* [T, stream_width] the residual stream after the layer, all its streams side by side; in the
                                  * last sweep only; NULL in a replay, which has none */
    int stream_width;
    const float *router_logits;  /* [T, E] for an observer that wants them; else NULL, as in a replay */
    const double *stream_sq;     /* [T] their squared norms, from a source without the stream itself (captures); else NULL */
} exf_moe_block;

/* What router and experts of one MoE layer read, and what the router made of it: consecutive tokens of one sequence, before any
 * expert runs; all arrays are in host memory. */
typedef struct {
    int layer;
    size_t row; /* of the first token in the whole run */
    int n_tokens, n_experts, top_k, d_model, worker;
    const float *moe_input; /* [T, H] */
    const float *logits;    /* [T, E] */
    const int32_t *ids;     /* [T, K] as the router chose */
    const float *weights;   /* [T, K] */
} exf_input_block;

/* The same in GPU memory; see exf_device_block.  q is one of several queues: their blocks come in any order, and may overlap. */
typedef struct {
    int layer;
    size_t row;
    int n_tokens, n_experts, top_k, d_model;
    struct exf_queue *q;
    const float *input; /* [T, H] float32, or as many bytes in two parts (rmsnorm_split of kernels/rows/rows.h) */
    int split;          /* 1: in two parts */
    const float *squares; /* [T] the rows' sums of squares; device_routed has them if `split` is 1, others do not */
    const float *logits;
    const int32_t *ids;
    const float *weights;
} exf_device_input;

/* Consecutive tokens of the run in one MoE layer.  The arrays lie in GPU memory and are
 * computed on q; a reader queues its own work on q after them. */
typedef struct {
    int layer, moe_index, sweep;
    const exf_batch *batch;
    size_t row; /* of the first token in the whole run; the tokens may belong to several sequences, or to a part of one */
    int n_tokens, n_experts, top_k, d_model;
    struct exf_queue *q;
    const void *expert_input;   /* [T, H] what the experts read */
    const void *expert_outputs; /* [T, K, H] unweighted */
    int rounded;                /* 1: both are bfloat16, 0: float32 */
    const int32_t *router_ids;   /* [T, K] as the router chose */
    const float *router_weights; /* [T, K] */
    const int32_t *topk_ids;    /* [T, K] after rewriting */
    const float *topk_weights;  /* [T, K] */
    const float *stream;        /* [T, stream_width], as exf_moe_block's */
    int stream_width;
    const float *slot_logits;   /* [T, K] (kernels/statistics/norm_products.h) for an observer that wants them; else NULL */
} exf_device_block;

/* Some tokens of one sequence in one MoE layer with the outputs of every expert on them. */
typedef struct {
    int layer, moe_index;
    size_t sequence;
    int n_tokens, n_experts, top_k, d_model, worker;
    const size_t *row;           /* [n] of each token in the whole run; ascending */
    const float *outputs;        /* [n, E, H] unweighted */
    const int32_t *router_ids;   /* [n, K] */
    const float *router_weights; /* [n, K] */
    const float *router_logits;  /* [T of the run, E] for an observer that wants them; else NULL */
} exf_common_input_block;

/* Consecutive tokens of an exf_device_common_input that belong to one sequence.  Their number is a
 * multiple of EXF_COMMON_INPUT_UNIT (kernels/statistics/layer_sums.h), except at the end of the
 * sequence's tokens. */
typedef struct {
    size_t sequence;
    int first, n_tokens; /* tokens [first, first + n_tokens) */
    int ends;            /* 1: the sequence has no further tokens */
} exf_common_input_part;

/* Tokens of one MoE layer with the outputs of every expert on them, in GPU memory; see exf_device_block. */
typedef struct {
    int layer, moe_index, n_experts, d_model;
    struct exf_queue *q;
    const void *outputs;         /* [n_tokens, E, H] unweighted */
    int rounded;                 /* 1: outputs is bfloat16, 0: float32 */
    int n_tokens;                /* capacity of outputs, the same however the run is cut; tokens that no part names are undefined */
    const exf_common_input_part *part; /* [n_parts] in order of sequences */
    int n_parts;
    const int32_t *row;          /* [n_tokens] in GPU memory: row_offset + row[i] is token i's row in the whole run */
    size_t row_offset;
    const float *router_logits;  /* in host memory, as exf_common_input_block's */
} exf_device_common_input;

/* Routed outputs of the first lane and, for the same hidden states, of another lane's rewriter:
 * consecutive tokens of one sequence, in host memory. */
typedef struct {
    int layer, moe_index;
    size_t sequence, row;
    int position, n_tokens, top_k, d_model, worker;
    const int32_t *topk_ids; /* [T, K] after rewriting */
    const float *original;   /* [T, H] the first lane's routed output */
    const float *rewritten;  /* [T, H] */
} exf_probe_block;

/* A probe block of consecutive tokens of the run in GPU memory; see exf_device_block. */
typedef struct {
    int layer, moe_index;
    const exf_batch *batch;
    size_t row;
    int n_tokens, d_model;
    struct exf_queue *q;
    const float *original, *rewritten; /* [T, H] */
} exf_device_probe;

typedef struct {
    size_t sequence, row;
    int position, n_tokens, vocab, worker;
    const float *logits; /* [n_tokens, vocab] */
} exf_logits_block;

/* A block of logits in GPU memory; see exf_device_block. */
typedef struct {
    size_t sequence, row;
    int position, n_tokens, vocab;
    struct exf_queue *q;
    const float *logits; /* [n_tokens, vocab] */
    const int32_t *next; /* [n_tokens] the token that follows each; undefined after the last token of a sequence */
} exf_device_logits;

/* ---- the two hooks ------------------------------------------------------------------------- */

/* An observer may leave any function NULL. */
typedef struct {
    void *self;
    int sweeps;        /* how often a layer's blocks are shown, the experts computed anew each time; 0 means 1 */
    int common_input_tokens; /* tokens of each sequence, evenly spaced, on which all experts run for `common_input` */
    int wants_router_logits; /* 1: common input and blocks in host memory come with router_logits */
    int wants_slot_logits;   /* 1: blocks come with slot_logits in GPU memory, with router_logits in host memory */
    exf_code (*begin)(void *self, int n_workers, exf_err *err);
    /* Called after begin in a pass on a GPU. */
    exf_code (*device_open)(void *self, const struct exf_backend *b, exf_err *err);
    /* The most that the observer holds in the backend's GPU memory; NULL: nothing. */
    uint64_t (*device_bytes)(const void *self, const struct exf_backend *b);
    int device_sweeps;     /* the first device_sweeps sweeps are shown to device_block, the others to block */

    /* The pass shows what router and experts of the whole run read between inputs_begin and layer_begin, before any expert
     * runs; inputs_end follows layer_begin.  All of them are set or none.  A replay calls none: it gets its input block by block.
     * A pass on a GPU calls device_input; its device work is complete when the queue of inputs_end is. */
    exf_code (*inputs_begin)(void *self, int layer, exf_err *err);
    exf_code (*input)(void *self, const exf_input_block *b, exf_err *err); /* called concurrently */
    exf_code (*device_input)(void *self, const exf_device_input *b, exf_err *err);
    exf_code (*layer_begin)(void *self, int layer, int moe_index, exf_err *err);
    exf_code (*inputs_end)(void *self, int layer, struct exf_queue *q, exf_err *err); /* after layer_begin; q: NULL on the CPU */
    exf_code (*block)(void *self, const exf_moe_block *b, exf_err *err); /* called concurrently */
    exf_code (*device_block)(void *self, const exf_device_block *b, exf_err *err);
    /* Tokens that all experts ran on, before the first sweep; in layers that route by token id too. */
    exf_code (*common_input)(void *self, const exf_common_input_block *b, exf_err *err); /* called concurrently */
    exf_code (*device_common_input)(void *self, const exf_device_common_input *c, exf_err *err);
    /* This lane's rewriter applied to the first lane's hidden states; never called for the first lane. */
    exf_code (*probe)(void *self, const exf_probe_block *b, exf_err *err); /* called concurrently */
    exf_code (*device_probe)(void *self, const exf_device_probe *b, exf_err *err);
    exf_code (*sweep_end)(void *self, int layer, int moe_index, int sweep, exf_err *err);
    exf_code (*layer_end)(void *self, int layer, int moe_index, exf_progress *progress, exf_err *err);
    /* Called after layer_end of all lanes in a pass on a GPU, when all that was queued in the layer is done: reads what layer_end
     * had copied to staging memory. */
    exf_code (*layer_done)(void *self, int layer, int moe_index, exf_err *err);
    /* Called before a resume point after `done` layers is saved: completes what layer_end left to other
     * threads, and writes the observer's own records. */
    exf_code (*settle)(void *self, int done, exf_err *err);
    /* Called concurrently; NULL: the head does not run.  All lanes' logits of the same tokens come one
     * after the other, lane by lane, on the same worker. */
    exf_code (*logits)(void *self, const exf_logits_block *b, exf_err *err);
    exf_code (*device_logits)(void *self, const exf_device_logits *b,
                              exf_err *err); /* `logits` must be set too: it requests the head */
} exf_observer;

/* Routes of all tokens of the run in one MoE layer of one lane, in host memory. */
typedef struct {
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

/* Routes of a run in GPU memory, as exf_routes; a rewriter queues its work on q. */
typedef struct {
    int layer, moe_index;
    const exf_batch *batch;
    int n_experts, top_k;
    int probe, by_token;
    struct exf_queue *q;
    int32_t *ids;
    float *weights;
} exf_device_routes;

/* A rewriter may leave any function NULL.  It is called once per layer with the routes of the whole run, since a decode
 * batch spans sequences.  It keeps no state between layers but what `routed` shows it: equal routes give equal results, because a
 * layer's routes may be rewritten twice (see exf_routes.probe). */
typedef struct {
    void *self;
    int wants_logits; /* 1: `rewrite` reads the router's logits */
    /* Experts that the router may choose in this layer, [E] of 0 or 1; NULL: all. */
    const unsigned char *(*retained_experts)(void *self, int moe_index);
    exf_code (*rewrite)(void *self, exf_routes *routes, exf_err *err);
    /* Shown every token of the routes that `rewrite` gets next, of a probe too.  Called concurrently; in a pass on a GPU
     * device_routed is called, which queues its work on b->q. */
    exf_code (*routed)(void *self, const exf_input_block *b, exf_err *err);
    exf_code (*device_routed)(void *self, const exf_device_input *b, exf_err *err);
    /* Does the same on a GPU; NULL: the pass fetches the routes, calls `rewrite` and sends them back.  Its counters are complete
     * when the queue is. */
    exf_code (*device_rewrite)(void *self, const exf_device_routes *routes, exf_err *err);
    /* Adds to the routed output [T, H] of a block what router weights cannot express (diagonal and
     * low-rank projectors).  Called concurrently.  A rewriter that corrects has both functions: `correct`
     * runs where arrays are host memory, `device_correct` on a GPU, queued on b->q. */
    exf_code (*correct)(void *self, const exf_moe_block *b, float *routed, exf_err *err);
    exf_code (*device_correct)(void *self, const exf_device_block *b, float *routed, exf_err *err);
    /* Called once before the first layer of a pass on a GPU. */
    exf_code (*device_open)(void *self, const struct exf_backend *b, exf_err *err);
    uint64_t device_bytes; /* the most that the rewriter holds in GPU memory */
} exf_rewriter;

typedef struct {
    const exf_rewriter *rewriter; /* NULL: routes stay as the router made them */
    const exf_observer *observer; /* NULL: nothing is observed */
} exf_lane;

/* Normed hidden states, and optionally routes, that another program recorded.  Rows are numbered over the whole batch; the
 * functions are called from several threads. */
typedef struct {
    unsigned char has_input[EXF_MAX_LAYERS];  /* by the model's layer number; 1: the layer is replayed */
    unsigned char has_routes[EXF_MAX_LAYERS]; /* 1: routes are recorded; 0: the router runs */
    void *self;
    /* Reads rows [row, row + n) of the input of router and experts of a layer: dst [n, H], finite. */
    exf_code (*input)(void *self, int layer, size_t row, size_t n, float *dst, exf_err *err);
    /* Reads recorded routes: ids [n, K], distinct in [0, E) or -1, and weights [n, K]. */
    exf_code (*routes)(void *self, int layer, size_t row, size_t n, int32_t *ids, float *weights, exf_err *err);
} exf_recorded;
#endif
