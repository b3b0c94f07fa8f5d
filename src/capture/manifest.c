/* manifest.c - reads a data manifest: YAML to the list of sources; see manifest.h. */
#include "capture/manifest.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/registry.h"
#include "base/text.h"
#include "format/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20 }; /* of a file that could be meant as a manifest; YAML's own limit is lower */

static const char *const top_keys[] = {"schema", "sources", NULL};
#define X(name, value, of, fallback, about) name,
static const char *const source_keys[] = {EXF_MANIFEST_SOURCE_KEYS(X) NULL};
static const char *const origin_keys[] = {EXF_MANIFEST_ORIGIN_KEYS(X) NULL};
#undef X
#define X(name, value, of, fallback, about) EXF_FORMATS_##of,
static const unsigned formats_of[] = {EXF_MANIFEST_SOURCE_KEYS(X)}; /* of each source key */
#undef X
#define X(name, fallback, about) name,
static const char *const formats[] = {EXF_MANIFEST_FORMATS(X) NULL}; /* in the order of exf_source_format */
#undef X

const char *exf_source_format_name(exf_source_format f)
{
    return formats[f];
}

int exf_source_is_text(exf_source_format f)
{
    return f != EXF_SOURCE_TOKENS && f != EXF_SOURCE_IDS;
}

/* ---- a section: one map of the manifest ------------------------------------------------------------ */

typedef struct {
    const char *path;
    char name[48]; /* "source 2: ", "source 2: origin: ", or "" for the document */
    const exf_yaml *map;
    exf_err *err;
} section;

/* Returns the index of a word in a NULL-terminated list; -1 if it is not in the list. */
static int find_word(const char *word, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(word, list[i]) == 0) return i;
    return -1;
}

/* Fails, naming the nearest known word or all of them. */
static exf_code refuse_word(const section *s, int line, const char *what, const char *word, const char *const *known)
{
    const char *near = exf_nearest(word, known);
    exf_text all = {0};
    for (size_t i = 0; !near && known[i]; i++) exf_text_appendf(&all, "%s%s", i ? ", " : "", known[i]);
    exf_code rc = exf_text_end(&all, s->err);
    if (rc == EXF_OK)
        rc = exf_fail(s->err, EXF_USAGE, "%s:%d: %sunknown %s \"%.80s\"; %s %s%s%s", s->path, line, s->name, what, word,
                      near ? "did you mean" : "known are", near ? "\"" : "", near ? near : all.s, near ? "\"?" : "");
    exf_text_free(&all);
    return rc;
}

static exf_code refuse_unknown_keys(const section *s, const char *const *known)
{
    for (size_t i = 0; i < s->map->n; i++)
        if (find_word(s->map->key[i], known) < 0) return refuse_word(s, s->map->child[i]->line, "key", s->map->key[i], known);
    return EXF_OK;
}

/* The readers' *out is borrowed from the YAML tree. */
static exf_code read_node(const section *s, const char *key, const exf_yaml *v, const char **out)
{
    if (v->kind != EXF_YAML_SCALAR)
        return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%.80s\" is %s, expected a word", s->path, v->line, s->name, key,
                        exf_yaml_kind_name(v));
    if (v->is_null || !v->text[0])
        return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%.80s\" is empty", s->path, v->line, s->name, key);
    *out = v->text;
    return EXF_OK;
}

/* *out becomes NULL if the key is absent. */
static exf_code read_word(const section *s, const char *key, const char **out)
{
    const exf_yaml *v = exf_yaml_get(s->map, key);
    *out = NULL;
    return v ? read_node(s, key, v, out) : EXF_OK;
}

static exf_code require_word(const section *s, const char *key, const char **out)
{
    exf_code rc = read_word(s, key, out);
    if (rc == EXF_OK && !*out) rc = exf_fail(s->err, EXF_USAGE, "%s:%d: %sno \"%s\" is given", s->path, s->map->line, s->name, key);
    return rc;
}

