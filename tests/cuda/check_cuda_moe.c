/* check_cuda_moe.c - the MoE block's sums and reused outputs on the GPU, bit for bit the
 * CPU's, at shapes made from the kernels' constants, and the sums of output errors beside
 * exact ones on the host. */
#include "tests/support/pairwise.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

#include <stdio.h>

/* ---- arrays at any address ------------------------------------------------------------ */

enum { GUARD = 64 }; /* bytes on both sides that no kernel may write */

/* An array on the GPU that begins `offset` bytes after a whole line of memory, and its copy on the host. */
typedef struct {
    char *base, *host;
    size_t bytes, offset;
} placed;

static placed put(const void *host, size_t bytes, size_t offset)
{
    placed a = {.bytes = bytes, .offset = GUARD + offset};
    size_t all = bytes + a.offset + GUARD;
    a.host = test_memory(all, 1);
    memset(a.host, 0xff, all);
    memcpy(a.host + a.offset, host, bytes);
    a.base = device_put(&d, a.host, all);
    return a;
}

static void *there(const placed *a)
{
    return a->base + a->offset;
}

static void *here(const placed *a)
{
    return a->host + a->offset;
}

static void reset(const placed *a, const void *host)
{
    exf_err err;
    memcpy(a->host + a->offset, host, a->bytes);
    d.b->upload(d.q, there(a), host, a->bytes);
    ck_ok(d.b->finish(d.q, &err), err);
}

/* The GPU's bytes are the host's, those around the array included. */
static int same(const placed *a)
{
    size_t all = a->bytes + a->offset + GUARD;
    char *got = device_get(&d, a->base, all);
    int equal = memcmp(got, a->host, all) == 0;
    exf_mem_free(got);
    return equal;
}

static void drop(placed *a)
{
    d.b->free(a->base);
    exf_mem_free(a->host);
}

