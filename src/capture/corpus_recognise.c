/* corpus_recognise.c - tells what kind of source a file is that no manifest describes (exf_recognise, corpus.h). */
#include "capture/corpus_internal.h"

#include "artifact/artifact.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/unpack.h"

#include <string.h>

enum { LONGEST_HEAD = 16 << 20 }; /* bytes in which a first line is looked for */

/* The beginning of a file. */
typedef struct {
    const char *path, *field, *model;
    const char *name; /* for messages */
    char *bytes;      /* unpacked, without a byte-order mark */
    size_t len;
    exf_packing packing;
    int cut;             /* the file goes on after the bytes */
    exf_recognised *out;
    int found;           /* in a directory: what it is where it is no text is no error, but said in out */
    exf_err *err;
} head;

static exf_code read_head(head *h)
{
    enum { PIECE = 1 << 18 };
    exf_file *f = NULL;
    exf_unpacker *u = NULL;
    size_t got = PIECE, cap = 0;
    exf_code rc;
    EXF_TRY(exf_source_open(&f, h->path, h->err));
    EXF_TRY(exf_unpack_open(&u, f, h->err));
    h->packing = exf_unpack_kind(u);
    for (; got == PIECE && h->len < LONGEST_HEAD; h->len += got) {
        EXF_TRY(exf_mem_grow(&h->bytes, &cap, h->len + PIECE + 1, 1, "beginning of a text", h->err));
        EXF_TRY(exf_unpack_read(u, h->bytes + h->len, PIECE, &got, h->err));
    }
    h->bytes[h->len] = 0;
    h->cut = got == PIECE;
    h->out->bytes = exf_file_size(f);
    if (h->len >= EXF_BYTE_ORDER_MARK_LEN && memcmp(h->bytes, EXF_BYTE_ORDER_MARK, EXF_BYTE_ORDER_MARK_LEN) == 0)
        memmove(h->bytes, h->bytes + EXF_BYTE_ORDER_MARK_LEN, (h->len -= EXF_BYTE_ORDER_MARK_LEN) + 1);
out:
    exf_unpack_close(u);
    exf_file_close(f);
    return rc;
}

/* Returns 1 if the name ends so, before the ending of a compressed file. */
static int ends_with(const head *h, const char *ending)
{
    size_t n = exf_unpacked_name(h->path), k = strlen(ending);
    return n >= k && memcmp(h->path + n - k, ending, k) == 0;
}

/* ---- what is refused ----------------------------------------------------- */

/* Returns 1 for a file that is passed over, and says what it is; none whose name promises a text and that is not empty. */
static int pass_over(const head *h, exf_foreign what)
{
    static const char *const endings[] = {".txt", ".text", ".md", ".jsonl", ".ndjson"};
    int is_promised = 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) is_promised |= ends_with(h, endings[i]);
    if (!h->found || (is_promised && h->len)) return 0;
    h->out->no_text = what.is;
    h->out->script = what.script;
    return 1;
}

/* ---- JSON lines ---------------------------------------------------------- */

/* Returns the first line that is not blank; *number counts from 1. */
static const char *first_line(const head *h, size_t *len, int *number)
{
    const char *at = h->bytes, *end = h->bytes + h->len;
    for (*number = 1; at < end; ++*number) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        *len = newline ? (size_t)(newline - at) : (size_t)(end - at);
        if (strspn(at, " \t\r") < *len) return at;
        at += *len + (newline != NULL);
    }
    *len = 0;
    return h->bytes;
}

static exf_code wrong_member(const head *h, const exf_json *object, const char *field, int line)
{
    const exf_json *member = exf_json_get(object, field);
    exf_text present = {0}, place = {0};
    exf_code rc;
    exf_text_appendf(&place, "%s: line %d", h->name, line);
    EXF_TRY(exf_text_end(&place, h->err));
    EXF_TRY(exf_refuse_conversation(object, place.s, h->path, h->model, h->err));
    exf_member_names(object, &present);
    EXF_TRY(exf_text_end(&present, h->err));
    if (member)
        rc = exf_fail(h->err, EXF_MODEL, "%s: line %d: \"%s\" is %s, expected a string; of the members %s, name the text with"
                      " --text-field NAME", h->name, line, field, exf_json_type_name(member), present.s);
    else
        rc = exf_fail(h->err, EXF_MODEL, "%s: line %d has no \"%s\"; of its members %s, name the text with --text-field NAME",
                      h->name, line, field, present.s);
out:
    exf_text_free(&place);
    exf_text_free(&present);
    return rc;
}

