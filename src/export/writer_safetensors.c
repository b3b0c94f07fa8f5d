/* writer_safetensors.c - all tables (artifact/tables.h) as one .safetensors file.
 *
 * L counts MoE layers; metadata "layer_numbers" is a JSON list of the model's
 * layer numbers.  The other metadata are the format's version, the tables'
 * provenance, key by key, and content_digest: the SHA-256 of all other metadata in order of key, each key and value, and of the
 * arrays in order of name, each its name and its bytes; names, keys and values are texts with a NUL after them. */
#include "export/writer_internal.h"

#include "artifact/tables.h"
#include "base/hash.h"
#include "base/mem.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const exf_tensor *)a)->name, ((const exf_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const exf_st_meta *)a)->key, ((const exf_st_meta *)b)->key);
}

static exf_code add_text(exf_hash *h, const char *text, exf_err *err)
{
    return exf_hash_add(h, text, strlen(text) + 1, err);
}

/* Makes the digest of all that the file says; sorts both lists, whose order does not matter to the file. */
static exf_code hash_content(char hex[EXF_SHA256_HEX], exf_table_list *list, exf_st_meta *meta, size_t n_meta, exf_err *err)
{
    exf_hash *h = NULL;
    exf_code rc;
    qsort(list->tensor, list->n, sizeof *list->tensor, by_name);
    qsort(meta, n_meta, sizeof *meta, by_key);
    EXF_TRY(exf_hash_new(&h, err));
    for (size_t i = 0; i < n_meta; i++) {
        EXF_TRY(add_text(h, meta[i].key, err));
        EXF_TRY(add_text(h, meta[i].value, err));
    }
    for (size_t i = 0; i < list->n; i++) {
        const exf_tensor *t = &list->tensor[i];
        EXF_TRY(add_text(h, t->name, err));
        EXF_TRY(exf_hash_add(h, t->data, (size_t)exf_tensor_bytes(t), err));
    }
    rc = exf_hash_end(h, hex, err);
    h = NULL;
out:
    exf_hash_free(h);
    return rc;
}

static exf_code write_tables(const exf_export *x, const char *path, int force, exf_err *err)
{
    exf_code rc;
    exf_st_meta *meta = NULL;
    exf_table_list list = {0};
    exf_provenance facts = {0};
    char content[EXF_SHA256_HEX];
    EXF_TRY(exf_table_list_make(&list, x->tables, 0, err));
    EXF_TRY(exf_table_facts(&facts, x, err));
    EXF_TRY(exf_mem_new(&meta, facts.n + 1, sizeof *meta, "metadata", err));
    for (size_t i = 0; i < facts.n; i++) meta[i] = (exf_st_meta){facts.key[i], facts.value[i]};
    for (size_t i = 0; i < list.n; i++) /* far below 2^63, so that the bits are the same; loaders know I64 */
        if (list.tensor[i].dtype == EXF_DT_U64) list.tensor[i].dtype = EXF_DT_I64;
    EXF_TRY(hash_content(content, &list, meta, facts.n, err));
    meta[facts.n] = (exf_st_meta){"content_digest", content};
    EXF_TRY(exf_st_write(path, force, list.tensor, list.n, meta, facts.n + 1, x->sha256, err));
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
