/* corpus_internal.h - what corpus*.c share: the token chunks of one source, before sequences are selected from them. */
#ifndef EXF_CAPTURE_CORPUS_INTERNAL_H
#define EXF_CAPTURE_CORPUS_INTERNAL_H
#include "capture/chat.h"
#include "capture/corpus.h"
#include "capture/members.h"

typedef struct {
    size_t first; /* in ids */
    int32_t n;
    int64_t document, row; /* within the source, from 0: its document, and its own number */
} exf_token_chunk;

/* Digests of sequences, as artifacts have them; zero-initialise, exf_digest_set_free(). */
typedef struct {
    size_t n, slots; /* a power of two, at least twice n */
    unsigned char (*digest)[32], *used;
} exf_digest_set;

/* A document of a source. */
typedef struct {
    exf_sketch sketch;
    unsigned char sha256[32]; /* of its ids but for a last piece that is too short, as the digest of a sequence */
    int64_t number;           /* as exf_sequence.document */
    int is_copied;            /* a sequence of it was left out since the corpus has it already */
    int is_run;               /* the corpus has a sequence of it */
} exf_document;

/* Filled anew for each source, but for what it counts over all. */
typedef struct {
    const exf_manifest_source *source;
    const exf_tokenizer *tokenizer; /* NULL if every source is token ids */
    const char *model;              /* its directory, for the command that renders conversations; NULL: not known */
    exf_chat_form chat;             /* how conversations are rendered; of use where the source is one of chats */
    int64_t max_tokens, min_tokens, vocab;
    exf_ids ids;
    exf_token_chunk *chunk; /* in file order */
    size_t n, cap;
    int64_t n_documents, n_rows;      /* documents read so far, rows of a tensor too; sequences, duplicates too */
    exf_document *document;           /* [n_documents] */
    size_t cap_documents;
    uint64_t n_short, tokens_dropped; /* chunks below min_tokens; their tokens and those cut off */
    uint64_t n_duplicates, duplicate_tokens; /* chunks that the corpus has already, and their tokens */
    uint64_t lines, matching;         /* jsonl, chat, ids: lines that are not blank, and those that pass `where` */
    uint64_t own_bos;                 /* over all sources: documents that themselves begin with what goes before each */
} exf_source_chunks;

/* Read the source's file into *p. */
exf_code exf_source_chunks_read_tokens(exf_source_chunks *p, exf_err *err) EXF_CHECKED;
exf_code exf_source_chunks_read_text(exf_source_chunks *p, exf_err *err) EXF_CHECKED;
exf_code exf_source_chunks_read_lines(exf_source_chunks *p, exf_err *err) EXF_CHECKED; /* jsonl, chat, ids */

/* Cuts ids[first..], a document, into chunks of max_tokens; removes the last one if it is too short.  sketch: of its text; NULL: of
 * the ids that are left. */
exf_code exf_source_chunks_cut(exf_source_chunks *p, size_t first, const exf_sketch *sketch, exf_err *err) EXF_CHECKED;
/* Appends the token ids of a line, a list of integers, as a document; place: ": line 7". */
exf_code exf_source_chunks_add_ids(exf_source_chunks *p, const exf_json *object, const char *place, exf_err *err) EXF_CHECKED;
/* Removes chunks that are in the set, or came before in the source. */
exf_code exf_source_chunks_drop_duplicates(exf_source_chunks *p, const exf_digest_set *kept, exf_err *err) EXF_CHECKED;
/* Groups the near copies among the documents of a corpus, by rising number: fills its sketches, group,
 * group_sha256 and sketch of its sequences, and what it counts. */
exf_code exf_corpus_group(exf_corpus *c, const exf_document *document, size_t n, exf_err *err) EXF_CHECKED;
/* Adds the digest of a sequence. */
exf_code exf_digest_set_put(exf_digest_set *s, const int32_t *ids, int32_t n, exf_err *err) EXF_CHECKED;
void exf_digest_set_free(exf_digest_set *s);

/* ---- files that hold no text (corpus_foreign.c) -------------------------------------------------------- */

#define EXF_BYTE_ORDER_MARK "\xef\xbb\xbf" /* before UTF-8 it says nothing, and is no part of the text */
enum { EXF_BYTE_ORDER_MARK_LEN = 3 };

/* What a file is, and what its user can do: `mend`, or a script that writes its rows as JSON lines. */
typedef struct { const char *is, *mend, *script; } exf_foreign;
/* Returns 1 and what the file is whose first bytes these are; 0 where it may be a text. */
int exf_foreign_find(exf_foreign *out, const char *bytes, size_t len);
/* Appends what to do with the file at path. */
void exf_foreign_mend(const exf_foreign *f, const char *path, exf_text *out);
/* Adds to a message what to do with the file at path, which holds these bytes that are no UTF-8, "; if it is Latin-1: iconv ...";
 * nothing where they are no text at all.  Returns err->code. */
exf_code exf_encoding_advise(exf_err *err, const char *bytes, size_t len, const char *path);
#endif
