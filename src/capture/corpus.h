/* corpus.h - loads the token sequences of a run from the sources of a data manifest.
 *
 * The manifest is YAML of schema exfold-manifest/1, a list `sources` of maps with the keys of
 * manifest.h; unknown keys are errors with the nearest name.
 *
 * Sequences of a source: each row of a tokens tensor, cut to max_tokens; each
 * document (a jsonl, chat or ids line that is not blank, or the whole text file; at most
 * 64 MiB, unpacked where the file is compressed) tokenised and cut into token chunks of max_tokens, the last one shorter.
 * A document that itself begins with the token that goes before every document has it once; a byte-order mark is no text.
 * What is below min_tokens is dropped, and so is a sequence that came before in its source or was taken of a source before:
 * its tokens would count double.  Documents never share a sequence and
 * nothing is padded.  A row of a tokens tensor counts as a document of its own:
 * which one it was cut from is not known.
 *
 * Selection is deterministic: a source that has more sequences than it is asked
 * for gives a seeded choice without replacement (base/hash.h, stream = index of
 * the source), in file order; sources stand in manifest order.  How many: a
 * source's `sequences`; if the run's total differs from their sum, the total is
 * shared among sources in proportion to `sequences` (largest remainder, ties to
 * the earlier source); sources without `sequences` share what the others leave,
 * evenly, the earlier ones one more.  The others leave something only when the
 * total is above their sum; then they keep their own numbers.  A share may be 0
 * in a small run.  A total of 0 means the sum, all of a source that states none.
 *
 * Mistakes in the manifest or the request are EXF_USAGE, with file and line.
 * Data that contradicts them is EXF_MODEL, naming manifest, source and both
 * values: wrong checksum, empty source, fewer sequences than the source states
 * (whatever the run asks for) or has to give, a token id outside [0, vocab), a
 * missing field or tensor, bad UTF-8 or JSON with its line.  Rows of tensors
 * count from 0, lines from 1. */
#ifndef EXF_CAPTURE_CORPUS_H
#define EXF_CAPTURE_CORPUS_H
#include "base/hash.h"
#include "base/text.h"
#include "capture/manifest.h"
#include "capture/near_copies.h"
#include "tokenizer/tokenizer.h"

#include <stdint.h>

/* A document, or a line that holds one, has at most as many bytes. */
enum { EXF_MOST_DOCUMENT_BYTES = 64 << 20 };

typedef struct {
    size_t offset;    /* first token in exf_corpus.ids */
    int32_t n_tokens; /* >= 1 */
    int32_t source;   /* index in the manifest */
    int32_t domain;   /* index in exf_corpus.domains */
    int64_t row;      /* number of the sequence within its source, before selection, from 0 */
    int64_t document; /* number of its document within all sources, before selection, from 0; rising */
    int64_t group;    /* the lowest number of a document of its group: near copies, which count as one document (near_copies.h) */
    unsigned char group_sha256[32]; /* the least digest of its group's documents: an identity that no order of files changes;
                                     * the sequence's, where it is all of a document that is like no other */
    size_t sketch; /* index in exf_corpus.sketch of its document's */
} exf_sequence;

typedef struct {
    char *name;
    uint64_t sequences_kept, sequences_dropped; /* dropped: too short or not selected */
    uint64_t tokens_kept, tokens_dropped;       /* the tokens of those, and what was cut off a row */
} exf_domain;

typedef struct {
    size_t n_sequences, n_domains, n_sources;
    int documents_known;    /* 0: all sources are token ids, each row of which stands as a document */
    exf_sequence *sequence; /* manifest order */
    exf_domain *domains;    /* in order of first appearance */
    int32_t *ids;           /* all tokens, sequence after sequence */
    exf_sketch *sketch;     /* [n_sketches] of documents, by rising number; NULL in a stand-in */
    size_t n_sketches;
    uint64_t n_tokens;
    uint64_t own_bos;       /* documents that begin with what goes before every document, and have it once */
    uint64_t n_duplicates, duplicate_tokens; /* sequences that were left out because the corpus has them already */
    uint64_t n_documents, n_groups; /* with a sequence; groups of near copies, one that is like no other is one too */
    uint64_t near_copies, largest_group; /* documents in groups of several; of the largest group */
    int32_t max_tokens;     /* longest sequence */
    int n_unpinned;         /* sources without a checksum */
    char *unpinned;         /* their files as the manifest spells them: "a.jsonl, b.txt"; NULL: none */
    char manifest_sha256[EXF_SHA256_HEX]; /* of the manifest's bytes */
    char tokenizer_sha256[EXF_SHA256_HEX]; /* of the tokenizer's file; "" when no source is text */
    char tokenizer_bos[96];               /* what goes before every document (exf_tokenizer_facts); "" likewise */
    char tokens_digest[EXF_SHA256_HEX];   /* of each length (u64) and its ids (i32): what was really run */
    char shard[EXF_SHA256_HEX + 32];      /* "2/4 of DIGEST": which shard of the tokens of that digest it is; "": the whole */
} exf_corpus;

