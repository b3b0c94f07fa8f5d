/* projector_served.c - the projectors that a runtime serves, for the grammar of variants in libexfold_fold, which has no solver:
 * the registry (artifact/projector.h) is in libexfold.so, where this file is not. */
#include "artifact/projector.h"

const exf_projector exf_projector_pair = {EXF_PROJECTOR_PAIR}, exf_projector_joint = {EXF_PROJECTOR_JOINT};
static const exf_projector *const served[] = {&exf_projector_pair, &exf_projector_joint}; /* by place */

const exf_projector *exf_projector_at(size_t i)
{
    return i < sizeof served / sizeof *served ? served[i] : NULL;
}

const exf_projector *exf_projector_after(int place)
{
    for (size_t i = 0; i < sizeof served / sizeof *served; i++)
        if (served[i]->place > place) return served[i];
    return NULL;
}
