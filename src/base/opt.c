/* opt.c - the option table, its values and who set them: defaults, the recipe, the command line; see opt.h. */
#include "base/opt_internal.h"

#include "base/mem.h"
#include "base/registry.h"

#include <stdio.h>
#include <string.h>

/* ---- the table -------------------------------------------------------------- */
static const char *row_name(const exf_opt *row)
{
    return row->key ? row->key : row->flag ? row->flag : "?";
}

static int same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

static exf_code check_row(const exf_opt *row, exf_err *err)
{
    char range[EXF_OPT_RANGE_MAX];
    const char *wrong = !row->key && !row->flag              ? "has neither key nor flag"
                        : row->letter && !row->flag          ? "has a letter and no flag"
                        : same(row->flag, "set")             ? "takes the flag --set, which is built in"
                        : exf_opt_value_size(row->type) == 0 ? "has no known type"
                        : !exf_opt_range(row, range)         ? "has a range that is not min..max"
                        : row->type == EXF_OPT_CHOICE && !row->values ? "is a choice of nothing"
                        : row->type == EXF_OPT_FILES && row->key ? "adds up on the command line and has a recipe key"
                                                                      : NULL;
    return wrong ? exf_fail(err, EXF_INTERNAL, "option table: %s %s", row_name(row), wrong) : EXF_OK;
}

static exf_code check_pair(const exf_opt *a, const exf_opt *b, exf_err *err)
{
    if (same(a->key, b->key)) return exf_fail(err, EXF_INTERNAL, "option table: key %s stands twice", a->key);
    if (same(a->flag, b->flag)) return exf_fail(err, EXF_INTERNAL, "option table: flag --%s stands twice", a->flag);
    if (a->letter && a->letter == b->letter)
        return exf_fail(err, EXF_INTERNAL, "option table: letter -%c stands twice", a->letter);
    return EXF_OK;
}

static exf_code check_table(const exf_opt *table, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(check_row(&table[i], err));
        for (size_t j = 0; j < i; j++) {
            EXF_TRY(check_pair(&table[j], &table[i], err));
            /* rows of one group stand together: from j on nothing else comes in between */
            if (same(table[j].group, table[i].group) && !same(table[j + 1].group, table[i].group))
                return exf_fail(err, EXF_INTERNAL, "option table: group \"%s\" is torn apart before %s", table[i].group,
                                row_name(&table[i]));
        }
    }
out:
    return rc;
}

/* ---- values -------------------------------------------------------------------- */
static void swap_value(exf_opts *o, size_t i, exf_opt_value *v)
{
    size_t size = exf_opt_value_size(o->table[i].type);
    exf_opt_value old = {0};
    memcpy(&old, o->values + o->table[i].offset, size);
    memcpy(o->values + o->table[i].offset, v, size);
    *v = old;
}

/* Adds names to a row of FILES that has some. */
static exf_code add_file(exf_opts *o, size_t i, exf_opt_value *v, exf_err *err)
{
    exf_opt_value list = {0};
    swap_value(o, i, &list);
    exf_code rc = exf_opt_append(&list, v, err);
    swap_value(o, i, &list);
    exf_opt_value_free(o->table[i].type, v);
    return rc;
}

/* Stores v unless a value of higher rank is set; v is the row's, or freed, in any case. */
static exf_code keep_value(exf_opts *o, size_t i, exf_opt_rank rank, exf_opt_value *v, const char *origin, exf_err *err)
{
    exf_code rc;
    char **by = o->origin[i];
    int outranked = 0;
    if (by[rank] && o->table[i].type == EXF_OPT_FILES) return add_file(o, i, v, err);
    for (int r = (int)rank + 1; r < EXF_OPT_RANKS; r++) outranked |= by[r] != NULL;
    if (!by[rank]) rc = exf_mem_strdup(&by[rank], origin, "option origin", err);
    else if (same(by[rank], origin)) rc = exf_fail(err, EXF_USAGE, "given twice");
    else rc = exf_fail(err, EXF_USAGE, "given twice, first by %.80s", by[rank]);
    if (rc == EXF_OK && !outranked) swap_value(o, i, v);
    exf_opt_value_free(o->table[i].type, v);
    return rc;
}

/* Parses text for row i and stores it unless a value of higher rank is set. */
static exf_code set_row(exf_opts *o, size_t i, exf_opt_rank rank, const char *text, const char *origin, exf_err *err)
{
    exf_opt_value v;
    exf_code rc = exf_opt_parse(&v, &o->table[i], text, err);
    return rc == EXF_OK ? keep_value(o, i, rank, &v, origin, err) : rc;
}

void exf_opts_limit(exf_opts *o, const exf_opt_scope *scope)
{
    o->scope = scope;
}

