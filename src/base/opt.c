/* opt.c - the option table, its values and who set them: defaults, the recipe, the command line; see opt.h. */
#include "base/opt_internal.h"

#include "base/mem.h"

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

static exf_code check_table(const exf_opt *table, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(check_row(&table[i], err));
        for (size_t j = 0; j < i; j++) {
            const exf_opt *a = &table[j], *b = &table[i];
            if (same(a->key, b->key)) return exf_fail(err, EXF_INTERNAL, "option table: key %s stands twice", a->key);
            if (same(a->flag, b->flag)) return exf_fail(err, EXF_INTERNAL, "option table: flag --%s stands twice", a->flag);
            if (a->letter && a->letter == b->letter)
                return exf_fail(err, EXF_INTERNAL, "option table: letter -%c stands twice", a->letter);
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

/* Stores v unless a value of higher rank is set; a row of FILES that has names gets v's after them.  v is the row's, or freed, in
 * any case. */
static exf_code keep_value(exf_opts *o, size_t i, exf_opt_rank rank, exf_opt_value *v, const char *origin, exf_err *err)
{
    exf_code rc;
    char **by = o->origin[i];
    int outranked = 0;
    for (int r = (int)rank + 1; r < EXF_OPT_RANKS; r++) outranked |= by[r] != NULL;
    if (by[rank] && o->table[i].type == EXF_OPT_FILES) {
        exf_text_list had = {0};
        memcpy(&had, o->values + o->table[i].offset, sizeof had);
        size_t n = had.n, added = v->texts.n, cap = n;
        rc = exf_mem_grow(&had.item, &cap, n + added, sizeof *had.item, "file names", err);
        if (rc == EXF_OK) {
            memcpy(had.item + n, v->texts.item, added * sizeof *had.item);
            had.n += added;
            v->texts.n = 0;
        }
        memcpy(o->values + o->table[i].offset, &had, sizeof had);
    } else if (!by[rank]) {
        rc = exf_mem_strdup(&by[rank], origin, "option origin", err);
        if (rc == EXF_OK && !outranked) swap_value(o, i, v);
    } else if (same(by[rank], origin)) {
        rc = exf_fail(err, EXF_USAGE, "given twice");
    } else {
        rc = exf_fail(err, EXF_USAGE, "given twice, first by %.80s", by[rank]);
    }
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

/* ---- recipe keys ------------------------------------------------------------------ */
static exf_code find_or_explain(const exf_opts *o, const char *key, const char *where, size_t *row, exf_err *err)
{
    char hint[EXF_OPT_HINT_MAX];
    *row = exf_opt_find_key(o, key);
    if (*row < o->n) return EXF_OK;
    exf_code rc = exf_opt_hint(o, EXF_OPT_BY_RECIPE, key, hint, err);
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
    if (!exf_opt_holds_texts(o->table[i].type) && o->table[i].type != EXF_OPT_INT_LIST)
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
    size_t i = exf_opt_find_key(o, key);
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
    while (i < o->n && !(o->table[i].flag && strcmp(o->table[i].flag, flag) == 0 && exf_opt_takes_row(o, i, EXF_OPT_BY_ARGV))) i++;
    return i;
}

int exf_opts_takes(const exf_opts *o, const char *flag)
{
    return find_flag(o, flag) < o->n;
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
    size_t i = exf_opt_find_key(w->o, key);
    if (i < w->o->n && exf_opt_takes_row(w->o, i, EXF_OPT_BY_ARGV))
        rc = give(w, i, equals + 1, name.s);
    else
        rc = exf_opt_refuse_key(w->o, name.s, key, w->err);
out:
    exf_text_free(&name);
    return rc;
}

/* A flag, --no-flag where no flag is called "no-flag" itself, or --set. */
static exf_code long_option(walk *w, const char *arg)
{
    const exf_opt *table = w->o->table;
    exf_code rc;
    char *name = NULL;
    const char *equals = strchr(arg, '='), *attached = equals ? equals + 1 : NULL, *value;
    EXF_TRY(exf_mem_dup(&name, arg, equals ? (size_t)(equals - arg) : strlen(arg), "option name", w->err));
    size_t n = w->o->n, i = find_flag(w->o, name + 2), off = exf_starts_with(name, "--no-") ? find_flag(w->o, name + 5) : n;
    if (strcmp(name, "--set") == 0) {
        rc = set_key(w, attached);
    } else if (i < n && table[i].type == EXF_OPT_FLAG) {
        rc = give(w, i, attached ? attached : "true", name);
    } else if (i < n) {
        EXF_TRY(take_value(w, name, attached, &value));
        rc = give(w, i, value, name);
    } else if (off == n) {
        rc = exf_opt_refuse_flag(w->o, name, w->err);
    } else if (table[off].type != EXF_OPT_FLAG) {
        rc = exf_fail(w->err, EXF_USAGE, "%s: --%s takes a value and has no --no- form", name, table[off].flag);
    } else if (attached) {
        rc = exf_fail(w->err, EXF_USAGE, "%s: takes no value, \"%.80s\" was given", name, attached);
    } else {
        rc = give(w, off, "false", name);
    }
out:
    exf_mem_free(name);
    return rc;
}

static exf_code short_option(walk *w, const char *arg)
{
    const char *value = "true";
    size_t i = 0;
    while (i < w->o->n && !(w->o->table[i].letter == arg[1] && exf_opt_takes_row(w->o, i, EXF_OPT_BY_ARGV))) i++;
    if (i == w->o->n) return exf_opt_refuse_flag(w->o, arg, w->err);
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
