/* check_cuda_vectors.c - what vectors are solved from, on the GPU: sums of real numbers near plain ones, the same bits wherever
 * calls are cut; samples against the host, and the basis of their residuals.  Shapes: check_cuda_vectors_shapes.c. */
#include "accumulate/accumulate_internal.h"
#include "accumulate/vectors.h"
#include "kernels/linear/linear.h"
#include "tests/support/sequence_fixtures.h"
#include "tests/support/basis_fixtures.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

static exf_err e;

static const struct { int n, e, k, h, rank; } shapes[] = {
    {1, 2, 2, 4, 2}, {40, 6, 3, 10, 8}, {257, 60, 4, 1408, 32}, {65, 32, 10, 72, 9}, {33, 40, 17, 264, 24}, {129, 12, 6, 333, 31}};

/* Numbers that bfloat16 holds. */
static void round_all(const routed *r)
{
    for (int i = 0; i < r->n * r->top_k * r->d_model; i++) r->outputs[i] = of_bf16(to_bf16(r->outputs[i]));
}

static uint16_t *halves_of(const float *x, size_t n)
{
    uint16_t *half = test_memory(n, 2);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(x[i]);
    return half;
}

/* Outputs, ids and weights of r on the device. */
typedef struct {
    void *outputs;
    int32_t *ids;
    float *weights;
    int rounded;
} tokens_device;

static tokens_device send(const routed *r, int rounded)
{
    size_t slots = (size_t)(r->n * r->top_k), n = slots * (size_t)r->d_model;
    uint16_t *half = halves_of(r->outputs, n);
    tokens_device t = {rounded ? device_put(&d, half, n * 2) : device_put(&d, r->outputs, n * 4), device_put(&d, r->ids, slots * 4),
                      device_put(&d, r->weights, slots * 4), rounded};
    exf_mem_free(half);
    return t;
}

static void tokens_free(const tokens_device *t)
{
    d.b->free(t->outputs);
    d.b->free(t->ids);
    d.b->free(t->weights);
}

/* Every step-th pair of e experts, about 60; a basis of `rank` orthonormal columns, or of 0, 1 and -1 (whole); grids of 0. */
static exf_vector_sums some_pairs(int n_experts, int d_model, int rank, int whole)
{
    exf_vector_sums v;
    int64_t all = (int64_t)n_experts * (n_experts - 1), step = 1 + all / 60, n = (all + step - 1) / step;
    ck_ok(exf_vector_sums_new_choice(&v, n, d_model, rank, &e), e);
    for (int64_t i = 0; i < n; i++) {
        int s = (int)(i * step / (n_experts - 1)), t = (int)(i * step % (n_experts - 1));
        v.pair[2 * i] = s;
        v.pair[2 * i + 1] = t + (t >= s);
    }
    for (int i = 0; i < d_model * rank; i++)
        v.basis[i] = whole ? draw(51, i, 3) - 1 : (double)real_at(52, (size_t)i, 1);
    if (rank && !whole) ck_ok(exf_linalg_orthonormalize(v.basis, d_model, rank, &e), e);
    return v;
}

/* ---- sums ----------------------------------------------------------------------------- */

/* A batch of sequences of these lengths, which add up to the tokens. */
static exf_batch batch_of(exf_span *span, const int32_t *length, size_t n)
{
    exf_batch b = {.span = span, .n_sequences = n};
    for (size_t i = 0; i < n; i++) {
        span[i] = (exf_span){b.n_tokens, length[i]};
        b.n_tokens += (size_t)length[i];
    }
    return b;
}

static void *copy_of(const void *from, size_t n, size_t size)
{
    void *to = test_memory(n, size);
    memcpy(to, from, n * size);
    return to;
}

/* Copies sums out of the device's staging memory. */
static void keep_sums(exf_vector_sums *v)
{
    size_t p = (size_t)v->n_pairs, h = (size_t)v->d_model, r = (size_t)v->rank;
    v->borrowed = 0;
    v->vu = copy_of(v->vu, p * h, sizeof *v->vu);
    v->vv = copy_of(v->vv, p * h, sizeof *v->vv);
    if (!r) return;
    v->zz = copy_of(v->zz, p * r * r, sizeof *v->zz);
    v->zu = copy_of(v->zu, p * r * h, sizeof *v->zu);
    v->zv = copy_of(v->zv, p * r * h, sizeof *v->zv);
}

