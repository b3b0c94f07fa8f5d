/* exfold/accumulate.h - statistics of a model that another program runs: what its experts put out goes in, statistics.h5 comes out.
 *
 * An inference engine that runs a mixture of experts calls these functions with what each MoE layer did: which experts a token
 * took, with which weights, and what each of them put out.  The result is the file that exfold-calibrate makes of a model that it
 * runs itself, and exfold-solve, -export, -merge and -inspect take it as they take that one; facts in it say that its weights were
 * not verified (capture.program "exfold_record", model.weights "not verified").
 *
 *   exf_record_open     names the file, the shape of the model and the facts of the run
 *   exf_record_begin    names the sequences of the next part of the text, by their token ids
 *   exf_record_add      adds rows of one layer; once for every row of every sequence of the part in every layer
 *   exf_record_end      refuses a part with rows missing, and writes its sums to a file
 *   exf_record_close    adds up all parts and moves statistics.h5 into place
 *   exf_record_free     frees everything, and drops a part that was not ended
 *
 * Order.  Sums are exact integers: rows may come in blocks of any size and in any order, layers one after the other or mixed; equal
 * rows give equal files, however the text was cut into parts.
 *
 * Stopping.  A part that was ended stays beside the target as TARGET.part-DIGEST, named by its sequences, until exf_record_close.
 * A run that was killed and begins again is told by exf_record_begin that a part is there, and leaves it out; the present part's
 * rows are lost.  A part that has other facts is refused, and no file is removed but parts that this run made or took.
 *
 * Memory.  Sums of all layers are kept at a time: exf_record_memory says how much; 300 MB for 48 layers of 128 experts, 5.8 GB for
 * 60 of 512.  Where sequences mix, each that is begun and not ended takes at most 64 bytes for every pair of experts that its
 * tokens chose together in a layer.
 *
 * Threads.  exf_record_add may be called from any threads at a time; calls for the same layer wait for each other.  All other
 * functions exclude every other call with the same exf_record.
 *
 * Errors.  Functions return 0, or the exit status that programs have for such a failure (docs/programs.md), and one sentence in
 * `message`, which is cut, never overrun.  After a failed exf_record_add the part cannot be ended, and must begin again.
 *
 * Numerics.  Outputs are read as float32; bfloat16 is widened exactly.  Inner products are double, sums 192-bit integers in units
 * of 2^-96 (docs/method.md, section 1).  The order of a token's experts changes nothing but its row of the route sample.
 *
 * GPUs.  Rows may lie in CUDA memory, where a library that was built with CUDA multiplies the outputs: 8 K K bytes of a token go to
 * the host instead of its outputs, and give the same bits.  The sums are on the host all the same: there sequences may mix.
 *
 * Vectors of pairs (diagonal and low-rank projectors) and the norm head are not offered: they are sums over directions that a
 * layer's other sums, or its inputs of all tokens, choose first, so that its rows would have to come twice.
 *
 * examples/record.c is a whole program; cc record.c $(pkg-config --cflags --libs exfold-accumulate) */
#ifndef EXFOLD_ACCUMULATE_H
#define EXFOLD_ACCUMULATE_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define EXF_RECORD_ABI 1

typedef struct exf_record exf_record;

/* A fact: key and text, both UTF-8.  Keys begin with "model.", "data.", "tokenizer.", "capture." or "setting.". */
typedef struct {
    const char *key, *value;
} exf_record_fact;

typedef struct {
    size_t size;              /* sizeof(exf_record_options) */
    const char *path;         /* statistics.h5 that is to be made */
    int replace;              /* 1: a file of that name is replaced; 0: it is refused */
    int n_layers;
    const int32_t *layers;    /* [n_layers] the model's numbers of its MoE layers, ascending */
    int n_experts, top_k;     /* E from 2, K from 1 to E */
    int d_model;              /* H, the width of an expert's output */
    int weighting;            /* of pairs: 0 the source's norm (the default of recipes), 1 none, 2 the router's weight */
    int64_t route_sample;     /* tokens of a layer whose routes are kept for budgets per token; 4096 in recipes' default */
    /* What the engine ran: model.name, model.family (config.json's model_type), model.layers (of all kinds), model.config_sha256,
     * capture.engine (its name and version) and so on; setting.KEY: keys of recipes by which exfold-solve is to solve.  Refused are
     * facts that only exfold-calibrate can know: the weights that were read, an architecture, a program and the version of its
     * numbers. */
    size_t n_facts;
    const exf_record_fact *facts;
} exf_record_options;

/* Rows of one layer, of any sequences of the part. */
typedef struct {
    size_t size;              /* sizeof(exf_record_block) */
    int32_t layer;            /* the model's number */
    int n;                    /* rows */
    int is_bf16;              /* 1: outputs are bfloat16; 0: float32 */
    const int32_t *sequence;  /* [n] number of the row's sequence in its part, from 0 */
    const int32_t *position;  /* [n] of the row's token in its sequence, from 0 */
    const int32_t *ids;       /* [n, K] experts, distinct within a row; -1: the slot is empty */
    const float *weights;     /* [n, K] by which the outputs are multiplied in the model: renormalised, scaled; finite */
    const void *outputs;      /* [n, K, H] what each expert put out, not multiplied; finite.  Of an empty slot anything */
    const double *stream_sq;  /* [n] squared norms of the residual stream after the layer; NULL: not known */
    int is_cuda;              /* 1: ids, weights, outputs, aligned to 16 bytes, and stream_sq are in CUDA memory */
    void *stream;             /* the CUDA stream (cudaStream_t) whose work so far makes them; the call waits for it */
} exf_record_block;

/* Returns 1 if blocks may be in CUDA memory, 0 if the library was built without CUDA, and refuses them. */
int exf_record_reads_cuda(void);
/* Returns the bytes that the sums of all layers take in memory. */
uint64_t exf_record_memory(int n_layers, int n_experts);
int exf_record_open(exf_record **out, const exf_record_options *o, char *message, size_t message_size);
/* lengths [n], all at least 1; ids: the sequences' tokens one after the other; domains: of which domains they are, "NAME: 3
 * sequences, 60 tokens; NAME: ...", or NULL.  documents: 32 bytes for each sequence that identify its document, near copies being
 * one, by which the halves of the data are dealt; NULL: each sequence is a document.  *is_there: 1 if the part was recorded before
 * and is left out. */
int exf_record_begin(exf_record *r, size_t n, const int32_t *lengths, const int32_t *ids, const char *domains,
                     const unsigned char (*documents)[32], int *is_there, char *message, size_t message_size);
int exf_record_add(exf_record *r, const exf_record_block *b, char *message, size_t message_size);
int exf_record_end(exf_record *r, char *message, size_t message_size);
/* digest: 65 bytes, gets the digest of the file's payload; may be NULL. */
int exf_record_close(exf_record *r, char *digest, char *message, size_t message_size);
void exf_record_free(exf_record *r); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
