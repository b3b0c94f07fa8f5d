/* model_open.c - opens a model directory: config.json, the family's architecture, the checkpoint and its checks; see model.h. */
#include "model/model.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"
#include "model/family.h"

enum { CONFIG_LIMIT = 16 << 20 };

/* Reads how weights are coded: config.json says so, or, in exports of ModelOpt without that, a file beside it. */
static exf_code load_quantization(exf_model *m, const exf_config *quantized, exf_err *err)
{
    const exf_json *given;
    char *path = NULL;
    exf_path_kind is;
    exf_code rc;
    EXF_TRY(exf_quantization_read(quantized, &m->quantization, err));
    EXF_TRY(exf_config_find(quantized, "quantization_config", &given, err));
    EXF_TRY(exf_path_join(&path, m->dir, "hf_quant_config.json", err));
    EXF_TRY(exf_path_look_at_target(path, &is, err));
    if (given || is == EXF_PATH_NOTHING) goto out;
    EXF_TRY(exf_json_load(&m->export_config, path, CONFIG_LIMIT, err));
    exf_config of_export = {m->export_config, path};
    if (exf_json_type(m->export_config) != EXF_JSON_OBJECT)
        rc = exf_fail(err, EXF_FORMAT, "%s: is %s, expected an object", path, exf_json_type_name(m->export_config));
    else
        rc = exf_quantization_read_export(&of_export, &m->quantization, err);
out:
    exf_mem_free(path);
    return rc;
}

static exf_code load_config(exf_model *m, exf_err *err)
{
    exf_code rc;
    const char *model_type;
    const exf_json *whole, *part;
    int reads_mxfp4 = 0;
    EXF_TRY(exf_path_join(&m->config_path, m->dir, "config.json", err));
    EXF_TRY(exf_json_load(&m->config, m->config_path, CONFIG_LIMIT, err));
    EXF_TRY(exf_hash_file(m->config_path, m->config_sha256, err));
    if (exf_json_type(m->config) != EXF_JSON_OBJECT) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is %s, expected an object", m->config_path, exf_json_type_name(m->config));
        goto out;
    }
    exf_config c = {m->config, m->config_path}, quantized = c;
    EXF_TRY(exf_config_text_or(&c, "model_type", NULL, &model_type, err));
    rc = exf_family_require(model_type ? model_type : "", &m->family, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "%s: ", m->config_path);
        goto out;
    }
    /* All of the config may have quantization_config, or the text part of a model that sees, where some releases have it. */
    EXF_TRY(exf_config_find(&c, "quantization_config", &whole, err));
    EXF_TRY(exf_config_find(&c, "text_config.quantization_config", &part, err));
    if (part && !whole) EXF_TRY(exf_config_find(&c, "text_config", &quantized.object, err));
    EXF_TRY(load_quantization(m, &quantized, err));
    for (size_t i = 0; i < m->family->n_rules; i++) reads_mxfp4 |= (m->family->rules[i].how & EXF_MXFP4) != 0;
    if (m->quantization.quantizer == EXF_QUANTIZER_MXFP4 && !reads_mxfp4)
        EXF_TRY(exf_quantization_refuse(&quantized, "mxfp4", err));
    EXF_TRY(m->family->configure(&c, &m->arch, err));
out:
    return rc;
}

exf_code exf_model_open(exf_model **out, const char *dir, exf_err *err)
{
    return exf_model_open_part(out, dir, EXF_MODEL_ALL, err);
}

exf_code exf_model_open_part(exf_model **out, const char *dir, exf_model_part part, exf_err *err)
{
    exf_code rc;
    exf_model *m = NULL;
    *out = NULL;
    EXF_TRY(exf_model_check_path(dir, err));
    EXF_TRY(exf_mem_new(&m, 1, sizeof *m, "model", err));
    m->part = part;
    EXF_TRY(exf_mem_strdup(&m->dir, dir, "model path", err));
    EXF_TRY(load_config(m, err));
    EXF_TRY(exf_checkpoint_open(&m->checkpoint, part == EXF_MODEL_CONFIG ? NULL : dir, err));
    exf_architecture_finish(&m->arch);
    EXF_TRY(exf_model_choose_layout(m, err));
    if (part != EXF_MODEL_CONFIG) {
        EXF_TRY(exf_mem_new(&m->beyond_bf16, (size_t)m->arch.n_layers + 1, EXF_W_COUNT, "model", err));
        EXF_TRY(exf_model_check_tensors(m, err));
        EXF_TRY(exf_model_check_tables(m, err));
        EXF_TRY(exf_weight_identity_new(&m->identity, m->arch.n_layers, err)); /* what the checks read is not the run's */
    }
out:
    if (rc != EXF_OK)
        exf_model_close(m);
    else
        *out = m;
    return rc;
}

void exf_model_close(exf_model *m)
{
    if (!m) return;
    exf_checkpoint_close(m->checkpoint);
    exf_weight_identity_free(m->identity);
    exf_mem_free(m->beyond_bf16);
    exf_mem_free(m->spelling);
    exf_json_free(m->config);
    exf_json_free(m->export_config);
    exf_mem_free(m->config_path);
    exf_mem_free(m->dir);
    exf_mem_free(m);
}
