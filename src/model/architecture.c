/* architecture.c - writes the text of an architecture, by which models are compared; see architecture.h. */
#include "model/architecture.h"

#include <stddef.h>
#include <string.h>

typedef enum { NUMBER, REAL, WINDOWS, RATIOS, MIXERS, MOE, TRAITS } field_kind;

/* A word of the text. */
typedef struct {
    const char *name;
    field_kind kind;
    size_t offset; /* in exf_architecture; of what stands in a list for each layer, 0 */
} field;

#define AT(member) offsetof(exf_architecture, member)
#define N(member) {#member, NUMBER, AT(member)}
#define R(member) {#member, REAL, AT(member)}
#define ROPE(name, i)                                                                                                   \
    {name ".dim", NUMBER, AT(rope[i].dim)}, {name ".interleaved", NUMBER, AT(rope[i].interleaved)},                     \
    {name ".theta", REAL, AT(rope[i].theta)}, {name ".yarn", NUMBER, AT(rope[i].yarn)},                                 \
    {name ".factor", REAL, AT(rope[i].factor)}, {name ".beta_fast", REAL, AT(rope[i].beta_fast)},                       \
    {name ".beta_slow", REAL, AT(rope[i].beta_slow)}, {name ".original_length", REAL, AT(rope[i].original_length)},     \
    {name ".truncate", NUMBER, AT(rope[i].truncate)}, {name ".amplitude", REAL, AT(rope[i].amplitude)},                 \
    {name ".turned", NUMBER, AT(rope[i].turned)}

/* Every field that the forward pass reads and that no other one decides, in the order of the text. */
static const field fields[] = {
    N(n_layers), N(d_model), N(vocab), N(tied_embeddings), R(norm_eps), R(embed_scale), R(logit_scale), R(logit_cap),
    ROPE("rope", EXF_ROPE_MAIN), ROPE("rope_compressed", EXF_ROPE_COMPRESSED), ROPE("rope_wide", EXF_ROPE_WIDE),
    N(attention.n_heads), N(attention.n_kv_heads), N(attention.head_dim), N(attention.gated), R(attention.clip),
    R(attention.score_scale), N(attention.wide_kv_heads), N(attention.wide_head_dim),
    {"attention.window", WINDOWS, 0},
    N(mla.n_heads), N(mla.q_rank), N(mla.kv_rank), N(mla.nope_dim), N(mla.rope_dim), N(mla.v_dim), R(mla.score_scale),
    R(mla.norm_eps), R(mla.query_beta), R(mla.query_length),
    N(mla.index_heads), N(mla.index_dim), N(mla.index_topk), N(mla.index_shared), N(mla.index_interleaved),
    N(deltanet.n_key_heads), N(deltanet.n_value_heads), N(deltanet.key_dim), N(deltanet.value_dim), N(deltanet.conv_width),
    N(compressed.n_heads), N(compressed.head_dim), N(compressed.rope_dim), N(compressed.q_rank), N(compressed.o_groups),
    N(compressed.o_rank), N(compressed.window), N(compressed.index_heads), N(compressed.index_dim), N(compressed.index_topk),
    {"compressed.ratio", RATIOS, 0},
    N(residual.streams), N(residual.sinkhorn_iterations), R(residual.eps), N(residual.normed),
    N(d_ffn), N(n_experts), N(top_k), N(d_expert), N(d_shared), N(gelu), R(swiglu_limit), R(swiglu_slope),
    R(swiglu_shift),
    N(router.score), N(router.n_groups), N(router.top_groups), N(router.group_score), N(router.renormalise), R(router.epsilon),
    N(router.expert_scaled),
    R(router.scaling), R(router.input_scale),
    {"mixer", MIXERS, 0}, {"is_moe", MOE, 0}, {"traits", TRAITS, 0},
};

/* Traits that follow from other fields. */
enum {
    NOT_COMPARED = EXF_T_DENSE | EXF_T_MOE | EXF_T_ATTENTION | EXF_T_MLA | EXF_T_DELTANET | EXF_T_COMPRESSED | EXF_T_Q_LORA |
                   EXF_T_NO_Q_LORA | EXF_T_RATIO_SHORT | EXF_T_RATIO_LONG | EXF_T_UNTIED | EXF_T_NARROW
};

