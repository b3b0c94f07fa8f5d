/* recipe_schema.c - the JSON Schema of a recipe, made of the table of its keys; see recipe.h.
 *
 * It says what a single key can be: its kind, range and words.  What keys are together (data.min_tokens beside
 * data.max_tokens), what a model or a file decides, and what a variant may be, the programs say.  Numbers are plain:
 * `threads: "4"`, which programs take too, is marked by an editor. */
#include "recipe/recipe.h"

#include "artifact/projector.h"
#include "accumulate/vector_sums.h"
#include "base/names.h"
#include "export/writer.h"
#include "fold/runtime.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER "[-+]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?"

/* ---- the values of recipe keys: what the table of keys leaves to the registries ---------------------- */

/* Names the i-th of those that are solved. */
static const char *projector_name(size_t i)
{
    const exf_projector *p;
    for (size_t k = 0; (p = exf_projector_at(k)); k++)
        if (p->layer && i-- == 0) return p->name;
    return NULL;
}

static const char *target_name(size_t i)
{
    const exf_writer *t = exf_writer_at(i);
    return t ? t->name : NULL;
}

static const char *runtime_name(size_t i)
{
    const exf_runtime *r = exf_runtime_at(i);
    return r ? r->name : NULL;
}

static const char *rule_name(size_t i)
{
    return i < EXF_BUDGET_RULES ? exf_budget_rules[i] : NULL;
}

typedef struct {
    const char *key;
    const char *(*word)(size_t i); /* the i-th word that an item may be, NULL past the end; NULL: not of words */
    int64_t least, most;           /* of an item of integers; most 0: no bound */
    int least_items, most_items;   /* most_items 0: no bound */
} item_rule;

static const item_rule item_rules[] = {
    {"calibrate.projectors", projector_name, 0, 0, 1, 0},
    {"calibrate.ranks", NULL, 1, EXF_BASIS_RANK, 0, 0},
    {"budgets", NULL, 1, 0, 0, EXF_MOST_BUDGETS},
    {"validate.decode_batch", NULL, 1, EXF_LARGEST_BATCH, 1, 0},
    {"budget_rules", rule_name, 0, 0, 0, 0},
    {"pools", NULL, 0, 0, 0, EXF_MOST_POOLS},
    {"output.targets", target_name, 0, 0, 0, 0},
    {"serve.runtime", runtime_name, 0, 0, 0, 0},
};

static const item_rule *rule_of(const exf_opt *row)
{
    static const item_rule none = {0};
    for (size_t i = 0; i < sizeof item_rules / sizeof *item_rules; i++)
        if (strcmp(item_rules[i].key, row->key) == 0) return &item_rules[i];
    return &none;
}

static int is_key(const exf_opt *row, const char *key)
{
    return strcmp(row->key, key) == 0;
}

/* Appends what a string that is one item of a list must match. */
static void add_item_pattern(exf_text *out, const exf_opt *row)
{
    const item_rule *rule = rule_of(row);
    if (rule->word) {
        for (size_t i = 0; rule->word(i); i++) exf_text_appendf(out, "%s%s", i ? "|" : "(", rule->word(i));
        exf_text_appendf(out, ")");
    } else if (is_key(row, "pools")) {
        exf_text_appendf(out, "[0-9]+(:(");
        for (int i = 0; i < EXF_POOL_CRITERIA; i++) exf_text_appendf(out, "%s%s", i ? "|" : "", exf_pool_criteria[i]);
        exf_text_appendf(out, "))?");
    } else
        exf_text_appendf(out, row->type == EXF_OPT_INT_LIST    ? "[-+]?[0-9]+"
                              : row->type == EXF_OPT_WORD_LIST ? "[^ \\t]+"
                                                               : "[^,]+");
}

/* Adds {size: D} and {size: D, by: NAME}. */
static void add_pool_map(exf_jw *w)
{
    static const char *const size[] = {"size", NULL};
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "type", "object");
    exf_json_schema_strings(w, "required", size);
    exf_jw_bool(w, "additionalProperties", 0);
    exf_jw_open(w, "properties", '{');
    exf_jw_open(w, "size", '{');
    exf_json_schema_integer(w, 1, INT64_MAX);
    exf_jw_close(w);
    exf_jw_open(w, "by", '{');
    exf_jw_open(w, "enum", '[');
    for (int i = 0; i < EXF_POOL_CRITERIA; i++) exf_jw_text(w, NULL, exf_pool_criteria[i]);
    exf_jw_close(w);
    exf_jw_close(w);
    exf_jw_close(w);
    exf_jw_close(w);
}

