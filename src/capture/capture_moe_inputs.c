/* capture_moe_inputs.c - reads a file of recorded MoE inputs; see capture.h. */
#include "capture/capture.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/safetensors.h"
#include "model/weight_identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const exf_st_tensor *input, *ids, *weights;
} layer_tensors;

struct exf_moe_inputs {
    const exf_model *model;
    exf_st_file *file;
    layer_tensors layer[EXF_MAX_LAYERS];
    int64_t n_rows;
    int32_t *tokens; /* NULL: not recorded */
    exf_span *span;
    exf_batch batch;
    exf_recorded recorded;
};

enum { NAME_LEN = 48 };
typedef enum { REALS, INTEGERS } number_kind;

static const exf_st_tensor *find_tensor(const exf_moe_inputs *x, int layer, const char *part)
{
    char name[NAME_LEN];
    snprintf(name, sizeof name, "layers.%d.%s", layer, part);
    return exf_st_find(x->file, name);
}

/* Compares number type and shape with what is expected; rows below 0: any, cols 0: a vector. */
static exf_code check_tensor(const exf_moe_inputs *x, const exf_st_tensor *t, number_kind kind, int64_t rows, int64_t cols,
                      const char *why, exf_err *err)
{
    const exf_tensor *v = &t->view;
    char have[64], want[64];
    exf_dtype d = v->dtype;
    int rank = cols ? 2 : 1,
        fits = kind == REALS ? d == EXF_DT_F32 || d == EXF_DT_F16 || d == EXF_DT_BF16 : d == EXF_DT_I32 || d == EXF_DT_I64;
    if (!fits)
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is %s, expected %s", exf_st_path(x->file), v->name, exf_dtype_name(d),
                        kind == REALS ? "F32, F16 or BF16" : "I32 or I64");
    int64_t shape[2] = {rows < 0 && v->rank > 0 ? v->shape[0] : rows, cols};
    if (v->rank == rank && v->shape[0] == shape[0] && (rank == 1 || v->shape[1] == cols)) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is %s, expected %s: %s", exf_st_path(x->file), v->name,
                    exf_shape_text(have, sizeof have, v->shape, v->rank), exf_shape_text(want, sizeof want, shape, rank), why);
}

/* Reads elements [begin, begin + n) of an integer tensor, each in [least, limit). */
static exf_code read_integers(const exf_moe_inputs *x, const exf_st_tensor *t, size_t begin, size_t n, int64_t least, int64_t limit,
                              int32_t *out, exf_err *err)
{
    enum { CHUNK = 512 };
    char raw[CHUNK * 8];
    int64_t v[CHUNK];
    size_t width = exf_dtype_bits(t->view.dtype) / 8;
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = n - at < CHUNK ? n - at : CHUNK;
        exf_code rc = exf_stop_check(err);
        if (rc == EXF_OK) rc = exf_st_read(x->file, t, (begin + at) * width, raw, m * width, err);
        if (rc != EXF_OK) return rc;
        exf_dtype_to_i64(v, raw, m, t->view.dtype);
        for (size_t i = 0; i < m; i++) {
            if (v[i] < least || v[i] >= limit)
                return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": element %zu is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                                exf_st_path(x->file), t->view.name, begin + at + i, v[i], least, limit - 1);
            out[at + i] = (int32_t)v[i];
        }
    }
    return EXF_OK;
}

/* ---- opening ---------------------------------------------------------------------- */

static exf_code check_layer(exf_moe_inputs *x, int layer, exf_err *err)
{
    const exf_architecture *a = &x->model->arch;
    layer_tensors *t = &x->layer[layer];
    exf_code rc;
    if (!a->is_moe[layer])
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\", but layer %d of %s is dense", exf_st_path(x->file), t->input->view.name,
                        layer, x->model->config_path);
    EXF_TRY(check_tensor(x, t->input, REALS, x->n_rows, a->d_model, "rows of the first layer and the model's hidden size", err));
    x->n_rows = t->input->view.shape[0];
    t->ids = find_tensor(x, layer, "topk_ids");
    t->weights = find_tensor(x, layer, "topk_weights");
    if (!t->ids != !t->weights)
        return exf_fail(err, EXF_MODEL, "%s: layer %d has topk_%s but no topk_%s: routes need both", exf_st_path(x->file), layer,
                        t->ids ? "ids" : "weights", t->ids ? "weights" : "ids");
    if (t->ids) EXF_TRY(check_tensor(x, t->ids, INTEGERS, x->n_rows, a->top_k, "the model's experts per token", err));
    if (t->weights) EXF_TRY(check_tensor(x, t->weights, REALS, x->n_rows, a->top_k, "the model's experts per token", err));
    x->recorded.has_routes[layer] = t->ids != NULL;
out:
    return rc;
}

