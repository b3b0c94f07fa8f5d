/* tables_pt.h - tables that others made: the .pt files of the public plugins, read as ours (format/ptfile_read.h).
 *
 *   Qwen3        coeff, loss F32 [M, E, E], expert_norms F32 [M, E]
 *   DeepSeek-V4  prefill_coeff, prefill_selection_loss, prefill_confidence_loss, decode_coeff, decode_loss F32 [M, E, E],
 *                norms F32 [M, E]
 *
 * M counts all layers of the model; those in which no pair has a loss below 1e30 are left out.  DeepSeek-V4 has two sets of
 * scalars and losses: FILE.pt#prefill or FILE.pt#decode names one, without it both must be equal.  Its losses are taken for
 * loss and, since they are by Frobenius norm, for frobenius.
 * What such a file does not say is not there: experts per token and hidden size are 0, cosine, rms, contribution, similarity,
 * std_error and pools are missing, and of a pair with evidence the count is 1.  The diagonal becomes (1, never).  A provenance of
 * ours in the archive is not taken for the file's own. */
#ifndef EXF_ARTIFACT_TABLES_PT_H
#define EXF_ARTIFACT_TABLES_PT_H
#include "artifact/tables.h"

/* 1 if the path, with or without #prefill or #decode, names a zip archive. */
int exf_tables_pt_is_one(const char *path);
/* EXF_FORMAT naming the keys that it has and those that are expected; EXF_USAGE where two sets differ and none is named. */
exf_code exf_tables_pt_read(exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* SHA-256 of the file's bytes, with the set that the path names. */
exf_code exf_tables_pt_digest(const char *path, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
#endif
