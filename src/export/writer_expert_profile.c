/* writer_expert_profile.c - expert-profile.json: for runtimes that prune while they load, the experts that a model does
 * without (the first export.experts of their order are kept, pruned.c), as pairs of layer and expert:
 *
 *   {"version": 1, "model": "org/base", "workload": "...", "tables_digest": "...", "weights_digest": "...",
 *    "pruned_experts": [[0, 3], [0, 11], ...]}
 *
 * Version 1 of the profiles that vLLM's --riy-expert-profile proposes: the router chooses among the others. */
#include "export/writer_internal.h"

#include "artifact/data.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"

/* Adds the experts of a layer that are not among the first `keep` of its order, by number. */
static void add_pruned(exf_jw *w, const exf_export *x, int l, const int32_t *order)
{
    int64_t e = x->tables->shape.n_experts;
    for (int32_t expert = 0; expert < e; expert++) {
        int64_t at = 0;
        while (order[l * e + at] != expert) at++;
        if (at < x->keep) continue;
        exf_jw_open(w, NULL, '[');
        exf_jw_int(w, NULL, x->tables->layer_number[l]);
        exf_jw_int(w, NULL, expert);
        exf_jw_close(w);
    }
}

static exf_code write_profile(const exf_export *x, const char *path, int force, exf_err *err)
{
    int32_t *order = NULL;
    exf_text text = {0}, workload = {0};
    const char *part = exf_provenance_get(&x->tables->provenance, EXF_PART_FACT);
    exf_jw w = {0};
    exf_code rc;
    EXF_TRY(exf_expert_order_make(&order, x, err));
    exf_jw_open(&w, NULL, '{');
    exf_jw_int(&w, "version", 1);
    exf_jw_text(&w, "model", x->base_model ? x->base_model : exf_provenance_get(&x->tables->provenance, "model.family"));
    exf_text_appendf(&workload, "calibration of ExFold tables, by %s",
                     x->by == EXF_POOL_BY_REAP ? "mean w ||E(x)||" : exf_pool_criteria[x->by]);
    if (x->bare_router) exf_text_appendf(&workload, ", over the routes of REAP's code");
    if (part) exf_text_appendf(&workload, "; a part of its data: %s", part);
    EXF_TRY(exf_text_end(&workload, err));
    exf_jw_text(&w, "workload", workload.s);
    exf_jw_text(&w, "tables_digest", x->digest);
    exf_jw_text(&w, "weights_digest", exf_provenance_get(&x->tables->provenance, "model.weights_digest"));
    exf_jw_open(&w, "pruned_experts", '[');
    for (int l = 0; l < x->tables->n_layers; l++) add_pruned(&w, x, l, order);
    exf_jw_close(&w);
    exf_jw_close(&w);
    EXF_TRY(exf_jw_end(&w, &text, err));
    rc = exf_output_file_whole(path, force, text.s, text.len, err);
out:
    exf_jw_free(&w);
    exf_text_free(&text);
    exf_text_free(&workload);
    exf_mem_free(order);
    return rc;
}

const exf_writer exf_writer_expert_profile = {
    .name = "expert-profile",
    .file = "expert-profile.json",
    .about = "the experts that a model of export.experts does without, for runtimes that prune while they load",
    .asks = exf_expert_order_asks_keep,
    .allows = exf_expert_order_allows,
    .write = write_profile,
};
