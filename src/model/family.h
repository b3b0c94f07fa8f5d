/* family.h - the registry of model families, one file src/model/family_<name>.c each.
 *
 * A family describes how its config.json fills an exf_architecture and lists the names
 * and shapes of its checkpoint's tensors.  The checkpoint must match that list: a
 * tensor that is missing, has another shape or dtype, or is not in the list is an
 * error that names what the config expects. */
#ifndef EXF_MODEL_FAMILY_H
#define EXF_MODEL_FAMILY_H
#include "model/architecture.h"
#include "model/checkpoint.h"
#include "model/config.h"

/* The role of a tensor, by which the forward pass finds it. */
typedef enum {
    /* once in a model */
    EXF_W_EMBED, EXF_W_FINAL_NORM, EXF_W_HEAD, EXF_W_HEAD_MIX, EXF_W_HEAD_MIX_BASE, EXF_W_HEAD_MIX_SCALE,
    /* in layers: norms and feed-forward */
    EXF_W_MIXER_NORM, EXF_W_FFN_NORM, EXF_W_DENSE_GATE, EXF_W_DENSE_UP, EXF_W_DENSE_DOWN,
    EXF_W_ROUTER, EXF_W_ROUTER_BIAS, EXF_W_ROUTER_TABLE, EXF_W_ROUTER_SHIFT, /* bias: on choices; shift: on logits */
    EXF_W_EXPERT_GATE, EXF_W_EXPERT_UP, EXF_W_EXPERT_DOWN,
    EXF_W_EXPERT_GATE_BIAS, EXF_W_EXPERT_UP_BIAS, EXF_W_EXPERT_DOWN_BIAS,
    EXF_W_SHARED_GATE, EXF_W_SHARED_UP, EXF_W_SHARED_DOWN, EXF_W_SHARED_SWITCH,
    /* grouped-query attention */
    EXF_W_Q, EXF_W_K, EXF_W_V, EXF_W_O, EXF_W_Q_BIAS, EXF_W_K_BIAS, EXF_W_V_BIAS, EXF_W_O_BIAS, EXF_W_Q_NORM, EXF_W_K_NORM,
    EXF_W_HEAD_SINK,
    /* latent attention (with W_Q or W_Q_A.., W_O) */
    EXF_W_Q_A, EXF_W_Q_A_NORM, EXF_W_Q_B, EXF_W_KV_A, EXF_W_KV_A_NORM, EXF_W_KV_B,
    /* gated delta rule */
    EXF_W_DELTA_QKV, EXF_W_DELTA_Z, EXF_W_DELTA_B, EXF_W_DELTA_A, EXF_W_DELTA_CONV, EXF_W_DELTA_DT_BIAS, EXF_W_DELTA_A_LOG,
    EXF_W_DELTA_NORM, EXF_W_DELTA_OUT,
    /* compressed attention (with W_Q_A, W_Q_A_NORM, W_Q_B) */
    EXF_W_KV, EXF_W_KV_NORM, EXF_W_SINK, EXF_W_O_A, EXF_W_O_B,
    EXF_W_COMPRESS_KV, EXF_W_COMPRESS_GATE, EXF_W_COMPRESS_APE, EXF_W_COMPRESS_NORM,
    EXF_W_INDEX_Q, EXF_W_INDEX_WEIGHTS, EXF_W_INDEX_KV, EXF_W_INDEX_GATE, EXF_W_INDEX_APE, EXF_W_INDEX_NORM,
    EXF_W_INDEX_NORM_BIAS, /* of the indexer of latent attention, which has W_INDEX_Q, _WEIGHTS, _KV, _NORM too */
    /* hyper-connections, per site */
    EXF_W_MIXER_MIX, EXF_W_MIXER_MIX_BASE, EXF_W_MIXER_MIX_SCALE, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE,
    /* where what a layer adds is normed (exf_residual_spec), and weights of the router's */
    EXF_W_MIXER_OUT_NORM, EXF_W_ROUTER_NORM, EXF_W_EXPERT_SCALE, EXF_W_ROUTED_OUT_NORM, EXF_W_SHARED_NORM,
    EXF_W_SHARED_OUT_NORM, EXF_W_BLOCK_OUT_NORM, EXF_W_LAYER_SCALE,
    EXF_W_COUNT
} exf_role;
enum { EXF_W_FIRST_IN_LAYER = EXF_W_MIXER_NORM };

