/* manifest_section.c - see manifest_internal.h. */
#include "capture/manifest_internal.h"

#include "base/text.h"

#include <string.h>

int exf_section_index(const char *word, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(word, list[i]) == 0) return i;
    return -1;
}

exf_code exf_section_unknown(const exf_section *s, int line, const char *what, const char *word, const char *const *known)
{
    const char *near = exf_nearest(word, known);
    exf_text all = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; !near && known[i] && rc == EXF_OK; i++) rc = exf_text_addf(&all, s->err, "%s%s", i ? ", " : "", known[i]);
    if (rc == EXF_OK)
        rc = exf_fail(s->err, EXF_USAGE, "%s:%d: %sunknown %s \"%.80s\"; %s %s%s%s", s->path, line, s->name, what, word,
                      near ? "did you mean" : "known are", near ? "\"" : "", near ? near : all.s, near ? "\"?" : "");
    exf_text_free(&all);
    return rc;
}

exf_code exf_section_refuse_unknown(const exf_section *s, const char *const *known)
{
    for (size_t i = 0; i < s->map->n; i++)
        if (exf_section_index(s->map->key[i], known) < 0)
            return exf_section_unknown(s, s->map->child[i]->line, "key", s->map->key[i], known);
    return EXF_OK;
}

exf_code exf_section_word_of(const exf_section *s, const char *key, const exf_yaml *v, const char **out)
{
    if (v->kind != EXF_YAML_SCALAR)
        return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%.80s\" is %s, expected a word", s->path, v->line, s->name, key,
                        exf_yaml_kind_name(v));
    if (v->is_null || !v->text[0])
        return exf_fail(s->err, EXF_USAGE, "%s:%d: %s\"%.80s\" is empty", s->path, v->line, s->name, key);
    *out = v->text;
    return EXF_OK;
}

/* *out = the text of a key, NULL if the key is absent. */
exf_code exf_section_word(const exf_section *s, const char *key, const char **out)
{
    const exf_yaml *v = exf_yaml_get(s->map, key);
    *out = NULL;
    return v ? exf_section_word_of(s, key, v, out) : EXF_OK;
}

exf_code exf_section_required(const exf_section *s, const char *key, const char **out)
{
    exf_code rc = exf_section_word(s, key, out);
    if (rc == EXF_OK && !*out) rc = exf_fail(s->err, EXF_USAGE, "%s:%d: %sno \"%s\" is given", s->path, s->map->line, s->name, key);
    return rc;
}
