/* tokenizer.h - tokenizer.json, or tiktoken.model, to token ids, exactly as the `tokenizers` library or tiktoken encodes.
 *
 * Supported of tokenizer.json: normalizer null, NFC, Prepend, Replace (of a String), or a Sequence of these; model BPE (merges as
 * pairs or as "a b" strings, ignore_merges, no dropout, no affixes) of one of two kinds:
 *
 *   bytes       tokens of bytes in GPT-2's letters, no unk_token; pre_tokenizer Split (the file's own regex through PCRE2, as far
 *               as exf_regex_translate() goes, or a literal String; behavior Isolated, or Removed with invert), Digits, and last
 *               ByteLevel (add_prefix_space false), Sequence of these
 *   characters  byte_fallback true, unk_token, fuse_unk; pre_tokenizer null, or Metaspace of U+2581
 *
 * Added tokens with normalized true or false, leftmost-longest, with the id the library gives them (lstrip, rstrip,
 * single_word must be false); post_processor null, ByteLevel, TemplateProcessing for single sequences, Sequence of these, or what
 * tokenizer_config.json has in its place; no truncation, no padding.
 *
 * tiktoken.model has tokens and ranks; its special tokens come from tokenizer_config.json beside it, its pattern from the constants
 * of the Python file that tokenizer_config.json names, which is read and never run (tokenizer_tiktoken.c).
 *
 * Anything else is refused by name (EXF_MODEL), never guessed.
 *
 * Ids do not depend on the machine: what \p{L} and the like hold is our own data (tokenizer_unicode.c), of the Unicode version
 * that the library has.
 *
 * A loaded tokenizer is immutable; encoding is thread-safe. */
#ifndef EXF_TOKENIZER_TOKENIZER_H
#define EXF_TOKENIZER_TOKENIZER_H
#include "base/hash.h"
#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

/* A list of token ids that grows: zero-initialise; exf_ids_free. */
typedef struct { int32_t *id; size_t n, cap; } exf_ids;
exf_code exf_ids_add(exf_ids *ids, const int32_t *id, size_t n, exf_err *err) EXF_CHECKED;
void exf_ids_free(exf_ids *ids);

typedef struct exf_tokenizer exf_tokenizer;

/* Whether a token goes before every document: as the model's files say (the rule is on top of tokenizer_template.c), the
 * bos_token of tokenizer_config.json in any case, or none. */
typedef enum { EXF_BOS_AUTO, EXF_BOS_ALWAYS, EXF_BOS_NEVER } exf_bos;

/* *out: the path of a checkpoint's tokenizer: tokenizer.json, else tiktoken.model, else the tokenizer.json that is missing; the
 * caller frees it. */
exf_code exf_tokenizer_path(char **out, const char *dir, exf_err *err) EXF_CHECKED;
/* *out: the path of the Python file that has constants of a tiktoken.model's tokenizer, which the caller frees; NULL for a
 * tokenizer.json. */
exf_code exf_tokenizer_python(char **out, const char *path, exf_err *err) EXF_CHECKED;
/* path: a file (at most 64 MiB) named tiktoken.model, or a tokenizer.json of any name; tokenizer_config.json is read where it lies
 * beside it. */
exf_code exf_tokenizer_load(exf_tokenizer **out, const char *path, exf_bos bos, exf_err *err) EXF_CHECKED;
void exf_tokenizer_free(exf_tokenizer *t); /* NULL is allowed */

/* What goes before and after every document. */
typedef struct {
    exf_ids before, after;
    exf_text said;    /* what goes before, and what decided it: "none (post_processor)", "100000 (add_bos_token)" */
    int disputed;     /* transformers 5 puts another token before a document than 4.57 does, whose rule is followed */
    int seen;         /* the post-processor's TemplateProcessing */
    const char *rule; /* what decided, where the post-processor did not */
} exf_template;
typedef struct {
    char sha256[EXF_SHA256_HEX]; /* of the file */
    int32_t size;                /* one more than the largest id that the tokenizer can produce */
    exf_template around;
} exf_tokenizer_facts;
const exf_tokenizer_facts *exf_tokenizer_facts_of(const exf_tokenizer *t);
extern const char exf_unicode_version[]; /* of the character classes in patterns */

/* Appends the ids of len bytes of UTF-8 text (NUL bytes are ordinary
 * characters).  EXF_FORMAT with the byte offset if it is not valid UTF-8; EXF_MODEL with the byte if no token stands for it,
 * as for some control characters in released vocabularies, where the library drops it without a word. */
exf_code exf_tokenizer_encode(const exf_tokenizer *t, const char *text, size_t len, exf_ids *ids, exf_err *err) EXF_CHECKED;

/* Texts of tokens by id, to show what a model is given. */
typedef struct exf_decoder exf_decoder;
exf_code exf_decoder_new(exf_decoder **out, const exf_tokenizer *t, exf_err *err) EXF_CHECKED; /* borrows from t */
/* Appends the bytes that n ids stand for, which begin or end within a character where ids do; special tokens as they are written,
 * and "<token 7>" where the tokenizer has none of that id. */
exf_code exf_decode(const exf_decoder *d, const int32_t *id, size_t n, exf_text *out, exf_err *err) EXF_CHECKED;
void exf_decoder_free(exf_decoder *d); /* NULL is allowed */
#endif
