/* workspace.h - one worker's scratch memory, carved once per run.
 *
 * The mixer works on a whole sequence, the experts on a block of tokens; the two
 * never live at the same time, so they share one arena. */
#ifndef EXF_FORWARD_WORKSPACE_H
#define EXF_FORWARD_WORKSPACE_H
#include "forward/forward.h"

typedef struct {
    float *normed;    /* [T, H] */
    float *q, *heads; /* [T, n_heads * d] */
    float *k, *v;     /* [T, n_kv * d] */
    float *scores;    /* exf_attention_workspace(T) */
    float *logits;    /* [T, E] router */
} exf_mixer_space;

typedef struct {
    float *input;     /* [B, H] normed hidden states */
    float *outputs;   /* [B, K, H] */
    float *routed;    /* [B, H] */
    float *gathered;  /* [B * K, H] one expert's tokens */
    float *gate, *up; /* [B * K, I]; [B, d_ffn] in a dense layer */
    int32_t *slots;   /* [B * K] slot numbers bucketed by expert */
    int32_t *first;   /* [E + 1] where each expert's bucket starts */
} exf_experts_space;

typedef struct {
    float *arena;
    exf_mixer_space mixer;
    exf_experts_space experts;
    double *scores;   /* [E] doubles of the router */
    float *head;      /* [EXF_HEAD_ROWS, vocab + H], NULL when the head is not run */
    exf_forward_report times;
} exf_workspace;

enum { EXF_HEAD_ROWS = 128 };

/* Bytes of one worker's workspace. */
size_t exf_workspace_bytes(const exf_architecture *a, int max_tokens, int with_head);
exf_code exf_workspace_new(exf_workspace *w, const exf_architecture *a, int max_tokens, int with_head, exf_err *err) EXF_CHECKED;
void exf_workspace_free(exf_workspace *w);
#endif
