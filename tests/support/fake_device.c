/* fake_device.c - see fake_device.h. */
#include "tests/support/fake_device.h"

#include "base/mem.h"
#include "kernels/fold/fold_cpu.h"
#include "model/architecture.h"
#include "model/dequantize.h"
#include "tests/support/fixtures.h"

#include <pthread.h>
#include <math.h>
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

static exf_code pin(void *memory, size_t bytes, const char *what, exf_err *err)
{
    (void)memory, (void)bytes, (void)what, (void)err;
    return EXF_OK;
}

static void unpin(void *memory)
{
    (void)memory;
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

/* A clock that ticks once a stamp: calls are done when they return. */
static void stamp(exf_queue *q, uint64_t *ns)
{
    static uint64_t now;
    (void)q;
    *ns = ++now;
}

static const exf_coding coding_of[] = {
    [EXF_DEVICE_CODED_FP8] = EXF_CODED_FP8,   [EXF_DEVICE_CODED_FP4] = EXF_CODED_FP4, [EXF_DEVICE_CODED_INT4] = EXF_CODED_INT4,
    [EXF_DEVICE_CODED_GPTQ] = EXF_CODED_GPTQ, [EXF_DEVICE_CODED_AWQ] = EXF_CODED_AWQ};

static void decode(float *to, const exf_device_coded_rows *r)
{
    int turned = r->coding == EXF_DEVICE_CODED_GPTQ || r->coding == EXF_DEVICE_CODED_AWQ;
    size_t rows = turned ? r->rows : (r->rows + r->block_rows - 1) / r->block_rows;
    size_t n = rows * ((r->cols + r->block_cols - 1) / r->block_cols);
    float *scales, factor = 1;
    exf_err err;
    ck_ok(exf_mem_new(&scales, n, sizeof *scales, "scales", &err), err);
    exf_dtype_to_f32(scales, r->scales, n, r->scale_dtype);
    if (r->factor) memcpy(&factor, r->factor, sizeof factor);
    for (size_t i = 0; r->factor && i < n; i++) scales[i] = r->divides ? scales[i] / factor : scales[i] * factor;
    exf_coded_rows c = {.codes = r->codes, .scales = scales, .rows = r->rows, .cols = r->cols, .block_rows = r->block_rows,
                        .block_cols = r->block_cols, .zeros = r->zeros, .zero_add = r->zero_add, 
                        .zero_carries = r->zero_carries, .groups = r->groups,
                        .all_rows = r->rows, .step = 1};
    exf_dequantize(to, coding_of[r->coding], &c);
    exf_mem_free(scales);
}

static float *widened(const void *bf16, size_t n)
{
    float *x;
    exf_err err;
    ck_ok(exf_mem_new(&x, n, sizeof *x, "widened", &err), err);
    exf_dtype_to_f32(x, bf16, n, EXF_DT_BF16);
    return x;
}

/* bfloat16 that lost something would not be what plans promise of a pass in float32. */
static void narrow(uint16_t *to, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        ck_assert_msg((u & 0xffff) == 0, "a weight is more than bfloat16 holds");
        to[i] = (uint16_t)(u >> 16);
    }
}

static void round_rows(exf_queue *q, uint16_t *out, int ldo, const float *x, int ldx, int n_rows, int n)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) narrow(out + (size_t)r * (size_t)ldo, x + (size_t)r * (size_t)ldx, (size_t)n);
}

static void unpack(exf_queue *q, void *to, exf_number number, const exf_device_coded_rows *r, int *bad)
{
    size_t n = r->rows * r->cols;
    float *values = to;
    exf_err err;
    (void)q;
    if (number == EXF_NUMBER_BF16) ck_ok(exf_mem_new(&values, n, sizeof *values, "decoded", &err), err);
    if (r->coding == EXF_DEVICE_CODED_PLAIN)
        exf_dtype_to_f32(values, r->codes, n, r->dtype);
    else
        decode(values, r);
    if (exf_first_not_finite(values, n) < n) *bad = 1;
    if (number != EXF_NUMBER_BF16) return;
    narrow(to, values, n);
    exf_mem_free(values);
}

