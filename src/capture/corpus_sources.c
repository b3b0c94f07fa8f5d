/* corpus_sources.c - reads the sources of a corpus: documents of a text file or of JSON lines, conversations, rows of a tensor of
 * token ids; see corpus.h.  Files that hold text are unpacked as they are read (format/unpack.h). */
#include "capture/corpus_internal.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/text.h"
#include "format/unpack.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 16, MAX_DOCUMENT = EXF_MOST_DOCUMENT_BYTES };

/* ---- names, for messages -------------------------------------------------------------------------------- */

enum { MOST_NAMES = 12 };

static void append_name(exf_text *out, size_t i, const char *name)
{
    if (i < MOST_NAMES) exf_text_appendf(out, "%s\"%.60s\"", i ? ", " : "", name);
}

static void append_rest(exf_text *out, size_t n)
{
    if (n == 0) exf_text_appendf(out, "none");
    if (n > MOST_NAMES) exf_text_appendf(out, " and %zu more", n - MOST_NAMES);
}

void exf_member_names(const exf_json *object, exf_text *out)
{
    size_t n = 0;
    for (void *it = exf_json_first(object); it; it = exf_json_next(object, it)) append_name(out, n++, exf_json_key(it));
    append_rest(out, n);
}

void exf_tensor_names(const exf_st_file *f, exf_text *out)
{
    size_t n = exf_st_count(f);
    for (size_t i = 0; i < n; i++) append_name(out, i, exf_st_at(f, i)->view.name);
    append_rest(out, n);
}

/* Returns 1 for a list of turns, {"role": ..., "content": ...} or {"from": ..., "value": ...}. */
static int is_conversation(const exf_json *member)
{
    const exf_json *turn = exf_json_type(member) == EXF_JSON_ARRAY ? exf_json_at(member, 0) : NULL;
    if (!turn || exf_json_type(turn) != EXF_JSON_OBJECT) return 0;
    return exf_json_get(turn, exf_json_get(turn, "role") ? "content" : "from") != NULL;
}

exf_code exf_refuse_conversation(const exf_json *object, const char *place, const char *path, exf_err *err)
{
    for (void *it = exf_json_first(object); it; it = exf_json_next(object, it)) {
        const char *name = exf_json_key(it);
        if (!is_conversation(exf_json_value(it))) continue;
        int is_usual = strcmp(name, "messages") == 0;
        return exf_fail(err, EXF_MODEL,
                        "%s: \"%s\" is a conversation, which becomes text by the model's own chat template: python3 "
                        "scripts/render_chat.py MODEL %s OUT.jsonl%s%s; then give OUT.jsonl",
                        place, name, path, is_usual ? "" : " --messages ", is_usual ? "" : name);
    }
    return EXF_OK;
}

/* ---- one document ----------------------------------------------------------------------------------------- */

/* Cuts ids[first..], a document, into chunks of max_tokens; removes the last one if it is too short. */
static exf_code cut_into_chunks(exf_source_chunks *p, size_t first, exf_err *err)
{
    while (first < p->ids.n) {
        size_t n = p->ids.n - first < (size_t)p->max_tokens ? p->ids.n - first : (size_t)p->max_tokens;
        if (n < (size_t)p->min_tokens) {
            p->n_short++;
            p->tokens_dropped += n;
            p->ids.n = first;
            break;
        }
        exf_code rc = exf_mem_grow(&p->chunk, &p->cap, p->n + 1, sizeof *p->chunk, "sequences of a source", err);
        if (rc != EXF_OK) return rc;
        p->chunk[p->n++] = (exf_token_chunk){first, (int32_t)n, p->n_documents};
        first += n;
    }
    p->n_documents++;
    return EXF_OK;
}

/* Cuts a document into chunks of tokens.  at: where it is in the source, "" or ": line 7". */
static exf_code add_document(exf_source_chunks *p, const char *text, size_t len, const char *at, exf_err *err)
{
    size_t first = p->ids.n;
    exf_code rc = exf_tokenizer_encode(p->tokenizer, text, len, &p->ids, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "%s%s: ", p->source->label, at);
        return rc;
    }
    return cut_into_chunks(p, first, err);
}