static void add_item(exf_jw *w, const exf_opt *row, const char *pattern)
{
    const item_rule *rule = rule_of(row);
    if (rule->word)
        exf_json_schema_enum(w, rule->word);
    else if (row->type == EXF_OPT_INT_LIST)
        exf_json_schema_integer(w, rule->least ? rule->least : INT64_MIN, rule->most ? rule->most : INT64_MAX);
    else if (is_key(row, "pools")) {
        exf_jw_open(w, "anyOf", '[');
        exf_jw_open(w, NULL, '{');
        exf_json_schema_integer(w, 1, INT64_MAX);
        exf_jw_close(w);
        exf_json_schema_string_like(w, pattern);
        add_pool_map(w);
        exf_jw_close(w);
    } else {
        exf_json_schema_scalar(w);
        exf_jw_text(w, "pattern", pattern);
    }
}

/* Adds a list, or the same as one scalar: "8,4". */
static exf_code add_list(exf_jw *w, const exf_opt *row, exf_err *err)
{
    static const char *const numbers[] = {"number", "boolean", NULL}; /* what is a name although it looks like one of them */
    const item_rule *rule = rule_of(row);
    exf_text item = {0}, one = {0}, whole = {0};
    exf_code rc;
    add_item_pattern(&item, row);
    EXF_TRY(exf_text_end(&item, err));
    exf_text_appendf(&one, "^%s$", item.s);
    exf_text_appendf(&whole, row->type == EXF_OPT_WORD_LIST ? "^%s([ \\t]+%s)*$" : "^%s( *, *%s)*$", item.s, item.s);
    EXF_TRY(exf_text_end(&one, err));
    EXF_TRY(exf_text_end(&whole, err));
    exf_jw_open(w, "anyOf", '[');
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "type", "array");
    if (rule->least_items) exf_jw_int(w, "minItems", rule->least_items);
    if (rule->most_items) exf_jw_int(w, "maxItems", rule->most_items);
    if (rule->key) exf_jw_bool(w, "uniqueItems", 1);
    exf_jw_open(w, "items", '{');
    add_item(w, row, one.s);
    exf_jw_close(w);
    exf_jw_close(w);
    exf_json_schema_string_like(w, whole.s);
    if (!rule->word) {
        int64_t least = is_key(row, "pools") ? 1 : rule->least ? rule->least : INT64_MIN;
        exf_jw_open(w, NULL, '{');
        if (rule->key || row->type == EXF_OPT_INT_LIST)
            exf_json_schema_integer(w, least, rule->most ? rule->most : INT64_MAX);
        else
            exf_json_schema_strings(w, "type", numbers);
        exf_jw_close(w);
    }
    exf_jw_close(w);
out:
    exf_text_free(&item);
    exf_text_free(&one);
    exf_text_free(&whole);
    return rc;
}

/* Adds [MIN, MAX] and none. */
static void add_clip(exf_jw *w)
{
    exf_jw_open(w, "anyOf", '[');
    for (int bounds = 0; bounds < 2; bounds++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_text(w, "type", "array");
        exf_jw_int(w, "minItems", 1 + bounds);
        exf_jw_int(w, "maxItems", 1 + bounds);
        exf_jw_open(w, "items", '{');
        exf_jw_text(w, bounds ? "type" : "const", bounds ? "number" : "none");
        exf_jw_close(w);
        exf_jw_close(w);
    }
    exf_json_schema_string_like(w, "^(none|" NUMBER " *, *" NUMBER ")$");
    exf_jw_close(w);
}

/* Adds a number, and what else stands for one. */
static void add_number(exf_jw *w, const char *least, const char *most, const char *pattern)
{
    exf_jw_open(w, "anyOf", '[');
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "type", "number");
    if (least) exf_jw_real(w, "minimum", strtod(least, NULL));
    if (most) exf_jw_real(w, "maximum", strtod(most, NULL));
    exf_jw_close(w);
    exf_json_schema_string_like(w, pattern);
    exf_jw_close(w);
}

static exf_code add_kind(exf_jw *w, const exf_opt *row, exf_err *err)
{
    const char *dots = row->values ? strstr(row->values, "..") : NULL; /* of "min..max" */
    const char *least = dots && dots > row->values ? row->values : NULL, *most = dots && dots[2] ? dots + 2 : NULL;
    char word[64];
    switch (row->type) {
    case EXF_OPT_TEXT:
        if (is_key(row, "schema"))
            exf_jw_text(w, "const", EXF_RECIPE_SCHEMA);
        else if (rule_of(row)->word)
            exf_json_schema_enum(w, rule_of(row)->word);
        else
            exf_json_schema_scalar(w);
        break;
    case EXF_OPT_INT:
        exf_json_schema_integer(w, least ? strtoll(least, NULL, 10) : INT64_MIN, most ? strtoll(most, NULL, 10) : INT64_MAX);
        break;
    case EXF_OPT_REAL: add_number(w, least, most, "^[0-9]+[eE][-+]?[0-9]+$"); break; /* 1e-3, which YAML 1.1 reads as text */
    case EXF_OPT_BYTES: add_number(w, "0", NULL, "^([0-9]+\\.?[0-9]*|\\.[0-9]+)(B|[kMGT]B|[KMGT]iB)?$"); break;
    case EXF_OPT_FLAG: exf_jw_text(w, "type", "boolean"); break;
    case EXF_OPT_CHOICE:
        exf_jw_open(w, "enum", '[');
        for (const char *at = row->values; *at; at += strcspn(at, "|"), at += *at == '|') {
            snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
            exf_jw_text(w, NULL, word);
        }
        exf_jw_close(w);
        break;
    case EXF_OPT_FILES:
    case EXF_OPT_TEXT_LIST:
        if (is_key(row, "calibrate.clip")) {
            add_clip(w);
            break;
        }
        /* fall through */
    case EXF_OPT_INT_LIST:
    case EXF_OPT_WORD_LIST: return add_list(w, row, err);
    }
    return EXF_OK;
}

