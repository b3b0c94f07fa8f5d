/* tokenizer_internal.h - what the chapters of the tokenizer offer each other: values of tokenizer.json (tokenizer_part.c), the
 * normalizer (tokenizer_normalize.c), sets of characters (tokenizer_alphabet.c, tokenizer_unicode.c), the
 * pre-tokenizer and its patterns (tokenizer_split*.c, tokenizer_regex.c) or its blanks (tokenizer_metaspace.c), byte-pair encoding
 * (tokenizer_bpe.c), added tokens (tokenizer_added.c) and tiktoken's files (tokenizer_tiktoken.c). */
#ifndef EXF_TOKENIZER_TOKENIZER_INTERNAL_H
#define EXF_TOKENIZER_TOKENIZER_INTERNAL_H
#include "base/hash.h"
#include "format/json.h"
#include "tokenizer/tokenizer.h"

/* ---- parts of tokenizer.json, with messages that name the part ------------- */

enum { EXF_TOKEN_ID_LIMIT = 1 << 24 };

/* The part's "type", or what the part is instead ("null", "missing", "an array"). */
const char *exf_part_type(const exf_json *part);
/* *out = part[key], which must be true or false.  what: "added token", name: its text. */
exf_code exf_part_bool(int *out, const exf_json *part, const char *key, const char *where, const char *what, const char *name,
                       exf_err *err) EXF_CHECKED;
/* Refuses part[key] unless it is absent, null or false. */
exf_code exf_part_off(const exf_json *part, const char *key, const char *where, const char *what, exf_err *err) EXF_CHECKED;
/* *out = j, which must be an integer from 0 to EXF_TOKEN_ID_LIMIT - 1. */
exf_code exf_part_id(int32_t *out, const exf_json *j, const char *where, const char *what, const char *name,
                     exf_err *err) EXF_CHECKED;

/* ---- the normalizer --------------------------------------------------------- */

typedef struct { char *from, *to; size_t from_len, to_len; } exf_normal_step; /* from: "" prepends; both NULL: NFC */
/* Zero-initialise; exf_normalizer_free, also after a failure. */
typedef struct { exf_normal_step *step; size_t n, cap; } exf_normalizer;

/* For normal form C: buffers that one thread reuses. */
typedef struct {
    exf_text text;             /* the last result */
    int32_t *point, *sorted;   /* code points; a buffer to sort long runs of marks */
    size_t n, cap, sorted_cap;
} exf_nfc_work;
/* The same of all steps; zero-initialise, exf_normal_work_free. */
typedef struct { exf_nfc_work nfc; exf_text text, spare; } exf_normal_work;

/* part: the "normalizer" object. */
exf_code exf_normalizer_load(exf_normalizer *n, const exf_json *part, const char *where, exf_err *err) EXF_CHECKED;
void exf_normalizer_free(exf_normalizer *n);
/* Replaces *bytes, *len (valid UTF-8) by what the steps make of them, unchanged or pointing into w until the next call. */
exf_code exf_normalize(const exf_normalizer *n, exf_normal_work *w, const char **bytes, size_t *len, exf_err *err) EXF_CHECKED;
void exf_normal_work_free(exf_normal_work *w);

/* ---- Unicode data (tokenizer_unicode.c, generated) -------------------------- */

extern const uint32_t exf_unicode_run[]; /* first << 5 | category, rising */
extern const size_t exf_unicode_runs;
extern const int32_t exf_unicode_younger_digit[][2], exf_unicode_younger_mark[][2]; /* first, last, rising */
extern const size_t exf_unicode_younger_digits, exf_unicode_younger_marks;
extern const int32_t exf_unicode_han[][2]; /* script Han, first, last, rising */
extern const size_t exf_unicode_han_ranges;

/* ---- sets of characters, and the alphabet of a pre-tokenizer ----------------- */

typedef struct { uint32_t first, end; } exf_char_range; /* without end */
/* Zero-initialise; exf_chars_free.  What takes a const set wants it sorted. */
typedef struct { exf_char_range *range; size_t n, cap; } exf_chars;

exf_code exf_chars_add(exf_chars *set, uint32_t first, uint32_t last, exf_err *err) EXF_CHECKED;
/* name: "L" or "Lu", or the script "Han"; exf_chars_category() tells whether it is one. */
int exf_chars_category(const char *name, size_t len);
exf_code exf_chars_add_category(exf_chars *set, const char *name, size_t len, exf_err *err) EXF_CHECKED;
exf_code exf_chars_add_digits(exf_chars *set, exf_err *err) EXF_CHECKED; /* what pre_tokenizer Digits takes */
/* Adds what folds to the set's ASCII letters. */
exf_code exf_chars_fold(exf_chars *set, exf_err *err) EXF_CHECKED;
void exf_chars_sort(exf_chars *set);
exf_code exf_chars_negate(exf_chars *set, exf_err *err) EXF_CHECKED; /* sorts, too */
void exf_chars_free(exf_chars *set);

