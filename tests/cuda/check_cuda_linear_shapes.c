/* check_cuda_linear_shapes.c - stored weights decoded on the GPU to the bits that the CPU gives, at every number format, shape
 * and alignment; the search for what is not finite; and products of float32 rows with bfloat16 weights, which go through the
 * queue's buffer: exact on integers. */
#include "tests/support/pairwise.h"

#include "base/tensor.h"
#include "model/dequantize.h"
#include "tests/support/one_device_fixtures.h" /* after pairwise.h: its device is called d */

static char about[320]; /* what a failure names */

/* ---- decoding ------------------------------------------------------------------------------ */

enum { FORMAT, SCALES, ROWS, COLS, BLOCK_ROWS, BLOCK_COLS, OPTIONS, CODES_AT, DIMENSIONS };
static const dimension dimensions[] = {{"format", 0, 5},       {"scales", 0, 4},          {"rows", 1, 300},  {"columns", 1, 4097},
                                       {"block rows", 1, 129}, {"block columns", 1, 129}, {"options", 0, 7}, {"codes at", 0, 4}};

static const boundary boundaries[] = {
    {"linear/linear.h", "EXF_DEVICE_CODED_FP8", FORMAT, 1},
    {"linear/linear.h", "EXF_DEVICE_CODED_INT4", FORMAT, 3},
    {"linear/linear.h", "EXF_DEVICE_CODED_AWQ", FORMAT, 5},
    {"linear/linear_cuda.cu", "EXF_DT_F16", SCALES, 1},
    {"linear/linear_cuda.cu", "EXF_DT_F8_E4M3", SCALES, 3},
    {"linear/linear_cuda.cu", "EXF_DT_F8_E8M0", SCALES, 4},
    {"linear/linear_cuda.cu", "row / 8", ROWS, 8},
    {"linear/linear_cuda.cu", "n.rows / 8", ROWS, 16},
    {"linear/linear_cuda.cu", "256, 0, to", ROWS, 256},
    {"linear/linear_cuda.cu", "8 * octet", COLS, 8},
    {"linear/linear_cuda.cu", "UNPACKED", COLS, 16},
    {"linear/linear_cuda.cu", "UNPACKED", COLS, 32},
    {"linear/linear_cuda.cu", "c->cols % UNPACKED", COLS, 48},
    {"linear/linear_cuda.cu", "256, 0, to", COLS, 256},
    {"linear/linear_cuda.cu", "n / UNPACKED, 256", COLS, 4096}, /* threads of a block's sixteens */
    {"linear/linear_cuda.cu", "row / n.block_rows", BLOCK_ROWS, 2},
    {"linear/linear_cuda.cu", "row / n.block_rows", BLOCK_ROWS, 128},
    {"linear/linear_cuda.cu", "c->block_cols % UNPACKED", BLOCK_COLS, 16},
    {"linear/linear_cuda.cu", "c->block_cols % UNPACKED", BLOCK_COLS, 32},
    {"linear/linear_cuda.cu", "col / n.block_cols", BLOCK_COLS, 128},
    {"linear/linear_cuda.cu", "c.factor", OPTIONS, 1},
    {"linear/linear_cuda.cu", "c.divides", OPTIONS, 3},
    {"linear/linear_cuda.cu", "c.groups", OPTIONS, 5},
    {"linear/linear_cuda.cu", "c.zero_add", OPTIONS, 7},
    {"linear/linear_cuda.cu", "c.zero_carries", OPTIONS, 6},
    {"linear/linear_cuda.cu", "? 16 : 8", CODES_AT, 2},
    {"linear/linear_cuda.cu", "? 16 : 8", CODES_AT, 4},
};

static const exf_dtype scale_types[] = {EXF_DT_F32, EXF_DT_F16, EXF_DT_BF16, EXF_DT_F8_E4M3, EXF_DT_F8_E8M0};

