/* completion.c - see completion.h. */
#include "tool/completion.h"

#include "tool/programs.h"

#include <ctype.h>
#include <string.h>

exf_completion_kind exf_completion_value(const exf_opt *row)
{
    if (row->type == EXF_OPT_CHOICE || row->type == EXF_OPT_FLAG) return EXF_VALUE_WORDS;
    if (row->type == EXF_OPT_FILES) return EXF_VALUE_FILE;
    if (row->type != EXF_OPT_TEXT || !row->values) return EXF_VALUE_FREE;
    return strcmp(row->values, "DIR") == 0    ? EXF_VALUE_DIRECTORY
           : strcmp(row->values, "FILE") == 0 ? EXF_VALUE_FILE
                                              : EXF_VALUE_FREE;
}

const char *exf_completion_words(const exf_opt *row)
{
    return row->type == EXF_OPT_FLAG ? "true|false" : row->values;
}

/* Adds "*.h5" if it is not there yet. */
static exf_code add_ending(const char *ending, size_t n, const char *gap, exf_text *out, exf_err *err)
{
    exf_text item = {0};
    exf_code rc = exf_text_addf(&item, err, "*%.*s", (int)n, ending);
    if (rc == EXF_OK && !(out->len && strstr(out->s, item.s))) rc = exf_text_addf(out, err, "%s%s", out->len ? gap : "", item.s);
    exf_text_free(&item);
    return rc;
}

static exf_code add_endings(const char *arguments, const char *gap, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (const char *dot = arguments; rc == EXF_OK && (dot = strchr(dot, '.')); dot++) {
        size_t n = 1;
        while (isalnum((unsigned char)dot[n])) n++;
        if (n > 1) rc = add_ending(dot, n, gap, out, err);
    }
    return rc;
}

exf_code exf_completion_files(const exf_program *p, const char *gap, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_endings(p->arguments, gap, out, err));
    for (size_t i = 0; i < p->n_commands; i++) EXF_TRY(add_endings(p->commands[i].arguments, gap, out, err));
    if (!out->len) rc = exf_text_addf(out, err, "*");
out:
    return rc;
}

exf_code exf_completion_commands(const exf_program *p, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < p->n_commands && rc == EXF_OK; i++)
        rc = exf_text_addf(out, err, "%s%s", i ? " " : "", p->commands[i].name);
    for (size_t i = 0; p->runs_others && rc == EXF_OK && exf_program_at(i); i++)
        rc = exf_text_addf(out, err, "%s ", exf_program_at(i)->name + strlen("exfold-"));
    return p->runs_others && rc == EXF_OK ? exf_text_addf(out, err, "help") : rc;
}
