/* data.h - what an artifact says of the data that it was made from: its sequences, which part of a whole it is, and the rules that
 * its counts obey. */
#ifndef EXF_ARTIFACT_DATA_H
#define EXF_ARTIFACT_DATA_H
#include "artifact/artifact.h"
#include "artifact/provenance.h"
#include "artifact/sketch_set.h"
#include "base/text.h"
#include "format/h5.h"

#include <stddef.h>
#include <stdint.h>

/* ---- sequences -------------------------------------------------------------------------------------- */

/* A sequence list identifies the sequences of a capture or of statistics, so that files can be checked for shared data
 * without the data.  length NULL: unknown, as in files of version 1. */
typedef struct exf_sequence_list {
    size_t n;
    int32_t *length;             /* [n] tokens */
    unsigned char (*sha256)[32]; /* [n] of the length (u64, little endian) and the ids (i32) */
    unsigned char (*document)[32]; /* [n] identity of its document, near copies being one (exf_sequence.group_sha256); NULL: each
                                    * sequence is a document of its own, as in files of earlier versions */
    exf_sketch_set sketches; /* of their documents; empty where none is known, as in files of earlier versions */
} exf_sequence_list;

exf_code exf_sequence_list_new(exf_sequence_list *s, size_t n, exf_err *err) EXF_CHECKED;
void exf_sequence_list_free(exf_sequence_list *s);
/* Joins n lists one after the other; the result is unknown if one of them is.  Sketches are those that any of them has. */
exf_code exf_sequence_list_join(exf_sequence_list *out, const exf_sequence_list *const *part, size_t n, exf_err *err) EXF_CHECKED;
/* Sorts by digest: an order that no manifest or shard decides. */
exf_code exf_sequence_list_sorted(exf_sequence_list *out, const exf_sequence_list *s, exf_err *err) EXF_CHECKED;
/* Computes SHA-256 over a sorted list: it identifies the data, whatever file it was cut into. */
exf_code exf_sequence_list_digest(const exf_sequence_list *sorted, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* Writes to *at the index in a of a sequence that b has too, or -1. */
exf_code exf_sequence_list_shared(const exf_sequence_list *a, const exf_sequence_list *b, int64_t *at, exf_err *err) EXF_CHECKED;

/* Writes /sequence_lengths I32 [N] and /sequence_sha256 U8 [N, 32]; nothing if unknown.  And /sequence_document U8 [N, 32], where a
 * document is more than a sequence.  And the sketches of documents (sketch_set.h). */
exf_code exf_sequence_list_write(const exf_sequence_list *s, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the list; n_sequences and n_tokens are the root attributes.  EXF_FORMAT if the list differs from them. */
exf_code exf_sequence_list_read(exf_sequence_list *s, int64_t n_sequences, int64_t n_tokens, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* A fact of statistics and of tables: how many documents the sequences are of, near copies being one, "31"; without it each
 * sequence was one, and halves were dealt by sequence. */
#define EXF_DOCUMENTS_FACT "data.documents"
/* Counts the documents of a list; 0: each sequence is its own, or nothing is known. */
exf_code exf_sequence_list_documents(const exf_sequence_list *s, size_t *out, exf_err *err) EXF_CHECKED;
/* Returns 1 if sequence i of a known list is of the half of the data whose sums are kept beside the whole ones (statistics.h): a
 * bit of its document's digest, so that no order, cut or merge moves a document to the other half, or parts it. */
int exf_sequence_half(const exf_sequence_list *s, size_t i);
/* Returns 1 if both halves have a sequence; 0 too where the list is not known. */
int exf_sequence_halves(const exf_sequence_list *s);
/* Computes the digest of one sequence of tokens. */
exf_code exf_sequence_sha256(unsigned char out[32], const int32_t *ids, int32_t n, exf_err *err) EXF_CHECKED;

/* ---- parts ------------------------------------------------------------------------------------------ */

/* A file may be of a part of a corpus; its facts tell.
 *
 * A run over shard I of N of a corpus has the fact data.shard, "I/N of DIGEST": the digest is that of the whole corpus'
 * tokens.  A capture has it in its provenance, statistics have it in their origin, part.<i>.shard of each shard that was
 * added up, and tables of a part have the fact data.part, which all that is made from them copies.  A file whose shards
 * are all there has no trace of them in its provenance: it is the file of one run over the whole. */

#define EXF_PART_FACT "data.part"

/* A capture, a statistics file, or tables. */
typedef struct {
    const char *path; /* for messages */
    const exf_provenance *provenance;
    const exf_provenance *origin; /* origin of a statistics file; NULL: another file */
    const exf_sequence_list *sequences; /* for joining: never NULL; without lengths: unknown */
    const char *digest; /* of a statistics file's payload; NULL: another file, or not known */
} exf_facts_part;

/* Refuses files that are not shards of the same cut, once each: EXF_MODEL naming both files of a shard that is there twice
 * or of two cuts of one corpus, or the shards that are missing, with the command that makes them.  partial: shards may
 * be missing.  Data that are no shards are not looked at. */
exf_code exf_shards_check(const exf_facts_part *file, size_t n, int partial, exf_err *err) EXF_CHECKED;
/* Adds which part of its corpora a file is of, "shards 1, 2 of 3 of corpus 0123456789abcdef"; nothing where it is of the
 * whole. */
exf_code exf_part_words(exf_text *out, const exf_facts_part *file, exf_err *err) EXF_CHECKED;
/* Sets *same to 1 if all data of both files are shards of one corpus: a sequence that both have is there twice. */
exf_code exf_shards_of_one_corpus(const exf_facts_part *a, const exf_facts_part *b, int *same, exf_err *err) EXF_CHECKED;

/* ---- counts ----------------------------------------------------------------------------------------- */

/* The counts of a layer obey these rules, in statistics and in tables.
 *
 * A token has K slots, each with an expert of its own or empty (only a hash layer that names an expert twice for a token
 * leaves slots empty: kernels/moe/moe.h).  So of T tokens, whatever the shard, the merge and the number of runs:
 *   an expert has at most T tokens, all experts together T K less the empty slots;
 *   pairs are mirrored, and an expert has no pair with itself.
 * Of co-routed pairs a pair has at most the tokens of the rarer of its experts, and as a token that chose s has all its
 * other routes in pairs with s, the pairs of s have (K - 1) times its tokens; with empty slots less, in the layer by 1 to
 * K - 1 for each of them.
 * Of common input all pairs of all experts have the same tokens: min(length, observer_tokens) of each sequence. */

/* Tokens that every pair has. */
typedef struct {
    uint64_t least, most; /* 0, 0: pairs are co-routed */
} exf_common_tokens;

typedef struct {
    const char *path; /* of the file, for messages, as are the next three */
    int layer;        /* the model's number */
    const char *pairs, *experts; /* the arrays' names up to a cell's index: "/layers/5/count[", "/count[1, " */
    const exf_run_shape *run;
    exf_common_tokens common;
    const uint64_t *count;        /* [E, E] */
    const uint64_t *expert_count; /* [E] */
    uint64_t empty_slots;
} exf_layer_counts;

/* Refuses counts that cannot be: EXF_FORMAT naming file, layer, array and the two values that disagree. */
exf_code exf_counts_check(const exf_layer_counts *c, exf_err *err) EXF_CHECKED;

/* Finds how many tokens of common input a run had: exactly, where its sequences are known.  EXF_FORMAT if the fact
 * accumulate.observer_tokens is no number. */
exf_code exf_common_tokens_of(exf_common_tokens *out, const exf_run_shape *run, const exf_sequence_list *sequences,
                              const exf_provenance *p, const char *path, exf_err *err) EXF_CHECKED;
#endif
