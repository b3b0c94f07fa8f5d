/* yaml.c - libyaml's events into a tree, refusing what no recipe needs; and scalars, written so that every reader takes them for
 * the text they are; see yaml.h. */
#include "format/yaml.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

enum { MAX_DEPTH = 32 };

typedef struct {
    yaml_parser_t parser;
    yaml_event_t event; /* the one being looked at; next_event() releases it */
    const char *bytes;
    size_t len;
    const char *where;
    exf_err *err;
} reader;

/* A key as it was met; its line is needed only until the map is complete. */
typedef struct {
    const char *key;
    int line;
} met;

static int line_of_offset(const char *bytes, size_t len, size_t offset)
{
    int line = 1;
    for (size_t i = 0; i < offset && i < len; i++) line += bytes[i] == '\n';
    return line;
}

static int line_of_event(const reader *r)
{
    return (int)r->event.start_mark.line + 1;
}

static exf_code syntax_error(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) return exf_fail(r->err, EXF_NOSPACE, "%s: out of memory in the YAML parser", r->where);
    const char *problem = p->problem ? p->problem : "unknown error";
    if (p->error == YAML_READER_ERROR) /* here libyaml sets an offset and no line */
        return exf_fail(r->err, EXF_USAGE, "%s:%d: not valid YAML: %s", r->where,
                        line_of_offset(r->bytes, r->len, p->problem_offset), problem);
    int line = (int)p->problem_mark.line + 1;
    if (!p->context) return exf_fail(r->err, EXF_USAGE, "%s:%d: not valid YAML: %s", r->where, line, problem);
    return exf_fail(r->err, EXF_USAGE, "%s:%d: not valid YAML: %s (%s that starts on line %d)", r->where, line, problem,
                    p->context, (int)p->context_mark.line + 1);
}

static exf_code next_event(reader *r)
{
    yaml_event_delete(&r->event);
    return yaml_parser_parse(&r->parser, &r->event) ? EXF_OK : syntax_error(r);
}

/* Anchors, aliases and tags: the parts of YAML that make a document mean more
 * than what stands on the line. */
static exf_code refuse_properties(const reader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_ALIAS_EVENT)
        return exf_fail(r->err, EXF_USAGE, "%s:%d: alias *%.80s: aliases are not accepted, write the value out", r->where,
                        line_of_event(r), (const char *)e->data.alias.anchor);
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    }
    if (anchor)
        return exf_fail(r->err, EXF_USAGE, "%s:%d: anchor &%.80s: anchors are not accepted", r->where, line_of_event(r),
                        (const char *)anchor);
    if (tag)
        return exf_fail(r->err, EXF_USAGE, "%s:%d: tag %.80s: tags are not accepted", r->where, line_of_event(r),
                        (const char *)tag);
    return EXF_OK;
}

/* The event's characters; an escaped "\0" would make the C string end early. */
static exf_code copy_scalar(const reader *r, char **out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    size_t len = r->event.data.scalar.length;
    *out = NULL;
    if (memchr(text, 0, len))
        return exf_fail(r->err, EXF_USAGE, "%s:%d: a NUL character inside \"%.80s\"", r->where, line_of_event(r), text);
    return exf_mem_dup(out, text, len, "YAML scalar", r->err);
}

/* YAML's core schema; quoting makes any of these words a string. */
static int event_is_null(const yaml_event_t *e)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (e->type != YAML_SCALAR_EVENT || e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp((const char *)e->data.scalar.value, words[i]) == 0) return 1;
    return 0;
}

static exf_code read_key(reader *r, char **out)
{
    const yaml_event_t *e = &r->event;
    *out = NULL;
    exf_code rc = refuse_properties(r);
    if (rc != EXF_OK) return rc;
    const char *wrong = e->type == YAML_SEQUENCE_START_EVENT  ? "a list"
                        : e->type == YAML_MAPPING_START_EVENT ? "a map"
                        : event_is_null(e) || e->data.scalar.length == 0 ? "null or empty"
                        : e->data.scalar.style == YAML_LITERAL_SCALAR_STYLE || e->data.scalar.style == YAML_FOLDED_SCALAR_STYLE
                            ? "a block of text"
                            : NULL;
    if (wrong) return exf_fail(r->err, EXF_USAGE, "%s:%d: a key is %s, expected a word", r->where, line_of_event(r), wrong);
    if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && strcmp((const char *)e->data.scalar.value, "<<") == 0)
        return exf_fail(r->err, EXF_USAGE, "%s:%d: merge key <<: not accepted, write the keys out", r->where, line_of_event(r));
    return copy_scalar(r, out);
}

