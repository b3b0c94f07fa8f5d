/* manual.c - a program's manual page and its entries in others; see manual.h. */
#include "cli/completion.h"
#include "cli/manual.h"
#include "cli/page.h"
#include "cli/programs.h"

#include "export/writer.h"

#include <ctype.h>
#include <string.h>

exf_manual_page exf_manual_find(const char *form)
{
    static const struct {
        const char *form;
        exf_manual_page page;
    } pages[] = {
        {"man", exf_manual_program},        {"recipe", exf_manual_recipe},      {"manifest", exf_manual_manifest},
        {"variants", exf_manual_variants},  {"entry", exf_manual_entry},        {"status", exf_manual_status},
        {"bash", exf_completion_bash},      {"zsh", exf_completion_zsh},        {"man.md", exf_markdown_program},
        {"recipe.md", exf_markdown_recipe}, {"manifest.md", exf_markdown_manifest}, {"variants.md", exf_markdown_variants},
        {"status.md", exf_markdown_status},
    };
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(form, pages[i].form) == 0) return pages[i].page;
    return NULL;
}

/* ---- the parts of a program's page ----------------------------------------------- */

/* A line for each way to call it; they stand between " | ". */
static exf_code add_synopsis(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_text way = {0};
    EXF_TRY(exf_text_addf(out, err, ".SH SYNOPSIS\n.nf\n"));
    for (const char *at = p->arguments, *next; at; at = next) {
        const char *bar = strstr(at, " | ");
        next = bar ? bar + 3 : NULL;
        way.len = 0;
        EXF_TRY(exf_text_add(&way, at, bar ? (size_t)(bar - at) : strlen(at), err));
        EXF_TRY(exf_text_addf(out, err, "\\fB"));
        EXF_TRY(exf_roff_text(out, p->name, err));
        EXF_TRY(exf_text_addf(out, err, "\\fR [\\fIOPTION\\fR ...] "));
        EXF_TRY(exf_roff_text(out, way.s, err));
        EXF_TRY(exf_text_addf(out, err, "\n"));
    }
    rc = exf_text_addf(out, err, ".fi\n");
out:
    exf_text_free(&way);
    return rc;
}

static exf_code add_manual_commands(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_code rc = exf_text_addf(out, err, ".SH COMMANDS\n");
    for (size_t i = 0; i < p->n_commands && rc == EXF_OK; i++) {
        EXF_TRY(exf_text_addf(out, err, ".TP\n\\fB"));
        EXF_TRY(exf_roff_text(out, p->commands[i].name, err));
        EXF_TRY(exf_text_addf(out, err, "\\fR "));
        EXF_TRY(exf_roff_text(out, p->commands[i].arguments, err));
        EXF_TRY(exf_text_addf(out, err, "\n"));
        EXF_TRY(exf_roff_text(out, p->commands[i].about, err));
        EXF_TRY(exf_text_addf(out, err, "\n"));
    }
out:
    return rc;
}

static exf_code add_keys(const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(
        exf_text_addf(out, err,
                      ".SH \"RECIPE KEYS\"\n"
                      "The program reads these keys.\n"
                      "Each can stand in the recipe, and on the command line as \\fB\\-\\-set\\fR \\fIKEY\\fR=\\fIVALUE\\fR.\n"
                      "The command line beats the recipe, the recipe beats the default.\n"
                      "See\n.BR exfold\\-recipe (5).\n"));
    rc = exf_roff_rows(out, rows, n, EXF_ROFF_KEYS, err);
out:
    return rc;
}

static exf_code add_file(const char *name, const char *about, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, ".TP\n\\fI"));
    EXF_TRY(exf_roff_text(out, name, err));
    EXF_TRY(exf_text_addf(out, err, "\\fR\n"));
    EXF_TRY(exf_roff_text(out, about, err));
    EXF_TRY(exf_text_addf(out, err, "\n"));
out:
    return rc;
}

/* The files of a run, and those of the export targets. */
static exf_code add_files(exf_text *out, exf_err *err)
{
    static const struct {
        const char *name, *about;
    } files[] = {
        {"RECIPE.yaml", "everything a run is told, exfold-recipe(5)"},
        {"capture.h5", "routes and expert outputs of chosen layers"},
        {"statistics.h5", "exact sums and counts of every pair; files of different data add up"},
        {"tables.h5", "scalars, losses, norms and pools"},
        {"validation.json, validation.md", "quality of every validated variant"},
        {"exfold_recipe.yaml", "the recipe as resolved: every key with the value that was used"},
    };
    exf_code rc;
    const exf_writer *w;
    EXF_TRY(exf_text_addf(out, err, ".SH FILES\nOutputs stand in the output directory.\n"));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) EXF_TRY(add_file(files[i].name, files[i].about, out, err));
    for (size_t i = 0; (w = exf_writer_at(i)); i++) EXF_TRY(add_file(w->file, w->about, out, err));
