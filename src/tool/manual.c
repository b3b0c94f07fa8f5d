/* manual.c - a program's manual page and its entries in others; see manual.h. */
#include "tool/manual.h"

#include "export/writer.h"
#include "tool/completion.h"
#include "tool/roff.h"

#include <ctype.h>
#include <string.h>

exf_manual_page exf_manual_find(const char *form)
{
    static const struct {
        const char *form;
        exf_manual_page page;
    } pages[] = {
        {"man", exf_manual_program},   {"recipe", exf_manual_recipe}, {"entry", exf_manual_entry},
        {"status", exf_manual_status}, {"bash", exf_completion_bash}, {"zsh", exf_completion_zsh},
    };
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(form, pages[i].form) == 0) return pages[i].page;
    return NULL;
}

/* ---- the parts of a program's page ----------------------------------------------- */

/* The first sentence of `about` as what whatis(1) shows: one line, small first letter, no full stop. */
static exf_code add_whatis(exf_text *out, const char *about, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_text line = {0};
    for (const char *c = about; *c && rc == EXF_OK && !(*c == '.' && (!c[1] || isspace((unsigned char)c[1]))); c++) {
        int blank = isspace((unsigned char)*c) != 0;
        char small = (char)(c == about && !isupper((unsigned char)c[1]) ? tolower((unsigned char)*c) : *c);
        if (!blank)
            rc = exf_text_add(&line, &small, 1, err);
        else if (line.len && line.s[line.len - 1] != ' ')
            rc = exf_text_add(&line, " ", 1, err);
    }
    if (rc == EXF_OK && line.len) rc = exf_roff_text(out, line.s, err);
    exf_text_free(&line);
    return rc;
}

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
                      "Each key can stand in the recipe, and on the command line as \\fB\\-\\-set\\fR \\fIKEY\\fR=\\fIVALUE\\fR.\n"
                      "The command line beats the recipe, the recipe beats the default.\n"
                      "See\n.BR exfold\\-recipe (5).\n"));
    rc = exf_roff_rows(out, rows, n, EXF_ROFF_KEYS, err);
out:
    return rc;
}

exf_code exf_manual_status(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    (void)p;
    (void)rows;
    (void)n;
#define X(name, value, text)                                      \
    EXF_TRY(exf_text_addf(out, err, ".TP\n\\fB%d\\fR\n", value)); \
    EXF_TRY(exf_roff_text(out, text, err));                       \
    EXF_TRY(exf_text_addf(out, err, "\n"));
    EXF_CODES(X)
#undef X
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
    EXF_TRY(add_whatis(out, p->about, err));
    EXF_TRY(exf_text_addf(out, err, "\n"));
    EXF_TRY(add_synopsis(p, out, err));
    rc = exf_roff_section(out, "DESCRIPTION", p->about, strstr(p->about, "   ") != NULL, err);
out:
    return rc;
}

exf_code exf_manual_program(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_head(p, out, err));
    if (p->n_commands) EXF_TRY(add_commands(p, out, err));
    EXF_TRY(exf_text_addf(out, err, ".SH OPTIONS\n"));
    EXF_TRY(exf_roff_rows(out, rows, n, EXF_ROFF_FLAGS, err));
    if (p->wants_recipe) EXF_TRY(add_keys(rows, n, out, err));
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
    EXF_TRY(add_whatis(out, p->about, err));
    rc = exf_text_addf(out, err, "\n");
out:
    return rc;
}

exf_code exf_manual_recipe(const exf_program *p, const exf_opt *rows, size_t n, exf_text *out, exf_err *err)
{
    static const char example[] = "schema: exfold-recipe/1\n"
                                  "model: {path: model}\n"
                                  "data: {manifest: manifest.yaml, max_tokens: 32, seed: 1}\n"
                                  "calibrate: {weighting: source_norm, ridge: 1.0e-3, clip: [-4, 4]}\n"
                                  "pools: [2]\n"
                                  "output: {directory: out, targets: [safetensors]}";
    exf_code rc;
    if (!p->wants_recipe) return exf_fail(err, EXF_USAGE, "%s reads no recipe", p->name);
    EXF_TRY(exf_roff_title(out, "exfold-recipe", 5, err));
    EXF_TRY(exf_text_addf(out, err, ".SH NAME\nexfold\\-recipe \\- everything a calibration is told\n"));
    EXF_TRY(exf_roff_section(out, "DESCRIPTION",
                             "A recipe is a YAML map with \"schema: exfold-recipe/1\".  A dotted key stands in the section before\n"
                             "its dot.  Every key can be set on the command line with --set KEY=VALUE, some have a flag.  The\n"
                             "command line beats the recipe, the recipe beats the default.  An unknown key is an error that names\n"
                             "the nearest known one.  Paths in a recipe are relative to the recipe's file, paths on the command\n"
                             "line to the working directory.\n"
                             "Lists are written [a, b], or a,b on the command line; the empty list is [].",
                             0, err));
    EXF_TRY(exf_text_addf(out, err, ".SH KEYS\n"));
    EXF_TRY(exf_roff_rows(out, rows, n, EXF_ROFF_KEYS, err));
    EXF_TRY(exf_roff_section(out, "EXAMPLE", example, 1, err));
    rc = exf_text_addf(out, err, ".SH \"SEE ALSO\"\n.BR exfold (7),\n.BR exfold\\-calibrate (1)\n");
out:
    return rc;
}
