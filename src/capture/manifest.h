/* manifest.h - parses a data manifest, YAML with the keys below, and checks it, without reading its sources.
 *
 * A mistake in the manifest is EXF_USAGE with file and line, an unknown key with
 * the nearest known one.  A file that differs from its checksum is EXF_MODEL.
 * Ownership: exf_manifest_free() releases everything that is reached from it. */
#ifndef EXF_CAPTURE_MANIFEST_H
#define EXF_CAPTURE_MANIFEST_H
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

/* ---- keys ---------------------------------------------------------------------------------------------- */

#define EXF_MANIFEST_SCHEMA "exfold-manifest/1"

/* What a key's value is, in the parser and in the JSON Schema (recipe/recipe.h). */
typedef enum {
    EXF_VALUE_WORD,      /* anything that is not empty */
    EXF_VALUE_FORMAT,    /* a word of EXF_MANIFEST_FORMATS */
    EXF_VALUE_SEQUENCES, /* from 1 to EXF_MAX_SEQUENCES */
    EXF_VALUE_COUNT,     /* from 1 */
    EXF_VALUE_SKIP,      /* from 0 */
    EXF_VALUE_SHA256,    /* 64 hexadecimal digits, or "unpinned" */
    EXF_VALUE_WORD_EACH, /* a map to words */
    EXF_VALUE_WORDS_EACH, /* a map to words, or to lists of which any will do */
    EXF_VALUE_ORIGIN     /* a map of EXF_MANIFEST_ORIGIN_KEYS */
} exf_manifest_value;

/* The keys of a source and of its origin, and the formats of a source, with their defaults and meanings: what the parser
 * knows, exfold-manifest(5) prints and the JSON Schema says.  X(name, value, of, fallback, about): of is a set of
 * formats to which the key belongs (EXF_FORMATS_<of>); fallback is NULL where the key is required. */
#define EXF_MANIFEST_SOURCE_KEYS(X)                                                                                             \
    X("path", WORD, ANY, NULL, "the file, relative to the manifest's; `-`: standard input")                                     \
    X("format", FORMAT, ANY, NULL, "`jsonl`, `text`, `tokens`, `chat` or `ids`, see below")                                     \
    X("field", WORD, LINES, "`text`, `messages`, `input_ids`",                                                                  \
      "jsonl, chat, ids: the member that holds the text, the conversation, the ids; `a+b`: several, joined")                    \
    X("where", WORD_EACH, LINES, "every line", "only lines whose members equal these strings, as `{domain: c}`")                \
    X("tensor", WORD, TOKENS, "the file's only one", "tokens: the tensor's name")                                               \
    X("domain", WORD, ANY, "`source-<n>`", "the name under which reports show it; sources may share one")                       \
    X("sequences", SEQUENCES, ANY, "its share of the run's", "how many to take; more than the source has is an error")          \
    X("sha256", SHA256, ANY, "`unpinned`",                                                                                      \
      "of the file as it lies, 64 hexadecimal digits; a difference is an error, a missing one is said")                         \
    X("origin", ORIGIN, JSONL, "none",                                                                                          \
      "jsonl: the dataset rows the file is made of; checked, otherwise unused by the programs")

#define EXF_MANIFEST_FORMATS(X) /* X(name, fallback, about), in the order of exf_source_format */                               \
    X("jsonl", NULL, "a document per line, a JSON object")                                                                      \
    X("text", NULL, "the file is one document")                                                                                 \
    X("tokens", NULL, "an integer tensor [n, len] of a safetensors file, a row a sequence; no tokenizer is needed")             \
    X("chat", NULL, "a conversation per line, a JSON object, rendered by the model's chat template: a document")                \
    X("ids", NULL, "a list of token ids per line, a JSON object: a document; no tokenizer is needed")

#define EXF_MANIFEST_ORIGIN_KEYS(X)                                                                                      \
    X("dataset", WORD, ANY, NULL, "its name on the Hugging Face hub; `./NAME`: beside the manifest")                     \
    X("revision", WORD, ANY, "`unpinned`", "a commit of the dataset; unpinned: its newest")                              \
    X("subset", WORD, ANY, "the only one", "its configuration")                                                          \
    X("split", WORD, ANY, NULL, "such as `train`")                                                                       \
    X("where", WORDS_EACH, ANY, "every row",                                                                             \
      "only rows whose columns hold this value, or one of these, as `{source: [a, b]}`")                                 \
    X("skip", SKIP, ANY, "0", "then that many rows are left out")                                                        \
    X("take", COUNT, ANY, "all", "and that many taken")                                                                  \
    X("messages", WORD, ANY, "`messages`", "the column of the conversation, rendered with the model's chat template; or") \
    X("text", WORD, ANY, "none", "the column of plain text")

/* ---- a manifest ---------------------------------------------------------------------------------------- */

