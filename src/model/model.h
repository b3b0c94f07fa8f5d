/* model.h - a checkpoint directory understood: architecture, tensors by role,
 * fingerprint.  Opening checks every tensor of the checkpoint against what the
 * config expects before anything is computed. */
#ifndef EXF_MODEL_MODEL_H
#define EXF_MODEL_MODEL_H
#include "model/checkpoint.h"
#include "model/family.h"

typedef struct {
    char *dir;
    char *config_path;
    exf_json *config;
    const exf_family *family;
    exf_architecture arch;
    exf_checkpoint *checkpoint;
    char config_sha256[EXF_SHA256_HEX];
    char weights_sha256[EXF_SHA256_HEX]; /* exf_checkpoint_sha256 */
} exf_model;

exf_code exf_model_open(exf_model **out, const char *dir, exf_err *err) EXF_CHECKED;
void exf_model_close(exf_model *m); /* NULL is allowed */

/* How many tensors of a role a layer has: 0, 1, or E. */
int exf_model_copies(const exf_model *m, exf_role role, int layer);
/* Elements of the tensor of a role (same in every layer); 0 if the family has none. */
size_t exf_model_count(const exf_model *m, exf_role role);
/* The tensor as float32.  layer and expert are ignored where the role has none;
 * the head of a tied model is the embedding.  dst has exf_model_count() room. */
exf_code exf_model_read(const exf_model *m, exf_role role, int layer, int expert, float *dst, exf_err *err) EXF_CHECKED;
/* Bytes on disk of one layer's tensors; of the tensors outside layers for -1. */
uint64_t exf_model_layer_bytes(const exf_model *m, int layer);
uint64_t exf_model_bytes(const exf_model *m); /* of all tensors that are read */
#endif
