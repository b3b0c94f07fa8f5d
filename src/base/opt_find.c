/* opt_find.c - finds the row that a key names, and says what may have been meant where there is none; see opt_internal.h. */
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

int exf_opt_takes(const exf_opts *o, size_t i, exf_opt_rank rank)
{
    return rank != EXF_OPT_BY_ARGV || !o->scope || o->scope->takes(o->scope->self, &o->table[i]);
}

/* The key of row i if there is one and this rank may give it. */
static const char *key_of(const exf_opts *o, size_t i, exf_opt_rank rank)
{
    return exf_opt_takes(o, i, rank) ? o->table[i].key : NULL;
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

/* Compares a typed name with a key's last part: "max-tokens" is max_tokens. */
static int same_leaf(const char *a, const char *b)
{
    while (*a && (*a == '-' ? '_' : *a) == *b) a++, b++;
    return !*a && !*b;
}

/* Returns the keys whose last part is leaf, or the key that is leaf. */
static keys keys_of_leaf(const exf_opts *o, exf_opt_rank rank, const char *leaf)
{
    keys k = {.n = 0};
    for (size_t i = 0; i < o->n; i++) {
        const char *key = key_of(o, i, rank);
        if (key && (same_leaf(leaf, leaf_of(key)) || strcmp(leaf, key) == 0)) add_key(&k, key);
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

/* `; did you mean "a" or "b"?` into hint. */
static void ask_for(const keys *k, char hint[EXF_OPT_HINT_MAX])
{
    size_t used = (size_t)snprintf(hint, EXF_OPT_HINT_MAX, "; did you mean ");
    for (size_t i = 0; i < k->n && i < NAMED; i++)
        used += (size_t)snprintf(hint + used, EXF_OPT_HINT_MAX - used, "%s\"%.80s\"", i ? " or " : "", k->key[i]);
    snprintf(hint + used, EXF_OPT_HINT_MAX - used, "?");
}

/* ---- keys -------------------------------------------------------------------------- */

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

/* The key that is a value and that `key` takes for a section; NULL: none. */
static const char *value_above(const exf_opts *o, exf_opt_rank rank, const char *key)
{
    for (size_t i = 0; i < o->n; i++) {
        const char *value = key_of(o, i, rank);
        if (value && exf_starts_with(key, value) && key[strlen(value)] == '.') return value;
    }
    return NULL;
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

exf_code exf_opt_key_hint(const exf_opts *o, exf_opt_rank rank, const char *key, char hint[EXF_OPT_HINT_MAX], exf_err *err)
{
    const char *value = value_above(o, rank, key), *dot = strchr(key, '.');
    keys section = keys_of_section(o, rank, key, strlen(key)), meant;
    exf_code rc = EXF_OK;
    hint[0] = 0;
    if (section.n) {
        list_keys(&section, "; it is a section, not a value: its keys are ", hint);
    } else if (value) {
        snprintf(hint, EXF_OPT_HINT_MAX, "; \"%.80s\" is one value, not a section", value);
    } else {
        EXF_TRY(find_meant(o, rank, key, &meant, err));
        if (dot) section = keys_of_section(o, rank, key, (size_t)(dot - key));
        if (meant.n)
            ask_for(&meant, hint);
        else if (section.n)
            list_keys(&section, section.n == 1 ? "; the section's key is " : "; the section's keys are ", hint);
    }
out:
    return rc;
}

/* ---- the command line ---------------------------------------------------------------- */

/* Lists the programs that take an option which this one does not take; empty: none is known. */
static exf_code list_programs(const exf_opts *o, const char *option, exf_text *who, exf_err *err)
{
    return o->scope ? o->scope->others(option, who, err) : EXF_OK;
}

exf_code exf_opt_unknown_key(const exf_opts *o, const char *where, const char *key, exf_err *err)
{
    char hint[EXF_OPT_HINT_MAX];
    exf_text who = {0};
    exf_code rc;
    EXF_TRY(list_programs(o, key, &who, err));
    if (who.len) {
        rc = exf_fail(err, EXF_USAGE, "%.80s: is a key of %s; this program does not use it", where, who.s);
        goto out;
    }
    EXF_TRY(exf_opt_key_hint(o, EXF_OPT_BY_ARGV, key, hint, err));
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
        if (o->table[i].flag && exf_opt_takes(o, i, EXF_OPT_BY_ARGV) && (!on_off || o->table[i].type == EXF_OPT_FLAG))
            flags[n++] = o->table[i].flag;
    if (!on_off) flags[n] = "set";
    *near = exf_nearest(word, flags);
    exf_mem_free(flags);
    return EXF_OK;
}

/* A recipe key's last part, typed as if it were a flag: fails, or EXF_OK if word is none. */
static exf_code key_as_flag(const exf_opts *o, const char *name, exf_err *err)
{
    keys k = keys_of_leaf(o, EXF_OPT_BY_ARGV, name + strlen("--"));
    if (k.n == 0) return EXF_OK;
    size_t i = exf_opt_find_key(o, k.key[0]);
    if (k.n == 1 && o->table[i].flag)
        return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --%s?", name, o->table[i].flag);
    return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --set %s=VALUE%s%s%s?", name, k.key[0],
                    k.n > 1 ? " or --set " : "", k.n > 1 ? k.key[1] : "", k.n > 1 ? "=VALUE" : "");
}

static exf_code refuse_misspelt_flag(const exf_opts *o, const char *name, exf_err *err)
{
    const char *near = NULL, *word = name + strlen("--");
    exf_code rc;
    EXF_TRY(key_as_flag(o, name, err));
    EXF_TRY(nearest_flag(o, word, 0, &near, err));
    if (near) return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --%s?", name, near);
    if (exf_starts_with(word, "no-")) EXF_TRY(nearest_flag(o, word + strlen("no-"), 1, &near, err));
    if (near) return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --no-%s?", name, near);
    rc = exf_fail(err, EXF_USAGE, "%.80s: unknown option", name);
out:
    return rc;
}

exf_code exf_opt_unknown_flag(const exf_opts *o, const char *name, exf_err *err)
{
    exf_text who = {0};
    exf_code rc;
    EXF_TRY(list_programs(o, name, &who, err));
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
