/* model.c - see model.h. */
#include "base/err.h"
#include "model/model.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* EXF_OK for a directory that has a config.json, and for any path of which nothing better is known than
 * what opening config.json there says.  EXF_USAGE, with the command or the path that mends it, for
 *   a hub's name (OWNER/MODEL, where no OWNER exists): how to download it;
 *   the folder of a hub cache, which keeps checkpoints in snapshots/REVISION: which of them to name;
 *   a file, such as a .gguf, a shard or config.json itself. */
exf_code exf_model_check_path(const char *dir, exf_err *err) EXF_CHECKED;

void exf_tensor_name(char out[EXF_TENSOR_NAME_LEN], const exf_architecture *a, const char *pattern, int layer, int expert)
{
    size_t n = 0, room = EXF_TENSOR_NAME_LEN;
    for (const char *p = pattern; *p && n < room - 1;) {
        if (p[0] == '{' && p[2] == '}') {
            int put = p[1] == 'P' ? snprintf(out + n, room - n, "%s", a->prefix)
                                  : snprintf(out + n, room - n, "%d", p[1] == 'L' ? layer : expert);
            n += (size_t)put < room - n ? (size_t)put : room - n - 1;
            p += 3;
        } else {
            out[n++] = *p++;
        }
    }
    out[n] = 0;
}

int exf_rule_applies(const exf_architecture *a, const exf_tensor_rule *r, int layer)
{
    unsigned have = layer < 0 ? a->model_traits : a->traits[layer];
    return (layer < 0) == (r->where == EXF_IN_MODEL) && (have & r->when) == r->when;
}

/* Returns 1 for the router, the routed and the shared experts. */
static int is_of_experts(exf_role role)
{
    return role >= EXF_W_ROUTER && role <= EXF_W_SHARED_SWITCH;
}

int exf_rule_opened(const exf_model *m, const exf_tensor_rule *r)
{
    return m->part != EXF_MODEL_EXPERTS || is_of_experts(r->role);
}

int exf_rule_shape(const exf_architecture *a, const exf_tensor_rule *r, int64_t shape[4])
{
    int rank = 0;
    if (r->where == EXF_IN_STACK) shape[rank++] = a->n_experts;
    for (int i = 0; i < 3 && r->dims[i] != EXF_DIM_NONE; i++) shape[rank++] = a->dim[r->dims[i]];
    if (r->how & (EXF_FIRST_HALF | EXF_SECOND_HALF)) shape[1] *= 2;
    return rank;
}

/* The rule that gives a role's tensor in a layer. */
static const exf_tensor_rule *rule_of(const exf_model *m, exf_role role, int layer)
{
    if ((int)role < EXF_W_FIRST_IN_LAYER) layer = -1;
    for (size_t i = 0; i < m->family->n_rules; i++)
        if (m->family->rules[i].role == role && exf_rule_applies(&m->arch, &m->family->rules[i], layer) &&
            exf_rule_opened(m, &m->family->rules[i]))
            return &m->family->rules[i];
    return NULL;
}

static exf_code load_config(exf_model *m, exf_err *err)
{
    enum { CONFIG_LIMIT = 16 << 20 };
    exf_code rc;
    const char *model_type;
    EXF_TRY(exf_path_join(&m->config_path, m->dir, "config.json", err));
    EXF_TRY(exf_json_load(&m->config, m->config_path, CONFIG_LIMIT, err));
    EXF_TRY(exf_hash_file(m->config_path, m->config_sha256, err));
    if (exf_json_type(m->config) != EXF_JSON_OBJECT) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is %s, expected an object", m->config_path, exf_json_type_name(m->config));
        goto out;
    }
    exf_config c = {m->config, m->config_path};
    EXF_TRY(exf_config_text_or(&c, "model_type", NULL, &model_type, err));
    rc = exf_family_require(model_type ? model_type : "", &m->family, err);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "%s: ", m->config_path);
        goto out;
    }
    EXF_TRY(exf_quantization_read(&c, &m->quantization, err));
    EXF_TRY(m->family->configure(&c, &m->arch, err));
