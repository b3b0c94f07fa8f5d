/* help.c - see help.h. */
#include "cli/help.h"

#include "base/mem.h"
#include "export/writer.h"
#include "cli/programs.h"

#include <string.h>

enum { COMMAND_COLUMN = 12, PROGRAM_COLUMN = 14, TARGET_COLUMN = 35 };

int exf_command_takes(const exf_command *c, const char *flag)
{
    size_t n = strlen(flag);
    for (const char *at = c->flags; (at = strstr(at, flag)); at += n)
        if ((at == c->flags || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return 1;
    return 0;
}

/* ---- text -------------------------------------------------------------------------- */

/* Text whose lines are broken anew, between blank lines. */
static exf_code add_paragraph(exf_text *out, const char *text, exf_err *err)
{
    exf_code rc;
    exf_text line = {0};
    EXF_TRY(exf_text_addf(&line, err, "%s", text));
    for (size_t i = 0; i < line.len; i++)
        if (line.s[i] == '\n') line.s[i] = ' ';
    EXF_TRY(exf_text_addf(out, err, "\n"));
    EXF_TRY(exf_opts_help_line("", line.s, 0, out, err));
    rc = exf_text_addf(out, err, "\n");
out:
    exf_text_free(&line);
    return rc;
}

/* The first two lines of the examples. */
static exf_code add_examples(exf_text *out, const char *examples, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < 2 && examples && *examples; i++) {
        int n = (int)strcspn(examples, "\n");
        EXF_TRY(exf_text_addf(out, err, "  %.*s\n", n, examples));
        examples += n + (examples[n] == '\n');
    }
    rc = exf_text_addf(out, err, "\n");
out:
    return rc;
}

/* "  name   what it does", up to the first "; ". */
static exf_code add_command(exf_text *out, const exf_command *c, exf_err *err)
{
    const char *end = strstr(c->about, "; ");
    exf_text left = {0}, right = {0};
    exf_code rc;
    EXF_TRY(exf_text_addf(&left, err, "  %s", c->name));
    EXF_TRY(exf_text_add(&right, c->about, end ? (size_t)(end - c->about) : strlen(c->about), err));
    for (size_t i = 0; i < right.len; i++)
        if (right.s[i] == '\n') right.s[i] = ' ';
    EXF_TRY(exf_opts_help_line(left.s, right.s, COMMAND_COLUMN, out, err));
out:
    exf_text_free(&left);
    exf_text_free(&right);
    return rc;
}

/* ---- the programs ------------------------------------------------------------------- */

static exf_code add_group(exf_text *out, const exf_program_group *g, exf_err *err)
{
    const exf_program *p;
    exf_text left = {0};
    exf_code rc = exf_text_addf(out, err, "%s:\n", g->heading);
    for (size_t i = 0; rc == EXF_OK && (p = exf_program_at(i)); i++) {
        if (strcmp(p->group, g->name) != 0) continue;
        left.len = 0;
        EXF_TRY(exf_text_addf(&left, err, "  %s", p->name + strlen("exfold-")));
        EXF_TRY(exf_opts_help_line(left.s, p->brief, PROGRAM_COLUMN, out, err));
    }
out:
    exf_text_free(&left);
    return rc;
}

static exf_code add_programs(exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (const exf_program_group *g = exf_program_groups; g->name && rc == EXF_OK; g++) {
        rc = add_group(out, g, err);
        if (rc == EXF_OK) rc = exf_text_addf(out, err, "\n");
    }
    return rc;
}

/* ---- --help ------------------------------------------------------------------------- */

/* The rows that c takes, of c NULL all, and before the program's own what stands for the other keys. */
static void choose_rows(const exf_program *p, const exf_command *c, const exf_opt *all, size_t n_all, exf_opt *rows, size_t *n)
{
    static const exf_opt set = {NULL, "set", 0, EXF_OPT_TEXT, 0, NULL, "KEY=VALUE", "Recipe",
                                "any key that --help-keys lists; it beats the recipe's"};
    *n = 0;
    for (size_t i = 0; i <= n_all; i++) {
        if (i + p->n_rows == n_all && p->keys) rows[(*n)++] = set;
        if (i < n_all && (!c || exf_command_takes(c, all[i].flag))) rows[(*n)++] = all[i];
    }
}

static exf_code add_options(exf_text *out, const exf_program *p, const exf_command *c, exf_err *err)
{
    exf_opt *all = NULL, *rows = NULL;
    size_t n_all, n_common, n;
    exf_code rc;
    EXF_TRY(exf_program_rows(p, 0, &all, &n_all, &n_common, err));
    EXF_TRY(exf_mem_new(&rows, n_all + 1, sizeof *rows, "option table", err));
    choose_rows(p, c, all + n_common, n_all - n_common, rows, &n);
    EXF_TRY(exf_text_addf(out, err, "Options:\n"));
    EXF_TRY(exf_opts_help(rows, n, out, err));
    rc = exf_opts_help_flags(all, n_common, out, err);
out:
    exf_mem_free(all);
    exf_mem_free(rows);
    return rc;
}

static exf_code add_pointer(exf_text *out, const exf_program *p, exf_err *err)
{
    exf_code rc;
    if (p->runs_others)
        return exf_text_addf(out, err, "`exfold help PROGRAM` explains one of them; man 7 exfold is the overview.\n");
    if (p->n_commands)
        EXF_TRY(exf_text_addf(out, err, "Arguments and options of a command: %s COMMAND --help\n", p->name));
    rc = exf_text_addf(out, err, "Exit status, files, every option in full: man %s\n", p->name);
out:
    return rc;
}

exf_code exf_help_text(const exf_program *p, const exf_command *c, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "Usage: %s%s%s%s %s\n", p->name, c ? " " : "", c ? c->name : "",
                          p->runs_others ? "" : " [OPTION ...]", c ? c->arguments : p->arguments));
    EXF_TRY(add_paragraph(out, c ? c->about : p->about, err));
    if (!c) EXF_TRY(add_examples(out, p->examples, err));
    if (!c && p->n_commands) EXF_TRY(exf_text_addf(out, err, "Commands:\n"));
    for (size_t i = 0; i < p->n_commands && !c; i++) EXF_TRY(add_command(out, &p->commands[i], err));
    if (!c && p->n_commands) EXF_TRY(exf_text_addf(out, err, "\n"));
    EXF_TRY(p->runs_others ? add_programs(out, err) : add_options(out, p, c, err));
    rc = add_pointer(out, p, err);