/* Adds up v's pairs, in blocks of `piece` tokens. */
static exf_code add_up(exf_vector_sums *v, const routed *r, const exf_batch *batch, exf_weighting w, int rounded, int piece,
                       exf_err *err)
{
    exf_device_vectors s = {.b = NULL};
    tokens_device t = send(r, rounded);
    exf_code rc;
    EXF_TRY(exf_device_vectors_open(&s, d.b, (size_t)v->n_pairs + 3, r->top_k, r->d_model, 1, v->rank, w, NULL, err));
    for (int twice = 0; twice < 2; twice++) { /* a layer leaves nothing to the next */
        exf_device_vectors_begin(&s, v, 0);
        for (int at = 0; at < r->n; at += piece) {
            size_t slot = (size_t)(at * r->top_k);
            exf_moe_block b = {.batch = batch, .row = (size_t)at, .n_tokens = r->n - at < piece ? r->n - at : piece,
                                  .n_experts = r->n_experts, .top_k = r->top_k, .d_model = r->d_model, .q = d.q,
                                  .rounded = rounded, .topk_ids = t.ids + slot, .topk_weights = t.weights + slot,
                                  .expert_outputs = (char *)t.outputs + slot * (size_t)r->d_model * (rounded ? 2 : 4)};
            exf_device_vectors_add(&s, &b);
        }
        EXF_TRY(exf_device_vectors_take(&s, v, err));
    }
    keep_sums(v);
out:
    exf_device_vectors_free(&s);
    tokens_free(&t);
    return rc;
}

/* Diagonal sums of some pairs. */
static exf_code on_gpu(exf_vector_sums *v, const routed *r, const exf_batch *batch, exf_weighting w, int rounded, int piece,
                       exf_err *err)
{
    *v = some_pairs(r->n_experts, r->d_model, 0, 0);
    return add_up(v, r, batch, w, rounded, piece, err);
}

static double weight_of(const float *u, int h, exf_weighting w, float route)
{
    double sq = 0;
    for (int i = 0; i < h; i++) sq += (double)u[i] * (double)u[i];
    return w == EXF_WEIGHT_NONE ? 1 : w == EXF_WEIGHT_ROUTER ? (double)route : sqrt(sq);
}

/* Sums and sums of magnitudes of one pair, plainly. */
static void plain(double *vu, double *vv, double *size, const routed *r, exf_weighting w, int source, int target)
{
    int k = r->top_k, h = r->d_model;
    for (int i = 0; i < h; i++) vu[i] = vv[i] = size[i] = 0;
    for (int t = 0; t < r->n; t++)
        for (int a = 0; a < k; a++)
            for (int b = 0; b < k; b++) {
                if (r->ids[t * k + a] != source || r->ids[t * k + b] != target) continue;
                const float *u = r->outputs + (size_t)(t * k + a) * (size_t)h, *v = r->outputs + (size_t)(t * k + b) * (size_t)h;
                double x = weight_of(u, h, w, r->weights[t * k + a]);
                for (int i = 0; i < h; i++) {
                    vu[i] += x * (double)v[i] * (double)u[i];
                    vv[i] += x * (double)v[i] * (double)v[i];
                    size[i] += x * fabs((double)v[i]) * (fabs((double)u[i]) + fabs((double)v[i]));
                }
            }
}

/* bound 0: equal bits, the plain sums being exact. */
static void compare_plain(const exf_vector_sums *v, const routed *r, exf_weighting w, double bound)
{
    size_t h = (size_t)r->d_model;
    double *vu = test_memory(3 * h, sizeof *vu), *vv = vu + h, *size = vv + h;
    for (int64_t p = 0; p < v->n_pairs; p++) {
        plain(vu, vv, size, r, w, v->pair[2 * p], v->pair[2 * p + 1]);
        for (size_t i = 0; i < h; i++) {
            double x = exf_exact_value(&v->vu[(size_t)p * h + i]), y = exf_exact_value(&v->vv[(size_t)p * h + i]),
                   allowed = bound * (size[i] + 1e-15); /* the grid ends at 2^-96 */
            if (!(fabs(x - vu[i]) <= allowed)) ck_abort_msg("vu[%d, %zu]: %.17g, expected %.17g", (int)p, i, x, vu[i]);
            if (!(fabs(y - vv[i]) <= allowed)) ck_abort_msg("vv[%d, %zu]: %.17g, expected %.17g", (int)p, i, y, vv[i]);
        }
    }
    exf_mem_free(vu);
}

