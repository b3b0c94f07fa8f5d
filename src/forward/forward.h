/* forward.h - the layer-major streaming forward pass and its two doors.
 *
 *   tokens -> embed -> [ layer 0: norm, mixer, norm, router ->(rewrite)-> experts ->(observe) ] -> layer 1 ... -> head ->(observe)
 *
 * One layer's weights are read, every token of the run goes through it, then the
 * next layer's: each weight byte is read once, and memory is one layer plus the
 * hidden states, whatever the model's size.
 *
 * The pass knows nobody behind its doors.  A `rewriter` may change which experts
 * run and with what weight; an `observer` sees what they gave.  Several `lanes`,
 * each with its own hidden states and doors, ride one pass over the weights; up to
 * the first router they are one, and what comes before is run once.
 *
 * Reproducible: the unit of work is one sequence; its arithmetic uses one thread
 * and never depends on which other sequences are in the run, so any thread
 * count and any split of the sequences over runs gives the same bits. */
#ifndef EXF_FORWARD_FORWARD_H
#define EXF_FORWARD_FORWARD_H
#include "base/log.h"
#include "model/model.h"

#include <stddef.h>
#include <stdint.h>

struct exf_backend; /* kernels/backend.h */
struct exf_queue;

/* At most this many consecutive tokens of a sequence go through the experts at a time. */
enum { EXF_MOE_BLOCK = 1024 };

/* ---- what goes in ------------------------------------------------------ */
typedef struct {
    size_t offset; /* of the first token in the batch's ids: also its row */
    int n_tokens;  /* >= 1 */
} exf_span;

typedef struct {
    const int32_t *ids; /* all tokens, sequence after sequence; each in [0, vocab) */
    const exf_span *span;
    size_t n_sequences, n_tokens;
    int max_tokens; /* of the longest sequence */
} exf_batch;

/* ---- what passes through the doors --------------------------------------- */
/* All tokens of the run, in one MoE layer of one lane. */
typedef struct {
    int layer, moe_index; /* the model's layer number; its number among MoE layers */
    const exf_batch *batch;
    int n_experts, top_k;
    int probe;      /* 1: the first lane's routes, asked for by a probe */
    int by_token;   /* 1: the layer routes by token id (a hash layer), not by a score */
    int32_t *ids;   /* [T, K] of the whole run; -1: the slot runs no expert.  An id may repeat in a row. */
    float *weights; /* [T, K] */
} exf_routes;

/* Consecutive tokens of one sequence in one MoE layer; everything float32. */
typedef struct {
    int layer, moe_index;
    size_t sequence, row; /* row: of the first token in the whole run */
    int position;         /* of the first token in its sequence */
    int n_tokens, n_experts, top_k, d_model;
    int worker;                  /* calls with different numbers may run at the same time */
    int sweep;                   /* how often this block was shown before */
    const float *moe_input;      /* [T, H] what router and experts saw */
    const int32_t *router_ids;   /* [T, K] as the router chose */
    const float *router_weights; /* [T, K] */
    const int32_t *topk_ids;     /* [T, K] after rewriting */
    const float *topk_weights;   /* [T, K] */
    const float *expert_outputs; /* [T, K, H] unweighted */
    const float *routed_output;  /* [T, H] sum of weight * output */
    const float *block_output;   /* [T, H] with shared experts, what is added to the residual */
} exf_moe_block;

/* Consecutive tokens of the run in one MoE layer, on a device: arrays in its memory,
 * queued on q and not yet done; what reads them is queued behind. */
typedef struct {
    int layer, moe_index, sweep;
    const exf_batch *batch;
    size_t row; /* of the first token in the whole run; tokens may be of several sequences, or a part of one */
    int n_tokens, n_experts, top_k, d_model;
    struct exf_queue *q;
    const void *expert_outputs; /* [T, K, H] unweighted */
    int rounded;                /* they are 1: bfloat16, 0: float32 */
    const int32_t *router_ids;   /* [T, K] as the router chose; NULL where no rewriter corrects */
    const float *router_weights; /* [T, K] */
    const int32_t *topk_ids;     /* [T, K] after rewriting */
    const float *topk_weights;   /* [T, K] */
} exf_device_block;

/* Some tokens of one sequence in one MoE layer, and what every expert says to them. */
typedef struct {
    int layer, moe_index;
    size_t sequence;
    int n_tokens, n_experts, top_k, d_model, worker;
    const size_t *row;           /* [n] of each token in the whole run; ascending */
    const float *outputs;        /* [n, E, H] unweighted */
    const int32_t *router_ids;   /* [n, K] */
    const float *router_weights; /* [n, K] */
} exf_common_input_block;

