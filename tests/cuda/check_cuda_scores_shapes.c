/* check_cuda_scores_shapes.c - rows of logits scored, and errors of output rows summed, on the GPU at every boundary of their
 * kernels, against the CPU's functions. */
#include "kernels/statistics/divergence.h"
#include "tests/support/one_device_fixtures.h"
#include "tests/support/pairwise.h"

static exf_err e;

/* ---- logits --------------------------------------------------------------------------------------- */

enum { WIDTH, ROWS, SHIFT, DIMENSIONS }; /* shift 1: logits begin after a multiple of 16 bytes, 2: log_p does */
static const dimension dimensions[] = {{"logits", 1, 262144}, {"rows", 1, 9}, {"shift", 0, 2}};

static const boundary boundaries[] = {
    {"statistics/divergence_cuda.cu", "c->n % 4", WIDTH, 4},
    {"statistics/divergence_cuda.cu", "SCORE_THREADS", WIDTH, 512},
    {"statistics/divergence_cuda.cu", "AHEAD", WIDTH, 2 * 512},
    {"statistics/divergence_cuda.cu", "SCORE_THREADS", WIDTH, 4 * 512 - 5}, /* of groups of four: 511, 512 and 513 of them */
    {"statistics/divergence_cuda.cu", "SCORE_THREADS", WIDTH, 4 * 512},
    {"statistics/divergence_cuda.cu", "SCORE_THREADS", WIDTH, 4 * 512 + 5},
    {"statistics/divergence_cuda.cu", "AHEAD", WIDTH, 4 * 1024 - 5},
    {"statistics/divergence_cuda.cu", "AHEAD", WIDTH, 4 * 1024},
    {"statistics/divergence_cuda.cu", "AHEAD", WIDTH, 4 * 1024 + 5},
    {"statistics/divergence_cuda.cu", "c->n_rows", WIDTH, 262144}, /* the largest vocabulary */
    {"statistics/divergence_cuda.cu", "sizeof(float4)", SHIFT, 1},
};

static pairwise cases;

/* Steps of a quarter, so that the largest is often there twice, and other rows near them. */
static float logit_at(size_t i, int other)
{
    float x = rintf(real_at(61, i, 9) * 4) / 4;
    return other ? x + real_at(62, i, 2) : x;
}

static float *rows_of_logits(size_t n, int other)
{
    float *x = test_memory(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = logit_at(i, other);
    return x;
}

typedef struct {
    float *logits, *log_p, *scores; /* where they begin */
    int32_t *next, *top;
    void *of_logits, *of_log_p; /* memory */
    int rows, n;
} scored_device;

/* The token that came: of the first row the last one. */
static int32_t next_of(int row, int n, int rows)
{
    return n - 1 - (int32_t)((int64_t)n * row / rows);
}

static scored_device device_new(int rows, int n, int shift)
{
    size_t all = (size_t)rows * (size_t)n;
    int32_t next[64];
    for (int i = 0; i < rows; i++) next[i] = next_of(i, n, rows);
    scored_device o = {.rows = rows, .n = n, .of_logits = device_put(&d, NULL, (all + 2) * 4),
                       .of_log_p = device_put(&d, NULL, (all + 2) * 4), .next = device_put(&d, next, (size_t)rows * 4),
                       .top = device_put(&d, NULL, ((size_t)rows + 1) * 4),
                       .scores = device_put(&d, NULL, ((size_t)rows + 1) * 12)};
    o.logits = (float *)o.of_logits + (shift == 1);
    o.log_p = (float *)o.of_log_p + (shift == 2);
    return o;
}

/* nll, kl and same of each row, which the caller frees; memory behind them stays. */
typedef struct {
    float *nll, *kl;
    unsigned char *same;
} scores;

static scores score(const scored_device *o, const float *logits, int first)
{
    size_t rows = (size_t)o->rows;
    exf_score_call c = {.logits = o->logits, .next = o->next, .n_rows = o->rows, .n = o->n, .first = first, .log_p = o->log_p,
                        .top = o->top, .nll = o->scores, .kl = o->scores + rows + 1,
                        .same = (unsigned char *)(o->scores + 2 * (rows + 1))};
    d.b->upload(d.q, o->logits, logits, rows * (size_t)o->n * 4);
    d.b->gpu->score_rows(d.q, &c);
    float *all = device_get(&d, o->scores, (rows + 1) * 12);
    scores s = {all, all + rows + 1, (unsigned char *)(all + 2 * (rows + 1))};
    ck_assert(isnan(s.nll[rows]) && isnan(s.kl[rows]) && s.same[rows] == 0xff);
    return s;
}

static void check_device(const scored_device *o, const float *log_p, int row, int top, const char *name)
{
    size_t n = (size_t)o->n;
    float *got = test_memory(n, sizeof *got);
    int32_t at;
    ck_ok(d.b->download(d.q, got, o->log_p + (size_t)row * n, n * 4, &e), e);
    ck_ok(d.b->download(d.q, &at, o->top + row, 4, &e), e);
    ck_assert_msg(at == top, "%s: top of row %d is %d, expected %d", name, row, (int)at, top);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(got[i] - log_p[i]) <= 4e-6f, "%s: log_p[%d, %zu]: %.9g, expected %.9g", name, row, i, (double)got[i],
                      (double)log_p[i]);
    exf_mem_free(got);
}

