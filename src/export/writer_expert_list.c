/* writer_expert_list.c - expert-list.jsonl: for runtimes that prune while they load, a line for each layer with all of
 * its experts in the order in which they are to be kept (expert_order.h).
 *
 *   {"0": [106, 65, 113, ...]}
 *
 * The key is the model's number of the layer.  How many are kept is the runtime's own setting: vLLM-Ascend's
 * expert_prune_ratio, beside expert_list_file in its additional configuration. */
#include "export/expert_order.h"

#include "artifact/shards.h"
#include "base/file.h"
#include "base/mem.h"

#include <inttypes.h>

static exf_code add_layer(exf_text *line, const exf_tables *t, int l, const int32_t *order, exf_err *err)
{
    exf_code rc;
    line->len = 0;
    EXF_TRY(exf_text_addf(line, err, "{\"%" PRId32 "\": [", t->layer_number[l]));
    for (int64_t i = 0; i < t->shape.n_experts; i++)
        EXF_TRY(exf_text_addf(line, err, "%s%" PRId32, i ? ", " : "", order[l * t->shape.n_experts + i]));
    EXF_TRY(exf_text_addf(line, err, "]}\n"));
out:
    return rc;
}

static exf_code write_list(const exf_export *x, const char *path, int force, exf_err *err)
{
    int32_t *order = NULL;
    exf_text line = {0};
    exf_output_file *f = NULL;
    exf_code rc;
    EXF_TRY(exf_expert_order_make(&order, x, err));
    EXF_TRY(exf_output_file_begin(&f, path, force, err));
    for (int l = 0; l < x->tables->n_layers; l++) {
        EXF_TRY(add_layer(&line, x->tables, l, order, err));
        EXF_TRY(exf_output_file_write(f, line.s, line.len, err));
    }
    rc = exf_output_file_commit(f, err);
    f = NULL;
out:
    exf_output_file_abort(f);
    exf_text_free(&line);
    exf_mem_free(order);
    return rc;
}

/* A line of another kind would break its readers. */
static exf_code allows(const exf_export *x, exf_err *err)
{
    const char *part = exf_provenance_get(&x->tables->provenance, EXF_PART_FACT);
    if (!part) return exf_expert_order_check(x, err);
    return exf_fail(err, EXF_MODEL, "the tables are of a part of their data (%s), which a list of experts cannot say; export "
                    "expert-profile, or tables of all shards", part);
}

const exf_writer exf_writer_expert_list = {
    .name = "expert-list",
    .file = "expert-list.jsonl",
    .about = "each layer's experts in order of REAP's score, for runtimes that prune while they load",
    .allows = allows,
    .write = write_list,
};
