/* validation.h - the pieces of exfold-validate: which tables its variants need, what folding single layers does to the model, and
 * the report of its results. */
#ifndef EXF_RUN_VALIDATION_H
#define EXF_RUN_VALIDATION_H
#include "artifact/tables.h"
#include "base/hash.h"
#include "base/text.h"
#include "capture/corpus.h"
#include "fold/variant.h"
#include "inspect/drawing.h"
#include "validate/validate.h"

/* ---- what the tables lack (validation_tables.c) ------------------------------------------------------ */

/* EXF_USAGE if a variant asks for a static pool, a budget or a shared scalar that the tables at path lack:
 * names the first such variant and, where the statistics of the tables lie beside them, the
 * command that solves all that is missing with the other settings as they were. */
exf_code exf_solve_command_check(const exf_tables *t, const char *path, const exf_variant *variants, size_t n, exf_err *err)
    EXF_CHECKED;

/* ---- the calibration's own text (validation_text.c) ---------------------------------------------------- */

/* What of a validation's text its tables were calibrated on. */
typedef struct {
    int known;        /* 0: the tables do not say which sequences they are of, or there are no tokens */
    size_t sequences; /* those of the validation that hold such text */
    size_t of;        /* all of them */
    int at_least;     /* 1: they were cut at another length than the calibration's, so that more may hold some */
} exf_calibration_text;

/* Compares the sequences of a corpus, cut at max_tokens, with those of the tables.  Where the two were cut at other lengths, text
 * is found if a validation's sequence begins where one of the calibration began, or whole documents are there. */
exf_code exf_calibration_text_find(exf_calibration_text *out, const exf_tables *t, const exf_corpus *c, int64_t max_tokens,
                                   exf_err *err) EXF_CHECKED;
/* Warns of such text, reports where nothing is known, and adds the facts validate.calibration_sequences, their number, and, if that
 * is not 0, validate.calibration_text, a sentence.  tables: their path. */
exf_code exf_calibration_text_tell(const exf_calibration_text *x, const char *tables, exf_provenance *facts,
                                   exf_err *err) EXF_CHECKED;

/* ---- single layers (validation_sensitivities.c) ------------------------------------------------------
 *
 * A validation measures what folding one layer alone does to the model (exfold-validate --sensitivities), and budgets per token by
 * "measured" are solved from its file (exfold-solve --sensitivities). */

/* Lists a variant for each layer of the tables: K / 2 experts per token with joint weights in that layer, all others as
 * they are.  The caller frees *out. */
exf_code exf_sensitivity_variants(exf_variant **out, size_t *n, const exf_tables *t, exf_err *err) EXF_CHECKED;

/* Reads the facts of a validation, its text and settings, from its JSON. */
exf_code exf_validation_facts_read(exf_provenance *out, const char *path, exf_err *err) EXF_CHECKED;

/* The sensitivities that a validation measured.  Ownership: exf_sensitivities_free(). */
typedef struct {
    double *kl;                               /* [L] mean KL of each layer of the statistics, in their order */
    char sha256[EXF_SHA256_HEX];              /* of the file */
    char statistics_digest[EXF_SHA256_HEX];   /* of the statistics' payload */
    exf_provenance facts;                     /* of the validation: model, data, tables */
} exf_sensitivities;

/* Reads the JSON of such a validation for a statistics file, whose payload has the digest statistics_digest (NULL: it is
 * computed).  EXF_FORMAT naming the file and the layer where a number is missing or not above 0; EXF_MODEL where it was
 * measured on another model, or with tables of other statistics. */
exf_code exf_sensitivities_read(exf_sensitivities *out, const char *path, const char *statistics, const char *statistics_digest,
                                exf_err *err) EXF_CHECKED;
/* Adds to tables that have budgets by "measured" which file these are from and on which data it was made:
 * solve.sensitivities_sha256, solve.sensitivities_tokens_digest, solve.sensitivities_domains. */
exf_code exf_sensitivities_record(const exf_sensitivities *s, exf_tables *t, exf_err *err) EXF_CHECKED;
void exf_sensitivities_free(exf_sensitivities *s); /* accepts zeroed memory */

/* ---- the report (validation_report.c, validation_chart.c) ---------------------------------------------- */

typedef struct {
    const exf_validation *v;
    char **domain_names;           /* [v->n_domains] */
    const exf_provenance *facts;   /* model, tables (validate.tables_digest), data, settings */
    uint64_t model_bytes;
} exf_validate_report;

/* Appends the table for a terminal, and what the run cost. */
exf_code exf_validate_table(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends {"variants": [{"name", "words", "ppl", "ppl_se", "kl_mean", ..., "domains": {...}, "layers": [...]}], ...};
 * no times, so equal inputs give equal bytes. */
exf_code exf_validate_json(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends three tables for a model card: all, per domain, per layer. */
exf_code exf_validate_markdown(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;

/* Append the quality-cost frontier, a chart of KL over cost, as text, or draw it.  Each variant is a letter; those on the frontier
 * are marked.  on [n_variants] as exf_frontier_mark gives it. */
exf_code exf_frontier_text(const exf_validation *v, const unsigned char *on, exf_text *out, exf_err *err) EXF_CHECKED;
/* d was opened; its page is begun here. */
exf_code exf_frontier_draw(const exf_validation *v, const unsigned char *on, exf_drawing *d, exf_err *err) EXF_CHECKED;
#endif