/* An alphabet is told every set of every pattern, then it is closed; after that it writes sets as classes of bytes, and maps
 * texts. */
typedef struct exf_alphabet exf_alphabet;
/* where: the file, for messages; kept until the alphabet is closed. */
exf_code exf_alphabet_new(exf_alphabet **out, const char *where, exf_err *err) EXF_CHECKED;
exf_code exf_alphabet_tell(exf_alphabet *a, const exf_chars *set, exf_err *err) EXF_CHECKED;
void exf_alphabet_close(exf_alphabet *a);
/* Appends the set, one that was told, as a class of PCRE2 for strings of bytes. */
void exf_alphabet_write(const exf_alphabet *a, const exf_chars *set, exf_text *out);
/* Writes a byte for each character of valid UTF-8, at most len; returns how many. */
size_t exf_alphabet_map(const exf_alphabet *a, const char *text, size_t len, unsigned char *out);
void exf_alphabet_free(exf_alphabet *a); /* NULL is allowed */

/* ---- the pre-tokenizer ------------------------------------------------------
 * It cuts text into the pre-tokens that the BPE model encodes one by one. */

/* Immutable after loading; exf_splitter_free, also after a failure. */
typedef struct exf_splitter exf_splitter;

/* part: the "pre_tokenizer" object. */
exf_code exf_splitter_load(exf_splitter **out, const exf_json *part, const char *where, exf_err *err) EXF_CHECKED;
/* tiktoken's pattern, only whose matches are kept; file, what: where it is from, for messages. */
exf_code exf_splitter_of_pattern(exf_splitter **out, const char *pattern, size_t len, const char *file, const char *what,
                                 exf_err *err) EXF_CHECKED;
void exf_splitter_free(exf_splitter *s); /* NULL is allowed */

/* Makes a splitter without steps.  Every step is then added twice: first to tell its pattern to the alphabet and, once that is
 * closed, to compile it.  only_matches: what a pattern does not match is left out. */
typedef enum { EXF_PATTERN_REGEX, EXF_PATTERN_LITERAL, EXF_PATTERN_DIGITS, EXF_PATTERN_DIGIT } exf_pattern_kind;
typedef struct { const char *file, *what; int tiktoken; } exf_regex_source; /* where a pattern is from, for messages */
exf_code exf_splitter_new(exf_splitter **out, const char *where, exf_err *err) EXF_CHECKED;
exf_code exf_splitter_add(exf_splitter *s, exf_pattern_kind kind, const char *pattern, size_t len, int only_matches,
                          const exf_regex_source *from, exf_err *err) EXF_CHECKED;
void exf_splitter_close(exf_splitter *s);

typedef struct exf_split_work exf_split_work; /* one text's match data and budget of steps */
exf_code exf_split_work_new(exf_split_work **out, exf_err *err) EXF_CHECKED;
void exf_split_work_free(exf_split_work *w); /* NULL is allowed */

/* Calls emit for each pre-token (never empty) in order, until it fails.  The time is linear in the text where a pattern decides
 * within 128 steps and the next 128 characters; what it does beyond, items of the pattern and eighths of the characters that it
 * reads, is counted.  EXF_MODEL where that is more than 100 million and 200 for each byte of the work's text, or 2 billion: a
 * number that depends on pattern, text and PCRE2 alone. */
typedef exf_code exf_pretoken_fn(void *ctx, const char *pretoken, size_t len, exf_err *err);
exf_code exf_splitter_run(const exf_splitter *s, exf_split_work *w, const char *text, size_t len, exf_pretoken_fn *emit, void *ctx,
                          exf_err *err) EXF_CHECKED;

/* ---- blanks as "▁", in place of patterns (tokenizer_metaspace.c) --------------- */

#define EXF_METASPACE "\xe2\x96\x81"
enum { EXF_METASPACE_LEN = 3 };
int exf_starts_with_metaspace(const char *text, size_t len);
int exf_ends_with_metaspace(const char *text, size_t len);

/* Zero: the text is one pre-token as it is, where the normalizer has done what Metaspace does. */
typedef enum { EXF_PREPEND_NEVER, EXF_PREPEND_FIRST, EXF_PREPEND_ALWAYS } exf_prepend;
typedef struct { int replaces, split; exf_prepend prepend; } exf_metaspace;

/* part: the "pre_tokenizer" object: null or Metaspace, or a Split at blanks where the normalizer leaves none, which is as null. */
exf_code exf_metaspace_load(exf_metaspace *m, const exf_normalizer *n, const exf_json *part, const char *where,
                            exf_err *err) EXF_CHECKED;