/* *out becomes the map "where", or NULL if it is absent. */
static exf_code read_where_map(const section *s, const char *example, const exf_yaml **out)
{
    const exf_yaml *where = *out = exf_yaml_get(s->map, "where");
    if (!where || (where->kind == EXF_YAML_MAP && where->n > 0)) return EXF_OK;
    return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"where\" is %s, expected a map such as %s", s->path, where->line, s->name,
                    where->kind == EXF_YAML_MAP ? "empty" : exf_yaml_kind_name(where), example);
}

/* ---- origin ------------------------------------------------------------------------------------------ */

static exf_code check_count(const section *s, const char *key, int64_t least)
{
    const char *text;
    int64_t n;
    exf_code rc = read_word(s, key, &text);
    if (rc != EXF_OK || !text || (exf_parse_i64(text, &n) && n >= least)) return rc;
    return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%s\" is \"%.80s\", expected a whole number from %d", s->path,
                    exf_yaml_get(s->map, key)->line, s->name, key, text, (int)least);
}

/* Checks a source's "origin", the data set from which scripts/materialize_manifest.py makes its file; it is not kept. */
static exf_code check_origin(const section *source)
{
    exf_code rc;
    const char *messages, *text, *word;
    const exf_yaml *where;
    section s = *source;
    s.map = exf_yaml_get(source->map, "origin");
    if (!s.map) return EXF_OK;
    if (s.map->kind != EXF_YAML_MAP)
        return exf_fail(s.err, EXF_USAGE, "%s:%d: %s\"origin\" is %s, expected a map such as {dataset: NAME, split: train}", s.path,
                        s.map->line, s.name, exf_yaml_kind_name(s.map));
    snprintf(s.name, sizeof s.name, "%.36sorigin: ", source->name);
    EXF_TRY(refuse_unknown_keys(&s, origin_keys));
    EXF_TRY(require_word(&s, "dataset", &word));
    EXF_TRY(require_word(&s, "split", &word));
    EXF_TRY(read_word(&s, "revision", &word));
    EXF_TRY(read_word(&s, "subset", &word));
    EXF_TRY(read_where_map(&s, "{source: [a, b]}", &where));
    for (size_t i = 0; where && i < where->n; i++) { /* a column's value is a word, or a list of words of which any will do */
        const exf_yaml *v = where->child[i];
        if (v->kind != EXF_YAML_LIST) EXF_TRY(read_node(&s, where->key[i], v, &word));
        else if (v->n == 0)
            return exf_fail(s.err, EXF_USAGE, "%s:%d: %s\"%.80s\" is an empty list", s.path, v->line, s.name, where->key[i]);
        for (size_t k = 0; v->kind == EXF_YAML_LIST && k < v->n; k++) EXF_TRY(read_node(&s, where->key[i], v->child[k], &word));
    }
    EXF_TRY(check_count(&s, "skip", 0));
    EXF_TRY(check_count(&s, "take", 1));
    EXF_TRY(read_word(&s, "messages", &messages));
    EXF_TRY(read_word(&s, "text", &text));
    if (messages && text)
        rc = exf_fail(s.err, EXF_USAGE, "%s:%d: %s\"messages\" and \"text\" are both given; a document is made of one of them",
                      s.path, s.map->line, s.name);
out:
    return rc;
}

/* ---- sources ----------------------------------------------------------------------------------------- */

static exf_code refuse_format(const section *s, int line, size_t key, exf_source_format is, exf_err *err)
{
    exf_text names = {0};
    for (int f = 0; f < EXF_SOURCE_FORMATS; f++)
        if (formats_of[key] >> f & 1) exf_text_appendf(&names, "%s%s", names.len ? " or " : "", formats[f]);
    exf_code rc = exf_text_end(&names, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_USAGE, "%s:%d: %s\"%s\" belongs to format %s, this source is %s", s->path, line, s->name,
                      source_keys[key], names.s, formats[is]);
    exf_text_free(&names);
    return rc;
}

