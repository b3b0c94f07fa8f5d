/* statistics_bare.c - the sums by the bare router in a file of statistics (artifact_statistics.c): the group /layers/<l>/bare. */
#include "artifact/statistics.h"

#include <stdio.h>

enum { PATH_LEN = 96 };

/* Writes or reads one dataset of the group. */
static exf_code move_dataset(exf_h5 *h, int writes, int layer, const char *name, int rank, int64_t e, void *data, exf_err *err)
{
    char path[PATH_LEN];
    exf_tensor t = {.name = path, .dtype = EXF_DT_U64, .rank = rank, .shape = {e, rank == 2 ? 3 : 0}, .data = writes ? data : NULL};
    snprintf(path, sizeof path, "/layers/%d/bare/%s", layer, name);
    return writes ? exf_h5_write(h, &t, err) : exf_h5_read(h, &t, data, err);
}

static exf_code move_all(exf_h5 *h, int writes, int layer, const exf_layer_statistics *s, exf_err *err)
{
    int64_t e = s->n_experts;
    exf_code rc;
    EXF_TRY(move_dataset(h, writes, layer, "norm_sum", 2, e, s->bare_norm_sum, err));
    EXF_TRY(move_dataset(h, writes, layer, "contribution_sum", 2, e, s->bare_contribution_sum, err));
    rc = move_dataset(h, writes, layer, "count", 1, e, s->bare_count, err);
out:
    return rc;
}

exf_code exf_bare_sums_write(exf_h5 *h, int layer, const exf_layer_statistics *s, exf_err *err)
{
    uint64_t any = 0;
    for (int e = 0; e < s->n_experts; e++) any |= s->bare_count[e];
    return any ? move_all(h, 1, layer, s, err) : EXF_OK;
}

exf_code exf_bare_sums_read(exf_h5 *h, int layer, int64_t top_k, int common_input, const exf_layer_statistics *s, exf_err *err)
{
    uint64_t all = 0, tokens = s->n_experts > 1 ? s->count[1] : 0;
    char path[PATH_LEN];
    int has;
    exf_code rc;
    snprintf(path, sizeof path, "/layers/%d/bare", layer);
    EXF_TRY(exf_h5_exists(h, path, &has, err));
    if (!has) return EXF_OK;
    EXF_TRY(move_all(h, 0, layer, s, err));
    for (int e = 0; e < s->n_experts; e++) {
        uint64_t n = s->bare_count[e];
        int sums = exf_exact_value(&s->bare_norm_sum[e]) != 0 || exf_exact_value(&s->bare_contribution_sum[e]) != 0;
        if (n > tokens || (!n && sums))
            return exf_fail(err, EXF_FORMAT, "%s: %s: expert %d has sums of %llu tokens of %llu of common input", exf_h5_path(h),
                            path, e, (unsigned long long)n, (unsigned long long)tokens);
        all += n;
    }
    if (!common_input || all != tokens * (uint64_t)top_k)
        rc = exf_fail(err, EXF_FORMAT, "%s: %s/count has %llu routes, expected %lld of each of %llu tokens of common input",
                      exf_h5_path(h), path, (unsigned long long)all, (long long)top_k, (unsigned long long)tokens);
out:
    return rc;
}
