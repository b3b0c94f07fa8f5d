/* recipe_texts_report.c - says what the files of --text are, by kind and bytes, and which are passed over; see
 * recipe_texts_internal.h. */
#include "recipe/recipe_texts_internal.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

exf_code exf_texts_pass_over(exf_texts *t, const char *path, const char *is, const char *script, uint64_t bytes, exf_err *err)
{
    const char *slash = strrchr(path, '/');
    size_t k = 0;
    exf_code rc = EXF_OK;
    while (k < t->n_kinds && strcmp(t->passed[k].is, is) != 0) k++;
    if (k == t->n_kinds) {
        EXF_TRY(exf_mem_grow(&t->passed, &t->kinds_cap, k + 1, sizeof *t->passed, "list of texts", err));
        t->passed[k] = (exf_passed_kind){.is = is, .script = script};
        t->n_kinds++;
        EXF_TRY(exf_mem_strdup(&t->passed[k].name, slash ? slash + 1 : path, "name of a file", err));
    }
    t->passed[k].n++;
    t->passed[k].bytes += bytes;
    t->found_passed += bytes;
out:
    return rc;
}

void exf_texts_append_passed(const exf_texts *t, exf_text *out)
{
    char size[24];
    for (size_t k = 0; k < t->n_kinds; k++) {
        const exf_passed_kind *p = &t->passed[k];
        exf_text_appendf(out, "%s%s: %zu (%s%s%s%s)", k ? ", " : "", p->is, p->n,
                         p->bytes ? exf_human_bytes(size, sizeof size, (double)p->bytes) : "", p->bytes ? ", " : "", p->name,
                         p->n > 1 ? ", ..." : "");
    }
}

/* Appends "1 of JSON lines (2.1 MB), 2 of plain text (977 kB)". */
static void append_taken(const exf_texts *t, exf_text *out)
{
    static const char *const names[] = {"JSON lines", "plain text", "token ids", "conversations", "token ids in JSON lines"};
    char size[24];
    for (size_t i = 0, n = 0; i < sizeof names / sizeof *names; i++)
        if (t->of_format[i])
            exf_text_appendf(out, "%s%zu of %s (%s)", n++ ? ", " : "", t->of_format[i], names[i],
                             exf_human_bytes(size, sizeof size, (double)t->bytes[i]));
}

exf_code exf_texts_report(const exf_texts *t, exf_err *err)
{
    exf_text line = {0};
    size_t passed = 0;
    if (t->n == 1 && !t->n_directories) return EXF_OK;
    for (size_t k = 0; k < t->n_kinds; k++) passed += t->passed[k].n;
    append_taken(t, &line);
    if (passed) exf_text_appendf(&line, "; passed over %zu: ", passed);
    exf_texts_append_passed(t, &line);
    exf_code rc = exf_text_end(&line, err);
    if (rc == EXF_OK) exf_log_info("--text: %zu file%s: %s", t->read, t->read == 1 ? "" : "s", line.s);
    exf_text_free(&line);
    return rc;
}

exf_code exf_texts_check_directory(const exf_texts *t, const char *path, exf_err *err)
{
    const exf_passed_kind *most = NULL;
    exf_text line = {0};
    char passed[24], all[24], command[EXF_SCRIPT_COMMAND];
    if (t->found_passed <= t->found_taken) return EXF_OK;
    for (size_t k = 0; k < t->n_kinds; k++)
        if (!most || t->passed[k].bytes > most->bytes) most = &t->passed[k];
    exf_texts_append_passed(t, &line);
    exf_text_appendf(&line, "; left would be ");
    append_taken(t, &line);
    if (!t->read) exf_text_appendf(&line, "nothing");
    if (most->script)
        exf_text_appendf(&line, "; pipe its rows: %s %s | PROGRAM --text -", exf_script_command(command, most->script), path);
    else
        exf_text_appendf(&line, "; name the files that are meant");
    exf_code rc = exf_text_end(&line, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "--text: %s: %s of its %s are no text: %s", path,
                      exf_human_bytes(passed, sizeof passed, (double)t->found_passed),
                      exf_human_bytes(all, sizeof all, (double)(t->found_passed + t->found_taken)), line.s);
    exf_text_free(&line);
    return rc;
}

void exf_texts_free(exf_texts *t)
{
    for (size_t i = 0; i < t->n; i++) {
        exf_mem_free(t->item[i].path);
        exf_mem_free(t->item[i].domain);
    }
    exf_mem_free(t->item);
    for (size_t k = 0; k < t->n_kinds; k++) exf_mem_free(t->passed[k].name);
    exf_mem_free(t->passed);
}
