/* validation.h - the pieces of exfold-validate: which tables its variants need, what folding single layers does to the model, and
 * the report of its results. */
#ifndef EXF_VALIDATE_VALIDATION_H
#define EXF_VALIDATE_VALIDATION_H
#include "artifact/tables.h"
#include "base/hash.h"
#include "base/opt.h"
#include "base/text.h"
#include "capture/corpus.h"
#include "fold/variant.h"
#include "inspect/drawing.h"
#include "solve/solve.h"
#include "validate/frontier.h"
#include "validate/recommendation.h"
#include "validate/validate.h"

/* ---- what the tables lack (validation_tables.c) ------------------------------------------------------ */

/* Adds to tables that others made the static pools by norm that variants ask for; others are left as they are. */
exf_code exf_pools_derive(exf_tables *t, const exf_variant *variants, size_t n, exf_err *err) EXF_CHECKED;
/* EXF_USAGE if a variant asks for a static pool, a budget or a shared scalar that the tables at path lack:
 * names the first such variant and, where the statistics of the tables lie beside them, the
 * command that solves all that is missing with the other settings as they were. */
exf_code exf_solve_command_check(const exf_tables *t, const char *path, const exf_variant *variants, size_t n, exf_err *err)
    EXF_CHECKED;

/* Warns where tables at `path` hold the mean cosines of an earlier release (no EXF_CORRELATIONS_FACT) and a layer's matrix of them
 * has an eigenvalue below 0: joint weights, budgets and stand-ins may explode there. */
