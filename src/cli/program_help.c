/* program_help.c - what a program says of itself, for people (--help, --help-keys, the list of `exfold`) and as data for the pages
 * that are made of it (--help-json); see program.h. */
#include "cli/program.h"

#include "base/log.h"
#include "base/mem.h"
#include "capture/manifest.h"
#include "export/writer.h"
#include "fold/variant.h"
#include "format/json.h"

#include <stdio.h>
#include <string.h>

enum { COMMAND_COLUMN = 12, PROGRAM_COLUMN = 14, TARGET_COLUMN = 35 };

/* ---- --help ------------------------------------------------------------------------- */

/* Replaces the ends of lines by blanks. */
static void join_lines(exf_text *text)
{
    for (size_t i = 0; i < text->len; i++)
        if (text->s[i] == '\n') text->s[i] = ' ';
}

/* Adds a paragraph, its lines broken anew, between blank lines. */
static exf_code add_paragraph(exf_text *out, const char *text, exf_err *err)
{
    exf_code rc;
    exf_text line = {0};
    exf_text_appendf(&line, "%s", text);
    EXF_TRY(exf_text_end(&line, err));
    join_lines(&line);
    exf_text_append(out, "\n", 1);
    EXF_TRY(exf_opts_help_line("", line.s, 0, out, err));
    exf_text_append(out, "\n", 1);
out:
    exf_text_free(&line);
    return rc;
}

/* Adds "  name   what it does", up to the first "; ". */
static exf_code add_command(exf_text *out, const exf_command *c, exf_err *err)
{
    const char *end = strstr(c->about, "; ");
    exf_text left = {0}, right = {0};
    exf_code rc;
    exf_text_appendf(&left, "  %s", c->name);
    exf_text_append(&right, c->about, end ? (size_t)(end - c->about) : strlen(c->about));
    EXF_TRY(exf_text_end(&left, err));
    EXF_TRY(exf_text_end(&right, err));
    join_lines(&right);
    EXF_TRY(exf_opts_help_line(left.s, right.s, COMMAND_COLUMN, out, err));
out:
    exf_text_free(&left);
    exf_text_free(&right);
    return rc;
}

/* Lists the programs by group, for `exfold`. */
static exf_code add_programs(exf_text *out, exf_err *err)
{
    const exf_program *p;
    exf_text left = {0};
    exf_code rc = EXF_OK;
    for (const exf_program_group *g = exf_program_groups; g->name; g++) {
        exf_text_appendf(out, "%s:\n", g->heading);
        for (size_t i = 0; (p = exf_program_at(i)); i++) {
            if (strcmp(p->group, g->name) != 0) continue;
            left.len = 0;
            exf_text_appendf(&left, "  %s", p->name + strlen("exfold-"));
            EXF_TRY(exf_text_end(&left, err));
            EXF_TRY(exf_opts_help_line(left.s, p->brief, PROGRAM_COLUMN, out, err));
        }
        exf_text_append(out, "\n", 1);
    }
out:
    exf_text_free(&left);
    return rc;
}

/* Adds the options that c takes, or all where c is NULL; --set, which stands for the other keys, comes before the program's own. */
static exf_code add_options(exf_text *out, const exf_program *p, const exf_command *c, exf_err *err)
{
    static const exf_opt set = {NULL, "set", 0, EXF_OPT_TEXT, 0, NULL, "KEY=VALUE", "Recipe",
                                "any key that --help-keys lists; it beats the recipe's"};
    exf_opt *all = NULL, *rows = NULL;
    size_t n_all, n_common, n = 0;
    exf_code rc;
    EXF_TRY(exf_program_rows(p, 0, &all, &n_all, &n_common, err));
    EXF_TRY(exf_mem_new(&rows, n_all + 1, sizeof *rows, "option table", err));
    for (size_t i = n_common; i <= n_all; i++) {
        if (i + p->n_rows == n_all && p->keys) rows[n++] = set;
        if (i < n_all && (!c || exf_command_takes(c, all[i].flag))) rows[n++] = all[i];
    }
    exf_text_appendf(out, "Options:\n");
    EXF_TRY(exf_opts_help(rows, n, out, err));
    rc = exf_opts_help_flags(all, n_common, out, err);
out:
    exf_mem_free(all);
    exf_mem_free(rows);
    return rc;
}

