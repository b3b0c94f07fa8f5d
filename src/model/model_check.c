/* model_check.c - what can be wrong with a model before anything is computed: the path that was given, tensors that its config
 * does not expect, tables that name no expert; see model.h. */
#include "model/model.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/json.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a name on a hub ------------------------------------------------------------- */

/* Refuses OWNER/MODEL in the hub's letters. */
static exf_code explain_hub_name(const char *name, exf_err *err)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t n = strspn(name, letters);
    const char *model = name[n] == '/' ? name + n + 1 : "";
    char *owner = NULL;
    exf_code rc;
    int has_owner;
    if (n == 0 || name[0] == '.' || !*model || *model == '.' || strspn(model, letters) != strlen(model)) return EXF_OK;
    EXF_TRY(exf_path_dir(&owner, name, err));
    EXF_TRY(exf_path_look(owner, &has_owner, err));
    if (!has_owner)
        rc = exf_fail(err, EXF_USAGE,
                      "%s: no such directory; checkpoints are read from directories. To get the hub's model of this name: "
                      "hf download %s --local-dir models/%s, then --model models/%s",
                      name, name, model, model);
out:
    exf_mem_free(owner);
    return rc;
}

/* ---- a folder of a hub cache -------------------------------------------------------- */

/* The snapshot that refs/main names, else the first by name; *best is NULL if there is none.  Caller frees. */
static exf_code choose_snapshot(const char *dir, const char *snapshots, char **best, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_err ignored;
    char *refs = NULL, *wanted = NULL;
    size_t len;
    if (exf_path_join(&refs, dir, "refs/main", &ignored) == EXF_OK &&
        exf_file_slurp(refs, 256, &wanted, &len, &ignored) == EXF_OK)
        wanted[strcspn(wanted, "\r\n")] = 0;
    DIR *d = opendir(snapshots);
    *best = NULL;
    for (struct dirent *e; d && rc == EXF_OK && (e = readdir(d));) {
        int is_wanted = wanted && strcmp(e->d_name, wanted) == 0;
        int has_wanted = *best && wanted && strcmp(*best, wanted) == 0;
        if (e->d_name[0] == '.' || has_wanted || (*best && !is_wanted && strcmp(e->d_name, *best) > 0)) continue;
        exf_mem_free(*best);
        rc = exf_mem_strdup(best, e->d_name, "snapshot", err);
    }
    if (d) closedir(d);
    exf_mem_free(refs);
    exf_mem_free(wanted);
    return rc;
}

static exf_code explain_cache(const char *dir, exf_err *err)
{
    char *snapshots = NULL, *best = NULL;
    exf_code rc;
    int is_directory;
    EXF_TRY(exf_path_join(&snapshots, dir, "snapshots", err));
    EXF_TRY(exf_path_is_directory(snapshots, &is_directory, err));
    if (!is_directory) goto out;
    EXF_TRY(choose_snapshot(dir, snapshots, &best, err));
    if (best)
        rc = exf_fail(err, EXF_USAGE, "%s: is a hub cache's folder of a model; the checkpoint in it is %s/%s", dir, snapshots,
                      best);
out:
    exf_mem_free(snapshots);
    exf_mem_free(best);
    return rc;
}

/* ---- weights of other programs -------------------------------------------------------- */

/* Names the model that an adapter was trained on; "its base model" where the file does not say. */
static exf_code refuse_adapter(const char *dir, const char *file, exf_err *err)
{
    enum { ADAPTER_LIMIT = 1 << 20 };
    char *path = NULL;
    exf_json *config = NULL;
    exf_err ignored;
    exf_code rc;
    EXF_TRY(exf_path_join(&path, dir, file, err));
    const exf_json *object = exf_json_load(&config, path, ADAPTER_LIMIT, &ignored) == EXF_OK ? config : NULL;
    const char *base = exf_json_type(object) == EXF_JSON_OBJECT
                           ? exf_json_string(exf_json_get(object, "base_model_name_or_path"), NULL) : NULL;
    rc = exf_fail(err, EXF_USAGE,
                  "%s: holds a LoRA adapter (%s), which is no model alone; merge it into %s, with peft's merge_and_unload() and "
                  "save_pretrained(), and give the directory that this writes",
                  dir, file, base && *base ? base : "its base model");
out:
    exf_json_free(config);
    exf_mem_free(path);
    return rc;
}