static void check_bf16(exf_queue *q, const uint16_t *x, size_t n, int *bad)
{
    (void)q;
    for (size_t i = 0; i < n; i++)
        if ((x[i] & 0x7f80) == 0x7f80) *bad = 1;
}

/* A bfloat16 matrix is widened, and the CPU multiplies. */
static void gemm_xwt(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k,
                     float alpha, float beta)
{
    float *wide = w.number == EXF_NUMBER_BF16 ? widened(w.p, n > 0 ? (size_t)(n - 1) * (size_t)ldw + (size_t)k : 0) : NULL;
    exf_backend_cpu.gemm_xwt(q, y, ldy, x, ldx, wide ? exf_f32(wide) : w, ldw, m, n, k, alpha, beta);
    exf_mem_free(wide);
}

static void gemm_xwt_many(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, const exf_product_steps *s,
                          int m, int n, int k)
{
    for (int i = 0; i < s->count; i++)
        gemm_xwt(q, y + (size_t)i * (size_t)s->y, ldy, exf_matrix_at(x, (size_t)i * (size_t)s->x), ldx,
                 exf_matrix_at(w, (size_t)i * s->w), ldw, m, n, k, 1, 0);
}

/* One token at a time, so that a token's outputs do not depend on the others, as on a GPU. */
static void experts_by_token(exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
                             const exf_expert_shape *s, void *workspace)
{
    size_t h = (size_t)s->d_model, k = (size_t)s->top_k;
    exf_expert_shape one = *s;
    one.n_tokens = 1;
    for (size_t t = 0; t < (size_t)s->n_tokens; t++)
        exf_backend_cpu.experts(q, exf_matrix_at(outputs, t * k * h), exf_matrix_at(x, t * h), ids + t * k, m, &one, workspace);
}

static void experts(exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
                    const exf_expert_shape *s, void *workspace)
{
    size_t n = (size_t)s->n_experts * (size_t)s->d_model * (size_t)s->d_expert;
    int half = m->gate.number == EXF_NUMBER_BF16;
    float *gate = half ? widened(m->gate.p, n) : NULL, *up = half ? widened(m->up.p, n) : NULL,
          *down = half ? widened(m->down.p, n) : NULL;
    exf_expert_matrices wide = *m;
    wide.gate = exf_f32(gate);
    wide.up = exf_f32(up);
    wide.down = exf_f32(down);
    experts_by_token(q, outputs, x, ids, half ? &wide : m, s, workspace);
    exf_mem_free(gate);
    exf_mem_free(up);
    exf_mem_free(down);
}

static void embed(exf_queue *q, float *out, exf_matrix table, const int32_t *tokens, size_t n_tokens, int width, int streams)
{
    size_t w = (size_t)width;
    (void)q;
    for (size_t t = 0; t < n_tokens; t++)
        for (int k = 0; k < streams; k++, out += w)
            exf_dtype_to_f32(out, exf_matrix_at(table, (size_t)tokens[t] * w).p, w,
                             table.number == EXF_NUMBER_BF16 ? EXF_DT_BF16 : EXF_DT_F32);
}

static void watch_finite(exf_queue *q, uint64_t *least, const float *x, size_t n, uint64_t base)
{
    size_t at = exf_first_not_finite(x, n);
    (void)q;
    if (at < n && base + at < *least) *least = base + at;
}

static void output_errors(exf_queue *q, exf_output_errors *sums, const float *a, const float *b, int n_rows, int n)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) {
        double square[2] = {0, 0};
        for (int i = 0; i < n; i++) {
            double x = (double)a[r * n + i], d = (double)b[r * n + i] - x;
            square[0] += d * d;
            square[1] += x * x;
        }
        if (!exf_exact_fits(square[0]) || !exf_exact_fits(square[1])) sums->out_of_range++;
        for (int s = 0; s < 2 && exf_exact_fits(square[s]); s++) {
            exf_exact t = exf_exact_from(square[s]);
            for (int d = 0; d < 6; d++) sums->digit[s][d] += t.limb[d / 2] >> 32 * (d & 1) & 0xffffffffu;
        }
    }
}

