/* statistics.h - the additive sufficient statistics of a run: one layer at a time in memory,
 * all layers on disk as `statistics` (statistics_file.c). */
#ifndef EXF_ACCUMULATE_STATISTICS_H
#define EXF_ACCUMULATE_STATISTICS_H
#include "artifact/data.h"
#include "accumulate/norm_sums.h"
#include "accumulate/route_sample.h"
#include "accumulate/vector_sums.h"
#include "base/exact.h"

/* ---- the sums of a layer ----------------------------------------------- */

/* The arrays of a layer's sums and counts: one row each, in the order in which a file has them.  From these rows follow their
 * memory, their merging, their datasets, and what resume points record and ranks add up: a new array is a row here and the code
 * that observes it.  kernels/statistics/layer_sums.h defines the terms of most.
 *   name     of the member, and of the tensor in a resume point
 *   of       PAIR: [E, E], row = source; EXPERT: [E]; LAYER: [1]
 *   element  EXACT: exf_exact, a sum; COUNT: uint64_t
 *   part     which files have it, below
 *   rounded  F64 dataset below /layers/<l>/ of the sums rounded to nearest; NULL: none
 *   words    U64 dataset of the counts, or of the sums exactly */
#define EXF_LAYER_ARRAYS(X)                                                                           \
    X(dot,                   PAIR,   EXACT, ALWAYS,    "dot",               "exact/dot")              \
    X(target_sq,             PAIR,   EXACT, ALWAYS,    "target_sq",         "exact/target_sq")        \
    X(source_sq,             PAIR,   EXACT, ALWAYS,    "source_sq",         "exact/source_sq")        \
    X(dot0,                  PAIR,   EXACT, ALWAYS,    "dot0",              "exact/dot0")             \
    X(sq0,                   PAIR,   EXACT, ALWAYS,    "sq0",               "exact/sq0")              \
    /* Over sequences, the units of a jackknife: a^2, a b and b^2 of a sequence's own dot a and       \
     * target_sq b, both times EXF_SEQUENCE_SCALE; and the sequences that observed the pair. */       \
    X(seq_aa,                PAIR,   EXACT, SEQUENCES, "seq_aa",            "exact/seq_aa")           \
    X(seq_ab,                PAIR,   EXACT, SEQUENCES, "seq_ab",            "exact/seq_ab")           \
    X(seq_bb,                PAIR,   EXACT, SEQUENCES, "seq_bb",            "exact/seq_bb")           \
    X(norm_sum,              EXPERT, EXACT, ALWAYS,    "norm_sum",          "exact/norm_sum")         \
    X(sq_sum,                EXPERT, EXACT, ALWAYS,    "sq_sum",            "exact/sq_sum")           \
    X(route_weight_sum,      EXPERT, EXACT, ALWAYS,    "route_weight_sum",  "exact/route_weight_sum") \
    X(contribution_sum,      EXPERT, EXACT, ALWAYS,    "contribution_sum",  "exact/contribution_sum") \
    X(energy_sum,            EXPERT, EXACT, ENERGIES,  "energy_sum",        "exact/energy_sum")       \
    X(count,                 PAIR,   COUNT, ALWAYS,    NULL,                "count")                  \
    X(norm_count,            EXPERT, COUNT, ALWAYS,    NULL,                "norm_count")             \
    X(sequences,             PAIR,   COUNT, SEQUENCES, NULL,                "sequences")              \
    /* Of one half of the data alone, the sequences with exf_sequence_half(); the other half's are    \
     * what the whole has beyond them. */                                                             \
    X(half_dot,              PAIR,   EXACT, HALVES,    NULL,                "half/dot")               \
    X(half_target_sq,        PAIR,   EXACT, HALVES,    NULL,                "half/target_sq")         \
    X(half_source_sq,        PAIR,   EXACT, HALVES,    NULL,                "half/source_sq")         \
    X(half_count,            PAIR,   COUNT, HALVES,    NULL,                "half/count")             \
    X(cosine_sum,            PAIR,   EXACT, COSINES,   "cosine_sum",        "exact/cosine_sum")       \
    /* Over the routes that the bare router would make of tokens of common input                      \
     * (accumulate/chapter_common_input.c): ||E_e(x)||, w ||E_e(x)||, and their number. */            \
    X(bare_norm_sum,         EXPERT, EXACT, BARE,      NULL,                "bare/norm_sum")          \
    X(bare_contribution_sum, EXPERT, EXACT, BARE,      NULL,                "bare/contribution_sum")  \
    X(bare_count,            EXPERT, COUNT, BARE,      NULL,                "bare/count")             \
    /* Squared norms of the residual stream after the layer, all its streams together, and the        \
     * tokens whose stream was seen: none with recorded hidden states. */                             \
    X(stream_sq,             LAYER,  EXACT, STREAM,    "stream/sq",         "stream/exact")           \
    X(stream_count,          LAYER,  COUNT, STREAM,    NULL,                "stream/count")           \
    /* The inverses of these squared norms (exf_row_energies of kernels/statistics/divergence.h), and \
     * the tokens that they are over: fewer than the stream's where a part is older than version 6. */\
    X(stream_inverse_sq,     LAYER,  EXACT, STREAM,    "stream_inverse/sq", "stream_inverse/exact")   \
    X(stream_inverse_count,  LAYER,  COUNT, STREAM,    NULL,                "stream_inverse/count")   \
    /* The squared norms of the sequences' first tokens, where models keep massive activations. */    \
    X(stream_first_sq,       LAYER,  EXACT, STREAM,    "stream_first/sq",   "stream_first/exact")     \
    X(stream_first_count,    LAYER,  COUNT, STREAM,    NULL,                "stream_first/count")     \
    /* Slots of the layer's tokens that hold no expert, since a hash layer names one twice. */        \
    X(empty_slots,           LAYER,  COUNT, OBSERVED,  NULL,                "empty_slots")

