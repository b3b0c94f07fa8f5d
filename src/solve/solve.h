/* solve.h - solves tables from statistics: closed forms in double, deterministic.
 *
 * From a file (exf_solve), or layer by layer while a pass still adds up later layers (exf_solver).  Each projector has its
 * own closed form (artifact/projector.h). */
#ifndef EXF_SOLVE_SOLVE_H
#define EXF_SOLVE_SOLVE_H
#include "accumulate/statistics.h"
#include "artifact/projector.h"
#include "base/names.h"
#include "kernels/statistics/layer_sums.h"

enum { EXF_MOST_POOLS = 64 * EXF_POOL_CRITERIA, EXF_MOST_BUDGETS = 16 };

/* A static pool of `size` experts, those with the most `by`, which is one of exf_pool_criteria. */
typedef struct {
    int64_t size;
    const char *by;
    int implied; /* 1: by this criterion too, where the statistics know it; 0: they must */
} exf_pool_choice;

typedef struct exf_solve_options {
    exf_scalar_rule rule;          /* how the pair's scalar is clipped and regularised */
    uint64_t min_pair_tokens;      /* a pair with fewer counts as unobserved; 0 is 1 */
    const char *const *projectors; /* names of projectors beside "pair", which is always solved */
    size_t n_projectors;
    const int64_t *ranks; /* of ranked projectors */
    size_t n_ranks;
    const int64_t *pools; /* sizes D of static pools by norm */
    size_t n_pools;
    exf_pool_choice pool_by[EXF_MOST_POOLS]; /* further pools */
    size_t n_pools_by;
    int64_t budgets[EXF_MOST_BUDGETS]; /* mean experts per token; each rule is solved for each of them */
    size_t n_budgets;
    const char *rules[EXF_BUDGET_RULES]; /* of exf_budget_rules */
    size_t n_rules;
    const double *measured_kl;    /* [L] KL of folding one layer alone at P = K / 2, for the rule "measured"; borrowed, or NULL */
    const double *measured_scale; /* [L] the rule's scale itself, in place of measured_kl; borrowed, or NULL */
    const double *skipped_kl, *skip_scale; /* likewise of leaving out one layer's routed experts, for the rule "skip" */
    int partial; /* 1: the statistics may lack shards of their corpus (artifact/data.h); the tables then say so */
    const char *statistics_digest; /* the payload digest of the statistics, where it is known; NULL: computed */
} exf_solve_options;

/* Checks the options: EXF_USAGE names an unknown projector and the known ones, or an impossible rank. */
exf_code exf_solve_check(const exf_solve_options *o, exf_err *err) EXF_CHECKED;
/* Solves a whole statistics file.  EXF_MODEL if shards of its corpus are missing (artifact/data.h), unless o->partial: then
 * the tables have the fact data.part.  The caller frees t with exf_tables_free(). */
exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err) EXF_CHECKED;
/* Solves the statistics with the settings in t's provenance (solve.*) and the sizes of its pools, so that tables can be
 * checked number by number; path names t in messages.  EXF_FORMAT if a setting is missing or malformed.  The caller frees
 * out with exf_tables_free(). */
exf_code exf_solve_again(const exf_tables *t, const char *path, const char *statistics, exf_tables *out, exf_err *err) EXF_CHECKED;

/* Adds the static pool of `size` experts by norm to tables that have none, or only such, and solves it as a public plugin derives
 * one when it starts, from scalars, losses and norms alone: tables that others made have no statistics to solve it from. */
exf_code exf_solve_pool_of(exf_tables *t, int64_t size, exf_err *err) EXF_CHECKED;

/* ---- layer by layer ----------------------------------------------------------------------- */

typedef struct exf_solver exf_solver;

/* The facts of statistics that are known before their sums. */
typedef struct {
    const char *path; /* of their file, for messages */
    exf_run_shape shape;
    const int32_t *layer_number; /* [n_layers] */
    int n_layers;
    int has[EXF_PART_BARE]; /* 1: they have the arrays of that part */
    int both_halves;      /* 1: both halves have a sequence, so that each gives tables */
    int norm_head;        /* 1: they have the sums of a norm head */
    int64_t vector_pairs; /* the most pairs of a layer that have vectors; read only where there is no file yet */
} exf_solver_head;

/* Bytes of tables of pairs, of a norm head and of vectors. */
typedef struct {
    uint64_t memory;   /* that a solver holds from its first layer on */
    uint64_t file;     /* of tables.h5 */
    uint64_t exported; /* of an export, without vectors */
    uint64_t vectors;  /* of `memory` and `file`, those of vectors */
} exf_solver_bytes;
/* q: directions of the norm head; vector_pairs: the most pairs of a layer that have vectors. */
exf_solver_bytes exf_solver_bytes_of(const exf_run_shape *shape, int n_layers, const exf_solve_options *o, int q,
                                     uint64_t vector_pairs);
/* Allocates tables and solves what comes before any layer.  r: the file; NULL where there is none yet: projectors that need the
 * sums of all layers then wait for exf_solver_read_file().  What o borrows stays the caller's.  EXF_USAGE as exf_solve_check(). */
exf_code exf_solver_new(exf_solver **out, const exf_solver_head *head, const exf_solve_options *o, exf_statistics_reader *r,
                        exf_err *err) EXF_CHECKED;
