/* artifact_capture.c - the file format `capture`, version 4.
 *
 * Root attributes beside those of artifact.h:
 *   n_experts, top_k, d_model, n_sequences, n_tokens   i64
 * Datasets, T = n_tokens rows in order of the manifest, one group per captured
 * MoE layer, <l> the model's layer number:
 *   /layer_numbers                 I32 [L]      ascending
 *   /layers/<l>/topk_ids           I32 [T, K]   distinct experts of a token; -1: an empty slot (a hash layer that
 *       names an expert twice for a token), whose weight and outputs are 0
 *   /layers/<l>/topk_weights       F32 [T, K]   the router's weights
 *   /layers/<l>/expert_outputs     F32 [T, K, H] before weighting
 * Since version 2, N = n_sequences, both or neither:
 *   /sequence_lengths              I32 [N]      tokens, in order of the rows
 *   /sequence_sha256               U8 [N, 32]   (data.h)
 *   /sequence_document, /document_sketches      as in statistics; each may be absent
 * Since version 4, in every layer's group or in none:
 *   /layers/<l>/stream_sq          F64 [T]      squared norm of the residual stream after the layer */
#include "artifact/artifact_capture.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_PARTS = EXF_CAPTURE_PARTS, STREAM_SQ = 3, PATH_LEN = 64 };

static const struct { const char *name; exf_dtype dtype; int rank; } parts[N_PARTS] = {
    {"topk_ids", EXF_DT_I32, 2},
    {"topk_weights", EXF_DT_F32, 2},
    {"expert_outputs", EXF_DT_F32, 3},
    {"stream_sq", EXF_DT_F64, 1},
};

static void part_path(char out[PATH_LEN], int layer, int part)
{
    snprintf(out, PATH_LEN, "/layers/%d/%s", layer, parts[part].name);
}

static exf_tensor part_tensor(const exf_capture_file *f, int part, const char *path)
{
    return (exf_tensor){.name = path, .dtype = parts[part].dtype, .rank = parts[part].rank,
                        .shape = {f->shape.n_tokens, f->shape.top_k, f->shape.d_model}};
}

int exf_capture_parts(const exf_capture_file *f)
{
    return f->has_stream ? N_PARTS : STREAM_SQ;
}

exf_code exf_capture_create(exf_capture_file *f, const exf_capture_plan *plan, exf_err *err)
{
    exf_code rc;
    memset(f, 0, sizeof *f);
    f->shape = plan->shape;
    f->n_layers = plan->n_layers;
    f->layer_number = plan->layer_number;
    f->has_stream = plan->has_stream;
    EXF_TRY(exf_artifact_create(&f->h, plan->target, plan->force, plan->temporary, &exf_artifact_capture, plan->provenance, err));
    EXF_TRY(exf_run_shape_write(&f->shape, f->h, err));
    EXF_TRY(exf_layer_numbers_write(f->layer_number, f->n_layers, f->h, err));
    if (plan->sequences) EXF_TRY(exf_sequence_list_write(plan->sequences, f->h, err));
    for (int i = 0; i < f->n_layers; i++)
        for (int k = 0; k < exf_capture_parts(f); k++) {
            char path[PATH_LEN];
            part_path(path, f->layer_number[i], k);
            exf_tensor t = part_tensor(f, k, path);
            EXF_TRY(exf_h5_define(f->h, &t, err));
        }
    rc = exf_h5_end_definitions(f->h, err);
out:
    if (rc != EXF_OK) exf_capture_abort(f);
    return rc;
}

exf_code exf_capture_continue(exf_capture_file *f, const exf_capture_plan *plan, const exf_h5_structure *s, exf_err *err)
{
    exf_code rc;
    memset(f, 0, sizeof *f);
    f->shape = plan->shape;
    f->n_layers = plan->n_layers;
    f->layer_number = plan->layer_number;
    f->has_stream = plan->has_stream;
    rc = exf_h5_continue_at(&f->h, plan->target, plan->force, plan->temporary, s, err);
    if (rc != EXF_OK) exf_capture_abort(f);
    return rc;
}