typedef struct {
    const char *manifest;  /* path */
    int64_t sequences;     /* total, 0: all */
    int64_t max_tokens;    /* >= 1 */
    int64_t min_tokens;    /* 1 to max_tokens */
    uint64_t seed;
    int64_t vocab;         /* ids must be below */
    const char *tokenizer; /* path of tokenizer.json or tiktoken.model; loaded only if a source is text, may be NULL */
    const char *manifest_text; /* NULL: the manifest is read from its path; else these bytes stand for the
                                * file, which need not exist */
    exf_bos bos;           /* what goes before every document of text */
} exf_corpus_request;

exf_code exf_corpus_load(exf_corpus **out, const exf_corpus_request *request, exf_err *err) EXF_CHECKED;
/* Loads the corpus for a dry run if all of its files exist, else makes a stand-in of as many
 * sequences as request and manifest say, each of max_tokens, without ids, domains
 * or digests; *missing is then the first file that does not exist (the caller
 * frees), else NULL. */
exf_code exf_corpus_plan(exf_corpus **out, const exf_corpus_request *request, char **missing, exf_err *err) EXF_CHECKED;
/* Cuts a corpus to sequences [first, end), at least one, which are shard `index` (from 1) of `of`. */
exf_code exf_corpus_take_shard(exf_corpus *c, size_t first, size_t end, int index, int of, exf_err *err) EXF_CHECKED;
void exf_corpus_free(exf_corpus *c); /* NULL is allowed */
/* Appends, for a person, the first n samples of a corpus as the model is given them: domain, source, document, the text of the ids
 * as a JSON string, and the ids; then what goes before every document, and what of the text is left out.  q: what it was loaded
 * by. */
exf_code exf_corpus_show(const exf_corpus *c, const exf_corpus_request *q, int64_t n, exf_text *out, exf_err *err) EXF_CHECKED;

/* ---- files that no manifest describes -------------------------------------------------------------- */

/* What kind of source a file is, unpacked where it is compressed with gzip or zstd:
 *
 *   tokens   a .safetensors file with one integer tensor, or one that `field` names
 *   chat     the first line that is not blank is a JSON object, and its member is a list of messages, or it has an instruction and
 *            an output
 *   ids      the same, and its member is a list of integers
 *   jsonl    the same, and its member is a string (or the name ends in .jsonl or .ndjson)
 *   text     anything else that is UTF-8
 *
 * Only the kind is decided, from the first line or the header: whether all of the file is
 * so, the readers of the corpus check. */
typedef struct {
    exf_source_format format;
    exf_text field;      /* jsonl, chat: the member with the text or the messages; tokens: the tensor; else empty */
    exf_text about;      /* a clause for the user: "JSON lines, the text is member \"text\"" */
    uint64_t bytes;      /* of the file as it lies */
    const char *no_text; /* of a file that was found: what it is, where it is no text; else NULL */
    const char *script;  /* the script that writes its rows as JSON lines, where there is one; else NULL */
} exf_recognised;

/* path: of a file, or EXF_STANDARD_INPUT.  field: a member or tensor that the user named, or members joined by "+"; NULL: those by
 * which data sets are known (members.h), and the only integer tensor.  model: a directory, for the command that renders
 * conversations; NULL: not known.
 * found: 1 for a file that was found in a directory, which may hold others than texts: archives, pictures, documents of JSON.
 * Of these *out says what they are.  A name that ends as a text's does (.txt, .md, .jsonl, .ndjson) promises one.
 * EXF_MODEL where the file is none of the kinds, or lacks that member or tensor: the message names those it has and the option that
 * chooses one.  *out is freed by the caller, also after an error. */
exf_code exf_recognise(exf_recognised *out, const char *path, const char *field, const char *model, int found,
                       exf_err *err) EXF_CHECKED;
void exf_recognised_free(exf_recognised *r);
#endif
