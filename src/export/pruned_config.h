/* pruned_config.h - the config.json of a model without some of its experts. */
#ifndef EXF_EXPORT_PRUNED_CONFIG_H
#define EXF_EXPORT_PRUNED_CONFIG_H
#include "base/text.h"

#include <stdint.h>

/* Appends the config with other numbers in the place of some, and otherwise as it is, byte for byte: where num_experts,
 * n_routed_experts or num_local_experts is `experts` it becomes `keep`, and num_nextn_predict_layers and
 * mtp_num_hidden_layers 0 unless they stay.  The text is valid JSON.  EXF_MODEL, naming path, where no number of experts is. */
exf_code exf_pruned_config(exf_text *out, const char *config, size_t n, int64_t experts, int64_t keep, int keeps_prediction,
                           const char *path, exf_err *err) EXF_CHECKED;
#endif
