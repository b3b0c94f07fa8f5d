/* workspace.h - one worker's scratch memory and how its parts are carved.
 *
 * Sweep 1 (mixer, router) works on a whole sequence, sweep 2 (experts) on a block
 * of tokens, the head on a few rows; they never live at the same time, so they
 * share one arena in the backend's memory.  What an observer is shown is ordinary
 * memory: the arena itself, or a mirror where the backend's memory is elsewhere. */
#ifndef EXF_FORWARD_WORKSPACE_H
#define EXF_FORWARD_WORKSPACE_H
#include "base/arena.h"
#include "forward/forward.h"
#include "kernels/backend.h"

enum {
    EXF_COMMON_INPUT_ROWS = EXF_COMMON_INPUT_UNIT /* tokens that all experts run on at a time, where they are few */
};

/* Sweep 1, T tokens; the mixer takes what it needs behind these. */
typedef struct {
    float *u, *mixing; /* [T, H] and [T, exf_residual_mixing]; unused with one stream */
    float *normed;     /* [T, H] */
    float *mixed;      /* [T, H] the mixer's output */
    float *logits;     /* [T, E] of the router */
} exf_mixer_space;

/* Sweep 2, B tokens. */
typedef struct {
    float *u, *mixing;
    float *input;     /* [B, H] normed hidden states */
    float *outputs;   /* [B, K, H] */
    float *routed;    /* [B, H] */
    float *block;     /* [B, H] with the shared experts; routed itself where there are none */
    float *gathered;  /* [B * K, H] one expert's tokens */
    float *gate, *up; /* [B * K, I], or wider for dense and shared parts */
    int32_t *slots;   /* [B * K] slot numbers bucketed by expert */
    int32_t *rows;    /* [B * K] the token of each of these slots */
    float *probe_outputs, *probe_routed; /* [B, K, H], [B, H]; with probes */
} exf_experts_space;

/* All experts on EXF_COMMON_INPUT_ROWS tokens, n for short. */
typedef struct {
    float *hidden;     /* [n, streams, H] */
    float *u, *mixing;
    float *input;      /* [n, H] normed */
    float *outputs;    /* [n, E, H] */
    float *gate, *up;  /* [n, I] */
    int32_t *rows;     /* [n] */
} exf_common_input_space;

/* Rows that the head works on at a time: on a device more, so that its matrix is read
 * seldom. */
static inline int exf_head_rows(const exf_backend *b)
{
    return b->host_memory ? 128 : 256;
}

/* The head, exf_head_rows() rows. */
typedef struct {
    float *u, *normed, *logits;
} exf_head_space;

typedef struct {
    const exf_backend *b;
    exf_queue *q;
    exf_compute compute;
    float *floats;   /* the arena's memory, b's */
    double *router;  /* exf_router_scratch, b's */
    int32_t *slots, *rows, *first; /* host: [B * K], [B * K], [E + 1] the buckets of a block */
    int32_t *probe_ids;            /* host: [B * K] what a probe has to compute */
    int32_t *common_input_ids;           /* host: [EXF_COMMON_INPUT_ROWS, K] */
    float *common_input_weights;
    float *mirror;   /* host: what observers see of a block or of the head; NULL where b's memory is the host's */
    exf_forward_report times;
} exf_workspace;

void exf_carve_mixer(exf_mixer_space *s, exf_arena *arena, const exf_architecture *a, int n_tokens);
void exf_carve_experts(exf_experts_space *s, exf_arena *arena, const exf_architecture *a, int n_tokens, int probes);
void exf_carve_common_input(exf_common_input_space *s, exf_arena *arena, const exf_architecture *a);
void exf_carve_head(exf_head_space *s, exf_arena *arena, const exf_backend *b, const exf_architecture *a);

/* Bytes of one worker's workspace in b's memory. */
size_t exf_workspace_bytes(const exf_backend *b, const exf_architecture *a, int max_tokens, const exf_demand *d);
exf_code exf_workspace_new(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens,
                           const exf_demand *d, exf_err *err) EXF_CHECKED;
/* One for sweep 1 alone, and its bytes. */
exf_code exf_workspace_mixing(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens,
                              exf_err *err) EXF_CHECKED;
size_t exf_workspace_mixing_bytes(const exf_backend *b, const exf_architecture *a, int max_tokens);
/* One whose arena has `floats` floats, for blocks of at most `block` tokens. */
exf_code exf_workspace_sized(exf_workspace *w, const exf_backend *b, exf_compute compute, const exf_architecture *a, size_t floats,
                             int block, size_t mirror, exf_err *err) EXF_CHECKED;
/* n floats of the workspace as ordinary memory: themselves, or a copy at *mirror, which
 * moves on. */
exf_code exf_visible(exf_workspace *w, const float *x, size_t n, float **mirror, const float **out, exf_err *err) EXF_CHECKED;
void exf_workspace_free(exf_workspace *w);
#endif