START_TEST(diagonal_sums_of_reals_are_near)
{
    routed r = routed_reals(shapes[_i].n, shapes[_i].e, shapes[_i].k, shapes[_i].h, 32);
    exf_span span;
    exf_batch batch = batch_of(&span, (int32_t[]){r.n}, 1);
    round_all(&r);
    for (int w = 0; w < 3; w++) {
        exf_vector_sums v;
        ck_ok(on_gpu(&v, &r, &batch, (exf_weighting)w, w % 2, r.n, &e), e);
        compare_plain(&v, &r, (exf_weighting)w, 1e-12);
        exf_vector_sums_free(&v);
    }
    routed_free(&r);
}
END_TEST

/* Sequences of 30, 7, 1241 and 22 tokens: units begin and end inside of blocks, and blocks inside of units. */
START_TEST(cuts_change_no_bit)
{
    static const int pieces[] = {1, 97, 333, 1024};
    routed r = seq_tokens();
    exf_span span[SEQ_N];
    exf_batch batch = batch_of(span, seq_length, SEQ_N);
    exf_vector_sums whole, cut;
    ck_ok(on_gpu(&whole, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, r.n, &e), e);
    ck_ok(on_gpu(&cut, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, pieces[_i / 2], &e), e);
    size_t bytes = (size_t)whole.n_pairs * SEQ_H * sizeof *whole.vu;
    ck_assert_mem_eq(whole.vu, cut.vu, bytes);
    ck_assert_mem_eq(whole.vv, cut.vv, bytes);
    exf_vector_sums_free(&whole);
    exf_vector_sums_free(&cut);
}
END_TEST

/* ---- low-rank sums --------------------------------------------------------------------- */

/* One pair's sums and sums of magnitudes, plainly: [R, H + R], of z'u and z'v with z'z as further columns. */
typedef struct {
    double *zu, *zv, *size_u, *size_v, *z;
} plain_sums;

static plain_sums plain_sums_new(size_t rank, size_t h)
{
    size_t n = rank * (h + rank);
    double *all = test_memory(4 * n + rank, sizeof *all);
    return (plain_sums){all, all + n, all + 2 * n, all + 3 * n, all + 4 * n};
}

static void add_plain(const plain_sums *o, const exf_vector_sums *s, const float *u, const float *v, double w)
{
    size_t h = (size_t)s->d_model, rank = (size_t)s->rank, width = h + rank;
    for (size_t a = 0; a < rank; a++) {
        o->z[a] = 0;
        for (size_t i = 0; i < h; i++) o->z[a] += (double)v[i] * s->basis[i * rank + a];
    }
    for (size_t a = 0; a < rank; a++)
        for (size_t i = 0; i < width; i++) {
            double x = i < h ? (double)u[i] : 0, y = i < h ? (double)v[i] : o->z[i - h];
            o->zu[a * width + i] += w * o->z[a] * x;
            o->zv[a * width + i] += w * o->z[a] * y;
            o->size_u[a * width + i] += w * fabs(o->z[a] * x);
            o->size_v[a * width + i] += w * fabs(o->z[a] * y);
        }
}

/* Adds up the pair's tokens and returns how many there are; energy gets source_sq and target_sq. */
static int plain_pair(const plain_sums *o, double energy[2], const exf_vector_sums *s, int64_t p, const routed *r, exf_weighting w)
{
    int k = r->top_k, h = r->d_model, n = 0;
    memset(o->zu, 0, 4 * (size_t)(s->rank * (h + s->rank)) * sizeof *o->zu);
    energy[0] = energy[1] = 0;
    for (int t = 0; t < r->n; t++)
        for (int a = 0; a < k; a++)
            for (int b = 0; b < k; b++) {
                if (r->ids[t * k + a] != s->pair[2 * p] || r->ids[t * k + b] != s->pair[2 * p + 1]) continue;
                const float *u = r->outputs + (size_t)(t * k + a) * (size_t)h, *v = r->outputs + (size_t)(t * k + b) * (size_t)h;
                double x = weight_of(u, h, w, r->weights[t * k + a]), of_u = weight_of(u, h, EXF_WEIGHT_SOURCE_NORM, 0),
                       of_v = weight_of(v, h, EXF_WEIGHT_SOURCE_NORM, 0);
                energy[0] += x * of_u * of_u;
                energy[1] += x * of_v * of_v;
                add_plain(o, s, u, v, x);
                n++;
            }
    return n;
}

