/* statistics.h - the additive sufficient statistics of a run: one layer at a time in memory,
 * all layers on disk as `statistics` (artifact_statistics.c). */
#ifndef EXF_ARTIFACT_STATISTICS_H
#define EXF_ARTIFACT_STATISTICS_H
#include "artifact/data.h"
#include "artifact/norm_sums.h"
#include "artifact/vector_sums.h"
#include "base/exact.h"

/* A route sample: some tokens' routes of one layer as the router made them, from which budgets per token are solved
 * (docs/method.md, section 9).
 *
 * A token has a key, a pure function of its sequence's digest, the layer and its position
 * (accumulate/sampler.h), and the tokens of the smallest keys are the sample: so samples of
 * different data merge into the sample of all of it, in any order. */
typedef struct {
    size_t cap, n;   /* tokens that fit, 0: there is no sample; tokens */
    int top_k;       /* K */
    int q;           /* directions of the norm head (norm_sums.h); 0: head is NULL */
    uint64_t *key;   /* [n] rising */
    int32_t *ids;    /* [n, K] distinct; -1: an empty slot, of weight 0; a token has one expert at least */
    float *weights;  /* [n, K] finite */
    float *head;     /* [n, q + 1 + K] V'x, log ||x|| and each slot's logit less their mean, as its sums take them; finite */
} exf_route_sample;

exf_code exf_route_sample_new(exf_route_sample *s, size_t cap, int top_k, exf_err *err) EXF_CHECKED;
/* Allocates head for q directions; 0: does nothing. */
exf_code exf_route_sample_add_head(exf_route_sample *s, int q, exf_err *err) EXF_CHECKED;
/* Returns the numbers of a token in head. */
static inline size_t exf_route_sample_head(const exf_route_sample *s)
{
    return s->q ? (size_t)(s->q + 1 + s->top_k) : 0;
}
/* Adds the tokens of `from`, which has the same K and q, and keeps those of the smallest keys. */
void exf_route_sample_merge(exf_route_sample *to, const exf_route_sample *from);
/* Checks a sample that was read: EXF_FORMAT naming `where` and the token. */
exf_code exf_route_sample_check(const exf_route_sample *s, int n_experts, const char *where, exf_err *err) EXF_CHECKED;
void exf_route_sample_free(exf_route_sample *s); /* accepts zeroed memory */

/* ---- the sums of a layer ----------------------------------------------- */

/* The sums are defined in kernels/statistics/layer_sums.h. */
#define EXF_PAIR_SUMS(X) X(dot) X(target_sq) X(source_sq) X(dot0) X(sq0)
#define EXF_EXPERT_SUMS_OF_VERSION_1(X) X(norm_sum) X(sq_sum) X(route_weight_sum) X(contribution_sum)
#define EXF_EXPERT_SUMS(X) EXF_EXPERT_SUMS_OF_VERSION_1(X) X(energy_sum)

/* Sums over sequences (units of a jackknife): with a = a sequence's own dot and b = its own
 * target_sq, both times 2^-24, the sums of a^2, a b and b^2. */
#define EXF_SEQUENCE_SUMS(X) X(seq_aa) X(seq_ab) X(seq_bb)
#define EXF_SEQUENCE_SCALE 0x1p-24

/* dot, target_sq and source_sq of one half of the data alone, that of the sequences with exf_sequence_half(); the other half's are
 * what the whole has beyond them. */
#define EXF_HALF_SUMS(X) X(half_dot) X(half_target_sq) X(half_source_sq)

/* Sums over the routes that the bare router would make (accumulate/accumulate_bare.c): of ||E_e(x)|| and w ||E_e(x)||. */
#define EXF_BARE_SUMS(X) X(bare_norm_sum) X(bare_contribution_sum)

