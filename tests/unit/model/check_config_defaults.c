/* check_config_defaults.c - a config without one of its keys, or with null there, is refused or means what transformers makes of
 * it.
 *
 * tests/golden/config_defaults.json has the configs and what transformers fills in; scripts/make_config_defaults.py, which writes
 * it, tells its layout. */
#include "tests/support/fixtures.h"

#include "base/mem.h"
#include "base/text.h"
#include "format/json.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char table_path[] = "tests/golden/config_defaults.json";
static exf_err e;

static const char *text_of(const exf_json *object, const char *key)
{
    return exf_json_string(exf_json_get(object, key), NULL);
}

/* Appends "key": value, unless the value is "", which means none. */
static void add_key(exf_text *out, const char *key, const char *value)
{
    if (!*value) return;
    exf_text_appendf(out, "%s\"%s\": %s", out->s[out->len - 1] == '{' ? "" : ", ", key, value);
}

/* Writes a side ("given" or "filled") of an entry to config.json, with some keys as `changes` says (NULL: none), or one key as
 * `value` says. */
static void write_config(const exf_json *side, const exf_json *changes, const char *key, const char *value)
{
    const char *outer = text_of(side, "outer"), *place = strstr(outer, "@PART@");
    const exf_json *keys = exf_json_get(side, "keys");
    exf_text text = {0};
    ck_assert_ptr_nonnull(place);
    exf_text_append(&text, outer, (size_t)(place - outer));
    exf_text_append(&text, "{", 1);
    for (void *it = exf_json_first(keys); it; it = exf_json_next(keys, it)) {
        const char *name = exf_json_key(it), *changed = text_of(changes, name);
        if (key && strcmp(name, key) == 0) changed = value;
        add_key(&text, name, changed ? changed : exf_json_string(exf_json_value(it), NULL));
    }
    for (void *it = changes ? exf_json_first(changes) : NULL; it; it = exf_json_next(changes, it))
        if (!exf_json_get(keys, exf_json_key(it))) add_key(&text, exf_json_key(it), exf_json_string(exf_json_value(it), NULL));
    exf_text_appendf(&text, "}%s", place + strlen("@PART@"));
    ck_ok(exf_text_end(&text, &e), e);
    exf_write_file(exf_scratch("config.json"), text.s, text.len);
    exf_text_free(&text);
}

/* Reads the architecture of config.json as text. */
static exf_code read_config(exf_text *out)
{
    exf_model *m = NULL;
    exf_code rc = exf_model_open_part(&m, exf_scratch(""), EXF_MODEL_CONFIG, &e);
    memset(out, 0, sizeof *out);
    if (rc == EXF_OK) rc = exf_architecture_text(out, &m->arch, &e);
    exf_model_close(m);
    return rc;
}

/* Returns 1 if the config without the key, or with null there, is refused or means what it should. */
static int agrees(const exf_json *entry, const char *how, const char *key, const exf_json *changes)
{
    exf_text found, wanted;
    int good = 1;
    write_config(exf_json_get(entry, "given"), NULL, key, strcmp(how, "null") == 0 ? "null" : "");
    if (read_config(&found) != EXF_OK) return 1;
    write_config(exf_json_get(entry, "filled"), changes, NULL, NULL);
    if (read_config(&wanted) != EXF_OK) {
        printf("%s: \"%s\" %s: is taken; what transformers makes of it is refused: %s\n", text_of(entry, "name"), key, how, e.msg);
        good = 0;
    } else if (strcmp(found.s, wanted.s) != 0) {
        size_t at = 0;
        while (found.s[at] == wanted.s[at]) at++;
        while (at && found.s[at - 1] != ' ') at--;
        printf("%s: \"%s\" %s: %.40s, to transformers %.40s\n", text_of(entry, "name"), key, how, found.s + at, wanted.s + at);
        good = 0;
    }
    exf_text_free(&found);
    exf_text_free(&wanted);
    return good;
}

static exf_json *load_table(void)
{
    exf_json *table = NULL;
    ck_ok(exf_json_load(&table, table_path, 64 << 20, &e), e);
    return table;
}

static int check_keys(const exf_json *entry, const char *how, int *n)
{
    const exf_json *keys = exf_json_get(entry, how);
    int bad = 0;
    for (void *it = exf_json_first(keys); it; it = exf_json_next(keys, it)) {
        const exf_json *changes = exf_json_value(it);
        if (exf_json_type(changes) == EXF_JSON_NULL) continue; /* transformers cannot read it either */
        bad += !agrees(entry, how, exf_json_key(it), changes);
        ++*n;
    }
    return bad;
}

START_TEST(a_key_that_is_absent_or_null_is_what_transformers_takes_it_for)
{
    exf_json *table = load_table();
    const exf_json *configs = exf_json_get(table, "configs");
    int bad = 0, n = 0;
    for (size_t i = 0; i < exf_json_size(configs); i++) {
        bad += check_keys(exf_json_at(configs, i), "absent", &n);
        bad += check_keys(exf_json_at(configs, i), "null", &n);
    }
    fflush(stdout);
    ck_assert_int_gt(n, 1000);
    ck_assert_msg(bad == 0, "%d of %d keys are read otherwise than by transformers; they stand above", bad, n);
    exf_json_free(table);
}
END_TEST

START_TEST(whole_configs_mean_what_transformers_makes_of_them)
{
    exf_json *table = load_table();
    const exf_json *configs = exf_json_get(table, "configs");
    for (size_t i = 0; i < exf_json_size(configs); i++) {
        const exf_json *entry = exf_json_at(configs, i);
        exf_text given, filled;
        write_config(exf_json_get(entry, "given"), NULL, NULL, NULL);
        ck_assert_msg(read_config(&given) == EXF_OK, "%s: %s", text_of(entry, "name"), e.msg);
        write_config(exf_json_get(entry, "filled"), NULL, NULL, NULL);
        ck_assert_msg(read_config(&filled) == EXF_OK, "%s, as transformers writes it: %s", text_of(entry, "name"), e.msg);
        ck_assert_str_eq(given.s, filled.s);
        exf_text_free(&given);
        exf_text_free(&filled);
    }
    exf_json_free(table);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *tc = exf_case(s, "all");
    tcase_add_test(tc, whole_configs_mean_what_transformers_makes_of_them);
    tcase_add_test(tc, a_key_that_is_absent_or_null_is_what_transformers_takes_it_for);
}