static void row_energies(exf_queue *q, exf_row_energies *sums, const float *x, int n_rows, int n)
{
    (void)q;
    for (int r = 0; r < n_rows; r++) {
        double square = exf_row_energy(x + (size_t)r * (size_t)n, n), term[2] = {square, 1 / fmax(square, EXF_LEAST_ENERGY)};
        for (int s = 0; s < 2; s++) {
            exf_exact t = exf_exact_from(term[s]);
            for (int d = 0; d < 6; d++) sums->digit[s][d] += t.limb[d / 2] >> 32 * (d & 1) & 0xffffffffu;
        }
    }
}

static void add_exact(exf_queue *q, exf_exact *to, const exf_exact *from, size_t n, uint64_t *wrapped)
{
    (void)q;
    for (size_t i = 0; i < n; i++)
        if (exf_exact_merge(&to[i], &from[i]) && ~(uint64_t)i > *wrapped) *wrapped = ~(uint64_t)i;
}

static void add_integers(exf_queue *q, int64_t *to, const int64_t *from, size_t n, uint64_t *wrapped)
{
    (void)q;
    for (size_t i = 0; i < n; i++)
        if (__builtin_add_overflow(to[i], from[i], &to[i]) && ~(uint64_t)i > *wrapped) *wrapped = ~(uint64_t)i;
}

/* ---- layer sums, by the CPU's functions: the arrays of exf_layer_sums in one piece of memory ---- */

static size_t layer_sums_bytes(int n_experts)
{
    size_t e = (size_t)n_experts;
    return (6 * e * e + 5 * e) * sizeof(exf_exact) + (e * e + e + 1) * sizeof(uint64_t);
}

static exf_layer_sums layer_sums_in(void *sums, int n_experts)
{
    size_t e = (size_t)n_experts;
    exf_exact *pair = sums, *expert = pair + 6 * e * e;
    uint64_t *count = (uint64_t *)(void *)(expert + 5 * e);
    return (exf_layer_sums){pair, pair + e * e, pair + 2 * e * e, pair + 3 * e * e, pair + 4 * e * e, pair + 5 * e * e, count,
                            expert, expert + e, expert + 2 * e, expert + 3 * e, expert + 4 * e, count + e * e, count + e * e + e};
}

static void layer_sums_add(exf_queue *q, void *sums, const exf_layer_sums_call *c)
{
    exf_layer_sums m = layer_sums_in(sums, c->n_experts);
    double scratch[64 * 64];
    exf_err err;
    (void)q;
    ck_assert_int_eq(c->outputs.number, EXF_NUMBER_F32);
    if (c->experts_only)
        ck_ok(exf_layer_sums_add_experts_cpu(&m, c->top_k, c->d_model, c->n_tokens, c->outputs.p, c->ids, c->weights, &err), err);
    else
        ck_ok(exf_layer_sums_add_cpu(&m, c->n_experts, c->top_k, c->d_model, c->n_tokens, c->outputs.p, NULL, c->ids,
                                     c->weights, c->weighting, scratch, &err), err);
}

static void layer_sums_add_common_input(exf_queue *q, void *sums, const exf_common_input_call *c)
{
    const exf_gram_call *g = c->of;
    exf_layer_sums m = layer_sums_in(sums, g->n_experts);
    size_t row = (size_t)g->n_experts * (size_t)g->d_model;
    double *scratch;
    exf_err err;
    (void)q;
    size_t room = exf_layer_sums_common_input_scratch(g->n_experts, g->d_model);
    ck_ok(exf_mem_new(&scratch, room, sizeof *scratch, "scratch", &err), err);
    const float *outputs = (const float *)g->outputs.p + (size_t)c->first * row;
    ck_ok(exf_layer_sums_add_common_input_cpu(&m, g->n_experts, g->d_model, c->n_tokens, outputs, c->weighting, scratch, &err),
          err);
    exf_mem_free(scratch);
}