static int by_key_then_line(const void *a, const void *b)
{
    const met *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : (x->line > y->line) - (x->line < y->line);
}

static exf_code build_node(reader *r, int depth, exf_yaml **out);

static exf_code build_list(reader *r, int depth, exf_yaml *node)
{
    exf_code rc;
    size_t cap = 0;
    node->kind = EXF_YAML_LIST;
    for (;;) {
        EXF_TRY(next_event(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) break;
        EXF_TRY(exf_mem_grow(&node->child, &cap, node->n + 1, sizeof *node->child, "YAML list", r->err));
        EXF_TRY(build_node(r, depth + 1, &node->child[node->n++]));
    }
out:
    return rc;
}

static exf_code build_map(reader *r, int depth, exf_yaml *node)
{
    exf_code rc;
    size_t child_cap = 0, key_cap = 0, met_cap = 0;
    met *keys = NULL;
    node->kind = EXF_YAML_MAP;
    for (;;) {
        EXF_TRY(next_event(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) break;
        size_t n = node->n;
        EXF_TRY(exf_mem_grow(&node->child, &child_cap, n + 1, sizeof *node->child, "YAML map", r->err));
        EXF_TRY(exf_mem_grow(&node->key, &key_cap, n + 1, sizeof *node->key, "YAML map", r->err));
        EXF_TRY(exf_mem_grow(&keys, &met_cap, n + 1, sizeof *keys, "YAML map", r->err));
        EXF_TRY(read_key(r, &node->key[n]));
        keys[n] = (met){node->key[n], line_of_event(r)};
        node->n++;
        EXF_TRY(next_event(r));
        EXF_TRY(build_node(r, depth + 1, &node->child[n]));
    }
    /* Sorted, because a map of 1 MiB has too many keys for comparing all pairs. */
    if (node->n > 1) qsort(keys, node->n, sizeof *keys, by_key_then_line);
    for (size_t i = 1; i < node->n; i++)
        if (strcmp(keys[i - 1].key, keys[i].key) == 0) {
            rc = exf_fail(r->err, EXF_USAGE, "%s:%d: key \"%.80s\" is given twice, first on line %d", r->where, keys[i].line,
                          keys[i].key, keys[i - 1].line);
            break;
        }
out:
    exf_mem_free(keys);
    return rc;
}

/* The node that the current event starts, up to the event that ends it. */
static exf_code build_node(reader *r, int depth, exf_yaml **out)
{
    exf_code rc;
    exf_yaml *node = NULL;
    *out = NULL;
    EXF_TRY(refuse_properties(r));
    EXF_TRY(exf_mem_new(&node, 1, sizeof *node, "YAML node", r->err));
    node->line = line_of_event(r);
    node->at = r->event.start_mark.index;
    if (r->event.type == YAML_SCALAR_EVENT) {
        node->kind = EXF_YAML_SCALAR;
        node->is_null = event_is_null(&r->event);
        EXF_TRY(copy_scalar(r, &node->text));
    } else if (depth > MAX_DEPTH) {
        rc = exf_fail(r->err, EXF_USAGE, "%s:%d: lists and maps nested deeper than %d", r->where, node->line, MAX_DEPTH);
    } else if (r->event.type == YAML_SEQUENCE_START_EVENT) {
        rc = build_list(r, depth, node);
    } else {
        rc = build_map(r, depth, node);
    }
out:
    if (rc != EXF_OK) exf_yaml_free(node);
    else *out = node;
    return rc;
}

static exf_code read_document(reader *r, exf_yaml **out)
{
    exf_code rc;
    EXF_TRY(next_event(r)); /* the start of the stream */
    EXF_TRY(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT)
        return exf_fail(r->err, EXF_USAGE, "%s:1: the document is empty", r->where);
    if (r->event.data.document_start.tag_directives.start != r->event.data.document_start.tag_directives.end)
        return exf_fail(r->err, EXF_USAGE, "%s:%d: %%TAG directive: tags are not accepted", r->where, line_of_event(r));
    EXF_TRY(next_event(r));
    EXF_TRY(build_node(r, 1, out));
    if ((*out)->is_null) return exf_fail(r->err, EXF_USAGE, "%s:%d: the document is empty", r->where, (*out)->line);
    EXF_TRY(next_event(r)); /* the end of the document */
    EXF_TRY(next_event(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        rc = exf_fail(r->err, EXF_USAGE, "%s:%d: a second document starts, expected one document", r->where, line_of_event(r));
out:
    return rc;
}

static exf_code refuse_size(uint64_t len, const char *where, exf_err *err)
{
    if (len <= EXF_YAML_MOST_BYTES) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "%s: %llu bytes, at most %d are accepted", where, (unsigned long long)len, EXF_YAML_MOST_BYTES);
}

exf_code exf_yaml_parse(exf_yaml **out, const char *bytes, size_t len, const char *where, exf_err *err)
{
    *out = NULL;
    reader r = {.bytes = len ? bytes : "", .len = len, .where = where, .err = err};
    exf_code rc = refuse_size(len, where, err);
    if (rc != EXF_OK) return rc;
    /* libyaml takes a NUL for the end of its input and guesses encodings. */
    size_t bad = exf_utf8_valid(r.bytes, len);
    if (bad < len)
        return exf_fail(err, EXF_USAGE, "%s:%d: byte 0x%02x is not valid UTF-8", where, line_of_offset(bytes, len, bad),
                        (unsigned)(unsigned char)bytes[bad]);
    const char *nul = memchr(r.bytes, 0, len);
    if (nul)
        return exf_fail(err, EXF_USAGE, "%s:%d: a NUL character", where, line_of_offset(bytes, len, (size_t)(nul - r.bytes)));
    if (!yaml_parser_initialize(&r.parser)) return exf_fail(err, EXF_NOSPACE, "%s: out of memory for the YAML parser", where);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)r.bytes, len);
    rc = read_document(&r, out);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (rc != EXF_OK) {
        exf_yaml_free(*out);
        *out = NULL;
    }
    return rc;
}

/* Not exf_file_slurp(): the size is the user's mistake, not a corrupt file. */
exf_code exf_yaml_load(exf_yaml **out, const char *path, exf_err *err)
{
    exf_code rc;
    exf_file *f = NULL;
    char *bytes = NULL;
    *out = NULL;
    EXF_TRY(exf_file_open(&f, path, err));
    EXF_TRY(refuse_size(exf_file_size(f), path, err));
    size_t len = (size_t)exf_file_size(f);
    EXF_TRY(exf_mem_new(&bytes, len, 1, path, err));
    EXF_TRY(exf_file_read(f, 0, bytes, len, err));
    rc = exf_yaml_parse(out, bytes, len, path, err);
out:
    exf_mem_free(bytes);
    exf_file_close(f);
    return rc;
}

void exf_yaml_free(exf_yaml *root)
{
    if (!root) return;
    for (size_t i = 0; i < root->n; i++) {
        exf_yaml_free(root->child[i]);
        if (root->key) exf_mem_free(root->key[i]);
    }
    exf_mem_free(root->child);
    exf_mem_free(root->key);
    exf_mem_free(root->text);
    exf_mem_free(root);
}

const exf_yaml *exf_yaml_get(const exf_yaml *map, const char *key)
{
    if (!map || map->kind != EXF_YAML_MAP) return NULL;
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->key[i], key) == 0) return map->child[i];
    return NULL;
}

