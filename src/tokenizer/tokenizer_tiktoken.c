/* tokenizer_tiktoken.c - reads the tokenizer of Kimi-K2, a release without tokenizer.json, from three files:
 *
 *   tiktoken.model          a token in base64, a blank and its rank a line; the rank is the id
 *   tokenizer_config.json   the special tokens (added_tokens_decoder), and the Python file that has the class (auto_map)
 *   tokenization_kimi.py    two constants of that class: pat_str, the pattern, and num_reserved_special_tokens; it is never run
 *
 * The ids after the tokens' are the special tokens', as many as are reserved; those that tokenizer_config.json does not name are
 * called "<|reserved_token_163600|>", after their id.  Text is encoded whole: the release's class cuts texts of more than 400000
 * characters, and runs of 25000 without a blank, first. */
#include "tokenizer/tokenizer_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_CONFIG = 64 << 20, MOST_PYTHON = 1 << 20, MOST_SQUARES = 1 << 30, MOST_RESERVED = 1 << 16 };

int exf_tiktoken_is(const char *path)
{
    return strcmp(exf_path_name(path), EXF_TIKTOKEN_FILE) == 0;
}

/* ---- ranks --------------------------------------------------------------------- */

typedef struct {
    unsigned char *bytes; /* of all tokens, end to end */
    exf_rank *token;      /* by rank; bytes NULL: not read yet */
    size_t n, len;
} rank_table;

/* Appends what len digits stand for; the number of bytes, or 0 if they are not base64 with its padding. */
static size_t read_base64(const char *s, size_t len, unsigned char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0, pad = 0;
    if (len == 0 || len % 4) return 0;
    while (pad < 2 && s[len - 1 - pad] == '=') pad++;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            char c = i + k < len - pad ? s[i + k] : 'A'; /* 0 */
            const char *at = c ? strchr(digits, c) : NULL;
            if (!at) return 0;
            bits = bits << 6 | (uint32_t)(at - digits);
        }
        for (int shift = 16; shift >= 0; shift -= 8) out[n++] = (unsigned char)(bits >> shift);
    }
    return n - pad;
}

/* "c2hpcA== 1234" */
static exf_code read_rank(rank_table *t, const char *line, size_t len, size_t number, const char *where, exf_err *err)
{
    const char *blank = memchr(line, ' ', len);
    size_t left = blank ? len - (size_t)(blank - line) - 1 : 0, made = 0;
    char digits[16] = "";
    int64_t rank = -1;
    if (left && left < sizeof digits) memcpy(digits, blank + 1, left);
    if (blank && strspn(digits, "0123456789") == left && exf_parse_i64(digits, &rank))
        made = read_base64(line, (size_t)(blank - line), t->bytes + t->len);
    if (!made) return exf_fail(err, EXF_FORMAT, "%s: line %zu: is not a token in base64, a blank and its rank", where, number);
    if ((uint64_t)rank >= t->n)
        return exf_fail(err, EXF_FORMAT, "%s: line %zu: rank %" PRId64 " is too large for %zu tokens (from 0 to %zu)", where,
                        number, rank, t->n, t->n - 1);
    if (t->token[rank].bytes)
        return exf_fail(err, EXF_FORMAT, "%s: line %zu: rank %" PRId64 " is there twice", where, number, rank);
    t->token[rank] = (exf_rank){t->bytes + t->len, made};
    t->len += made;
    return EXF_OK;
}

/* The next line that is not empty, without its end; NULL after the last. */
static const char *next_line(const char **p, const char *end, size_t *len, size_t *number)
{
    while (*p < end) {
        const char *line = *p, *stop = memchr(line, '\n', (size_t)(end - line));
        *p = stop ? stop + 1 : end;
        *len = (size_t)((stop ? stop : end) - line);
        ++*number;
        if (*len && line[*len - 1] == '\r') --*len;
        if (*len) return line;
    }
    return NULL;
}