/* Consecutive tokens of an exf_device_common_input that are of one sequence: a multiple of
 * EXF_COMMON_INPUT_UNIT (kernels/statistics/layer_sums.h), but at the end of what the sequence gives. */
typedef struct {
    size_t sequence;
    int first, n_tokens; /* tokens [first, first + n_tokens) */
    int ends;            /* 1: the sequence gives no more */
} exf_common_input_part;

/* Tokens of one MoE layer and what every expert says to them, on a device; see exf_device_block. */
typedef struct {
    int layer, moe_index, n_experts, d_model;
    struct exf_queue *q;
    const void *outputs;         /* [n_tokens, E, H] unweighted */
    int rounded;                 /* they are 1: bfloat16, 0: float32 */
    int n_tokens;                /* that outputs has room for, the same however the run is cut; what no part names is undefined */
    const exf_common_input_part *part; /* in order of sequences */
    int n_parts;
    const int32_t *row;          /* [n_tokens], on the device: row_offset + row is a token's in the whole run */
    size_t row_offset;
} exf_device_common_input;

/* What a lane's rewriter would have made of the first lane's hidden states. */
typedef struct {
    int layer, moe_index;
    size_t sequence, row;
    int position, n_tokens, top_k, d_model, worker;
    const int32_t *topk_ids; /* [T, K] after rewriting */
    const float *original;   /* [T, H] the first lane's routed output */
    const float *rewritten;  /* [T, H] */
} exf_probe_block;

typedef struct {
    size_t sequence, row;
    int position, n_tokens, vocab, worker;
    const float *logits; /* [n_tokens, vocab] */
} exf_logits_block;

/* The same on a device, as exf_device_block. */
typedef struct {
    size_t sequence, row;
    int position, n_tokens, vocab;
    struct exf_queue *q;
    const float *logits; /* [n_tokens, vocab] */
    const int32_t *next; /* [n_tokens] the tokens that come; behind a sequence's last stands some other */
} exf_device_logits;

/* ---- door 1: rewrite, between router and experts ------------------------ */
/* Any function may be NULL.  Stateless between layers: the same routes give the same
 * result, for a layer may be asked for twice (see probe). */
typedef struct {
    void *self;
    /* Experts that exist for the router in this layer, [E] 0 or 1; NULL: all. */
    const unsigned char *(*retained_experts)(void *self, int moe_index);
    exf_code (*rewrite)(void *self, exf_routes *routes, exf_err *err);
    /* Adds to the block's routed [T, H] what weights alone cannot say.  Concurrent. */
    exf_code (*correct)(void *self, const exf_moe_block *b, float *routed, exf_err *err);
    /* The same on a device, queued on b->q: routed is in the device's memory.  device_open comes once, before
     * the first layer; device_bytes is what the rewriter will hold in the device's memory at most. */
    exf_code (*device_open)(void *self, const struct exf_backend *b, exf_err *err);
    exf_code (*device_correct)(void *self, const exf_device_block *b, float *routed, exf_err *err);
    uint64_t device_bytes;
} exf_rewriter;

/* ---- door 2: observe, after the experts --------------------------------- */
/* Any function may be NULL. */
typedef struct {
    void *self;
    int sweeps;        /* how often a layer's blocks are shown, the experts computed anew each time; 0 is 1 */
    int common_input_tokens; /* tokens of a sequence that all experts are run on for `common`, evenly spaced */
    exf_code (*begin)(void *self, int n_workers, exf_err *err);
    exf_code (*layer_begin)(void *self, int layer, int moe_index, exf_err *err);
    exf_code (*block)(void *self, const exf_moe_block *b, exf_err *err);      /* concurrent */
    /* Where the pass runs on a device, blocks are shown as they lie there and not by `block`, in
     * the first device_sweeps sweeps; the tokens of `common` and logits too, where there are
     * doors for them.  device_open comes after begin; device_logits is beside logits, which
     * says that the head is wanted. */
    exf_code (*device_open)(void *self, const struct exf_backend *b, exf_err *err);
    int device_sweeps;     /* of the sweeps, those that device_block sees; the others are shown by `block` all the same */
    uint64_t device_bytes; /* held in the device's memory beside the sums of pairs (kernels/statistics/layer_sums.h) */
    exf_code (*device_block)(void *self, const exf_device_block *b, exf_err *err);
    exf_code (*device_logits)(void *self, const exf_device_logits *b, exf_err *err);
    exf_code (*device_common_input)(void *self, const exf_device_common_input *c, exf_err *err);
    exf_code (*common_input)(void *self, const exf_common_input_block *b, exf_err *err);  /* concurrent; before the first sweep; not in hash layers */
    exf_code (*probe)(void *self, const exf_probe_block *b, exf_err *err);    /* concurrent; not of the first lane */
    exf_code (*sweep_end)(void *self, int layer, int moe_index, int sweep, exf_err *err);
    exf_code (*layer_end)(void *self, int layer, int moe_index, exf_progress *progress, exf_err *err);
    /* Concurrent; NULL: the head is not run.  All lanes' logits of the same tokens come one
     * after the other, lane by lane, on the same worker. */
    exf_code (*logits)(void *self, const exf_logits_block *b, exf_err *err);
} exf_observer;

