/* statistics_routes.c - what statistics hold of each layer <l> beside sums of pairs and experts; since version 4, optional:
 *   /layers/<l>/stream/sq        F64 [1]     squared norms of the residual stream after the layer, summed over tokens
 *   /layers/<l>/stream/exact     U64 [1, 3]  the same sum exactly, as other sums
 *   /layers/<l>/stream/count     U64 [1]     tokens behind it
 *   /layers/<l>/empty_slots      U64 [1]     slots of the layer's tokens without an expert; absent: none
 *   /layers/<l>/routes/key       U64 [N]     rising; the N tokens of the smallest keys (route_sample.h)
 *   /layers/<l>/routes/ids       I32 [N, K]  as the router chose; -1, of weight 0: an empty slot
 *   /layers/<l>/routes/weights   F32 [N, K] */
#include "artifact/statistics.h"

#include <stdio.h>
#include <string.h>

enum { PATH_LEN = 96, MOST_TOKENS = 1 << 24 };

typedef struct {
    char path[PATH_LEN];
    exf_tensor t;
} dataset;

static dataset dataset_of(int layer, const char *name, exf_dtype dtype, int64_t rows, int64_t columns, const void *data)
{
    dataset d = {.t = {.dtype = dtype, .rank = columns ? 2 : 1, .shape = {rows, columns}, .data = data}};
    snprintf(d.path, sizeof d.path, "/layers/%d/%s", layer, name);
    return d;
}

static exf_code write_one(exf_h5 *h, dataset d, exf_err *err)
{
    d.t.name = d.path;
    return exf_h5_write(h, &d.t, err);
}

static exf_code read_one(exf_h5 *h, dataset d, void *to, exf_err *err)
{
    d.t.name = d.path;
    return exf_h5_read(h, &d.t, to, err);
}

exf_code exf_statistics_put_routes(exf_statistics_writer *w, int layer, const exf_layer_statistics *s, exf_err *err)
{
    const exf_route_sample *r = &s->routes;
    int64_t n = (int64_t)r->n;
    double rounded = exf_exact_value(s->stream_sq);
    exf_code rc = EXF_OK;
    if (*s->stream_count) {
        EXF_TRY(write_one(w->h, dataset_of(layer, "stream/sq", EXF_DT_F64, 1, 0, &rounded), err));
        EXF_TRY(write_one(w->h, dataset_of(layer, "stream/exact", EXF_DT_U64, 1, 3, s->stream_sq), err));
        EXF_TRY(write_one(w->h, dataset_of(layer, "stream/count", EXF_DT_U64, 1, 0, s->stream_count), err));
    }
    if (*s->empty_slots) EXF_TRY(write_one(w->h, dataset_of(layer, "empty_slots", EXF_DT_U64, 1, 0, s->empty_slots), err));
    if (n) {
        EXF_TRY(write_one(w->h, dataset_of(layer, "routes/key", EXF_DT_U64, n, 0, r->key), err));
        EXF_TRY(write_one(w->h, dataset_of(layer, "routes/ids", EXF_DT_I32, n, r->top_k, r->ids), err));
        EXF_TRY(write_one(w->h, dataset_of(layer, "routes/weights", EXF_DT_F32, n, r->top_k, r->weights), err));
    }
out:
    return rc;
}

/* ---- reading -------------------------------------------------------------- */

typedef struct {
    int stream, routes, empty_slots;
} contents;

static exf_code look(void *self, const char *name, exf_err *err)
{
    contents *c = self;
    (void)err;
    c->stream |= strcmp(name, "stream") == 0;
    c->routes |= strcmp(name, "routes") == 0;
    c->empty_slots |= strcmp(name, "empty_slots") == 0;
    return EXF_OK;
}

