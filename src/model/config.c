/* config.c - reads fields of config.json: numbers, words, lists with an element for each layer; see config.h. */
#include "model/config.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { FIELD_MAX = 64 };

/* One spelling, "a.b.c", of length n. */
static const exf_json *find_spelling(const exf_json *object, const char *spelling, size_t n)
{
    char name[FIELD_MAX];
    while (object && n) {
        size_t step = 0;
        while (step < n && spelling[step] != '.') step++;
        if (step >= sizeof name) return NULL;
        memcpy(name, spelling, step);
        name[step] = 0;
        object = exf_json_type(object) == EXF_JSON_OBJECT ? exf_json_get(object, name) : NULL;
        spelling += step + (step < n);
        n -= step + (step < n);
    }
    return object;
}

/* Appends a value as messages show it. */
static void append_value(const exf_json *j, exf_text *out)
{
    switch (exf_json_type(j)) {
    case EXF_JSON_BOOL: exf_text_appendf(out, "%s", exf_json_true(j) ? "true" : "false"); break;
    case EXF_JSON_INT: exf_text_appendf(out, "%lld", (long long)exf_json_int(j)); break;
    case EXF_JSON_REAL: exf_text_appendf(out, "%g", exf_json_real(j)); break;
    case EXF_JSON_STRING: exf_text_appendf(out, "%s", exf_json_string(j, NULL)); break;
    default: exf_text_appendf(out, "%s", exf_json_type_name(j));
    }
}

/* A field as it is spelled, and what it says there. */
typedef struct {
    const char *name;
    size_t n;
    const exf_json *value;
} spelling;

static exf_code refuse_spellings(const exf_config *c, const spelling *a, const spelling *b, exf_err *err)
{
    exf_text one = {0}, other = {0};
    exf_code rc;
    append_value(a->value, &one);
    append_value(b->value, &other);
    EXF_TRY(exf_text_end(&one, err));
    EXF_TRY(exf_text_end(&other, err));
    rc = exf_fail(err, EXF_MODEL, "%s: \"%.*s\" is %s but \"%.*s\" is %s: two spellings of one field disagree", c->path, (int)a->n,
                  a->name, one.s, (int)b->n, b->name, other.s);
out:
    exf_text_free(&one);
    exf_text_free(&other);
    return rc;
}

exf_code exf_config_find(const exf_config *c, const char *fields, const exf_json **out, exf_err *err)
{
    spelling first = {NULL, 0, NULL};
    *out = NULL;
    for (const char *s = fields; *s;) {
        size_t n = strcspn(s, "|");
        spelling found = {s, n, find_spelling(c->object, s, n)};
        s += n + (s[n] == '|');
        if (!found.value || exf_json_type(found.value) == EXF_JSON_NULL) continue;
        if (!first.value) first = found;
        const char *text = exf_json_string(first.value, NULL), *other = exf_json_string(found.value, NULL);
        int same = text || other ? text && other && strcmp(text, other) == 0
                                 : exf_json_real(first.value) == exf_json_real(found.value) &&
                                       exf_json_true(first.value) == exf_json_true(found.value);
        if (!same) return refuse_spellings(c, &first, &found, err);
    }
    *out = first.value;
    return EXF_OK;
}

static exf_code refuse_type(const exf_config *c, const char *fields, const exf_json *found, const char *wanted, exf_err *err)
{
    return exf_fail(err, EXF_MODEL, "%s: \"%s\" is %s, expected %s", c->path, fields, exf_json_type_name(found), wanted);
}

static exf_code get_int(const exf_config *c, const char *fields, int64_t min, int64_t max, const int *fallback, int *out,
                        exf_err *err)
{
    const exf_json *j;
    exf_code rc = exf_config_find(c, fields, &j, err);
    if (rc != EXF_OK) return rc;
    if (!j && fallback) {
        *out = *fallback;
        return EXF_OK;
    }
    if (exf_json_type(j) != EXF_JSON_INT) return refuse_type(c, fields, j, "an integer", err);
    int64_t v = exf_json_int(j);
    if (v < min || v > max)
        return exf_fail(err, EXF_MODEL, "%s: \"%s\" is %lld, expected %lld to %lld", c->path, fields, (long long)v, (long long)min,
                        (long long)max);
    *out = (int)v;
    return EXF_OK;
}

exf_code exf_config_int(const exf_config *c, const char *fields, int64_t min, int64_t max, int *out, exf_err *err)
{
    return get_int(c, fields, min, max, NULL, out, err);
}

exf_code exf_config_int_or(const exf_config *c, const char *fields, int64_t min, int64_t max, int fallback, int *out, exf_err *err)
{
    return get_int(c, fields, min, max, &fallback, out, err);
}

static exf_code get_real(const exf_config *c, const char *fields, const double *fallback, double *out, exf_err *err)
{
    const exf_json *j;
    exf_code rc = exf_config_find(c, fields, &j, err);
    if (rc != EXF_OK) return rc;
    if (!j && fallback) {
        *out = *fallback;
        return EXF_OK;
    }
    exf_json_kind k = exf_json_type(j);
    if (k != EXF_JSON_INT && k != EXF_JSON_REAL) return refuse_type(c, fields, j, "a number", err);
    *out = exf_json_real(j);
    if (!(*out > 0)) return exf_fail(err, EXF_MODEL, "%s: \"%s\" is %g, expected a number above 0", c->path, fields, *out);
    return EXF_OK;
}

