/* writer_safetensors.c - all tables (artifact/tables.h) as one .safetensors file.
 *
 * L counts MoE layers; metadata "layer_numbers" is a JSON list of the model's
 * layer numbers.  The other metadata are the format's version and the tables'
 * provenance, key by key. */
#include "export/writer_internal.h"

#include "artifact/tables.h"
#include "base/mem.h"
#include "format/safetensors.h"

static exf_code write_tables(const exf_export *x, const char *path, int force, exf_err *err)
{
    exf_code rc;
    exf_st_meta *meta = NULL;
    exf_table_list list = {0};
    exf_provenance facts = {0};
    EXF_TRY(exf_table_list_make(&list, x->tables, 0, err));
    EXF_TRY(exf_table_facts(&facts, x, err));
    EXF_TRY(exf_mem_new(&meta, facts.n, sizeof *meta, "metadata", err));
    for (size_t i = 0; i < facts.n; i++) meta[i] = (exf_st_meta){facts.key[i], facts.value[i]};
    for (size_t i = 0; i < list.n; i++) /* far below 2^63, so that the bits are the same; loaders know I64 */
        if (list.tensor[i].dtype == EXF_DT_U64) list.tensor[i].dtype = EXF_DT_I64;
    EXF_TRY(exf_st_write(path, force, list.tensor, list.n, meta, facts.n, x->sha256, err));
out:
    exf_mem_free(meta);
    exf_provenance_free(&facts);
    exf_table_list_free(&list);
    return rc;
}

const exf_writer exf_writer_safetensors = {
    .name = "safetensors",
    .file = "tables.safetensors",
    .wants_vectors = 1,
    .about = "all tables and pools in one file for any runtime",
    .load = {"safetensors", "safetensors, with PyTorch",
             "from safetensors.torch import load_file\n"
             "\n"
             "tables = load_file(\"tables.safetensors\")\n"
             "coeff, loss = tables[\"coeff\"], tables[\"loss\"]  # float32 [layers, experts, experts], row = source\n"
             "target = loss[0, 3].argmin()  # the diagonal, and pairs without evidence, have loss 1e30\n"
             "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"},
    .covers = exf_writer_covers_own,
    .write = write_tables,
};
