/* capture_output.h - writes the output of exfold-capture, from a forward pass or from recorded
 * hidden states: capture.h5 in the run directory, or one --export file. */
#ifndef EXF_RUN_CAPTURE_OUTPUT_H
#define EXF_RUN_CAPTURE_OUTPUT_H
#include "capture/capture.h"
#include "pass/resume.h"
#include "recipe/recipe.h"

typedef struct {
    exf_recipe *recipe;
    const exf_model *model;
    const exf_batch *batch;
    const exf_run_shape *shape;
    exf_layer_choice *layers;
    /* Runs the pass, with its times on stderr; resume: the run's resume point, or NULL. */
    exf_code (*pass)(void *self, const exf_observer *observer, exf_resume *resume, exf_err *err);
    void *self;
    const exf_provenance *resume_facts; /* of a run that can be resumed; NULL: it cannot */
} exf_capture_job;

/* Bytes the output will take. */
uint64_t exf_capture_output_bytes(const exf_capture_job *j);
/* Runs the pass and writes the output; after a failure nothing is left but a resume point, and the unfinished file
 * that goes with it. */
exf_code exf_capture_output_write(const exf_capture_job *j, const exf_provenance *p, exf_err *err) EXF_CHECKED;
#endif
