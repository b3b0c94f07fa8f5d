/* json.c - reads JSON documents, and quotes texts, through jansson; see json.h. */
#include "format/json.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* exf_json is json_t under another name, so that no other file needs jansson's. */
static json_t *unwrap(const exf_json *j)
{
    return (json_t *)(uintptr_t)j;
}

static exf_json *wrap(json_t *j)
{
    return (exf_json *)j;
}

/* jansson says of a failed allocation that the text is wrong, so it allocates here. */
static _Thread_local size_t refused;   /* bytes of the last allocation that failed */
static _Thread_local jmp_buf *refusal; /* where a parse ends when an allocation fails; NULL outside of one */

/* Ends a parse where memory is refused: jansson would go on without characters that it could not store, and past the end of
 * a string whose closing quote is among them.  What the parse has allocated is lost. */
static void *get_memory(size_t n)
{
    void *p = malloc(n);
    if (p) return p;
    refused = n;
    if (refusal) longjmp(*refusal, 1);
    return NULL;
}

static void route_memory(void)
{
    json_set_alloc_funcs(get_memory, free);
}

static void watch_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, route_memory);
    refused = 0;
}

/* ---- the memory that a text will take, reckoned before it is parsed ------------------
 * jansson takes up to a hundred bytes for one of the text: "[[],[],...". A document of ours takes about ten. */

/* The bytes that jansson takes at most, with its allocator's part: for an object and its first table, an array and its
 * first elements, a string or a key with its place in a table, and each element after a comma. */
enum { OBJECT = 288, ARRAY = 160, STRING = 144, ELEMENT = 64 };

/* Returns the quote that ends a string, or end. */
static const char *find_string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end) at++;
    return at;
}

static uint64_t reckon_memory(const char *at, const char *end)
{
    uint64_t bytes = 0;
    for (; at < end; at++) switch (*at) {
        case '{': bytes += OBJECT; break;
        case '[': bytes += ARRAY; break;
        case ',': bytes += ELEMENT; break;
        case '"': {
            const char *to = find_string_end(at, end);
            bytes += STRING + (uint64_t)(to - at);
            at = to;
            break;
        }
        default: break;
        }
    return bytes;
}

/* ---- numbers that jansson refuses ------------------------------------------------------
 * Released tokenizer_config.json have a model_max_length of 10^30, which is read as a real number.  Python's json writes Infinity,
 * -Infinity and NaN as such, as Nemotron's config.json has them; they are read as strings, so that a key whose number is used is
 * refused. */

/* Whether a number is an integer beyond int64. */
static int is_wide(const char *number, size_t len)
{
    char digits[24];
    for (size_t i = 0; i < len; i++)
        if (strchr(".eE", number[i])) return 0;
    if (len >= sizeof digits) return 1;
    memcpy(digits, number, len);
    digits[len] = 0;
    errno = 0;
    (void)strtoll(digits, NULL, 10);
    return errno == ERANGE;
}

/* *out: the text with ".0" after every such integer, and words that are no finite numbers in quotes. */
static exf_code rewrite_numbers(exf_text *out, const char *bytes, size_t len, exf_err *err)
{
    static const char number[] = "0123456789+-.eE";
    static const char *const not_finite[] = {"-Infinity", "Infinity", "NaN"};
    const char *end = bytes + len;
    for (const char *p = bytes, *stop; p < end; p = stop) {
        size_t word = 0;
        for (size_t i = 0; !word && i < sizeof not_finite / sizeof *not_finite; i++) {
            size_t n = strlen(not_finite[i]);
            if ((size_t)(end - p) >= n && memcmp(p, not_finite[i], n) == 0) word = n;
        }
        stop = p + (word ? word : 1);
        if (word) {
            exf_text_appendf(out, "\"%.*s\"", (int)word, p);
            continue;
        }
        if (*p == '"') {
            stop = find_string_end(p, end);
            if (stop < end) stop++;
        } else if (*p == '-' || (*p >= '0' && *p <= '9')) {
            while (stop < end && *stop && strchr(number, *stop)) stop++;
        }
        exf_text_append(out, p, (size_t)(stop - p));
        if ((*p == '-' || (*p >= '0' && *p <= '9')) && is_wide(p, (size_t)(stop - p))) exf_text_append(out, ".0", 2);
    }
    return exf_text_end(out, err);
}

/* Returns NULL where the text is no JSON, and where memory was refused. */
static exf_json *parse(const char *bytes, size_t len, json_error_t *e)
{
    jmp_buf end;
    exf_json *doc = NULL;
    watch_memory();
    refusal = &end;
    if (setjmp(end) == 0) doc = wrap(json_loadb(bytes, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, e));
    refusal = NULL;
    return doc;
}