/* The sums of one MoE layer.  Sums are exact; counts are tokens. */
typedef struct {
#define X(name) exf_exact *name;
    EXF_PAIR_SUMS(X)   /* [E, E], row = source */
    EXF_EXPERT_SUMS(X) /* [E] */
    EXF_BARE_SUMS(X)   /* [E] */
    EXF_SEQUENCE_SUMS(X) /* [E, E] */
    EXF_HALF_SUMS(X)     /* [E, E] */
#undef X
    uint64_t *sequences;  /* [E, E] sequences that observed the pair */
    uint64_t *count;      /* [E, E] */
    uint64_t *half_count; /* [E, E] */
    uint64_t *norm_count; /* [E] */
    uint64_t *bare_count; /* [E] tokens of common input that the bare router gives the expert; all 0: it was not observed */
    uint64_t *empty_slots;  /* [1] slots of the layer's tokens that hold no expert, since a hash layer names one twice */
    exf_exact *stream_sq;   /* [1] squared norms of the residual stream after the layer, all its streams together */
    uint64_t *stream_count; /* [1] tokens whose stream was seen; 0 where the pass had none, as with recorded hidden states */
    exf_route_sample routes; /* of the layer's tokens; cap 0: none is kept */
    exf_norm_sums norms;     /* q 0: none */
    int n_experts;
    const exf_vector_sums *vectors; /* borrowed; NULL: none, or not read */
    void *own;                      /* the memory of all arrays; NULL: it is another owner's */
} exf_layer_statistics;

/* Returns the bytes of the arrays of sums and counts, which lie in one piece of memory. */
size_t exf_layer_statistics_bytes(int n_experts);
/* Allocates the sums, but no route sample and no sums of a norm head: exf_route_sample_new() and exf_norm_sums_new() do. */
exf_code exf_layer_statistics_new(exf_layer_statistics *s, int n_experts, exf_err *err) EXF_CHECKED;
/* Moves the arrays, zeroed, into memory of another owner, which a GPU copies to at full speed. */
void exf_layer_statistics_move(exf_layer_statistics *s, void *memory);
void exf_layer_statistics_zero(exf_layer_statistics *s);
/* Adds `from` to `to`, exactly, and merges the samples if `to` has one.  EXF_FORMAT naming the sum and both terms
 * where a sum would wrap, which only forged ones do; `to` is then undefined. */
exf_code exf_layer_statistics_merge(exf_layer_statistics *to, const exf_layer_statistics *from, exf_err *err) EXF_CHECKED;
void exf_layer_statistics_free(exf_layer_statistics *s);

/* ---- the bare router's sums (statistics_bare.c) ------------------------- */

/* Write a layer's, where there are any, and read them back; EXF_FORMAT where they are not of K experts for each token of common
 * input. */
