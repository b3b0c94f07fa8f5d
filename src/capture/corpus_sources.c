/* corpus_sources.c - reads the sources of a corpus that are text: documents of a text file or of JSON lines, conversations; see
 * corpus.h.  Files are unpacked as they are read (format/unpack.h). */
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

/* ---- one document ----------------------------------------------------------------------------------------- */

/* Cuts a document into chunks of tokens.  at: where it is in the source, "" or ": line 7". */
static exf_code add_document(exf_source_chunks *p, const char *text, size_t len, const char *at, exf_err *err)
{
    const exf_ids *before = &exf_tokenizer_facts_of(p->tokenizer)->around.before;
    size_t first = p->ids.n, n = before->n;
    exf_sketch sketch;
    exf_code rc = exf_tokenizer_encode(p->tokenizer, text, len, &p->ids, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "%s%s: ", p->source->label, at);
        return rc;
    }
    int32_t *id = p->ids.id + first;
    /* what the tokenizer put before a document that itself begins with it, as rendered conversations do, goes */
    if (n && p->ids.n - first >= 2 * n && memcmp(id + n, before->id, n * sizeof *id) == 0) {
        memmove(id, id + n, (p->ids.n - first - n) * sizeof *id);
        p->ids.n -= n;
        p->own_bos++;
    }
    exf_sketch_of_text(&sketch, text, len);
    return exf_source_chunks_cut(p, first, &sketch, err);
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
static exf_code read_whole(const exf_manifest_source *s, char **text, size_t *len, exf_err *err)
{
    text_file t = {.file = NULL};
    exf_code rc;
    size_t cap = 0, got = CHUNK;
    EXF_TRY(open_text(&t, s->file, err));
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
    else
        rc = exf_source_unchanged(s, t.file, err);
out:
    close_text(&t);
    return rc;
}

/* Returns the length of the byte-order mark that a text begins with, or 0. */
static size_t mark_of(const char *text, size_t len)
{
    size_t n = EXF_BYTE_ORDER_MARK_LEN;
    return len >= n && memcmp(text, EXF_BYTE_ORDER_MARK, n) == 0 ? n : 0;
}

exf_code exf_source_chunks_read_text(exf_source_chunks *p, exf_err *err)
{
    char *text = NULL;
    size_t len = 0;
    const char *label = p->source->label;
    exf_code rc = read_whole(p->source, &text, &len, err);
    size_t valid = rc == EXF_OK ? exf_utf8_valid(text, len) : 0;
    const char *nul = rc == EXF_OK && len ? memchr(text, 0, len) : NULL;
    if (rc != EXF_OK)
        exf_err_prefix(err, "%s: ", label);
    else if (valid < len) {
        (void)exf_fail(err, EXF_MODEL, "%s: line %d: byte 0x%02x is not valid UTF-8", label, line_of(text, valid),
                       (unsigned)(unsigned char)text[valid]);
        rc = exf_encoding_advise(err, text, len, p->source->file);
    } else if (nul)
        rc = exf_fail(err, EXF_MODEL, "%s: line %d: holds a NUL, which no text has: it is binary, or was cut short by a failure",
                      label, line_of(text, (size_t)(nul - text)));
    else
        rc = add_document(p, text + mark_of(text, len), len - mark_of(text, len), "", err);
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
            *len = newline ? (size_t)(newline - from) : seen;
            r->begin += *len + (newline != NULL);
            size_t mark = r->number == 1 ? mark_of(from, *len) : 0;
            *line = from + mark;
            *len -= mark;
            return EXF_OK;
        }
        exf_code rc = read_more(r, err);
        if (rc != EXF_OK) return rc;
    }
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
    if (valid < len) {
        (void)exf_fail(err, EXF_MODEL, "%s: line %" PRId64 ": byte 0x%02x at column %zu is not valid UTF-8", label, r->number,
                       (unsigned)(unsigned char)line[valid], valid + 1);
        return exf_encoding_advise(err, line, len, r->pool->source->file);
    }
    exf_code rc = exf_json_parse_line(out, line, len, label, r->number, &inner);
    if (rc != EXF_OK) return exf_fail(err, rc == EXF_NOSPACE ? rc : EXF_MODEL, "%s", inner.msg);
    if (exf_json_type(*out) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_MODEL, "%s: line %" PRId64 ": is %s, expected an object", label, r->number,
                        exf_json_type_name(*out));
    return EXF_OK;
}

