/* sequences.h - which sequences a capture or statistics stand for: enough to tell
 * whether two files share data, without the data. */
#ifndef EXF_ARTIFACT_SEQUENCES_H
#define EXF_ARTIFACT_SEQUENCES_H
#include "format/h5.h"

#include <stddef.h>
#include <stdint.h>

/* length NULL: not known, as in files of version 1. */
typedef struct {
    size_t n;
    int32_t *length;             /* [n] tokens */
    unsigned char (*sha256)[32]; /* [n] of the length (u64, little endian) and the ids (i32) */
} exf_sequence_list;

exf_code exf_sequence_list_new(exf_sequence_list *s, size_t n, exf_err *err) EXF_CHECKED;
void exf_sequence_list_free(exf_sequence_list *s);
/* The sequences of n lists one after the other; of none, if one is not known. */
exf_code exf_sequence_list_join(exf_sequence_list *out, const exf_sequence_list *const *part, size_t n, exf_err *err) EXF_CHECKED;
/* By digest: an order that no manifest or shard decides. */
exf_code exf_sequence_list_sorted(exf_sequence_list *out, const exf_sequence_list *s, exf_err *err) EXF_CHECKED;
/* SHA-256 over a sorted list: names the data, whatever file it was cut into. */
exf_code exf_sequence_list_digest(const exf_sequence_list *sorted, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
/* -1, or the index in a of a sequence that b holds too. */
exf_code exf_sequence_list_shared(const exf_sequence_list *a, const exf_sequence_list *b, int64_t *at, exf_err *err) EXF_CHECKED;

/* /sequence_lengths I32 [N] and /sequence_sha256 U8 [N, 32]; nothing where not known. */
exf_code exf_sequence_list_write(const exf_sequence_list *s, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* n_sequences and n_tokens: what the root attributes say; EXF_FORMAT where the list differs. */
exf_code exf_sequence_list_read(exf_sequence_list *s, int64_t n_sequences, int64_t n_tokens, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* The digest of one sequence of tokens. */
exf_code exf_sequence_sha256(unsigned char out[32], const int32_t *ids, int32_t n, exf_err *err) EXF_CHECKED;
#endif