/* How often a tensor occurs. */
typedef enum {
    EXF_IN_MODEL,  /* once */
    EXF_IN_LAYER,  /* once in each layer that has the traits */
    EXF_IN_EXPERT, /* once for every expert of each such layer */
    EXF_IN_STACK   /* one tensor for all experts of each such layer: [E, ...] */
} exf_where;

/* Flags of exf_tensor_rule.how: how a tensor is stored. */
enum {
    EXF_LINEAR = 1,      /* a matrix that a quantised checkpoint may hold in FP8 or FP4 */
    EXF_PLUS_ONE = 2,    /* stored as w - 1: a zero-centred norm weight */
    EXF_INTEGER = 4,     /* expert numbers in [0, E) */
    EXF_FIRST_HALF = 8,  /* of a stack: the first or second half of each expert's rows */
    EXF_SECOND_HALF = 16,
    EXF_MAY_BE_TIED = 32, /* may be present although the traits do not require it */
    EXF_EVEN_ROWS = 64,  /* of a stack: every other row of each expert's, two roles in turn */
    EXF_ODD_ROWS = 128,
    EXF_TRANSPOSED = 1 << 16, /* of a stack: each expert's columns are stored as rows */
    EXF_FLOAT32 = 1 << 18, /* releases store it in float32, which no config says (exf_stored_dtype()) */
    EXF_MXFP4 = 1 << 17  /* of a stack: packed FP4 [E, rows, columns / 32, 16 bytes] and E8M0 scales in U8 beside it, "_scales" */
};
#define EXF_HALVES (EXF_FIRST_HALF | EXF_SECOND_HALF)
/* How tensors of EXF_EVEN_ROWS and the like lie; they are decoded on the host. */
#define EXF_INTERLEAVED (EXF_EVEN_ROWS | EXF_ODD_ROWS)
#define EXF_REARRANGED (EXF_INTERLEAVED | EXF_TRANSPOSED)
/* Returns how many roles' rows come together with any of one role's. */
static inline int exf_roles_read_together(unsigned how)
{
    return how & EXF_INTERLEAVED || (how & EXF_TRANSPOSED && how & EXF_HALVES) ? 2 : 1;
}

/* How rows of several roles lie in one tensor: group after group, and in each the rows of part 0, of part 1 and so on. */
typedef enum {
    EXF_ROWS_OWN,    /* they do not: the tensor is one role's */
    EXF_ROWS_QKVZ,   /* the delta rule's projections, a group per key head: q, k, v, z */
    EXF_ROWS_BA,     /* the same of b, a */
    EXF_ROWS_LAYOUTS
} exf_row_layout;
/* In `how`: the layout, and bits of the parts that are the role's, part after part, each of all groups in order. */
#define EXF_ROWS(layout, parts) ((unsigned)(layout) << 8 | (unsigned)(parts) << 12)
#define EXF_ROW_LAYOUT(how) ((exf_row_layout)((how) >> 8 & 15))

typedef struct {
    exf_role role;
    const char *name;  /* {P} the architecture's prefix, {L} the layer's number, {E} the expert's; "a|b": one of several names */
    exf_where where;
    unsigned when;     /* traits that a layer must all have; 0: every layer */
    exf_dim dims[3];   /* as in the file, without the E of a stack; of rows in groups the role's own */
    unsigned how;
} exf_tensor_rule;

enum { EXF_PREFIXES = 4, EXF_IGNORED_NAMES = 12 };

typedef struct {
    const char *name;         /* equals config.json's model_type */
    const char *also;         /* NULL, or a second model_type that means the same */
    const char *architecture; /* as in "architectures": ["Qwen3MoeForCausalLM"] */
    exf_code (*configure)(const exf_config *config, exf_architecture *a, exf_err *err);
    /* What {P} may stand for, the release's first; none: "model.", or "model.language_model." as in a composite model. */
    const char *prefixes[EXF_PREFIXES];
    /* Rules of one role that require the same traits are alternatives, the release's first (model.c). */
    const exf_tensor_rule *rules;
    size_t n_rules;
    /* Names of tensors that may be present and are never read: a pattern matches the
     * beginning of a name; {N} is a layer number that the model does not have; up to a NULL. */
    const char *ignored[EXF_IGNORED_NAMES];
} exf_family;

const exf_family *exf_family_find(const char *model_type); /* NULL: unknown */
const exf_family *exf_family_at(size_t i);                 /* in order of name; NULL: past the end */
/* EXF_MODEL naming the unknown type, all that are supported and the nearest of them. */
exf_code exf_family_require(const char *model_type, const exf_family **out, exf_err *err) EXF_CHECKED;
#endif
