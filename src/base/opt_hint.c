/* opt_hint.c - finds the row that a key names and, where none does, what may have been meant; refuses keys and options that a
 * command line may not give; see opt_internal.h. */
#include "base/opt_internal.h"

#include "base/mem.h"
#include "base/registry.h"

#include <stdio.h>
#include <string.h>

enum { NAMED = 4 }; /* keys that a hint names */

size_t exf_opt_find_key(const exf_opts *o, const char *key)
{
    size_t i = 0;
    while (i < o->n && !(o->table[i].key && strcmp(o->table[i].key, key) == 0)) i++;
    return i;
}

int exf_opt_takes_row(const exf_opts *o, size_t i, exf_opt_rank rank)
{
    return rank != EXF_OPT_BY_ARGV || !o->scope || o->scope->takes(o->scope->self, &o->table[i]);
}

/* The key of row i if there is one and this rank may give it. */
static const char *key_of(const exf_opts *o, size_t i, exf_opt_rank rank)
{
    return exf_opt_takes_row(o, i, rank) ? o->table[i].key : NULL;
}

static const char *leaf_of(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* ---- lists of keys ------------------------------------------------------------------- */

/* Keys in the order of the table, at most NAMED of them. */
typedef struct {
    const char *key[NAMED];
    size_t n; /* all of them */
} keys;

static void add_key(keys *k, const char *key)
{
    if (k->n < NAMED) k->key[k->n] = key;
    k->n++;
}

/* Returns the keys whose last part is leaf, or the key that is leaf; "max-tokens" is max_tokens. */
static keys keys_of_leaf(const exf_opts *o, exf_opt_rank rank, const char *leaf)
{
    keys k = {.n = 0};
    for (size_t i = 0; i < o->n; i++) {
        const char *key = key_of(o, i, rank), *typed = leaf, *last = key ? leaf_of(key) : "";
        while (*typed && (*typed == '-' ? '_' : *typed) == *last) typed++, last++;
        if (key && ((!*typed && !*last) || strcmp(leaf, key) == 0)) add_key(&k, key);
    }
    return k;
}

/* Returns the keys of a section, which is the first n bytes of name. */
static keys keys_of_section(const exf_opts *o, exf_opt_rank rank, const char *name, size_t n)
{
    keys k = {.n = 0};
    for (size_t i = 0; i < o->n; i++) {
        const char *key = key_of(o, i, rank);
        if (key && strncmp(key, name, n) == 0 && key[n] == '.') add_key(&k, key);
    }
    return k;
}

/* `front a, b, ...` into hint. */
static void list_keys(const keys *k, const char *front, char hint[EXF_OPT_HINT_MAX])
{
    size_t used = 0;
    for (size_t i = 0; i < k->n && i < NAMED; i++)
        used += (size_t)snprintf(hint + used, EXF_OPT_HINT_MAX - used, "%s%.60s", i ? ", " : front, k->key[i]);
    if (k->n > NAMED) snprintf(hint + used, EXF_OPT_HINT_MAX - used, ", ...");
}

/* Finds the key nearest to a word, or with `leaves` the last part nearest to it. */
static exf_code nearest_key(const exf_opts *o, exf_opt_rank rank, const char *word, int leaves, const char **near, exf_err *err)
{
    const char **all;
    exf_code rc = exf_mem_new(&all, o->n + 1, sizeof *all, "option keys", err);
    size_t n = 0;
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < o->n; i++)
        if (key_of(o, i, rank)) all[n++] = leaves ? leaf_of(o->table[i].key) : o->table[i].key;
    *near = exf_nearest(word, all);
    exf_mem_free(all);
    return rc;
}

/* Finds the keys that may be meant: by the last part in any section, then by the whole name, then by a last part that is
 * near. */
static exf_code find_meant(const exf_opts *o, exf_opt_rank rank, const char *key, keys *meant, exf_err *err)
{
    const char *near = NULL;
    exf_code rc = EXF_OK;
    *meant = keys_of_leaf(o, rank, leaf_of(key));
    if (meant->n) return EXF_OK;
    EXF_TRY(nearest_key(o, rank, key, 0, &near, err));
    if (near) add_key(meant, near);
    if (near) goto out;
    EXF_TRY(nearest_key(o, rank, leaf_of(key), 1, &near, err));
    if (near) *meant = keys_of_leaf(o, rank, near);
out:
    return rc;
}