static exf_code find_layers(exf_moe_inputs *x, exf_err *err)
{
    int n = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < exf_st_count(x->file); i++) { /* a layer that the model does not have would be left out silently */
        const char *name = exf_st_at(x->file, i)->view.name;
        int layer, end = 0;
        if (sscanf(name, "layers.%d.moe_input%n", &layer, &end) == 1 && end && !name[end] &&
            (layer < 0 || layer >= x->model->arch.n_layers))
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\", but %s has %d layers", exf_st_path(x->file), name,
                            x->model->config_path, x->model->arch.n_layers);
    }
    x->n_rows = -1;
    for (int l = 0; rc == EXF_OK && l < x->model->arch.n_layers; l++) {
        x->layer[l].input = find_tensor(x, l, "moe_input");
        if (!x->layer[l].input) continue;
        rc = check_layer(x, l, err);
        n++;
    }
    if (rc != EXF_OK) return rc;
    if (n == 0) return exf_fail(err, EXF_MODEL, "%s: holds no tensor \"layers.<l>.moe_input\"", exf_st_path(x->file));
    if (x->n_rows < 1 || x->n_rows > INT32_MAX)
        return exf_fail(err, EXF_MODEL, "%s: %" PRId64 " rows were recorded, expected 1 to %d", exf_st_path(x->file), x->n_rows,
                        INT32_MAX);
    return EXF_OK;
}

static exf_code choose_layers(exf_moe_inputs *x, const char *layers, exf_layer_choice *choice, exf_err *err)
{
    int all = strcmp(layers, "all") == 0;
    exf_layer_choice asked;
    exf_code rc = exf_layer_choice_parse(&asked, layers, &x->model->arch, err);
    if (rc != EXF_OK) return rc;
    memset(choice, 0, sizeof *choice);
    for (int l = 0; l < x->model->arch.n_layers; l++) {
        if (!asked.chosen[l]) continue;
        if (!x->layer[l].input) {
            if (all) continue;
            return exf_fail(err, EXF_USAGE, "--layers: layer %d was not recorded in %s", l, exf_st_path(x->file));
        }
        x->recorded.has_input[l] = choice->chosen[l] = 1;
        choice->number[choice->n++] = choice->last = l;
    }
    return EXF_OK;
}

static exf_code read_lengths(exf_moe_inputs *x, const exf_st_tensor *t, exf_err *err)
{
    int32_t *length = NULL;
    int64_t total = 0;
    exf_code rc;
    size_t n = t->view.rank == 1 ? (size_t)t->view.shape[0] : 0;
    EXF_TRY(check_tensor(x, t, INTEGERS, -1, 0, "one length per sequence", err));
    EXF_TRY(exf_mem_new(&length, n, sizeof *length, "sequence lengths", err));
    EXF_TRY(exf_mem_new(&x->span, n, sizeof *x->span, "sequences", err));
    EXF_TRY(read_integers(x, t, 0, n, 0, (int64_t)INT32_MAX + 1, length, err));
    for (size_t i = 0; i < n; i++) {
        if (length[i] == 0) {
            rc = exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": element %zu is 0, expected at least 1", exf_st_path(x->file),
                          t->view.name, i);
            goto out;
        }
        x->span[i] = (exf_span){(size_t)total, length[i]};
        total += length[i];
        if (length[i] > x->batch.max_tokens) x->batch.max_tokens = length[i];
    }
    x->batch.n_sequences = n;
    if (total != x->n_rows)
        rc = exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" adds up to %" PRId64 " tokens, %" PRId64 " rows were recorded",
                      exf_st_path(x->file), t->view.name, total, x->n_rows);
out:
    exf_mem_free(length);
    return rc;
}

static exf_code read_sequences(exf_moe_inputs *x, exf_err *err)
{
    const exf_st_tensor *lengths = exf_st_find(x->file, "sequence_lengths"), *tokens = exf_st_find(x->file, "token_ids");
    exf_code rc;
    x->batch.n_tokens = (size_t)x->n_rows;
    if (lengths) {
        EXF_TRY(read_lengths(x, lengths, err));
    } else {
        EXF_TRY(exf_mem_new(&x->span, 1, sizeof *x->span, "sequences", err));
        x->span[0] = (exf_span){0, (int)x->n_rows};
        x->batch.n_sequences = 1;
        x->batch.max_tokens = (int)x->n_rows;
    }
    x->batch.span = x->span;
    if (tokens) {
        EXF_TRY(check_tensor(x, tokens, INTEGERS, x->n_rows, 0, "one id per row", err));
        EXF_TRY(exf_mem_new(&x->tokens, (size_t)x->n_rows, sizeof *x->tokens, "token ids", err));
        EXF_TRY(read_integers(x, tokens, 0, (size_t)x->n_rows, 0, x->model->arch.vocab, x->tokens, err));
        x->batch.ids = x->tokens;
    }
out:
    return rc;
}

/* ---- rows -------------------------------------------------------------------------- */

