/* inspect_tokenize.c - exfold-inspect tokenize: the tokenizer on its own, line by line, so
 * that any other can be compared with it. */
#include "base/file.h"
#include "base/mem.h"
#include "base/stop.h"
#include "format/json.h"
#include "tokenizer/tokenizer.h"
#include "cli/inspect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* As a line of its own, or into an open array. */
static void show_ids(const exf_ids *ids, exf_jw *w)
{
    if (w) exf_jw_open(w, NULL, '[');
    for (size_t i = 0; i < ids->n; i++) {
        if (w)
            exf_jw_int(w, NULL, ids->id[i]);
        else
            printf("%s%d", i ? ", " : "[", (int)ids->id[i]);
    }
    if (w)
        exf_jw_close(w);
    else
        printf(ids->n ? "]\n" : "[]\n");
}

static exf_code tokenize_line(const exf_tokenizer *t, const char *line, size_t len, size_t number, exf_ids *ids, exf_jw *w,
                              exf_err *err)
{
    exf_json *doc = NULL;
    char where[48];
    size_t n;
    exf_code rc;
    snprintf(where, sizeof where, "standard input: line %zu", number);
    EXF_TRY(exf_json_parse(&doc, line, len, where, err));
    const char *text = exf_json_string(doc, &n);
    if (!text) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is %s, expected a string", where, exf_json_type_name(doc));
        goto out;
    }
    ids->n = 0;
    EXF_TRY(exf_tokenizer_encode(t, text, n, ids, err));
    show_ids(ids, w);
out:
    exf_json_free(doc);
    return rc;
}

exf_code exf_inspect_tokenize(exf_recipe *r, exf_err *err)
{
    exf_tokenizer *t = NULL;
    exf_ids ids = {0};
    exf_jw w = {0};
    char *path = NULL, *line = NULL;
    size_t room = 0, number = 0;
    ssize_t len;
    exf_code rc;
    EXF_TRY(exf_path_join(&path, r->inputs[0], "tokenizer.json", err));
    EXF_TRY(exf_tokenizer_load(&t, path, err));
    exf_jw_open(&w, NULL, '{');
    exf_jw_open(&w, "ids", '[');
    while (errno = 0, !ferror(stdout) && (len = getline(&line, &room, stdin)) >= 0) {
        EXF_TRY(exf_stop_check(err));
        if (len && line[len - 1] == '\n') len--;
        EXF_TRY(tokenize_line(t, line, (size_t)len, ++number, &ids, r->json ? &w : NULL, err));
    }
    EXF_TRY(exf_stop_check(err)); /* which is why a read may have ended */
    if (ferror(stdin)) rc = exf_fail_errno(err, errno, "standard input: cannot read");
    exf_jw_close(&w);
    exf_jw_close(&w);
    if (rc == EXF_OK && r->json) rc = exf_print_json(&w, err);
out:
    exf_jw_free(&w);
    free(line); /* getline's own */
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
    exf_mem_free(path);
    return rc;
}