static exf_code get_stream(exf_statistics_reader *r, int layer, exf_layer_statistics *s, exf_err *err)
{
    double rounded;
    exf_code rc;
    EXF_TRY(read_one(r->h, dataset_of(layer, "stream/sq", EXF_DT_F64, 1, 0, NULL), &rounded, err));
    EXF_TRY(read_one(r->h, dataset_of(layer, "stream/exact", EXF_DT_U64, 1, 3, NULL), s->stream_sq, err));
    EXF_TRY(read_one(r->h, dataset_of(layer, "stream/count", EXF_DT_U64, 1, 0, NULL), s->stream_count, err));
    if (!(rounded == exf_exact_value(s->stream_sq)))
        rc = exf_fail(err, EXF_FORMAT, "%s: /layers/%d/stream/sq is %.17g, its exact sum is %.17g", exf_h5_path(r->h), layer,
                      rounded, exf_exact_value(s->stream_sq));
    else if (!(rounded > 0) || *s->stream_count < 1 || *s->stream_count > (uint64_t)r->shape.n_tokens)
        rc = exf_fail(err, EXF_FORMAT,
                      "%s: /layers/%d/stream has an energy of %.17g over %llu tokens, expected one above 0 over 1 to %lld",
                      exf_h5_path(r->h), layer, rounded, (unsigned long long)*s->stream_count, (long long)r->shape.n_tokens);
out:
    return rc;
}

static exf_code get_sample(exf_statistics_reader *r, int layer, exf_layer_statistics *s, exf_err *err)
{
    dataset key = dataset_of(layer, "routes/key", EXF_DT_U64, 1, 0, NULL);
    char where[2 * PATH_LEN];
    exf_tensor found;
    exf_code rc;
    EXF_TRY(exf_h5_describe(r->h, key.path, &found, err));
    int64_t n = found.shape[0], k = r->shape.top_k;
    if (found.rank != 1 || n < 1 || n > r->shape.n_tokens || n > MOST_TOKENS) {
        rc = exf_fail(err, EXF_FORMAT, "%s: %s has %lld keys, expected 1 to the run's %lld tokens", exf_h5_path(r->h), key.path,
                      (long long)n, (long long)r->shape.n_tokens);
        goto out;
    }
    key.t.shape[0] = n;
    key.t.name = key.path;
    EXF_TRY(exf_h5_expect(r->h, &key.t, err));
    if (s->routes.cap < (size_t)n || s->routes.top_k != (int)k) {
        exf_route_sample_free(&s->routes);
        EXF_TRY(exf_route_sample_new(&s->routes, (size_t)n, (int)k, err));
    }
    s->routes.n = (size_t)n;
    EXF_TRY(read_one(r->h, key, s->routes.key, err));
    EXF_TRY(read_one(r->h, dataset_of(layer, "routes/ids", EXF_DT_I32, n, k, NULL), s->routes.ids, err));
    EXF_TRY(read_one(r->h, dataset_of(layer, "routes/weights", EXF_DT_F32, n, k, NULL), s->routes.weights, err));
    snprintf(where, sizeof where, "%.90s: /layers/%d/routes", exf_h5_path(r->h), layer);
    rc = exf_route_sample_check(&s->routes, (int)r->shape.n_experts, where, err);
out:
    return rc;
}

exf_code exf_statistics_get_routes(exf_statistics_reader *r, int i, exf_layer_statistics *s, exf_err *err)
{
    char group[PATH_LEN];
    contents listed = {0, 0, 0};
    int layer = r->layer_number[i];
    exf_code rc;
    memset(s->stream_sq, 0, sizeof *s->stream_sq);
    *s->stream_count = *s->empty_slots = 0;
    s->routes.n = 0;
    snprintf(group, sizeof group, "/layers/%d", layer);
    EXF_TRY(exf_h5_members(r->h, group, look, &listed, err));
    if (listed.empty_slots)
        EXF_TRY(read_one(r->h, dataset_of(layer, "empty_slots", EXF_DT_U64, 1, 0, NULL), s->empty_slots, err));
    if (listed.stream) EXF_TRY(get_stream(r, layer, s, err));
    if (listed.routes) EXF_TRY(get_sample(r, layer, s, err));
out:
    return rc;
}
