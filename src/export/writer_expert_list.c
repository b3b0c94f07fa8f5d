/* writer_expert_list.c - expert-list.jsonl: for runtimes that prune while they load, a line for each layer with all of
 * its experts in the order in which they are to be kept (pruned.c).
 *
 *   {"0": [106, 65, 113, ...]}
 *
 * The key is the model's number of the layer.  How many are kept is the runtime's own setting: vLLM-Ascend's
 * expert_prune_ratio, beside expert_list_file in its additional configuration. */
#include "export/writer_internal.h"

#include "artifact/data.h"
#include "base/file.h"
#include "base/mem.h"

static exf_code write_list(const exf_export *x, const char *path, int force, exf_err *err)
{
    const exf_tables *t = x->tables;
    int64_t e = t->shape.n_experts;
    int32_t *order = NULL;
    exf_text text = {0};
    exf_code rc;
    EXF_TRY(exf_expert_order_make(&order, x, err));
    for (int l = 0; l < t->n_layers; l++) exf_expert_list_add(&text, (int)t->layer_number[l], order + l * e, e);
    EXF_TRY(exf_text_end(&text, err));
    rc = exf_output_file_whole(path, force, text.s, text.len, err);
out:
    exf_text_free(&text);
    exf_mem_free(order);
    return rc;
}

/* Refuses tables of a part of their data: a line that says so would break readers. */
static exf_code check_export(const exf_export *x, exf_err *err)
{
    const char *part = exf_provenance_get(&x->tables->provenance, EXF_PART_FACT);
    if (!part) return exf_expert_order_allows(x, err);
    return exf_fail(err, EXF_MODEL, "the tables are of a part of their data (%s), which a list of experts cannot say; export "
                    "expert-profile, or tables of all shards", part);
}

const exf_writer exf_writer_expert_list = {
    .name = "expert-list",
    .file = "expert-list.jsonl",
    .about = "each layer's experts in order of REAP's score, for runtimes that prune while they load",
    .asks = exf_expert_order_asks_ranks,
    .allows = check_export,
    .write = write_list,
};
