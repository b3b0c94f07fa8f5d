/* validation.h - the pieces of exfold-validate: which tables its variants need, what folding single layers does to the model, and
 * the report of its results. */
#ifndef EXF_RUN_VALIDATION_H
#define EXF_RUN_VALIDATION_H
#include "artifact/tables.h"
#include "base/hash.h"
#include "base/opt.h"
#include "base/text.h"
#include "fold/variant.h"
#include "inspect/drawing.h"
#include "validate/validate.h"

/* ---- what the tables lack (validation_tables.c) ------------------------------------------------------ */

/* EXF_USAGE if a variant asks for a static pool, a budget or a shared scalar that the tables at path lack:
 * names the first such variant and, where the statistics of the tables lie beside them, the
 * command that solves all that is missing with the other settings as they were. */
exf_code exf_solve_command_check(const exf_tables *t, const char *path, const exf_variant *variants, size_t n, exf_err *err)
    EXF_CHECKED;

/* ---- lanes (validation_lanes.c) ------------------------------------------------------------------------ */

/* The lanes beside the original: first those that were asked for.  Zero-initialise it, and leave it where it is; exf_lanes_free()
 * releases it. */
typedef struct {
    exf_validate_lane *lane;
    size_t n, n_asked, cap;
    const exf_int_list *sizes; /* of decode batches; borrowed, as the last variant was asked for */
    exf_tables half[2]; /* borrowed views, which lanes of halves point to */
} exf_lane_list;

/* Adds a variant that was asked for.  One that folds decode runs at the size that it names, or once at each of several, under
 * names that say it ("D8:batch=16").  EXF_USAGE, beginning with "validate.variants: ", for a size that is none of them and for a
 * name that stands twice.  The tables are borrowed. */
exf_code exf_lanes_ask(exf_lane_list *l, const exf_variant *v, const exf_int_list *sizes, const exf_tables *t,
                       exf_err *err) EXF_CHECKED;
/* Adds, for each P, D and decode batch of variants that fold prefill or into a dynamic pool, the folds that need no tables, or no
 * loss: dropped, dropped and renormalised, folded at random.  They rank as the first variant of that size by pair scalars does,
 * and compete for the pool as its runtime has it.  Leaves out what was asked for. */
exf_code exf_lanes_add_baselines(exf_lane_list *l, const exf_architecture *a, const exf_tables *t, exf_err *err) EXF_CHECKED;
/* Adds, for the first variant that folds prefill by pair scalars and the first with a dynamic pool, the same by the tables of each
 * half of the calibration: "P4 half 1".  Does nothing where tables have no halves. */
exf_code exf_lanes_add_halves(exf_lane_list *l, const exf_architecture *a, const exf_tables *t, exf_err *err) EXF_CHECKED;
/* Appends the names of all lanes, for the resume point. */
exf_code exf_lanes_names(exf_text *out, const exf_lane_list *l, exf_err *err) EXF_CHECKED;
void exf_lanes_free(exf_lane_list *l);

/* ---- single layers (validation_sensitivities.c) ------------------------------------------------------
 *
 * A validation measures what folding one layer alone does to the model (exfold-validate --sensitivities), and budgets per token by
 * "measured" are solved from its file (exfold-solve --sensitivities). */

/* Lists a variant for each layer of the tables: K / 2 experts per token with joint weights in that layer, all others as
 * they are.  The caller frees *out. */
exf_code exf_sensitivity_variants(exf_variant **out, size_t *n, const exf_tables *t, exf_err *err) EXF_CHECKED;

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
