/* completion.c - see completion.h. */
#include "tool/completion.h"

#include <ctype.h>
#include <string.h>

exf_completion_kind exf_completion_value(const exf_opt *row)
{
    if (row->type == EXF_OPT_CHOICE || row->type == EXF_OPT_FLAG) return EXF_VALUE_WORDS;
    if (row->type != EXF_OPT_TEXT || !row->values) return EXF_VALUE_FREE;
    return strcmp(row->values, "DIR") == 0 ? EXF_VALUE_DIRECTORY : strcmp(row->values, "FILE") == 0 ? EXF_VALUE_FILE : EXF_VALUE_FREE;
}

const char *exf_completion_words(const exf_opt *row)
{
    return row->type == EXF_OPT_FLAG ? "true|false" : row->values;
}

/* Adds ".h5" if it is not there yet. */
static exf_code add_ending(const char *ending, size_t n, const char *front, const char *gap, exf_text *out, exf_err *err)
{
    exf_text item = {0};
    exf_code rc = exf_text_addf(&item, err, "%s%.*s", front, (int)n, ending);
    if (rc == EXF_OK && !(out->len && strstr(out->s, item.s))) rc = exf_text_addf(out, err, "%s%s", out->len ? gap : "", item.s);
    exf_text_free(&item);
    return rc;
}

exf_code exf_completion_files(const exf_program *p, const char *front, const char *gap, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (const char *dot = p->arguments; (dot = strchr(dot, '.')); dot++) {
        size_t n = 1;
        while (isalnum((unsigned char)dot[n])) n++;
        if (n > 1) EXF_TRY(add_ending(dot, n, front, gap, out, err));
    }
    if (!out->len) EXF_TRY(exf_text_addf(out, err, "%s", front));
out:
    return rc;
}