/* Sums over sequences and of halves are not kept. */
static void close_sequence(exf_queue *q, void *sums, int n_experts, double scale, uint64_t sequence)
{
    (void)q, (void)sums, (void)n_experts, (void)scale, (void)sequence;
}

static void turn_half(exf_queue *q, void *sums, int n_experts, int add)
{
    (void)q, (void)sums, (void)n_experts, (void)add;
}

static void gram_matrices(exf_queue *q, const exf_gram_call *c)
{
    (void)q, (void)c;
}

static exf_code layer_sums_take(exf_queue *q, void *sums, const exf_layer_sums *to, const exf_sequence_sums *over, int n_experts,
                                exf_sums_place *place, exf_err *err)
{
    exf_layer_sums m = layer_sums_in(sums, n_experts);
    size_t e = (size_t)n_experts;
    (void)q, (void)over, (void)err;
    *place = (exf_sums_place){-1, -1};
    memcpy(to->dot, m.dot, e * e * sizeof *m.dot);
    memcpy(to->count, m.count, e * e * sizeof *m.count);
    memcpy(to->norm_sum, m.norm_sum, e * sizeof *m.norm_sum);
    memset(sums, 0, layer_sums_bytes(n_experts));
    return EXF_OK;
}

/* The values of a cell; of what was added, *before less. */
static void cell_values(exf_exact out[6], void *sums, const exf_cells_call *c, size_t i)
{
    exf_layer_sums m = layer_sums_in(sums, c->n_experts);
    size_t w = (size_t)c->width, row = i / w / w * w;
    int a = c->ids[row + i / w % w], b = c->ids[row + i % w];
    size_t at = (size_t)a * (size_t)c->n_experts + (size_t)b;
    memset(out, 0, 6 * sizeof *out);
    if (a < 0 || b < 0) return;
    const exf_exact *pair[] = {m.dot, m.target_sq, m.source_sq, exf_cell_has_cosine(a, b) ? m.cosine_sum : m.dot0, m.sq0};
    const exf_exact *expert[] = {m.norm_sum, m.sq_sum, m.route_weight_sum, m.contribution_sum, m.energy_sum};
    for (int s = 0; s < 5; s++) out[s] = a == b ? expert[s][a] : pair[s][at];
    out[5] = exf_exact_from((double)(a == b ? m.norm_count[a] : m.count[at]));
}

static void cells_before(exf_queue *q, const void *sums, const exf_cells_call *c)
{
    (void)q;
    for (size_t i = 0, n = (size_t)(c->n_rows * c->width * c->width); i < n; i++)
        cell_values((exf_exact *)(void *)(c->before + i * EXF_CELL_WORDS), (void *)(uintptr_t)sums, c, i);
}

static void cells_added(exf_queue *q, const void *sums, const exf_cells_call *c)
{
    (void)q;
    for (size_t i = 0, n = (size_t)(c->n_rows * c->width * c->width); i < n; i++) {
        exf_exact now[6], *before = (exf_exact *)(void *)(c->before + i * EXF_CELL_WORDS);
        cell_values(now, (void *)(uintptr_t)sums, c, i);
        for (int s = 0; s < 6; s++) {
            exf_exact_negate(&before[s]);
            (void)exf_exact_merge(&now[s], &before[s]);
            c->added[i * EXF_CELL_VALUES + (size_t)s] = exf_exact_value(&now[s]);
        }
    }
}

static size_t gram_matrices_bytes(int n_experts, int n_tokens)
{
    (void)n_experts;
    (void)n_tokens;
    return 0;
}

static void correct_routes(exf_queue *q, float *routed, const exf_correction_tables *t, const exf_correction_call *c)
{
    (void)q;
    ck_assert_int_eq(c->outputs.number, EXF_NUMBER_F32);
    exf_correct_routes_cpu(routed, t, c);
}

/* ---- routes, by the functions of exfold/fold.h on the CPU -------------------------------------------------- */

static exf_fold_routes rows_of(int32_t *ids, float *weights, int rows, int width)
{
    return (exf_fold_routes){.ids = ids, .weights = weights, .rows = rows, .width = width};
}

