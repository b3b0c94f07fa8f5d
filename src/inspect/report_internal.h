/* report_internal.h - types and functions shared by report*.c only. */
#ifndef EXF_INSPECT_REPORT_INTERNAL_H
#define EXF_INSPECT_REPORT_INTERNAL_H
#include "base/file.h"
#include "base/text.h"
#include "inspect/inspection.h"
#include "inspect/report.h"

/* A report being written. */
typedef struct {
    const exf_inspection *s;
    const char *title, *beside;
    exf_layer_summary *rows; /* [L + 1] */
    exf_output_file *file;
    exf_text text; /* not yet in the file */
    exf_code rc;   /* the first failure, after which nothing is written */
    exf_err *err;
} exf_report;

/* Appends and, from time to time, writes; a failure is kept in the report. */
void exf_report_addf(exf_report *r, const char *fmt, ...) EXF_PRINTF(2, 3);
/* Adds text with &, <, > and quotes as HTML wants them, and nothing that a browser obeys (exf_text_append_shown()); bytes that
 * are no UTF-8 are EXF_FORMAT. */
void exf_report_text(exf_report *r, const char *text);

/* Writes what is not yet in the file. */
void exf_report_flush(exf_report *r);

/* Adds the validation, or a sentence that there is none (report_validation.c). */
exf_code exf_report_validation(exf_report *r, exf_err *err) EXF_CHECKED;
/* Adds the numbers that the page's script reads (report_data.c). */
exf_code exf_report_data(exf_report *r, exf_err *err) EXF_CHECKED;
#endif