static int line_of(const char *text, size_t offset)
{
    int line = 1;
    for (size_t i = 0; i < offset; i++) line += text[i] == '\n';
    return line;
}

/* A file of text that is open. */
typedef struct {
    exf_file *file;
    exf_unpacker *bytes;
} text_file;

static exf_code open_text(text_file *t, const char *path, exf_err *err)
{
    exf_code rc = exf_source_open(&t->file, path, err);
    return rc == EXF_OK ? exf_unpack_open(&t->bytes, t->file, err) : rc;
}

static void close_text(text_file *t)
{
    exf_unpack_close(t->bytes);
    exf_file_close(t->file);
}

/* Reads a whole file as one document. */
static exf_code read_whole(const char *path, char **text, size_t *len, exf_err *err)
{
    text_file t = {.file = NULL};
    exf_code rc;
    size_t cap = 0, got = CHUNK;
    EXF_TRY(open_text(&t, path, err));
    uint64_t size = exf_unpack_kind(t.bytes) == EXF_PLAIN ? exf_file_size(t.file) : 0; /* a packed one does not say it */
    if (size <= MAX_DOCUMENT) EXF_TRY(exf_mem_grow(text, &cap, (size_t)size + CHUNK, 1, "text of a source", err));
    for (*len = 0; got == CHUNK && *len <= MAX_DOCUMENT && size <= MAX_DOCUMENT; *len += got) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_mem_grow(text, &cap, *len + CHUNK, 1, "text of a source", err));
        EXF_TRY(exf_unpack_read(t.bytes, *text + *len, CHUNK, &got, err));
    }
    if (*len > MAX_DOCUMENT || size > MAX_DOCUMENT)
        rc = exf_fail(err, EXF_MODEL, "%s%" PRIu64 " bytes, a document has at most %d; split it into files or JSON lines",
                      size ? "" : "unpacks to more than ", size ? size : (uint64_t)MAX_DOCUMENT, MAX_DOCUMENT);
out:
    close_text(&t);
    return rc;
}

exf_code exf_source_chunks_read_text(exf_source_chunks *p, exf_err *err)
{
    char *text = NULL;
    size_t len = 0;
    const char *label = p->source->label;
    exf_code rc = read_whole(p->source->file, &text, &len, err);
    size_t valid = rc == EXF_OK ? exf_utf8_valid(text, len) : 0;
    if (rc != EXF_OK)
        exf_err_prefix(err, "%s: ", label);
    else if (valid < len)
        rc = exf_fail(err, EXF_MODEL, "%s: line %d: byte 0x%02x is not valid UTF-8", label, line_of(text, valid),
                      (unsigned)(unsigned char)text[valid]);
    else
        rc = add_document(p, text, len, "", err);
    exf_mem_free(text);
    return rc;
}

/* ---- lines ----------------------------------------------------------- */

/* A file in a sliding buffer: unread bytes are buf[begin..end). */
typedef struct {
    exf_source_chunks *pool;
    text_file file;
    int ended; /* nothing comes after buf[end] */
    char *buf;
    size_t cap, begin, end;
    int64_t number; /* of the current line, 1-based */
    exf_text rendered; /* chat: the conversation of the line */
} line_reader;