const char *exf_yaml_kind_name(const exf_yaml *node)
{
    static const char *const name[] = {"a scalar", "a list", "a map"};
    return node ? name[node->kind] : "missing";
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Returns the length of the character at s if it would end or fold a line inside quotes, or may stand in no YAML file;
 * 0 for any other.  *escape is its name in double quotes, NULL where that is \x and the last byte. */
static size_t breaks_line(const char *s, const char **escape)
{
    static const struct { const char *bytes, *escape; } breaks[] = {{"\xc2\x85", "\\N"}, {"\xe2\x80\xa8", "\\L"},
                                                                    {"\xe2\x80\xa9", "\\P"},
                                                                    {"\xef\xbf\xbe", "\\uFFFE"}, {"\xef\xbf\xbf", "\\uFFFF"}};
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        *escape = breaks[i].escape;
        if (strncmp(s, breaks[i].bytes, strlen(breaks[i].bytes)) == 0) return strlen(breaks[i].bytes);
    }
    *escape = NULL;
    if ((unsigned char)*s < ' ' || *s == 0x7f) return *s != 0;
    return (unsigned char)s[0] == 0xc2 && (unsigned char)s[1] < 0xa0 ? 2 : 0;
}

/* Appends s in double quotes, in which everything can be spelled. */
static void append_escaped(exf_text *out, const char *s)
{
    const char *escape;
    exf_text_append(out, "\"", 1);
    for (size_t n; *s; s += n ? n : 1) {
        n = breaks_line(s, &escape);
        if (!n)
            exf_text_appendf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
        else if (escape)
            exf_text_appendf(out, "%s", escape);
        else
            exf_text_appendf(out, "\\x%02X", (unsigned)(unsigned char)s[n - 1]);
    }
    exf_text_append(out, "\"", 1);
}

