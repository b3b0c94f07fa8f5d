/* corpus_internal.h - what corpus*.c share: the token chunks of one source, before sequences are selected from them. */
#ifndef EXF_CAPTURE_CORPUS_INTERNAL_H
#define EXF_CAPTURE_CORPUS_INTERNAL_H
#include "capture/chat.h"
#include "capture/corpus.h"
#include "format/json.h"
#include "format/safetensors.h"

typedef struct {
    size_t first; /* in ids */
    int32_t n;
    int64_t document; /* within the source, from 0 */
} exf_token_chunk;

/* Filled anew for each source. */
typedef struct {
    const exf_manifest_source *source;
    const exf_tokenizer *tokenizer; /* NULL if every source is tokens */
    exf_chat_form chat;             /* how conversations are rendered; of use where the source is one of chats */
    int64_t max_tokens, min_tokens, vocab;
    exf_ids ids;
    exf_token_chunk *chunk; /* in file order */
    size_t n, cap;
    int64_t n_documents;              /* documents read so far; rows of a tensor too */
    uint64_t n_short, tokens_dropped; /* chunks below min_tokens; their tokens and those cut off */
    uint64_t lines, matching;         /* jsonl, chat: lines that are not blank, and those that pass `where` */
} exf_source_chunks;

/* Read the source's file into *p. */
exf_code exf_source_chunks_read_tokens(exf_source_chunks *p, exf_err *err) EXF_CHECKED;
exf_code exf_source_chunks_read_text(exf_source_chunks *p, exf_err *err) EXF_CHECKED;
exf_code exf_source_chunks_read_lines(exf_source_chunks *p, exf_err *err) EXF_CHECKED; /* jsonl, chat */

/* EXF_MODEL, beginning with `place`, if a member of the line of the file is a conversation, a list of turns: names the script that
 * renders it. */
exf_code exf_refuse_conversation(const exf_json *object, const char *place, const char *path, exf_err *err) EXF_CHECKED;

/* Append, for messages, the names that a source has where a wanted one is missing, in the file's order and quoted:
 * "\"a\", \"b\""; of more than 12 the first 12 and how many more there are; "none" of an empty list. */
void exf_member_names(const exf_json *object, exf_text *out);
void exf_tensor_names(const exf_st_file *f, exf_text *out);
#endif
