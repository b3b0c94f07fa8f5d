/* corpus_internal.h - shared by corpus*.c: exf_source_chunks holds all token chunks of one
 * source, before sequences are selected from them.  It is filled anew for each source. */
#ifndef EXF_CAPTURE_CORPUS_INTERNAL_H
#define EXF_CAPTURE_CORPUS_INTERNAL_H
#include "capture/corpus.h"
#include "capture/manifest.h"

typedef struct {
    size_t first; /* in ids */
    int32_t n;
} exf_token_chunk;

typedef struct {
    const exf_manifest_source *source;
    const exf_tokenizer *tokenizer; /* NULL if every source is tokens */
    int64_t max_tokens, min_tokens, vocab;
    exf_ids ids;
    exf_token_chunk *chunk; /* in file order */
    size_t n, cap;
    uint64_t n_short, tokens_dropped; /* chunks below min_tokens; their tokens and those cut off */
    uint64_t lines, matching;         /* jsonl: lines that are not blank, and those that pass `where` */
} exf_source_chunks;

/* Read the source's file into *p. */
exf_code exf_source_chunks_read_tokens(exf_source_chunks *p, exf_err *err) EXF_CHECKED;
exf_code exf_source_chunks_read_text(exf_source_chunks *p, exf_err *err) EXF_CHECKED;
exf_code exf_source_chunks_read_jsonl(exf_source_chunks *p, exf_err *err) EXF_CHECKED;

/* Computes tokens_digest. */
exf_code exf_corpus_hash_tokens(exf_corpus *c, exf_err *err) EXF_CHECKED;

/* The request's manifest, from its text or its file. */
exf_code exf_corpus_manifest(exf_manifest **out, const exf_corpus_request *q, exf_err *err) EXF_CHECKED;

/* Cuts ids[first..] into chunks of max_tokens; removes the last one if it is too short. */
exf_code exf_source_chunks_cut(exf_source_chunks *p, size_t first, exf_err *err) EXF_CHECKED;
#endif