exf_code exf_opt_hint(const exf_opts *o, exf_opt_rank rank, const char *key, char hint[EXF_OPT_HINT_MAX], exf_err *err)
{
    const char *value = NULL, *dot = strchr(key, '.'); /* value: a key that is one and is taken for a section */
    keys section = keys_of_section(o, rank, key, strlen(key)), meant;
    exf_code rc = EXF_OK;
    hint[0] = 0;
    for (size_t i = 0; !value && i < o->n; i++) {
        value = key_of(o, i, rank);
        if (value && !(exf_starts_with(key, value) && key[strlen(value)] == '.')) value = NULL;
    }
    if (section.n) {
        list_keys(&section, "; it is a section, not a value: its keys are ", hint);
    } else if (value) {
        snprintf(hint, EXF_OPT_HINT_MAX, "; \"%.80s\" is one value, not a section", value);
    } else {
        EXF_TRY(find_meant(o, rank, key, &meant, err));
        if (dot) section = keys_of_section(o, rank, key, (size_t)(dot - key));
        size_t used = 0;
        for (size_t i = 0; i < meant.n && i < NAMED; i++)
            used += (size_t)snprintf(hint + used, EXF_OPT_HINT_MAX - used, "%s\"%.80s\"", i ? " or " : "; did you mean ",
                                     meant.key[i]);
        if (meant.n)
            snprintf(hint + used, EXF_OPT_HINT_MAX - used, "?");
        else if (section.n)
            list_keys(&section, section.n == 1 ? "; the section's key is " : "; the section's keys are ", hint);
    }
out:
    return rc;
}

/* ---- the command line ---------------------------------------------------------------- */

/* Names the programs that take the key, or what is near. */
exf_code exf_opt_refuse_key(const exf_opts *o, const char *where, const char *key, exf_err *err)
{
    char hint[EXF_OPT_HINT_MAX];
    exf_text who = {0};
    exf_code rc;
    if (o->scope) EXF_TRY(o->scope->others(key, &who, err));
    if (who.len) {
        rc = exf_fail(err, EXF_USAGE, "%.80s: is a key of %s; this program does not use it", where, who.s);
        goto out;
    }
    EXF_TRY(exf_opt_hint(o, EXF_OPT_BY_ARGV, key, hint, err));
    rc = exf_fail(err, EXF_USAGE, "%.80s: unknown key%s", where, hint);
out:
    exf_text_free(&who);
    return rc;
}

/* The nearest flag to word; with on_off only among those that have a --no- form. */
static exf_code nearest_flag(const exf_opts *o, const char *word, int on_off, const char **near, exf_err *err)
{
    const char **flags;
    exf_code rc = exf_mem_new(&flags, o->n + 2, sizeof *flags, "option flags", err);
    if (rc != EXF_OK) return rc;
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++)
        if (o->table[i].flag && exf_opt_takes_row(o, i, EXF_OPT_BY_ARGV) && (!on_off || o->table[i].type == EXF_OPT_FLAG))
            flags[n++] = o->table[i].flag;
    if (!on_off) flags[n] = "set";
    *near = exf_nearest(word, flags);
    exf_mem_free(flags);
    return EXF_OK;
}

/* Finds the flag that other programs call `word`; *near stays NULL where there is none. */
static exf_code other_name(const exf_opts *o, const char *word, const char **near, exf_err *err)
{
    static const char *const names[][2] = {{"dataset", "text"}, {"data", "text"}, {"corpus", "text"}, {"input", "text"},
                                           {"model-path", "model"}, {"model-name-or-path", "model"},
                                           {"model_name_or_path", "model"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(word, names[i][0]) != 0) continue;
        exf_code rc = nearest_flag(o, names[i][1], 0, near, err);
        if (rc != EXF_OK) return rc;
        if (*near && strcmp(*near, names[i][1]) != 0) *near = NULL;
    }
    return EXF_OK;
}

/* A long option that no program takes: it may be a recipe key's last part, another program's word, or misspelt. */
static exf_code refuse_misspelt_flag(const exf_opts *o, const char *name, exf_err *err)
{
    const char *near = NULL, *word = name + strlen("--");
    keys k = keys_of_leaf(o, EXF_OPT_BY_ARGV, word);
    exf_code rc;
    if (k.n == 1) near = o->table[exf_opt_find_key(o, k.key[0])].flag;
    if (k.n && !near)
        return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --set %s=VALUE%s%s%s?", name, k.key[0],
                        k.n > 1 ? " or --set " : "", k.n > 1 ? k.key[1] : "", k.n > 1 ? "=VALUE" : "");
    if (!near) EXF_TRY(other_name(o, word, &near, err));
    if (!near) EXF_TRY(nearest_flag(o, word, 0, &near, err));
    if (near) return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --%s?", name, near);
    if (exf_starts_with(word, "no-")) EXF_TRY(nearest_flag(o, word + strlen("no-"), 1, &near, err));
    if (near) return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --no-%s?", name, near);
    rc = exf_fail(err, EXF_USAGE, "%.80s: unknown option", name);
out:
    return rc;
}

exf_code exf_opt_refuse_flag(const exf_opts *o, const char *name, exf_err *err)
{
    exf_text who = {0};
    exf_code rc;
    if (o->scope) EXF_TRY(o->scope->others(name, &who, err));
    if (who.len)
        rc = exf_fail(err, EXF_USAGE, "%.80s: is an option of %s; this program does not take it", name, who.s);
    else if (exf_starts_with(name, "--"))
        rc = refuse_misspelt_flag(o, name, err);
    else
        rc = exf_fail(err, EXF_USAGE, "%.80s: unknown option", name);
out:
    exf_text_free(&who);
    return rc;
}
