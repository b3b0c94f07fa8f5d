/* report_internal.h - types and functions shared by report*.c only. */
#ifndef EXF_INSPECT_REPORT_INTERNAL_H
#define EXF_INSPECT_REPORT_INTERNAL_H
#include "base/file.h"
#include "base/text.h"
#include "inspect/report.h"
#include "inspect/summary.h"

/* A report being written. */
typedef struct {
    const exf_inspection *s;
    const char *title, *beside;
    exf_layer_summary *rows; /* [L + 1] */
    exf_output_file *file;
    exf_text text; /* not yet in the file */
} exf_report;

/* Appends and, from time to time, writes. */
exf_code exf_report_addf(exf_report *r, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4) EXF_CHECKED;
/* Text with &, <, > and quotes as HTML wants them; bytes that are no UTF-8 are EXF_FORMAT. */
exf_code exf_report_text(exf_report *r, const char *text, exf_err *err) EXF_CHECKED;
exf_code exf_report_flush(exf_report *r, exf_err *err) EXF_CHECKED;

/* report_tables.c: the parts that are HTML. */
exf_code exf_report_cards(exf_report *r, exf_err *err) EXF_CHECKED;
exf_code exf_report_layers(exf_report *r, exf_err *err) EXF_CHECKED;
exf_code exf_report_facts(exf_report *r, exf_err *err) EXF_CHECKED;
/* report_tables.c: the table of budgets per token, or a sentence that there are none. */
exf_code exf_report_budgets(exf_report *r, exf_err *err) EXF_CHECKED;
/* report_validation.c: the table of validation.json or validation.md, or a sentence that there is none. */
exf_code exf_report_validation(exf_report *r, exf_err *err) EXF_CHECKED;
/* report_data.c: the numbers that the page's script reads. */
exf_code exf_report_data(exf_report *r, exf_err *err) EXF_CHECKED;

/* report_parts.c: src/inspect/report/report.<part>; its length in *n. */
const char *exf_report_part(const char *part, size_t *n);
#endif
