/* check_cuda_released.c - the whole pass and its statistics at the shapes of every released model (tests/configs/released.txt),
 * on the GPU in float32 and in bfloat16, against the CPU.
 *
 * Cut are the layers alone.  tests/support/released_checkpoint_fixtures.h says how the weights are made, of which only some
 * experts have any, and why no route is a near tie: counts and routes must be equal.
 *
 * usage: build-cuda/checks/cuda check_cuda_released         EXF_RELEASED=MODEL: that row of the table alone
 * Prints a line a model, with the largest differences of all its layers' sums, each relative to what it is a sum of.
 * The checkpoint lies in $TMPDIR, best in memory (/dev/shm), while its model runs: holes, and up to 5 GB that are written.  Host
 * memory stays below 24 GB, since the dead experts of a layer share memory on the CPU, however often the system counts it; the GPU
 * holds whole layers, up to 68 GB, or reads a layer in parts: no other suite should run beside this one. */
#define _GNU_SOURCE /* memfd_create() */
#include "tests/support/released_checkpoint_fixtures.h"
#include "tests/support/released_fixtures.h"
#include "tests/support/scratch_fixtures.h"
#include "tests/support/statistics_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* In float32 both sides round every operation to 6e-8 of its size, and add in different orders: over sums of up to 20,480 terms and
 * the products of three layers, one after the other, that is some 1e-5 of a squared norm.  In bfloat16 the operands of every
 * product are rounded to 4e-3: some 1e-2 of an output, of which most cancels in sums over thousands of columns.  A kernel that
 * leaves out, repeats or mixes up a tile, a segment, a row or an expert is wrong by a tenth and more. */
static const double most_f32 = 1e-4, most_bf16 = 3e-2;

static exf_err e;
static released_table table;

/* ---- the CPU, on which dead experts share memory ------------------------------------------------ */

static const released_checkpoint *made; /* the one that runs */
enum { MOST_SHARED = 16, HUGE_PAGE = 1 << 21 };
static struct {
    void *at, *mapped;
    size_t bytes;
} shared[MOST_SHARED];

/* Maps the floats of all experts: a live one has pages of its own, the dead ones, which are zeros, have the first ones.  Huge pages
 * where the system gives them: there are 16 million others. */