exf_code exf_config_real(const exf_config *c, const char *fields, double *out, exf_err *err)
{
    return get_real(c, fields, NULL, out, err);
}

exf_code exf_config_real_or(const exf_config *c, const char *fields, double fallback, double *out, exf_err *err)
{
    return get_real(c, fields, &fallback, out, err);
}

/* Returns 1 if one of the spellings is there and says null. */
static int is_null(const exf_config *c, const char *fields)
{
    for (const char *s = fields; *s;) {
        size_t n = strcspn(s, "|");
        const exf_json *found = find_spelling(c->object, s, n);
        if (found && exf_json_type(found) == EXF_JSON_NULL) return 1;
        s += n + (s[n] == '|');
    }
    return 0;
}

exf_code exf_config_must_say(const exf_config *c, const char *fields, int or_null, exf_err *err)
{
    const exf_json *j;
    exf_code rc = exf_config_find(c, fields, &j, err);
    if (rc != EXF_OK || j || (or_null && is_null(c, fields))) return rc;
    return exf_fail(err, EXF_MODEL, "%s: \"%s\" is not there, and what is meant without it differs between programs: write it "
                    "there", c->path, fields);
}

exf_code exf_config_bool_or(const exf_config *c, const char *fields, int fallback, int *out, exf_err *err)
{
    const exf_json *j;
    exf_code rc = exf_config_find(c, fields, &j, err);
    if (rc != EXF_OK) return rc;
    int is_other = j ? exf_json_type(j) != EXF_JSON_BOOL : fallback && is_null(c, fields);
    if (is_other) return refuse_type(c, fields, j, "true or false", err);
    *out = j ? exf_json_true(j) : fallback;
    return EXF_OK;
}

exf_code exf_config_text_or(const exf_config *c, const char *fields, const char *fallback, const char **out, exf_err *err)
{
    const exf_json *j;
    exf_code rc = exf_config_find(c, fields, &j, err);
    if (rc != EXF_OK) return rc;
    size_t len = 0;
    const char *text = j ? exf_json_string(j, &len) : fallback;
    if (j && !text) return refuse_type(c, fields, j, "a string", err);
    if (j && strlen(text) != len)
        return exf_fail(err, EXF_MODEL, "%s: \"%s\" has a NUL after \"%s\", expected text without one", c->path, fields, text);
    *out = text;
    return EXF_OK;
}

exf_code exf_config_must_be(const exf_config *c, const char *fields, const char *only, exf_err *err)
{
    const exf_json *j;
    exf_code rc = exf_config_find(c, fields, &j, err);
    if (rc == EXF_OK && !j && strcmp(only, "true") == 0 && is_null(c, fields)) return refuse_type(c, fields, j, only, err);
    if (rc != EXF_OK || !j) return rc;
    exf_text found = {0};
    append_value(j, &found);
    rc = exf_text_end(&found, err);
    if (rc == EXF_OK && strcmp(found.s, only) != 0)
        rc = exf_fail(err, EXF_MODEL, "%s: \"%s\" is %s; only %s is supported", c->path, fields, found.s, only);
    exf_text_free(&found);
    return rc;
}

exf_code exf_config_part(const exf_config *c, const char *part, const char *type, exf_config *out, exf_err *err)
{
    char field[96];
    const exf_json *found;
    exf_code rc = exf_config_find(c, part, &found, err);
    if (rc != EXF_OK) return rc;
    *out = (exf_config){found ? found : c->object, c->path};
    if (!found) return EXF_OK;
    if (exf_json_type(found) != EXF_JSON_OBJECT) return refuse_type(c, part, found, "an object", err);
    snprintf(field, sizeof field, "%s.model_type", part);
    return exf_config_must_be(c, field, type, err);
}

/* ---- lists with an element for each layer ------------------------------------------ */

exf_code exf_config_layer_list(const exf_config *c, const char *field, int n_layers, int may_go_on, const exf_json **list,
                               exf_err *err)
{
    exf_code rc = exf_config_find(c, field, list, err);
    if (rc != EXF_OK || !*list) return rc;
    if (exf_json_type(*list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: \"%s\" is %s, expected an array", c->path, field, exf_json_type_name(*list));
    size_t n = exf_json_size(*list);
    if (n < (size_t)n_layers || (n > (size_t)n_layers && !may_go_on))
        return exf_fail(err, EXF_MODEL, "%s: \"%s\" has %zu elements, \"num_hidden_layers\" is %d", c->path, field, n, n_layers);
    return EXF_OK;
}

exf_code exf_config_layer_word(const exf_config *c, const char *field, const exf_json *list, int layer, const char *const *words,
                               int *which, exf_err *err)
{
    const exf_json *element = exf_json_at(list, (size_t)layer);
    const char *word = exf_json_string(element, NULL);
    exf_text known = {0};
    exf_code rc;
    for (*which = 0; word && words[*which]; ++*which)
        if (strcmp(word, words[*which]) == 0) return EXF_OK;
    for (int i = 0; words[i]; i++) exf_text_appendf(&known, "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    EXF_TRY(exf_text_end(&known, err));
    rc = exf_fail(err, EXF_MODEL, "%s: \"%s\"[%d] is %s, expected %s", c->path, field, layer,
                  word ? word : exf_json_type_name(element), known.s);
out:
    exf_text_free(&known);
    return rc;
}