static exf_code input_rows(void *self, int layer, size_t row, size_t n, float *dst, exf_err *err)
{
    const exf_moe_inputs *x = self;
    size_t h = (size_t)x->model->arch.d_model;
    exf_stored_tensor s = {x->file, x->layer[layer].input};
    return exf_stored_read_f32(&s, row * h, n * h, dst, err);
}

/* Refuses an expert that a token has twice: the statistics of pairs need them distinct. */
static exf_code check_distinct(const exf_moe_inputs *x, int layer, size_t row, size_t n, const int32_t *ids, exf_err *err)
{
    int k = x->model->arch.top_k;
    for (size_t t = 0; t < n; t++) {
        const int32_t *id = ids + t * (size_t)k;
        for (int i = 1; i < k; i++)
            for (int j = 0; j < i; j++)
                if (id[i] >= 0 && id[i] == id[j])
                    return exf_fail(err, EXF_MODEL,
                                    "%s: tensor \"%s\": row %zu names expert %d twice: expected one slot with both weights, the "
                                    "other with expert -1 and weight 0",
                                    exf_st_path(x->file), x->layer[layer].ids->view.name, row + t, (int)id[i]);
    }
    return EXF_OK;
}

/* Refuses an empty slot with a weight, and tokens without any expert.  Empty slots are those of a hash layer that names an
 * expert twice. */
static exf_code check_empty(const exf_moe_inputs *x, int layer, size_t row, size_t n, const int32_t *ids, const float *weights,
                            exf_err *err)
{
    size_t k = (size_t)x->model->arch.top_k;
    for (size_t t = 0; t < n; t++) {
        size_t routes = 0;
        for (size_t i = t * k; i < (t + 1) * k; i++) {
            routes += ids[i] >= 0;
            if (ids[i] < 0 && weights[i] != 0)
                return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": row %zu: slot %zu has no expert and weight %g, expected 0",
                                exf_st_path(x->file), x->layer[layer].weights->view.name, row + t, i - t * k, (double)weights[i]);
        }
        if (!routes)
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\": row %zu has no expert, expected 1 to %zu", exf_st_path(x->file),
                            x->layer[layer].ids->view.name, row + t, k);
    }
    return EXF_OK;
}

static exf_code route_rows(void *self, int layer, size_t row, size_t n, int32_t *ids, float *weights, exf_err *err)
{
    const exf_moe_inputs *x = self;
    size_t k = (size_t)x->model->arch.top_k;
    exf_stored_tensor s = {x->file, x->layer[layer].weights};
    exf_code rc;
    EXF_TRY(read_integers(x, x->layer[layer].ids, row * k, n * k, -1, x->model->arch.n_experts, ids, err));
    EXF_TRY(check_distinct(x, layer, row, n, ids, err));
    EXF_TRY(exf_stored_read_f32(&s, row * k, n * k, weights, err));
    rc = check_empty(x, layer, row, n, ids, weights, err);
out:
    return rc;
}

exf_code exf_moe_inputs_open(exf_moe_inputs **out, const char *path, const exf_model *m, const char *layers,
                             exf_layer_choice *choice, exf_err *err)
{
    exf_code rc;
    exf_moe_inputs *x = NULL;
    *out = NULL;
    EXF_TRY(exf_mem_new(&x, 1, sizeof *x, "recorded inputs", err));
    x->model = m;
    x->recorded.self = x;
    x->recorded.input = input_rows;
    x->recorded.routes = route_rows;
    EXF_TRY(exf_st_open(&x->file, path, err));
    EXF_TRY(find_layers(x, err));
    EXF_TRY(choose_layers(x, layers, choice, err));
    EXF_TRY(read_sequences(x, err));
out:
    if (rc != EXF_OK)
        exf_moe_inputs_free(x);
    else
        *out = x;
    return rc;
}

void exf_moe_inputs_free(exf_moe_inputs *x)
{
    if (!x) return;
    exf_st_close(x->file);
    exf_mem_free(x->tokens);
    exf_mem_free(x->span);
    exf_mem_free(x);
}

const exf_batch *exf_moe_inputs_batch(const exf_moe_inputs *x)
{
    return &x->batch;
}

const exf_recorded *exf_moe_inputs_recorded(const exf_moe_inputs *x)
{
    return &x->recorded;
}

exf_code exf_moe_inputs_provenance(exf_provenance *p, const exf_moe_inputs *x, const exf_backend *backend, exf_compute compute,
                                   const char *layers, exf_err *err)
{
    char sha256[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_hash_file(exf_st_path(x->file), sha256, err));
    EXF_TRY(exf_provenance_add(p, err, "data.moe_inputs_sha256", "%s", sha256));
    EXF_TRY(exf_provenance_add(p, err, "data.sequences", "%zu", x->batch.n_sequences));
    EXF_TRY(exf_provenance_add(p, err, "data.tokens", "%zu", x->batch.n_tokens));
    EXF_TRY(exf_capture_stage_facts(p, x->model, backend, compute, layers, err));
out:
    return rc;
}
