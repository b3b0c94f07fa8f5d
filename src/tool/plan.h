/* plan.h - what --dry-run tells of a run: tokens, weights, time, memory and disk.
 *
 * The time is measured: the pass of the run itself, with its lanes and observers, runs on a sample of the
 * tokens through the first layers in which every kind of layer occurs, and the head.  The seconds per unit of
 * each kind of work are then multiplied with the units of the whole run (forward/work.h).  Without
 * weights only a lower bound is told: operations at the rate of a matrix product. */
#ifndef EXF_TOOL_PLAN_H
#define EXF_TOOL_PLAN_H
#include "forward/forward.h"
#include "tool/recipe.h"

/* A pass over fewer tokens. */
typedef struct {
    exf_batch batch;
    int32_t *ids;
    exf_span *span;
} exf_plan_sample;

/* Runs the pass of a run over a sample, and drops its results. */
typedef exf_code (*exf_plan_pass)(void *self, const exf_batch *batch, const exf_forward_options *options,
                                  exf_forward_report *report, exf_err *err);

typedef struct {
    const exf_model *model;
    const exf_batch *batch;   /* ids NULL: unknown, as if any */
    exf_forward_options options;
    int workers;
    double flops;             /* of the whole run */
    exf_eta work;             /* units of the whole run */
    uint64_t weight_bytes;    /* bytes that are read */
    exf_forward_footprint held;
    uint64_t host, disk;      /* bytes of memory beside the pass; bytes of the outputs */
    uint64_t resume;          /* bytes of disk that resume points take while it runs, at most; 0: it saves none */
    const char *output;       /* the directory that is written or, if is_file, the file */
    int is_file;
    const char *note;         /* said of the tokens: "40 layers recorded"; "" for nothing */
    /* Results of exf_plan_measure(). */
    double rate;              /* FLOP/s of one worker's matrix product */
    double seconds;
    int measured;             /* 0: seconds is a lower bound */
} exf_plan;

/* Takes evenly spaced sequences of the batch, the long ones cut, so many that a layer of `layer_flops` operations
 * per token takes some tenths of a second.  Without ids any tokens stand for them.  Free it with
 * exf_plan_sample_free(). */
exf_code exf_plan_sample_new(exf_plan_sample *s, const exf_plan *p, double layer_flops, exf_err *err) EXF_CHECKED;
void exf_plan_sample_free(exf_plan_sample *s);
/* Measures p->rate and, by pass, p->seconds; pass NULL: only a bound. */
exf_code exf_plan_measure(exf_plan *p, exf_plan_pass pass, void *self, exf_err *err) EXF_CHECKED;
/* Refuses an output whose directory cannot be written (EXF_IO) or has too little room (EXF_NOSPACE). */
exf_code exf_plan_check_output(const exf_plan *p, exf_err *err) EXF_CHECKED;
/* Refuses --json FILE without --dry-run, for programs that have no other JSON. */
exf_code exf_plan_check_json(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Prints the plan on stdout, as lines or, with --json FILE, as an object to that file (- is stdout). */
exf_code exf_plan_tell(const exf_plan *p, const exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