static exf_code read_more(line_reader *r, exf_err *err)
{
    size_t got = 0;
    if (r->begin) memmove(r->buf, r->buf + r->begin, r->end - r->begin);
    r->end -= r->begin;
    r->begin = 0;
    exf_code rc = exf_mem_grow(&r->buf, &r->cap, r->end + CHUNK, 1, "line of a source", err);
    if (rc != EXF_OK) return rc;
    rc = exf_unpack_read(r->file.bytes, r->buf + r->end, CHUNK, &got, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: ", r->pool->source->label);
    r->ended = got < CHUNK;
    r->end += got;
    return rc;
}

/* *line becomes the next line without its newline, NULL after the last one. */
static exf_code next_line(line_reader *r, const char **line, size_t *len, exf_err *err)
{
    r->number++;
    *line = NULL;
    for (size_t seen = 0;;) {
        const char *from = r->buf ? r->buf + r->begin : NULL;
        const char *newline = from ? memchr(from + seen, '\n', r->end - r->begin - seen) : NULL;
        seen = r->end - r->begin;
        if ((newline ? (size_t)(newline - from) : seen) > MAX_DOCUMENT)
            return exf_fail(err, EXF_MODEL, "%s: line %" PRId64 ": longer than %d bytes", r->pool->source->label, r->number,
                            MAX_DOCUMENT);
        if (newline || r->ended) {
            if (!newline && seen == 0) return EXF_OK;
            *line = from;
            *len = newline ? (size_t)(newline - from) : seen;
            r->begin += *len + (newline != NULL);
            return EXF_OK;
        }
        exf_code rc = read_more(r, err);
        if (rc != EXF_OK) return rc;
    }
}

static int is_blank(const char *line, size_t len)
{
    while (len && strchr(" \t\r", line[len - 1]) && line[len - 1]) len--;
    return len == 0;
}

/* ---- JSON lines ------------------------------------------------------ */

static int matches(const exf_manifest_source *s, const exf_json *object)
{
    for (size_t i = 0; i < s->n_where; i++) {
        size_t len;
        const char *value = exf_json_string(exf_json_get(object, s->where_key[i]), &len);
        if (!value || len != strlen(s->where_value[i]) || memcmp(value, s->where_value[i], len) != 0) return 0;
    }
    return 1;
}

static exf_code parse_line(const line_reader *r, exf_json **out, const char *line, size_t len, exf_err *err)
{
    const char *label = r->pool->source->label;
    exf_err inner = {0};
    *out = NULL;
    size_t valid = exf_utf8_valid(line, len);
    if (valid < len)
        return exf_fail(err, EXF_MODEL, "%s: line %" PRId64 ": byte 0x%02x at column %zu is not valid UTF-8", label, r->number,
                        (unsigned)(unsigned char)line[valid], valid + 1);
    exf_code rc = exf_json_parse(out, line, len, "", &inner);
    if (rc == EXF_NOSPACE) return exf_fail(err, rc, "%s: line %" PRId64 "%s", label, r->number, inner.msg);
    if (rc != EXF_OK) {
        /* The parser was given one line and calls it line 1: the message goes on after that. */
        const char *rest = strstr(inner.msg, "not valid JSON");
        return exf_fail(err, EXF_MODEL, "%s: line %" PRId64 ": %s", label, r->number, rest ? rest : inner.msg);
    }
    if (exf_json_type(*out) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s: line %" PRId64 ": is %s, expected an object", label, r->number,
                        exf_json_type_name(*out));
    return EXF_OK;
}

static exf_code wrong_member(const line_reader *r, const exf_json *object, exf_err *err)
{
    const exf_manifest_source *s = r->pool->source;
    const exf_json *member = exf_json_get(object, s->field);
    exf_text present = {0}, place = {0};
    exf_code rc;
    exf_text_appendf(&place, "%s: line %" PRId64, s->label, r->number);
    EXF_TRY(exf_text_end(&place, err));
    EXF_TRY(exf_refuse_conversation(object, place.s, s->file, err));
    exf_member_names(object, &present);
    EXF_TRY(exf_text_end(&present, err));
    if (member)
        rc = exf_fail(err, EXF_MODEL, "%s: \"%s\" is %s, expected a string", place.s, s->field, exf_json_type_name(member));
    else
        rc = exf_fail(err, EXF_MODEL, "%s: \"%s\" is missing; the line's members are %s", place.s, s->field, present.s);
out:
    exf_text_free(&place);
    exf_text_free(&present);
    return rc;
}

/* Finds the text of a line, or renders its conversation; what that gives is valid until the next line. */
static exf_code find_text(line_reader *r, const exf_json *object, const char **text, size_t *n, exf_err *err)
{
    const exf_manifest_source *s = r->pool->source;
    const exf_json *member = exf_json_get(object, s->field);
    if (member && s->format == EXF_SOURCE_CHAT) {
        exf_text_free(&r->rendered);
        r->rendered = (exf_text){0};
        exf_code rc = exf_chat_render(&r->pool->chat, object, s->field, &r->rendered, err);
        if (rc != EXF_OK) exf_err_prefix(err, "%s: line %" PRId64 ": ", s->label, r->number);
        *text = r->rendered.s;
        *n = r->rendered.len;
        return rc;
    }
    *text = exf_json_string(member, n);
    return *text ? EXF_OK : wrong_member(r, object, err);
}

static exf_code read_line(line_reader *r, const char *line, size_t len, exf_err *err)
{
    exf_code rc;
    exf_json *object = NULL;
    exf_source_chunks *p = r->pool;
    const exf_manifest_source *s = p->source;
    const char *text;
    char at[40];
    size_t n;
    EXF_TRY(parse_line(r, &object, line, len, err));
    p->lines++;
    if (!matches(s, object)) {
        exf_progress_add((double)len);
        goto out;
    }
    p->matching++;
    snprintf(at, sizeof at, ": line %" PRId64, r->number);
    EXF_TRY(find_text(r, object, &text, &n, err));
    rc = add_document(p, text, n, at, err); /* which says that n bytes are done */
    exf_progress_add((double)len - (double)n);
out:
    exf_json_free(object);
    return rc;
}

exf_code exf_source_chunks_read_lines(exf_source_chunks *p, exf_err *err)
{
    line_reader r = {.pool = p};
    const char *line;
    size_t len;
    exf_code rc = open_text(&r.file, p->source->file, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "%s: ", p->source->label);
        goto out;
    }
    for (;;) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(next_line(&r, &line, &len, err));
        if (!line) break;
        if (!is_blank(line, len)) EXF_TRY(read_line(&r, line, len, err));
    }
