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
    while (k < t->n_kinds && (t->passed[k].argument != t->argument || strcmp(t->passed[k].is, is) != 0)) k++;
    if (k == t->n_kinds) {
        EXF_TRY(exf_mem_grow(&t->passed, &t->kinds_cap, k + 1, sizeof *t->passed, "list of texts", err));
        t->passed[k] = (exf_passed_kind){.is = is, .script = script, .argument = t->argument};
        t->n_kinds++;
        EXF_TRY(exf_mem_strdup(&t->passed[k].name, slash ? slash + 1 : path, "name of a file", err));
    }
    t->passed[k].n++;
    t->passed[k].bytes += bytes;
out:
    return rc;
}

void exf_texts_append_passed(const exf_texts *t, size_t argument, exf_text *out)
{
    char size[24];
    for (size_t k = 0, n = 0; k < t->n_kinds; k++) {
        exf_passed_kind p = t->passed[k];
        int is_listed = argument == EXF_ALL_ARGUMENTS || p.argument == argument;
        /* Of all arguments the first that has the kind names the others' files too. */
        for (size_t i = 0; argument == EXF_ALL_ARGUMENTS && i < t->n_kinds; i++) {
            if (i == k || strcmp(t->passed[i].is, p.is) != 0) continue;
            if (i < k) is_listed = 0;
            p.n += t->passed[i].n;
            p.bytes += t->passed[i].bytes;
        }
        if (!is_listed) continue;
        exf_text_appendf(out, "%s%s: %zu (%s%s%s%s)", n++ ? ", " : "", p.is, p.n,
                         p.bytes ? exf_human_bytes(size, sizeof size, (double)p.bytes) : "", p.bytes ? ", " : "", p.name,
                         p.n > 1 ? ", ..." : "");
    }
}

/* Appends "1 of JSON lines (2.1 MB), 2 of plain text (977 kB)". */
static void append_taken(const size_t of_format[EXF_SOURCE_FORMATS], const uint64_t bytes[EXF_SOURCE_FORMATS], exf_text *out)
{
    static const char *const names[] = {"JSON lines", "plain text", "token ids", "conversations", "token ids in JSON lines"};
    char size[24];
    for (size_t i = 0, n = 0; i < sizeof names / sizeof *names; i++)
        if (of_format[i])
            exf_text_appendf(out, "%s%zu of %s (%s)", n++ ? ", " : "", of_format[i], names[i],
                             exf_human_bytes(size, sizeof size, (double)bytes[i]));
}

exf_code exf_texts_report(const exf_texts *t, exf_err *err)
{
    exf_text line = {0};
    size_t passed = 0;
    if (t->n == 1 && !t->n_directories) return EXF_OK;
    for (size_t k = 0; k < t->n_kinds; k++) passed += t->passed[k].n;
    append_taken(t->of_format, t->bytes, &line);
    if (passed) exf_text_appendf(&line, "; passed over %zu: ", passed);
    exf_texts_append_passed(t, EXF_ALL_ARGUMENTS, &line);
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
    uint64_t bytes_passed = 0, bytes_taken = 0;
    for (size_t k = 0; k < t->n_kinds; k++) {
        if (t->passed[k].argument != t->argument) continue;
        bytes_passed += t->passed[k].bytes;
        if (!most || t->passed[k].bytes > most->bytes) most = &t->passed[k];
    }
    for (size_t i = 0; i < EXF_SOURCE_FORMATS; i++) bytes_taken += t->found_bytes[i];
    if (!most || bytes_passed <= bytes_taken) return EXF_OK;
    exf_texts_append_passed(t, t->argument, &line);
    exf_text_appendf(&line, "; left would be ");
    append_taken(t->found_of_format, t->found_bytes, &line);
    if (!bytes_taken) exf_text_appendf(&line, "nothing");
    if (most->script) {
        exf_text_appendf(&line, "; pipe its rows: %s ", exf_script_command(command, most->script));
        exf_text_append_word(&line, path);
        exf_text_appendf(&line, " | %s --text -", exf_log_program());
    } else {
        exf_text_appendf(&line, "; name the files that are meant");
    }
    exf_code rc = exf_text_end(&line, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "--text: %s: %s of its %s are no text: %s", path,
                      exf_human_bytes(passed, sizeof passed, (double)bytes_passed),
                      exf_human_bytes(all, sizeof all, (double)(bytes_passed + bytes_taken)), line.s);
    exf_text_free(&line);
    return rc;
}
