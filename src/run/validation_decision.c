/* validation_decision.c - reads what a validation is asked to decide, and says on which text; see validation.h. */
#include "run/validation.h"

#include "artifact/provenance.h"

#include <string.h>

static exf_code read_bandwidth(exf_validate_decision *d, const exf_recipe *r, exf_err *err)
{
    const exf_gpu *gpu;
    exf_code rc = EXF_OK;
    if (r->validate_gpu && r->validate_bandwidth)
        return exf_recipe_refuse(r, err, "validate.gpu: is %s, but validate.bandwidth is given too (%s); give one of them",
                                 r->validate_gpu, r->validate_bandwidth);
    if (r->validate_gpu) {
        EXF_TRY(exf_recipe_blame(r, exf_gpu_require(r->validate_gpu, &gpu, err), err));
        d->bandwidth = gpu->bandwidth;
    }
    if (r->validate_bandwidth)
        rc = exf_recipe_blame(r, exf_bandwidth_parse(r->validate_bandwidth, &d->bandwidth, err), err);
out:
    return rc;
}

exf_code exf_validate_decision_read(exf_validate_decision *d, exf_recipe *r, exf_err *err)
{
    exf_code rc;
    *d = (exf_validate_decision){.has_limit = 0};
    EXF_TRY(read_bandwidth(d, r, err));
    if (!r->validate_limit) return EXF_OK;
    EXF_TRY(exf_recipe_blame(r, exf_limit_parse(&d->limit, r->validate_limit, err), err));
    exf_opt_rank rank = exf_opts_given(r->opts, "validate.limit", EXF_OPT_BY_ARGV) ? EXF_OPT_BY_ARGV : EXF_OPT_BY_RECIPE;
    if (r->wants_sensitivities && rank == EXF_OPT_BY_ARGV)
        return exf_fail(err, EXF_USAGE, "--limit recommends variants and --sensitivities runs none of these; give one of them");
    if (r->wants_sensitivities) return EXF_OK;
    d->has_limit = 1;
    if (!exf_opts_given(r->opts, "validate.variants", rank)) r->frontier = 1;
out:
    return rc;
}

/* Returns the last part of a path. */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

exf_code exf_validate_text_fact(exf_provenance *p, const exf_recipe *r, exf_err *err)
{
    enum { NAMED = 3 };
    size_t n = r->texts.n ? r->texts.n + r->n_inputs : 0;
    exf_text names = {0};
    if (!n) exf_text_appendf(&names, "%s", last_name(r->validate_manifest));
    for (size_t i = 0; i < n && i < NAMED; i++)
        exf_text_appendf(&names, "%s%s", i ? ", " : "",
                         last_name(i < r->texts.n ? r->texts.item[i] : r->inputs[i - r->texts.n]));
    if (n > NAMED) exf_text_appendf(&names, " and %zu more files", n - NAMED);
    exf_code rc = exf_text_end(&names, err);
    if (rc == EXF_OK) rc = exf_provenance_add(p, err, "validate.text", "%s", names.s);
    exf_text_free(&names);
    return rc;
}
