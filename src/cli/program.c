/* program.c - which programs there are, which options and recipe keys each takes, what lies beside them, and how `exfold`
 * becomes one of them; see program.h. */
#include "cli/program.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/registry.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define X(name) extern const exf_program exf_program_##name;
#include "gen/exfold.inc"
#undef X

EXF_REGISTRY_BEGIN
#define X(name) &exf_program_##name,
#include "gen/exfold.inc"
#undef X
EXF_REGISTRY_END(program)

const exf_program_group exf_program_groups[] = {
    {"make", "Make tables in one go"},
    {"steps", "Make them step by step"},
    {"check", "Check what they do to the model"},
    {"look", "Look at files"},
    {NULL, NULL},
};

static const char prefix[] = "exfold-";

exf_code exf_program_require(const char *word, const exf_program **out, exf_err *err)
{
    exf_text known = {0};
    const char **names = NULL, *near;
    exf_code rc;
    if (exf_starts_with(word, prefix)) word += strlen(prefix);
    EXF_TRY(exf_mem_new(&names, registry.n + 1, sizeof *names, "names", err));
    for (size_t i = 0; (*out = exf_program_at(i)); i++) {
        names[i] = (*out)->name + strlen(prefix);
        if (strcmp(names[i], word) == 0) goto out;
        exf_text_appendf(&known, "%s%s", i ? ", " : "", names[i]);
    }
    EXF_TRY(exf_text_end(&known, err));
    near = exf_nearest(word, names);
    rc = exf_fail(err, EXF_USAGE, "\"%.80s\" is no program of ExFold (known: %s)%s%s%s", word, known.s,
                  near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
out:
    exf_text_free(&known);
    exf_mem_free(names);
    return rc;
}

/* ---- who takes what ------------------------------------------------------------- */

int exf_program_uses(const exf_program *p, const char *key)
{
    const char *word = p->keys ? p->keys : "";
    while (*(word += strspn(word, " "))) {
        size_t n = strcspn(word, " ");
        if (strncmp(word, key, n) == 0 && (key[n] == 0 || key[n] == '.')) return 1;
        word += n;
    }
    return 0;
}

int exf_command_takes(const exf_command *c, const char *flag)
{
    size_t n = strlen(flag);
    for (const char *at = c->flags; (at = strstr(at, flag)); at += n)
        if ((at == c->flags || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
    return 0;
}

/* A program's options have three parts, in this order. */
enum { COMMON, KEYS, OWN, N_PARTS };

typedef struct {
    const exf_opt *rows;
    size_t n;
} part;

static void find_parts(const exf_program *p, part parts[N_PARTS])
{
    parts[COMMON].rows = exf_recipe_global_rows(&parts[COMMON].n);
    parts[KEYS].rows = exf_recipe_key_rows(&parts[KEYS].n);
    parts[OWN] = (part){p->rows, p->n_rows};
}

/* 1 if p takes the row of that part; `exfold` itself has no run to report on. */
static int takes_row(const exf_program *p, size_t of, const exf_opt *row)
{
    if (of == KEYS) return exf_program_uses(p, row->key);
    if (of == OWN) return 1;
    if (row->offset == offsetof(exf_recipe, help_keys)) return p->keys != NULL;
    return !p->runs_others || row->offset == offsetof(exf_recipe, help) || row->offset == offsetof(exf_recipe, version);
}

/* 1 if p takes the option "--layers" or "-l", or the key. */
static int takes_option(const exf_program *p, const char *option)
{
    part parts[N_PARTS];
    find_parts(p, parts);
    for (size_t k = 0; k < N_PARTS; k++)
        for (size_t i = 0; i < parts[k].n; i++) {
            const exf_opt *row = &parts[k].rows[i];
            int is_it = exf_starts_with(option, "--") ? row->flag && strcmp(row->flag, option + 2) == 0
                        : option[0] == '-'            ? row->letter && row->letter == option[1] && !option[2]
                                                      : row->key && strcmp(row->key, option) == 0;
            if (is_it && takes_row(p, k, row)) return 1;
        }
    return 0;
}

exf_code exf_programs_taking(const char *option, exf_text *out, exf_err *err)
{
    size_t n = 0, named = 0;
    for (size_t i = 0; i < registry.n; i++) n += (size_t)takes_option(exf_program_at(i), option);
    for (size_t i = 0; i < registry.n; i++) {
        if (!takes_option(exf_program_at(i), option)) continue;
        exf_text_appendf(out, "%s%s", !named ? "" : named + 1 < n ? ", " : " and ", exf_program_at(i)->name);
        named++;
    }
    return exf_text_end(out, err);
}

exf_code exf_program_rows(const exf_program *p, int all, exf_opt **rows, size_t *n, size_t *n_common, exf_err *err)
{
    part parts[N_PARTS];
    find_parts(p, parts);
    exf_code rc = exf_mem_new(rows, parts[COMMON].n + parts[KEYS].n + parts[OWN].n, sizeof **rows, "option table", err);
    if (rc != EXF_OK) return rc;
    *n = 0;
    for (size_t k = 0; k < N_PARTS; k++) {
        int every_row = all && k == KEYS && p->keys;
        for (size_t i = 0; i < parts[k].n; i++)
            if (every_row || takes_row(p, k, &parts[k].rows[i])) (*rows)[(*n)++] = parts[k].rows[i];
        if (k == COMMON && n_common) *n_common = *n;
    }
    return EXF_OK;
}

/* ---- `exfold PROGRAM ARGUMENT ...` ---------------------------------------------------- */

/* Runs the program beside this one's file or, where the system does not say where that is or none lies there, on PATH. */
static exf_code exec_program(const exf_program *p, char **argv, exf_err *err)
{
    exf_text path = {0};
    exf_code rc;
    EXF_TRY(exf_path_beside_program(&path, 0, p->name, err));
    errno = ENOENT;
    if (path.len) execv(path.s, argv);
    if (errno == ENOENT) execvp(p->name, argv);
    rc = exf_fail_errno(err, errno, "%s: cannot run it: it is neither beside exfold nor on PATH", p->name);
out:
    exf_text_free(&path);
    return rc;
}

exf_code exf_program_become(int argc, char **argv, exf_err *err)
{
    static char help[] = "--help";
    int wants_help = strcmp(argv[1], "help") == 0 && argc > 2;
    const char *word = argv[wants_help ? 2 : 1];
    char **arguments = NULL;
    const exf_program *p;
    exf_code rc;
    EXF_TRY(exf_program_require(word, &p, err));
    if (wants_help && argc > 3) {
        rc = exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: exfold help PROGRAM", argv[3]);
        goto out;
    }
    EXF_TRY(exf_mem_new(&arguments, (size_t)argc + 2, sizeof *arguments, "arguments", err));
    arguments[0] = (char *)(uintptr_t)p->name;
    for (int i = 2; i < argc; i++) arguments[i - 1] = argv[i];
    if (wants_help) arguments[1] = help;
    rc = exec_program(p, arguments, err);
out:
    exf_mem_free(arguments);
    return rc;
}