exf_code exf_bare_sums_write(exf_h5 *h, int layer, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
exf_code exf_bare_sums_read(exf_h5 *h, int layer, int64_t top_k, int common_input, const exf_layer_statistics *s,
                            exf_err *err) EXF_CHECKED;

/* ---- the route sample's datasets (statistics_routes.c) ------------------- */

/* Write a layer's sample, where it has tokens, and read it back, where the file has one; the sample is made as large as the file's.
 * EXF_FORMAT as exf_route_sample_check(), and for a sample of no size that the run can have. */
exf_code exf_route_sample_write(const exf_route_sample *s, exf_h5 *h, int layer, exf_err *err) EXF_CHECKED;
exf_code exf_route_sample_read(exf_route_sample *s, exf_h5 *h, const exf_run_shape *shape, int layer, exf_err *err) EXF_CHECKED;

/* ---- writing, layer by layer ------------------------------------------- */
typedef struct {
    exf_h5 *h;
    exf_run_shape shape;
    int by_sequence; /* 1: the file has sums over sequences */
    int without_energies; /* 1: energy_sum is unknown and not written */
    int halves;           /* 1: the file has the sums of one half */
    exf_provenance late; /* facts that are written at the end */
    int n_layers, n_hashed;
    struct exf_hashed_layer {
        int32_t number;
        int done;
    } *in_digest; /* [n_layers] in order of name, in which the digest walks over them; the first n_hashed are in it */
} exf_statistics_writer;

/* Contents of the file beside its layers. */
typedef struct {
    exf_run_shape shape;
    const int32_t *layer_number; /* [n_layers] */
    int n_layers;
    int without_energies;                /* 1: energy_sum is not known: some part is older than version 4 */
    int without_halves;                  /* 1: the sums of a half are not known: some part is older than version 5 */
    int common_input;                    /* pairs of all experts on the same tokens, not of co-routed ones */
    const exf_sequence_list *sequences;  /* sorted; NULL or without lengths: unknown, and the file has no sums over sequences */
    const exf_provenance *provenance;
    const exf_provenance *origin;        /* NULL: none */
    int is_basis;                        /* 1: a basis (artifact_basis.h): only what vector sums are over is put */
} exf_statistics_header;

exf_code exf_statistics_start(exf_statistics_writer *w, const char *target, int force, const exf_statistics_header *head,
                              exf_err *err) EXF_CHECKED;
exf_code exf_statistics_put(exf_statistics_writer *w, int layer_number, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
/* Writes a layer's vector sums, once per layer after its other sums (vector_sums.h). */
exf_code exf_statistics_put_vectors(exf_statistics_writer *w, int layer_number, const exf_vector_sums *v, exf_err *err) EXF_CHECKED;
/* Called by exf_statistics_start(). */
exf_code exf_statistics_order_layers(exf_statistics_writer *w, const exf_statistics_header *head, exf_err *err) EXF_CHECKED;
/* Says that all of a layer is written; its bytes are hashed for the digest of the commit as soon as those before it are. */
exf_code exf_statistics_layer_done(exf_statistics_writer *w, int layer_number, exf_err *err) EXF_CHECKED;
/* Reads back a layer that was put, as exf_statistics_get() does, in a file of co-routed pairs; sequences: those of the file.
 * v: gets its vector sums, which the caller frees; NULL: it has none. */
exf_code exf_statistics_get_back(const exf_statistics_writer *w, int layer_number, const exf_sequence_list *sequences,
                                 exf_layer_statistics *s, exf_vector_sums *v, exf_err *err) EXF_CHECKED;
/* Adds facts to the provenance. */
exf_code exf_statistics_add_facts(exf_statistics_writer *w, const exf_provenance *p, exf_err *err) EXF_CHECKED;
/* Moves the file into place.  digest: gets that of the file's payload, for which every layer must be done; may be NULL.  Ends w,
 * also on failure. */
exf_code exf_statistics_commit(exf_statistics_writer *w, char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
void exf_statistics_abort(exf_statistics_writer *w); /* allowed after commit */

/* ---- reading, layer by layer ---------------------------------------------- */
typedef struct {
    exf_h5 *h;
    exf_run_shape shape;
    int n_layers;
    int32_t *layer_number; /* [n_layers] */
    exf_provenance provenance, origin;
    exf_common_tokens common; /* tokens that every pair has; least 0 and most 0: pairs are co-routed */
    exf_sequence_list sequences; /* sorted; if unknown, the file has no sums over sequences, and a layer's read as 0 */
    int common_input;
    int has_energies; /* 1: the file has energy_sum (since version 4); else a layer's reads as 0 */
    int has_halves;   /* 1: the file has the sums of one half (since version 5); else a layer's read as 0 */
} exf_statistics_reader;

exf_code exf_statistics_open(exf_statistics_reader *r, const char *path, exf_err *err) EXF_CHECKED;
/* Reads layer i of n_layers into s (made by exf_layer_statistics_new).  Refuses a file whose rounded
 * sums differ from its exact ones, or whose counts cannot be (data.h). */
exf_code exf_statistics_get(exf_statistics_reader *r, int i, exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
/* Reads that layer's vector sums, which exf_statistics_get() does not read: they may be gigabytes.
 * If it has none, v->n_pairs is 0.  The caller frees them. */
exf_code exf_statistics_get_vectors(exf_statistics_reader *r, int i, exf_vector_sums *v, exf_err *err) EXF_CHECKED;
/* Reads the pairs of the vector sums alone, [n, 2]; if there are none, n is 0 and *pair NULL. The caller frees them. */
exf_code exf_statistics_get_vector_pairs(exf_statistics_reader *r, int i, int32_t **pair, int64_t *n, exf_err *err) EXF_CHECKED;
void exf_statistics_close(exf_statistics_reader *r);
#endif