static exf_code set_defaults(exf_opts *o, exf_err *err)
{
    for (size_t i = 0; i < o->n; i++) {
        const exf_opt *row = &o->table[i];
        exf_code rc = row->fallback ? set_row(o, i, EXF_OPT_BY_DEFAULT, row->fallback, "the default", err) : EXF_OK;
        if (rc == EXF_OK) continue;
        exf_err_prefix(err, "option table: default of %s: ", row_name(row));
        if (rc != EXF_USAGE) return rc;
        if (err) err->code = EXF_INTERNAL; /* the user did not write it */
        return EXF_INTERNAL;
    }
    return EXF_OK;
}

exf_code exf_opts_new(exf_opts **out, const exf_opt *table, size_t n, void *values, exf_err *err)
{
    exf_code rc;
    exf_opts *o = NULL;
    *out = NULL;
    EXF_TRY(check_table(table, n, err));
    EXF_TRY(exf_mem_new(&o, 1, sizeof *o, "options", err));
    EXF_TRY(exf_mem_new(&o->origin, n, sizeof *o->origin, "options", err));
    o->table = table;
    o->values = values;
    for (; o->n < n; o->n++) memset(o->values + table[o->n].offset, 0, exf_opt_value_size(table[o->n].type));
    EXF_TRY(set_defaults(o, err));
out:
    if (rc != EXF_OK) exf_opts_free(o);
    else *out = o;
    return rc;
}

void exf_opts_free(exf_opts *o)
{
    if (!o) return;
    for (size_t i = 0; i < o->n; i++) {
        exf_opt_value empty = {0};
        swap_value(o, i, &empty);
        exf_opt_value_free(o->table[i].type, &empty);
        for (int r = 0; r < EXF_OPT_RANKS; r++) exf_mem_free(o->origin[i][r]);
    }
    exf_mem_free(o->origin);
    exf_mem_free(o);
}

/* ---- finding the row that a key names, and what may have been meant where there is none -------------- */

enum { NAMED = 4 }; /* keys that a hint names */

/* o->n: none */
static size_t find_key(const exf_opts *o, const char *key)
{
    size_t i = 0;
    while (i < o->n && !(o->table[i].key && strcmp(o->table[i].key, key) == 0)) i++;
    return i;
}

/* 1 if row i may be given at this rank. */
static int takes_row(const exf_opts *o, size_t i, exf_opt_rank rank)
{
    return rank != EXF_OPT_BY_ARGV || !o->scope || o->scope->takes(o->scope->self, &o->table[i]);
}

