/* artifact_fixtures.h - what the tests of artifacts share: damage, sample
 * contents, comparing statistics. */
#ifndef EXF_TESTS_ARTIFACT_FIXTURES_H
#define EXF_TESTS_ARTIFACT_FIXTURES_H
#include "tests/support/scratch_fixtures.h"

#include "artifact/artifact_capture.h"
#include "accumulate/statistics.h"
#include "artifact/tables.h"

#include <hdf5.h> /* to damage files in ways that our own writer cannot */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

/* Starts a file of co-routed pairs whose sequences are unknown. */
static inline exf_code create_statistics(exf_statistics_writer *w, const char *target, int force, const exf_run_shape *shape,
                                         const int32_t *layer_numbers, int n_layers, const exf_provenance *p, exf_err *err)
{
    exf_statistics_header head = {.shape = *shape, .layer_number = layer_numbers, .n_layers = n_layers, .provenance = p};
    return exf_statistics_start(w, target, force, &head, err);
}

/* Makes a dataset's checksum that of the bytes, as whoever made the file would have: to see what is refused besides. */
static inline void checksum_again(hid_t d, const char *bytes, size_t n)
{
    char text[9];
    hid_t attr = H5Aopen(d, "crc32", H5P_DEFAULT), type = H5Aget_type(attr);
    snprintf(text, sizeof text, "%08lx", crc32(0, (const unsigned char *)bytes, (uInt)n));
    ck_assert_int_ge(H5Awrite(attr, type, text), 0);
    H5Tclose(type);
    H5Aclose(attr);
}

/* Element `at` of a dataset becomes *value, which must have the dataset's type. */
static inline void damage(const char *name, const char *dataset, size_t at, const void *value)
{
    exf_err e;
    char *all = NULL;
    hid_t f = H5Fopen(exf_scratch(name), H5F_ACC_RDWR, H5P_DEFAULT), d = H5Dopen2(f, dataset, H5P_DEFAULT);
    hid_t type = H5Dget_type(d), space = H5Dget_space(d);
    size_t width = H5Tget_size(type), n = (size_t)H5Sget_simple_extent_npoints(space);
    ck_assert_msg(d >= 0 && at < n, "%s: no element %zu of %s", name, at, dataset);
    ck_ok(exf_mem_new(&all, n, width, "dataset", &e), e);
    ck_assert_int_ge(H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all), 0);
    memcpy(all + at * width, value, width);
    ck_assert_int_ge(H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all), 0);
    checksum_again(d, all, n * width);
    exf_mem_free(all);
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(d);
    ck_assert_int_ge(H5Fclose(f), 0);
}

/* ---- sample contents ------------------------------------------------------------ */

static inline void add_fact(exf_provenance *p, const char *key, const char *value)
{
    exf_err e;
    ck_ok(exf_provenance_add(p, &e, key, "%s", value), e);
}

/* Facts as a capture has them; `tokens` stands for the data. */
static inline exf_provenance sample_facts(const char *tokens)
{
    exf_provenance p = {0};
    add_fact(&p, "model.family", "qwen3_moe");
    add_fact(&p, "model.weights_digest", "aaaa");
    add_fact(&p, "data.tokens_digest", tokens);
    add_fact(&p, "data.sequences", "2");
    add_fact(&p, "data.tokens", "40");
    add_fact(&p, "capture.layers", "all");
    return p;
}

/* Counts of a run's tokens, of which none has both experts 0 and E - 1; K < E. */
static inline void fill_counts(uint64_t *count, uint64_t *of_expert, const exf_run_shape *run, int seed)
{
    size_t e = (size_t)run->n_experts, k = (size_t)run->top_k;
    uint32_t noise = (uint32_t)seed;
    memset(count, 0, e * e * sizeof *count);
    memset(of_expert, 0, e * sizeof *of_expert);
    for (int64_t t = 0; t < run->n_tokens;) {
        unsigned char has[64] = {0};
        for (size_t n = 0; n < k;) {
            noise = noise * 1664525u + 1013904223u;
            size_t at = (size_t)(noise >> 16) % e;
            n += !has[at];
            has[at] = 1;
        }
        if (has[0] && has[e - 1]) continue;
        for (size_t a = 0; a < e; a++) {
            of_expert[a] += has[a];
            for (size_t b = 0; b < e; b++) count[a * e + b] += has[a] && has[b] && a != b;
        }
        t++;
    }
}

/* Counts of a run, the pair (0, E-1) unobserved; sums of both signs, of which no two are equal. */
static inline void fill_statistics(exf_layer_statistics *s, const exf_run_shape *run, int seed)
{
    int e = s->n_experts;
    double x = seed + 0.1;
    fill_counts(s->count, s->norm_count, run, seed);
    for (int a = 0; a < e; a++) {
#define X(name) exf_exact_add(&s->name[a], x = (x + 1) * (a % 2 ? -1 : 1) / 3 + 7);
        X(norm_sum) X(sq_sum) X(route_weight_sum) X(contribution_sum) X(energy_sum)
#undef X
    }
    for (int i = 0; i < e * e; i++) {
#define X(name) exf_exact_add(&s->name[i], s->count[i] ? x = 1e3 / 7 - x * 0.9 : 0);
        X(dot) X(target_sq) X(source_sq) X(dot0) X(sq0) X(cosine_sum)
#undef X
    }
    exf_exact_add(s->stream_sq, 17.25 + seed);
    *s->stream_count = (uint64_t)(20 + seed);
    exf_exact_add(s->stream_inverse_sq, 30.5 + seed);
    *s->stream_inverse_count = (uint64_t)(20 + seed);
    exf_exact_add(s->stream_first_sq, 3.5 + seed);
    *s->stream_first_count = (uint64_t)(2 + seed);
}

/* Room for `cap` tokens, the first n of which are filled; keys rise by 100, and from 0 to 99 by seed. */
static inline void fill_routes(exf_route_sample *s, size_t cap, size_t n, int top_k, int n_experts, int seed)
{
    exf_err err;
    ck_ok(exf_route_sample_new(s, cap, top_k, &err), err);
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        s->key[i] = 100 * i + (uint64_t)seed % 100;
        for (int a = 0; a < top_k; a++) {
            s->ids[i * (size_t)top_k + (size_t)a] = (int32_t)((i + (size_t)(a + seed)) % (size_t)n_experts);
            s->weights[i * (size_t)top_k + (size_t)a] = 1.0f / (float)(a + seed + 1);
        }
    }
}

static inline int same_routes(const exf_route_sample *a, const exf_route_sample *b)
{
    size_t slots = a->n * (size_t)a->top_k;
    return a->n == b->n && a->top_k == b->top_k && memcmp(a->key, b->key, a->n * sizeof *a->key) == 0 &&
           memcmp(a->ids, b->ids, slots * sizeof *a->ids) == 0 && memcmp(a->weights, b->weights, slots * sizeof *a->weights) == 0;
}

static inline int same_statistics(const exf_layer_statistics *a, const exf_layer_statistics *b)
{
    int same = a->n_experts == b->n_experts;
    for (int i = 0; same && i < EXF_N_LAYER_ARRAYS; i++) {
        const exf_layer_array *row = &exf_layer_arrays[i];
        exf_tensor t = exf_layer_array_tensor(row, a->n_experts, NULL);
        same = memcmp(exf_layer_array_at(row, a), exf_layer_array_at(row, b), exf_tensor_bytes(&t)) == 0;
    }
    return same && (a->routes.n || b->routes.n ? same_routes(&a->routes, &b->routes) : 1);
}
#endif