/* Rows one by one, by the ranks of the functions on the CPU. */
static void keep_row(int32_t *ids, float *weights, const exf_run_routes *r, const exf_prefill_call *c)
{
    exf_fold_routes in = rows_of(ids, weights, 1, r->top_k);
    if (r->norms) in.norms = r->norms + (ids - r->ids);
    exf_fold_ranked ranked;
    float all = 0, rest = 0;
    double sum = 0;
    exf_fold_rank_row(&ranked, &in, 0, &c->tables, c->options.rank);
    for (int i = 0; i < ranked.n; i++) {
        all += ranked.w[i];
        sum += (double)ranked.w[i];
        rest += i < c->keep ? ranked.w[i] : 0;
    }
    for (int i = 0; i < r->top_k; i++) {
        int above = c->form == EXF_PREFILL_ABOVE && exf_fold_reaches(c->factor, (double)ranked.w[i], c->tau, sum);
        int runs = i < ranked.n && (i < c->keep || above);
        ids[i] = runs ? ranked.id[i] : -1;
        weights[i] = runs ? ranked.w[i] * (c->renorms && rest > 0 ? all / rest : 1) : 0;
    }
}

static exf_fold_status prefill_routes(exf_queue *q, const exf_run_routes *r, const exf_prefill_call *c)
{
    int32_t ids[64];
    float weights[64];
    (void)q;
    for (size_t row = 0; row < r->n_tokens; row++) {
        size_t at = row * (size_t)r->top_k;
        exf_fold_routes in = rows_of(r->ids + at, r->weights + at, 1, r->top_k), out = rows_of(ids, weights, 1, r->top_k);
        if (r->norms) in.norms = r->norms + at;
        if (c->prefill && !c->prefill[row]) continue;
        if (c->form == EXF_PREFILL_KEPT || c->form == EXF_PREFILL_ABOVE) {
            keep_row(r->ids + at, r->weights + at, r, c);
            continue;
        }
        exf_fold_status s = c->form == EXF_PREFILL_BY_BUDGET ? exf_fold_prefill_budget_cpu(&in, &out, NULL, &c->tables, &c->budget)
                            : c->form == EXF_PREFILL_JOINED  ? exf_fold_prefill_joint_cpu(&in, &out, &c->tables, &c->options)
                                                             : exf_fold_prefill_cpu(&in, &out, &c->tables, &c->options);
        if (s != EXF_FOLD_OK) return s;
        for (int k = 0; k < r->top_k; k++) {
            r->ids[at + (size_t)k] = ids[k];
            r->weights[at + (size_t)k] = ids[k] >= 0 ? weights[k] : 0;
        }
    }
    return EXF_FOLD_OK;
}

static void put_row(const exf_run_routes *r, size_t row, const int32_t *ids, float *w, const exf_steps_call *c)
{
    int32_t *to = r->ids + row * (size_t)r->top_k;
    float *to_w = r->weights + row * (size_t)r->top_k, all = 0, kept = 0;
    for (int k = 0; k < r->top_k; k++) {
        if (c->drops && ids[k] != to[k]) w[k] = 0;
        all += ids[k] >= 0 ? to_w[k] : 0;
        kept += ids[k] >= 0 ? w[k] : 0;
    }
    for (int k = 0; k < r->top_k; k++) {
        to[k] = ids[k];
        to_w[k] = c->renorms && kept > 0 ? w[k] * (all / kept) : w[k];
    }
}

/* The norm of the router's route to the expert that is in slot k of a row now. */
static float norm_now(const exf_run_routes *r, size_t row, int k)
{
    const int32_t *routed = (r->routed ? r->routed : r->ids) + row * (size_t)r->top_k, *ids = r->ids + row * (size_t)r->top_k;
    int slot = 0;
    while (slot + 1 < r->top_k && routed[slot] != ids[k]) slot++;
    return r->norms[row * (size_t)r->top_k + (size_t)slot];
}