/* Makes rank n of a token read; splitting all tokens in two takes time with the squares of their lengths. */
static exf_code read_ranks(rank_table *t, const char *bytes, size_t len, const char *where, exf_err *err)
{
    const char *p = bytes, *end = bytes + len, *line;
    size_t n, number = 0;
    uint64_t squares = 0;
    exf_code rc = EXF_OK;
    while (next_line(&p, end, &n, &number)) t->n++;
    if (t->n == 0 || t->n > EXF_TOKEN_ID_LIMIT - MOST_RESERVED)
        return exf_fail(err, EXF_FORMAT, "%s: has %zu lines, expected from 1 to %d", where, t->n,
                        EXF_TOKEN_ID_LIMIT - MOST_RESERVED);
    EXF_TRY(exf_mem_new(&t->bytes, len, 1, "tokens", err));
    EXF_TRY(exf_mem_new(&t->token, t->n, sizeof *t->token, "tokens", err));
    p = bytes;
    number = 0;
    while ((line = next_line(&p, end, &n, &number))) EXF_TRY(read_rank(t, line, n, number, where, err));
    for (size_t i = 0; i < t->n; i++) squares += (uint64_t)t->token[i].len * t->token[i].len;
    if (squares > MOST_SQUARES)
        rc = exf_fail(err, EXF_FORMAT, "%s: its tokens are too long: the squares of their lengths are %" PRIu64
                      " together, at most %d are accepted", where, squares, MOST_SQUARES);
out:
    return rc;
}

/* ---- constants of the Python file ------------------------------------------------- */

typedef struct { const char *p, *end; } python;

/* Passes over blanks, line ends and comments. */
static void skip_space(python *y)
{
    while (y->p < y->end && strchr(" \t\r\n#", *y->p) && *y->p) {
        if (*y->p == '#')
            while (y->p < y->end && *y->p != '\n') y->p++;
        else y->p++;
    }
}

/* Passes over a word, with the space before it; 0 if something else is there. */
static int take_word(python *y, const char *word)
{
    size_t len = strlen(word);
    skip_space(y);
    if ((size_t)(y->end - y->p) < len || memcmp(y->p, word, len) != 0) return 0;
    y->p += len;
    return 1;
}

/* Whether nothing but blanks and a comment follows on the line. */
static int ends_statement(python *y)
{
    while (y->p < y->end && (*y->p == ' ' || *y->p == '\t')) y->p++;
    return y->p == y->end || *y->p == '\n' || *y->p == '\r' || *y->p == '#';
}

/* Appends what a raw string holds: r"...", r'...', or either with three quotes; 0 if none is there. */
static int take_raw_string(python *y, exf_text *out)
{
    if (!take_word(y, "r") || y->p >= y->end || (*y->p != '"' && *y->p != '\'')) return 0;
    char quote = *y->p;
    size_t n = y->end - y->p > 2 && y->p[1] == quote && y->p[2] == quote ? 3 : 1;
    const char *start = y->p += n;
    for (; (size_t)(y->end - y->p) >= n; y->p++) {
        if (n == 1 && *y->p == '\n') return 0;
        if (*y->p == quote && (n == 1 || (y->p[1] == quote && y->p[2] == quote))) {
            exf_text_append(out, start, (size_t)(y->p - start));
            y->p += n;
            return 1;
        }
        if (*y->p == '\\' && y->p + 1 < y->end) y->p++; /* what follows does not end it */
    }
    return 0;
}

/* Goes after "name =", which must stand once at the start of a line. */
static exf_code find_constant(python *y, const char *text, size_t len, const char *name, const char *where, exf_err *err)
{
    int n = 0;
    const char *end = text + len;
    for (const char *line = text; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        python at = {line, stop ? stop : end};
        if (take_word(&at, name) && take_word(&at, "=") && n++ == 0) *y = (python){at.p, end};
        line = at.end + 1;
    }
    if (n == 1) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: has the constant %s %d times, not once", where, name, n);
}