exf_code exf_capture_take_layer(exf_capture_file *f, int layer, const uint32_t *crc, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int k = 0; rc == EXF_OK && k < exf_capture_parts(f); k++) {
        char path[PATH_LEN];
        part_path(path, layer, k);
        exf_tensor t = part_tensor(f, k, path);
        rc = exf_h5_take(f->h, &t, crc ? &crc[k] : NULL, err);
    }
    return rc;
}

exf_code exf_capture_put(exf_capture_file *f, int layer, int64_t row, int64_t n, const int32_t *ids, const float *weights,
                         const float *outputs, const double *stream_sq, exf_err *err)
{
    const void *data[N_PARTS] = {ids, weights, outputs, stream_sq};
    exf_code rc = EXF_OK;
    for (int k = 0; rc == EXF_OK && k < N_PARTS && data[k]; k++) {
        char path[PATH_LEN];
        part_path(path, layer, k);
        rc = exf_h5_write_rows(f->h, path, row, n, data[k], err);
    }
    return rc;
}

exf_code exf_capture_checksums(exf_capture_file *f, int layer, uint32_t crc[EXF_CAPTURE_PARTS], exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int k = 0; rc == EXF_OK && k < exf_capture_parts(f); k++) {
        char path[PATH_LEN];
        part_path(path, layer, k);
        rc = exf_h5_checksum(f->h, path, &crc[k], err);
    }
    return rc;
}

/* ---- energies of the residual stream ----------------------------------------- */

static exf_tensor stream_tensor(const exf_capture_file *f, int layer, char path[PATH_LEN])
{
    part_path(path, layer, STREAM_SQ);
    return part_tensor(f, STREAM_SQ, path);
}

exf_code exf_capture_get_stream(exf_capture_file *f, int layer, int64_t row, int64_t n, double *stream_sq, exf_err *err)
{
    char path[PATH_LEN];
    exf_tensor t = stream_tensor(f, layer, path);
    exf_code rc = exf_h5_read_rows(f->h, t.name, t.dtype, row, n, stream_sq, err);
    for (int64_t i = 0; rc == EXF_OK && i < n; i++)
        if (!(stream_sq[i] >= 0 && isfinite(stream_sq[i])))
            rc = exf_fail(err, EXF_FORMAT, "%s: layer %d, row %lld: stream_sq is %g, expected a squared norm", exf_h5_path(f->h),
                          layer, (long long)(row + i), stream_sq[i]);
    return rc;
}

/* Looks whether layers have energies: all or none. */
static exf_code expect_stream(exf_capture_file *f, exf_err *err)
{
    char path[PATH_LEN];
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && !f->has_stream && i < f->n_layers; i++)
        rc = exf_h5_exists(f->h, stream_tensor(f, f->layer_number[i], path).name, &f->has_stream, err);
    for (int i = 0; rc == EXF_OK && f->has_stream && i < f->n_layers; i++) {
        exf_tensor t = stream_tensor(f, f->layer_number[i], path);
        rc = exf_h5_expect(f->h, &t, err);
    }
    return rc;
}

exf_code exf_capture_commit(exf_capture_file *f, exf_err *err)
{
    exf_h5 *h = f->h;
    f->h = NULL;
    return exf_h5_commit(h, err);
}

void exf_capture_abort(exf_capture_file *f)
{
    exf_h5_close(f->h);
    f->h = NULL;
}

exf_code exf_capture_open(exf_capture_file *f, const char *path, exf_err *err)
{
    exf_code rc;
    memset(f, 0, sizeof *f);
    EXF_TRY(exf_artifact_open(&f->h, path, &exf_artifact_capture, NULL, &f->provenance, err));
    EXF_TRY(exf_run_shape_read(&f->shape, f->h, err));
    EXF_TRY(exf_layer_numbers_read(&f->layer_number, &f->n_layers, &f->provenance, f->h, err));
    EXF_TRY(exf_sequence_list_read(&f->sequences, f->shape.n_sequences, f->shape.n_tokens, f->h, err));
    for (int i = 0; i < f->n_layers; i++)
        for (int k = 0; k < STREAM_SQ; k++) {
            char part[PATH_LEN], have[64], want[64];
            exf_tensor found;
            part_path(part, f->layer_number[i], k);
            exf_tensor t = part_tensor(f, k, part);
            EXF_TRY(exf_h5_describe(f->h, part, &found, err));
            if (found.rank == t.rank && memcmp(found.shape, t.shape, (size_t)t.rank * sizeof *t.shape) == 0) continue;
            rc = exf_fail(err, EXF_FORMAT, "%s: %s is %s, expected %s", path, part,
                          exf_shape_text(have, sizeof have, found.shape, found.rank),
                          exf_shape_text(want, sizeof want, t.shape, t.rank));
            goto out;
        }
    rc = expect_stream(f, err);
out:
    if (rc != EXF_OK) exf_capture_close(f);
    return rc;
}

