/* model.h - exf_model is an opened checkpoint directory: architecture, tensors by role, and the
 * identity of what is read of them.  Opening checks every tensor of the checkpoint against what the config
 * expects, before anything is computed. */
#ifndef EXF_MODEL_MODEL_H
#define EXF_MODEL_MODEL_H
#include "model/weight_source.h"

/* How much of a model is opened. */
typedef enum {
    EXF_MODEL_ALL,
    EXF_MODEL_CONFIG   /* config.json alone: sizes are those of the release, nothing can be read */
} exf_model_part;

typedef struct {
    exf_model_part part;
    char *dir;
    char *config_path;
    exf_json *config, *export_config; /* export_config: hf_quant_config.json where it says how weights are coded; else NULL */
    const exf_family *family;
    exf_architecture arch;
    exf_quantization quantization;
    exf_checkpoint *checkpoint;
    char config_sha256[EXF_SHA256_HEX];
    exf_weight_identity *identity; /* of the weights that are read; NULL of a config alone */
    unsigned char *spelling; /* [family->n_rules] which of a rule's names the checkpoint has, or EXF_RULE_UNUSED */
    unsigned char *beyond_bf16; /* [1 + n_layers, EXF_W_COUNT] 1: exf_model_fits_bf16() is not so; NULL of a config alone */
} exf_model;

/* Returns EXF_OK for a directory that has a config.json, and for any path about which opening config.json there
 * says the best that is known.  EXF_USAGE, with the command or the path that mends it, for
 *   a hub's name (OWNER/MODEL, where no OWNER exists): how to download it;
 *   the folder of a hub cache, which keeps checkpoints in snapshots/REVISION: which of them to name;
 *   a file, such as a .gguf, a shard or config.json itself;
 *   a directory of GGUF files, of a LoRA adapter or of pickled weights: what to make of it. */
exf_code exf_model_check_path(const char *dir, exf_err *err) EXF_CHECKED;
exf_code exf_model_open(exf_model **out, const char *dir, exf_err *err) EXF_CHECKED;
exf_code exf_model_open_part(exf_model **out, const char *dir, exf_model_part part, exf_err *err) EXF_CHECKED;
void exf_model_close(exf_model *m); /* NULL is allowed */

/* Says that a pass has read all tensors of a layer that it needs, or of those outside layers for -1: makes their digests
 * (weight_identity.h) and checks that no file of the checkpoint changed, EXF_MODEL. */
exf_code exf_model_layer_done(const exf_model *m, int layer, exf_err *err) EXF_CHECKED;

/* Reads all weights for their identity alone, in pieces as a pass does. */
exf_code exf_model_identify(const exf_model *m, exf_err *err) EXF_CHECKED;

/* Returns how many tensors of a role a layer has: 0, 1, or E.  Where a role's rows lie in groups (exf_row_layout) it returns the
 * number of runs of equally many rows; below, each run is a copy.  Layer -1: outside layers. */
int exf_model_copies(const exf_model *m, exf_role role, int layer);
/* Elements of one such tensor or run; 0 if there is none. */
size_t exf_model_count(const exf_model *m, exf_role role, int layer);
/* Reads one tensor as float32 into dst [exf_model_count()].  expert, the copy's number, is ignored for a role
 * that has one tensor in a layer; the head of a tied model is the embedding. */
exf_code exf_model_read(const exf_model *m, exf_role role, int layer, int expert, float *dst, exf_err *err) EXF_CHECKED;
/* The stored form of that tensor: rows [row, row + rows) of w seen as a matrix
 * [.., cols], for exf_weight_source_raw(). */
typedef struct {
    exf_weight_source w;
    size_t row, rows, cols;
} exf_model_rows;
exf_code exf_model_locate(const exf_model *m, exf_role role, int layer, int expert, exf_model_rows *out, exf_err *err) EXF_CHECKED;
/* 1 if bfloat16 holds all tensors of a role in a layer exactly (exf_weight_source_fits_bf16()); of a config
 * alone, if it would those of the release. */
int exf_model_fits_bf16(const exf_model *m, exf_role role, int layer);
/* Bytes on disk of one layer's tensors, scales included; of the tensors outside
 * layers for -1.  Of a config alone: what the rules and the release's dtypes
 * amount to (BF16, but for what quantization_config and exf_stored_dtype() say). */
uint64_t exf_model_layer_bytes(const exf_model *m, int layer);
uint64_t exf_model_bytes(const exf_model *m); /* of all tensors that are read */
/* role EXF_W_COUNT: of all of them. */
uint64_t exf_model_role_bytes(const exf_model *m, exf_role role, int layer);
/* The rule that gives a role's tensor in a layer (family.h); NULL if it has none. */
const exf_tensor_rule *exf_model_rule(const exf_model *m, exf_role role, int layer);
/* The dtype in which releases store a role's tensors if they are not quantised. */
exf_dtype exf_stored_dtype(exf_role role, unsigned how);

/* Longest tensor name that a rule may give. */
enum { EXF_TENSOR_NAME_LEN = 192 };
enum { EXF_RULE_UNUSED = 255 }; /* the checkpoint has the tensors of another rule of the role */
/* Chooses among the layouts that the family's rules allow the one that the checkpoint has: its prefix and spellings.  Without
 * tensors it is the release's. */
exf_code exf_model_choose_layout(exf_model *m, exf_err *err) EXF_CHECKED;
/* Replaces {P}, {L} and {E} in a pattern. */
void exf_tensor_name(char out[EXF_TENSOR_NAME_LEN], const exf_architecture *a, const char *pattern, int layer, int expert);
/* The pattern of a rule's tensors in this model; the name of one of them. */
void exf_rule_pattern(char out[EXF_TENSOR_NAME_LEN], const exf_model *m, const exf_tensor_rule *r);
void exf_rule_name(char out[EXF_TENSOR_NAME_LEN], const exf_model *m, const exf_tensor_rule *r, int layer, int expert);
/* 1 if the rule requires its tensor in this layer (-1: outside layers). */
int exf_rule_applies(const exf_model *m, const exf_tensor_rule *r, int layer);
/* Fills the shape as in the file; returns its rank. */
int exf_rule_shape(const exf_architecture *a, const exf_tensor_rule *r, int64_t shape[4]);
/* Returns 0 if the tensor begins with another role's rows, since that role's rule counts for all of it; else 1. */
int exf_rule_begins_tensor(const exf_tensor_rule *r);
/* Checks that every tensor that the rules require of the opened part is present and has the
 * right shape and dtype; a whole model must have no other tensors, and no head beside a tied embedding that differs from
 * it.  Weights that a quantizer packed are
 * refused by their names. */
exf_code exf_model_check_tensors(const exf_model *m, exf_err *err) EXF_CHECKED;
/* Checks that every expert number in an integer tensor is in [0, E). */
exf_code exf_model_check_tables(const exf_model *m, exf_err *err) EXF_CHECKED;
#endif