static exf_code wrong_member(const line_reader *r, const exf_json *object, const char *field, exf_err *err)
{
    const exf_manifest_source *s = r->pool->source;
    const exf_json *member = exf_json_get(object, field);
    exf_text present = {0}, place = {0};
    exf_code rc;
    exf_text_appendf(&place, "%s: line %" PRId64, s->label, r->number);
    EXF_TRY(exf_text_end(&place, err));
    EXF_TRY(exf_refuse_conversation(object, place.s, s->file, r->pool->model, err));
    exf_member_names(object, &present);
    EXF_TRY(exf_text_end(&present, err));
    if (member)
        rc = exf_fail(err, EXF_MODEL, "%s: \"%s\" is %s, expected a string", place.s, field, exf_json_type_name(member));
    else
        rc = exf_fail(err, EXF_MODEL, "%s: \"%s\" is missing; the line's members are %s", place.s, field, present.s);
out:
    exf_text_free(&place);
    exf_text_free(&present);
    return rc;
}

/* Finds the text of a line, or renders its conversation; what that gives is valid until the next line. */
static exf_code find_text(line_reader *r, const exf_json *object, const char **text, size_t *n, exf_err *err)
{
    const exf_manifest_source *s = r->pool->source;
    exf_members m;
    exf_code rc;
    size_t found = exf_members_find(&m, object, s->field);
    if (m.n == 1 && s->format != EXF_SOURCE_CHAT) {
        *text = exf_json_string(m.part[0], n);
        return *text ? EXF_OK : wrong_member(r, object, s->field, err);
    }
    if (!found) return wrong_member(r, object, s->field, err);
    exf_text_free(&r->rendered);
    r->rendered = (exf_text){0};
    if (s->format != EXF_SOURCE_CHAT) {
        for (size_t i = 0; i < m.n; i++) { /* the strings of several members, one after another */
            const char *part = exf_json_string(m.part[i], n);
            if (!part) return wrong_member(r, object, m.name[i], err);
            exf_text_append(&r->rendered, part, *n);
        }
        rc = exf_text_end(&r->rendered, err);
    } else {
        rc = exf_chat_render(&r->pool->chat, object, s->field, &r->rendered, err);
        if (rc != EXF_OK) exf_err_prefix(err, "%s: line %" PRId64 ": ", s->label, r->number);
    }
    *text = r->rendered.s ? r->rendered.s : "";
    *n = r->rendered.len;
    return rc;
}

static exf_code read_line(line_reader *r, const char *line, size_t len, exf_err *err)
{
    exf_code rc;
    exf_json *object = NULL;
    exf_source_chunks *p = r->pool;
    const exf_manifest_source *s = p->source;
    const char *text = NULL;
    char at[40];
    size_t n = 0;
    EXF_TRY(parse_line(r, &object, line, len, err));
    p->lines++;
    if (!matches(s, object)) {
        exf_progress_add((double)len);
        goto out;
    }
    p->matching++;
    snprintf(at, sizeof at, ": line %" PRId64, r->number);
    if (s->format == EXF_SOURCE_IDS) {
        EXF_TRY(exf_source_chunks_add_ids(p, object, at, err));
    } else {
        EXF_TRY(find_text(r, object, &text, &n, err));
        if (n && memchr(text, 0, n)) {
            rc = exf_fail(err, EXF_MODEL, "%s%s: holds a NUL, which no text has: it is binary, or was cut short by a failure",
                          s->label, at);
            goto out;
        }
        EXF_TRY(add_document(p, text, n, at, err)); /* which says that n bytes are done */
    }
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
        size_t end = len; /* of what is not blank */
        while (end && (line[end - 1] == ' ' || line[end - 1] == '\t' || line[end - 1] == '\r')) end--;
        if (end) EXF_TRY(read_line(&r, line, len, err));
    }
    rc = exf_source_unchanged(p->source, r.file.file, err);
out:
    exf_mem_free(r.buf);
    exf_text_free(&r.rendered);
    close_text(&r.file);
    return rc;
}

