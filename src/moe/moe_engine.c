/* moe_engine.c - see moe_engine.h. */
#include "moe/moe_engine.h"

const exf_moe_engine *exf_moe_engine_of(const exf_backend *b)
{
    return b->gpu ? &exf_moe_gpu : &exf_moe_host;
}