out:
    exf_mem_free(r.buf);
    exf_text_free(&r.rendered);
    close_text(&r.file);
    return rc;
}

/* ---- tensors of token ids --------------------------------------------------------------------------------- */

enum { BLOCK = 1 << 16 }; /* ids that are decoded at a time: a row may be longer than memory */

typedef struct {
    exf_source_chunks *pool;
    exf_st_file *file;
    const exf_st_tensor *tensor;
    exf_dtype dtype; /* U64 is read as I64: what would be negative is out of range anyway */
    char *raw;
    int64_t *id;
} row_reader;

/* Finds the tensor that the source names, else the only one. */
static exf_code find_tensor(row_reader *r, exf_err *err)
{
    const exf_manifest_source *s = r->pool->source;
    size_t n = exf_st_count(r->file);
    exf_text present = {0};
    r->tensor = s->tensor ? exf_st_find(r->file, s->tensor) : n == 1 ? exf_st_at(r->file, 0) : NULL;
    if (r->tensor) return EXF_OK;
    exf_tensor_names(r->file, &present);
    exf_code rc = exf_text_end(&present, err);
    if (rc == EXF_OK && s->tensor)
        rc = exf_fail(err, EXF_MODEL, "%s: no tensor \"%s\"; the file's are %s", s->label, s->tensor, present.s);
    else if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "%s: the file has %zu tensors, \"tensor\" must name the one that is meant: %s", s->label, n,
                      present.s);
    exf_text_free(&present);
    return rc;
}

static exf_code check_tensor(row_reader *r, exf_err *err)
{
    const exf_tensor *t = &r->tensor->view;
    const char *label = r->pool->source->label;
    char shape[128];
    exf_shape_text(shape, sizeof shape, t->shape, t->rank);
    if (!exf_dtype_is_integer(t->dtype))
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is %s, expected integer token ids", label, t->name,
                        exf_dtype_name(t->dtype));
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[1] < 1)
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" has shape %s, expected [sequences, tokens], both at least 1", label,
                        t->name, shape);
    r->dtype = t->dtype == EXF_DT_U64 ? EXF_DT_I64 : t->dtype;
    return EXF_OK;
}