#define EXF_SEQUENCE_SCALE 0x1p-24

/* Which files have an array.  Those of a part before EXF_PART_BARE are in all layers of a file or in none; those of the last three
 * are in a layer by groups (the path below the layer up to its '/'), each where the last array of the group is not all 0.  What a
 * file lacks reads as 0; merging cannot tell that from a sum of other data alone, so a sum that only some runs observe comes with a
 * fact that merging compares. */
typedef enum {
    EXF_PART_ALWAYS,
    EXF_PART_SEQUENCES, /* files that know their sequences */
    EXF_PART_ENERGIES,  /* files since version 4 */
    EXF_PART_HALVES,    /* files since version 5 that know their sequences */
    EXF_PART_COSINES,   /* files since version 6 */
    EXF_PART_BARE,
    EXF_PART_STREAM,    /* after the sums of the norm head in the file; known after the last sweep alone */
    EXF_PART_OBSERVED,  /* after them */
    EXF_N_PARTS
} exf_layer_part;

/* The sums of one MoE layer.  Sums are exact; counts are tokens where nothing else is said. */
typedef struct exf_layer_statistics {
#define EXF_ELEMENT_TYPE_EXACT exf_exact
#define EXF_ELEMENT_TYPE_COUNT uint64_t
#define X(name, of, element, part, rounded, words) EXF_ELEMENT_TYPE_##element *name;
    EXF_LAYER_ARRAYS(X)
#undef X
    exf_route_sample routes; /* of the layer's tokens; cap 0: none is kept */
    exf_norm_sums norms;     /* q 0: none */
    int n_experts;
    const exf_vector_sums *vectors; /* borrowed; NULL: none, or not read */
    void *own;                      /* the memory of all arrays; NULL: it is another owner's */
} exf_layer_statistics;