typedef struct {
    const exf_rewriter *rewriter; /* NULL: routes stay as the router made them */
    const exf_observer *observer; /* NULL: nobody looks */
} exf_lane;

/* ---- the pass ------------------------------------------------------------ */
typedef struct {
    const struct exf_backend *backend; /* kernels/backend.h; NULL: the CPU */
    int compute;  /* exf_compute */
    int threads;  /* CPU workers; 0: all that the system gives */
    int n_layers; /* stop after this many layers; 0: all */
    int readers;  /* threads that read weights for a device; 0: as many as the system has, at most 8 */
    int mixer_queues;  /* sequences that a device mixes side by side; 0: 4, fewer where memory is short */
    int timed;    /* 1: a device is waited for after each part, so that the report's shares are true; slower */
    uint64_t max_device_memory; /* bytes; 0: what is free */
} exf_forward_options;

/* Seconds, summed over workers (read: wall). */
typedef struct {
    double read, embed, mixer, router, experts, observe, head, wall;
    uint64_t weight_bytes; /* read from the checkpoint */
    double flops;          /* floating-point operations of products and mixers */
    double open, close; /* seconds of making and giving back what a pass holds */
    double reading, sending; /* seconds that a device's weight readers spent, summed over them */
    uint64_t device_bytes; /* most that was held in the device's memory */
    int workers;
} exf_forward_report;

exf_code exf_forward(const exf_model *m, const exf_batch *batch, const exf_lane *lanes, size_t n_lanes, const exf_forward_options *options,
                     exf_forward_report *report, exf_err *err) EXF_CHECKED;

/* What lanes ask of a pass; a plan may say it without having them. */
typedef struct {
    size_t lanes;
    size_t probes; /* lanes that compare themselves with the first */
    size_t pruned; /* of those, lanes that prune experts and add vectors */
    int corrects;  /* a rewriter adds vectors */
    int head;      /* logits */
    int scored;    /* logits are scored on a device, where the first lane's stay beside them */
    int common_input;    /* tokens of a sequence that all experts run on */
    int sweeps;    /* how often a layer's experts are run; 0 is 1 */
    uint64_t observers; /* bytes that observers hold in a device's memory */
} exf_demand;
exf_demand exf_demand_of(const exf_lane *lanes, size_t n_lanes);

/* Workers the pass will have: one where memory is not the host's, else never more
 * than there are sequences. */
int exf_forward_workers(const struct exf_backend *backend, const exf_batch *batch, int threads);
/* Floating-point operations of one lane. */
double exf_forward_flops(const exf_architecture *a, const exf_batch *batch, int logits);
/* Of a whole pass, with what observers make it do again; probes and what lanes share are
 * left out. */
double exf_forward_demand_flops(const exf_architecture *a, const exf_batch *batch, const exf_demand *d);
/* What the pass will hold at its peak, in bytes: weights, hidden states, routes, workspaces,
 * an observer's sums on a device. */
typedef struct {
    uint64_t device, host; /* host: ordinary and pinned memory */
    int reads;             /* how often routed experts are read: more than once where one layer's do not fit a device */
    size_t window;         /* 0: all hidden states live in the backend's memory; else they live in pinned memory, and so many
                            * tokens' at most come to a device at a time */
} exf_forward_footprint;
/* EXF_NOSPACE naming what would do where the options' limit, or what is free on the device, is
 * too little. */
exf_code exf_forward_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m, const exf_batch *batch,
                            const exf_demand *d, exf_err *err) EXF_CHECKED;
#endif