/* By exf_line_kind. */
static const struct { exf_source_format format; const char *about; } line_kinds[] = {
    {EXF_SOURCE_JSONL, "JSON lines, a document each; the text is member \"%s\""},
    {EXF_SOURCE_CHAT, "conversations in JSON lines, a document each; the messages are member \"%s\""},
    {EXF_SOURCE_IDS, "token ids in JSON lines, a document each; they are member \"%s\""},
};

/* object NULL: the line is no object, which the reader of the corpus refuses with the reason. */
static exf_code take_jsonl(const head *h, const exf_json *object, int line)
{
    const char *field = h->field ? h->field : "text";
    exf_line_kind kind = !object    ? EXF_LINE_TEXT
                         : h->field ? exf_line_kind_of_field(object, field)
                                    : exf_line_kind_of(object, &field);
    if (kind == EXF_LINE_UNKNOWN)
        return pass_over(h, (exf_foreign){.is = "JSON without a text"}) ? EXF_OK : wrong_member(h, object, field, line);
    h->out->format = line_kinds[kind].format;
    exf_text_appendf(&h->out->field, "%s", field);
    exf_text_appendf(&h->out->about, line_kinds[kind].about, field);
    return EXF_OK;
}

/* Sets *known where the file is, or should be, JSON lines. */
static exf_code try_jsonl(const head *h, int *known)
{
    exf_json *j = NULL;
    exf_err ignored = {.code = EXF_OK};
    size_t len;
    int number;
    const char *line = first_line(h, &len, &number);
    exf_code rc = EXF_OK;
    int is_json = exf_json_parse(&j, line, len, h->name, &ignored) == EXF_OK;
    if (!is_json && ignored.code == EXF_NOSPACE) return exf_fail(h->err, EXF_NOSPACE, "%s", ignored.msg);
    const exf_json *object = is_json && exf_json_type(j) == EXF_JSON_OBJECT ? j : NULL;
    *known = object || ends_with(h, ".jsonl") || ends_with(h, ".ndjson");
    if (*known) rc = take_jsonl(h, object, number);
    else if (ends_with(h, ".json") && !pass_over(h, (exf_foreign){.is = "one JSON document"}))
        rc = exf_fail(h->err, EXF_MODEL,
                      "%s: is one JSON %s, expected an object a line; make lines with: jq -c %s %s > lines.jsonl", h->name,
                      *line == '[' ? "array" : "document", *line == '[' ? "'.[]'" : ".", h->path);
    else if ((ends_with(h, ".csv") || ends_with(h, ".tsv")) && !pass_over(h, (exf_foreign){.is = "a table"}))
        rc = exf_fail(h->err, EXF_MODEL,
                      "%s: is a table, of which header and quotes would be taken for text; make a line of JSON a row with: "
                      "python3 -c 'import csv,json,sys; [print(json.dumps(r)) for r in csv.DictReader(sys.stdin%s)]' < %s > "
                      "lines.jsonl",
                      h->name, ends_with(h, ".tsv") ? ",delimiter=\"\\t\"" : "", h->path);
    exf_json_free(j);
    return rc;
}

/* ---- token ids -------------------------------------------------------------- */

