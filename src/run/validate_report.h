/* validate_report.h - formats the results of a validation as a table, JSON and Markdown. */
#ifndef EXF_RUN_VALIDATE_REPORT_H
#define EXF_RUN_VALIDATE_REPORT_H
#include "artifact/provenance.h"
#include "validate/validate.h"

typedef struct {
    const exf_validation *v;
    char **domain_names;           /* [v->n_domains] */
    const exf_provenance *facts;   /* model, tables (validate.tables_digest), data, settings */
    uint64_t model_bytes;
} exf_validate_report;

/* The table for a terminal, with what the run cost under it. */
exf_code exf_validate_table(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* {"variants": [{"name", "words", "ppl", "ppl_se", "kl_mean", ..., "domains": {...}, "layers": [...]}], ...};
 * no times, so equal inputs give equal bytes. */
exf_code exf_validate_json(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Three tables for a model card: all, per domain, per layer. */
exf_code exf_validate_markdown(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
#endif