/* A row of the table above. */
typedef struct {
    const char *name;
    enum { EXF_OF_PAIR, EXF_OF_EXPERT, EXF_OF_LAYER } of;
    enum { EXF_ELEMENT_EXACT, EXF_ELEMENT_COUNT } element;
    exf_layer_part part;
    const char *rounded, *words;
    size_t offset; /* of the member */
} exf_layer_array;

#define X(...) +1
enum { EXF_N_LAYER_ARRAYS = EXF_LAYER_ARRAYS(X) };
#undef X
extern const exf_layer_array exf_layer_arrays[EXF_N_LAYER_ARRAYS];

/* Returns the elements of an array. */
size_t exf_layer_array_count(const exf_layer_array *a, int n_experts);
void *exf_layer_array_at(const exf_layer_array *a, const exf_layer_statistics *s);
/* Describes an array as U64, a sum as an axis of 3 words. */
exf_tensor exf_layer_array_tensor(const exf_layer_array *a, int n_experts, const void *data);

/* Receives the sums of layer index i of a run as soon as they are complete, layer after layer, from one thread at a time; s is the
 * giver's.  consume NULL: nobody receives them. */
typedef struct {
    void *self;
    exf_code (*consume)(void *self, int i, const exf_layer_statistics *s, exf_err *err);
} exf_layer_consumer;

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

/* ---- writing, layer by layer ------------------------------------------- */
typedef struct {
    exf_h5 *h;
    exf_run_shape shape;
    int has[EXF_PART_BARE]; /* 1: the file has the part's arrays */
    exf_provenance late; /* facts that are written at the end, to which the owner may add */
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
    int lacks[EXF_PART_BARE];            /* 1: the part's arrays are not known: a merged file is older than they are */
    int common_input;                    /* pairs of all experts on the same tokens, not of co-routed ones */
    const exf_sequence_list *sequences;  /* sorted; NULL or without lengths: unknown, and the file has no sums over sequences */
    const exf_provenance *provenance;
    const exf_provenance *origin;        /* NULL: none */
} exf_statistics_header;

exf_code exf_statistics_start(exf_statistics_writer *w, const char *target, int force, const exf_statistics_header *head,
                              exf_err *err) EXF_CHECKED;
exf_code exf_statistics_put(exf_statistics_writer *w, int layer_number, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;
/* Says that all of a layer is written; its bytes are hashed for the digest of the commit as soon as those before it are. */
exf_code exf_statistics_layer_done(exf_statistics_writer *w, int layer_number, exf_err *err) EXF_CHECKED;
/* Moves the file into place.  digest: gets that of the file's payload, for which every layer must be done; may be NULL.  Ends w,
 * also on failure. */
exf_code exf_statistics_commit(exf_statistics_writer *w, char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
void exf_statistics_abort(exf_statistics_writer *w); /* allowed after commit */

/* ---- reading, layer by layer ---------------------------------------------- */
typedef struct exf_statistics_reader {
    exf_h5 *h;
    exf_run_shape shape;
    int n_layers;
    int32_t *layer_number; /* [n_layers] */
    exf_provenance provenance, origin;
    exf_common_tokens common; /* tokens that every pair has; least 0 and most 0: pairs are co-routed */
    exf_sequence_list sequences; /* sorted; if unknown, the file has no sums over sequences, and a layer's read as 0 */
    int common_input;
    int has[EXF_PART_BARE]; /* 1: the file has the part's arrays; else a layer's read as 0 */
} exf_statistics_reader;

exf_code exf_statistics_open(exf_statistics_reader *r, const char *path, exf_err *err) EXF_CHECKED;
/* Finds which parts the layers have.  EXF_FORMAT if the first layer's pairs are not of as many experts as the file says: called by
 * exf_statistics_open(), before anybody takes memory for them. */
exf_code exf_statistics_find_parts(exf_statistics_reader *r, exf_err *err) EXF_CHECKED;
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
