/* family_glm_moe_dsa.c - GLM-5: GLM-5, GLM-5.1.
 *
 * The parts of DeepSeek-V3.2 without YaRN as released; the indexer's heads are rotated in pairs of neighbours.  Some layers have
 * no indexer and share the choice of the last one that has (GLM-5.2).  Multi-token-prediction layers are ignored. */
#include "model/rules.h"

/* Which layers have an indexer: indexer_types, or else every index_topk_freq-th from layer index_skip_topk_offset - 1 on and all
 * before it. */
static exf_code configure_sharing(const exf_config *c, exf_architecture *a, exf_err *err)
{
    static const char *const words[] = {"full", "shared", NULL};
    const exf_json *types;
    int every, offset;
    exf_code rc;
    EXF_TRY(exf_config_layer_list(c, "indexer_types", a->n_layers, 1, &types, err));
    EXF_TRY(exf_config_int_or(c, "index_topk_freq", 1, EXF_MAX_LAYERS, 1, &every, err));
    EXF_TRY(exf_config_int_or(c, "index_skip_topk_offset", 0, EXF_MAX_LAYERS, 2, &offset, err));
    if (!types) EXF_TRY(exf_config_must_be(c, "index_topk_pattern", "null", err));
    for (int l = 0; l < a->n_layers; l++) {
        int shared = l >= offset && (l - offset + 1) % every != 0;
        if (types) EXF_TRY(exf_config_layer_word(c, "indexer_types", types, l, words, &shared, err));
        if (shared && l == 0)
            return exf_fail(err, EXF_MODEL, "%s: layer 0 shares the choice of an earlier one, of which there is none", c->path);
        if (!shared) continue;
        a->traits[l] &= ~(unsigned)EXF_T_INDEXED;
        a->mla.index_shared = 1;
    }
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_config_must_say(c, "rms_norm_eps", 0, err));
    EXF_TRY(exf_configure_latent_moe(c, a, err));
    EXF_TRY(exf_config_must_be(c, "indexer_rope_interleave", "true", err));
    EXF_TRY(exf_configure_indexer(c, a, 1, err));
    rc = configure_sharing(c, a, err);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_LATENT_MOE,
    EXF_RULES_INDEXER,
};

const exf_family exf_family_glm_moe_dsa = {
    .name = "glm_moe_dsa",
    .architecture = "GlmMoeDsaForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = {"{P}layers.{N}."},
};
