/* opt_argv.c - the command line against the option table; see opt.h. */
#include "base/opt_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    exf_opts *o;
    int argc;
    char **argv;
    int at; /* the argument being read */
    exf_err *err;
} walk;

static size_t find_flag(const exf_opts *o, const char *flag)
{
    size_t i = 0;
    while (i < o->n && !(o->table[i].flag && strcmp(o->table[i].flag, flag) == 0 && exf_opt_takes(o, i, EXF_OPT_BY_ARGV))) i++;
    return i;
}

static size_t find_letter(const exf_opts *o, char letter)
{
    size_t i = 0;
    while (i < o->n && !(letter && o->table[i].letter == letter && exf_opt_takes(o, i, EXF_OPT_BY_ARGV))) i++;
    return i;
}

/* Takes an option's value: the text after "=", or the next argument. */
static exf_code take_value(walk *w, const char *name, const char *attached, const char **value)
{
    *value = attached;
    if (attached) return EXF_OK;
    if (w->at + 1 >= w->argc) return exf_fail(w->err, EXF_USAGE, "%s: needs a value", name);
    const char *next = w->argv[w->at + 1];
    if (exf_starts_with(next, "--")) /* "--output --force" is far likelier a forgotten value */
        return exf_fail(w->err, EXF_USAGE, "%s: needs a value, but %.80s follows", name, next);
    *value = next;
    w->at++;
    return EXF_OK;
}

static exf_code give(walk *w, size_t i, const char *text, const char *name)
{
    exf_code rc = exf_opt_give(w->o, i, EXF_OPT_BY_ARGV, text, name, w->err);
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
    EXF_TRY(exf_text_addf(&name, w->err, "--set %.*s", (int)(equals - pair), pair));
    const char *key = name.s + strlen("--set ");
    size_t i = exf_opt_find_key(w->o, key);
    if (i < w->o->n && exf_opt_takes(w->o, i, EXF_OPT_BY_ARGV))
        rc = give(w, i, equals + 1, name.s);
    else
        rc = exf_opt_unknown_key(w->o, name.s, key, w->err);
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
        rc = exf_opt_unknown_flag(w->o, name, w->err);
    }
out:
    exf_mem_free(name);
    return rc;
}

static exf_code short_option(walk *w, const char *arg)
{
    const char *value = "true";
    size_t i = find_letter(w->o, arg[1]);
    if (i == w->o->n) return exf_opt_unknown_flag(w->o, arg, w->err);
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
