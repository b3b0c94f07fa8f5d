/* model_tables.c - integer tensors hold expert numbers, a row for each token of the vocabulary: each must name an expert,
 * since the router indexes with them.  A row may name one twice: that is one route (kernels/moe/router.h). */
#include "base/mem.h"
#include "model/model.h"

static exf_code check_numbers(const exf_model *m, const exf_tensor_rule *r, int layer, const float *v, size_t n, exf_err *err)
{
    size_t cols = r->dims[1] == EXF_DIM_NONE ? 1 : (size_t)m->arch.dim[r->dims[1]];
    for (size_t i = 0; i < n; i++) {
        char name[EXF_TENSOR_NAME_LEN];
        if (v[i] >= 0 && v[i] < (float)m->arch.n_experts) continue;
        exf_tensor_name(name, &m->arch, r->name, layer, 0);
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\", token %zu names expert %.0f, %s has experts 0 to %d", m->dir, name,
                        i / cols, (double)v[i], m->config_path, m->arch.n_experts - 1);
    }
    return EXF_OK;
}

static exf_code check_table(const exf_model *m, const exf_tensor_rule *r, int layer, exf_err *err)
{
    exf_code rc;
    float *v = NULL;
    size_t n = exf_model_count(m, r->role, layer);
    EXF_TRY(exf_mem_new(&v, n, sizeof *v, "table of experts", err));
    EXF_TRY(exf_model_read(m, r->role, layer, 0, v, err));
    EXF_TRY(check_numbers(m, r, layer, v, n, err));
out:
    exf_mem_free(v);
    return rc;
}

exf_code exf_model_check_tables(const exf_model *m, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < m->family->n_rules; i++) {
        const exf_tensor_rule *r = &m->family->rules[i];
        if (!(r->how & EXF_INTEGER)) continue;
        for (int l = 0; rc == EXF_OK && l < m->arch.n_layers; l++)
            if (exf_rule_applies(&m->arch, r, l)) rc = check_table(m, r, l, err);
    }
    return rc;
}