/* Solves layer index l; each once, from one thread at a time: in any order, but rising where there was no file and layers come with
 * vector sums (sums->vectors). */
exf_code exf_solver_layer(exf_solver *s, int l, const exf_layer_statistics *sums, exf_err *err) EXF_CHECKED;
/* Solves, after all layers, the projectors that exf_solver_new() left out for want of the file; nothing where it left none. */
exf_code exf_solver_read_file(exf_solver *s, exf_statistics_reader *r, exf_err *err) EXF_CHECKED;
/* Solves what needs all layers, and gives the tables to the caller, who frees them.  o: the options as before, with the
 * digest of the statistics and measured sensitivities, which may have become known since.  of: the facts of the statistics. */
exf_code exf_solver_end(exf_solver *s, const exf_solve_options *o, const exf_provenance *of, exf_tables *t,
                        exf_err *err) EXF_CHECKED;
void exf_solver_free(exf_solver *s); /* NULL is allowed */

/* ---- coverage ------------------------------------------------------------------------------ */

/* A calibration is small where, in some layer, less than this share of the tokens of pairs are of pairs that so many tokens
 * observed: half of them in each half of the text; or where the targets that one half of the text chooses cost more than this share
 * of the experts' output on the other half; or where all of the text is of one half. */
enum { EXF_COVERAGE_TOKENS = 32 };
#define EXF_COVERAGE_SHARE 0.5
#define EXF_CHOICE_COST 0.25 /* docs/method.md, section 11, has the figures from which it follows */

/* Facts of tables: the share of traffic whose best target both halves of the text agree on, "0.7624"; what one half's choice costs
 * on the other, "0.0312" (exf_choice_cost); and, in a sentence, why the calibration is small.  Tables without either fact have no
 * halves, or are not small.  EXF_HALVES_FACT is "1" where all
 * sequences are of one half. */
#define EXF_STABLE_FACT "solve.stable_targets"
#define EXF_COST_FACT "solve.choice_cost"
#define EXF_HALVES_FACT "solve.halves"
#define EXF_SMALL_FACT "solve.small_calibration"

/* How much of a layer was observed. */
typedef struct {
    size_t pairs;    /* ordered, without self-pairs */
    size_t observed; /* pairs with a loss */
    size_t thin;     /* pairs seen by too few tokens to count */
    size_t cold;     /* experts to which no token was routed */
    double share;    /* of the tokens of all pairs, those of observed pairs that `tokens` tokens or more saw; with one expert per
                      * token, where there are no pairs, 1 */
} exf_layer_coverage;

exf_layer_coverage exf_coverage_of(const exf_tables *t, int l, uint64_t tokens); /* of layer index l */
/* Finds the layer index of least share. */
exf_code exf_coverage_worst(const exf_tables *t, uint64_t tokens, int *l, double *share, exf_err *err) EXF_CHECKED;
/* Appends why the text of tables is not enough, with the tokens that would do, by the share `least` of coverage and
 * EXF_CHOICE_COST; nothing: it is; least 0: any text is.  one_half: 1 if all sequences are of one half. */
exf_code exf_coverage_lacks(exf_text *why, const exf_tables *t, int one_half, uint64_t pair_tokens, double least,
                            exf_err *err) EXF_CHECKED;
/* Estimates how many tokens of text would give layer index l that share. */
exf_code exf_coverage_tokens(const exf_tables *t, int l, uint64_t tokens, double share, double *out, exf_err *err) EXF_CHECKED;

/* How much of a layer's traffic has the same target by either half of the text. */
typedef struct {
    uint64_t tokens; /* routed to sources that have a target */
    uint64_t stable; /* of them, those whose target of least loss (ties to the lower number) is the same by both halves */
} exf_stability;

/* The sums of which a cost of a choice is the quotient; zero-initialise. */
typedef struct {
    double own, choice; /* tokens times loss of the best target, and of the target that the other tables choose */
    double all;         /* tokens: their loss where the experts are dropped */
} exf_choice_sums;

/* Adds, for both of two tables and each source of a layer, the loss by one's own best target and the loss that the target and the
 * scalar of the other have by one's own sums, weighted by tokens [E].  scalar, loss: [E, E] of each.  Those sums follow from its
 * own scalar S, which is their least-squares one, and its loss L: with a scalar s it is L + (1 - L) (s / S - 1)^2.  A source
 * without a target is dropped by the other, which loses all of its output; one without in both, or in those that judge, says
 * nothing.  A clipped scalar is no least-squares one; its loss is then an estimate. */
void exf_choice_add(exf_choice_sums *c, const float *const scalar[2], const float *const loss[2], const uint64_t *tokens,
                    size_t e);
/* Returns what choices lose beyond one's own best, as a share of what dropping the experts loses, at most EXF_MOST_COST; NaN:
 * nothing was compared. */
double exf_choice_cost(const exf_choice_sums *c);
#define EXF_MOST_COST 1000

/* loss, half_loss: [E, E] of a layer; tokens: [E] routed to each expert. */
exf_stability exf_stability_of(const float *loss, const float *const half_loss[2], const uint64_t *tokens, size_t e);
#endif