typedef enum { EXF_SOURCE_JSONL, EXF_SOURCE_TEXT, EXF_SOURCE_TOKENS, EXF_SOURCE_CHAT, EXF_SOURCE_IDS,
               EXF_SOURCE_FORMATS } exf_source_format;

/* Sets of formats, a bit each. */
enum {
    EXF_FORMATS_JSONL = 1 << EXF_SOURCE_JSONL,
    EXF_FORMATS_TOKENS = 1 << EXF_SOURCE_TOKENS,
    EXF_FORMATS_LINES = 1 << EXF_SOURCE_JSONL | 1 << EXF_SOURCE_CHAT | 1 << EXF_SOURCE_IDS,
    EXF_FORMATS_ANY = (1 << EXF_SOURCE_FORMATS) - 1
};

/* The most sequences of one source or one run; the bound keeps products of two such
 * numbers inside an int64. */
enum { EXF_MAX_SEQUENCES = 1000000000 };

/* "jsonl", "text", "tokens", "chat" or "ids", as a manifest spells it. */
const char *exf_source_format_name(exf_source_format f);
/* Returns 1 where a source of that format needs a tokenizer. */
int exf_source_is_text(exf_source_format f);

typedef struct {
    char *label; /* for messages: manifest: source 2 (corpus.jsonl, domain "c") */
    char *path;  /* as in the manifest */
    char *file;  /* the same, from the working directory; "-": standard input */
    exf_source_format format;
    char *field;  /* jsonl: the member with the text; chat: with the messages; ids: with the ids; or several (members.h) */
    char *tensor; /* tokens: NULL when the file's only tensor is meant */
    char *domain; /* never NULL: "source-2" if the manifest gives none */
    size_t n_where;
    char **where_key, **where_value;
    int64_t sequences;           /* 0: not stated */
    char sha256[EXF_SHA256_HEX]; /* lower case; "" when unpinned */
    char *state;                 /* of the file when exf_manifest_verify() hashed it; NULL: it did not */
} exf_manifest_source;

typedef struct {
    char *path;
    char sha256[EXF_SHA256_HEX]; /* of the manifest's own bytes */
    size_t n;                    /* >= 1 */
    exf_manifest_source *source;
} exf_manifest;

#define EXF_STANDARD_INPUT "-" /* as the path of a source; "./-" is a file of that name */

/* Opens or hashes the file of a source as it lies, or standard input. */
exf_code exf_source_open(exf_file **out, const char *file, exf_err *err) EXF_CHECKED;
exf_code exf_source_hash(const char *file, char hex[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;

/* Makes the JSON Schema of a manifest (manifest_schema.c).  The caller frees. */
exf_code exf_manifest_schema(exf_text *out, exf_err *err) EXF_CHECKED;
exf_code exf_manifest_load(exf_manifest **out, const char *path, exf_err *err) EXF_CHECKED;
/* The same from the bytes that stand, or will stand, in the file at path. */
exf_code exf_manifest_parse(exf_manifest **out, const char *bytes, size_t len, const char *path, exf_err *err) EXF_CHECKED;
void exf_manifest_free(exf_manifest *m); /* NULL is allowed */
/* Compares every pinned source with its file; a file is read once however many
 * sources share it.  fresh: 1 for a manifest that was made of these files a moment ago: one that differs is still being written. */
exf_code exf_manifest_verify(exf_manifest *m, int fresh, exf_err *err) EXF_CHECKED;
/* EXF_MODEL if the source's file, which f has read, is not the one that was hashed, or was changed while it was read. */
exf_code exf_source_unchanged(const exf_manifest_source *s, const exf_file *f, exf_err *err) EXF_CHECKED;
/* Counts the sources without a checksum and lists their files, each once and at most four by name:
 * "a.jsonl, b.txt, ..."; *files NULL where there are none, else the caller frees. */
exf_code exf_manifest_unpinned(const exf_manifest *m, char **files, int *n, exf_err *err) EXF_CHECKED;

/* Returns the first pinned source of the same file as source i; i if there is none before it. */
size_t exf_manifest_first_of_file(const exf_manifest *m, size_t i);

/* Computes want[i], the number of sequences to take from source i for a run of `total`
 * sequences (rules in corpus.h); -1: all of the source. */
exf_code exf_manifest_shares(const exf_manifest *m, int64_t total, int64_t *want, exf_err *err) EXF_CHECKED;
/* Replaces the word in each `sha256: unpinned` of the manifest at `path` by the
 * SHA-256 of that source's file, adds the key to sources that have none, and changes
 * nothing else: comments and layout stay.  The file is exchanged as a whole, after what
 * was written has been read back.  Sources that are pinned are compared with their files
 * first.  EXF_USAGE where the text cannot be edited, EXF_MODEL or EXF_IO as a source's file says.
 * *n_pinned counts the sources that were changed; with 0 nothing is written. */
exf_code exf_manifest_pin(const char *path, int *n_pinned, exf_err *err) EXF_CHECKED;
#endif