static exf_code check_row(const exf_capture_file *f, int layer, int64_t row, const int32_t *ids, const float *weights,
                          const float *outputs, exf_err *err)
{
    int64_t k = f->shape.top_k, routes = 0;
    for (int64_t a = 0; a < k; a++) {
        if (ids[a] == -1) {
            int is_empty = weights[a] == 0;
            for (int64_t i = 0; i < f->shape.d_model; i++) is_empty &= outputs[a * f->shape.d_model + i] == 0;
            if (is_empty) continue;
            return exf_fail(err, EXF_FORMAT, "%s: layer %d, row %lld: slot %lld has no expert, but a weight of %g or outputs",
                            exf_h5_path(f->h), layer, (long long)row, (long long)a, (double)weights[a]);
        }
        routes++;
        if (ids[a] < 0 || ids[a] >= f->shape.n_experts)
            return exf_fail(err, EXF_FORMAT, "%s: layer %d, row %lld: expert %d, expected [0, %lld)", exf_h5_path(f->h), layer,
                            (long long)row, (int)ids[a], (long long)f->shape.n_experts);
        for (int64_t b = 0; b < a; b++)
            if (ids[a] == ids[b])
                return exf_fail(err, EXF_FORMAT, "%s: layer %d, row %lld: expert %d stands twice", exf_h5_path(f->h), layer,
                                (long long)row, (int)ids[a]);
        if (!isfinite(weights[a]))
            return exf_fail(err, EXF_FORMAT, "%s: layer %d, row %lld: the weight of expert %d is not finite", exf_h5_path(f->h),
                            layer, (long long)row, (int)ids[a]);
    }
    if (!routes)
        return exf_fail(err, EXF_FORMAT, "%s: layer %d, row %lld: no slot has an expert, expected 1 to %lld of them",
                        exf_h5_path(f->h), layer, (long long)row, (long long)k);
    for (int64_t i = 0; i < k * f->shape.d_model; i++)
        if (!isfinite(outputs[i]))
            return exf_fail(err, EXF_FORMAT, "%s: layer %d, row %lld: an expert output is not finite", exf_h5_path(f->h), layer,
                            (long long)row);
    return EXF_OK;
}

exf_code exf_capture_get(exf_capture_file *f, int layer, int64_t row, int64_t n, int32_t *ids, float *weights, float *outputs,
                         exf_err *err)
{
    void *data[STREAM_SQ] = {ids, weights, outputs};
    int64_t k = f->shape.top_k;
    exf_code rc = EXF_OK;
    for (int part = 0; rc == EXF_OK && part < STREAM_SQ; part++) {
        char path[PATH_LEN];
        part_path(path, layer, part);
        rc = exf_h5_read_rows(f->h, path, parts[part].dtype, row, n, data[part], err);
    }
    for (int64_t i = 0; rc == EXF_OK && i < n; i++)
        rc = check_row(f, layer, row + i, ids + i * k, weights + i * k, outputs + i * k * f->shape.d_model, err);
    return rc;
}

exf_code exf_capture_blame(exf_capture_file *f, int layer, exf_code rc, exf_err *err)
{
    exf_err damage = {.code = EXF_OK};
    for (int k = 0; (rc == EXF_FORMAT || rc == EXF_NUMERIC) && k < exf_capture_parts(f); k++) {
        char path[PATH_LEN];
        part_path(path, layer, k);
        if (exf_h5_verify(f->h, path, &damage) != EXF_FORMAT) continue;
        *err = damage;
        return EXF_FORMAT;
    }
    return rc;
}

void exf_capture_close(exf_capture_file *f)
{
    exf_h5_close(f->h);
    exf_mem_free(f->layer_number);
    exf_provenance_free(&f->provenance);
    exf_sequence_list_free(&f->sequences);
    memset(f, 0, sizeof *f);
}