/* pat_str = "|".join([r"...", r"...", ...]) */
static exf_code read_pattern(exf_text *out, const char *text, size_t len, const char *where, exf_err *err)
{
    python y;
    int n = 0;
    exf_code rc = find_constant(&y, text, len, "pat_str", where, err);
    if (rc != EXF_OK) return rc;
    int known = take_word(&y, "\"|\"") || take_word(&y, "'|'");
    known = known && take_word(&y, ".join") && take_word(&y, "(") && take_word(&y, "[");
    while (known && !take_word(&y, "]")) {
        if (n++) exf_text_append(out, "|", 1);
        known = take_raw_string(&y, out);
        if (!take_word(&y, ",") && known) known = (skip_space(&y), y.p < y.end && *y.p == ']');
    }
    if (!known || n == 0 || !take_word(&y, ")") || !ends_statement(&y))
        return exf_fail(err, EXF_MODEL, "%s: pat_str is not \"|\".join([r\"...\", r\"...\"]), the only form that is read", where);
    return exf_text_end(out, err);
}

static exf_code read_reserved(size_t *out, const char *text, size_t len, const char *where, exf_err *err)
{
    python y;
    char digits[8] = "";
    int64_t n = -1;
    exf_code rc = find_constant(&y, text, len, "num_reserved_special_tokens", where, err);
    if (rc != EXF_OK) return rc;
    skip_space(&y);
    for (size_t i = 0; i + 1 < sizeof digits && y.p < y.end && *y.p >= '0' && *y.p <= '9'; i++) digits[i] = *y.p++;
    if (!exf_parse_i64(digits, &n) || n > MOST_RESERVED || !ends_statement(&y))
        return exf_fail(err, EXF_MODEL, "%s: num_reserved_special_tokens is not a whole number up to %d", where, MOST_RESERVED);
    *out = (size_t)n;
    return EXF_OK;
}

/* ---- tokenizer_config.json ---------------------------------------------------------- */

/* *out: the path of the Python file, from auto_map: {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}. */
static exf_code python_path(char **out, const exf_json *config, const char *dir, const char *where, exf_err *err)
{
    static const char class[] = ".TikTokenTokenizer";
    static const char module[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const exf_json *map = exf_json_get(config, "auto_map");
    const exf_json *j = exf_json_type(map) == EXF_JSON_OBJECT ? exf_json_get(map, "AutoTokenizer") : NULL;
    if (exf_json_type(j) == EXF_JSON_ARRAY) j = exf_json_at(j, 0);
    const char *name = exf_json_string(j, NULL);
    size_t len = name ? strspn(name, module) : 0;
    exf_text file = {0};
    if (len == 0 || strcmp(name + len, class) != 0)
        return exf_fail(err, EXF_MODEL, "%s: auto_map: AutoTokenizer is \"%s\", not a module's TikTokenTokenizer, the only class "
                        "of a %s that is known", where, name ? name : exf_json_type_name(j), EXF_TIKTOKEN_FILE);
    exf_text_append(&file, name, len);
    exf_text_append(&file, ".py", 3);
    exf_code rc = exf_text_end(&file, err);
    if (rc == EXF_OK) rc = exf_path_join(out, dir, file.s, err);
    exf_text_free(&file);
    return rc;
}

/* The name that tokenizer_config.json gives a special token. */
static exf_code take_name(const char **name, size_t n, size_t first, void *it, const char *where, exf_err *err)
{
    static const char *const option[] = {"lstrip", "rstrip", "single_word"};
    const exf_json *j = exf_json_value(it);
    const char *text = exf_json_string(exf_json_type(j) == EXF_JSON_OBJECT ? exf_json_get(j, "content") : NULL, NULL);
    int64_t id;
    if (!text || !*text)
        return exf_fail(err, EXF_MODEL, "%s: added_tokens_decoder: %s is not an object with a \"content\" of at least one byte",
                        where, exf_json_key(it));
    if (!exf_parse_i64(exf_json_key(it), &id) || id < (int64_t)first || id >= (int64_t)(first + n))
        return exf_fail(err, EXF_MODEL, "%s: added_tokens_decoder: token \"%s\" has id %s, not one of the %zu from %zu on, which "
                        "are after those of %s", where, text, exf_json_key(it), n, first, EXF_TIKTOKEN_FILE);
    for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
        exf_code rc = exf_part_off(j, option[i], where, "an added token", err);
        if (rc != EXF_OK) return rc;
    }
    name[id - (int64_t)first] = text;
    return EXF_OK;
}

