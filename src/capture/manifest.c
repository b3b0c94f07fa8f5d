/* manifest.c - from YAML to the list of sources, and their checksums; see manifest.h. */
#include "capture/manifest.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "capture/manifest_internal.h"
#include "capture/manifest_keys.h"

#include <stdio.h>
#include <string.h>

#define SCHEMA "exfold-manifest/1"

enum { MAX_BYTES = 64 << 20 }; /* of a file that could be meant as a manifest; YAML's own limit is lower */

static const char *const top_keys[] = {"schema", "sources", NULL};
#define X(name, fallback, about) name,
static const char *const source_keys[] = {EXF_MANIFEST_SOURCE_KEYS(X) NULL};
static const char *const formats[] = {EXF_MANIFEST_FORMATS(X) NULL}; /* in the order of exf_source_format */
#undef X

const char *exf_source_format_name(exf_source_format f)
{
    return formats[f];
}

static exf_code read_format(const exf_section *s, exf_manifest_source *src)
{
    const char *name;
    exf_code rc = exf_section_required(s, "format", &name);
    if (rc != EXF_OK) return rc;
    int i = exf_section_index(name, formats);
    if (i < 0) return exf_section_unknown(s, exf_yaml_get(s->map, "format")->line, "format", name, formats);
    src->format = (exf_source_format)i;
    return EXF_OK;
}

/* A key that the source's format has no use for would be ignored silently. */
static exf_code refuse_misplaced(const exf_section *s, const exf_manifest_source *src)
{
    static const struct { const char *key; exf_source_format format; } only[] = {
        {"field", EXF_SOURCE_JSONL}, {"where", EXF_SOURCE_JSONL}, {"origin", EXF_SOURCE_JSONL}, {"tensor", EXF_SOURCE_TOKENS}};
    for (size_t i = 0; i < sizeof only / sizeof only[0]; i++) {
        const exf_yaml *v = exf_yaml_get(s->map, only[i].key);
        if (v && src->format != only[i].format)
            return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%s\" belongs to format %s, this source is %s", s->path, v->line, s->name,
                            only[i].key, formats[only[i].format], formats[src->format]);
    }
    return EXF_OK;
}

static exf_code read_names(const exf_section *s, size_t number, exf_manifest_source *src)
{
    exf_code rc;
    char *dir = NULL;
    char numbered[32];
    const char *path, *field, *tensor, *domain;
    EXF_TRY(exf_section_required(s, "path", &path));
    EXF_TRY(exf_section_word(s, "field", &field));
    EXF_TRY(exf_section_word(s, "tensor", &tensor));
    EXF_TRY(exf_section_word(s, "domain", &domain));
    for (const char *c = domain; c && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return exf_fail(s->err, EXF_USAGE, "%s: source %zu: \"domain\" holds a control character", s->path, number);
    exf_text label = {0};
    rc = exf_text_addf(&label, s->err, "%s: source %zu (%s%s%s%s)", s->path, number, path, domain ? ", domain \"" : "",
                       domain ? domain : "", domain ? "\"" : "");
    src->label = label.s;
    if (rc != EXF_OK) goto out;
    EXF_TRY(exf_mem_strdup(&src->path, path, "path of a source", s->err));
    EXF_TRY(exf_path_dir(&dir, s->path, s->err));
    EXF_TRY(exf_path_join(&src->file, dir, path, s->err));
    EXF_TRY(exf_mem_strdup(&src->field, field ? field : "text", "name of a field", s->err));
    if (tensor) EXF_TRY(exf_mem_strdup(&src->tensor, tensor, "name of a tensor", s->err));
    snprintf(numbered, sizeof numbered, "source-%zu", number);
    EXF_TRY(exf_mem_strdup(&src->domain, domain ? domain : numbered, "name of a domain", s->err));
out:
    exf_mem_free(dir);
    return rc;
}

static exf_code read_where(const exf_section *s, exf_manifest_source *src)
{
    exf_code rc = EXF_OK;
    const exf_yaml *where = exf_yaml_get(s->map, "where");
    if (!where) return EXF_OK;
    if (where->kind != EXF_YAML_MAP || where->n == 0)
        return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"where\" is %s, expected a map such as {domain: c}", s->path, where->line,
                        s->name, where->kind == EXF_YAML_MAP ? "empty" : exf_yaml_kind_name(where));
    EXF_TRY(exf_mem_new(&src->where_key, where->n, sizeof *src->where_key, "filter of a source", s->err));
    EXF_TRY(exf_mem_new(&src->where_value, where->n, sizeof *src->where_value, "filter of a source", s->err));
    src->n_where = where->n;
    for (size_t i = 0; i < where->n; i++) {
        const char *value = NULL;
        EXF_TRY(exf_section_word_of(s, where->key[i], where->child[i], &value));
        EXF_TRY(exf_mem_strdup(&src->where_key[i], where->key[i], "filter of a source", s->err));
        EXF_TRY(exf_mem_strdup(&src->where_value[i], value, "filter of a source", s->err));
    }
out:
    return rc;
}

static exf_code read_sequences(const exf_section *s, exf_manifest_source *src)
{
    const char *text;
    exf_code rc = exf_section_word(s, "sequences", &text);
    if (rc != EXF_OK || !text) return rc;
    if (exf_parse_i64(text, &src->sequences) && src->sequences >= 1 && src->sequences <= EXF_MAX_SEQUENCES) return EXF_OK;
    return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"sequences\" is \"%.80s\", expected a whole number from 1 to %d", s->path,
                    exf_yaml_get(s->map, "sequences")->line, s->name, text, EXF_MAX_SEQUENCES);
}