static exf_code refuse_gguf(const char *dir, const char *file, exf_err *err)
{
    return exf_fail(err, EXF_USAGE,
                    "%s: %s%s%s weights packed for llama.cpp (GGUF), which are not read; give the release that they were made "
                    "from, a directory with config.json and *.safetensors: docs/quantized.md",
                    dir, file ? "holds " : "is a file of", file ? file : "", file ? "," : "");
}

static exf_code refuse_pickles(const char *dir, const char *file, exf_err *err)
{
    return exf_fail(err, EXF_USAGE,
                    "%s: holds %s, weights pickled by PyTorch, which are not read; write them as .safetensors, with transformers' "
                    "from_pretrained() and save_pretrained(), and give the directory that this writes",
                    dir, file);
}

/* Refuses a directory without config.json or without *.safetensors by the first file, in this order and by name, that tells what
 * it is. */
static exf_code refuse_foreign(const char *dir, exf_err *err)
{
    static const struct { const char *begins, *ends; exf_code (*refuse)(const char *, const char *, exf_err *); } kinds[] = {
        {"adapter_config.json", "", refuse_adapter}, {"", ".gguf", refuse_gguf}, {"pytorch_model", ".bin", refuse_pickles},
        {"", ".pth", refuse_pickles},
    };
    enum { KINDS = sizeof kinds / sizeof *kinds };
    char first[KINDS][256] = {{0}};
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        for (size_t k = 0; k < KINDS; k++)
            if (exf_starts_with(e->d_name, kinds[k].begins) && exf_ends_with(e->d_name, kinds[k].ends) &&
                (!*first[k] || strcmp(e->d_name, first[k]) < 0))
                snprintf(first[k], sizeof first[k], "%s", e->d_name);
    if (d) closedir(d);
    for (size_t k = 0; k < KINDS; k++)
        if (*first[k]) return kinds[k].refuse(dir, first[k], err);
    return EXF_OK;
}

exf_code exf_model_check_path(const char *dir, exf_err *err)
{
    char *config = NULL;
    exf_code rc;
    int found, is_directory;
    EXF_TRY(exf_path_join(&config, dir, "config.json", err));
    EXF_TRY(exf_path_look(config, &found, err));
    if (!found || !exf_checkpoint_present(dir)) EXF_TRY(refuse_foreign(dir, err));
    if (found) goto out;
    EXF_TRY(exf_path_is_directory(dir, &is_directory, err));
    EXF_TRY(exf_path_look(dir, &found, err));
    if (is_directory)
        rc = explain_cache(dir, err);
    else if (found && exf_ends_with(dir, ".gguf"))
        rc = refuse_gguf(dir, NULL, err);
    else if (found)
        rc = exf_fail(err, EXF_USAGE, "%s: is a file; a model is the directory that holds config.json and *.safetensors", dir);
    else
        rc = explain_hub_name(dir, err);
out:
    exf_mem_free(config);
    return rc;
}

/* ---- the head of a tied model ------------------------------------------------------------ */

/* Compares the values of two tensors, some at a time. */
static exf_code compare_values(const exf_stored_tensor *a, const exf_stored_tensor *b, int *equal, exf_err *err)
{
    enum { CHUNK = 1 << 20 };
    size_t n = (size_t)exf_tensor_count(&a->tensor->view);
    float *v = NULL;
    exf_code rc;
    *equal = (size_t)exf_tensor_count(&b->tensor->view) == n && exf_dtype_bits(b->tensor->view.dtype) >= 16;
    EXF_TRY(exf_mem_new(&v, 2 * CHUNK, sizeof *v, "head", err));
    for (size_t at = 0; *equal && at < n; at += CHUNK) {
        size_t some = n - at < CHUNK ? n - at : CHUNK;
        EXF_TRY(exf_stored_read(a, at, some, v, NULL, err));
        EXF_TRY(exf_stored_read(b, at, some, v + CHUNK, NULL, err));
        *equal = memcmp(v, v + CHUNK, some * sizeof *v) == 0;
    }
out:
    exf_mem_free(v);
    return rc;
}