/* Elements around the rows stay as they were. */
static void device_free(scored_device *o)
{
    size_t all = (size_t)o->rows * (size_t)o->n;
    float *log_p = device_get(&d, o->of_log_p, (all + 2) * 4);
    for (size_t i = 0; i < all + 2; i++) ck_assert(i - (size_t)(o->log_p - (float *)o->of_log_p) < all || isnan(log_p[i]));
    void *there[] = {o->of_logits, o->of_log_p, o->next, o->top, o->scores};
    for (int i = 0; i < COUNT(there); i++) d.b->free(there[i]);
    exf_mem_free(log_p);
}

START_TEST(rows_are_scored_as_on_the_cpu)
{
    const shape *s = &cases.shapes[_i];
    const char *name = pairwise_name(dimensions, DIMENSIONS, s);
    size_t n = (size_t)s->at[WIDTH], rows = (size_t)s->at[ROWS];
    float *first = rows_of_logits(rows * n, 0), *other = rows_of_logits(rows * n, 1);
    float *log_p = test_memory(n, sizeof *log_p), *p = test_memory(n, sizeof *p);
    scored_device o = device_new(s->at[ROWS], s->at[WIDTH], s->at[SHIFT]);
    scores own = score(&o, first, 1), apart = score(&o, other, 0), again = score(&o, first, 0);
    for (size_t r = 0; r < rows; r++) {
        int top, second;
        double log_sum;
        size_t next = (size_t)next_of((int)r, (int)n, (int)rows);
        exf_log_softmax_cpu(log_p, p, first + r * n, (int)n, &top);
        double kl = exf_divergence_cpu(log_p, p, other + r * n, (int)n, &log_sum, &second);
        ck_assert_msg(fabsf(own.nll[r] + log_p[next]) <= 4e-6f && own.kl[r] == 0 && own.same[r] == 1,
                      "%s: row %zu itself: %.9g, expected %.9g", name, r, (double)own.nll[r], (double)-log_p[next]);
        double nll = log_sum - (double)other[r * n + next];
        ck_assert_msg(fabs((double)apart.nll[r] - nll) <= 4e-6, "%s: row %zu: nll %.9g, expected %.9g", name, r,
                      (double)apart.nll[r], nll);
        ck_assert_msg(fabs((double)apart.kl[r] - (kl > 0 ? kl : 0)) <= 6e-6 && apart.same[r] == (top == second),
                      "%s: row %zu: %.9g, expected %.9g, same %d", name, r, (double)apart.kl[r], kl, apart.same[r]);
        ck_assert_msg(again.kl[r] == 0 && again.same[r] == 1, "%s: row %zu is not itself", name, r);
        check_device(&o, log_p, (int)r, top, name);
    }
    device_free(&o);
    void *here[] = {first, other, log_p, p, own.nll, apart.nll, again.nll};
    for (int i = 0; i < COUNT(here); i++) exf_mem_free(here[i]);
}
END_TEST

/* ---- errors of outputs ---------------------------------------------------------------------------- */

enum { ELEMENTS, OUTPUT_ROWS, ALONE, UNALIGNED, OUTPUT_DIMENSIONS };
static const dimension output_dimensions[] = {
    {"elements", 1, 7168}, {"rows", 0, 8449}, {"energies alone", 0, 1}, {"unaligned", 0, 1}};

static const boundary output_boundaries[] = {
    {"statistics/divergence_cuda.cu", "n % 4 == 0", ELEMENTS, 4},
    {"statistics/divergence_cuda.cu", "i += 32", ELEMENTS, 32},
    {"statistics/divergence_cuda.cu", "i < n / 4", ELEMENTS, 4 * 32},
    {"statistics/divergence_cuda.cu", "float4", ELEMENTS, 7168}, /* the widest models */
    {"statistics/divergence_cuda.cu", "THREADS", OUTPUT_ROWS, 8},
    {"statistics/divergence_cuda.cu", "if (n_rows)", OUTPUT_ROWS, 1}, /* none, one and two */
    {"statistics/divergence_cuda.cu", "multiprocessors * 8", OUTPUT_ROWS, 132 * 64}, /* warps take a second row */
};

