/* session.h - a session opens the model and the corpus of a run and reports on them; also
 * the run directory. */
#ifndef EXF_RUN_SESSION_H
#define EXF_RUN_SESSION_H
#include "capture/capture.h"
#include "kernels/backend.h"
#include "ranks/ranks.h"
#include "plan/plan.h"
#include "recipe/recipe.h"

typedef struct {
    exf_model *model;
    exf_corpus *corpus;
    exf_corpus_request request;
    exf_batch batch;
    exf_batch part;         /* what this process runs: of several ranks a part of batch */
    exf_span *part_span;
    size_t first_sequence, first_row; /* of the part in batch */
    exf_ranks_window window; /* of the node's ranks, in which weights are read once */
    exf_ranks *shares;      /* borrowed; whose window it is; NULL: there is none */
    struct exf_shared_chunks *shared; /* weights/shared_chunks.h; NULL: none */
    exf_ranks *ranks;       /* borrowed from the recipe; NULL: one process */
    exf_run_shape shape;
    exf_layer_choice layers;
    const exf_backend *backend; /* the chosen backend */
    exf_compute compute;
    char *tokenizer_path;
    char *missing_data; /* of a dry run: a missing file of the corpus; NULL: the corpus is real */
} exf_session;

/* Chooses the backend of runtime.backend and the number of runtime.compute, and reports both: auto
 * takes the GPU if there is one, and bf16 if that has its products; an explicit choice that is not
 * available is an error. */
exf_code exf_choose_backend(const exf_backend **backend, exf_compute *compute, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Sets how the model's weights are read, as runtime.io says. */
exf_code exf_choose_io(exf_model *m, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Opens and checks everything a forward pass needs and reports the corpus on
 * stderr.  layers: "all" or a list.  A dry run is content with a model's
 * config.json and a manifest whose files are not there. */
exf_code exf_session_open(exf_session *s, const exf_recipe *r, const char *layers, exf_err *err) EXF_CHECKED;
void exf_session_close(exf_session *s);
/* Refuses ranks that differ in program, recipe, model, corpus or device (EXF_MODEL): before any work. */
exf_code exf_session_agree(const exf_session *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Deals the batch to the ranks, and tells who runs what; without ranks the part is the batch.  group_of: sequences that
 * stay together (pass/batch.h), or NULL. */
exf_code exf_session_deal(exf_session *s, const exf_recipe *r, const size_t *group_of, exf_err *err) EXF_CHECKED;

/* Refuses, after a pass, ranks that have read other weights: copies of one size on several nodes. */
exf_code exf_session_same_weights(const exf_session *s, exf_err *err) EXF_CHECKED;
/* Has the ranks of a node read each weight once for all of them; collective over the node.  exf_session_deal() does it
 * too. */
exf_code exf_session_share(exf_session *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Frees what the ranks of the node share. */
void exf_session_unshare(exf_session *s);

/* A stage's description of a run that is planned. */
typedef struct {
    const exf_demand *demand;
    int n_layers;        /* layers that run */
    uint64_t reduced;    /* bytes of sums that ranks would add up, of all layers; 0: the run makes no statistics */
    uint64_t host, disk; /* bytes of ordinary memory that are held beside the pass, and of the outputs */
    uint64_t records;    /* bytes that all layers leave in a resume point, beside hidden states */
    int no_resume;       /* the run saves no resume point, whatever the recipe says */
    const char *not_counted; /* of the run, in the plan's time; NULL: nothing */
    const char *output;  /* the directory of the outputs or, if is_file, the only one */
    int is_file;
    exf_plan_pass pass;  /* runs a sample */
    void *self;
} exf_session_request;
/* --dry-run: checks the place of the outputs and prints the plan (plan.h). */
exf_code exf_session_plan(const exf_session *s, const exf_recipe *r, const exf_session_request *request, exf_err *err) EXF_CHECKED;
/* The recipe's options of a pass over n_layers layers (0: all). */
exf_forward_options exf_session_options(const exf_session *s, const exf_recipe *r, int n_layers);
/* Runs the pass with one observer and reports times and memory on stderr. */
/* resume: the run's resume point, or NULL. */
exf_code exf_session_forward(const exf_session *s, const exf_recipe *r, const exf_observer *observer, int n_layers,
                             struct exf_resume *resume, exf_err *err) EXF_CHECKED;

/* Report on stderr the opened model, and the times of a pass. */
void exf_report_model(const exf_model *m);
/* Tells how many bytes of weights each rank read; all ranks call it. */
exf_code exf_session_tell_bytes(exf_ranks *job, uint64_t weight_bytes, exf_err *err) EXF_CHECKED;
void exf_report_times(const exf_recipe *r, uint64_t n_tokens, const exf_forward_report *t);
#endif