/* Of a tied model with another head transformers 4 uses the embedding and transformers 5 the head: which model it is must
 * be said. */
static exf_code check_head(const exf_model *m, exf_err *err)
{
    const exf_stored_tensor *head = NULL;
    exf_model_rows embedding;
    exf_code rc = EXF_OK;
    int equal;
    for (size_t i = 0; m->arch.tied_embeddings && !head && i < m->family->n_rules; i++) {
        const exf_tensor_rule *r = &m->family->rules[i];
        char name[EXF_TENSOR_NAME_LEN];
        if (!(r->how & EXF_MAY_BE_TIED)) continue;
        exf_rule_name(name, m, r, -1, 0);
        head = exf_checkpoint_find(m->checkpoint, name);
    }
    if (!head) return EXF_OK;
    EXF_TRY(exf_model_locate(m, EXF_W_EMBED, -1, 0, &embedding, err));
    EXF_TRY(compare_values(embedding.w.of[EXF_STORED_CODES], head, &equal, err));
    if (!equal)
        rc = exf_fail(err, EXF_MODEL,
                      "%s: tensor \"%s\" differs from \"%s\", but %s has \"tie_word_embeddings\": true, by which the embedding is "
                      "the head; transformers 4 uses the embedding, transformers 5 the head that is stored: set it to false to use "
                      "the head, or leave the tensor out to use the embedding",
                      exf_st_path(head->file), head->tensor->view.name, embedding.w.of[EXF_STORED_CODES]->tensor->view.name,
                      m->config_path);
out:
    return rc;
}

/* ---- the checkpoint against the family's list of tensors ------------------------------ */

/* The checkpoint's tensors that some rule asked for, by index. */
typedef struct {
    const exf_model *m;
    unsigned char *used;
} inventory;

static void mark_used(inventory *v, const exf_stored_tensor *s)
{
    if (s) v->used[s - v->m->checkpoint->stored] = 1;
}

static exf_code check_rule(inventory *v, const exf_tensor_rule *r, int layer, exf_err *err)
{
    const exf_model *m = v->m;
    char name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    exf_weight_source w;
    exf_code rc = EXF_OK;
    if (!exf_rule_applies(m, r, layer)) {
        if (layer < 0 && r->where == EXF_IN_MODEL && r->how & EXF_MAY_BE_TIED) {
            exf_rule_name(name, m, r, layer, 0);
            mark_used(v, exf_checkpoint_find(m->checkpoint, name));
        }
        return EXF_OK;
    }
    int n = r->where == EXF_IN_EXPERT ? m->arch.n_experts : 1, rank = exf_rule_shape(&m->arch, r, shape);
    for (int e = 0; e < n; e++) {
        exf_rule_name(name, m, r, layer, e);
        EXF_TRY(exf_weight_source_find(&w, m->checkpoint, &m->quantization, m->config_path, name, shape, rank, r->how, err));
        if (!exf_weight_source_fits_bf16(&w)) m->beyond_bf16[(size_t)(layer + 1) * EXF_W_COUNT + (size_t)r->role] = 1;
        for (int kind = 0; kind < EXF_STORED_KINDS; kind++) mark_used(v, w.of[kind]);
        mark_used(v, w.shape);
    }
out:
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

static exf_code check_surplus(const inventory *v, exf_err *err)
{
    const exf_model *m = v->m;
    for (size_t i = 0; i < m->checkpoint->n_stored; i++) {
        const exf_stored_tensor *s = &m->checkpoint->stored[i];
        const char *name = s->tensor->view.name;
        /* Frequencies of RoPE, which old versions of transformers stored, follow from the config. */
        int known = v->used[i] || exf_ends_with(name, "rotary_emb.inv_freq") || exf_weight_source_ignores(&m->quantization, name);
        for (size_t k = 0; !known && m->family->ignored[k]; k++) known = begins_with(&m->arch, name, m->family->ignored[k]);
        if (!known)
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is not one that %s expects of a %s", exf_st_path(s->file), name,
                            m->config_path, m->family->name);
    }
    return EXF_OK;
}

