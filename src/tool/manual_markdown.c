/* manual_markdown.c - a program's section of docs/programs.md; see manual.h. */
#include "export/writer.h"
#include "tool/manual.h"
#include "tool/page.h"
#include "tool/programs.h"

#include <ctype.h>
#include <string.h>

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

static exf_code add_commands(const exf_page *p, const exf_program *program, exf_err *err)
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
    EXF_TRY(add_commands(p, program, err));
    EXF_TRY(add_options(p, rows, n, err));
    if (exf_program_uses(program, "output.targets")) EXF_TRY(add_targets(p, err));
    if (program->examples) rc = exf_page_example(p, "text", program->examples, err);
out:
    return rc;
}