/* Nothing reads rows here: x is never in two parts. */
static void norm_head_rows(exf_queue *q, uint16_t *rows, const float *basis, int n_layers, int d_model, int directions)
{
    (void)q;
    (void)basis;
    memset(rows, 0xff, (size_t)n_layers * (size_t)d_model * (size_t)directions * EXF_NORM_HEAD_ROWS * sizeof *rows);
}

static void predict_norms(exf_queue *q, const exf_norm_head_call *c)
{
    const float *x = c->x;
    (void)q;
    ck_assert(!c->split);
    for (int slot = 0; slot < c->n_tokens * c->top_k; slot++) {
        int t = slot / c->top_k, id = c->ids[slot], first = t * c->top_k;
        double square = 0, mean = 0, sum;
        c->routed[slot] = id;
        if (id < 0) continue;
        while (c->ids[first] != id) first++;
        const float *theta = c->theta + id * (c->directions + 4), *own = x + (size_t)t * (size_t)c->d_model;
        for (int e = 0; e < c->n_experts; e++) mean += (double)c->logits[t * c->n_experts + e] / c->n_experts;
        for (int i = 0; i < c->d_model; i++) square += (double)own[i] * (double)own[i];
        sum = (double)theta[0] + (double)theta[c->directions + 1] * ((double)c->logits[t * c->n_experts + id] - mean) +
              (double)theta[c->directions + 2] * log(fmax((double)c->weights[first], 1e-6)) +
              (double)theta[c->directions + 3] * log(fmax(sqrt(square), 1e-10));
        for (int i = 0; i < c->d_model; i++)
            for (int k = 0; k < c->directions; k++)
                sum += (double)theta[1 + k] * (double)own[i] * (double)c->basis[i * c->directions + k];
        c->norms[slot] = (float)exp(sum);
        uint64_t row = c->row + (uint64_t)t;
        if ((!(c->norms[slot] > 0) || !isfinite(c->norms[slot])) && row < *c->bad) *c->bad = row;
    }
}

/* Scores are [2, rows, E] after the routes in the workspace, which has room for the widest step. */
static exf_fold_status stand_in(const exf_fold_routes *io, const size_t *row, const exf_steps_call *c, float *scores)
{
    double score[EXF_MAX_EXPERTS];
    int e = c->tables.n_experts;
    float *gate = scores + (size_t)io->rows * (size_t)e;
    for (int i = 0; i < io->rows; i++) {
        exf_router_scores_cpu(score, c->logits + row[i] * (size_t)e, c->score, e);
        for (int j = 0; j < e; j++) {
            gate[i * e + j] = (float)score[j];
            scores[i * e + j] = (float)(score[j] + (c->bias ? (double)c->bias[j] : 0));
        }
    }
    exf_fold_scores s = {.choice = scores, .gate = gate, .type = EXF_FOLD_F32};
    return exf_fold_decode_stand_ins_cpu(io, &s, c->members, &c->tables, &c->stand_ins);
}

static exf_fold_status step_routes(exf_queue *q, const exf_run_routes *r, const exf_steps_call *c)
{
    size_t k = (size_t)r->top_k;
    int32_t *ids = c->workspace;
    float *weights = (float *)(void *)(ids + (size_t)c->steps.widest * k), *norms = weights + (size_t)c->steps.widest * k;
    (void)q;
    for (size_t step = 0; step < c->steps.n_steps; step++) {
        size_t from = c->steps.first[step], n = c->steps.first[step + 1] - from;
        exf_fold_routes io = rows_of(ids, weights, (int)n, r->top_k);
        if (r->norms) io.norms = norms;
        for (size_t i = 0; i < n; i++) {
            memcpy(ids + i * k, r->ids + c->steps.row[from + i] * k, k * sizeof *ids);
            memcpy(weights + i * k, r->weights + c->steps.row[from + i] * k, k * sizeof *weights);
            for (size_t j = 0; r->norms && j < k; j++) norms[i * k + j] = norm_now(r, c->steps.row[from + i], (int)j);
        }
        exf_fold_status s = c->form == EXF_STEPS_REMAPPED
                                ? exf_fold_decode_static_cpu(&io, c->target_ids, c->target_scale, c->tables.n_experts)
                            : c->form == EXF_STEPS_BY_ROUTER
                                ? stand_in(&io, c->steps.row + from, c, norms + (size_t)c->steps.widest * k)
                            : c->form == EXF_STEPS_JOINED ? exf_fold_decode_joint_cpu(&io, &c->tables, &c->options)
                                                          : exf_fold_decode_cpu(&io, &c->tables, &c->options);
        if (s != EXF_FOLD_OK) return s;
        for (size_t i = 0; i < n; i++) put_row(r, c->steps.row[from + i], ids + i * k, weights + i * k, c);
    }
    return EXF_FOLD_OK;
}

