/* pruned.c - a model without some of its experts: the order in which they are kept, its config.json, its tensors. */
#include "export/writer_internal.h"

#include "base/mem.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the order of experts ------------------------------------------------------------------------ */

exf_code exf_expert_order_asks_ranks(const exf_export_settings *s, exf_err *err)
{
    int64_t ranks = s->ranks ? s->ranks : 1;
    if (ranks < 1 || s->n_experts % ranks)
        return exf_fail(err, EXF_USAGE, "export.expert_parallel is %" PRId64 ", expected a number that divides %" PRId64 " experts",
                        ranks, s->n_experts);
    return EXF_OK;
}

exf_code exf_expert_order_asks_keep(const exf_export_settings *s, exf_err *err)
{
    exf_code rc = exf_expert_order_asks_ranks(s, err);
    if (rc != EXF_OK) return rc;
    if (s->keep == 0)
        return exf_fail(err, EXF_USAGE, "export.experts is missing; --set export.experts=N keeps N of %" PRId64 " experts",
                        s->n_experts);
    if (s->keep < s->top_k || s->keep >= s->n_experts)
        return exf_fail(err, EXF_USAGE, "export.experts is %" PRId64 ", expected %" PRId64 " (experts per token) to %" PRId64,
                        s->keep, s->top_k, s->n_experts - 1);
    if (s->ranks && s->keep % s->ranks)
        return exf_fail(err, EXF_USAGE, "export.experts is %" PRId64 ", no multiple of export.expert_parallel, %" PRId64, s->keep,
                        s->ranks);
    return EXF_OK;
}

exf_code exf_expert_order_allows(const exf_export *x, exf_err *err)
{
    return exf_tables_rank_check(x->tables, (exf_expert_rank){x->by, x->bare_router}, err);
}

typedef struct {
    double score;
    int round; /* its place among the experts of its rank */
    int32_t expert;
} candidate;

static int by_round_then_score(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->round != y->round) return x->round < y->round ? -1 : 1;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

exf_code exf_expert_order_make(int32_t **out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    size_t e = (size_t)t->shape.n_experts, each = e / (size_t)(x->ranks ? x->ranks : 1);
    candidate *sorted = NULL;
    double *score = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(out, (size_t)t->n_layers * e, sizeof **out, "order of experts", err));
    EXF_TRY(exf_mem_new(&sorted, e, sizeof *sorted, "order of experts", err));
    EXF_TRY(exf_mem_new(&score, e, sizeof *score, "order of experts", err));
    for (size_t l = 0; l < (size_t)t->n_layers; l++) {
        for (size_t i = 0; i < e; i++) score[i] = exf_tables_score(t, (exf_expert_rank){x->by, x->bare_router}, l, i);
        for (size_t i = 0; i < e; i++) {
            sorted[i] = (candidate){score[i], 0, (int32_t)i};
            for (size_t k = i / each * each; k < i / each * each + each; k++) /* experts of the same rank that go before it */
                sorted[i].round += score[k] > score[i] || (score[k] == score[i] && k < i);
        }
        qsort(sorted, e, sizeof *sorted, by_round_then_score);
        for (size_t i = 0; i < e; i++) (*out)[l * e + i] = sorted[i].expert;
    }
out:
    exf_mem_free(sorted);
    exf_mem_free(score);
    return rc;
}

void exf_expert_list_add(exf_text *out, int layer, const int32_t *experts, int64_t n)
{
    exf_text_appendf(out, "{\"%d\": [", layer);
    for (int64_t i = 0; i < n; i++) exf_text_appendf(out, "%s%" PRId32, i ? ", " : "", experts[i]);
    exf_text_appendf(out, "]}\n");
}

/* ---- config.json -------------------------------------------------------------------------------- */