static unsigned value_of_layer(const exf_architecture *a, field_kind kind, int layer)
{
    switch (kind) {
    case WINDOWS: return (unsigned)a->attention.window[layer];
    case RATIOS: return (unsigned)a->compressed.ratio[layer];
    case MIXERS: return a->mixer[layer];
    case MOE: return a->is_moe[layer];
    default: return a->traits[layer] & ~(unsigned)NOT_COMPARED;
    }
}

/* Adds the names of traits, joined by "+"; a trait without one is a number. */
static void add_traits(exf_text *out, unsigned traits)
{
    static const struct { unsigned trait; const char *name; } named[] = {
        {EXF_T_QKV_BIAS, "qkv_bias"}, {EXF_T_QK_NORM, "qk_norm"}, {EXF_T_SHARED, "shared"}, {EXF_T_SCORED, "scored"},
        {EXF_T_HASHED, "hashed"}, {EXF_T_O_BIAS, "o_bias"}, {EXF_T_QK_NORM_ROW, "qk_norm_row"}, {EXF_T_SINK, "sink"},
        {EXF_T_EXPERT_BIAS, "expert_bias"}, {EXF_T_ROUTER_SHIFT, "router_shift"},
        {EXF_T_WIDE, "wide"}, {EXF_T_OWN_VALUES, "own_values"}, {EXF_T_V_NORM, "v_norm"},
         {EXF_T_INDEXED, "indexed"}};
    const char *separator = "";
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (!(traits & named[i].trait)) continue;
        exf_text_appendf(out, "%s%s", separator, named[i].name);
        traits &= ~named[i].trait;
        separator = "+";
    }
    if (traits || !*separator) exf_text_appendf(out, "%s%u", separator, traits);
}

/* Adds the field's name, after a blank where it is not the first. */
static void add_name(exf_text *out, const field *f)
{
    exf_text_appendf(out, "%s%s=", out->len ? " " : "", f->name);
}

/* Adds "NAME=V*N,V*N,...", V for N layers each; nothing where all are 0. */
static void add_layers(exf_text *out, const field *f, const exf_architecture *a)
{
    static const char *const mixers[EXF_MIXER_KINDS] = {"attention", "mla", "deltanet", "compressed"};
    const char *separator = "";
    int any = 0;
    for (int l = 0; l < a->n_layers; l++) any |= value_of_layer(a, f->kind, l) != 0;
    if (!any) return;
    add_name(out, f);
    for (int l = 0, n; l < a->n_layers; l += n) {
        unsigned v = value_of_layer(a, f->kind, l);
        for (n = 1; l + n < a->n_layers && value_of_layer(a, f->kind, l + n) == v;) n++;
        exf_text_appendf(out, "%s", separator);
        if (f->kind == TRAITS) add_traits(out, v);
        else if (f->kind == MIXERS && v < EXF_MIXER_KINDS) exf_text_appendf(out, "%s", mixers[v]);
        else exf_text_appendf(out, "%u", v);
        exf_text_appendf(out, "*%d", n);
        separator = ",";
    }
}

exf_code exf_architecture_text(exf_text *out, const exf_architecture *a, exf_err *err)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        const char *at = (const char *)a + f->offset;
        char text[EXF_REAL_TEXT];
        double real;
        int number;
        switch (f->kind) {
        case NUMBER:
            memcpy(&number, at, sizeof number);
            if (number == 0) break;
            add_name(out, f);
            exf_text_appendf(out, "%d", number);
            break;
        case REAL:
            memcpy(&real, at, sizeof real);
            for (int k = 0; k < EXF_ROPES; k++)
                if (f->offset == AT(rope[k].amplitude) && real == 1) real = 0; /* both mean 1 */
            if (real == 0) break;
            add_name(out, f);
            exf_text_appendf(out, "%s", exf_real_text(text, real));
            break;
        default: add_layers(out, f, a);
        }
    }
    return exf_text_end(out, err);
}
