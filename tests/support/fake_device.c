/* fake_device.c - see fake_device.h. */
#include "tests/support/fake_device.h"

#include "base/mem.h"
#include "model/weight_dequantize.h"
#include "tests/support/fixtures.h"

#include <pthread.h>
#include <string.h>

/* What is held, and by which address. */
enum { MOST_HELD = 512 };
static struct {
    void *p;
    size_t bytes;
} held[MOST_HELD];
static uint64_t now_held, most_held, free_at_first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static exf_code fake_alloc(void *out, size_t n, size_t size, const char *what, exf_err *err)
{
    exf_code rc = exf_mem_new(out, n, size, what, err);
    if (rc != EXF_OK) return rc;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MOST_HELD && held[i].p) i++;
    ck_assert_int_lt(i, MOST_HELD);
    memcpy(&held[i].p, out, sizeof held[i].p);
    held[i].bytes = n * size;
    now_held += n * size;
    if (now_held > most_held) most_held = now_held;
    pthread_mutex_unlock(&lock);
    return EXF_OK;
}

static void fake_free(void *p)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; p && i < MOST_HELD; i++)
        if (held[i].p == p) {
            now_held -= held[i].bytes;
            held[i].p = NULL;
        }
    pthread_mutex_unlock(&lock);
    exf_mem_free(p);
}

static exf_code alloc_staging(void *out, size_t bytes, const char *what, exf_err *err)
{
    return exf_mem_new(out, bytes, 1, what, err);
}

static void memory(uint64_t *now, uint64_t *peak)
{
    *now = now_held;
    *peak = most_held;
}

static void memory_reset_peak(void)
{
    most_held = now_held;
}

static exf_code memory_left(uint64_t *bytes, exf_err *err)
{
    (void)err;
    *bytes = free_at_first - now_held;
    return EXF_OK;
}

/* Everything is done when it is asked for. */
static void follow(exf_queue *q, exf_queue *before)
{
    (void)q;
    (void)before;
}

static void decode(float *to, const exf_device_coded_rows *r)
{
    size_t n = (r->rows + r->block_rows - 1) / r->block_rows * ((r->cols + r->block_cols - 1) / r->block_cols);
    float *scales;
    exf_err err;
    ck_ok(exf_mem_new(&scales, n, sizeof *scales, "scales", &err), err);
    exf_dtype_to_f32(scales, r->scales, n, r->scale_dtype);
    exf_coded_rows c = {r->codes, scales, r->rows, r->cols, 0, r->block_rows, r->block_cols};
    if (r->coding == EXF_DEVICE_CODED_FP8)
        exf_dequantize_fp8(to, &c);
    else
        exf_dequantize_fp4(to, &c);
    exf_mem_free(scales);
}

static void unpack(exf_queue *q, void *to, exf_number number, const exf_device_coded_rows *r, int *bad)
{
    float *values = to;
    size_t n = r->rows * r->cols;
    (void)q;
    ck_assert_int_eq(number, EXF_NUMBER_F32);
    if (r->coding == EXF_DEVICE_CODED_PLAIN)
        exf_dtype_to_f32(values, r->codes, n, r->dtype);
    else
        decode(values, r);
    if (exf_first_not_finite(values, n) < n) *bad = 1;
}

static void check_bf16(exf_queue *q, const uint16_t *x, size_t n, int *bad)
{
    (void)q;
    (void)x;
    (void)bad;
    ck_assert_uint_eq(n, 0);
}

static void embed(exf_queue *q, float *out, exf_matrix table, const int32_t *tokens, size_t n_tokens, int width, int streams)
{
    size_t w = (size_t)width;
    (void)q;
    for (size_t t = 0; t < n_tokens; t++)
        for (int k = 0; k < streams; k++, out += w) memcpy(out, (const float *)table.p + (size_t)tokens[t] * w, w * sizeof *out);
}

static size_t layer_sums_bytes(int n_experts)
{
    (void)n_experts;
    return 0;
}

static size_t gram_matrices_bytes(int n_experts, int n_tokens)
{
    (void)n_experts;
    (void)n_tokens;
    return 0;
}

const exf_backend *fake_device(uint64_t room)
{
    static exf_backend b;
    free_at_first = room;
    b = exf_backend_cpu;
    b.name = "fake";
    b.host_memory = 0;
    b.alloc = fake_alloc;
    b.free = fake_free;
    b.alloc_staging = alloc_staging;
    b.free_staging = exf_mem_free;
    b.memory = memory;
    b.memory_reset_peak = memory_reset_peak;
    b.memory_left = memory_left;
    b.wait_for = follow;
    b.dequantize = unpack;
    b.check_bf16 = check_bf16;
    b.embed = embed;
    b.layer_sums_bytes = layer_sums_bytes;
    b.gram_matrices_bytes = gram_matrices_bytes;
    return &b;
}
