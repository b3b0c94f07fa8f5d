/* fold_rewriter.h - makes a rewriter from a variant: a lane of the forward pass with it runs the
 * model as the variant says; and the schedule that says which tokens are prefill and which decode together. */
#ifndef EXF_FOLD_FOLD_REWRITER_H
#define EXF_FOLD_FOLD_REWRITER_H
#include "artifact/tables.h"
#include "fold/variant.h"
#include "pass/forward.h"

/* A run's tokens as prefill tokens and steps of decode batches.  Every `size` consecutive sequences are a batch, whatever file or
 * domain they are of; the last one may have fewer.  Step q of a batch is its sequences' tokens at position q.  Causality makes a
 * whole teacher-forced decode one ordinary forward pass (docs/method.md, section 3). */
typedef struct {
    const exf_batch *batch;
    int size;           /* sequences of a decode batch */
    int prefill_tokens; /* positions below are prefill, the rest decode; 0: every position is both */
    size_t n_batches;   /* decode batches */
    size_t n_steps;     /* steps of all batches */
    size_t *first;      /* [n_steps + 1] index of each step's first token in row */
    size_t *row;        /* every decode token's row in the run, step after step */
    int widest;         /* most sequences in a batch */
    size_t first_row;   /* row of the batch's first token in the run of all ranks, by which random variants draw; 0 at first */
    int threads;        /* threads that a rewriter may use */
} exf_decode_schedule;

/* Makes the schedule; size and threads are at least 1. */
exf_code exf_decode_schedule_new(exf_decode_schedule *s, const exf_batch *batch, int size, int prefill_tokens, int threads,
                                 exf_err *err) EXF_CHECKED;
void exf_decode_schedule_free(exf_decode_schedule *s);
/* Returns how many positions of a sequence of n tokens are prefill: [0, result). */
int exf_decode_schedule_prefill(const exf_decode_schedule *s, int n);
/* Sets mark [T] to 1 for the tokens that are prefill. */
void exf_decode_schedule_mark(const exf_decode_schedule *s, unsigned char *mark);

/* Cost of the routes of a lane in one MoE layer, added up over calls. */
typedef struct {
    uint64_t tokens, executed; /* executed: distinct experts of each token, added up */
    uint64_t steps, distinct;  /* decode steps, and the distinct experts of each */
} exf_expert_usage;

typedef struct exf_fold_rewriter exf_fold_rewriter;

/* Makes a rewriter.  variant NULL: changes nothing and counts.  Layers that the tables lack
 * are never folded, hash layers only as the variant's runtime folds them.  All arguments are borrowed; t->vectors must be read if
 * the variant asks for vectors.  EXF_USAGE names what the tables lack (a projector, a pool,
 * an array that version 1 of the format did not have), or says that vectors and a decode
 * fold apply to the same positions. */
exf_code exf_fold_rewriter_new(exf_fold_rewriter **out, const exf_variant *variant, const exf_tables *t, const exf_architecture *a,
                               const exf_decode_schedule *schedule, exf_err *err) EXF_CHECKED;
const exf_rewriter *exf_fold_rewriter_callbacks(exf_fold_rewriter *f);
/* Has a new rewriter count the experts of the steps of n schedules, which are borrowed, in the place of its own. */
exf_code exf_fold_rewriter_count(exf_fold_rewriter *f, const exf_decode_schedule *schedules, int n, exf_err *err) EXF_CHECKED;
/* Refuses a pass on a GPU in which the norm head predicted what is no norm; the pass is done. */
exf_code exf_fold_rewriter_check(const exf_fold_rewriter *f, exf_err *err) EXF_CHECKED;
/* Returns counts [schedules, MoE layers of the model] of the lane's own routes in the layers whose work is done; probes are not
 * counted. */
const exf_expert_usage *exf_fold_rewriter_usage(exf_fold_rewriter *f);
/* Sets the counts by schedule i of the first n MoE layers, which a resumed pass does not run. */
void exf_fold_rewriter_set_usage(exf_fold_rewriter *f, int i, const exf_expert_usage *usage, int n);
void exf_fold_rewriter_free(exf_fold_rewriter *f); /* NULL is allowed */
/* Returns 1 if the variant applies vectors (exf_tables_read_vectors). */
int exf_variant_wants_vectors(const exf_variant *v);
/* Returns 1 if the variant folds by the norms that the tables' norm head predicts. */
int exf_variant_wants_norms(const exf_variant *v);
#endif