static uint64_t mark(unsigned char *seen, const int32_t *ids, size_t n)
{
    uint64_t fresh = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && !seen[ids[i]]) {
            seen[ids[i]] = 1;
            fresh++;
        }
    return fresh;
}

static void count_row_experts(exf_queue *q, uint64_t *count, const exf_run_routes *r)
{
    (void)q;
    for (size_t row = 0; row < r->n_tokens; row++) {
        unsigned char seen[EXF_MAX_EXPERTS] = {0};
        *count += mark(seen, r->ids + row * (size_t)r->top_k, (size_t)r->top_k);
    }
}

static void count_step_experts(exf_queue *q, uint64_t *count, const exf_run_routes *r, const exf_route_steps *s, int n_experts)
{
    (void)q;
    ck_assert_int_le(n_experts, EXF_MAX_EXPERTS);
    for (size_t step = 0; step < s->n_steps; step++) {
        unsigned char seen[EXF_MAX_EXPERTS] = {0};
        for (size_t i = s->first[step]; i < s->first[step + 1]; i++)
            *count += mark(seen, r->ids + s->row[i] * (size_t)r->top_k, (size_t)r->top_k);
    }
}

static void count_slots(exf_queue *q, uint64_t *count, const int32_t *ids, size_t n)
{
    (void)q;
    for (size_t i = 0; i < n; i++) *count += ids[i] >= 0;
}

static void carry(exf_queue *q, void *to, const void *from, size_t bytes)
{
    (void)q;
    memcpy(to, from, bytes);
}

static const exf_gpu_operations gpu = {
    .alloc_staging = alloc_staging, .free_staging = exf_mem_free, .pin = pin, .unpin = unpin,
    .memory = memory, .memory_reset_peak = memory_reset_peak,
    .memory_left = memory_left,
    .stamp = stamp, .wait_for = follow, .dequantize = unpack, .round_rows = round_rows, .check_bf16 = check_bf16, .embed = embed,
    .watch_finite = watch_finite,
    .output_errors = output_errors, .row_energies = row_energies, .add_exact = add_exact, .add_integers = add_integers,
    .layer_sums_bytes = layer_sums_bytes, .layer_sums_add = layer_sums_add, .layer_sums_take = layer_sums_take,
    .layer_sums_close_sequence = close_sequence,
    .layer_sums_turn_half = turn_half,
    .layer_sums_cells_before = cells_before, .layer_sums_cells_added = cells_added, .gram_matrices = gram_matrices,
    .layer_sums_add_common_input = layer_sums_add_common_input, .gram_matrices_bytes = gram_matrices_bytes,
    .correct_routes = correct_routes,
    .norm_head_rows = norm_head_rows, .predict_norms = predict_norms, .prefill_routes = prefill_routes, .step_routes = step_routes,
    .count_row_experts = count_row_experts,
    .count_step_experts = count_step_experts, .count_slots = count_slots, .carry = carry,
};

const exf_backend *fake_device(uint64_t room)
{
    static exf_backend b;
    free_at_first = room;
    b = exf_backend_cpu;
    b.name = "fake";
    b.gpu = &gpu;
    b.alloc = fake_alloc;
    b.free = fake_free;
    b.gemm_xwt = gemm_xwt;
    b.gemm_xwt_many = gemm_xwt_many;
    b.experts = experts;
    return &b;
}