static void choose_grids(const exf_vector_sums *s, const routed *r, exf_weighting w)
{
    plain_sums o = plain_sums_new((size_t)s->rank, (size_t)s->d_model);
    double energy[2];
    for (int64_t p = 0; p < s->n_pairs; p++) {
        (void)plain_pair(&o, energy, s, p, r, w);
        exf_grid_for_pair(s->grid + EXF_N_GRIDS * p, energy[0], energy[1]);
    }
    exf_mem_free(o.zu);
}

/* Compares one number with the plain one: within bound of its terms' magnitudes and half a unit a token. */
static void ck_near(int64_t sum, int grid, double plain, double size, double bound, int tokens, const char *name, int64_t p,
                    size_t at)
{
    double x = ldexp((double)sum, grid), allowed = bound * size + (bound > 0 ? ldexp(0.5 * tokens, grid) : 0);
    if (!(fabs(x - plain) <= allowed))
        ck_abort_msg("%s[%d, %zu]: %.17g, expected %.17g within %g", name, (int)p, at, x, plain, allowed);
}

/* bound 0: equal, the plain sums being exact. */
static void compare_lowrank(const exf_vector_sums *s, const routed *r, exf_weighting w, double bound)
{
    size_t h = (size_t)s->d_model, rank = (size_t)s->rank, width = h + rank;
    plain_sums o = plain_sums_new(rank, h);
    double energy[2];
    for (int64_t p = 0; p < s->n_pairs; p++) {
        int n = plain_pair(&o, energy, s, p, r, w), in_u = s->grid[2 * p], in_v = s->grid[2 * p + 1];
        for (size_t a = 0; a < rank; a++)
            for (size_t i = 0; i < width; i++) {
                size_t c = a * width + i, row = (size_t)p * rank + a;
                if (i >= h) {
                    ck_near(s->zz[row * rank + i - h], in_v, o.zv[c], o.size_v[c], bound, n, "zz", p, c);
                    continue;
                }
                ck_near(s->zu[row * h + i], in_u, o.zu[c], o.size_u[c], bound, n, "zu", p, c);
                ck_near(s->zv[row * h + i], in_v, o.zv[c], o.size_v[c], bound, n, "zv", p, c);
            }
    }
    exf_mem_free(o.zu);
}

START_TEST(lowrank_sums_of_reals_are_near)
{
    routed r = routed_reals(shapes[_i].n, shapes[_i].e, shapes[_i].k, shapes[_i].h, 35);
    exf_span span;
    exf_batch batch = batch_of(&span, (int32_t[]){r.n}, 1);
    round_all(&r);
    for (int w = 0; w < 3; w++) {
        exf_vector_sums v = some_pairs(r.n_experts, r.d_model, shapes[_i].rank, 0);
        choose_grids(&v, &r, (exf_weighting)w);
        ck_ok(add_up(&v, &r, &batch, (exf_weighting)w, w % 2, r.n, &e), e);
        compare_lowrank(&v, &r, (exf_weighting)w, 1e-7); /* z may be far below the terms that it is the sum of */
        exf_vector_sums_free(&v);
    }
    routed_free(&r);
}
END_TEST

START_TEST(cuts_change_no_bit_of_lowrank_sums)
{
    static const int pieces[] = {1, 97, 333, 1024};
    routed r = seq_tokens();
    exf_span span[SEQ_N];
    exf_batch batch = batch_of(span, seq_length, SEQ_N);
    exf_vector_sums whole = some_pairs(SEQ_E, SEQ_H, SEQ_H, 0), cut = some_pairs(SEQ_E, SEQ_H, SEQ_H, 0);
    size_t rows = (size_t)whole.n_pairs * SEQ_H;
    choose_grids(&whole, &r, EXF_WEIGHT_SOURCE_NORM);
    choose_grids(&cut, &r, EXF_WEIGHT_SOURCE_NORM);
    ck_ok(add_up(&whole, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, r.n, &e), e);
    ck_ok(add_up(&cut, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, pieces[_i / 2], &e), e);
    ck_assert_mem_eq(whole.zz, cut.zz, rows * SEQ_H * sizeof *whole.zz);
    ck_assert_mem_eq(whole.zu, cut.zu, rows * SEQ_H * sizeof *whole.zu);
    ck_assert_mem_eq(whole.zv, cut.zv, rows * SEQ_H * sizeof *whole.zv);
    exf_vector_sums_free(&whole);
    exf_vector_sums_free(&cut);
}
END_TEST