static void append_quoted(exf_text *out, const char *s)
{
    const char *escape;
    for (const char *p = s; *p; p++)
        if (breaks_line(p, &escape)) {
            append_escaped(out, s);
            return;
        }
    exf_text_append(out, "'", 1);
    for (; *s; s++) exf_text_appendf(out, *s == '\'' ? "''" : "%c", *s);
    exf_text_append(out, "'", 1);
}

/* ---- what stands without quotes ------------------------------------------------------------ */

/* Returns 1 for null and for truths in YAML 1.1 or 1.2, in any mixture of cases. */
static int is_keyword(const char *s)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(s, words[i]) == 0) return 1;
    return 0;
}

/* Returns 1 for 1999-12-31 and 1999-1-1, alone or with a time of day after them. */
static int is_date(const char *s)
{
    static const char digits[] = "0123456789";
    size_t month, day;
    if (strspn(s, digits) != 4 || s[4] != '-') return 0;
    month = strspn(s + 5, digits);
    if (month < 1 || month > 2 || s[5 + month] != '-') return 0;
    day = strspn(s + 6 + month, digits);
    const char *rest = s + 6 + month + day;
    return day >= 1 && day <= 2 && (!*rest || ((*rest == 't' || *rest == 'T') && rest[1] >= '0' && rest[1] <= '9'));
}

/* Returns 1 for what YAML 1.1 or 1.2 could take for a number: decimal with "_", point and exponent, 0x, 0o, 0b, infinity, NaN. */
static int is_number(const char *s)
{
    static const struct { char letter; const char *digits; } bases[] = {
        {'x', "0123456789abcdefABCDEF_"}, {'X', "0123456789abcdefABCDEF_"}, {'o', "01234567_"}, {'O', "01234567_"},
        {'b', "01_"}, {'B', "01_"}};
    if (*s == '+' || *s == '-') s++;
    if (strcasecmp(s, ".inf") == 0 || strcasecmp(s, ".nan") == 0) return 1;
    for (size_t i = 0; i < sizeof bases / sizeof *bases && *s == '0'; i++)
        if (s[1] == bases[i].letter && s[2]) return strspn(s + 2, bases[i].digits) == strlen(s + 2);
    size_t digits = strspn(s, "0123456789_.");
    if (*s == '_' || strcspn(s, "0123456789") >= digits) return 0;
    s += digits;
    if (*s != 'e' && *s != 'E') return !*s;
    s += 1 + (s[1] == '+' || s[1] == '-');
    return *s && strspn(s, "0123456789_") == strlen(s);
}

exf_code exf_yaml_add_scalar(exf_text *out, const char *s, exf_err *err)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-";
    if (s[exf_utf8_valid(s, strlen(s))])
        return exf_fail(err, EXF_USAGE, "the name %s is not valid UTF-8, which a file of YAML cannot hold", s);
    /* Nothing that is a sign of YAML anywhere, and no marker of dots and dashes; . and .. are paths. */
    int is_word = (strspn(s, plain) == strlen(s) && strspn(s, ".-") < strlen(s)) || strcmp(s, ".") == 0 || strcmp(s, "..") == 0;
    if (is_word && !is_keyword(s) && !is_date(s) && !is_number(s))
        exf_text_append(out, s, strlen(s));
    else
        append_quoted(out, s);
    return exf_text_end(out, err);
}

exf_code exf_yaml_add_value(exf_text *out, const char *s, exf_err *err)
{
    if (!is_number(s) && strcmp(s, "true") != 0 && strcmp(s, "false") != 0) return exf_yaml_add_scalar(out, s, err);
    exf_text_append(out, s, strlen(s));
    return exf_text_end(out, err);
}
