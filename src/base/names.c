/* names.c - see names.h. */
#include "base/names.h"

#include <string.h>

const char *const exf_pool_criteria[EXF_POOL_CRITERIA] = {"norm", "reap", "energy", "frequency", "ean", "weighted_ean"};
const char *const exf_export_criteria[5] = {"reap", "norm", "frequency", "ean", "weighted_ean"};
const char *const exf_budget_rules[EXF_BUDGET_RULES] = {"stream", "output", "measured", "top_p", "skip"};

int exf_name_place(const char *const *names, int n, const char *name)
{
    int i = 0;
    while (i < n && strcmp(names[i], name) != 0) i++;
    return i;
}
