/* sequences.h - a sequence list identifies the sequences of a capture or of statistics, so that
 * files can be checked for shared data without the data. */
#ifndef EXF_ARTIFACT_SEQUENCES_H
#define EXF_ARTIFACT_SEQUENCES_H
#include "format/h5.h"

#include <stddef.h>
#include <stdint.h>

/* length NULL: unknown, as in files of version 1. */
typedef struct {
    size_t n;
    int32_t *length;             /* [n] tokens */
    unsigned char (*sha256)[32]; /* [n] of the length (u64, little endian) and the ids (i32) */
} exf_sequence_list;

exf_code exf_sequence_list_new(exf_sequence_list *s, size_t n, exf_err *err) EXF_CHECKED;
void exf_sequence_list_free(exf_sequence_list *s);
/* Joins n lists one after the other; the result is unknown if one of them is. */
exf_code exf_sequence_list_join(exf_sequence_list *out, const exf_sequence_list *const *part, size_t n, exf_err *err) EXF_CHECKED;
/* Sorts by digest: an order that no manifest or shard decides. */
exf_code exf_sequence_list_sorted(exf_sequence_list *out, const exf_sequence_list *s, exf_err *err) EXF_CHECKED;
/* Computes SHA-256 over a sorted list: it identifies the data, whatever file it was cut into. */
exf_code exf_sequence_list_digest(const exf_sequence_list *sorted, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* Writes to *at the index in a of a sequence that b has too, or -1. */
exf_code exf_sequence_list_shared(const exf_sequence_list *a, const exf_sequence_list *b, int64_t *at, exf_err *err) EXF_CHECKED;

/* Writes /sequence_lengths I32 [N] and /sequence_sha256 U8 [N, 32]; nothing if unknown. */
exf_code exf_sequence_list_write(const exf_sequence_list *s, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the list; n_sequences and n_tokens are the root attributes.  EXF_FORMAT if the list differs from them. */
exf_code exf_sequence_list_read(exf_sequence_list *s, int64_t n_sequences, int64_t n_tokens, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Computes the digest of one sequence of tokens. */
exf_code exf_sequence_sha256(unsigned char out[32], const int32_t *ids, int32_t n, exf_err *err) EXF_CHECKED;
#endif