static exf_code map_experts(void *out, size_t each, exf_err *err)
{
    size_t n = (size_t)made->m->arch.n_experts, slot = 0, bytes = n * each + HUGE_PAGE;
    char *mapped = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *at = NULL;
    int fd = memfd_create("experts", MFD_CLOEXEC),
        ok = mapped != (char *)MAP_FAILED && fd >= 0 && ftruncate(fd, (off_t)(each * (size_t)(made->to.n_live + 1))) == 0;
    while (slot < MOST_SHARED && shared[slot].at) slot++;
    ck_assert_uint_lt(slot, MOST_SHARED);
    if (ok) at = mapped + (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
    for (size_t i = 0; ok && i < n; i++)
        ok = mmap(at + i * each, each, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                  (off_t)(each * (size_t)(made->to.live_of[i] + 1))) != MAP_FAILED;
    if (fd >= 0) close(fd);
    if (!ok) return exf_fail(err, EXF_NOSPACE, "test: experts cannot be mapped");
    (void)madvise(at, n * each, MADV_HUGEPAGE);
    shared[slot].at = at;
    shared[slot].mapped = mapped;
    shared[slot].bytes = bytes;
    memcpy(out, &at, sizeof at);
    return EXF_OK;
}

static exf_code alloc_sharing(void *out, size_t n, size_t size, const char *what, exf_err *err)
{
    const exf_architecture *a = &made->m->arch;
    size_t each = (size_t)a->d_expert * (size_t)a->d_model * sizeof(float);
    int is_experts = strcmp(what, "layer weights") == 0 && n * size == each * (size_t)a->n_experts;
    int shares = is_experts && made->to.n_live < a->n_experts && each % (size_t)sysconf(_SC_PAGESIZE) == 0;
    return shares ? map_experts(out, each, err) : exf_mem_new(out, n, size, what, err);
}

static void free_sharing(void *p)
{
    for (int i = 0; p && i < MOST_SHARED; i++) {
        if (shared[i].at != p) continue;
        munmap(shared[i].mapped, shared[i].bytes);
        shared[i].at = NULL;
        return;
    }
    exf_mem_free(p);
}

/* ---- runs ------------------------------------------------------------------------------------------ */

/* Sequences of one block and more, of a window and more, and of one token. */
static const int lengths[] = {136, 64, 33, 17, 2, 1};
enum { TOKENS = 136 + 64 + 33 + 17 + 2 + 1 };

typedef struct {
    exf_model *m;
    int32_t ids[TOKENS];
    exf_span span[COUNT(lengths)];
    exf_batch batch;
} run_input;

static void make_batch(run_input *r)
{
    size_t at = 0;
    for (int i = 0; i < COUNT(lengths); at += (size_t)lengths[i++]) r->span[i] = (exf_span){at, lengths[i]};
    for (uint64_t i = 0; i < TOKENS; i++)
        r->ids[i] = released_id(&r->m->arch, i < RELEASED_IDS ? (int)i : (int)(exf_rng_u64(6, 7, i) % RELEASED_IDS));
    r->batch = (exf_batch){r->ids, r->span, COUNT(lengths), TOKENS, lengths[0]};
}

static const char *path_of(char path[512], const char *name)
{
    snprintf(path, 512, "%s", exf_scratch(name));
    return path;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the seconds that the run took. */
static double run(const run_input *r, const exf_backend *b, exf_compute compute, const char *name, exf_forward_report *report)
{
    char path[512];
    double start = now_seconds();
    exf_forward_options o = {.backend = b, .compute = compute};
    exf_accumulate_options options = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = TOKENS};
    ck_ok(statistics_run_of(r->m, &r->batch, &o, &options, path_of(path, name), report, &e), e);
    return now_seconds() - start;
}

/* ---- statistics of two runs ----------------------------------------------------------------------- */

typedef struct {
    double most;
    char where[96];
} difference;

static void note(difference *d, const exf_exact *cpu, const exf_exact *gpu, double size, const char *what, int layer, size_t at)
{
    double x = exf_exact_value(cpu), y = exf_exact_value(gpu), off = x == y ? 0 : fabs(x - y) / size;
    if (off <= d->most || isnan(d->most)) return; /* NaN stays */
    d->most = off;
    snprintf(d->where, sizeof d->where, "%s[%zu] of layer %d: %g, %g", what, at, layer, x, y);
}

/* Bounds a sum of products by the sums of squares of what is multiplied. */
static double product_size(const exf_exact *x, const exf_exact *y)
{
    return sqrt(exf_exact_value(x) * exf_exact_value(y));
}

/* Sums over sequences are of squares of a sequence's sums, whose differences count twice in them. */
static void note_pair(difference *d, const exf_layer_statistics *cpu, const exf_layer_statistics *gpu, int layer, size_t i,
                      size_t turned)
{
    double bb = exf_exact_value(&cpu->seq_bb[i]), source = exf_exact_value(&cpu->source_sq[i]),
           target = exf_exact_value(&cpu->target_sq[i]), aa = target > 0 ? bb * (1 + source / target) : 0;
#define X(sum, size) note(d, &cpu->sum[i], &gpu->sum[i], size, #sum, layer, i);
    X(target_sq, target) X(source_sq, source) X(sq0, exf_exact_value(&cpu->sq0[i]))
    X(half_target_sq, exf_exact_value(&cpu->half_target_sq[i])) X(half_source_sq, exf_exact_value(&cpu->half_source_sq[i]))
    X(dot, product_size(&cpu->target_sq[i], &cpu->source_sq[i])) X(dot0, product_size(&cpu->sq0[i], &cpu->sq0[turned]))
    X(cosine_sum, (double)cpu->count[i])
    X(half_dot, product_size(&cpu->half_target_sq[i], &cpu->half_source_sq[i]))
    X(seq_bb, 2 * bb) X(seq_aa, 2 * aa) X(seq_ab, 2 * aa)
#undef X
}

static void note_sums(difference *d, const exf_layer_statistics *cpu, const exf_layer_statistics *gpu, int layer)
{
    size_t n = (size_t)cpu->n_experts;
    for (size_t i = 0; i < n * n; i++) note_pair(d, cpu, gpu, layer, i, i % n * n + i / n);
    for (size_t i = 0; i < n; i++) {
#define X(sum) note(d, &cpu->sum[i], &gpu->sum[i], exf_exact_value(&cpu->sum[i]), #sum, layer, i);
        X(norm_sum) X(sq_sum) X(route_weight_sum) X(contribution_sum) X(energy_sum)
#undef X
    }
    note(d, cpu->stream_sq, gpu->stream_sq, exf_exact_value(cpu->stream_sq), "stream_sq", layer, 0);
    note(d, cpu->stream_inverse_sq, gpu->stream_inverse_sq, exf_exact_value(cpu->stream_inverse_sq), "stream_inverse_sq", layer, 0);
}

static void check_counts(const char *name, const exf_layer_statistics *cpu, const exf_layer_statistics *gpu, int layer)
{
    size_t n = (size_t)cpu->n_experts;
#define X(counts, cells)                                                                                        \
    for (size_t i = 0; i < (cells); i++)                                                                        \
        if (cpu->counts[i] != gpu->counts[i])                                                                   \
            ck_abort_msg("%s: layer %d: " #counts "[%zu]: cpu %llu, cuda %llu", name, layer, i,                 \
                         (unsigned long long)cpu->counts[i], (unsigned long long)gpu->counts[i]);
    X(count, n * n) X(sequences, n * n) X(half_count, n * n) X(norm_count, n) X(empty_slots, 1) X(stream_count, 1)
#undef X
}

static void check_routes(const char *name, const exf_route_sample *cpu, const exf_route_sample *gpu, int layer, double most)
{
    ck_assert_msg(cpu->n == TOKENS && cpu->n == gpu->n && memcmp(cpu->key, gpu->key, cpu->n * sizeof *cpu->key) == 0,
                  "%s: layer %d: other tokens", name, layer);
    for (size_t i = 0; i < cpu->n * (size_t)cpu->top_k; i++) {
        double x = (double)cpu->weights[i], y = (double)gpu->weights[i];
        if (cpu->ids[i] != gpu->ids[i] || fabs(x - y) > most * (1 + fabs(x)))
            ck_abort_msg("%s: layer %d: route %zu: cpu %d (%g), cuda %d (%g)", name, layer, i, (int)cpu->ids[i], x,
                         (int)gpu->ids[i], y);
    }
}

/* The router chose live experts alone, and each of them sometimes.  Tags are a large enough part of the hidden state. */
static void check_live(const char *name, const exf_architecture *a, const exf_layer_statistics *s, int layer)
{
    uint64_t slots = *s->empty_slots;
    double size = exf_exact_value(s->stream_sq) / ((double)*s->stream_count * a->d_model * a->residual.streams);
    for (int i = 0; i < s->n_experts; i++) {
        slots += s->norm_count[i];
        if ((made->to.live_of[i] >= 0) != (s->norm_count[i] > 0))
            ck_abort_msg("%s: layer %d: expert %d, which is %s, has %llu tokens", name, layer, i,
                         made->to.live_of[i] < 0 ? "dead" : "live", (unsigned long long)s->norm_count[i]);
    }
    ck_assert_uint_eq(slots, (uint64_t)TOKENS * (uint64_t)a->top_k);
    ck_assert_msg(size < 64, "%s: layer %d: hidden states have grown to %g: routes may be near ties", name, layer, sqrt(size));
}

static void open_statistics(exf_statistics_reader *r, exf_layer_statistics *s, const char *name, int n_experts)
{
    char path[512];
    ck_ok(exf_statistics_open(r, path_of(path, name), &e), e);
    ck_ok(exf_layer_statistics_new(s, n_experts, &e), e);
}

/* Compares all layers of two files. */
static difference compare(const released_model *model, const run_input *r, const char *other, double most)
{
    const exf_architecture *a = &r->m->arch;
    exf_statistics_reader cpu, gpu;
    exf_layer_statistics x, y;
    difference d = {.most = 0, .where = "none"};
    open_statistics(&cpu, &x, "cpu.h5", a->n_experts);
    open_statistics(&gpu, &y, other, a->n_experts);
    ck_assert_int_eq(cpu.n_layers, a->n_moe_layers);
    ck_assert_int_eq(gpu.n_layers, a->n_moe_layers);
    for (int i = 0; i < cpu.n_layers; i++) {
        int layer = (int)cpu.layer_number[i];
        ck_ok(exf_statistics_get(&cpu, i, &x, &e), e);
        ck_ok(exf_statistics_get(&gpu, i, &y, &e), e);
        check_live(model->name, a, &x, layer);
        check_counts(model->name, &x, &y, layer);
        check_routes(model->name, &x.routes, &y.routes, layer, most);
        note_sums(&d, &x, &y, layer);
    }
    exf_statistics_close(&cpu);
    exf_statistics_close(&gpu);
    exf_layer_statistics_free(&x);
    exf_layer_statistics_free(&y);
    return d;
}

/* ---- a model --------------------------------------------------------------------------------------- */

static void check_released(const released_model *model)
{
    released_checkpoint c;
    run_input r;
    exf_forward_report report;
    exf_backend cpu = exf_backend_cpu;
    double start = now_seconds(), seconds[4];
    cpu.alloc = alloc_sharing;
    cpu.free = free_sharing;
    released_write_config(model, exf_scratch(""));
    released_checkpoint_write(&c, exf_scratch(""));
    made = &c;
    ck_ok(exf_model_open(&r.m, exf_scratch(""), &e), e);
    make_batch(&r);
    seconds[0] = now_seconds() - start;
    seconds[1] = run(&r, &cpu, EXF_COMPUTE_F32, "cpu.h5", &report);
    seconds[2] = run(&r, exf_backend_cuda(&e), EXF_COMPUTE_F32, "f32.h5", &report);
    difference f32 = compare(model, &r, "f32.h5", most_f32), bf16;
    uint64_t held = report.device_bytes;
    seconds[3] = run(&r, exf_backend_cuda(&e), EXF_COMPUTE_BF16, "bf16.h5", &report);
    bf16 = compare(model, &r, "bf16.h5", most_bf16);
    printf("released: %s E %d K %d H %d width %d heads %d/%d x %d, %d layers, %d live experts: largest difference f32 %.1e (%s), "
           "bf16 %.1e (%s); seconds: written %.1f, cpu %.1f, f32 %.1f, bf16 %.1f; GPU %.1f GB\n",
           model->name, model->n_experts, model->top_k, model->d_model, model->d_expert, model->heads, model->kv_heads,
           model->head_dim, r.m->arch.n_layers, c.to.n_live, f32.most, f32.where, bf16.most, bf16.where, seconds[0], seconds[1],
           seconds[2], seconds[3], 1e-9 * (double)(held > report.device_bytes ? held : report.device_bytes));
    fflush(stdout);
    exf_model_close(r.m);
    released_checkpoint_free(&c);
    ck_assert_msg(f32.most <= most_f32, "%s: float32: %g at %s", model->name, f32.most, f32.where);
    ck_assert_msg(bf16.most <= most_bf16, "%s: bfloat16: %g at %s", model->name, bf16.most, bf16.where);
}

/* Returns 1 if the row is to run: all are, or the one that EXF_RELEASED names, which must be one. */
static int is_chosen(int row)
{
    const char *only = getenv("EXF_RELEASED");
    int known = 0;
    if (!only || !*only) return row < table.n;
    for (int i = 0; i < table.n; i++) known |= strcmp(only, table.row[i].name) == 0;
    ck_assert_msg(known, RELEASED_TABLE " has no model %s", only);
    return row < table.n && strcmp(only, table.row[row].name) == 0;
}

/* Models of one shape run once. */
START_TEST(statistics_are_the_cpus)
{
    int alike;
    released_read(&table);
    if (!is_chosen(_i)) return;
    alike = released_first_alike(&table, _i);
    if (alike != _i && is_chosen(alike))
        printf("released: %s as %s\n", table.row[_i].name, table.row[alike].name);
    else
        check_released(&table.row[_i]);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, start_empty);
    tcase_add_loop_test(t, statistics_are_the_cpus, 0, MOST_RELEASED);
}