/* Refuses weights that a quantizer packed and that config.json does not say how to read, by the names of tensors that it alone
 * writes. */
static exf_code refuse_packed(const exf_model *m, exf_err *err)
{
    static const struct { const char *ends, *packer, *method; } packed[] = {
        {".qweight", "AWQ or GPTQ", "awq\" or \"gptq"}, {".weight_packed", "compressed-tensors", "compressed-tensors"},
        {".weight_scale_2", "ModelOpt (NVFP4)", "modelopt"},
    };
    static const struct { const char *ends, *sentence; } unread[] = {
        {".absmax", EXF_QUANTIZED_BY("bitsandbytes")}, {".trellis", EXF_QUANTIZED_EXL3}, {".biases", EXF_QUANTIZED_MLX},
        {".weight._scale", EXF_QUANTIZED_QUANTO},
    };
    for (size_t i = 0; i < m->checkpoint->n_stored; i++) {
        const exf_stored_tensor *s = &m->checkpoint->stored[i];
        const char *name = s->tensor->view.name;
        for (size_t k = 0; k < sizeof unread / sizeof *unread; k++)
            if (exf_ends_with(name, unread[k].ends))
                return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": %s", exf_st_path(s->file), name, unread[k].sentence);
        for (size_t k = 0; k < sizeof packed / sizeof *packed; k++)
            if (exf_ends_with(name, packed[k].ends) && m->quantization.quantizer == EXF_QUANTIZER_NONE)
                return exf_fail(err, EXF_MODEL,
                                "%s: tensor \"%s\" is packed by %s, but %s has no \"quantization_config\" of quant_method \"%s\": "
                                "docs/quantized.md",
                                exf_st_path(s->file), name, packed[k].packer, m->config_path, packed[k].method);
    }
    return EXF_OK;
}

exf_code exf_model_check_tensors(const exf_model *m, exf_err *err)
{
    inventory v = {m, NULL};
    exf_code rc;
    EXF_TRY(refuse_packed(m, err));
    EXF_TRY(exf_mem_new(&v.used, m->checkpoint->n_stored, 1, "tensor inventory", err));
    for (int l = -1; l < m->arch.n_layers; l++)
        for (size_t i = 0; i < m->family->n_rules; i++) EXF_TRY(check_rule(&v, &m->family->rules[i], l, err));
    EXF_TRY(check_surplus(&v, err));
    EXF_TRY(check_head(m, err));
out:
    exf_mem_free(v.used);
    return rc;
}

/* ---- tables of experts ---------------------------------------------------------------- */

/* Integer tensors hold expert numbers, a row for each token of the vocabulary: each must name an expert,
 * since the router indexes with them.  A row may name one twice: that is one route (kernels/moe/moe.h). */
exf_code exf_model_check_tables(const exf_model *m, exf_err *err)
{
    char name[EXF_TENSOR_NAME_LEN];
    float *v = NULL;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < m->family->n_rules; i++) {
        const exf_tensor_rule *r = &m->family->rules[i];
        size_t cols = r->dims[1] == EXF_DIM_NONE ? 1 : (size_t)m->arch.dim[r->dims[1]];
        for (int l = 0; r->how & EXF_INTEGER && l < m->arch.n_layers; l++) {
            if (!exf_rule_applies(m, r, l)) continue;
            size_t at = 0, n = exf_model_count(m, r->role, l);
            exf_mem_free(v);
            EXF_TRY(exf_mem_new(&v, n, sizeof *v, "table of experts", err));
            EXF_TRY(exf_model_read(m, r->role, l, 0, v, err));
            while (at < n && v[at] >= 0 && v[at] < (float)m->arch.n_experts) at++;
            if (at == n) continue;
            exf_rule_name(name, m, r, l, 0);
            rc = exf_fail(err, EXF_MODEL, "%s: tensor \"%s\", token %zu names expert %.0f, %s has experts 0 to %d", m->dir, name,
                          at / cols, (double)v[at], m->config_path, m->arch.n_experts - 1);
            goto out;
        }
    }
out:
    exf_mem_free(v);
    return rc;
}
