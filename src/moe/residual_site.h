/* residual_site.h - returns the hyper-connection weights of one site of a layer (mixers/residual.h). */
#ifndef EXF_MOE_RESIDUAL_SITE_H
#define EXF_MOE_RESIDUAL_SITE_H
#include "mixers/residual.h"
#include "weights/layer_weights.h"

static inline exf_residual_site exf_residual_site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale)
{
    return (exf_residual_site){lw->w[fn], lw->w[base], lw->w[scale]};
}
#endif