exf_code exf_mean_cosines_tell(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;

/* Checks that the tables belong to the model: family, sizes, architecture, and its weights as they are read, unless others are
 * taken; EXF_MODEL names what differs. */
exf_code exf_validate_check_tables(const exf_tables *t, const char *path, const exf_model *m, int other_weights,
                                   exf_err *err) EXF_CHECKED;

/* ---- the calibration's own text (validation_text.c) ---------------------------------------------------- */

/* What of a validation's text its tables were calibrated on. */
typedef struct {
    int known;        /* 0: the tables do not say which sequences they are of, or there are no tokens */
    size_t sequences; /* those of the validation that hold such text */
    size_t near;      /* others whose document the calibration had too, or a near copy of it (capture/near_copies.h) */
    size_t of;        /* all of them */
    int at_least;     /* 1: they were cut at another length than the calibration's, so that more may hold some */
} exf_calibration_text;

/* Compares the sequences of a corpus, cut at max_tokens, with those of the tables.  Where the two were cut at other lengths, text
 * is found if a validation's sequence begins where one of the calibration began, or whole documents are there.  Documents are
 * compared by the sketches that the tables have of the calibration's; tables without them find no near copies. */
exf_code exf_calibration_text_find(exf_calibration_text *out, const exf_tables *t, const exf_corpus *c, int64_t max_tokens,
                                   exf_err *err) EXF_CHECKED;
/* Warns of such text, reports where nothing is known, and adds the facts validate.calibration_sequences and
 * validate.calibration_near_copies, their numbers, and, if one is not 0, validate.calibration_text, a sentence.  tables: their
 * path. */
exf_code exf_calibration_text_tell(const exf_calibration_text *x, const char *tables, exf_provenance *facts,
                                   exf_err *err) EXF_CHECKED;

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
 * "measured" are solved from its file (exfold-solve --sensitivities); or what leaving out its routed experts does, for those by
 * "skip". */
enum { EXF_SENSITIVITIES_MEASURED = 1, EXF_SENSITIVITIES_OF_SKIP = 2 };

/* Returns what the rules of the budgets ask for. */
int exf_sensitivity_rules(const exf_solve_options *o);
/* Lists variants for each layer of the tables: K / 2 experts per token with joint weights in that layer, then no routed expert
 * there, all other layers as they are.  The caller frees *out. */
exf_code exf_sensitivity_variants(exf_variant **out, size_t *n, const exf_tables *t, int rules, exf_err *err) EXF_CHECKED;

/* Reads the facts of a validation, its text and settings, from its JSON. */
exf_code exf_validation_facts_read(exf_provenance *out, const char *path, exf_err *err) EXF_CHECKED;

/* The sensitivities that a validation measured.  Ownership: exf_sensitivities_free(). */
typedef struct {
    double *kl, *skipped_kl;                  /* [L] mean KL of each layer of the statistics, in their order; NULL: not asked for */
    char sha256[EXF_SHA256_HEX];              /* of the file */
    char statistics_digest[EXF_SHA256_HEX];   /* of the statistics' payload */
    exf_provenance facts;                     /* of the validation: model, data, tables */
    exf_text other_weights;                   /* in which parts its model's weights differ; empty: they must not */
} exf_sensitivities;

/* Reads the JSON of such a validation for a statistics file, whose payload has the digest statistics_digest (NULL: it is
 * computed).  other_weights: they may be of other weights than the statistics.  EXF_FORMAT naming the file and the layer where a
 * number is missing or not above 0; EXF_MODEL where it was measured on another model, or with tables of other statistics. */
exf_code exf_sensitivities_read(exf_sensitivities *out, const char *path, int rules, const char *statistics,
                                const char *statistics_digest, int other_weights, exf_err *err) EXF_CHECKED;
/* Adds to tables that have budgets by "measured" or "skip" which file these are from and on which data it was made:
 * solve.sensitivities_sha256, solve.sensitivities_tokens_digest, solve.sensitivities_domains, and solve.sensitivities_other_weights
 * where these may be others. */
exf_code exf_sensitivities_record(const exf_sensitivities *s, exf_tables *t, exf_err *err) EXF_CHECKED;
void exf_sensitivities_free(exf_sensitivities *s); /* accepts zeroed memory */

/* ---- the report ------------------------------------------------------------------------------------------
 *
 * exf_validate_report_make() makes the rows, what they gain and the sentences, once; screen, Markdown, JSON and picture print
 * them.
 *
 * A row gains over its best baseline: every variant that folds by the tables is compared with the same number of experts without
 * their targets.  A baseline of a prefill fold P is top<P>, whose omitted routes are dropped or the kept weights renormalised, or
 * random<P>, which folds into any kept route; of a decode fold D at one batch size it is the same kind of pool with `fold` another
 * than on; of both together it is such a pair.  Whether such a lane was asked for or ran as a baseline makes no difference.
 * Variants that fold one layer alone have none; those whose batches are not constrained are left out. */

/* Kinds of sentences, in the order of the report. */
typedef enum {
    EXF_FOUND_VERDICT,
    EXF_FOUND_LAYERS,
    EXF_FOUND_STABILITY,
    EXF_FOUND_CONSTRAINTS,
    EXF_FOUND_RECOMMENDATION,
    EXF_FOUND_DATA,
    EXF_FINDINGS
} exf_finding;

/* What a command that goes on from here names. */
typedef struct {
    const char *recipe;  /* NULL: none was given */
    const char *model;   /* checkpoint directory */
    const char *settings; /* " --text FILE ... --set validate.sequences=N" as a shell takes it: those of the command line */
    const char *tables, *output, *report; /* report: the .md */
} exf_validate_files;

typedef struct {
    exf_judged of;                 /* the validation, and what its rows are judged by */
    char **domain_names;           /* [n_domains] */
    const exf_provenance *facts;   /* model, tables (validate.tables_digest), data, settings */
    const exf_provenance *tables;  /* of the tables: solve.stable_targets, solve.small_calibration; NULL: not known */
    int compares;                  /* 1: what the tables gain is the question */
    const exf_limit *limit;        /* NULL: nothing is recommended */
    const exf_validate_files *files; /* for the commands that the closing words give; NULL: without commands */
    uint64_t model_bytes;
    int prefill_tokens, longest;   /* validate.prefill_tokens; tokens of the longest sequence */
    /* made: */
    exf_row *row;                  /* [n_variants] */
    exf_text found[EXF_FINDINGS];  /* sentences, one a line; those of a recommendation that are indented belong to the one before */
} exf_validate_report;

/* Makes what is made of the rest, which is borrowed. */
exf_code exf_validate_report_make(exf_validate_report *r, exf_err *err) EXF_CHECKED;
void exf_validate_report_free(exf_validate_report *r);

/* The summary's most lines and columns, whatever was validated: with the names of four files it is one screen of 40 lines. */
enum { EXF_SUMMARY_LINES = 36, EXF_SUMMARY_COLUMNS = 100, EXF_SUMMARY_SIZES = 4, EXF_CLOSING_LINES = 20 };
/* Appends the summary for a terminal: verdict, stability, the rows of each frontier, the recommendation. */
exf_code exf_validate_summary(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends the sentences and the tables for a model card: all rows, per domain, per layer. */
exf_code exf_validate_markdown(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Appends {"variants": [{"name", "words", "ppl", "ppl_se", "kl_mean", ..., "domains": {...}, "layers": [...]}], ...};
 * no times, so equal inputs give equal bytes. */
exf_code exf_validate_json(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;

/* ---- lines (validation_lines.c) ---------------------------------------------------------------------------- */

/* Appends a number with half of its interval, or its standard error: "0.12500 ± 0.00100". */
void exf_add_spread(exf_text *out, int digits, double x, double spread);
/* Appends text in lines of at most EXF_SUMMARY_COLUMNS; further ones are indented by two more.  Those of a command are one for a
 * shell, and its words are whole. */
void exf_add_wrapped(exf_text *out, const char *s, size_t n, int is_command);
/* Appends a line so, or its failure, and frees it. */
void exf_end_wrapped(exf_text *out, exf_text *line, int is_command);
int exf_count_lines(const exf_text *t);
/* Returns the bytes of the first `columns` characters. */
size_t exf_bytes_of_columns(const char *s, int columns);
/* Cuts off the size of batches that a validation of several adds to a variant's name. */
void exf_drop_batch(char *name);

/* ---- what is recommended (validation_recommendation.c) ------------------------------------------------------- */

/* Appends what is recommended of all rows and in each public runtime, and which pairs were not measured together. */
exf_code exf_recommendation_words(const exf_validate_report *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Returns 1 if what a runtime runs is recommended too: one that serves the model, and only the one asked for if one is. */
int exf_validate_answers_for(const exf_validate_report *r, const exf_runtime *runtime);
/* Writes the end of a summary with a limit to an empty text, in EXF_CLOSING_LINES of at most EXF_SUMMARY_COLUMNS but where a word
 * is longer: the rows that are recommended, what they cost and gain, and the commands that validate them together and that serve
 * them. */
void exf_validate_closing(const exf_validate_report *r, exf_text *out);
/* Returns 1 if the closing words recommend row i. */
int exf_closing_names(const exf_validate_report *r, size_t i);

/* ---- the picture (validation_chart.c) -------------------------------------------------------------------------- */

/* Draws KL over cost: a panel for prefill and one for each size of decode batches.  Rows are letters; those on a frontier are
 * marked.  d was opened; its page is begun here. */
exf_code exf_frontier_draw(const exf_validate_report *r, exf_drawing *d, exf_err *err) EXF_CHECKED;
#endif