/* A slot without an expert counts for nothing, whatever lies in its outputs. */
START_TEST(empty_slots_add_nothing)
{
    routed r = routed_integers(200, 16, 4, 40, 36);
    exf_span span;
    exf_batch batch = batch_of(&span, (int32_t[]){r.n}, 1);
    exf_vector_sums v = some_pairs(r.n_experts, r.d_model, 16, 1);
    routed_with_empty_slots(&r);
    ck_ok(add_up(&v, &r, &batch, EXF_WEIGHT_NONE, _i, r.n, &e), e);
    compare_lowrank(&v, &r, EXF_WEIGHT_NONE, 0);
    exf_vector_sums_free(&v);
    routed_free(&r);
}
END_TEST

START_TEST(a_weight_without_a_root_is_refused)
{
    routed r = routed_reals(40, 6, 3, 10, 37);
    exf_span span[2];
    exf_batch batch = batch_of(span, (int32_t[]){25, 15}, 2);
    exf_vector_sums v = some_pairs(6, 10, 3, 0);
    choose_grids(&v, &r, EXF_WEIGHT_ROUTER);
    r.weights[38 * 3] = -0.75f;
    r.weights[27 * 3 + 1] = -0.25f;
    exf_device_vectors s = {.b = NULL};
    tokens_device t = send(&r, 0);
    ck_ok(exf_device_vectors_open(&s, d.b, (size_t)v.n_pairs, 3, 10, 0, 3, EXF_WEIGHT_ROUTER, NULL, &e), e);
    exf_device_vectors_begin(&s, &v, 0);
    exf_moe_block b = {.batch = &batch, .n_tokens = 40, .n_experts = 6, .top_k = 3, .d_model = 10, .q = d.q, .topk_ids = t.ids,
                          .topk_weights = t.weights, .expert_outputs = t.outputs};
    exf_device_vectors_add(&s, &b);
    ck_fails(exf_device_vectors_take(&s, &v, &e), EXF_NUMERIC, e, "1 0 2 -0.25");
    exf_device_vectors_free(&s);
    tokens_free(&t);
    exf_vector_sums_free(&v);
    routed_free(&r);
}
END_TEST

START_TEST(a_sum_out_of_range_is_refused)
{
    routed r = routed_reals(40, 6, 3, 10, 33);
    exf_span span[2];
    exf_batch batch = batch_of(span, (int32_t[]){25, 15}, 2);
    exf_vector_sums v;
    r.outputs[(27 * 3 + 1) * 10 + 3] = _i ? 1e30f : NAN;
    ck_fails(on_gpu(&v, &r, &batch, EXF_WEIGHT_SOURCE_NORM, 0, 40, &e), EXF_NUMERIC, e, "1 0");
    int source = -1, target = -1;
    ck_assert_int_eq(sscanf(strstr(e.msg, "pair "), "pair %d -> %d: a vector sum of ", &source, &target), 2);
    ck_assert(source == r.ids[27 * 3 + 1] || target == r.ids[27 * 3 + 1]);
    exf_vector_sums_free(&v);
    routed_free(&r);
}
END_TEST

/* ---- samples ---------------------------------------------------------------------------- */

/* The basis of residuals, against the host's of the same rows; scalar NaN: the sample is left out. */
static void check_basis(exf_device_samples *s, const exf_sampler *host)
{
    enum { R = 3 };
    double *scalar = test_memory(host->n, sizeof *scalar), *again = test_memory(host->n, sizeof *again);
    double found[SEQ_H * R], again_found[SEQ_H * R], expected[SEQ_H * R];
    float *x = test_memory(host->n * SEQ_H, sizeof *x);
    size_t n = 0;
    for (size_t i = 0; i < host->n; i++) {
        scalar[i] = again[i] = i % 7 == 3 ? NAN : (double)real_at(61, i, 1);
        if (isnan(scalar[i])) continue;
        for (size_t k = 0; k < SEQ_H; k++)
            x[n * SEQ_H + k] = (float)((double)host->source[i * SEQ_H + k] - scalar[i] * (double)host->target[i * SEQ_H + k]);
        n++;
    }
    ck_ok(exf_basis_find(expected, R, x, n, SEQ_H, 1, 1, 2, 1, &e), e);
    ck_ok(exf_device_samples_basis(s, found, host, scalar, &e), e);
    ck_assert_msg(fabs(energy_in(found, x, n, SEQ_H, R) / energy_in(expected, x, n, SEQ_H, R) - 1) < 1e-4, "energy %g, expected %g",
                  energy_in(found, x, n, SEQ_H, R), energy_in(expected, x, n, SEQ_H, R));
    ck_ok(exf_device_samples_basis(s, again_found, host, again, &e), e);
    ck_assert_mem_eq(found, again_found, sizeof found);
    exf_mem_free(scalar);
    exf_mem_free(again);
    exf_mem_free(x);
}