exf_code exf_help_text(const exf_program *p, const exf_command *c, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_text_appendf(out, "Usage: %s%s%s%s %s\n", p->name, c ? " " : "", c ? c->name : "", p->runs_others ? "" : " [OPTION ...]",
                     c ? c->arguments : p->arguments);
    EXF_TRY(add_paragraph(out, c ? c->about : p->about, err));
    const char *example = c ? NULL : p->examples;
    for (int i = 0; i < 2 && example && *example; i++) {
        int n = (int)strcspn(example, "\n");
        exf_text_appendf(out, "  %.*s\n", n, example);
        example += n + (example[n] == '\n');
    }
    if (!c) exf_text_append(out, "\n", 1);
    if (!c && p->n_commands) {
        exf_text_appendf(out, "Commands:\n");
        for (size_t i = 0; i < p->n_commands; i++) EXF_TRY(add_command(out, &p->commands[i], err));
        exf_text_append(out, "\n", 1);
    }
    EXF_TRY(p->runs_others ? add_programs(out, err) : add_options(out, p, c, err));
    if (p->runs_others) {
        exf_text_appendf(out, "`exfold help PROGRAM` explains one of them; man 7 exfold is the overview.\n");
    } else {
        if (p->n_commands) exf_text_appendf(out, "Arguments and options of a command: %s COMMAND --help\n", p->name);
        exf_text_appendf(out, "Exit status, files, every option in full: man %s\n", p->name);
    }
    rc = exf_text_end(out, err);
out:
    return rc;
}

/* ---- --help-keys ---------------------------------------------------------------------- */

exf_code exf_help_keys_text(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_opt *rows = NULL;
    exf_text left = {0};
    const exf_writer *w;
    size_t n;
    exf_code rc;
    exf_text_appendf(out,
                     "Recipe keys that %s reads, and takes as --set KEY=VALUE.\n"
                     "A recipe may hold the keys of all programs: man 5 exfold-recipe.\n\n",
                     p->name);
    EXF_TRY(exf_program_rows(p, 0, &rows, &n, NULL, err));
    EXF_TRY(exf_opts_help_keys(rows, n, out, err));
    if (!exf_program_uses(p, "output.targets")) goto out;
    exf_text_appendf(out, "\nExport targets (output.targets):\n");
    for (size_t i = 0; (w = exf_writer_at(i)); i++) {
        left.len = 0;
        exf_text_appendf(&left, "  %s (%s%s)", w->name, w->file, w->is_directory ? "/" : "");
        EXF_TRY(exf_text_end(&left, err));
        EXF_TRY(exf_opts_help_line(left.s, w->about, TARGET_COLUMN, out, err));
    }
out:
    exf_text_free(&left);
    exf_mem_free(rows);
    return rc;
}

/* ---- --help-json ------------------------------------------------------------------------ */

static exf_code write_row(exf_jw *w, const exf_opt *row, int is_common, exf_err *err)
{
    const char letter[2] = {row->letter, 0};
    exf_opt bare = {.type = row->type, .values = row->values}; /* its remarks are " (1 to 9)", or nothing */
    exf_text limits = {0};
    exf_code rc;
    EXF_TRY(exf_opt_remarks(&bare, &limits, err));
    if (limits.len) limits.s[limits.len - 1] = 0;
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "key", row->key);
    exf_jw_text(w, "flag", row->flag);
    exf_jw_text(w, "letter", row->letter ? letter : NULL);
    exf_jw_bool(w, "is_flag", row->type == EXF_OPT_FLAG);
    exf_jw_bool(w, "is_common", is_common);
    exf_jw_text(w, "value", exf_opt_placeholder(row));
    exf_jw_text(w, "default", row->fallback);
    exf_jw_text(w, "limits", limits.len ? limits.s + 2 : "");
    exf_jw_text(w, "group", row->group ? row->group : "Options");
    exf_jw_text(w, "help", row->help ? row->help : "");
    exf_jw_close(w);
out:
    exf_text_free(&limits);
    return rc;
}

