/* manifest_origin.c - where a source's file comes from; its keys are in manifest_keys.h. */
#include "capture/manifest_internal.h"
#include "capture/manifest_keys.h"

#include "base/text.h"

#include <stdio.h>

#define X(name, fallback, about) name,
static const char *const keys[] = {EXF_MANIFEST_ORIGIN_KEYS(X) NULL};
#undef X

/* A column's value, or a list of values of which any will do. */
static exf_code check_value(const exf_section *s, const char *column, const exf_yaml *v)
{
    const char *word;
    if (v->kind != EXF_YAML_LIST) return exf_section_word_of(s, column, v, &word);
    exf_code rc =
        v->n ? EXF_OK : exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%.80s\" is an empty list", s->path, v->line, s->name, column);
    for (size_t i = 0; rc == EXF_OK && i < v->n; i++) rc = exf_section_word_of(s, column, v->child[i], &word);
    return rc;
}

static exf_code check_where(const exf_section *s)
{
    const exf_yaml *where = exf_yaml_get(s->map, "where");
    exf_code rc = EXF_OK;
    if (!where) return EXF_OK;
    if (where->kind != EXF_YAML_MAP || where->n == 0)
        return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"where\" is %s, expected a map such as {source: [a, b]}", s->path,
                        where->line, s->name, where->kind == EXF_YAML_MAP ? "empty" : exf_yaml_kind_name(where));
    for (size_t i = 0; rc == EXF_OK && i < where->n; i++) rc = check_value(s, where->key[i], where->child[i]);
    return rc;
}

static exf_code check_count(const exf_section *s, const char *key, int64_t least)
{
    const char *text;
    int64_t n;
    exf_code rc = exf_section_word(s, key, &text);
    if (rc != EXF_OK || !text || (exf_parse_i64(text, &n) && n >= least)) return rc;
    return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%s\" is \"%.80s\", expected a whole number from %d", s->path,
                    exf_yaml_get(s->map, key)->line, s->name, key, text, (int)least);
}

exf_code exf_manifest_check_origin(const exf_section *source)
{
    exf_code rc;
    const char *messages, *text, *word;
    exf_section s = *source;
    s.map = exf_yaml_get(source->map, "origin");
    if (!s.map) return EXF_OK;
    if (s.map->kind != EXF_YAML_MAP)
        return exf_fail(s.err, EXF_USAGE, "%s:%d: %s\"origin\" is %s, expected a map such as {dataset: NAME, split: train}", s.path,
                        s.map->line, s.name, exf_yaml_kind_name(s.map));
    snprintf(s.name, sizeof s.name, "%.36sorigin: ", source->name);
    EXF_TRY(exf_section_refuse_unknown(&s, keys));
    EXF_TRY(exf_section_required(&s, "dataset", &word));
    EXF_TRY(exf_section_required(&s, "split", &word));
    EXF_TRY(exf_section_word(&s, "revision", &word));
    EXF_TRY(exf_section_word(&s, "subset", &word));
    EXF_TRY(check_where(&s));
    EXF_TRY(check_count(&s, "skip", 0));
    EXF_TRY(check_count(&s, "take", 1));
    EXF_TRY(exf_section_word(&s, "messages", &messages));
    EXF_TRY(exf_section_word(&s, "text", &text));
    if (messages && text)
        rc = exf_fail(s.err, EXF_USAGE, "%s:%d: %s\"messages\" and \"text\" are both given; a document is made of one of them",
                      s.path, s.map->line, s.name);
out:
    return rc;
}
