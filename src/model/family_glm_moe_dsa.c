/* family_glm_moe_dsa.c - GLM-5: GLM-5, GLM-5.1.
 *
 * The parts of DeepSeek-V3.2 without YaRN as released; the indexer's heads are rotated in pairs of neighbours.  Layers that share
 * the choice of an earlier one (GLM-5.2) are refused.  Multi-token-prediction layers are ignored. */
#include "model/rules.h"

/* Every layer has an indexer of its own: indexer_types, else a pattern or a frequency. */
static exf_code check_indexers(const exf_config *c, const exf_architecture *a, exf_err *err)
{
    static const char *const words[] = {"full", NULL};
    const exf_json *types;
    int which;
    exf_code rc;
    EXF_TRY(exf_config_layer_list(c, "indexer_types", a->n_layers, 1, &types, err));
    for (int l = 0; types && l < a->n_layers; l++) EXF_TRY(exf_config_layer_word(c, "indexer_types", types, l, words, &which, err));
    if (types) return EXF_OK;
    EXF_TRY(exf_config_must_be(c, "index_topk_pattern", "null", err));
    rc = exf_config_must_be(c, "index_topk_freq", "1", err);
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_configure_latent_moe(c, a, err));
    EXF_TRY(exf_config_must_be(c, "indexer_rope_interleave", "true", err));
    EXF_TRY(check_indexers(c, a, err));
    rc = exf_configure_indexer(c, a, 1, err);
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_LATENT_MOE,
    EXF_RULES_INDEXER,
};

static const char *const ignored[] = {"{P}layers.{N}."};

const exf_family exf_family_glm_moe_dsa = {
    .name = "glm_moe_dsa",
    .architecture = "GlmMoeDsaForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
    .ignored = ignored,
    .n_ignored = sizeof ignored / sizeof ignored[0],
};