/* Parses a document, or one line of a file whose messages begin with its number already (is_line 1). */
static exf_code parse_at(exf_json **out, const char *bytes, size_t len, const char *where, int is_line, exf_err *err)
{
    json_error_t e;
    *out = NULL;
    /* The usual case is a text so short that none of its length takes more than is given. */
    uint64_t need = len <= EXF_JSON_MEMORY / OBJECT ? 0 : reckon_memory(bytes, bytes + len);
    if (need > EXF_JSON_MEMORY)
        return exf_fail(err, EXF_FORMAT,
                        "%s: its %zu bytes of JSON would take %" PRIu64 " bytes of memory, at most %d are given", where, len, need,
                        EXF_JSON_MEMORY);
    *out = parse(bytes, len, &e);
    enum json_error_code why = *out || refused ? json_error_unknown : json_error_code(&e);
    if (why == json_error_numeric_overflow || why == json_error_invalid_syntax) {
        exf_text rewritten = {0};
        exf_code rc = rewrite_numbers(&rewritten, bytes, len, err);
        if (rc == EXF_OK) *out = parse(rewritten.s, rewritten.len, &e);
        exf_text_free(&rewritten);
        if (rc != EXF_OK) return rc;
    }
    if (*out) return EXF_OK;
    if (refused) return exf_fail(err, EXF_NOSPACE, "%s: out of memory: %zu bytes for its JSON", where, refused);
    if (is_line) return exf_fail(err, EXF_FORMAT, "%s: not valid JSON: %s", where, e.text);
    return exf_fail(err, EXF_FORMAT, "%s: line %d: not valid JSON: %s", where, e.line, e.text);
}

exf_code exf_json_parse(exf_json **out, const char *bytes, size_t len, const char *where, exf_err *err)
{
    return parse_at(out, bytes, len, where, 0, err);
}

exf_code exf_json_parse_line(exf_json **out, const char *line, size_t len, const char *where, int64_t number, exf_err *err)
{
    exf_text place = {0};
    exf_code rc;
    *out = NULL;
    exf_text_appendf(&place, "%s: line %lld", where, (long long)number);
    EXF_TRY(exf_text_end(&place, err));
    rc = parse_at(out, line, len, place.s, 1, err);
out:
    exf_text_free(&place);
    return rc;
}

exf_code exf_json_load(exf_json **out, const char *path, uint64_t limit, exf_err *err)
{
    char *bytes;
    size_t len;
    *out = NULL;
    exf_code rc = exf_file_slurp(path, limit, &bytes, &len, err);
    if (rc == EXF_OK) rc = exf_json_parse(out, bytes, len, path, err);
    exf_mem_free(bytes);
    return rc;
}

void exf_json_free(exf_json *doc)
{
    if (doc) json_decref(unwrap(doc));
}

exf_json_kind exf_json_type(const exf_json *j)
{
    if (!j) return EXF_JSON_NULL;
    switch (json_typeof(unwrap(j))) {
    case JSON_OBJECT: return EXF_JSON_OBJECT;
    case JSON_ARRAY: return EXF_JSON_ARRAY;
    case JSON_STRING: return EXF_JSON_STRING;
    case JSON_INTEGER: return EXF_JSON_INT;
    case JSON_REAL: return EXF_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return EXF_JSON_BOOL;
    default: return EXF_JSON_NULL;
    }
}

const char *exf_json_type_name(const exf_json *j)
{
    static const char *const name[] = {"null", "a boolean", "an integer", "a real number", "a string", "an array", "an object"};
    return j ? name[exf_json_type(j)] : "missing";
}

size_t exf_json_size(const exf_json *j)
{
    exf_json_kind k = exf_json_type(j);
    return k == EXF_JSON_ARRAY ? json_array_size(unwrap(j)) : k == EXF_JSON_OBJECT ? json_object_size(unwrap(j)) : 0;
}

const exf_json *exf_json_get(const exf_json *object, const char *key)
{
    return wrap(json_object_get(unwrap(object), key));
}

const exf_json *exf_json_at(const exf_json *array, size_t i)
{
    return wrap(json_array_get(unwrap(array), i));
}

const char *exf_json_string(const exf_json *j, size_t *len)
{
    if (exf_json_type(j) != EXF_JSON_STRING) return NULL;
    if (len) *len = json_string_length(unwrap(j));
    return json_string_value(unwrap(j));
}

int64_t exf_json_int(const exf_json *j)
{
    return exf_json_type(j) == EXF_JSON_INT ? (int64_t)json_integer_value(unwrap(j)) : 0;
}

double exf_json_real(const exf_json *j)
{
    return j ? json_number_value(unwrap(j)) : 0;
}

int exf_json_true(const exf_json *j)
{
    return j && json_is_true(unwrap(j));
}

void *exf_json_first(const exf_json *object)
{
    return json_object_iter(unwrap(object));
}

void *exf_json_next(const exf_json *object, void *it)
{
    return json_object_iter_next(unwrap(object), it);
}

const char *exf_json_key(void *it)
{
    return json_object_iter_key(it);
}

const exf_json *exf_json_value(void *it)
{
    return wrap(json_object_iter_value(it));
}

exf_code exf_json_quote(exf_text *out, const char *s, exf_err *err)
{
    watch_memory();
    json_t *j = json_string(s);
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
    exf_code rc = text      ? EXF_OK
                  : refused ? exf_fail(err, EXF_NOSPACE, "out of memory: %zu bytes for a text in JSON", refused)
                            : exf_fail(err, EXF_USAGE, "the name %s is not valid UTF-8, which JSON cannot hold", s);
    if (text) exf_text_append(out, text, strlen(text));
    free(text);
    json_decref(j);
    return rc;
}
