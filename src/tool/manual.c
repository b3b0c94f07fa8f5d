/* manual.c - a program's manual page and its entries in others; see manual.h. */
#include "tool/manual.h"

#include "export/writer.h"
#include "tool/completion.h"
#include "tool/programs.h"
#include "tool/roff.h"

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

static exf_code add_commands(const exf_program *p, exf_text *out, exf_err *err)
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
    if (p->n_commands) EXF_TRY(add_commands(p, out, err));
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
