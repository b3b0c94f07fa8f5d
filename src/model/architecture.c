/* architecture.c - see architecture.h. */
#include "model/architecture.h"

void exf_architecture_finish(exf_architecture *a)
{
    static const unsigned mixer_trait[EXF_MIXER_KINDS] = {EXF_T_ATTENTION, EXF_T_MLA, EXF_T_DELTANET, EXF_T_COMPRESSED};
    a->n_moe_layers = 0;
    for (int l = 0; l < a->n_layers; l++) {
        a->traits[l] |= mixer_trait[a->mixer[l]] | (a->is_moe[l] ? EXF_T_MOE : EXF_T_DENSE);
        if (!a->tied_embeddings) a->traits[l] |= EXF_T_UNTIED;
        a->n_moe_layers += a->is_moe[l];
    }
    a->model_traits |= a->tied_embeddings ? 0 : EXF_T_UNTIED;
    if (a->residual.streams == 0) a->residual.streams = 1;
    if (a->router.scaling == 0) a->router.scaling = 1;
    if (a->router.n_groups == 0) a->router.n_groups = a->router.top_groups = 1;
    if (!a->prefix) a->prefix = "model.";
    a->dim[EXF_DIM_ONE] = 1;
    a->dim[EXF_DIM_THREE] = 3;
    a->dim[EXF_DIM_H] = a->d_model;
    a->dim[EXF_DIM_VOCAB] = a->vocab;
    a->dim[EXF_DIM_FFN] = a->d_ffn;
    a->dim[EXF_DIM_E] = a->n_experts;
    a->dim[EXF_DIM_K] = a->top_k;
    a->dim[EXF_DIM_I] = a->d_expert;
    a->dim[EXF_DIM_SHARED] = a->d_shared;
}