out:
    return rc;
}

static exf_code open_weights(exf_model *m, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&m->beyond_bf16, (size_t)m->arch.n_layers + 1, EXF_W_COUNT, "model", err));
    EXF_TRY(exf_model_check_tensors(m, err));
    EXF_TRY(exf_model_check_tables(m, err));
    EXF_TRY(exf_weight_identity_new(&m->identity, m->arch.n_layers, err)); /* after the checks, whose reading is not the run's */
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
    EXF_TRY(part == EXF_MODEL_CONFIG ? exf_checkpoint_empty(&m->checkpoint, err) : exf_checkpoint_open(&m->checkpoint, dir, err));
    if (m->family->adapt) m->family->adapt(m->checkpoint, &m->arch);
    exf_architecture_finish(&m->arch);
    if (part != EXF_MODEL_CONFIG) EXF_TRY(open_weights(m, err));
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
    exf_json_free(m->config);
    exf_mem_free(m->config_path);
    exf_mem_free(m->dir);
    exf_mem_free(m);
}

int exf_model_copies(const exf_model *m, exf_role role, int layer)
{
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    const exf_tensor_rule *r = rule_of(m, role, layer);
    if (!r) return 0;
    return r->where == EXF_IN_EXPERT || r->where == EXF_IN_STACK ? m->arch.n_experts : 1;
}

/* Rows and columns of one tensor of the role, a vector being one row per element. */
static void matrix_of(const exf_model *m, const exf_tensor_rule *r, size_t *rows, size_t *cols)
{
    *rows = (size_t)m->arch.dim[r->dims[0]];
    *cols = 1;
    for (int i = 1; i < 3 && r->dims[i] != EXF_DIM_NONE; i++) *cols *= (size_t)m->arch.dim[r->dims[i]];
}

size_t exf_model_count(const exf_model *m, exf_role role, int layer)
{
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    const exf_tensor_rule *r = rule_of(m, role, layer);
    size_t rows, cols;
    if (!r) return 0;
    matrix_of(m, r, &rows, &cols);
    return rows * cols;
}

/* First row of an expert's part in a stack. */
static size_t row_in_stack(const exf_tensor_rule *r, size_t rows, int expert)
{
    if (r->where != EXF_IN_STACK) return 0;
    if (!(r->how & (EXF_FIRST_HALF | EXF_SECOND_HALF))) return rows * (size_t)expert;
    return rows * (2 * (size_t)expert + (r->how & EXF_SECOND_HALF ? 1 : 0));
}

/* Returns the part of the identity to which a role's tensors belong. */
static int part_of(exf_role role, int layer)
{
    if ((int)role < EXF_W_FIRST_IN_LAYER) return role == EXF_W_EMBED ? EXF_PART_EMBEDDING : EXF_PART_HEAD;
    return EXF_PART_LAYERS + 2 * layer + !is_of_experts(role);
}

exf_code exf_model_locate(const exf_model *m, exf_role role, int layer, int expert, exf_model_rows *out, exf_err *err)
{
    char name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    const exf_tensor_rule *r = rule_of(m, role, layer);
    if (!r) return exf_fail(err, EXF_INTERNAL, "family %s: layer %d has no tensor of role %d", m->family->name, layer, (int)role);
    exf_tensor_name(name, &m->arch, r->name, layer, expert);
    int rank = exf_rule_shape(&m->arch, r, shape);
    matrix_of(m, r, &out->rows, &out->cols);
    out->row = row_in_stack(r, out->rows, expert);
    exf_code rc =
        exf_weight_source_find(&out->w, m->checkpoint, &m->quantization, m->config_path, name, shape, rank, r->how, err);
    out->w.identity = m->identity;
    out->w.part = part_of(role, layer);
    return rc;
}

