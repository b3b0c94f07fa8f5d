/* pruned.h - the config.json of a model without some of its experts. */
#ifndef EXF_EXPORT_PRUNED_H
#define EXF_EXPORT_PRUNED_H
#include "base/text.h"
#include "model/model.h"

#include <stdint.h>

/* Appends the config with other numbers in the place of some, and otherwise as it is, byte for byte: where num_experts,
 * n_routed_experts or num_local_experts is `experts` it becomes `keep`, and num_nextn_predict_layers and
 * mtp_num_hidden_layers 0 unless they stay.  The text is valid JSON.  EXF_MODEL, naming path, where no number of experts is. */
exf_code exf_pruned_config(exf_text *out, const char *config, size_t n, int64_t experts, int64_t keep, int keeps_prediction,
                           const char *path, exf_err *err) EXF_CHECKED;

/* The tensors of a checkpoint without some of its experts: which are left, under which names, and which of
 * their rows. */

typedef struct {
    const exf_stored_tensor *from;
    char *name;          /* as it is called now: experts are numbered anew */
    exf_tensor view;     /* with that name and what is left of the shape; no data */
    const int32_t *rows; /* [view.shape[0]] those of the first axis that are left; NULL: all, bit for bit */
} exf_pruned_tensor;

typedef struct {
    exf_pruned_tensor *tensor; /* by the old name */
    size_t n;
    size_t n_dropped_layers; /* tensors of layers for multi-token prediction, which are left out */
    uint64_t bytes;
} exf_pruned_tensors;

/* kept [n_layers of the model, keep]: ascending expert numbers of each MoE layer; borrowed.  What is no expert, router or
 * router bias of these layers stays as it is, but for the layers for multi-token prediction, whose own experts have no scores.
 * EXF_MODEL where a tensor of the experts has another number of rows than there are experts. */
exf_code exf_pruned_tensors_make(exf_pruned_tensors *out, const exf_model *m, const int32_t *kept, int keep,
                                 exf_err *err) EXF_CHECKED;
void exf_pruned_tensors_free(exf_pruned_tensors *p);
#endif