out:
    return rc;
}

/* ---- --help-keys ---------------------------------------------------------------------- */

static exf_code add_targets(exf_text *out, exf_err *err)
{
    const exf_writer *w;
    exf_text left = {0};
    exf_code rc = exf_text_addf(out, err, "\nExport targets (output.targets):\n");
    for (size_t i = 0; rc == EXF_OK && (w = exf_writer_at(i)); i++) {
        left.len = 0;
        EXF_TRY(exf_text_addf(&left, err, "  %s (%s%s)", w->name, w->file, w->is_directory ? "/" : ""));
        EXF_TRY(exf_opts_help_line(left.s, w->about, TARGET_COLUMN, out, err));
    }
out:
    exf_text_free(&left);
    return rc;
}

exf_code exf_help_keys_text(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_opt *rows = NULL;
    size_t n;
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err,
                          "Recipe keys that %s reads, and takes as --set KEY=VALUE.\n"
                          "A recipe may hold the keys of all programs: man 5 exfold-recipe.\n\n",
                          p->name));
    EXF_TRY(exf_program_rows(p, 0, &rows, &n, NULL, err));
    EXF_TRY(exf_opts_help_keys(rows, n, out, err));
    if (exf_program_uses(p, "output.targets")) rc = add_targets(out, err);
out:
    exf_mem_free(rows);
    return rc;
}
