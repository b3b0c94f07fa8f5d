/* cost.h - what a row of a validation costs to serve: floating-point operations of prefill, bytes of weights of a decode step,
 * and the bound of decode tokens per second that a GPU's memory sets.
 *
 *   operations per token   sum over MoE layers of (routed experts that a token runs) * 6 d_model d_expert: three matrices,
 *                          a multiplication and an addition for each of their elements
 *   expert bytes per step  sum over MoE layers of (distinct experts of a decode step) * bytes of one expert, which are those
 *                          of the checkpoint's own tensors in their own format, scales included
 *   step bytes             these, and all other weights that every step reads: attention, routers, shared experts, dense
 *                          layers, norms, the head; tensors of which a token reads one row, the embedding and the table of a
 *                          layer that routes by token id, are left out
 *   tokens per second      sequences of a batch / (step bytes / bandwidth): nothing but weights is counted, so that no
 *                          runtime is faster, and each is slower by its key-value cache, its arithmetic and its waiting
 *
 * How many experts run was measured in each layer (exf_layer_result). */
#ifndef EXF_VALIDATE_COST_H
#define EXF_VALIDATE_COST_H
#include "model/model.h"
#include "validate/validate.h"

/* ---- memory bandwidth ---------------------------------------------------------------------------- */

/* A GPU by the name that nvidia-smi, or amd-smi, prints, and a short one. */
typedef struct {
    const char *name, *brief;
    double bandwidth; /* bytes per second of its memory, by the data sheet */
} exf_gpu;

const exf_gpu *exf_gpu_at(size_t i); /* NULL: past the end */
/* Finds a GPU by either name, in any case.  EXF_USAGE lists the brief names of those that are known. */
exf_code exf_gpu_require(const char *name, const exf_gpu **out, exf_err *err) EXF_CHECKED;
/* Reads "4.8TB/s", "936GB/s", "1.2TiB/s".  EXF_USAGE. */
exf_code exf_bandwidth_parse(const char *text, double *out, exf_err *err) EXF_CHECKED;

/* ---- cost ---------------------------------------------------------------------------------------- */

typedef struct {
    int n_layers;                  /* MoE layers */
    double expert_flops;           /* of one routed expert on one token */
    double expert_bytes[EXF_MAX_LAYERS]; /* [n_layers] of one routed expert of each MoE layer, the mean over its experts */
    double other_bytes;            /* of all other weights that a step reads */
    double bandwidth;              /* bytes per second; 0: not known */
} exf_cost_model;

typedef struct {
    double flops;      /* per token */
    double expert_bytes, step_bytes; /* per decode step */
    double tokens_per_second;        /* at most, of a whole batch; 0: the bandwidth is not known, or nothing decodes */
} exf_cost;

exf_cost_model exf_cost_model_of(const exf_model *m, double bandwidth);
/* Returns what the row costs in decode batches of `size` sequences. */
exf_cost exf_cost_of(const exf_cost_model *c, const exf_variant_result *r, int size);
#endif