/* Calls emit for each pre-token.  words: a cut in front of any "▁" that follows something else changes no id; work: a buffer;
 * first: the text is where the document begins. */
exf_code exf_metaspace_run(const exf_metaspace *m, int words, exf_text *work, int first, const char *text, size_t len,
                           exf_pretoken_fn *emit, void *ctx, exf_err *err) EXF_CHECKED;

/* ---- patterns ------------------------------------------------------------------
 * Translates a pre-tokenizer's pattern from Oniguruma (Ruby syntax) to PCRE2 on an alphabet's bytes, so that it matches the same
 * texts.
 *
 * The released patterns use a small common subset of both languages.  A construct outside of it often compiles in both and
 * matches different texts ("\h" is a hexadecimal digit in one and a blank in the other; "&&" in a class is an intersection in
 * one and two ampersands in the other).  So only the subset is accepted; everything else is refused by name:
 *
 *   any character, .  ^  $  |  *  +  ?  *?  *+ ...  {n} {n,} {n,m} (not lazy or possessive)
 *   (...)  (?:...)  (?i:...)  (?=...)  (?!...)  (?<=...)  (?<!...)  (?>...)
 *   [...] without nested classes, but [...&&[...]] with one at the end
 *   \s \S \d \D \p{general category} \p{Han} \P{...} \A \z \n \r \t \f \e \a \xHH \x{H...} \punctuation
 *   in (?i:...) ASCII only, and no letters that fold into one character (ss, st, ff, fi, fl)
 *
 * tiktoken's own engine reads the subset alike, but for ^ $ \< \>, which are refused there.
 *
 * out NULL: tells the alphabet the pattern's sets.  Else appends the pattern, which PCRE2 must compile without UTF, with
 * MULTILINE (Ruby's ^ and $ match at every line) and "\n" as the only newline. */
exf_code exf_regex_translate(exf_text *out, exf_alphabet *a, const char *pattern, size_t len, const exf_regex_source *from,
                             exf_err *err) EXF_CHECKED;
/* The same for a text that is searched as it is. */
exf_code exf_regex_literal(exf_text *out, exf_alphabet *a, const char *text, size_t len, exf_err *err) EXF_CHECKED;

/* ---- what stands before and after a document (tokenizer_template.c) ---------- */

/* t: zero-initialised.  part: the "post_processor" object. */
exf_code exf_template_load(exf_template *t, const exf_json *part, const char *where, exf_err *err) EXF_CHECKED;
/* Then applies tokenizer_config.json, if it is beside the tokenizer's file, and the run's choice. */
exf_code exf_template_configure(exf_tokenizer *tokenizer, const char *file, exf_bos bos, exf_err *err) EXF_CHECKED;

/* ---- byte-pair encoding ----------------------------------------- */

/* The two hash tables of a BPE model: token text to id, and pair of ids to merge.  Open addressing with keyed hashes; both
 * are filled once, then only read. */
typedef struct { uint32_t at, len; int32_t id_plus_1; } exf_vocabulary_entry; /* id_plus_1 == 0: free */
typedef struct {
    exf_text bytes; /* every token's text, end to end */
    exf_vocabulary_entry *slot;
    size_t mask, n;
    exf_hash_key key;
} exf_vocabulary;

