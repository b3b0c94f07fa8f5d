/* mixer.c - the table of mixers, in order of exf_mixer_kind. */
#include "pass/mixer.h"

static const exf_mixer *const mixers[EXF_MIXER_KINDS] = {
    [EXF_MIXER_ATTENTION] = &exf_mixer_attention,
    [EXF_MIXER_MLA] = &exf_mixer_mla,
    [EXF_MIXER_DELTANET] = &exf_mixer_deltanet,
    [EXF_MIXER_COMPRESSED] = &exf_mixer_compressed,
};

const exf_mixer *exf_mixer_of(exf_mixer_kind kind)
{
    return mixers[kind];
}