static exf_code write_program(exf_jw *w, const exf_program *p, exf_err *err)
{
    exf_opt *rows = NULL;
    size_t n, n_common;
    exf_code rc;
    EXF_TRY(exf_program_rows(p, 0, &rows, &n, &n_common, err));
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "name", p->name);
    exf_jw_text(w, "arguments", p->arguments);
    exf_jw_text(w, "group", p->group);
    exf_jw_text(w, "brief", p->brief);
    exf_jw_text(w, "about", p->about);
    exf_jw_text(w, "examples", p->examples);
    exf_jw_text(w, "keys", p->keys);
    exf_jw_bool(w, "exports", exf_program_uses(p, "output.targets"));
    exf_jw_bool(w, "runs_others", p->runs_others);
    exf_jw_open(w, "commands", '[');
    for (size_t i = 0; i < p->n_commands; i++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_text(w, "name", p->commands[i].name);
        exf_jw_text(w, "arguments", p->commands[i].arguments);
        exf_jw_text(w, "about", p->commands[i].about);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_jw_open(w, "options", '[');
    for (size_t i = 0; i < n; i++) EXF_TRY(write_row(w, &rows[i], i < n_common, err));
    exf_jw_close(w);
    exf_jw_close(w);
out:
    exf_mem_free(rows);
    return rc;
}

static void write_targets(exf_jw *w)
{
    const exf_writer *writer;
    char file[256];
    exf_jw_open(w, "targets", '[');
    for (size_t i = 0; (writer = exf_writer_at(i)); i++) {
        snprintf(file, sizeof file, "%s%s", writer->file, writer->is_directory ? "/" : "");
        exf_jw_open(w, NULL, '{');
        exf_jw_text(w, "name", writer->name);
        exf_jw_text(w, "file", file);
        exf_jw_text(w, "about", writer->about);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

/* Writes an option of a variant or a key of a manifest: {name, values, default, about}. */
static void write_key(exf_jw *w, const char *name, const char *values, const char *fallback, const char *about)
{
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "name", name);
    if (values) exf_jw_text(w, "values", values);
    exf_jw_text(w, "default", fallback);
    exf_jw_text(w, "about", about);
    exf_jw_close(w);
}

static void write_manifest_keys(exf_jw *w)
{
#define X(name, value, of, fallback, about) write_key(w, name, NULL, fallback, about);
#define X_FORMAT(name, fallback, about) write_key(w, name, NULL, fallback, about);
    exf_jw_open(w, "manifest", '{');
    exf_jw_open(w, "source", '[');
    EXF_MANIFEST_SOURCE_KEYS(X)
    exf_jw_close(w);
    exf_jw_open(w, "formats", '[');
    EXF_MANIFEST_FORMATS(X_FORMAT)
    exf_jw_close(w);
    exf_jw_open(w, "origin", '[');
    EXF_MANIFEST_ORIGIN_KEYS(X)
    exf_jw_close(w);
    exf_jw_close(w);
#undef X
#undef X_FORMAT
}

static void write_variants(exf_jw *w)
{
    const exf_variant_kind *kind;
    exf_jw_open(w, "variants", '[');
    for (size_t i = 0; (kind = exf_variant_kind_at(i)); i++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_text(w, "example", kind->example);
        exf_jw_text(w, "about", kind->about);
        exf_jw_open(w, "options", '[');
        for (const exf_variant_option *o = kind->options; o->name; o++)
            write_key(w, o->name, o->values ? o->values : "", o->fallback, o->about);
        exf_jw_close(w);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

static void write_status(exf_jw *w, int status, const char *meaning)
{
    exf_jw_open(w, NULL, '{');
    exf_jw_int(w, "status", status);
    exf_jw_text(w, "meaning", meaning);
    exf_jw_close(w);
}

exf_code exf_help_json(exf_text *out, exf_err *err)
{
    size_t n;
    const exf_opt *keys = exf_recipe_key_rows(&n);
    exf_jw w = {0};
    exf_code rc;
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "release", exf_release());
    exf_jw_open(&w, "programs", '[');
    for (size_t i = 0; exf_program_at(i); i++) EXF_TRY(write_program(&w, exf_program_at(i), err));
    EXF_TRY(write_program(&w, &exf_program_exfold, err));
    exf_jw_close(&w);
    exf_jw_open(&w, "keys", '[');
    for (size_t i = 0; i < n; i++) EXF_TRY(write_row(&w, &keys[i], 0, err));
    exf_jw_close(&w);
    write_targets(&w);
    write_manifest_keys(&w);
    write_variants(&w);
    exf_jw_open(&w, "statuses", '[');
#define X(name, value, text) write_status(&w, value, text);
    EXF_CODES(X)
#undef X
#define X(value, text) write_status(&w, value, text);
    EXF_SIGNAL_STATUSES(X)
#undef X
    exf_jw_close(&w);
    exf_jw_close(&w);
    rc = exf_jw_end(&w, out, err);
out:
    exf_jw_free(&w);
    return rc;
}