int exf_model_fits_bf16(const exf_model *m, exf_role role, int layer)
{
    const exf_quantization *q = &m->quantization;
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    if (m->beyond_bf16) return !m->beyond_bf16[(size_t)(layer + 1) * EXF_W_COUNT + (size_t)role];
    const exf_tensor_rule *r = rule_of(m, role, layer);
    if (!r || r->how & (EXF_PLUS_ONE | EXF_INTEGER)) return 0;
    return q->fp8 && r->how & EXF_LINEAR ? q->e8m0_scales : exf_stored_dtype(role, r->how) == EXF_DT_BF16;
}

exf_code exf_model_read(const exf_model *m, exf_role role, int layer, int expert, float *dst, exf_err *err)
{
    exf_model_rows at;
    exf_code rc = exf_model_locate(m, role, layer, expert, &at, err);
    return rc == EXF_OK ? exf_weight_source_read(&at.w, at.row, at.rows, at.cols, dst, err) : rc;
}

exf_code exf_model_layer_done(const exf_model *m, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!m->identity) return EXF_OK;
    for (int k = 0; k < 2; k++) EXF_TRY(exf_weight_identity_settle(m->identity, EXF_PART_LAYERS + 2 * layer + k, err));
    rc = exf_checkpoint_unchanged(m->checkpoint, err);
out:
    return rc;
}

exf_code exf_model_pass_done(const exf_model *m, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!m->identity) return EXF_OK;
    EXF_TRY(exf_weight_identity_settle(m->identity, EXF_PART_EMBEDDING, err));
    EXF_TRY(exf_weight_identity_settle(m->identity, EXF_PART_HEAD, err));
    rc = exf_checkpoint_unchanged(m->checkpoint, err);
out:
    return rc;
}

/* ---- model path -------------------------------------------------------------------------------- */

/* ---- a name on a hub ------------------------------------------------------------- */

/* OWNER/MODEL in the hub's letters. */
static int looks_like_hub_name(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t owner = strspn(name, letters);
    if (owner == 0 || name[0] == '.' || name[owner] != '/') return 0;
    const char *model = name + owner + 1;
    return *model && *model != '.' && strspn(model, letters) == strlen(model);
}

static exf_code explain_hub_name(const char *name, exf_err *err)
{
    char *owner = NULL;
    exf_code rc;
    int has_owner;
    EXF_TRY(exf_path_dir(&owner, name, err));
    EXF_TRY(exf_path_look(owner, &has_owner, err));
    if (!has_owner)
        rc = exf_fail(err, EXF_USAGE,
                      "%s: no such directory; checkpoints are read from directories. To get the hub's model of this name: "
                      "hf download %s --local-dir models/%s, then --model models/%s",
                      name, name, strchr(name, '/') + 1, strchr(name, '/') + 1);
out:
    exf_mem_free(owner);
    return rc;
}

/* ---- a folder of a hub cache -------------------------------------------------------- */

/* The revision that refs/main names, or NULL.  Caller frees. */
static char *main_revision(const char *dir)
{
    exf_err ignored;
    char *path = NULL, *text = NULL;
    size_t len;
    if (exf_path_join(&path, dir, "refs/main", &ignored) == EXF_OK &&
        exf_file_slurp(path, 256, &text, &len, &ignored) == EXF_OK)
        text[strcspn(text, "\r\n")] = 0;
    exf_mem_free(path);
    return text;
}