/* Allocates slots for n tokens.  Zero-initialise; exf_vocabulary_free, also after a failure. */
exf_code exf_vocabulary_new(exf_vocabulary *w, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_vocabulary_put(exf_vocabulary *w, const char *s, size_t len, int32_t id, exf_err *err) EXF_CHECKED;
int32_t exf_vocabulary_find(const exf_vocabulary *w, const char *s, size_t len); /* -1 if absent */
void exf_vocabulary_free(exf_vocabulary *w);

typedef struct { uint64_t key; uint32_t rank; int32_t id; } exf_merge; /* key 0: free */
typedef struct {
    exf_merge *slot;
    size_t mask;
    int shift;
    exf_hash_key key;
} exf_merges;

exf_code exf_merges_new(exf_merges *m, size_t n, exf_err *err) EXF_CHECKED;
/* A pair that the table has already gets the new rank. */
void exf_merges_put(exf_merges *m, int32_t a, int32_t b, uint32_t rank, int32_t id);
void exf_merges_free(exf_merges *m);

/* A loaded model, immutable.  Symbols are bytes, or with `fallback` characters. */
typedef struct {
    exf_vocabulary vocab;
    exf_merges merges;
    char alphabet[256][2]; /* GPT-2's letter for each byte, in which tokens of bytes are written */
    unsigned char alphabet_len[256];
    int32_t byte_id[256];  /* a byte's token, or with fallback "<0x41>"; -1 if it has none */
    int32_t letter_id[256]; /* with fallback: an ASCII character's token; -1 */
    int32_t unk_id;        /* -1 if there is none */
    int32_t size;
    int ignore_merges, fallback, fuse_unk;
    int words;             /* no merge reaches over the front of a "▁" that follows something else */
} exf_bpe;

/* model: the "model" object of tokenizer.json. */
exf_code exf_bpe_load(exf_bpe **out, const exf_json *model, const char *where, exf_err *err) EXF_CHECKED;
/* tiktoken's tokens by rank, which is their id; where: the file. */
typedef struct { const unsigned char *bytes; size_t len; } exf_rank;
exf_code exf_bpe_of_ranks(exf_bpe **out, const exf_rank *token, size_t n, const char *where, exf_err *err) EXF_CHECKED;
void exf_bpe_free(exf_bpe *b); /* NULL is allowed */

/* Buffers that one thread reuses; zero-initialise. */
typedef struct { int32_t id; uint32_t prev, next; } exf_symbol;
typedef struct {
    exf_symbol *symbol; /* the pre-token, as a linked list in an array */
    uint64_t *heap;     /* merges that may apply: rank << 32 | position */
    size_t n_heap, symbol_cap, heap_cap;
    uint32_t n_symbols;
    exf_text mapped;    /* the pre-token in the byte alphabet */
} exf_bpe_work;

/* Appends the ids of one pre-token of valid UTF-8 (not empty). */
exf_code exf_bpe_encode(const exf_bpe *b, exf_bpe_work *w, const char *pretoken, size_t len, exf_ids *ids,
                        exf_err *err) EXF_CHECKED;

/* ---- added tokens ------------------------------------------------------------
 * Texts that become one id wherever they occur, before the text around them is tokenized. */

typedef struct exf_matcher exf_matcher; /* tokenizer_added.c */
typedef struct { char *text; size_t len; int32_t id; } exf_added_token;
typedef struct {
    exf_added_token *token;
    size_t n, cap;
    exf_matcher *matcher; /* NULL for no token */
} exf_added_set;

/* Two sets, as in the library: `raw` (normalized: false) is searched in the text as
 * given, `normalized` (normalized: true, itself normalized) in the normalizer's output for
 * the rest. */
typedef struct { exf_added_set raw, normalized; int32_t size; } exf_added;

/* list: the "added_tokens" array, or NULL.  exf_added_free, also after a failure. */
exf_code exf_added_load(exf_added *a, const exf_json *list, const exf_bpe *bpe, const exf_normalizer *normalizer,
                        const char *where, exf_err *err) EXF_CHECKED;
/* Adds one token, instead of a list; exf_added_end() is called once after the last. */
exf_code exf_added_add(exf_added *a, int normalized, const char *text, size_t len, int32_t id, exf_err *err) EXF_CHECKED;
exf_code exf_added_end(exf_added *a, const char *where, exf_err *err) EXF_CHECKED;
void exf_added_free(exf_added *a);
int32_t exf_added_find(const exf_added *a, const char *text); /* its id; -1 if it is no added token */

/* The places of one text's tokens that are not looked at yet; zero-initialise. */
typedef struct { uint32_t at, word; } exf_word_match;
typedef struct { exf_word_match *match; size_t n, cap; } exf_added_work; /* the last place first */

typedef struct { size_t from, to; int32_t id; } exf_added_match;
/* Looks for the set's tokens in a text; then exf_added_next() gives them one by one. */
exf_code exf_added_scan(const exf_added_set *set, exf_added_work *w, const char *text, size_t len, exf_err *err) EXF_CHECKED;
/* The leftmost token at or after `at`, which never goes back, the longest of those that start there; 0 if none. */
int exf_added_next(const exf_added_set *set, exf_added_work *w, size_t at, exf_added_match *m);

/* ---- tiktoken's files ----------------------------------------------------------- */

#define EXF_TIKTOKEN_FILE "tiktoken.model"
/* Whether a path is that of a tiktoken file: its name decides. */
int exf_tiktoken_is(const char *path);
/* Makes the parts of a tokenizer of path, a tiktoken.model of `len` bytes, of tokenizer_config.json and the Python file beside it;
 * what is made is the caller's, also after a failure. */
exf_code exf_tiktoken_load(exf_bpe **bpe, exf_splitter **splitter, exf_added *added, const char *path, const char *bytes,
                           size_t len, exf_err *err) EXF_CHECKED;

/* ---- all parts together --------------------------------------------------------- */

struct exf_tokenizer {
    exf_tokenizer_facts facts;
    exf_added added;
    exf_normalizer normalizer;
    exf_splitter *splitter;  /* NULL: the pre-tokenizer is metaspace */
    exf_metaspace metaspace;
    exf_bpe *bpe;
};
#endif