static exf_code bad_id(const row_reader *r, int64_t row, int64_t position, int64_t id, exf_err *err)
{
    const exf_source_chunks *p = r->pool;
    const exf_tensor *t = &r->tensor->view;
    if (t->dtype == EXF_DT_U64)
        return exf_fail(err, EXF_MODEL,
                        "%s: tensor \"%s\": row %" PRId64 ", position %" PRId64 ": token id %" PRIu64
                        ", the vocabulary has %" PRId64,
                        p->source->label, t->name, row, position, (uint64_t)id, p->vocab);
    return exf_fail(err, EXF_MODEL,
                    "%s: tensor \"%s\": row %" PRId64 ", position %" PRId64 ": token id %" PRId64 ", the vocabulary has %" PRId64,
                    p->source->label, t->name, row, position, id, p->vocab);
}

/* Reads ids [begin, begin + n) of a row: checks all, and keeps those at positions below max_tokens. */
static exf_code read_block(row_reader *r, int64_t row, int64_t begin, size_t n, exf_err *err)
{
    exf_source_chunks *p = r->pool;
    exf_ids *ids = &p->ids;
    size_t bytes = exf_dtype_bits(r->dtype) / 8;
    uint64_t at = ((uint64_t)row * (uint64_t)r->tensor->view.shape[1] + (uint64_t)begin) * bytes;
    exf_code rc = exf_st_read(r->file, r->tensor, at, r->raw, n * bytes, err);
    if (rc == EXF_OK) rc = exf_mem_grow(&ids->id, &ids->cap, ids->n + n, sizeof *ids->id, "token ids", err);
    if (rc != EXF_OK) return rc;
    exf_dtype_to_i64(r->id, r->raw, n, r->dtype);
    for (size_t k = 0; k < n; k++) {
        if (r->id[k] < 0 || r->id[k] >= p->vocab) return bad_id(r, row, begin + (int64_t)k, r->id[k], err);
        if (begin + (int64_t)k < p->max_tokens) ids->id[ids->n++] = (int32_t)r->id[k];
    }
    return EXF_OK;
}

static exf_code read_row(row_reader *r, int64_t row, exf_err *err)
{
    exf_source_chunks *p = r->pool;
    int64_t len = r->tensor->view.shape[1];
    size_t first = p->ids.n;
    for (int64_t begin = 0; begin < len; begin += BLOCK) {
        size_t n = len - begin < BLOCK ? (size_t)(len - begin) : BLOCK;
        exf_code rc = exf_stop_check(err);
        if (rc == EXF_OK) rc = read_block(r, row, begin, n, err);
        if (rc != EXF_OK) return rc;
    }
    p->tokens_dropped += (uint64_t)len - (p->ids.n - first);
    exf_progress_add((double)len * exf_dtype_bits(r->tensor->view.dtype) / 8);
    return cut_into_chunks(p, first, err);
}

exf_code exf_source_chunks_read_tokens(exf_source_chunks *p, exf_err *err)
{
    exf_code rc;
    row_reader r = {.pool = p};
    if (strcmp(p->source->file, EXF_STANDARD_INPUT) == 0)
        return exf_fail(err, EXF_USAGE, "%s: token ids are read from a file, not from standard input", p->source->label);
    if ((rc = exf_st_open(&r.file, p->source->file, err)) != EXF_OK) {
        exf_err_prefix(err, "%s: ", p->source->label);
        return rc;
    }
    EXF_TRY(find_tensor(&r, err));
    EXF_TRY(check_tensor(&r, err));
    EXF_TRY(exf_mem_new(&r.raw, BLOCK, sizeof *r.id, "token ids", err));
    EXF_TRY(exf_mem_new(&r.id, BLOCK, sizeof *r.id, "token ids", err));
    for (int64_t row = 0; row < r.tensor->view.shape[0]; row++) EXF_TRY(read_row(&r, row, err));
out:
    exf_mem_free(r.raw);
    exf_mem_free(r.id);
    exf_st_close(r.file);
    return rc;
}
