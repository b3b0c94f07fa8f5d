/* family_deepseek_v2.c - DeepSeek-V2: V2-Lite, V2 and kin.
 *
 * Latent attention with or without low-rank q, interleaved RoPE with YaRN; the
 * first layers dense; softmax router, greedy over all experts or within the best
 * groups (a group being as good as its best expert); ungated shared experts. */
#include "model/rules.h"

#include <string.h>

/* Renormalised weights are not scaled: so says the code released with V2-Lite.
 * transformers' own class (5.17, which made our goldens) scales always and never
 * renormalises.  The two agree where norm_topk_prob is false, as in V2-Lite and in
 * our goldens; elsewhere the authors' code is the better witness. */
static exf_code configure_weights(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    exf_router_spec *r = &a->router;
    int normalise;
    EXF_TRY(exf_config_bool_or(c, "norm_topk_prob", 0, &normalise, err));
    EXF_TRY(exf_config_real_or(c, "routed_scaling_factor", 1, &r->scaling, err));
    r->renormalise = normalise && a->top_k > 1;
    if (!r->renormalise) goto out;
    r->epsilon = 1e-20;
    r->scaling = 1;
out:
    return rc;
}

static exf_code configure_router(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    const char *method;
    a->router.score = EXF_ROUTER_SOFTMAX;
    EXF_TRY(exf_config_must_be(c, "scoring_func", "softmax", err));
    EXF_TRY(exf_config_text_or(c, "topk_method", "greedy", &method, err));
    EXF_TRY(configure_weights(c, a, err));
    if (strcmp(method, "greedy") == 0) return EXF_OK;
    if (strcmp(method, "group_limited_greedy") != 0)
        return exf_fail(err, EXF_MODEL, "%s: \"topk_method\" is %s; only greedy and group_limited_greedy are supported", c->path,
                        method);
    a->router.group_score = EXF_GROUP_MAX;
    EXF_TRY(exf_config_int(c, "n_group", 1, EXF_MAX_EXPERTS, &a->router.n_groups, err));
    EXF_TRY(exf_config_int(c, "topk_group", 1, EXF_MAX_EXPERTS, &a->router.top_groups, err));
    rc = exf_configure_check_groups(c, a, err);
out:
    return rc;
}

static exf_code configure(const exf_config *c, exf_architecture *a, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_configure_sizes(c, a, err));
    EXF_TRY(exf_configure_experts(c, a, "moe_intermediate_size", err));
    EXF_TRY(exf_configure_mla(c, a, err));
    EXF_TRY(configure_router(c, a, err));
    EXF_TRY(exf_configure_dense_first(c, a, err));
    EXF_TRY(exf_configure_shared_experts(c, a, err));
    for (int l = 0; l < a->n_layers; l++) a->traits[l] |= EXF_T_SCORED;
out:
    return rc;
}

static const exf_tensor_rule rules[] = {
    EXF_RULES_MODEL(0),
    EXF_RULES_MLA,
    EXF_RULES_DENSE,
    EXF_RULES_EXPERTS("mlp.", "gate_proj", "up_proj", "down_proj"),
    EXF_RULES_FUSED_EXPERTS,
    EXF_RULES_SHARED("shared_experts"),
};

const exf_family exf_family_deepseek_v2 = {
    .name = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .configure = configure,
    .rules = rules,
    .n_rules = sizeof rules / sizeof rules[0],
};
