/* plan.h - what --dry-run reports of a run: tokens, weights, time, memory and disk.
 *
 * The time is measured: the pass of the run itself, with its lanes and observers, runs on a sample of the
 * tokens through the first layers in which every kind of layer occurs, and the head.  On a CPU its sequences are as long as the
 * blocks in which the run's experts run, since an expert's matrices are read for each.  The seconds per unit of each kind of work
 * are then multiplied with the units of the whole run (pass/forward.h).  The time before the pass is what the dry run itself has
 * taken so far.  A plan writes nothing, and names what its time leaves out: writing statistics, tables, exports or a capture, and
 * solving.  Without weights it reports only a lower bound: operations at the rate of a matrix product. */
#ifndef EXF_RUN_PLAN_H
#define EXF_RUN_PLAN_H
#include "pass/forward.h"
#include "recipe/recipe.h"

/* Runs the pass of a run over a sample, and drops its results. */
typedef exf_code (*exf_plan_pass)(void *self, const exf_batch *batch, const exf_forward_options *options,
                                  exf_forward_report *report, exf_err *err);

/* A stage sets what the run is, exf_session_plan() (session.h) the rest. */
typedef struct {
    const exf_model *model;
    const exf_batch *batch;   /* ids NULL: the tokens are not known */
    const size_t *group_of;   /* [n_sequences] as exf_deal() takes it: a rank gets whole groups; NULL: each sequence is one */
    const exf_demand *demand;
    int n_layers;             /* that run */
    exf_plan_pass pass;       /* runs a sample */
    void *self;
    exf_forward_options options;
    int workers;
    double flops;             /* of the whole run */
    exf_eta work;             /* units of the whole run */
    uint64_t weight_bytes;    /* bytes that are read */
    exf_forward_footprint held;
    uint64_t host, disk;      /* bytes of memory beside the pass; bytes of the outputs */
    uint64_t resume;          /* bytes of disk that resume points take while it runs, at most; 0: it saves none */
    uint64_t records;         /* those of them that all layers leave beside hidden states */
    int no_resume;            /* the run saves no resume point, whatever the recipe says */
    const char *output;       /* the directory that is written or, if is_file, the file */
    int is_file;
    uint64_t reduced;         /* bytes of sums that ranks add up, of all layers */
    uint64_t by_gpus;         /* those of them that the GPUs of one host add up among themselves */
    uint64_t statistics;      /* bytes of disk that are written while the pass runs */
    const char *missing;      /* a file of the corpus that is not there, so that its tokens are assumed; NULL: none */
    const char *not_counted;  /* what the time leaves out of the run; NULL: nothing */
    struct {
        size_t sequences;     /* that run first, with all variants; 0: no pilot */
        double share;         /* of the whole pass's work on tokens that this is */
    } pilot;                  /* of a sweep with a limit (validate/pilot.h); the pass after it has at most all lanes */
    /* Results of exf_plan_measure(). */
    double rate;              /* FLOP/s of one worker's matrix product */
    uint64_t process;         /* bytes of memory that the process has had, the sample included */
    double seconds;
    int measured;             /* 0: seconds is a lower bound */
    struct {
        /* Seconds, by kind (exf_scale); 0 where not measured. */
        double start, once, tokens, weights, ends, pilot;
    } part;
} exf_plan;

/* Measures p->rate and, by pass, p->seconds; pass NULL: only a bound. */
exf_code exf_plan_measure(exf_plan *p, exf_plan_pass pass, void *self, exf_err *err) EXF_CHECKED;
/* Adds the seconds of a pilot, which reads all weights too, to those that were measured. */
void exf_plan_add_pilot(exf_plan *p);
/* Refuses an output whose directory cannot be written (EXF_IO) or has too little free space (EXF_NOSPACE). */
exf_code exf_plan_check_output(const exf_plan *p, exf_err *err) EXF_CHECKED;
/* Refuses --json FILE without --dry-run, for programs that have no other JSON, and what exf_scale_check() refuses. */
exf_code exf_plan_check_json(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Prints the plan on stdout, as lines or, with --json FILE, as an object to that file (- is stdout). */
exf_code exf_plan_tell(const exf_plan *p, const exf_recipe *r, exf_err *err) EXF_CHECKED;

/* ---- on several ranks and nodes (plan_measure.c) -------------------------------------------------- */

/* The time of a planned run on several ranks and nodes is predicted from rates that were measured here or are given.
 * A run's seconds are of these kinds:
 *   start       from the start of the programs to that of the pass: opening model, data and GPU; of several ranks 1.5 s
 *               more for mpirun, and unless it started the dry run too, which then has measured it, 0.4 s for joining and 0.18
 *               for each further GPU of a node
 *   once        opening the pass, the first weights; every rank takes them
 *   tokens      mixers, experts, statistics: divided by ranks on GPUs, by nodes on CPUs, whose ranks share the cores;
 *               the rank of most tokens counts
 *   weights     reading, hashing and sending them: each node does it once, whatever its number of ranks; on a GPU while
 *               tokens are computed
 *   sums        adding up each layer's sums over all ranks: within a node of R ranks 2 (R - 1) / R times their bytes at
 *               2.8 GB/s, over N nodes 2 (N - 1) / N times at the network's rate; while the next layer runs.  Vector sums on the
 *               GPUs of one node take none
 *   files       writing them on rank 0, at 1.25 GB/s unless --rates gives another: statistics beside the next layer's work,
 *               and beside the next layer's sums; the others after the pass
 *   ends        layers' ends on rank 0: not divided
 * On a GPU, work = max(tokens, weights) and beside = max(sums, statistics) run at the same time, and disturb each other:
 * seconds = start + once + max(work, beside) + 0.3 min(work, beside) + ends + the last layer's sums and statistics + other files.
 * On a CPU weights and statistics are added.  Solving is not in them. */

/* Rates; 0: as measured, or assumed. */
typedef struct {
    double compute; /* FLOP/s that a rank's whole run attains */
    double read;    /* bytes/s at which a node reads and hashes weights */
    double copy;    /* bytes/s at which weights reach one GPU */
    double network; /* bytes/s of a node; 0: 12.5e9, a link of 100 Gbit/s */
    double write;   /* bytes/s at which a file is written, with its checksum and digest; 0: 1.25e9, that of a RAM disk */
} exf_scale_rates;

typedef struct {
    int ranks, nodes;
    exf_scale_rates rates;
    int assumed_network, assumed_write; /* 1: no rate was given */
    double most_tokens;  /* the largest part of all tokens that a rank has */
    double start, once, tokens, weights, sums, statistics, files, ends, seconds; /* files: those after the pass */
} exf_scale;

/* Reads "compute=400T", "read=20G", "copy=50G", "network=12.5G", "write=2G"; suffixes K, M, G, T are powers of 1000. EXF_USAGE. */
exf_code exf_scale_rates_parse(exf_scale_rates *out, const exf_text_list *text, exf_err *err) EXF_CHECKED;
/* Refuses what does not go together: EXF_USAGE for --nodes or --rates without --ranks, any of them without --dry-run,
 * ranks that do not divide into the nodes. */
exf_code exf_scale_check(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Predicts the run of a plan that was measured (exf_plan_measure).  EXF_USAGE if there are fewer sequences than ranks. */
exf_code exf_scale_predict(exf_scale *out, const exf_plan *p, const exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
