/* writer_sere.c - sere/: the similarity matrices of SERE (github.com/JL-Cheng/SERE) as tensors of the checkpoint, which its model
 * classes for vLLM load with the weights:
 *
 *   model-sere.safetensors         model.layers.<l>.mlp.similarity_matrix  F32 [E, E], row = the expert that is left, 1 on the
 *                                  diagonal
 *   model.safetensors.index.json   the checkpoint's own tensors, and these
 *   provenance.json                the facts of the tables
 *
 * Copied beside the shards of the release, or of a directory of links to them, both files make the checkpoint that
 * calibration/cal_expert_similarity.py would write.  A layer without a tensor would keep the identity, after which every route goes
 * to the primary expert of the lowest number: tables that lack one are refused. */
#include "export/writer_internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MATRICES_FILE "model-sere.safetensors"
#define MATRIX ".similarity_matrix"

static exf_code serves_model(const exf_export_model *m, exf_err *err)
{
    if (strcmp(m->family, "qwen3_moe") == 0 || strcmp(m->family, "deepseek_v2") == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "SERE has classes for qwen3_moe and deepseek_v2, the model is %s", m->family);
}

static exf_code check_settings(const exf_export_settings *s, exf_err *err)
{
    if (!s->corouted) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "SERE's similarity is of all experts on the same tokens, not of co-routed tokens; calibrate "
                    "with --set calibrate.pairs=common_input");
}

static exf_code check_export(const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    const exf_architecture *a = &x->model->arch;
    int n_moe = 0;
    for (int l = 0; l < a->n_layers; l++) n_moe += a->is_moe[l];
    if (n_moe == t->n_layers) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "the tables hold %d of %d MoE layers; SERE needs the similarities of all", t->n_layers, n_moe);
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* The matrices as tensors. */
typedef struct {
    exf_tensor *tensor; /* [L] */
    char (*name)[EXF_TENSOR_NAME_LEN];
    size_t n;
} matrices;

static exf_code list_matrices(matrices *m, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    int64_t e = t->shape.n_experts;
    exf_code rc;
    m->n = (size_t)t->n_layers;
    EXF_TRY(exf_mem_new(&m->tensor, m->n, sizeof *m->tensor, "similarity matrices", err));
    EXF_TRY(exf_mem_new(&m->name, m->n, sizeof *m->name, "similarity matrices", err));
    for (size_t l = 0; l < m->n; l++) {
        snprintf(m->name[l], sizeof m->name[l], "model.layers.%" PRId32 ".mlp" MATRIX, t->layer_number[l]);
        m->tensor[l] = (exf_tensor){.name = m->name[l], .dtype = EXF_DT_F32, .rank = 2, .shape = {e, e},
                                    .data = t->similarity + l * (size_t)(e * e)};
    }
out:
    return rc;
}

static exf_code write_matrices(exf_output_directory *dir, const matrices *m, exf_err *err)
{
    static const exf_st_meta of_torch = {"format", "pt"}; /* loaders of checkpoints ask for it */
    size_t *order = NULL;
    exf_text header = {0};
    exf_code rc;
    EXF_TRY(exf_mem_new(&order, m->n, sizeof *order, "similarity matrices", err));
    EXF_TRY(exf_st_header(&header, order, MATRICES_FILE, m->tensor, m->n, &of_torch, 1, err));
    EXF_TRY(exf_output_directory_file(dir, MATRICES_FILE, err));
    EXF_TRY(exf_output_directory_write(dir, header.s, header.len, err));
    for (size_t i = 0; i < m->n; i++) {
        const exf_tensor *t = &m->tensor[order[i]];
        EXF_TRY(exf_output_directory_write(dir, t->data, (size_t)(t->shape[0] * t->shape[1]) * sizeof(float), err));
    }
out:
    exf_mem_free(order);
    exf_text_free(&header);
    return rc;
}

/* Writes the index of the checkpoint with the matrices; matrices that it has already are replaced. */
static exf_code write_index(exf_output_directory *dir, const exf_export *x, const matrices *m, exf_err *err)
{
    const exf_checkpoint *c = x->model->checkpoint;
    uint64_t bytes = 0, each = (uint64_t)(x->tables->shape.n_experts * x->tables->shape.n_experts) * sizeof(float);
    exf_text text = {0};
    exf_jw jw = {0};
    exf_code rc;
    for (size_t i = 0; i < exf_checkpoint_count(c); i++) {
        const exf_st_tensor *t = exf_checkpoint_at(c, i)->tensor;
        bytes += strstr(t->view.name, MATRIX) ? 0 : t->nbytes;
    }
    exf_jw_open(&jw, NULL, '{');
    exf_jw_open(&jw, "metadata", '{');
    exf_jw_count(&jw, "total_size", bytes + m->n * each);
    exf_jw_close(&jw);
    exf_jw_open(&jw, "weight_map", '{');
    for (size_t i = 0; i < exf_checkpoint_count(c); i++) {
        const exf_stored_tensor *s = exf_checkpoint_at(c, i);
        if (!strstr(s->tensor->view.name, MATRIX)) exf_jw_text(&jw, s->tensor->view.name, exf_path_name(exf_st_path(s->file)));
    }
    for (size_t i = 0; i < m->n; i++) exf_jw_text(&jw, m->name[i], MATRICES_FILE);
    exf_jw_close(&jw);
    exf_jw_close(&jw);
    EXF_TRY(exf_jw_end(&jw, &text, err));
    EXF_TRY(exf_output_directory_file(dir, "model.safetensors.index.json", err));
    rc = exf_output_directory_write(dir, text.s, text.len, err);
out:
    exf_jw_free(&jw);
    exf_text_free(&text);
    return rc;
}

static exf_code write_directory(const exf_export *x, const char *path, int force, exf_err *err)
{
    exf_output_directory *dir = NULL;
    matrices m = {0};
    exf_code rc;
    EXF_TRY(list_matrices(&m, x, err));
    EXF_TRY(exf_output_directory_begin(&dir, path, force, err));
    EXF_TRY(write_matrices(dir, &m, err));
    EXF_TRY(write_index(dir, x, &m, err));
    EXF_TRY(exf_table_facts_file(dir, x, err));
    rc = exf_output_directory_commit(dir, err);
    dir = NULL;
out:
    exf_output_directory_abort(dir);
    exf_mem_free(m.tensor);
    exf_mem_free(m.name);
    return rc;
}

const exf_writer exf_writer_sere = {
    .name = "sere",
    .file = "sere",
    .is_directory = 1,
    .wants_model = 1,
    .about = "the similarity matrices of SERE, tensors that its classes for vLLM load beside the checkpoint's shards",
    .serves = serves_model,
    .asks = check_settings,
    .allows = check_export,
    .write = write_directory,
};