/* Adds one word of a default, as a number where it is one. */
static void add_default_word(exf_jw *w, const char *key, const char *word, size_t n)
{
    char text[64];
    int64_t whole;
    double real;
    snprintf(text, sizeof text, "%.*s", (int)n, word);
    if (exf_parse_i64(text, &whole)) exf_jw_int(w, key, whole);
    else if (exf_parse_f64(text, &real)) exf_jw_real(w, key, real);
    else exf_jw_text(w, key, text);
}

static void add_default(exf_jw *w, const exf_opt *row)
{
    const char *word = row->fallback;
    if (!word) return;
    if (row->type != EXF_OPT_TEXT_LIST && row->type != EXF_OPT_INT_LIST && row->type != EXF_OPT_WORD_LIST) {
        add_default_word(w, "default", word, strlen(word));
        return;
    }
    if (strcmp(word, "[]") == 0) word = "";
    exf_jw_open(w, "default", '[');
    for (size_t n; *word; word += n + strspn(word + n, ", ")) {
        n = strcspn(word, row->type == EXF_OPT_WORD_LIST ? " " : ",");
        add_default_word(w, NULL, word, n);
    }
    exf_jw_close(w);
}

/* ---- a recipe -------------------------------------------------------------------------------------- */

/* Adds the members of a section: n rows whose keys have its name in their first `front` bytes.  A key may be spelled with dots,
 * "checkpoint.every_layers"; those spellings are patterns, so that editors do not offer them. */
static void add_section(exf_jw *w, const exf_opt *rows, size_t n, size_t front)
{
    char name[128];
    int dotted = 0;
    exf_jw_text(w, "type", "object");
    exf_jw_bool(w, "additionalProperties", 0);
    exf_jw_open(w, "properties", '{');
    for (size_t i = 0, same; i < n; i += same) {
        const char *rest = rows[i].key + front, *dot = strchr(rest, '.');
        size_t len = dot ? (size_t)(dot - rest) : strlen(rest);
        snprintf(name, sizeof name, "%.*s", (int)len, rest);
        for (same = 1; dot && i + same < n && strncmp(rows[i + same].key + front, rest, len + 1) == 0;) same++;
        if (!dot)
            exf_json_schema_reference(w, name, rows[i].key);
        else {
            exf_jw_open(w, name, '{');
            add_section(w, rows + i, same, front + len + 1);
            exf_jw_close(w);
        }
    }
    exf_jw_close(w);
    for (size_t i = 0; i < n; i++) dotted |= strchr(rows[i].key + front, '.') != NULL;
    if (!dotted) return;
    exf_jw_open(w, "patternProperties", '{');
    for (size_t i = 0; i < n; i++)
        if (strchr(rows[i].key + front, '.')) { /* a pattern that one spelling alone matches */
            exf_text pattern = {0};
            exf_text_appendf(&pattern, "^");
            for (const char *c = rows[i].key + front; *c; c++) exf_text_appendf(&pattern, *c == '.' ? "\\." : "%c", *c);
            exf_text_appendf(&pattern, "$");
            if (w->rc == EXF_OK) w->rc = exf_text_end(&pattern, &w->err);
            if (w->rc == EXF_OK) exf_json_schema_reference(w, pattern.s, rows[i].key);
            exf_text_free(&pattern);
        }
    exf_jw_close(w);
}

exf_code exf_recipe_schema(exf_text *out, exf_err *err)
{
    exf_jw writer = {0}, *w = &writer;
    static const char *const required[] = {"schema", NULL};
    size_t n;
    const exf_opt *rows = exf_recipe_key_rows(&n);
    exf_code rc = EXF_OK;
    exf_json_schema_head(w, EXF_RECIPE_SCHEMA, "a recipe");
    exf_json_schema_strings(w, "required", required); /* the others may stand on the command line */
    add_section(w, rows, n, 0);
    exf_jw_open(w, "definitions", '{');
    for (size_t i = 0; i < n; i++) {
        exf_jw_open(w, rows[i].key, '{');
        exf_jw_text(w, "description", rows[i].help);
        EXF_TRY(add_kind(w, &rows[i], err));
        add_default(w, &rows[i]);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_jw_close(w);
    rc = exf_jw_end(w, out, err);
out:
    exf_jw_free(w);
    return rc;
}