static const char *const counts[] = {"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", NULL},
                        *const predictions[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers", NULL};

static int is_among(const char *const *words, const char *key, size_t n)
{
    for (; *words; words++)
        if (strlen(*words) == n && memcmp(*words, key, n) == 0) return 1;
    return 0;
}

static size_t skip_blanks(const char *text, size_t n, size_t p)
{
    while (p < n && isspace((unsigned char)text[p])) p++;
    return p;
}

exf_code exf_pruned_config(exf_text *out, const char *config, size_t n, int64_t experts, int64_t keep, int keeps_prediction,
                           const char *path, exf_err *err)
{
    size_t done = 0, changed = 0;
    for (size_t p = 0, end; p < n; p = end) {
        size_t at, digits = 0;
        char number[20] = "";
        int64_t value = 0;
        end = p + 1;
        if (config[p] != '"') continue;
        for (end = p + 1; end < n && config[end] != '"'; end++) end += config[end] == '\\';
        end = end < n ? end + 1 : n;
        at = skip_blanks(config, n, end);
        if (at >= n || config[at] != ':') continue;
        at = skip_blanks(config, n, at + 1);
        while (at + digits < n && digits < 18 && isdigit((unsigned char)config[at + digits])) digits++;
        if (!digits) continue; /* no integer follows the key */
        memcpy(number, config + at, digits);
        int is_count = is_among(counts, config + p + 1, end - p - 2) && exf_parse_i64(number, &value) && value == experts;
        if (!is_count && (keeps_prediction || !is_among(predictions, config + p + 1, end - p - 2))) continue;
        exf_text_append(out, config + done, at - done);
        exf_text_appendf(out, "%" PRId64, is_count ? keep : 0);
        done = end = at + digits;
        changed += (size_t)is_count;
    }
    exf_text_append(out, config + done, n - done);
    if (!changed)
        return exf_fail(err, EXF_MODEL, "%s: no num_experts, n_routed_experts, num_local_experts or moe_num_experts is %" PRId64,
                        path, experts);
    return exf_text_end(out, err);
}

/* ---- tensors ----------------------------------------------------------------------------------- */

/* A layer's experts: all tensors with this prefix. */
typedef struct {
    char prefix[EXF_TENSOR_NAME_LEN];
    size_t len;
    int layer;
    int numbered; /* 1: an expert's number follows; 0: the tensor has a row for each expert */
} site;

typedef struct {
    site *at;
    size_t n, cap;
} sites;

static exf_code add_site(sites *s, const exf_model *m, const exf_tensor_rule *r, int layer, exf_err *err)
{
    char pattern[EXF_TENSOR_NAME_LEN];
    exf_code rc = exf_mem_grow(&s->at, &s->cap, s->n + 1, sizeof *s->at, "places of experts", err);
    if (rc != EXF_OK) return rc;
    exf_rule_pattern(pattern, m, r);
    char *number = strstr(pattern, "{E}");
    if (number) *number = '\0';
    site *at = &s->at[s->n];
    *at = (site){.layer = layer, .numbered = number != NULL};
    exf_tensor_name(at->prefix, &m->arch, pattern, layer, 0);
    at->len = strlen(at->prefix);
    if (r->how & EXF_MXFP4) at->len -= strlen("blocks"); /* the scales lie beside the blocks */
    if (s->n == 0 || strcmp(at->prefix, s->at[s->n - 1].prefix) != 0) s->n++; /* an expert's tensors share one */
    return EXF_OK;
}

/* Takes a tensor of one expert under its new number, or leaves it out. */
static exf_code take_numbered(exf_pruned_tensor *t, const site *at, const int32_t *kept, int keep, int *taken, exf_err *err)
{
    const char *name = t->from->tensor->view.name;
    char *rest;
    exf_text renamed = {0};
    long expert = strtol(name + at->len, &rest, 10);
    int place = 0;
    while (place < keep && kept[place] != expert) place++;
    *taken = place < keep;
    if (!*taken) return EXF_OK;
    exf_text_appendf(&renamed, "%s%d%s", at->prefix, place, rest);
    exf_code rc = exf_text_end(&renamed, err);
    if (rc == EXF_OK) rc = exf_mem_strdup(&t->name, renamed.s, "tensor name", err);
    exf_text_free(&renamed);
    return rc;
}

/* Takes what is left of a stored tensor. */
static exf_code take_tensor(exf_pruned_tensors *p, const exf_model *m, const sites *s, const exf_stored_tensor *from,
                            const int32_t *kept, int keep, exf_err *err)
{
    const char *name = from->tensor->view.name;
    const exf_tensor *v = &from->tensor->view;
    exf_pruned_tensor *t = &p->tensor[p->n];
    const site *at = NULL; /* the place to which it belongs; NULL: it is of no expert */
    char layers[EXF_TENSOR_NAME_LEN];
    int taken = 1, axis = exf_pruned_axis(v);
    exf_code rc;
    for (size_t i = 0; i < s->n && !at; i++)
        if (strncmp(name, s->at[i].prefix, s->at[i].len) == 0) at = &s->at[i];
    *t = (exf_pruned_tensor){.from = from, .view = from->tensor->view};
    /* A tensor of a layer for multi-token prediction is left out. */
    exf_tensor_name(layers, &m->arch, "{P}layers.", 0, 0);
    int is_prediction = strncmp(name, "mtp.", 4) == 0 || strncmp(name, "model.mtp.", 10) == 0 ||
                        (exf_starts_with(name, layers) && strtol(name + strlen(layers), NULL, 10) >= m->arch.n_layers);
    if (!at && is_prediction) {
        p->n_dropped_layers++;
        return EXF_OK;
    }
    const int32_t *of_layer = at ? kept + (size_t)at->layer * (size_t)keep : NULL;
    if (at && !at->numbered) { /* its kept rows */
        if (v->rank < 1 || v->shape[axis] != m->arch.n_experts)
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": %" PRId64 " rows, the model has %d experts",
                            exf_st_path(from->file), name, v->rank ? v->shape[axis] : 0, m->arch.n_experts);
        t->rows = of_layer;
        t->view.shape[axis] = keep;
    }
    rc = at && at->numbered ? take_numbered(t, at, of_layer, keep, &taken, err)
                            : exf_mem_strdup(&t->name, name, "tensor name", err);
    if (rc != EXF_OK || !taken) return rc;
    t->view.name = t->name;
    p->bytes += t->rows ? from->tensor->nbytes / (uint64_t)m->arch.n_experts * (uint64_t)keep : from->tensor->nbytes;
    p->n++;
    return EXF_OK;
}

