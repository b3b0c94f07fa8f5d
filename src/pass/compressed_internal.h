/* compressed_internal.h - declares the parts of the compressed mixer, shared by mixer_compressed.c
 * and compressed_*.c: rotation, compressed entries, and the indexer that chooses among them. */
#ifndef EXF_PASS_COMPRESSED_INTERNAL_H
#define EXF_PASS_COMPRESSED_INTERNAL_H
#include "pass/mixer.h"

/* Returns how many compressed entries the layer makes of n_tokens: one for each complete window. */
int exf_entry_count(const exf_architecture *a, int layer, int n_tokens);
/* Returns 1 if entries overlap and an indexer chooses among them. */
int exf_entries_overlap(const exf_architecture *a, int layer);

/* ---- rotation --------------------------------------------------------------- */
/* Rows of n_heads heads of d floats, of which the last rope_dim are rotated; row i has
 * position first + i * step. */
typedef struct {
    int n_rows, n_heads, d;
    int first, step, inverse;
} exf_rotation;
/* Returns the rotation as a rope shape; sets *cosine and *sine unless the call has no rope tables. */
exf_rope_shape exf_compressed_rope(const exf_rotation *t, const exf_mixer_call *c, const float **cosine, const float **sine);
void exf_compressed_rotate(float *x, const exf_rotation *t, const exf_mixer_call *c);

/* ---- entries ------------------------------------------------------------------- */
/* The weights and width of a compressor: the attention's, or the indexer's narrower one. */
typedef struct {
    exf_role kv, gate, ape, norm;
    int d;
} exf_compressor_part;
/* Returns the floats of scratch that exf_compressed_entries() needs. */
size_t exf_entries_scratch(const exf_architecture *a, int layer, int n_tokens, int d);
/* Computes entries [N, d] of the whole sequence: pooled, normed, rotated to their windows' first tokens. */
void exf_compressed_entries(float *entries, const exf_compressor_part *part, const exf_mixer_call *c, float *scratch);

/* ---- indexer --------------------------------------------------------------------- */
typedef struct {
    int on;       /* 0: every query attends to all entries that it sees, so none are chosen */
    float *keys;  /* [N, index_dim] */
    float *q, *weights, *work;
    unsigned char *chosen; /* [rows, N] */
} exf_index_space;

void exf_index_carve(exf_index_space *s, const exf_mixer_call *c, int rows);
void exf_index_keys(const exf_index_space *s, const exf_mixer_call *c, float *scratch);
/* Chooses entries for the queries from `first` on: bytes 0 or 1 [n_rows, entries visible to the last
 * row], or NULL if every visible entry is chosen. q_rank: the queries' normed low-rank rows. */
const unsigned char *exf_index_choose(const exf_index_space *s, const exf_mixer_call *c, const float *q_rank, int first,
                                      int n_rows);
/* Returns the floating-point operations for one sequence. */
double exf_index_flops(const exf_architecture *a, int layer, double n_tokens);
#endif