static exf_code read_names(const section *s, size_t number, exf_manifest_source *src)
{
    exf_code rc;
    char *dir = NULL;
    char numbered[32];
    const char *path, *field, *tensor, *domain;
    EXF_TRY(require_word(s, "path", &path));
    if (exf_path_has_tilde(path))
        return exf_fail(s->err, EXF_USAGE, "%s: source %zu: \"path\" is \"%.80s\": only a shell knows where ~ is; write the whole "
                        "path", s->path, number, path);
    EXF_TRY(read_word(s, "field", &field));
    EXF_TRY(read_word(s, "tensor", &tensor));
    EXF_TRY(read_word(s, "domain", &domain));
    for (const char *c = domain; c && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return exf_fail(s->err, EXF_USAGE, "%s: source %zu: \"domain\" holds a control character", s->path, number);
    exf_text label = {0};
    exf_text_appendf(&label, "%s: source %zu (%s%s%s%s)", s->path, number,
                     strcmp(path, EXF_STANDARD_INPUT) == 0 ? "standard input" : path, domain ? ", domain \"" : "",
                     domain ? domain : "",
                     domain ? "\"" : "");
    src->label = label.s;
    EXF_TRY(exf_text_end(&label, s->err));
    EXF_TRY(exf_mem_strdup(&src->path, path, "path of a source", s->err));
    EXF_TRY(exf_path_dir(&dir, s->path, s->err));
    if (strcmp(path, EXF_STANDARD_INPUT) == 0) EXF_TRY(exf_mem_strdup(&src->file, path, "path of a source", s->err));
    else EXF_TRY(exf_path_join(&src->file, dir, path, s->err));
    const char *usual = src->format == EXF_SOURCE_CHAT ? "messages" : src->format == EXF_SOURCE_IDS ? "input_ids" : "text";
    EXF_TRY(exf_mem_strdup(&src->field, field ? field : usual, "name of a field", s->err));
    if (tensor) EXF_TRY(exf_mem_strdup(&src->tensor, tensor, "name of a tensor", s->err));
    snprintf(numbered, sizeof numbered, "source-%zu", number);
    EXF_TRY(exf_mem_strdup(&src->domain, domain ? domain : numbered, "name of a domain", s->err));
out:
    exf_mem_free(dir);
    return rc;
}

static exf_code read_where(const section *s, exf_manifest_source *src)
{
    exf_code rc = EXF_OK;
    const exf_yaml *where;
    EXF_TRY(read_where_map(s, "{domain: c}", &where));
    if (!where) goto out;
    EXF_TRY(exf_mem_new(&src->where_key, where->n, sizeof *src->where_key, "filter of a source", s->err));
    EXF_TRY(exf_mem_new(&src->where_value, where->n, sizeof *src->where_value, "filter of a source", s->err));
    src->n_where = where->n;
    for (size_t i = 0; i < where->n; i++) {
        const char *value = NULL;
        EXF_TRY(read_node(s, where->key[i], where->child[i], &value));
        EXF_TRY(exf_mem_strdup(&src->where_key[i], where->key[i], "filter of a source", s->err));
        EXF_TRY(exf_mem_strdup(&src->where_value[i], value, "filter of a source", s->err));
    }
out:
    return rc;
}

static exf_code read_source(const exf_manifest *m, size_t i, const exf_yaml *node, exf_err *err)
{
    exf_code rc;
    const char *format, *sequences, *sha256;
    exf_manifest_source *src = &m->source[i];
    section s = {.path = m->path, .map = node, .err = err};
    snprintf(s.name, sizeof s.name, "source %zu: ", i + 1);
    if (node->kind != EXF_YAML_MAP)
        return exf_fail(err, EXF_USAGE, "%s:%d: %sis %s, expected a map", m->path, node->line, s.name, exf_yaml_kind_name(node));
    EXF_TRY(refuse_unknown_keys(&s, source_keys));
    EXF_TRY(require_word(&s, "format", &format));
    int place = find_word(format, formats);
    if (place < 0) return refuse_word(&s, exf_yaml_get(node, "format")->line, "format", format, formats);
    src->format = (exf_source_format)place;
    for (size_t k = 0; source_keys[k]; k++) {
        const exf_yaml *v = exf_yaml_get(node, source_keys[k]);
        if (v && !(formats_of[k] >> src->format & 1)) return refuse_format(&s, v->line, k, src->format, err);
    }
    EXF_TRY(read_names(&s, i + 1, src));
    EXF_TRY(read_where(&s, src));
    EXF_TRY(read_word(&s, "sequences", &sequences));
    if (sequences && (!exf_parse_i64(sequences, &src->sequences) || src->sequences < 1 || src->sequences > EXF_MAX_SEQUENCES))
        return exf_fail(err, EXF_USAGE, "%s:%d: %s\"sequences\" is \"%.80s\", expected a whole number from 1 to %d", s.path,
                        exf_yaml_get(node, "sequences")->line, s.name, sequences, EXF_MAX_SEQUENCES);
    EXF_TRY(read_word(&s, "sha256", &sha256));
    if (sha256 && strcmp(sha256, "unpinned") != 0) {
        if (strlen(sha256) != EXF_SHA256_HEX - 1 || strspn(sha256, "0123456789abcdefABCDEF") != EXF_SHA256_HEX - 1)
            return exf_fail(err, EXF_USAGE, "%s:%d: %s\"sha256\" is \"%.80s\", expected 64 hexadecimal digits or unpinned", s.path,
                            exf_yaml_get(node, "sha256")->line, s.name, sha256);
        for (const char *c = sha256; *c; c++) src->sha256[c - sha256] = (char)(*c >= 'A' && *c <= 'F' ? *c - 'A' + 'a' : *c);
    }
    EXF_TRY(check_origin(&s));
out:
    return rc;
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

/* Checks the schema first: any other complaint about a manifest of another kind would mislead. */
static exf_code read_document(exf_manifest *m, const exf_yaml *root, exf_err *err)
{
    exf_code rc;
    const char *schema;
    section s = {.path = m->path, .map = root, .err = err};
    if (root->kind != EXF_YAML_MAP)
        return exf_fail(err, EXF_USAGE, "%s:%d: is %s, expected a map with \"schema: " EXF_MANIFEST_SCHEMA "\"", m->path,
                        root->line, exf_yaml_kind_name(root));
    EXF_TRY(require_word(&s, "schema", &schema));
    if (strcmp(schema, EXF_MANIFEST_SCHEMA) != 0)
        return exf_fail(err, EXF_USAGE, "%s:%d: schema \"%.80s\", expected \"" EXF_MANIFEST_SCHEMA "\"", m->path,
                        exf_yaml_get(root, "schema")->line, schema);
    EXF_TRY(refuse_unknown_keys(&s, top_keys));
    const exf_yaml *list = exf_yaml_get(root, "sources");
    if (!list || list->kind != EXF_YAML_LIST || list->n == 0)
        return exf_fail(err, EXF_USAGE, "%s:%d: \"sources\" is %s, expected a list of at least one source", m->path,
                        list ? list->line : root->line, list && list->kind == EXF_YAML_LIST ? "empty" : exf_yaml_kind_name(list));
    EXF_TRY(exf_mem_new(&m->source, list->n, sizeof *m->source, "sources of a manifest", err));
    m->n = list->n;
    for (size_t i = 0; i < m->n; i++) EXF_TRY(read_source(m, i, list->child[i], err));
out:
    return rc;
}

/* Parses the bytes that are hashed, so that provenance names what was read. */
exf_code exf_manifest_parse(exf_manifest **out, const char *bytes, size_t len, const char *path, exf_err *err)
{
    exf_code rc;
    exf_manifest *m = NULL;
    exf_yaml *root = NULL;
    *out = NULL;
    EXF_TRY(exf_mem_new(&m, 1, sizeof *m, "manifest", err));
    EXF_TRY(exf_mem_strdup(&m->path, path, "path of a manifest", err));
    EXF_TRY(exf_hash_bytes(bytes, len, m->sha256, err));
    EXF_TRY(exf_yaml_parse(&root, bytes, len, path, err));
    EXF_TRY(read_document(m, root, err));
out:
    exf_yaml_free(root);
    if (rc != EXF_OK) exf_manifest_free(m);
    else *out = m;
    return rc;
}

exf_code exf_manifest_load(exf_manifest **out, const char *path, exf_err *err)
{
    char *bytes = NULL;
    size_t len;
    *out = NULL;
    exf_code rc = exf_file_slurp(path, MAX_BYTES, &bytes, &len, err);
    if (rc == EXF_OK) rc = exf_manifest_parse(out, bytes, len, path, err);
    exf_mem_free(bytes);
    return rc;
}

static void free_source(exf_manifest_source *s)
{
    for (size_t i = 0; i < s->n_where; i++) {
        exf_mem_free(s->where_key[i]);
        exf_mem_free(s->where_value[i]);
    }
    exf_mem_free(s->where_key);
    exf_mem_free(s->where_value);
    exf_mem_free(s->label);
    exf_mem_free(s->path);
    exf_mem_free(s->file);
    exf_mem_free(s->field);
    exf_mem_free(s->tensor);
    exf_mem_free(s->domain);
    exf_mem_free(s->state);
}

void exf_manifest_free(exf_manifest *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) free_source(&m->source[i]);
    exf_mem_free(m->source);
    exf_mem_free(m->path);
    exf_mem_free(m);
}

/* ---- shares ------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t remainder;
    size_t source;
} claim;

static int larger_then_earlier(const void *a, const void *b)
{
    const claim *x = a, *y = b;
    if (x->remainder != y->remainder) return x->remainder < y->remainder ? 1 : -1;
    return x->source < y->source ? -1 : 1;
}

/* Shares the total out by the method of the largest remainder.  EXF_MAX_SEQUENCES keeps the products inside an int64. */
static exf_code share_in_proportion(const exf_manifest *m, int64_t total, int64_t sum, int64_t *want, exf_err *err)
{
    claim *claims = NULL;
    size_t n = 0;
    int64_t left = total;
    exf_code rc = exf_mem_new(&claims, m->n, sizeof *claims, "shares of the sources", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < m->n; i++) {
        if (!m->source[i].sequences) continue;
        int64_t product = total * m->source[i].sequences;
        want[i] = product / sum;
        left -= want[i];
        claims[n++] = (claim){product % sum, i};
    }
    qsort(claims, n, sizeof *claims, larger_then_earlier);
    for (size_t k = 0; left > 0; k++, left--) want[claims[k].source]++; /* left < n: each remainder is below 1 */
    exf_mem_free(claims);
    return EXF_OK;
}

exf_code exf_manifest_shares(const exf_manifest *m, int64_t total, int64_t *want, exf_err *err)
{
    int64_t sum = 0, silent = 0;
    for (size_t i = 0; i < m->n; i++) {
        want[i] = m->source[i].sequences ? m->source[i].sequences : -1;
        sum += m->source[i].sequences;
        silent += m->source[i].sequences == 0;
    }
    if (total == 0) return EXF_OK;
    int64_t rest = total > sum ? total - sum : 0, more = silent ? rest % silent : 0;
    for (size_t i = 0; i < m->n; i++) /* sources that ask for nothing share the rest evenly */
        if (!m->source[i].sequences) want[i] = rest / silent + (more-- > 0);
    if (total < sum || (total > sum && !silent)) return share_in_proportion(m, total, sum, want, err);
    return EXF_OK;
}
