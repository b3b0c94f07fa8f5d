/* model_check.c - the checkpoint against the family's list of tensors. */
#include "base/mem.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* The checkpoint's tensors that some rule asked for, by index. */
typedef struct {
    const exf_model *m;
    unsigned char *used;
} inventory;

static void mark(inventory *v, const exf_stored_tensor *s)
{
    if (s) v->used[s - exf_checkpoint_at(v->m->checkpoint, 0)] = 1;
}

static exf_code check_one(inventory *v, const exf_tensor_rule *r, int layer, int expert, exf_err *err)
{
    const exf_model *m = v->m;
    char name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    exf_weight_source w;
    exf_tensor_name(name, &m->arch, r->name, layer, expert);
    int rank = exf_rule_shape(&m->arch, r, shape);
    exf_code rc = exf_weight_source_find(&w, m->checkpoint, &m->quantization, m->config_path, name, shape, rank, r->how, err);
    if (rc != EXF_OK) return rc;
    if (!exf_weight_source_fits_bf16(&w)) m->beyond_bf16[(size_t)(layer + 1) * EXF_W_COUNT + (size_t)r->role] = 1;
    mark(v, w.stored);
    mark(v, w.scale);
    return EXF_OK;
}

static exf_code check_rule(inventory *v, const exf_tensor_rule *r, int layer, exf_err *err)
{
    const exf_model *m = v->m;
    exf_code rc = EXF_OK;
    if (!exf_rule_opened(m, r)) return EXF_OK;
    if (!exf_rule_applies(&m->arch, r, layer)) {
        if (layer < 0 && r->where == EXF_IN_MODEL && r->how & EXF_MAY_BE_TIED) mark(v, exf_checkpoint_find(m->checkpoint, r->name));
        return EXF_OK;
    }
    int n = r->where == EXF_IN_EXPERT ? m->arch.n_experts : 1;
    for (int e = 0; rc == EXF_OK && e < n; e++) rc = check_one(v, r, layer, e, err);
    return rc;
}

/* 1 if name begins with the pattern; {N} stands for a layer number that the model
 * does not have. */
static int begins_with(const exf_architecture *a, const char *name, const char *pattern)
{
    for (const char *p = pattern; *p;) {
        if (strncmp(p, "{P}", 3) == 0) {
            size_t n = strlen(a->prefix);
            if (strncmp(name, a->prefix, n) != 0) return 0;
            name += n;
            p += 3;
        } else if (strncmp(p, "{N}", 3) == 0) {
            char *end;
            long layer = strtol(name, &end, 10);
            if (*name < '0' || *name > '9' || layer < a->n_layers) return 0;
            name = end;
            p += 3;
        } else if (*p++ != *name++) {
            return 0;
        }
    }
    return 1;
}

static int is_ignored(const exf_model *m, const char *name)
{
    for (size_t i = 0; i < m->family->n_ignored; i++)
        if (begins_with(&m->arch, name, m->family->ignored[i])) return 1;
    return 0;
}

static exf_code check_surplus(const inventory *v, exf_err *err)
{
    const exf_model *m = v->m;
    for (size_t i = 0; i < exf_checkpoint_count(m->checkpoint); i++) {
        const exf_stored_tensor *s = exf_checkpoint_at(m->checkpoint, i);
        const char *name = s->tensor->view.name;
        if (!v->used[i] && !is_ignored(m, name))
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is not one that %s expects of a %s", exf_st_path(s->file), name,
                            m->config_path, m->family->name);
    }
    return EXF_OK;
}

exf_code exf_model_check_tensors(const exf_model *m, exf_err *err)
{
    inventory v = {m, NULL};
    exf_code rc;
    EXF_TRY(exf_mem_new(&v.used, exf_checkpoint_count(m->checkpoint), 1, "tensor inventory", err));
    for (int l = -1; l < m->arch.n_layers; l++)
        for (size_t i = 0; i < m->family->n_rules; i++) EXF_TRY(check_rule(&v, &m->family->rules[i], l, err));
    if (m->part == EXF_MODEL_ALL) EXF_TRY(check_surplus(&v, err));
out:
    exf_mem_free(v.used);
    return rc;
}