static exf_code add_special_tokens(exf_added *added, const exf_json *config, size_t n, size_t first, const char *where,
                                   exf_err *err)
{
    const exf_json *decoder = exf_json_get(config, "added_tokens_decoder");
    const char **name = NULL;
    char reserved[48];
    exf_code rc;
    if (exf_json_type(decoder) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s: added_tokens_decoder is %s, not an object", where, exf_json_type_name(decoder));
    EXF_TRY(exf_mem_new(&name, n ? n : 1, sizeof *name, "special tokens", err));
    for (void *it = exf_json_first(decoder); it; it = exf_json_next(decoder, it))
        EXF_TRY(take_name(name, n, first, it, where, err));
    for (size_t i = 0; i < n; i++) {
        snprintf(reserved, sizeof reserved, "<|reserved_token_%zu|>", first + i);
        const char *text = name[i] ? name[i] : reserved;
        EXF_TRY(exf_added_add(added, 0, text, strlen(text), (int32_t)(first + i), err));
    }
    rc = exf_added_end(added, where, err);
out:
    exf_mem_free(name);
    return rc;
}

/* ---- all three files ------------------------------------------------------------------ */

/* The pattern of the Python file, and how many special tokens it reserves. */
static exf_code read_python(exf_splitter **splitter, size_t *reserved, const char *path, exf_err *err)
{
    exf_text pattern = {0};
    char *text = NULL;
    size_t len;
    int found = 0;
    exf_code rc;
    EXF_TRY(exf_path_look(path, &found, err));
    if (!found) {
        rc = exf_fail(err, EXF_IO, "%s: is not there; it has the pattern of %s, so fetch it from the release", path,
                      EXF_TIKTOKEN_FILE);
        goto out;
    }
    EXF_TRY(exf_file_slurp(path, MOST_PYTHON, &text, &len, err));
    if (exf_utf8_valid(text, len) < len) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is not valid UTF-8", path);
        goto out;
    }
    EXF_TRY(read_pattern(&pattern, text, len, path, err));
    EXF_TRY(read_reserved(reserved, text, len, path, err));
    rc = exf_splitter_of_pattern(splitter, pattern.s, pattern.len, path, "pat_str", err);
out:
    exf_text_free(&pattern);
    exf_mem_free(text);
    return rc;
}

/* *config, *config_path: tokenizer_config.json beside the file; *python_file: the path of the Python file. */
static exf_code open_config(exf_json **config, char **config_path, char **python_file, const char *path, exf_err *err)
{
    char *dir = NULL;
    exf_code rc;
    EXF_TRY(exf_path_dir(&dir, path, err));
    EXF_TRY(exf_path_join(config_path, dir, "tokenizer_config.json", err));
    EXF_TRY(exf_json_load(config, *config_path, MOST_CONFIG, err));
    rc = python_path(python_file, *config, dir, *config_path, err);
out:
    exf_mem_free(dir);
    return rc;
}

exf_code exf_tokenizer_python(char **out, const char *path, exf_err *err)
{
    exf_json *config = NULL;
    char *config_path = NULL;
    exf_code rc = EXF_OK;
    *out = NULL;
    if (exf_tiktoken_is(path)) rc = open_config(&config, &config_path, out, path, err);
    exf_json_free(config);
    exf_mem_free(config_path);
    return rc;
}

exf_code exf_tiktoken_load(exf_bpe **bpe, exf_splitter **splitter, exf_added *added, const char *path, const char *bytes,
                           size_t len, exf_err *err)
{
    rank_table ranks = {0};
    exf_json *config = NULL;
    char *config_path = NULL, *python_file = NULL;
    size_t reserved = 0;
    exf_code rc;
    EXF_TRY(open_config(&config, &config_path, &python_file, path, err));
    EXF_TRY(read_python(splitter, &reserved, python_file, err));
    EXF_TRY(read_ranks(&ranks, bytes, len, path, err));
    EXF_TRY(exf_bpe_of_ranks(bpe, ranks.token, ranks.n, path, err));
    rc = add_special_tokens(added, config, reserved, ranks.n, config_path, err);
out:
    exf_mem_free(ranks.bytes);
    exf_mem_free(ranks.token);
    exf_json_free(config);
    exf_mem_free(config_path);
    exf_mem_free(python_file);
    return rc;
}