out:
    return rc;
}

/* ---- pages -------------------------------------------------------------------------- */

static exf_code add_head(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_roff_title(out, p->name, 1, err));
    EXF_TRY(exf_text_addf(out, err, ".SH NAME\n"));
    EXF_TRY(exf_roff_text(out, p->name, err));
    EXF_TRY(exf_text_addf(out, err, " \\- "));
    EXF_TRY(exf_roff_text(out, p->brief, err));
    EXF_TRY(exf_text_addf(out, err, "\n"));
    EXF_TRY(add_synopsis(p, out, err));
    rc = exf_roff_section(out, "DESCRIPTION", p->about, strstr(p->about, "   ") != NULL, err);
out:
    return rc;
}

/* Of `exfold`: the programs that it runs. */
static exf_code add_programs(exf_text *out, exf_err *err)
{
    exf_code rc = exf_text_addf(out, err, ".SH PROGRAMS\n");
    for (size_t i = 0; rc == EXF_OK && exf_program_at(i); i++) rc = exf_manual_entry(exf_program_at(i), NULL, 0, out, err);
    return rc;
}

exf_code exf_manual_program(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_head(p, out, err));
    if (p->n_commands) EXF_TRY(add_manual_commands(p, out, err));
    if (p->runs_others) EXF_TRY(add_programs(out, err));
    EXF_TRY(exf_text_addf(out, err, ".SH OPTIONS\n"));
    EXF_TRY(exf_roff_rows(out, rows, n, EXF_ROFF_FLAGS, err));
    if (p->keys) EXF_TRY(add_keys(rows, n, out, err));
    EXF_TRY(exf_text_addf(out, err, ".SH \"EXIT STATUS\"\n"));
    EXF_TRY(exf_manual_status(p, rows, n, out, err));
    EXF_TRY(add_files(out, err));
    if (p->examples) EXF_TRY(exf_roff_section(out, "EXAMPLES", p->examples, 1, err));
    rc = exf_text_addf(out, err, ".SH \"SEE ALSO\"\n.BR exfold (7),\n.BR exfold\\-recipe (5)\n");
out:
    return rc;
}

exf_code exf_manual_entry(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    (void)rows;
    (void)n;
    EXF_TRY(exf_text_addf(out, err, ".TP\n\\fB"));
    EXF_TRY(exf_roff_text(out, p->name, err));
    EXF_TRY(exf_text_addf(out, err, "\\fR(1)\n"));
    EXF_TRY(exf_roff_text(out, p->brief, err));
    rc = exf_text_addf(out, err, "\n");
out:
    return rc;
}

/* ---- manual markdown --------------------------------------------------------------------------- */

/* A program's section of docs/programs.md; see manual.h. */

static exf_code add_ways(const exf_page *p, const exf_program *program, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_page_heading(p, program->name, err));
    EXF_TRY(exf_page_text(p, program->about, err));
    EXF_TRY(exf_text_addf(p->out, err, "\n```text\n"));
    for (const char *at = program->arguments, *bar; at; at = bar ? bar + 3 : NULL) {
        bar = strstr(at, " | ");
        EXF_TRY(exf_text_addf(p->out, err, "%s [OPTION ...] %.*s\n", program->name, bar ? (int)(bar - at) : (int)strlen(at), at));
    }
    rc = exf_text_addf(p->out, err, "```\n");
out:
    return rc;
}

/* One line, as a table's cell wants it. */
static exf_code one_line(const char *s, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (; *s && rc == EXF_OK; s++) rc = exf_text_add(out, *s == '\n' ? " " : s, 1, err);
    return rc;
}

static exf_code add_row(const exf_page *p, const char *label, const char *fallback, const char *about, exf_err *err)
{
    exf_code rc;
    exf_text meaning = {0};
    EXF_TRY(one_line(about, &meaning, err));
    rc = exf_page_row(p, label, fallback, meaning.s, err);
out:
    exf_text_free(&meaning);
    return rc;
}