/* Compares rows in device memory, by rising row, with the host's by rising key. */
static void check_rows(const void *rows, int rounded, const float *expected, const exf_sampler *host)
{
    size_t n = host->n * SEQ_H, bytes = n * (rounded ? 2 : 4);
    char *got = test_memory(bytes, 1);
    ck_ok(d.b->download(d.q, got, rows, bytes, &e), e);
    for (size_t at = 0; at < n; at++) {
        float x = rounded ? of_bf16(((const uint16_t *)(const void *)got)[at]) : ((const float *)(const void *)got)[at];
        ck_assert_float_eq(x, expected[host->keys.by_row[at / SEQ_H] * SEQ_H + at % SEQ_H]);
    }
    exf_mem_free(got);
}

/* More of them than one product adds up, blocks that have none. */
START_TEST(samples_are_the_hosts)
{
    routed r = seq_tokens();
    int rounded = _i % 2, piece = _i < 2 ? 1300 : 17, wanted = _i < 4 ? 3900 : 40;
    exf_sequence_list list = seq_list(0, SEQ_N);
    exf_sampler on_host, on_device;
    exf_device_samples s;
    size_t n = (size_t)(r.n * r.top_k * r.d_model);
    tokens_device t = send(&r, rounded);
    float *seen = test_memory(n, sizeof *seen);
    for (size_t i = 0; i < n; i++) seen[i] = rounded ? of_bf16(to_bf16(r.outputs[i])) : r.outputs[i];
    ck_ok(exf_sampler_new(&on_host, (size_t)wanted, SEQ_H, &e), e);
    ck_ok(exf_sampler_new(&on_device, (size_t)wanted, SEQ_H, &e), e);
    ck_ok(exf_sampler_choose(&on_host, &list, SEQ_K, 2, -1, 9, &e), e);
    ck_ok(exf_sampler_choose(&on_device, &list, SEQ_K, 2, -1, 9, &e), e);
    ck_ok(exf_device_samples_open(&s, NULL, d.b, (size_t)wanted, SEQ_H, 3, 9, &e), e);
    exf_device_samples_begin(&s);
    for (int at = 0; at < r.n; at += piece) {
        size_t slot = (size_t)(at * r.top_k);
        int count = r.n - at < piece ? r.n - at : piece;
        exf_moe_block b = {.row = (size_t)at, .n_tokens = count, .top_k = r.top_k, .d_model = r.d_model, .topk_ids = r.ids + slot,
                           .expert_outputs = seen + slot * SEQ_H};
        exf_moe_block c = {.row = (size_t)at, .n_tokens = count, .top_k = r.top_k, .d_model = r.d_model, .q = d.q,
                              .rounded = rounded,
                              .topk_ids = t.ids + slot, .expert_outputs = (char *)t.outputs + slot * SEQ_H * (rounded ? 2 : 4)};
        exf_sampler_keep(&on_host, &b);
        exf_device_samples_keep(&s, &on_device, &c);
    }
    ck_ok(exf_device_samples_gather(&s, &on_device, &e), e);
    ck_assert_uint_eq(on_host.n, (size_t)wanted);
    check_rows(s.source, rounded, on_host.source, &on_host);
    check_rows(s.target, rounded, on_host.target, &on_host);
    ck_assert_mem_eq(on_host.pair, on_device.pair, on_host.n * 2 * sizeof *on_host.pair);
    check_basis(&s, &on_host);
    exf_device_samples_free(&s);
    exf_sampler_free(&on_host);
    exf_sampler_free(&on_device);
    exf_mem_free(seen);
    tokens_free(&t);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_vectors");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, diagonal_sums_of_reals_are_near, 0, COUNT(shapes));
    tcase_add_loop_test(t, cuts_change_no_bit, 0, 8);
    tcase_add_loop_test(t, lowrank_sums_of_reals_are_near, 0, COUNT(shapes));
    tcase_add_loop_test(t, cuts_change_no_bit_of_lowrank_sums, 0, 8);
    tcase_add_loop_test(t, empty_slots_add_nothing, 0, 2);
    tcase_add_test(t, a_weight_without_a_root_is_refused);
    tcase_add_loop_test(t, a_sum_out_of_range_is_refused, 0, 2);
    tcase_add_loop_test(t, samples_are_the_hosts, 0, 6);
    suite_add_tcase(s, t);
    return s;
}
