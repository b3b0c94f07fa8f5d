/* session.h - a session has what a run reads: backend, model, layers, and the tokens of a corpus;
 * which part of them this process runs; and the run's resume point. */
#ifndef EXF_RUN_SESSION_H
#define EXF_RUN_SESSION_H
#include "capture/capture.h"
#include "fold/variant.h"
#include "kernels/backend.h"
#include "pass/resume.h"
#include "ranks/ranks.h"
#include "recipe/recipe.h"
#include "recipe/run_directory.h"
#include "run/plan.h"

typedef struct {
    const exf_backend *backend;
    exf_compute compute;
    exf_model *model;
    exf_layer_choice layers;
    exf_corpus *corpus;
    exf_corpus_request request;
    char *tokenizer_path;
    char *missing_data;       /* of a dry run: a missing file of the corpus; NULL: the corpus is real */
    exf_run_shape shape;
    exf_batch batch;
    exf_batch part;           /* what this process runs: of several ranks a part of batch */
    exf_span *part_span;
    size_t first_sequence, first_row; /* of the part in batch */
    exf_ranks *ranks;         /* borrowed from the recipe; NULL: one process */
    exf_ranks_window window;  /* memory of the node's ranks, in which weights are read once */
    exf_ranks *shares;        /* borrowed; the ranks of the window; NULL: there is none */
    struct exf_shared_chunks *shared; /* weights/shared_chunks.h; NULL: none */
    exf_background warm_up;   /* initialises a GPU */
} exf_session;

/* Refuses --text - where several ranks run: mpirun and srun pipe into the first one alone. */
exf_code exf_session_check_piped(const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Opens and checks everything that a pass reads, and reports it on stderr.  The backend is that of runtime.backend, the number
 * format that of runtime.compute: auto takes the GPU if there is one, and bf16 if that has its products; an explicit choice
 * that is not available is an error.  A default data.max_tokens becomes the model's positions where it is more.  layers: "all" or a
 * list.  A dry run is content with a model's config.json and a manifest whose files do not exist.  Ranks that differ in program,
 * recipe, model, corpus or device are refused (EXF_MODEL). */
exf_code exf_session_open(exf_session *s, exf_recipe *r, const char *layers, exf_err *err) EXF_CHECKED;
void exf_session_close(exf_session *s);
/* Adds the facts of what the session reads: model, data or recording, device. */
exf_code exf_session_facts(exf_provenance *p, const exf_session *s, const char *layers, exf_err *err) EXF_CHECKED;

/* Returns the recipe's options for a pass over n_layers layers (0: all). */
exf_forward_options exf_session_options(const exf_session *s, const exf_recipe *r, int n_layers);
/* Runs the session's part, and reports times and memory on stderr.  resume: the run's resume point, or NULL. */
exf_code exf_session_forward(const exf_session *s, const exf_recipe *r, const exf_observer *observer, int n_layers,
                             exf_resume *resume, exf_err *err) EXF_CHECKED;
/* Reports the times of a pass on stderr. */
void exf_report_times(const exf_recipe *r, uint64_t n_tokens, const exf_forward_report *t);

/* Completes a stage's plan, refuses a place to which the outputs cannot be written or that has too little room for them
 * (exf_plan_check_output()), and prints the plan of a --dry-run (plan.h). */
exf_code exf_session_plan(const exf_session *s, const exf_recipe *r, exf_plan *p, exf_err *err) EXF_CHECKED;

/* ---- a text alone (session_text.c) -----------------------------------------------------------------
 * Print the first r->show_text samples of the session's text; write the token ids of r's text to r->ids_path, for which no session
 * is opened: of the model only the tokenizer is read. */
exf_code exf_session_show_text(const exf_session *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_session_write_ids(const exf_recipe *r, exf_err *err) EXF_CHECKED;

/* ---- shards and ranks (session_shares.c) ---------------------------------------------------------
 *
 * A run over one shard of its data, --shard I/N, has a folder of its own in the output directory, so that all tasks of a job array
 * can have the same recipe and run at the same time.  Shards and the parts of ranks are dealt by tokens (pass/batch.h). */

/* Reads --shard, sets r->shard and r->n_shards, and makes shard-I-of-N in the output directory the output directory.
 * Does nothing without --shard.  EXF_USAGE for what is no I/N with 1 <= I <= N. */
exf_code exf_run_shard_begin(exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Makes each of several ranks take the shard of its number, rank 0 shard 1; beyond that they need not agree on anything.
 * EXF_USAGE with --shard, or with an output that is one file for all. */
exf_code exf_run_shard_of_rank(exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Cuts the corpus to the shard and reports it; does nothing without one. */
exf_code exf_run_shard_take(exf_corpus *c, const exf_recipe *r, exf_err *err) EXF_CHECKED;

/* Refuses ranks that differ in program, recipe, model, corpus or device (EXF_MODEL): before any work. */
exf_code exf_session_agree(const exf_session *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Deals the batch to the ranks, and reports who runs what; without ranks the part is the batch.  group_of: sequences that
 * stay together (pass/batch.h), or NULL. */
exf_code exf_session_deal(exf_session *s, const exf_recipe *r, const size_t *group_of, exf_err *err) EXF_CHECKED;
/* Has the ranks of a node read each weight once for all of them; collective over the node.  exf_session_deal() does it
 * too. */
exf_code exf_session_share(exf_session *s, const exf_recipe *r, exf_err *err) EXF_CHECKED;
/* Refuses, after a pass, ranks that have read other weights: copies of one size on several nodes. */
exf_code exf_session_same_weights(const exf_session *s, exf_err *err) EXF_CHECKED;
/* Reports how many bytes of weights each rank read; all ranks call it. */
exf_code exf_session_tell_bytes(exf_ranks *job, uint64_t weight_bytes, exf_err *err) EXF_CHECKED;

/* ---- the resume point ------------------------------------------------------------------------ */

/* What a run's resume point is of.  Its facts, which another run must share to go on from it, are those of the outputs, the state
 * of the model's files, and what the stage adds. */
typedef struct {
    const char *stage;              /* "calibrate" */
    const exf_provenance *outputs;
    const exf_model *model;
    const exf_accumulate_options *sums; /* those that are added up; NULL: none */
    const char *lanes;                  /* names of the lanes of the pass; NULL: none */
} exf_resume_of;

/* Opens the resume point of a stage as runtime.resume and runtime.checkpoint.* say: EXF_RUN_RESUME_PREFIX "<stage>" in the output
 * directory, or in runtime.checkpoint.directory <stage>[-<i>-of-<n>]-<id>, where id are 12 digits of the SHA-256 of the output
 * directory's path: runs with other outputs have other points.  If the run goes on from a point, reports it and sets
 * r->force: the outputs that exist are the run's own. */
exf_code exf_run_resume_open(exf_resume **out, exf_recipe *r, const exf_run_directory *dir, const exf_resume_of *of,
                             exf_err *err) EXF_CHECKED;
/* Sets *found to 1 if a stage has a resume point there. */
exf_code exf_run_resume_look(const exf_recipe *r, const exf_run_directory *dir, const char *stage, int *found,
                             exf_err *err) EXF_CHECKED;
/* Ends the run with result rc: deletes the point of a run that succeeded.  Where a run with a point was interrupted,
 * returns EXF_STOPPED and says in err how to go on; otherwise returns rc.  Frees resume. */
exf_code exf_run_resume_close(exf_resume *resume, exf_code rc, exf_err *err) EXF_CHECKED;
#endif
