/* fold_status.c - statuses in words, and which library this is: see exfold/fold.h. */
#include "exfold/fold.h"

const char *exf_fold_status_text(exf_fold_status status)
{
    switch (status) {
    case EXF_FOLD_OK: return "success";
    case EXF_FOLD_BAD_ARGUMENT: return "an argument is missing, or contradicts another one or exfold/fold.h";
    case EXF_FOLD_UNSUPPORTED: return "more experts, routes or slots than this library folds, or an option that it does not know";
    case EXF_FOLD_DEVICE: return "CUDA refused the launch";
    }
    return "a status that this library does not know";
}

int exf_fold_version(void)
{
    return EXF_FOLD_VERSION;
}

int exf_fold_abi(void)
{
    return EXF_FOLD_ABI;
}
