/* family.h - a drawer: one file src/model/family_<name>.c per model family.
 *
 * A family says how its config.json fills an exf_architecture and what its
 * checkpoint's tensors are called, as data.  The checkpoint is held to that
 * list: a tensor missing, of another shape or dtype, or not in the list is an
 * error that says what the config expects. */
#ifndef EXF_MODEL_FAMILY_H
#define EXF_MODEL_FAMILY_H
#include "model/architecture.h"
#include "model/config.h"

/* What a tensor is for; the forward asks for these. */
typedef enum {
    EXF_W_EMBED, EXF_W_FINAL_NORM, EXF_W_HEAD,
    EXF_W_MIXER_NORM, EXF_W_Q, EXF_W_K, EXF_W_V, EXF_W_O, EXF_W_Q_NORM, EXF_W_K_NORM,
    EXF_W_FFN_NORM, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN,
    EXF_W_ROUTER, EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN,
    EXF_W_COUNT
} exf_role;

/* Where a tensor occurs. */
typedef enum {
    EXF_ONCE,        /* once in the model */
    EXF_UNLESS_TIED, /* once, absent when embeddings are tied (allowed there if present) */
    EXF_EACH_LAYER,
    EXF_DENSE_LAYER, /* layers whose is_moe is 0 */
    EXF_MOE_LAYER,
    EXF_EACH_EXPERT  /* every expert of every MoE layer */
} exf_where;

/* Axis lengths that follow from the architecture. */
typedef enum {
    EXF_DIM_NONE, EXF_DIM_H, EXF_DIM_VOCAB, EXF_DIM_Q, EXF_DIM_KV, EXF_DIM_HEAD, EXF_DIM_FFN, EXF_DIM_E, EXF_DIM_I
} exf_dim;

typedef struct {
    exf_role role;
    const char *name; /* {L} the layer's number, {E} the expert's */
    exf_where where;
    exf_dim dims[2];  /* [out, in]; a vector leaves the second EXF_DIM_NONE */
} exf_tensor_rule;

typedef struct {
    const char *name;         /* equals config.json's model_type */
    const char *architecture; /* as in "architectures": ["Qwen3MoeForCausalLM"] */
    exf_code (*configure)(const exf_config *config, exf_architecture *a, exf_err *err);
    const exf_tensor_rule *rules;
    size_t n_rules;
} exf_family;

const exf_family *exf_family_find(const char *model_type); /* NULL: unknown */
const exf_family *exf_family_at(size_t i);                 /* in order of name; NULL: past the end */
/* "qwen3_moe, ..." for messages. */
exf_code exf_family_list(exf_text *out, exf_err *err) EXF_CHECKED;
/* Length of an axis; 0 for EXF_DIM_NONE. */
int exf_dim_length(const exf_architecture *a, exf_dim d);
#endif