static int is_valid(const shape *s)
{
    int format = s->at[FORMAT], rows = s->at[ROWS], cols = s->at[COLS];
    if (rows * cols > 1 << 17) return 0;
    if (format == EXF_DEVICE_CODED_PLAIN) return s->at[SCALES] <= 2; /* its elements are F32, F16 or BF16 */
    if (format == EXF_DEVICE_CODED_FP4 && (cols % 2 || s->at[BLOCK_COLS] % 2)) return 0;
    if (format == EXF_DEVICE_CODED_GPTQ && cols % 8) return 0;
    if (format == EXF_DEVICE_CODED_AWQ && rows % 8) return 0;
    return format < EXF_DEVICE_CODED_INT4 || s->at[BLOCK_ROWS] == 1;
}

static pairwise cases;

/* A coded matrix on the host: what lies in memory, its scales in float32, and what the CPU decodes. */
typedef struct {
    size_t rows, cols, groups, n_codes, n_zeros, n_scales, scale_bytes;
    uint8_t *codes, *zeros, *raw;
    float *scales, *want, factor;
    int32_t *order;
} coded;

static size_t ceiling(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

/* n positive numbers of moderate size. */
static void make_numbers(uint8_t *raw, size_t n, exf_dtype type)
{
    for (size_t i = 0; i < n; i++) {
        float v = 0.01f + fabsf(real_at(2, i, 1));
        uint16_t half = type == EXF_DT_BF16 ? to_bf16(v) : (uint16_t)(0x3800 + exf_rng_u64(2, 8, i) % 0x600);
        if (type == EXF_DT_F32) memcpy(raw + i * 4, &v, 4);
        if (type == EXF_DT_F16 || type == EXF_DT_BF16) memcpy(raw + i * 2, &half, 2);
        if (type == EXF_DT_F8_E4M3) raw[i] = (uint8_t)(1 + exf_rng_u64(2, 8, i) % 0x70);
        if (type == EXF_DT_F8_E8M0) raw[i] = (uint8_t)(i == 0 ? 0 : 120 + i % 12);
    }
}

static void make_nan(uint8_t *raw, size_t i, exf_dtype type)
{
    static const uint32_t full = 0x7fc00000;
    uint16_t half = type == EXF_DT_BF16 ? 0x7fc0 : 0x7e00;
    if (type == EXF_DT_F32) memcpy(raw + i * 4, &full, 4);
    if (type == EXF_DT_F16 || type == EXF_DT_BF16) memcpy(raw + i * 2, &half, 2);
    if (type == EXF_DT_F8_E4M3) raw[i] = 0x7f;
    if (type == EXF_DT_F8_E8M0) raw[i] = 0xff;
}

static size_t code_bytes(int format, size_t rows, size_t cols, exf_dtype type)
{
    if (format == EXF_DEVICE_CODED_PLAIN) return rows * cols * exf_dtype_bits(type) / 8;
    if (format == EXF_DEVICE_CODED_FP8) return rows * cols;
    if (format == EXF_DEVICE_CODED_FP4) return rows * cols / 2;
    if (format == EXF_DEVICE_CODED_AWQ) return cols * (rows / 8) * 4;
    return rows * ceiling(cols, 8) * 4;
}

static void make_codes(coded *c, int format, exf_dtype type)
{
    if (format == EXF_DEVICE_CODED_PLAIN) {
        make_numbers(c->codes, c->rows * c->cols, type);
        return;
    }
    for (size_t i = 0; i < c->n_codes; i++) {
        c->codes[i] = (uint8_t)exf_rng_u64(1, 7, i);
        if (format == EXF_DEVICE_CODED_FP8 && (c->codes[i] & 0x7f) == 0x7f) c->codes[i] ^= 1; /* a NaN */
    }
}

static void decode_on_cpu(coded *c, const shape *s)
{
    static const exf_coding coding[] = {EXF_CODED_PLAIN, EXF_CODED_FP8,  EXF_CODED_FP4,
                                        EXF_CODED_INT4,  EXF_CODED_GPTQ, EXF_CODED_AWQ};
    int format = s->at[FORMAT], options = s->at[OPTIONS];
    exf_dtype type = scale_types[s->at[SCALES]];
    if (format == EXF_DEVICE_CODED_PLAIN) {
        exf_dtype_to_f32(c->want, c->codes, c->rows * c->cols, type);
        for (size_t i = 0; i < c->rows * c->cols; i++) c->want[i] += (float)(options & 1);
        return;
    }
    exf_dtype_to_f32(c->scales, c->raw, c->n_scales, type);
    for (size_t i = 0; i < c->n_scales && format < EXF_DEVICE_CODED_INT4 && options & 1; i++)
        c->scales[i] = options & 2 ? c->scales[i] / c->factor : c->scales[i] * c->factor;
    exf_coded_rows host = {.codes = c->codes, .scales = c->scales, .rows = c->rows, .cols = c->cols,
                           .block_rows = (size_t)s->at[BLOCK_ROWS], .block_cols = (size_t)s->at[BLOCK_COLS], .step = 1,
                           .zeros = options & 1 ? c->zeros : NULL, .zero_add = options & 2 ? 1 : 0,
                           .zero_carries = (options & 6) == 6,
                           .groups = options & 4 ? (uint8_t *)c->order : NULL, .all_rows = c->rows};
    exf_dequantize(c->want, coding[format], &host);
}

static coded coded_of(const shape *s)
{
    int format = s->at[FORMAT];
    exf_dtype type = scale_types[s->at[SCALES]];
    coded c = {.rows = (size_t)s->at[ROWS], .cols = (size_t)s->at[COLS], .scale_bytes = exf_dtype_bits(type) / 8, .factor = 0.7f};
    c.groups = ceiling(c.cols, (size_t)s->at[BLOCK_COLS]);
    c.n_scales = (format < EXF_DEVICE_CODED_INT4 ? ceiling(c.rows, (size_t)s->at[BLOCK_ROWS]) : c.rows) * c.groups;
    c.n_codes = code_bytes(format, c.rows, c.cols, type);
    c.n_zeros = ceiling(c.rows, 8) * c.groups * 4;
    c.codes = test_memory(c.n_codes, 1);
    c.zeros = test_memory(c.n_zeros, 1);
    c.raw = test_memory(c.n_scales, c.scale_bytes);
    c.scales = test_memory(c.n_scales, 4);
    c.want = test_memory(c.rows * c.cols, 4);
    c.order = test_memory(c.cols, 4);
    make_codes(&c, format, type);
    make_numbers(c.raw, c.n_scales, type);
    for (size_t i = 0; i < c.n_zeros; i++) c.zeros[i] = (uint8_t)exf_rng_u64(1, 9, i);
    for (size_t i = 0; i < c.cols; i++) c.order[i] = (int32_t)(exf_rng_u64(1, 6, i) % c.groups);
    decode_on_cpu(&c, s);
    return c;
}

static void free_coded(coded *c)
{
    void *made[] = {c->codes, c->zeros, c->raw, c->scales, c->want, c->order};
    for (int k = 0; k < COUNT(made); k++) exf_mem_free(made[k]);
}

/* The matrix on the device; held[]: what to free. */
static exf_device_coded_rows put_coded(const coded *c, const shape *s, void *held[5])
{
    int format = s->at[FORMAT], options = s->at[OPTIONS], integers = format >= EXF_DEVICE_CODED_INT4;
    size_t shift = (size_t)s->at[CODES_AT] * 4;
    uint8_t *shifted = test_memory(c->n_codes + shift, 1);
    memcpy(shifted + shift, c->codes, c->n_codes);
    held[0] = device_put(&d, shifted, c->n_codes + shift);
    held[1] = device_put(&d, c->raw, c->n_scales * c->scale_bytes);
    held[2] = device_put(&d, c->zeros, c->n_zeros);
    held[3] = device_put(&d, c->order, c->cols * 4);
    held[4] = device_put(&d, &c->factor, 4);
    exf_mem_free(shifted);
    exf_device_coded_rows r = {.coding = (exf_device_coding)format, .dtype = scale_types[s->at[SCALES]],
                               .scale_dtype = scale_types[s->at[SCALES]], .codes = (char *)held[0] + shift, .scales = held[1],
                               .rows = c->rows, .cols = c->cols, .block_rows = (size_t)s->at[BLOCK_ROWS],
                               .block_cols = (size_t)s->at[BLOCK_COLS], .add = (float)(options & 1)};
    if (integers) {
        r.zeros = options & 1 ? held[2] : NULL;
        r.zero_add = options & 2 ? 1 : 0;
        r.zero_carries = (options & 6) == 6;
        r.groups = options & 4 ? held[3] : NULL;
    } else if (format != EXF_DEVICE_CODED_PLAIN) {
        r.factor = options & 1 ? held[4] : NULL;
        r.divides = options & 2 ? 1 : 0;
    }
    return r;
}

enum { PAD = 16 }; /* elements before and after the decoded ones, which must stay */

/* Index of the first element of got [PAD + at + n + PAD] that is not what it should be, -1 if there is none. */
static int64_t first_wrong(const void *got, const float *want, size_t at, size_t n, exf_number number)
{
    for (size_t i = 0; i < n + at + 2 * PAD; i++) {
        int inside = i >= PAD + at && i < PAD + at + n;
        if (number == EXF_NUMBER_BF16) {
            uint16_t is = ((const uint16_t *)got)[i];
            if (inside ? of_bf16(is) != of_bf16(to_bf16(want[i - PAD - at])) : is != 0xffff) return (int64_t)i - PAD - (int64_t)at;
        } else {
            float is = ((const float *)got)[i];
            uint32_t bits;
            memcpy(&bits, &is, sizeof bits);
            if (inside ? is != want[i - PAD - at] : bits != 0xffffffff) return (int64_t)i - PAD - (int64_t)at;
        }
    }
    return INT64_MIN;
}

/* Decodes to an array that starts `at` elements after one on a boundary; returns what *bad became. */
static int decode(const coded *c, const exf_device_coded_rows *r, size_t at, exf_number number, const shape *s)
{
    size_t n = c->rows * c->cols, bytes = (n + at + 2 * PAD) * exf_number_bytes(number);
    int *bad = device_put(&d, &(int){0}, sizeof(int));
    char *out = device_put(&d, NULL, bytes);
    d.b->gpu->dequantize(d.q, out + (PAD + at) * exf_number_bytes(number), number, r, bad);
    void *got = device_get(&d, out, bytes);
    int *found = device_get(&d, bad, sizeof(int)), is = *found;
    int64_t wrong = s ? first_wrong(got, c->want, at, n, number) : INT64_MIN;
    ck_assert_msg(wrong == INT64_MIN, "%s, to number %d at %zu: element %lld", s ? pairwise_name(dimensions, DIMENSIONS, s) : "",
                  (int)number, at, (long long)wrong);
    exf_mem_free(got);
    exf_mem_free(found);
    d.b->free(out);
    d.b->free(bad);
    return is;
}

START_TEST(stored_weights_are_decoded_as_on_the_cpu)
{
    const shape *s = &cases.shapes[_i];
    coded c = coded_of(s);
    void *held[5];
    exf_device_coded_rows r = put_coded(&c, s, held);
    for (size_t at = 0; at < 2; at++)
        for (int number = 0; number < 2; number++)
            ck_assert_msg(decode(&c, &r, at, (exf_number)number, s) == 0, "%s: bad", pairwise_name(dimensions, DIMENSIONS, s));
    for (int k = 0; k < 5; k++) d.b->free(held[k]);
    free_coded(&c);
}
END_TEST

/* The scale of the last element is a NaN, or the element itself where there are no scales. */
static void spoil_last(coded *c, const shape *s)
{
    int format = s->at[FORMAT];
    exf_dtype type = scale_types[s->at[SCALES]];
    size_t row = c->rows - 1, col = c->cols - 1, group = col / (size_t)s->at[BLOCK_COLS];
    if (format >= EXF_DEVICE_CODED_INT4 && s->at[OPTIONS] & 4) group = (size_t)c->order[col];
    if (format == EXF_DEVICE_CODED_PLAIN)
        make_nan(c->codes, c->rows * c->cols - 1, type);
    else if (format < EXF_DEVICE_CODED_INT4)
        make_nan(c->raw, row / (size_t)s->at[BLOCK_ROWS] * c->groups + group, type);
    else
        make_nan(c->raw, format == EXF_DEVICE_CODED_INT4 ? row * c->groups + group : group * c->rows + row, type);
}

START_TEST(a_last_element_that_is_not_finite_is_noticed)
{
    const shape *s = &cases.shapes[_i];
    coded c = coded_of(s);
    void *held[5];
    spoil_last(&c, s);
    exf_device_coded_rows r = put_coded(&c, s, held);
    for (size_t at = 0; at < 2; at++)
        for (int number = 0; number < 2; number++)
            ck_assert_msg(decode(&c, &r, at, (exf_number)number, NULL) == 1, "%s: not noticed",
                          pairwise_name(dimensions, DIMENSIONS, s));
    for (int k = 0; k < 5; k++) d.b->free(held[k]);
    free_coded(&c);
}
END_TEST

/* ---- the search for what is not finite -------------------------------------------------------- */

enum { ELEMENTS, KIND, SEARCH_DIMENSIONS };
static const dimension search_dimensions[] = {{"elements", 1, 16777217}, {"kind", 0, 1}}; /* an infinity, a NaN */

static const boundary search_boundaries[] = {
    {"linear/linear_cuda.cu", "n / 8", ELEMENTS, 8},
    {"linear/linear_cuda.cu", "256, 0, reinterpret_cast<const uint4 *>(x)", ELEMENTS, 8 * 256},
    {"linear/linear_cuda.cu", "exf_blocks(words, 1024)", ELEMENTS, 8 * 1024},
    {"linear/linear_cuda.cu", "blocks > 2048 ? 2048 : blocks", ELEMENTS, 16777216},
};

static pairwise searches;

START_TEST(one_that_is_not_finite_is_found_anywhere)
{
    size_t n = (size_t)searches.shapes[_i].at[ELEMENTS], places[] = {0, n / 2, n / 8 * 8, n - 1, n - 1 - (n > 8 ? n % 8 : 0)};
    uint16_t kind = searches.shapes[_i].at[KIND] ? 0xffc1 : 0x7f80, *host = test_memory(n, 2);
    for (size_t i = 0; i < n; i++) host[i] = (uint16_t)(i % 2 ? 0xff7f : 0x3f80); /* of the largest, too */
    uint16_t *x = device_put(&d, host, n * 2);
    int *bad = device_put(&d, &(int){0}, sizeof(int));
    for (int k = -1; k < COUNT(places); k++) {
        size_t at = k < 0 || places[k] >= n ? n - 1 : places[k];
        if (k >= 0) d.b->upload(d.q, x + at, &kind, 2);
        d.b->upload(d.q, bad, &(int){0}, sizeof(int));
        d.b->gpu->check_bf16(d.q, x, n, bad);
        int *found = device_get(&d, bad, sizeof(int));
        ck_assert_msg(*found == (k >= 0), "%zu elements, one at %zu: %d", n, at, *found);
        exf_mem_free(found);
        d.b->upload(d.q, x + at, host + at, 2);
    }
    exf_err err;
    ck_ok(d.b->finish(d.q, &err), err);
    d.b->free(x);
    d.b->free(bad);
    exf_mem_free(host);
}
END_TEST

/* ---- products through the queue's buffer --------------------------------------------------------- */

enum { M, N, K, PRODUCTS, GAP, SHARED, PRODUCT_DIMENSIONS };
static const dimension product_dimensions[] = {{"m", 1, 257}, {"n", 1, 9},    {"k", 1, 262145},
                                               {"products", 1, 3}, {"gap", 0, 3}, {"shared", 0, 1}};

static const boundary product_boundaries[] = {
    {"linear/linear_cuda.cu", "rows > 128", M, 128},
    {"linear/linear_cuda.cu", "rows / 128 * 128", M, 256},
    {"linear/linear_cuda.cu", "n, m, k", N, 8},
    {"linear/linear_cuda.cu", "(n + 127) / 128 * 128", K, 128},
    {"linear/linear_cuda.cu", "rows / 128 * 128", K, 43000}, /* 260 rows of three terms: 256 */
    {"device/cuda_queue.cuh", "EXF_BUFFER_BYTES", K, 87381}, /* 128 rows of three terms */
    {"device/cuda_queue.cuh", "EXF_BUFFER_BYTES", K, 262144}, /* 128 rows of one */
    {"device/cuda_queue.cuh", "EXF_BUFFER_TAIL", K, 127}, /* what terms of whole 256 bytes take more */
    {"linear/linear_cuda.cu", "s->count - 1", PRODUCTS, 2},
};

static int is_product(const shape *s)
{
    int64_t width = (int64_t)s->at[K] * (s->at[SHARED] ? 1 : s->at[PRODUCTS]);
    if (s->at[K] > 200000 && s->at[M] > 129) return 0;
    return s->at[M] * width < 34 << 20 && s->at[M] * (int64_t)s->at[N] * s->at[K] * s->at[PRODUCTS] < 1 << 26;
}

static pairwise products;

/* Rows of zeros and a few integers: two of 20 bits, so that all three terms of a float32 take part, or 16 of four. */
static void make_row(float *x, int k, size_t row, int rounds)
{
    for (size_t i = 0; i < (rounds ? 16 : 2); i++) {
        uint64_t u = exf_rng_u64(21, row, i);
        x[i == 1 ? (size_t)k - 1 : (u >> 32) % (size_t)k] =
            rounds ? (float)((int)(u % 17) - 8) : (float)((int)(u % ((1u << 20) - 1)) - (1 << 19));
    }
}

typedef struct {
    int m, n, k, count, gap, ldx, ldy;
    exf_product_steps steps;
    float *x, *w, *y, *there_x, *there_y;
    uint16_t *there_w;
} product;

static product product_of(const shape *s, int rounds)
{
    product c = {.m = s->at[M], .n = s->at[N], .k = s->at[K], .count = s->at[PRODUCTS], .gap = s->at[GAP]};
    int shared = s->at[SHARED];
    c.ldx = (shared ? c.k : c.count * c.k) + c.gap;
    c.ldy = c.count * (c.n + c.gap);
    c.steps = (exf_product_steps){c.count, c.n + c.gap, shared ? 0 : c.k, (size_t)c.n * (size_t)c.k};
    size_t n_x = (size_t)c.m * (size_t)c.ldx, n_w = (size_t)c.count * c.steps.w, n_y = (size_t)(c.m * c.ldy);
    uint16_t *half = test_memory(n_w, 2);
    c.x = test_memory(n_x, 4);
    c.w = test_memory(n_w, 4);
    c.y = test_memory(n_y, 4);
    for (int r = 0; r < c.m; r++)
        for (int i = 0; i < (shared ? 1 : c.count); i++)
            make_row(c.x + (size_t)r * (size_t)c.ldx + (size_t)i * (size_t)c.k, c.k, (size_t)(r * c.count + i), rounds);
    for (size_t i = 0; i < n_w; i++) half[i] = to_bf16(c.w[i] = (float)((int)(exf_rng_u64(5, 7, i) % 17) - 8));
    for (size_t i = 0; i < n_y; i++) c.y[i] = (float)((int)(exf_rng_u64(6, 7, i) % 17) - 8);
    c.there_x = device_put(&d, c.x, n_x * 4);
    c.there_w = device_put(&d, half, n_w * 2);
    c.there_y = device_put(&d, c.y, n_y * 4);
    exf_mem_free(half);
    return c;
}

/* Adds the i-th product, by the elements of x that are not 0, to y on the host. */
static void add_product(product *c, int i)
{
    const float *x = c->x + (size_t)i * (size_t)c->steps.x, *w = c->w + (size_t)i * c->steps.w;
    float *y = c->y + i * c->steps.y;
    for (int r = 0; r < c->m; r++)
        for (int at = 0; at < c->k; at++) {
            float v = x[(size_t)r * (size_t)c->ldx + (size_t)at];
            for (int j = 0; v != 0 && j < c->n; j++) y[r * c->ldy + j] += v * w[(size_t)j * (size_t)c->k + (size_t)at];
        }
}

static void free_product(product *c)
{
    exf_mem_free(c->x);
    exf_mem_free(c->w);
    exf_mem_free(c->y);
    d.b->free(c->there_x);
    d.b->free(c->there_y);
    d.b->free(c->there_w);
}

static void check_product(const product *c, const shape *s, const char *what)
{
    size_t n = (size_t)(c->m * c->ldy), wrong = 0;
    float *got = device_get(&d, c->there_y, n * 4);
    while (wrong < n && got[wrong] == c->y[wrong]) wrong++;
    snprintf(about, sizeof about, "%s, %s", what, pairwise_name(product_dimensions, PRODUCT_DIMENSIONS, s));
    ck_assert_msg(wrong == n, "%s: element %zu: %.9g, not %.9g", about, wrong, wrong < n ? (double)got[wrong] : 0,
                  wrong < n ? (double)c->y[wrong] : 0);
    exf_mem_free(got);
}

static void compare_products(const shape *s, int rounds)
{
    product c = product_of(s, rounds);
    for (int i = 0; i < c.count; i++) { /* one by one, added to what is there */
        d.b->gemm_xwt(d.q, c.there_y + i * c.steps.y, c.ldy, exf_f32(c.there_x + (size_t)i * (size_t)c.steps.x), c.ldx,
                      exf_bf16(c.there_w + (size_t)i * c.steps.w), c.k, c.m, c.n, c.k, 1, 1);
        add_product(&c, i);
    }
    check_product(&c, s, "one by one");
    d.b->gemm_xwt_many(d.q, c.there_y, c.ldy, exf_f32(c.there_x), c.ldx, exf_bf16(c.there_w), c.k, &c.steps, c.m, c.n, c.k);
    for (int r = 0; r < c.m; r++)
        for (int i = 0; i < c.count; i++)
            for (int j = 0; j < c.n; j++) c.y[r * c.ldy + i * c.steps.y + j] = 0;
    for (int i = 0; i < c.count; i++) add_product(&c, i);
    check_product(&c, s, "side by side");
    free_product(&c);
}

/* Three terms of a row of 87381 fill the buffer by 128 rows; where a row is rounded, one of 262144. */
START_TEST(split_products_are_exact)
{
    if (products.shapes[_i].at[K] <= 100000) compare_products(&products.shapes[_i], 0);
}
END_TEST

START_TEST(rounded_products_are_exact)
{
    if (products.shapes[_i].at[K] <= 200 || products.shapes[_i].at[K] > 100000) compare_products(&products.shapes[_i], 1);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "decoding", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&searches, "search", search_boundaries, COUNT(search_boundaries), search_dimensions, SEARCH_DIMENSIONS, NULL);
    pairwise_shapes(&products, "products", product_boundaries, COUNT(product_boundaries), product_dimensions, PRODUCT_DIMENSIONS,
                    is_product);
    TCase *t = exf_case(s, "f32"), *rounded = exf_case(s, "bf16");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, stored_weights_are_decoded_as_on_the_cpu, 0, cases.n_shapes);
    tcase_add_loop_test(t, a_last_element_that_is_not_finite_is_noticed, 0, cases.n_shapes);
    tcase_add_loop_test(t, one_that_is_not_finite_is_found_anywhere, 0, searches.n_shapes);
    tcase_add_loop_test(t, split_products_are_exact, 0, products.n_shapes);
    tcase_add_checked_fixture(rounded, open_device_bf16, close_device);
    tcase_add_loop_test(rounded, rounded_products_are_exact, 0, products.n_shapes);
}