/* The key of row i if there is one and this rank may give it. */
static const char *key_of(const exf_opts *o, size_t i, exf_opt_rank rank)
{
    return takes_row(o, i, rank) ? o->table[i].key : NULL;
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

/* The hint after "unknown key": the nearest keys, the section's keys, or nothing; of the keys
 * that this rank may give. */
static exf_code find_hint(const exf_opts *o, exf_opt_rank rank, const char *key, char hint[EXF_OPT_HINT_MAX], exf_err *err)
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

/* A key that --set may not give here; where: "--set KEY".  Fails in any case. */
static exf_code refuse_key(const exf_opts *o, const char *where, const char *key, exf_err *err)
{
    char hint[EXF_OPT_HINT_MAX];
    exf_text who = {0};
    exf_code rc;
    EXF_TRY(list_programs(o, key, &who, err));
    if (who.len) {
        rc = exf_fail(err, EXF_USAGE, "%.80s: is a key of %s; this program does not use it", where, who.s);
        goto out;
    }
    EXF_TRY(find_hint(o, EXF_OPT_BY_ARGV, key, hint, err));
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
        if (o->table[i].flag && takes_row(o, i, EXF_OPT_BY_ARGV) && (!on_off || o->table[i].type == EXF_OPT_FLAG))
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

/* A recipe key's last part, typed as if it were a flag: fails, or EXF_OK if word is none. */
static exf_code key_as_flag(const exf_opts *o, const char *name, exf_err *err)
{
    keys k = keys_of_leaf(o, EXF_OPT_BY_ARGV, name + strlen("--"));
    if (k.n == 0) return EXF_OK;
    size_t i = find_key(o, k.key[0]);
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
    EXF_TRY(other_name(o, word, &near, err));
    if (!near) EXF_TRY(nearest_flag(o, word, 0, &near, err));
    if (near) return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --%s?", name, near);
    if (exf_starts_with(word, "no-")) EXF_TRY(nearest_flag(o, word + strlen("no-"), 1, &near, err));
    if (near) return exf_fail(err, EXF_USAGE, "%.80s: unknown option; did you mean --no-%s?", name, near);
    rc = exf_fail(err, EXF_USAGE, "%.80s: unknown option", name);
out:
    return rc;
}

/* An option of the command line that is none of this table's, "--flag" or "-x": fails in any case. */
static exf_code refuse_flag(const exf_opts *o, const char *name, exf_err *err)
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

/* ---- recipe keys ------------------------------------------------------------------ */
static exf_code find_or_explain(const exf_opts *o, const char *key, const char *where, size_t *row, exf_err *err)
{
    char hint[EXF_OPT_HINT_MAX];
    *row = find_key(o, key);
    if (*row < o->n) return EXF_OK;
    exf_code rc = find_hint(o, EXF_OPT_BY_RECIPE, key, hint, err);
    return rc == EXF_OK ? exf_fail(err, EXF_USAGE, "%s: unknown key \"%.80s\"%s", where, key, hint) : rc;
}

exf_code exf_opts_set(exf_opts *o, exf_opt_rank rank, const char *key, const char *text, const char *where, exf_err *err)
{
    size_t i;
    exf_code rc = find_or_explain(o, key, where, &i, err);
    if (rc != EXF_OK) return rc;
    rc = set_row(o, i, rank, text, where, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: %s: ", where, key);
    return rc;
}

exf_code exf_opts_set_list(exf_opts *o, exf_opt_rank rank, const char *key, const char *const *item, size_t n,
                           const char *where, exf_err *err)
{
    size_t i;
    exf_opt_value v;
    exf_code rc = find_or_explain(o, key, where, &i, err);
    if (rc != EXF_OK) return rc;
    if (!exf_opt_is_list(o->table[i].type))
        return exf_fail(err, EXF_USAGE, "%s: %s: a list of %zu, expected one value", where, key, n);
    rc = exf_opt_parse_items(&v, &o->table[i], item, n, err);
    if (rc == EXF_OK) rc = keep_value(o, i, rank, &v, where, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: %s: ", where, key);
    return rc;
}

static int row_given(const exf_opts *o, size_t i, exf_opt_rank rank)
{
    for (int r = (int)rank; r < EXF_OPT_RANKS; r++)
        if (o->origin[i][r]) return 1;
    return 0;
}

int exf_opts_given(const exf_opts *o, const char *key, exf_opt_rank rank)
{
    for (size_t i = 0; i < o->n; i++)
        if (same(row_name(&o->table[i]), key) && row_given(o, i, rank)) return 1;
    return 0;
}

int exf_opts_is_section(const exf_opts *o, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < o->n; i++)
        if (o->table[i].key && strncmp(o->table[i].key, key, n) == 0 && o->table[i].key[n] == '.') return 1;
    return 0;
}

exf_code exf_opts_place(const exf_opts *o, const char *key, exf_text *out, exf_err *err)
{
    size_t i = find_key(o, key);
    char *const *by = i < o->n ? o->origin[i] : NULL;
    if (by && by[EXF_OPT_BY_ARGV])
        exf_text_appendf(out, "%s", by[EXF_OPT_BY_ARGV]);
    else
        exf_text_appendf(out, "%s%s%s", by && by[EXF_OPT_BY_RECIPE] ? by[EXF_OPT_BY_RECIPE] : "",
                         by && by[EXF_OPT_BY_RECIPE] ? ": " : "", key);
    return exf_text_end(out, err);
}

exf_code exf_opts_value(const exf_opts *o, size_t i, exf_text *out, exf_err *err)
{
    exf_opt_value v = {0};
    if (i >= o->n) return exf_fail(err, EXF_INTERNAL, "option row %zu of %zu", i, o->n);
    const exf_opt *row = &o->table[i];
    exf_text_append(out, "", 0); /* so that there is a text, should the value be unset */
    if (!row_given(o, i, EXF_OPT_BY_DEFAULT)) return exf_text_end(out, err);
    memcpy(&v, o->values + row->offset, exf_opt_value_size(row->type));
    return exf_opt_print(out, row, &v, err);
}

/* ---- the command line ------------------------------------------------------------- */

typedef struct {
    exf_opts *o;
    int argc;
    char **argv;
    int at; /* the argument being read */
    exf_err *err;
} walk; /* over the arguments */

static size_t find_flag(const exf_opts *o, const char *flag)
{
    size_t i = 0;
    while (i < o->n && !(o->table[i].flag && strcmp(o->table[i].flag, flag) == 0 && takes_row(o, i, EXF_OPT_BY_ARGV))) i++;
    return i;
}

int exf_opts_takes(const exf_opts *o, const char *flag)
{
    return find_flag(o, flag) < o->n;
}

static size_t find_letter(const exf_opts *o, char letter)
{
    size_t i = 0;
    while (i < o->n && !(letter && o->table[i].letter == letter && takes_row(o, i, EXF_OPT_BY_ARGV))) i++;
    return i;
}

/* Takes an option's value: the text after "=", or the next argument. */
static exf_code take_value(walk *w, const char *name, const char *attached, const char **value)
{
    *value = attached;
    if (attached) return EXF_OK;
    if (w->at + 1 >= w->argc) return exf_fail(w->err, EXF_USAGE, "%s: needs a value", name);
    const char *next = w->argv[w->at + 1];
    if (exf_starts_with(next, "--")) /* "--output --force" more likely lacks a value */
        return exf_fail(w->err, EXF_USAGE, "%s: needs a value, but %.80s follows", name, next);
    *value = next;
    w->at++;
    return EXF_OK;
}

static exf_code give(walk *w, size_t i, const char *text, const char *name)
{
    exf_code rc = set_row(w->o, i, EXF_OPT_BY_ARGV, text, name, w->err);
    if (rc != EXF_OK) exf_err_prefix(w->err, "%s: ", name);
    return rc;
}

static exf_code set_key(walk *w, const char *attached)
{
    exf_code rc;
    const char *pair, *equals;
    exf_text name = {0};
    EXF_TRY(take_value(w, "--set", attached, &pair));
    equals = strchr(pair, '=');
    if (!equals || equals == pair) {
        rc = exf_fail(w->err, EXF_USAGE, "--set %.80s: expected KEY=VALUE", pair);
        goto out;
    }
    exf_text_appendf(&name, "--set %.*s", (int)(equals - pair), pair);
    EXF_TRY(exf_text_end(&name, w->err));
    const char *key = name.s + strlen("--set ");
    size_t i = find_key(w->o, key);
    if (i < w->o->n && takes_row(w->o, i, EXF_OPT_BY_ARGV))
        rc = give(w, i, equals + 1, name.s);
    else
        rc = refuse_key(w->o, name.s, key, w->err);
out:
    exf_text_free(&name);
    return rc;
}

/* --no-name, where no flag is called "no-name" itself. */
static exf_code switch_off(walk *w, const char *name, const char *attached)
{
    size_t i = find_flag(w->o, name + strlen("--no-"));
    if (w->o->table[i].type != EXF_OPT_FLAG)
        return exf_fail(w->err, EXF_USAGE, "%s: --%s takes a value and has no --no- form", name, w->o->table[i].flag);
    if (attached) return exf_fail(w->err, EXF_USAGE, "%s: takes no value, \"%.80s\" was given", name, attached);
    return give(w, i, "false", name);
}

static exf_code long_option(walk *w, const char *arg)
{
    exf_code rc;
    char *name = NULL;
    const char *equals = strchr(arg, '='), *attached = equals ? equals + 1 : NULL, *value;
    EXF_TRY(exf_mem_dup(&name, arg, equals ? (size_t)(equals - arg) : strlen(arg), "option name", w->err));
    size_t i = find_flag(w->o, name + 2);
    if (strcmp(name, "--set") == 0) {
        rc = set_key(w, attached);
    } else if (i < w->o->n && w->o->table[i].type == EXF_OPT_FLAG) {
        rc = give(w, i, attached ? attached : "true", name);
    } else if (i < w->o->n) {
        EXF_TRY(take_value(w, name, attached, &value));
        rc = give(w, i, value, name);
    } else if (exf_starts_with(name, "--no-") && find_flag(w->o, name + strlen("--no-")) < w->o->n) {
        rc = switch_off(w, name, attached);
    } else {
        rc = refuse_flag(w->o, name, w->err);
    }
out:
    exf_mem_free(name);
    return rc;
}

static exf_code short_option(walk *w, const char *arg)
{
    const char *value = "true";
    size_t i = find_letter(w->o, arg[1]);
    if (i == w->o->n) return refuse_flag(w->o, arg, w->err);
    if (arg[2]) return exf_fail(w->err, EXF_USAGE, "%.80s: unknown option; a blank is needed after -%c", arg, arg[1]);
    exf_code rc = w->o->table[i].type == EXF_OPT_FLAG ? EXF_OK : take_value(w, arg, NULL, &value);
    return rc == EXF_OK ? give(w, i, value, arg) : rc;
}

exf_code exf_opts_argv(exf_opts *o, int argc, char **argv, const char **positional, size_t *n_positional, exf_err *err)
{
    exf_code rc = EXF_OK;
    int flags_ended = 0;
    walk w = {o, argc, argv, 1, err};
    *n_positional = 0;
    for (; w.at < argc; w.at++) {
        const char *arg = argv[w.at];
        if (flags_ended || arg[0] != '-' || arg[1] == 0) positional[(*n_positional)++] = arg;
        else if (strcmp(arg, "--") == 0) flags_ended = 1;
        else if (arg[1] == '-') EXF_TRY(long_option(&w, arg));
        else EXF_TRY(short_option(&w, arg));
    }
out:
    return rc;
}