static exf_code add_command(const exf_page *p, const exf_command *c, exf_err *err)
{
    exf_code rc;
    exf_text label = {0};
    EXF_TRY(exf_text_addf(&label, err, "`%s%s%s`", c->name, *c->arguments ? " " : "", c->arguments));
    rc = add_row(p, label.s, NULL, c->about, err);
out:
    exf_text_free(&label);
    return rc;
}

static exf_code add_markdown_commands(const exf_page *p, const exf_program *program, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!program->n_commands) return EXF_OK;
    EXF_TRY(exf_page_table(p, "command", NULL, "what it does", err));
    for (size_t i = 0; i < program->n_commands; i++) EXF_TRY(add_command(p, &program->commands[i], err));
out:
    return rc;
}

/* An option that sets a recipe key names it; docs/recipe.md says what it means. */
static exf_code add_key(const exf_opt *row, exf_text *meaning, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(meaning, err, "sets the recipe key [`%s`](recipe.md#", row->key));
    for (const char *c = row->group ? row->group : "Options"; *c; c++)
        EXF_TRY(exf_text_addf(meaning, err, "%c", *c == ' ' ? '-' : tolower((unsigned char)*c)));
    rc = exf_text_addf(meaning, err, ")");
out:
    return rc;
}

static exf_code add_option(const exf_page *p, const exf_opt *row, exf_err *err)
{
    exf_code rc;
    exf_text label = {0}, fallback = {0}, meaning = {0};
    exf_opt shown = *row;
    int is_flag = row->type == EXF_OPT_FLAG;
    shown.fallback = NULL;
    if (row->letter) EXF_TRY(exf_text_addf(&label, err, "`-%c`, ", row->letter));
    EXF_TRY(exf_text_addf(&label, err, "`--%s%s%s`", row->flag, is_flag ? "" : " ", is_flag ? "" : exf_opt_placeholder(row)));
    if (row->fallback && !is_flag) EXF_TRY(exf_text_addf(&fallback, err, "`%s`", row->fallback));
    EXF_TRY(row->key ? add_key(row, &meaning, err) : exf_opt_remarks(&shown, &meaning, err));
    rc = add_row(p, label.s, fallback.s ? fallback.s : "", meaning.s, err);
out:
    exf_text_free(&label);
    exf_text_free(&fallback);
    exf_text_free(&meaning);
    return rc;
}

/* Returns 1 for an option that all programs have: docs/programs.md says these once. */
static int is_common(const exf_opt *row)
{
    size_t n;
    const exf_opt *common = exf_recipe_global_rows(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(common[i].flag, row->flag) == 0) return 1;
    return 0;
}

static exf_code add_options(const exf_page *p, const exf_opt *rows, size_t n, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_page_table(p, "option", "default", "meaning", err));
    for (size_t i = 0; i < n; i++)
        if (rows[i].flag && !is_common(&rows[i])) EXF_TRY(add_option(p, &rows[i], err));
out:
    return rc;
}

static exf_code add_target(const exf_page *p, const exf_writer *w, exf_err *err)
{
    exf_code rc;
    exf_text name = {0}, file = {0};
    EXF_TRY(exf_text_addf(&name, err, "`%s`", w->name));
    EXF_TRY(exf_text_addf(&file, err, "`%s%s`", w->file, w->is_directory ? "/" : ""));
    rc = exf_page_row(p, name.s, file.s, w->about, err);
out:
    exf_text_free(&name);
    exf_text_free(&file);
    return rc;
}

static exf_code add_targets(const exf_page *p, exf_err *err)
{
    exf_code rc;
    const exf_writer *w;
    EXF_TRY(exf_page_text(p, "Export targets (`output.targets`):", err));
    EXF_TRY(exf_page_table(p, "target", "file", "for", err));
    for (size_t i = 0; (w = exf_writer_at(i)); i++) EXF_TRY(add_target(p, w, err));
out:
    return rc;
}

exf_code exf_markdown_program(const exf_program *program, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    const exf_page page = {EXF_PAGE_MARKDOWN, out}, *p = &page;
    EXF_TRY(add_ways(p, program, err));
    EXF_TRY(add_markdown_commands(p, program, err));
    EXF_TRY(add_options(p, rows, n, err));
    if (exf_program_uses(program, "output.targets")) EXF_TRY(add_targets(p, err));
    if (program->examples) rc = exf_page_example(p, "text", program->examples, err);
out:
    return rc;
}