/* The snapshot that refs/main names, else the first by name; *best is NULL if there is none.  Caller frees. */
static exf_code choose_snapshot(const char *dir, const char *snapshots, char **best, exf_err *err)
{
    exf_code rc = EXF_OK;
    char *wanted = main_revision(dir);
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

exf_code exf_model_check_path(const char *dir, exf_err *err)
{
    char *config = NULL;
    exf_code rc;
    int found, is_directory;
    EXF_TRY(exf_path_join(&config, dir, "config.json", err));
    EXF_TRY(exf_path_look(config, &found, err));
    if (found) goto out;
    EXF_TRY(exf_path_is_directory(dir, &is_directory, err));
    EXF_TRY(exf_path_look(dir, &found, err));
    if (is_directory)
        rc = explain_cache(dir, err);
    else if (found)
        rc = exf_fail(err, EXF_USAGE, "%s: is a file; a model is the directory that holds config.json and *.safetensors", dir);
    else if (looks_like_hub_name(dir))
        rc = explain_hub_name(dir, err);
out:
    exf_mem_free(config);
    return rc;
}

/* ---- model check ------------------------------------------------------------------------------- */

/* The checkpoint against the family's list of tensors. */

/* The checkpoint's tensors that some rule asked for, by index. */
typedef struct {
    const exf_model *m;
    unsigned char *used;
} inventory;

static void mark(inventory *v, const exf_stored_tensor *s)
{
    if (s) v->used[s - exf_checkpoint_at(v->m->checkpoint, 0)] = 1;
}

static exf_code check_one(inventory *v, const exf_tensor_rule *r, int layer, int expert, exf_err *err)
{
    const exf_model *m = v->m;
    char name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    exf_weight_source w;
    exf_tensor_name(name, &m->arch, r->name, layer, expert);
    int rank = exf_rule_shape(&m->arch, r, shape);
    exf_code rc = exf_weight_source_find(&w, m->checkpoint, &m->quantization, m->config_path, name, shape, rank, r->how, err);
    if (rc != EXF_OK) return rc;
    if (!exf_weight_source_fits_bf16(&w)) m->beyond_bf16[(size_t)(layer + 1) * EXF_W_COUNT + (size_t)r->role] = 1;
    mark(v, w.stored);
    mark(v, w.scale);
    return EXF_OK;
}

static exf_code check_rule(inventory *v, const exf_tensor_rule *r, int layer, exf_err *err)
{
    const exf_model *m = v->m;
    exf_code rc = EXF_OK;
    if (!exf_rule_opened(m, r)) return EXF_OK;
    if (!exf_rule_applies(&m->arch, r, layer)) {
        if (layer < 0 && r->where == EXF_IN_MODEL && r->how & EXF_MAY_BE_TIED) mark(v, exf_checkpoint_find(m->checkpoint, r->name));
        return EXF_OK;
    }
    int n = r->where == EXF_IN_EXPERT ? m->arch.n_experts : 1;
    for (int e = 0; rc == EXF_OK && e < n; e++) rc = check_one(v, r, layer, e, err);
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

static int is_ignored(const exf_model *m, const char *name)
{
    for (size_t i = 0; i < m->family->n_ignored; i++)
        if (begins_with(&m->arch, name, m->family->ignored[i])) return 1;
    return 0;
}

static exf_code check_surplus(const inventory *v, exf_err *err)
{
    const exf_model *m = v->m;
    for (size_t i = 0; i < exf_checkpoint_count(m->checkpoint); i++) {
        const exf_stored_tensor *s = exf_checkpoint_at(m->checkpoint, i);
        const char *name = s->tensor->view.name;
        if (!v->used[i] && !is_ignored(m, name))
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is not one that %s expects of a %s", exf_st_path(s->file), name,
                            m->config_path, m->family->name);
    }
    return EXF_OK;
}

exf_code exf_model_check_tensors(const exf_model *m, exf_err *err)
{
    inventory v = {m, NULL};
    exf_code rc;
    EXF_TRY(exf_mem_new(&v.used, exf_checkpoint_count(m->checkpoint), 1, "tensor inventory", err));
    for (int l = -1; l < m->arch.n_layers; l++)
        for (size_t i = 0; i < m->family->n_rules; i++) EXF_TRY(check_rule(&v, &m->family->rules[i], l, err));
    if (m->part == EXF_MODEL_ALL) EXF_TRY(check_surplus(&v, err));
out:
    exf_mem_free(v.used);
    return rc;
}