static float *reals(size_t n, uint64_t seed, float scale)
{
    float *x = test_memory(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = real_at(seed, i, scale);
    return x;
}

/* Numbers as a source has them on the GPU, and the same as float32 for the CPU. */
typedef struct {
    placed device;
    float *wide;
    exf_number number;
} source;

static source make_source(size_t n, uint64_t seed, exf_number number, int shifted)
{
    source s = {.wide = reals(n, seed, 2), .number = number};
    uint16_t *half = test_memory(n, sizeof *half);
    for (size_t i = 0; i < n && number == EXF_NUMBER_BF16; i++) {
        half[i] = to_bf16(s.wide[i]);
        s.wide[i] = of_bf16(half[i]);
    }
    size_t each = exf_number_bytes(number);
    s.device = put(number == EXF_NUMBER_BF16 ? (const void *)half : s.wide, n * each, shifted ? each : 0);
    exf_mem_free(half);
    return s;
}

static exf_matrix matrix_there(const source *s)
{
    return (exf_matrix){there(&s->device), s->number};
}

static void drop_source(source *s)
{
    drop(&s->device);
    exf_mem_free(s->wide);
}

/* ---- moe_sum -------------------------------------------------------------------------------- */

enum { START = 1, START_IS_ROUTED = 2, OUTPUTS = 4, WEIGHTS = 8, SHARED = 16, SHARED_WEIGHTS = 32, ROUTED = 64, BLOCK = 128,
      HIDDEN = 256, SOME = 512, COMBINATIONS = 1024 };

/* Sources and results of one shape. */
typedef struct {
    int n_tokens, top_k, width;
    source outputs, shared;
    placed start, weights, ids, shared_weights, result[3]; /* routed, block, hidden */
    float *before[3];
} sum_case;

static sum_case make_sums(int n_tokens, int top_k, int width, exf_number number, int shifted)
{
    sum_case m = {.n_tokens = n_tokens, .top_k = top_k, .width = width};
    size_t t = (size_t)n_tokens, n = t * (size_t)width, k = (size_t)top_k, shift = shifted ? 4 : 0;
    float *start = reals(n, 1, 3), *weights = reals(t * k, 2, 1), *shared_weights = reals(t, 3, 1);
    m.outputs = make_source(n * k, 4, number, shifted);
    m.shared = make_source(n, 5, number, shifted);
    m.start = put(start, n * 4, shift);
    m.weights = put(weights, t * k * 4, 0);
    int32_t *ids = test_memory(t * k, sizeof *ids);
    for (size_t i = 0; i < t * k; i++) ids[i] = i % 3 ? (int32_t)i : -1;
    m.ids = put(ids, t * k * 4, 0);
    exf_mem_free(ids);
    m.shared_weights = put(shared_weights, t * 4, 0);
    for (int i = 0; i < 3; i++) {
        m.before[i] = reals(n, 6 + (uint64_t)i, 3);
        m.result[i] = put(m.before[i], n * 4, shift);
    }
    exf_mem_free(start);
    exf_mem_free(weights);
    exf_mem_free(shared_weights);
    return m;
}

static void drop_sums(sum_case *m)
{
    drop_source(&m->outputs);
    drop_source(&m->shared);
    drop(&m->start);
    drop(&m->weights);
    drop(&m->ids);
    drop(&m->shared_weights);
    for (int i = 0; i < 3; i++) {
        drop(&m->result[i]);
        exf_mem_free(m->before[i]);
    }
}

/* The combination's call on the GPU's arrays, or on the host's in float32. */
static exf_moe_sum_call sum_call(const sum_case *m, unsigned which, int gpu)
{
    void *(*at)(const placed *) = gpu ? there : here;
    exf_moe_sum_call c = {.n_tokens = m->n_tokens, .top_k = m->top_k, .d_model = m->width};
    if (which & START) c.start = at(which & START_IS_ROUTED ? &m->result[0] : &m->start);
    if (which & OUTPUTS) c.outputs = gpu ? matrix_there(&m->outputs) : exf_f32(m->outputs.wide);
    if (which & WEIGHTS) c.weights = at(&m->weights);
    if (which & SOME) c.ids = at(&m->ids);
    if (which & SHARED) c.shared = gpu ? matrix_there(&m->shared) : exf_f32(m->shared.wide);
    if (which & SHARED_WEIGHTS) c.shared_weights = at(&m->shared_weights);
    if (which & ROUTED) c.routed = at(&m->result[0]);
    if (which & BLOCK) c.block = at(&m->result[1]);
    if (which & HIDDEN) c.hidden = at(&m->result[2]);
    return c;
}

static void assert_same_sums(const sum_case *m, unsigned which, const char *what)
{
    for (int i = 0; i < 3; i++) reset(&m->result[i], m->before[i]);
    exf_moe_sum_call gpu = sum_call(m, which, 1), cpu = sum_call(m, which, 0);
    d.b->moe_sum(d.q, &gpu);
    exf_moe_sum_cpu(NULL, &cpu);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(same(&m->result[i]), "%s: width %d, combination %#x: result %d differs", what, m->width, which, i);
}

static const int sum_widths[] = {7, 72, 130}; /* of every combination; sum_cases have the shapes */

START_TEST(sums_have_the_cpus_bits)
{
    for (int kind = 0; kind < 4; kind++) {
        sum_case m = make_sums(3, 4, sum_widths[_i], kind & 1 ? EXF_NUMBER_BF16 : EXF_NUMBER_F32, kind >> 1);
        for (unsigned which = 0; which < COMBINATIONS; which++)
            if (!(which & START_IS_ROUTED) || (which & START && which & ROUTED))
                assert_same_sums(&m, which, kind & 1 ? "bfloat16" : "float32");
        drop_sums(&m);
    }
}
END_TEST

/* Of three infinite and undefined elements the first is found, whatever was found before it; none where all are finite. */
START_TEST(hidden_states_that_are_not_finite_are_noted)
{
    static const size_t bad[] = {17, 5, 23}, base = 1000;
    for (int aligned = 0; aligned < 2; aligned++) {
        size_t width = aligned ? 64 : 27, n = 3 * width;
        float *hidden = reals(n, 1, 3), *block = reals(n, 2, 3);
        for (int finite = 0; finite < 2; finite++) {
            uint64_t none = UINT64_MAX, *least;
            for (int i = 0; i < 3 && !finite; i++) hidden[width + bad[i]] = i == 1 ? NAN : INFINITY;
            for (int i = 0; i < 3 && finite; i++) hidden[width + bad[i]] = 1;
            void *of[] = {device_put(&d, hidden, n * 4), device_put(&d, block, n * 4), device_put(&d, &none, sizeof none)};
            exf_moe_sum_call c = {.n_tokens = 3, .d_model = (int)width, .start = of[1], .hidden = of[0], .least = of[2],
                                  .base = base};
            d.b->moe_sum(d.q, &c);
            least = device_get(&d, of[2], sizeof none);
            ck_assert_uint_eq(*least, finite ? none : base + width + 5);
            exf_mem_free(least);
            for (int i = 0; i < 3; i++) d.b->free(of[i]);
        }
        exf_mem_free(hidden);
        exf_mem_free(block);
    }
}
END_TEST

/* KIND: bfloat16 where it is odd, arrays that begin an element late from 2 on. */
enum { TOKENS, TOP_K, COLUMNS, KIND, SUM_DIMENSIONS };
static const dimension sum_dimensions[] = {{"tokens", 1, 65536}, {"top-k", 0, 8}, {"width", 1, 2049}, {"kind", 0, 3}};

static const boundary sum_boundaries[] = {
    {"moe/moe_sum_cuda.cu", "c->d_model % 8 == 0", COLUMNS, 8},
    {"moe/moe_sum_cuda.cu", "(columns + 31) / 32 * 32", COLUMNS, 32},
    {"moe/moe_sum_cuda.cu", "THREADS", COLUMNS, 256}, /* of one column each; and a warp of eights */
    {"moe/moe_sum_cuda.cu", "blockDim.x * 8", COLUMNS, 256 * 8},
    {"moe/moe_sum_cuda.cu", "k < c.top_k", TOP_K, 1},
    {"moe/moe_sum_cuda.cu", "c->n_tokens", TOKENS, 65535}, /* blocks of a grid's other axes */
    {"moe/moe_sum_cuda.cu", "m.number == EXF_NUMBER_BF16", KIND, 1},
    {"moe/moe_sum_cuda.cu", "(all & 15) == 0", KIND, 2},
};

static int sum_is_small(const shape *s)
{
    return (int64_t)s->at[TOKENS] * (s->at[TOP_K] + 4) * s->at[COLUMNS] < 1 << 22;
}

static pairwise sum_cases, reuse_cases;

START_TEST(sums_of_any_shape)
{
    const shape *s = &sum_cases.shapes[_i];
    int kind = s->at[KIND];
    unsigned all = START | OUTPUTS | WEIGHTS | SHARED | SHARED_WEIGHTS | ROUTED | BLOCK | HIDDEN;
    const char *what = pairwise_name(sum_dimensions, SUM_DIMENSIONS, s);
    sum_case m = make_sums(s->at[TOKENS], s->at[TOP_K], s->at[COLUMNS], kind & 1 ? EXF_NUMBER_BF16 : EXF_NUMBER_F32, kind >> 1);
    source wide = make_source((size_t)s->at[TOKENS] * (size_t)s->at[COLUMNS], 9, EXF_NUMBER_F32, kind >> 1), own = m.shared;
    assert_same_sums(&m, all, what);
    m.shared = wide;
    assert_same_sums(&m, all | SOME, what);
    m.shared = own;
    m.n_tokens = 0;
    assert_same_sums(&m, all, "no tokens");
    drop_source(&wide);
    drop_sums(&m);
}
END_TEST

/* ---- reuse_outputs ------------------------------------------------------------------------------ */

/* A call has SLOTS / TOP_K tokens. */
enum { SLOTS, REUSE_DIMENSIONS = SUM_DIMENSIONS };
static const dimension reuse_dimensions[] = {{"slots", 1, 257}, {"top-k", 1, 6}, {"width", 1, 2049}, {"kind", 0, 3}};

static const boundary reuse_boundaries[] = {
    {"moe/moe_sum_cuda.cu", "exf_blocks((size_t)slots, 256), 256", SLOTS, 256},
    {"moe/moe_sum_cuda.cu", "k = c.top_k - 1", TOP_K, 2},
    {"moe/moe_sum_cuda.cu", "row % 16 == 0", COLUMNS, 8}, /* elements of bfloat16 */
    {"moe/moe_sum_cuda.cu", "words < 256", COLUMNS, 128}, /* words of 2 bytes in float32 */
    {"moe/moe_sum_cuda.cu", "words < 256", COLUMNS, 256}, /* in bfloat16 */
    {"moe/moe_sum_cuda.cu", "words < 256", COLUMNS, 4 * 256}, /* words of 16 bytes in float32 */
    {"moe/moe_sum_cuda.cu", "words < 256", COLUMNS, 8 * 256},
    {"moe/moe_sum_cuda.cu", "copy_rows<uint4>", KIND, 1},
    {"moe/moe_sum_cuda.cu", "copy_rows<uint16_t>", KIND, 2},
};

static int reuse_is_small(const shape *s)
{
    return s->at[SLOTS] % s->at[TOP_K] == 0;
}

START_TEST(reused_outputs_have_the_cpus_bytes)
{
    const shape *s = &reuse_cases.shapes[_i];
    const char *what = pairwise_name(reuse_dimensions, REUSE_DIMENSIONS, s);
    int t = s->at[SLOTS] / s->at[TOP_K], k = s->at[TOP_K], w = s->at[COLUMNS];
    size_t slots = (size_t)(t * k), n = slots * (size_t)w;
    int32_t *ids[2] = {test_memory(slots, 4), test_memory(slots, 4)};
    for (size_t i = 0; i < 2 * slots; i++)
        ids[i / slots][i % slots] = (int32_t)(exf_rng_u64(11, 7, i) % 7) - 1; /* ids repeat, some are -1 */
    int kind = s->at[KIND];
    exf_number number = kind & 1 ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
    size_t each = exf_number_bytes(number), shift = kind >> 1 ? each : 0;
    uint16_t *from = bf16_reals(2 * n, 12, 3),
             *to = bf16_reals(2 * n, 13, 3); /* also as float32: what the bits mean does not matter */
    placed a = put(from, n * each, shift), b = put(to, n * each, 0), wanted = put(ids[0], slots * 4, 0),
           ran = put(ids[1], slots * 4, 0), missing = put(ids[1], slots * 4, 0), sources = put(ids[1], slots * 4, 0),
           sum = put(to, (size_t)(t * w) * 4, 0);
    exf_reuse_call gpu = {
        t, k, w, {there(&b), number}, {there(&a), number}, there(&wanted), there(&ran), there(&sources), there(&missing)};
    exf_reuse_call cpu = {
        t, k, w, {here(&b), number}, {here(&a), number}, here(&wanted), here(&ran), here(&sources), here(&missing)};
    if (_i % 5 == 4) gpu.to.p = cpu.to.p = NULL;
    d.b->reuse_outputs(d.q, &gpu);
    exf_reuse_outputs_cpu(NULL, &cpu);
    exf_moe_sum_call sum_gpu = {.n_tokens = t, .top_k = k, .d_model = w, .outputs = gpu.from, .source = gpu.source,
                                .other = {there(&b), number}, .routed = there(&sum)};
    exf_moe_sum_call sum_cpu = {.n_tokens = t, .top_k = k, .d_model = w, .outputs = cpu.from, .source = cpu.source,
                                .other = {here(&b), number}, .routed = here(&sum)};
    if (number == EXF_NUMBER_F32) {
        d.b->moe_sum(d.q, &sum_gpu);
        exf_moe_sum_cpu(NULL, &sum_cpu);
        ck_assert_msg(same(&sum), "%s: sums by source differ", what);
    }
    ck_assert_msg(same(&sources), "%s: sources differ", what);
    ck_assert_msg(same(&b), "%s: outputs differ", what);
    ck_assert_msg(same(&missing), "%s: missing ids differ", what);
    ck_assert(same(&a) && same(&wanted) && same(&ran));
    placed *all[] = {&a, &b, &wanted, &ran, &missing, &sources, &sum};
    for (int i = 0; i < COUNT(all); i++) drop(all[i]);
    exf_mem_free(from);
    exf_mem_free(to);
    for (int i = 0; i < 2; i++) exf_mem_free(ids[i]);
}
END_TEST

START_TEST(nothing_to_reuse)
{
    exf_reuse_call c = {.top_k = 2, .d_model = 8};
    exf_err err;
    d.b->reuse_outputs(d.q, &c);
    ck_ok(d.b->finish(d.q, &err), err);
}
END_TEST

/* ---- output_errors -------------------------------------------------------------------------------- */

typedef struct {
    exf_exact error, norm;
    uint64_t out_of_range;
} totals;

/* Rows [first, first + n) for each of the cuts, added to sums that start at zero. */
static totals on_gpu(const float *a, const float *b, int width, const int (*cut)[2], int n_cuts)
{
    static const exf_output_errors none;
    totals t = {.out_of_range = 0};
    exf_output_errors *sums = device_put(&d, &none, sizeof none);
    for (int i = 0; i < n_cuts; i++) {
        size_t at = (size_t)cut[i][0] * (size_t)width;
        d.b->gpu->output_errors(d.q, sums, a + at, b + at, cut[i][1], width);
    }
    exf_output_errors *got = device_get(&d, sums, sizeof *got);
    exf_output_errors_read(got, &t.error, &t.norm);
    t.out_of_range = got->out_of_range;
    exf_mem_free(got);
    d.b->free(sums);
    return t;
}

/* Row by row in double, each row rounded to the grid; for rows whose sums are exact in double. */
static totals on_host(const float *a, const float *b, int rows, int width)
{
    totals t = {.out_of_range = 0};
    for (int r = 0; r < rows; r++) {
        double error = 0, norm = 0;
        for (int i = 0; i < width; i++) {
            double x = (double)a[r * width + i], off = (double)b[r * width + i] - x;
            error += off * off;
            norm += x * x;
        }
        if (!exf_exact_fits(error) || !exf_exact_fits(norm)) {
            t.out_of_range++;
            continue;
        }
        exf_exact_add(&t.error, error);
        exf_exact_add(&t.norm, norm);
    }
    return t;
}

static void assert_same_totals(const totals *got, const totals *want, const char *what)
{
    ck_assert_msg(memcmp(&got->error, &want->error, sizeof got->error) == 0, "%s: error_sq %.17g, expected %.17g", what,
                  exf_exact_value(&got->error), exf_exact_value(&want->error));
    ck_assert_msg(memcmp(&got->norm, &want->norm, sizeof got->norm) == 0, "%s: norm_sq %.17g, expected %.17g", what,
                  exf_exact_value(&got->norm), exf_exact_value(&want->norm));
    ck_assert_uint_eq(got->out_of_range, want->out_of_range);
}

static const struct { int rows, width; } errors[] = {{0, 4}, {1, 1}, {3, 5}, {40, 256}, {700, 1030}, {5000, 33}, {2, 7168}};

static float *integers(size_t n, uint64_t seed, float scale)
{
    float *x = test_memory(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = scale * (float)((int)(exf_rng_u64(seed, 7, i) % 2001) - 1000);
    return x;
}

/* Squares whose sums are exact in double, of several sizes; cuts in any order give the same integers. */
START_TEST(errors_of_integers_are_exact)
{
    static const float scales[] = {1, 0x1p-20f, 0x1p-44f, 0x1p15f};
    int rows = errors[_i].rows, width = errors[_i].width, half = rows / 3;
    size_t n = (size_t)(rows * width);
    const int whole[][2] = {{0, rows}}, cuts[][2] = {{half, rows - half}, {0, half}}, twice[][2] = {{0, rows}, {0, 0}, {0, rows}};
    for (int s = 0; s < COUNT(scales); s++) {
        float *a = integers(n, 21, scales[s]), *b = integers(n, 22, scales[s]);
        float *at = device_put(&d, a, n * 4 + !n), *bt = device_put(&d, b, n * 4 + !n);
        totals want = on_host(a, b, rows, width), got = on_gpu(at, bt, width, whole, 1);
        assert_same_totals(&got, &want, "at once");
        got = on_gpu(at, bt, width, cuts, 2);
        assert_same_totals(&got, &want, "in two parts");
        exf_exact error = want.error, norm = want.norm;
        exf_exact_merge(&want.error, &error);
        exf_exact_merge(&want.norm, &norm);
        got = on_gpu(at, bt, width, twice, 3);
        assert_same_totals(&got, &want, "twice");
        d.b->free(at);
        d.b->free(bt);
        exf_mem_free(a);
        exf_mem_free(b);
    }
}
END_TEST

/* Reals: near the host's, and the same bits in any order of rows and cuts. */
START_TEST(errors_do_not_depend_on_order)
{
    int rows = errors[_i].rows, width = errors[_i].width;
    size_t n = (size_t)(rows * width), row = (size_t)width;
    float *a = reals(n, 23, 3), *b = reals(n, 24, 3), *turned[2] = {test_memory(n, 4), test_memory(n, 4)};
    for (int r = 0; r < rows; r++) {
        memcpy(turned[0] + (size_t)r * row, a + (size_t)(rows - 1 - r) * row, row * 4);
        memcpy(turned[1] + (size_t)r * row, b + (size_t)(rows - 1 - r) * row, row * 4);
    }
    const float *host[] = {a, b, turned[0], turned[1]};
    float *gpu[4];
    for (int i = 0; i < 4; i++) gpu[i] = device_put(&d, host[i], n * 4 + !n);
    const int whole[][2] = {{0, rows}}, cuts[][2] = {{rows / 2, rows - rows / 2}, {0, rows / 5}, {rows / 5, rows / 2 - rows / 5}};
    totals want = on_host(a, b, rows, width), got = on_gpu(gpu[0], gpu[1], width, whole, 1),
           other = on_gpu(gpu[0], gpu[1], width, cuts, 3);
    assert_same_totals(&other, &got, "in parts");
    other = on_gpu(gpu[2], gpu[3], width, whole, 1);
    assert_same_totals(&other, &got, "last row first");
    double error = exf_exact_value(&want.error), norm = exf_exact_value(&want.norm);
    ck_assert_double_le(fabs(exf_exact_value(&got.error) - error), 1e-13 * error);
    ck_assert_double_le(fabs(exf_exact_value(&got.norm) - norm), 1e-13 * norm);
    for (int i = 0; i < 4; i++) {
        d.b->free(gpu[i]);
        exf_mem_free((void *)(uintptr_t)host[i]);
    }
}
END_TEST

/* Rows that no exact sum can hold are counted and add nothing to either sum, in whichever array they lie. */
START_TEST(rows_out_of_range_are_counted)
{
    enum { ROWS = 1300, WIDTH = 300 };
    static const float odd[] = {INFINITY, -INFINITY, NAN, 1e20f, -1e20f, 3e38f};
    float *a = integers(ROWS * WIDTH, 25, 1), *b = integers(ROWS * WIDTH, 26, 1);
    for (int i = 0; i < COUNT(odd); i++) {
        a[(i * 211 + 3) * WIDTH + i * 49] = odd[i];
        b[(i * 211 + 57) * WIDTH + 299 - i] = odd[i];
    }
    float *at = device_put(&d, a, ROWS * WIDTH * 4), *bt = device_put(&d, b, ROWS * WIDTH * 4);
    const int cuts[][2] = {{0, 700}, {700, 600}};
    totals want = on_host(a, b, ROWS, WIDTH), got = on_gpu(at, bt, WIDTH, cuts, 2);
    ck_assert_uint_eq(want.out_of_range, 2 * COUNT(odd));
    assert_same_totals(&got, &want, "with rows out of range");
    d.b->free(at);
    d.b->free(bt);
    exf_mem_free(a);
    exf_mem_free(b);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    pairwise_shapes(&sum_cases, "moe sum", sum_boundaries, COUNT(sum_boundaries), sum_dimensions, SUM_DIMENSIONS, sum_is_small);
    pairwise_shapes(&reuse_cases, "reuse outputs", reuse_boundaries, COUNT(reuse_boundaries), reuse_dimensions, REUSE_DIMENSIONS,
                    reuse_is_small);
    tcase_add_unchecked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, sums_have_the_cpus_bits, 0, COUNT(sum_widths));
    tcase_add_test(t, hidden_states_that_are_not_finite_are_noted);
    tcase_add_loop_test(t, sums_of_any_shape, 0, sum_cases.n_shapes);
    tcase_add_test(t, nothing_to_reuse);
    tcase_add_loop_test(t, reused_outputs_have_the_cpus_bytes, 0, reuse_cases.n_shapes);
    tcase_add_loop_test(t, errors_of_integers_are_exact, 0, COUNT(errors));
    tcase_add_loop_test(t, errors_do_not_depend_on_order, 0, COUNT(errors));
    tcase_add_test(t, rows_out_of_range_are_counted);
}