static exf_code read_sha256(const exf_section *s, exf_manifest_source *src)
{
    const char *text;
    exf_code rc = exf_section_word(s, "sha256", &text);
    if (rc != EXF_OK || !text || strcmp(text, "unpinned") == 0) return rc;
    if (strlen(text) != EXF_SHA256_HEX - 1 || strspn(text, "0123456789abcdefABCDEF") != EXF_SHA256_HEX - 1)
        return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"sha256\" is \"%.80s\", expected 64 hexadecimal digits or unpinned", s->path,
                        exf_yaml_get(s->map, "sha256")->line, s->name, text);
    for (size_t i = 0; text[i]; i++) src->sha256[i] = (char)(text[i] >= 'A' && text[i] <= 'F' ? text[i] - 'A' + 'a' : text[i]);
    return EXF_OK;
}

static exf_code read_source(const exf_manifest *m, size_t i, const exf_yaml *node, exf_err *err)
{
    exf_code rc;
    exf_manifest_source *src = &m->source[i];
    exf_section s = {.path = m->path, .map = node, .err = err};
    snprintf(s.name, sizeof s.name, "source %zu: ", i + 1);
    if (node->kind != EXF_YAML_MAP)
        return exf_fail(err, EXF_USAGE, "%s:%d: %sis %s, expected a map", m->path, node->line, s.name, exf_yaml_kind_name(node));
    EXF_TRY(exf_section_refuse_unknown(&s, source_keys));
    EXF_TRY(read_format(&s, src));
    EXF_TRY(refuse_misplaced(&s, src));
    EXF_TRY(read_names(&s, i + 1, src));
    EXF_TRY(read_where(&s, src));
    EXF_TRY(read_sequences(&s, src));
    EXF_TRY(read_sha256(&s, src));
    EXF_TRY(exf_manifest_check_origin(&s));
out:
    return rc;
}

/* The schema comes first: every other complaint about a manifest of another
 * kind would only mislead. */
static exf_code check_top(const exf_section *s)
{
    const char *schema;
    if (s->map->kind != EXF_YAML_MAP)
        return exf_fail(s->err, EXF_USAGE, "%s:%d: is %s, expected a map with \"schema: " SCHEMA "\"", s->path, s->map->line,
                        exf_yaml_kind_name(s->map));
    exf_code rc = exf_section_required(s, "schema", &schema);
    if (rc != EXF_OK) return rc;
    if (strcmp(schema, SCHEMA) != 0)
        return exf_fail(s->err, EXF_USAGE, "%s:%d: schema \"%.80s\", expected \"" SCHEMA "\"", s->path,
                        exf_yaml_get(s->map, "schema")->line, schema);
    return exf_section_refuse_unknown(s, top_keys);
}

static exf_code read_sources(exf_manifest *m, const exf_yaml *root, exf_err *err)
{
    exf_code rc;
    exf_section s = {.path = m->path, .map = root, .err = err};
    EXF_TRY(check_top(&s));
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

/* Parsed from the very bytes that are hashed: what goes into provenance is what was read. */
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
    EXF_TRY(read_sources(m, root, err));
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
}

void exf_manifest_free(exf_manifest *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) free_source(&m->source[i]);
    exf_mem_free(m->source);
    exf_mem_free(m->path);
    exf_mem_free(m);
}

/* ---- checksums ------------------------------------------------------- */

size_t exf_manifest_first_of_file(const exf_manifest *m, size_t i)
{
    size_t k = 0;
    while (k < i && (!m->source[k].sha256[0] || strcmp(m->source[k].file, m->source[i].file) != 0)) k++;
    return k;
}

exf_code exf_manifest_verify(const exf_manifest *m, exf_err *err)
{
    exf_code rc = EXF_OK;
    char(*digest)[EXF_SHA256_HEX] = NULL;
    EXF_TRY(exf_mem_new(&digest, m->n, sizeof *digest, "checksums", err));
    for (size_t i = 0; i < m->n; i++) {
        const exf_manifest_source *s = &m->source[i];
        if (!s->sha256[0]) continue;
        size_t first = exf_manifest_first_of_file(m, i);
        if (first == i && (rc = exf_hash_file(s->file, digest[i], err)) != EXF_OK) {
            exf_err_prefix(err, "%s: ", s->label);
            goto out;
        }
        if (strcmp(digest[first], s->sha256) != 0) {
            rc = exf_fail(err, EXF_MODEL, "%s: the file's sha256 is %s, the manifest says %s", s->label, digest[first], s->sha256);
            goto out;
        }
    }
out:
    exf_mem_free(digest);
    return rc;
}

/* ---- what has no checksum ------------------------------------------------------- */

static int stands_before(const exf_manifest *m, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (!m->source[k].sha256[0] && strcmp(m->source[k].path, m->source[i].path) == 0) return 1;
    return 0;
}

exf_code exf_manifest_unpinned(const exf_manifest *m, char **files, int *n, exf_err *err)
{
    enum { NAMED = 4 };
    exf_text list = {0};
    exf_code rc = EXF_OK;
    int named = 0;
    *files = NULL;
    *n = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (m->source[i].sha256[0]) continue;
        ++*n;
        if (named > NAMED || stands_before(m, i)) continue;
        EXF_TRY(exf_text_addf(&list, err, "%s%s", named ? ", " : "", named == NAMED ? "..." : m->source[i].path));
        named++;
    }
    if (list.s) rc = exf_mem_strdup(files, list.s, "list of files", err);
out:
    exf_text_free(&list);
    return rc;
}
