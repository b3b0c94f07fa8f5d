/* work.h - says how much work a pass or a replay is, kind by kind, before it runs.
 *
 * A plan multiplies these units with seconds per unit that a sample of the pass measured; the estimate
 * of the seconds left (base/eta.h) measures them while the pass runs.  On a GPU, whose work goes on
 * beside the host's, the GPU's clock measures every kind but READ and REST (stage_clock.h). */
#ifndef EXF_PASS_WORK_H
#define EXF_PASS_WORK_H
#include "base/eta.h"
#include "pass/demand.h"
#include "model/model.h"

/* Kinds of work; the unit of each. */
enum {
    EXF_WORK_READ,    /* bytes of weights */
    EXF_WORK_MIXER,   /* floating-point operations; one kind for each exf_mixer_kind */
    EXF_WORK_ROUTE = EXF_WORK_MIXER + EXF_MIXER_KINDS, /* tokens of a lane or probe whose routes are rewritten or masked */
    EXF_WORK_DENSE,   /* tokens of a lane in a dense layer */
    EXF_WORK_EXPERTS, /* tokens of a lane in an MoE layer and sweep, observer and probes included */
    EXF_WORK_COMMON,  /* tokens of common input */
    EXF_WORK_HEAD,    /* tokens of a lane */
    EXF_WORK_REST,    /* layers: their end, in which observers add up and write */
    EXF_WORK_KINDS
};

/* Return the floating-point operations of one token in the router and experts of an MoE layer, or in a dense layer. */
double exf_work_moe_flops(const exf_architecture *a);
double exf_work_dense_flops(const exf_architecture *a);

/* Returns the planned units and priors of a pass over layers first .. n_layers - 1. */
exf_eta exf_work_of_pass(const exf_model *m, const exf_batch *batch, const exf_demand *d, int first, int n_layers);
/* Returns those of a replay of the layers for which has_input is 1. */
exf_eta exf_work_of_replay(const exf_model *m, const exf_batch *batch, const unsigned char *has_input);
/* Returns the number of first layers of the model in which every kind of layer occurs. */
int exf_work_sample_layers(const exf_architecture *a);
#endif
