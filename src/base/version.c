/* version.c - see version.h; gen/version.h is made by the Makefile. */
#include "base/version.h"

#include "gen/version.h"

const char *exf_release(void)
{
    return EXF_RELEASE;
}

const char *exf_commit(void)
{
    return EXF_COMMIT;
}

int exf_built_with_cuda(void)
{
    return EXF_HAVE_CUDA;
}