exf_code exf_pruned_tensors_make(exf_pruned_tensors *out, const exf_model *m, const int32_t *kept, int keep, exf_err *err)
{
    exf_code rc = EXF_OK;
    sites s = {0};
    size_t n = m->checkpoint->n_stored;
    *out = (exf_pruned_tensors){0};
    for (int l = 0; l < m->arch.n_layers; l++)
        for (size_t i = 0; i < m->family->n_rules; i++) {
            const exf_tensor_rule *r = &m->family->rules[i];
            int has_rows = r->where == EXF_IN_EXPERT || r->where == EXF_IN_STACK || r->role == EXF_W_ROUTER ||
                           r->role == EXF_W_ROUTER_BIAS || r->role == EXF_W_ROUTER_SHIFT || r->role == EXF_W_EXPERT_SCALE;
            if (m->arch.is_moe[l] && has_rows && exf_rule_applies(m, r, l)) EXF_TRY(add_site(&s, m, r, l, err));
        }
    EXF_TRY(exf_mem_new(&out->tensor, n, sizeof *out->tensor, "tensors of the pruned model", err));
    for (size_t i = 0; i < n; i++) EXF_TRY(take_tensor(out, m, &s, &m->checkpoint->stored[i], kept, keep, err));
out:
    exf_mem_free(s.at);
    return rc;
}

void exf_pruned_tensors_free(exf_pruned_tensors *p)
{
    for (size_t i = 0; i < p->n; i++) exf_mem_free(p->tensor[i].name);
    exf_mem_free(p->tensor);
    *p = (exf_pruned_tensors){0};
}
