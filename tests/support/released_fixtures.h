/* released_fixtures.h - the table of released models, tests/configs/released.txt, whose top says what its columns are; and a
 * model's config cut to the layers that the table says. */
#ifndef EXF_TESTS_RELEASED_FIXTURES_H
#define EXF_TESTS_RELEASED_FIXTURES_H
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#define RELEASED_TABLE "tests/configs/released.txt"
enum { MOST_RELEASED = 64 };

typedef struct {
    char name[40], config[40];
    int n_experts, top_k, d_model, d_expert, d_shared, d_ffn, n_layers; /* E, K, H, I */
    int heads, kv_heads, head_dim;
    int key_heads, value_heads; /* of the gated delta rule */
    int top_groups, n_groups;
    int hash_layers, vocab;
    char cut[160]; /* KEY=VALUE parted by blanks */
} released_model;

typedef struct {
    released_model row[MOST_RELEASED];
    int n;
} released_table;

static inline void released_read_row(released_model *m, const char *line)
{
    int cut = 0;
    int n = sscanf(line, "%39s %39s %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %n", m->name, m->config, &m->n_experts,
                   &m->top_k, &m->d_model, &m->d_expert, &m->d_shared, &m->d_ffn, &m->n_layers, &m->heads, &m->kv_heads,
                   &m->head_dim, &m->key_heads, &m->value_heads, &m->top_groups, &m->n_groups, &m->hash_layers, &m->vocab, &cut);
    ck_assert_msg(n == 18 && cut > 0 && line[cut], RELEASED_TABLE ": %d columns in \"%s\"", n, line);
    snprintf(m->cut, sizeof m->cut, "%s", line + cut);
    ck_assert_msg(strcmp(m->cut, line + cut) == 0, RELEASED_TABLE ": too long a cut in \"%s\"", line);
}

static inline void released_read(released_table *t)
{
    char *text, *rest;
    size_t n;
    exf_err e;
    t->n = 0;
    ck_ok(exf_file_slurp(RELEASED_TABLE, 1 << 20, &text, &n, &e), e);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (*line == '#') continue;
        ck_assert_int_lt(t->n, MOST_RELEASED);
        released_read_row(&t->row[t->n++], line);
    }
    exf_mem_free(text);
    ck_assert_int_gt(t->n, 0);
}

/* Returns the first row of the same config and cut: i itself, or a model of the same shape. */
static inline int released_first_alike(const released_table *t, int i)
{
    for (int k = 0; k < i; k++)
        if (strcmp(t->row[k].config, t->row[i].config) == 0 && strcmp(t->row[k].cut, t->row[i].cut) == 0) return k;
    return i;
}

/* Returns the length of the JSON value at text: up to the comma or bracket that ends it. */
static inline size_t released_value_length(const char *text)
{
    int depth = 0, quoted = 0;
    size_t n = 0;
    for (; text[n]; n++) {
        char c = text[n];
        if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (depth == 0 && (c == ',' || c == '}' || c == '\n')) break;
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    }
    return n;
}

/* Appends the config with one key's value replaced; the config says it once. */
static inline void released_replace(exf_text *out, const char *text, const char *key, size_t key_length, const char *value)
{
    char quoted[80];
    snprintf(quoted, sizeof quoted, "\"%.*s\":", (int)key_length, key);
    const char *at = strstr(text, quoted);
    ck_assert_msg(at && !strstr(at + 1, quoted), "%s is not once in the config", quoted);
    at += strlen(quoted);
    exf_text_append(out, text, (size_t)(at - text));
    exf_text_appendf(out, " %s%s", value, at + released_value_length(at));
}

/* Writes a model's config, cut, to DIRECTORY/config.json. */
static inline void released_write_config(const released_model *m, const char *directory)
{
    char path[512], cut[sizeof m->cut], *text, *rest;
    size_t n;
    exf_err e;
    snprintf(path, sizeof path, "tests/configs/%s/config.json", m->config);
    ck_ok(exf_file_slurp(path, 1 << 20, &text, &n, &e), e);
    snprintf(cut, sizeof cut, "%s", m->cut);
    for (char *word = strtok_r(cut, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        const char *equals = strchr(word, '=');
        exf_text out = {0};
        ck_assert_msg(equals != NULL, "%s: a cut is KEY=VALUE, not %s", m->name, word);
        released_replace(&out, text, word, (size_t)(equals - word), equals + 1);
        ck_ok(exf_text_end(&out, &e), e);
        exf_mem_free(text);
        text = out.s;
    }
    snprintf(path, sizeof path, "%s/config.json", directory);
    exf_write_file(path, text, strlen(text));
    exf_mem_free(text);
}

/* What tells one kind of layer from another, whatever its weights are. */
enum { RELEASED_MOE = 1, RELEASED_HASHED = 2, RELEASED_WINDOW = 4 };
typedef struct {
    int mixer, ratio, flags;
} released_kind;

static inline released_kind released_kind_of(const exf_architecture *a, int layer)
{
    int flags = (a->is_moe[layer] ? RELEASED_MOE : 0) | (a->traits[layer] & EXF_T_HASHED ? RELEASED_HASHED : 0) |
                (a->attention.window[layer] ? RELEASED_WINDOW : 0);
    return (released_kind){(int)a->mixer[layer], a->compressed.ratio[layer], flags};
}

/* Returns how many layers that have experts choose them by token id. */
static inline int released_hash_layers(const exf_architecture *a)
{
    int n = 0;
    for (int l = 0; l < a->n_layers; l++) n += (a->traits[l] & EXF_T_HASHED) != 0;
    return n;
}
#endif