static exf_code take_tokens(const head *h)
{
    static const exf_foreign weights = {.is = "tensors, no token ids"};
    exf_st_file *f = NULL;
    const exf_st_tensor *t = NULL;
    exf_text present = {0};
    exf_code rc;
    size_t n = 0;
    char shape[128];
    h->out->format = EXF_SOURCE_TOKENS;
    if (h->packing != EXF_PLAIN || strcmp(h->path, EXF_STANDARD_INPUT) == 0)
        return exf_fail(h->err, EXF_MODEL, "%s: holds token ids, which are read from a file that is not compressed", h->name);
    EXF_TRY(exf_st_open(&f, h->path, h->err));
    if (!h->found) EXF_TRY(exf_artifact_refuse_export(f, h->err));
    if (h->field) t = exf_st_find(f, h->field);
    for (size_t i = 0; !h->field && i < f->n_tensors; i++) {
        if (!exf_dtype_is_integer(f->tensor[i].view.dtype)) continue;
        t = &f->tensor[i];
        n++;
    }
    if (t && n <= 1) {
        exf_shape_text(shape, sizeof shape, t->view.shape, t->view.rank);
        exf_text_appendf(&h->out->field, "%s", t->view.name);
        exf_text_appendf(&h->out->about, "token ids, a sequence per row of tensor \"%s\" %s", t->view.name, shape);
        goto out;
    }
    if (pass_over(h, weights)) goto out;
    exf_tensor_names(f, &present);
    EXF_TRY(exf_text_end(&present, h->err));
    if (h->field)
        rc = exf_fail(h->err, EXF_MODEL, "%s: has no tensor \"%s\"; its tensors are %s", h->path, h->field, present.s);
    else if (n == 0)
        rc = exf_fail(h->err, EXF_MODEL, "%s: has no integer tensor, which would hold token ids; its tensors are %s", h->path,
                      present.s);
    else
        rc = exf_fail(h->err, EXF_MODEL, "%s: has %zu integer tensors; of its tensors %s, name the token ids with"
                      " --text-field NAME", h->path, n, present.s);
out:
    exf_text_free(&present);
    exf_st_close(f);
    return rc;
}

/* ---- the whole ---------------------------------------------------------------- */

exf_code exf_recognise(exf_recognised *out, const char *path, const char *field, const char *model, int found, exf_err *err)
{
    head begin = {.path = path, .field = field, .model = model, .out = out, .found = found, .err = err}, *h = &begin;
    exf_foreign what;
    exf_text mend = {0};
    int known = 0;
    exf_code rc;
    h->name = strcmp(path, EXF_STANDARD_INPUT) == 0 && !found ? "standard input" : path;
    *out = (exf_recognised){.format = EXF_SOURCE_TEXT};
    EXF_TRY(read_head(h));
    if (!h->len && !pass_over(h, (exf_foreign){.is = "empty"})) EXF_TRY(exf_fail(err, EXF_MODEL, "%s: is empty", h->name));
    if (!out->no_text && exf_foreign_find(&what, h->bytes, h->len) && !pass_over(h, what)) {
        exf_foreign_mend(&what, path, &mend);
        EXF_TRY(exf_text_end(&mend, err));
        EXF_TRY(exf_fail(err, EXF_MODEL, "%s: is %s; %s", h->name, what.is, mend.s));
    }
    if (out->no_text) goto out;
    /* .safetensors has eight bytes of length and a JSON object: no text has a NUL that early */
    if (exf_ends_with(path, ".safetensors") || (h->len > 8 && h->bytes[8] == '{' && memchr(h->bytes, 0, 8))) {
        EXF_TRY(take_tokens(h));
    } else {
        size_t bad = exf_utf8_valid(h->bytes, h->len); /* the last character of a head may be cut */
        if (bad < h->len && !(h->cut && bad + 4 > h->len) && !pass_over(h, (exf_foreign){.is = "no UTF-8"})) {
            (void)exf_fail(err, EXF_MODEL, "%s: is neither UTF-8 text, JSON lines nor .safetensors with token ids: byte 0x%02x at "
                           "offset %zu is no UTF-8", h->name, (unsigned)(unsigned char)h->bytes[bad], bad);
            EXF_TRY(exf_encoding_advise(err, h->bytes, h->len, path));
        }
        if (!out->no_text) EXF_TRY(try_jsonl(h, &known));
        if (!known) exf_text_appendf(&out->about, "plain text, one document");
    }
    if (h->packing != EXF_PLAIN) exf_text_appendf(&out->about, ", %s", exf_packing_name(h->packing));
    EXF_TRY(exf_text_end(&out->field, err));
    rc = exf_text_end(&out->about, err);
out:
    exf_text_free(&mend);
    exf_mem_free(h->bytes);
    return rc;
}

void exf_recognised_free(exf_recognised *r)
{
    exf_text_free(&r->field);
    exf_text_free(&r->about);
}
