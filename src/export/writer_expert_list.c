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

#include <string.h>

static exf_code add_list(exf_text *out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    int64_t e = t->shape.n_experts;
    int32_t *order = NULL;
    exf_code rc;
    EXF_TRY(exf_expert_order_make(&order, x, err));
    for (int l = 0; l < t->n_layers; l++) exf_expert_list_add(out, (int)t->layer_number[l], order + l * e, e);
    rc = exf_text_end(out, err);
out:
    exf_mem_free(order);
    return rc;
}

static exf_code write_list(const exf_export *x, const char *path, int force, exf_err *err)
{
    exf_text text = {0};
    exf_code rc;
    EXF_TRY(add_list(&text, x, err));
    rc = exf_output_file_whole(path, force, text.s, text.len, err);
out:
    exf_text_free(&text);
    return rc;
}

/* Compares the file with the list of every setting of an export that the tables serve. */
static exf_code is_list_of(const exf_tables *t, const char *path, int *is, exf_err *err)
{
    enum { LARGEST = 64 << 20 };
    int64_t n = t->shape.n_experts;
    char *have = NULL;
    size_t len;
    exf_text text = {0};
    exf_code rc;
    *is = 0;
    EXF_TRY(exf_file_slurp(path, LARGEST, &have, &len, err));
    for (int i = 0; i < 2 * EXF_POOL_CRITERIA && !*is; i++) {
        exf_export x = {.tables = t, .by = (exf_pool_criterion)(i / 2), .bare_router = i % 2};
        if (x.by == EXF_POOL_BY_ENERGY || exf_expert_order_allows(&x, NULL) != EXF_OK) continue;
        for (x.ranks = 1; x.ranks <= n && !*is; x.ranks++) {
            if (n % x.ranks) continue;
            text.len = 0;
            EXF_TRY(add_list(&text, &x, err));
            *is = len == text.len && memcmp(have, text.s, len) == 0;
        }
    }
out:
    exf_text_free(&text);
    exf_mem_free(have);
    return rc;
}

/* Refuses tables of a part of their data: a line that says so would break readers. */
static exf_code check_export(const exf_export *x, exf_err *err)
{
    const char *part = exf_provenance_get(&x->tables->provenance, EXF_PART_FACT);
    if (!part) return exf_expert_order_allows(x, err);
    return exf_fail(err, EXF_MODEL, "the tables are of a part of their data (%s), which a list of experts cannot say; export "
                    "tables of all shards", part);
}

const exf_writer exf_writer_expert_list = {
    .name = "expert-list",
    .file = "expert-list.jsonl",
    .about = "each layer's experts in order of REAP's score, for runtimes that prune while they load",
    .asks = exf_expert_order_asks_ranks,
    .allows = check_export,
    .is_of = is_list_of,
    .write = write_list,
};