static int outputs_are_valid(const shape *s)
{
    return (int64_t)s->at[ELEMENTS] * s->at[OUTPUT_ROWS] < 1 << 22;
}

static pairwise output_cases;

/* Small integers; in a few rows a number whose square no sum holds. */
static float *outputs(size_t rows, size_t n, size_t shift, uint32_t by)
{
    float *x = test_memory(rows * n + shift + 1, sizeof *x);
    for (size_t i = 0; i < rows * n; i++) x[shift + i] = (float)((int)((uint32_t)i * by >> 16) % 15 - 7);
    for (size_t r = 6; r < rows; r += 97) x[shift + r * n + r % n] = 1e15f;
    return x;
}

/* Adds the sums of ||b - a||^2 and ||a||^2, or, if b is NULL, of ||a||^2 and its inverse; returns the rows out of range. */
static unsigned long long sum_plainly(exf_exact total[2], const float *a, const float *b, size_t rows, size_t n)
{
    unsigned long long out_of_range = 0;
    for (size_t r = 0; r < rows; r++) {
        double error = 0, norm = 0;
        for (size_t i = r * n; i < (r + 1) * n; i++) {
            double x = (double)a[i], gap = b ? (double)b[i] - x : 0;
            error += gap * gap;
            norm += x * x;
        }
        if (!exf_exact_fits(error) || !exf_exact_fits(norm)) {
            out_of_range++;
            continue;
        }
        exf_exact_add(&total[0], b ? error : norm);
        exf_exact_add(&total[1], b ? norm : 1 / fmax(norm, EXF_LEAST_ENERGY));
    }
    return out_of_range;
}

START_TEST(errors_of_outputs_are_the_plain_ones)
{
    const shape *s = &output_cases.shapes[_i];
    const char *name = pairwise_name(output_dimensions, OUTPUT_DIMENSIONS, s);
    size_t n = (size_t)s->at[ELEMENTS], rows = (size_t)s->at[OUTPUT_ROWS], shift = (size_t)s->at[UNALIGNED];
    size_t bytes = (rows * n + shift + 1) * sizeof(float);
    float *a = outputs(rows, n, shift, 2654435761u), *b = outputs(rows, n, shift, 2246822519u);
    float *on_device = device_put(&d, a, bytes), *other = device_put(&d, b, bytes);
    /* Both structs are two rows of digits and the rows out of range. */
    union { exf_output_errors errors; exf_row_energies energies; } none = {.errors = {.out_of_range = 0}}, *sums, *got;
    exf_exact total[2] = {{{0, 0, 0}}, {{0, 0, 0}}}, read[2] = {{{0, 0, 0}}, {{0, 0, 0}}};
    unsigned long long want = 0;
    sums = device_put(&d, &none, sizeof none);
    for (int twice = 0; twice < 2; twice++) { /* sums go on */
        if (s->at[ALONE])
            d.b->gpu->row_energies(d.q, &sums->energies, on_device + shift, (int)rows, (int)n);
        else
            d.b->gpu->output_errors(d.q, &sums->errors, on_device + shift, other + shift, (int)rows, (int)n);
        want += sum_plainly(total, a + shift, s->at[ALONE] ? NULL : b + shift, rows, n);
    }
    got = device_get(&d, sums, sizeof *got);
    if (s->at[ALONE])
        exf_row_energies_read(&got->energies, &read[0], &read[1]);
    else
        exf_output_errors_read(&got->errors, &read[0], &read[1]);
    ck_assert_msg(memcmp(read, total, sizeof total) == 0, "%s: %.17g and %.17g, expected %.17g and %.17g", name,
                  exf_exact_value(&read[0]), exf_exact_value(&read[1]), exf_exact_value(&total[0]), exf_exact_value(&total[1]));
    ck_assert_msg(got->errors.out_of_range == want, "%s: %llu rows out of range, expected %llu", name, got->errors.out_of_range,
                  want);
    void *there[] = {on_device, other, sums}, *here[] = {a, b, got};
    for (int i = 0; i < COUNT(there); i++) d.b->free(there[i]);
    for (int i = 0; i < COUNT(here); i++) exf_mem_free(here[i]);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "scores", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, NULL);
    pairwise_shapes(&output_cases, "errors of outputs", output_boundaries, COUNT(output_boundaries), output_dimensions,
                    OUTPUT_DIMENSIONS, outputs_are_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, rows_are_scored_as_on_the_cpu, 0, cases.n_shapes);
    tcase_add_loop_test(t, errors_of_outputs_are_the_plain_ones, 0, output_cases.n_shapes);
}
