/* validation_files.c - writes the files of a validation, and its summary to standard output; see validation.h. */
#include "run/validation.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "run/session.h"

#include <stdio.h>

/* Announces a file on standard output, or on the log where standard output is the JSON alone. */
static exf_code announce_result(const exf_validation_files *f, const char *path, exf_err *err)
{
    if (f->json) return exf_announce_short(path, err);
    exf_announce_in_log(path);
    return EXF_OK;
}

/* Writes a result; path NULL: to standard output. */
static exf_code write_text(const exf_validation_files *f, const char *path, const exf_text *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!path) fputs(t->s, stdout);
    if (path) rc = exf_output_file_whole(path, f->force, t->s, t->len, err);
    return rc == EXF_OK && path ? announce_result(f, path, err) : rc;
}

/* Draws the frontier as a picture. */
static exf_code draw_frontier(const exf_validation_files *f, const exf_validate_report *report, exf_err *err)
{
    const char *part = exf_provenance_get(report->facts, "validate.tables_part");
    exf_text note = {0};
    exf_drawing *d = NULL;
    exf_code rc;
    exf_text_appendf(&note, "%s%s%s", f->tables_digest, part ? "; a part of the data: " : "", part ? part : "");
    EXF_TRY(exf_text_end(&note, err));
    EXF_TRY(exf_drawing_open(&d, f->picture, f->force, err));
    exf_drawing_note(d, EXF_MADE_FROM, note.s);
    EXF_TRY(exf_frontier_draw(report, d, err));
    rc = exf_drawing_close(d, err);
    d = NULL;
    if (rc == EXF_OK) rc = announce_result(f, f->picture, err);
out:
    exf_drawing_abort(d);
    exf_text_free(&note);
    return rc;
}

exf_code exf_validation_write(const exf_validation_files *f, const exf_validate_report *report, exf_err *err)
{
    exf_text summary = {0}, json = {0}, markdown = {0};
    exf_code rc;
    EXF_TRY(exf_validate_summary(report, &summary, err));
    if (f->json) EXF_TRY(write_text(f, NULL, &summary, err));
    if (f->picture) EXF_TRY(draw_frontier(f, report, err));
    EXF_TRY(exf_validate_json(report, &json, err));
    EXF_TRY(write_text(f, f->json, &json, err));
    EXF_TRY(exf_validate_markdown(report, &markdown, err));
    EXF_TRY(write_text(f, f->markdown, &markdown, err));
    if (f->manifest) EXF_TRY(write_text(f, f->manifest, f->manifest_text, err));
out:
    exf_text_free(&summary);
    exf_text_free(&json);
    exf_text_free(&markdown);
    return rc;
}
