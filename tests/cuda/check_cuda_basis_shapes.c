/* check_cuda_basis_shapes.c - second moments of rows and subspace iteration on the GPU, at every boundary of their kernels:
 * moments of small integers to the bit; of a matrix whose eigenvectors are known, columns that are orthonormal and span the
 * leading ones. */
#include "kernels/linear/linear.h"
#include "tests/support/one_device_fixtures.h"
#include "tests/support/pairwise.h"

static exf_err e;

/* Frees memory, behind whose first `used` bytes eight more are still poisoned. */
static void free_guarded(void *p, size_t used, const char *what)
{
    unsigned char left[8];
    ck_ok(d.b->download(d.q, left, (char *)p + used, sizeof left, &e), e);
    for (size_t i = 0; i < sizeof left; i++) ck_assert_msg(left[i] == 0xff, "%s: something was written beyond the end", what);
    d.b->free(p);
}

static void *poisoned(size_t bytes)
{
    return device_put(&d, NULL, bytes + 8);
}

/* ---- second moments ------------------------------------------------------------------------------- */

enum { N, H, PARTS, ROUNDED, WANTS_SUM, DIMENSIONS }; /* parts 0: residuals of a target */
static const dimension dimensions[] = {
    {"samples", 0, 2049}, {"hidden", 1, 7168}, {"parts", 0, 2}, {"bfloat16", 0, 1}, {"sum", 0, 1}};

static const boundary boundaries[] = {
    {"statistics/lowrank_sums_moments_cuda.cu", "SUM_ROWS", N, 8},
    {"statistics/lowrank_sums_moments_cuda.cu", "EXF_RESIDUAL_ROWS", N, 2048},
    {"statistics/lowrank_sums_moments_cuda.cu", "at < c->n", N, 1}, /* none, one and two */
    {"statistics/lowrank_sums_moments_cuda.cu", "SUM_COLUMNS", H, 32},
    {"statistics/lowrank_sums_moments_cuda.cu", "(cells, 256)", H, 16},
    {"statistics/lowrank_sums_moments_cuda.cu", "(unsigned)n, 256", H, 256},
    {"statistics/lowrank_sums_moments_cuda.cu", "c->d_model", H, 7168 + 1}, /* the widest models */
    {"statistics/lowrank_sums_moments_cuda.cu", "c.parts == 2", PARTS, 1},
};

static int is_valid(const shape *s)
{
    return (int64_t)s->at[H] * s->at[H] * s->at[N] < 1 << 28 && (s->at[H] < 7168 || s->at[N] == 1);
}

static pairwise cases;

static int small_integer(size_t i, uint32_t by)
{
    return (int)((uint32_t)i * by >> 16) % 7 - 3;
}

/* Rows of a source of one part or two, and of a target, in host memory as float32 or bfloat16. */
static void *integers(size_t n, int rounded, uint32_t by)
{
    size_t size = rounded ? 2 : 4;
    char *host = test_memory(n, size);
    for (size_t i = 0; i < n; i++) {
        float x = (float)small_integer(i, by);
        uint16_t half = to_bf16(x);
        memcpy(host + i * size, rounded ? (void *)&half : (void *)&x, size);
    }
    return host;
}

static const uint32_t by_source = 2654435761u, by_target = 2246822519u;

static const double scalars[] = {1, -1, 0.5, 2, 0};

/* Sample i of a run, [H]; 0 where it is left out. */
static void read_sample(double *x, size_t i, int place, size_t h, int parts)
{
    for (size_t k = 0; k < h; k++) {
        size_t at = (size_t)(place < 0 ? 0 : place) * (size_t)(parts == 2 ? 2 : 1) * h + k;
        if (parts == 0)
            x[k] = place < 0 ? 0 : small_integer(at, by_source) - scalars[i % COUNT(scalars)] * small_integer(at, by_target);
        else
            x[k] = small_integer(at, by_source) + (parts == 2 ? small_integer(at + h, by_source) : 0);
    }
}

static void compare_moments(const double *gram, const double *sum, const int32_t *place, const shape *s)
{
    size_t h = (size_t)s->at[H], n = (size_t)s->at[N];
    double *want = test_memory(h * h, sizeof *want), *columns = test_memory(h, sizeof *columns), *x = test_memory(h, sizeof *x);
    for (size_t i = 0; i < n; i++) {
        read_sample(x, i, place[i], h, s->at[PARTS]);
        for (size_t a = 0; a < h; a++) {
            columns[a] += x[a];
            for (size_t b = 0; b <= a && x[a] != 0; b++) want[a * h + b] += x[a] * x[b];
        }
    }
    for (size_t a = 0; a < h; a++)
        for (size_t b = 0; b < h; b++) {
            double w = want[a > b ? a * h + b : b * h + a];
            if (gram[a * h + b] != w)
                ck_abort_msg("%s: gram[%zu, %zu]: %.17g, expected %.17g", pairwise_name(dimensions, DIMENSIONS, s), a, b,
                             gram[a * h + b], w);
        }
    for (size_t a = 0; sum && a < h; a++)
        if (sum[a] != columns[a])
            ck_abort_msg("%s: sum[%zu]: %.17g, expected %.17g", pairwise_name(dimensions, DIMENSIONS, s), a, sum[a], columns[a]);
    exf_mem_free(want);
    exf_mem_free(columns);
    exf_mem_free(x);
}

START_TEST(moments_are_the_plain_ones)
{
    const shape *s = &cases.shapes[_i];
    size_t n = (size_t)s->at[N], h = (size_t)s->at[H], rows = n + 3, size = s->at[ROUNDED] ? 2 : 4;
    size_t elements = rows * h * (s->at[PARTS] == 2 ? 2 : 1);
    exf_number number = s->at[ROUNDED] ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
    int32_t *place = test_memory(rows, sizeof *place);
    double *scalar = test_memory(rows, sizeof *scalar);
    for (size_t i = 0; i < n; i++) {
        place[i] = s->at[PARTS] == 0 && i % 5 == 2 ? -1 : (int32_t)((i * 7 + 3) % rows);
        scalar[i] = place[i] < 0 ? NAN : scalars[i % COUNT(scalars)];
    }
    void *source = integers(elements, s->at[ROUNDED], by_source), *target = integers(elements, s->at[ROUNDED], by_target);
    exf_residual_call c = {.source = {device_put(&d, source, elements * size), number}, .parts = s->at[PARTS],
                           .place = device_put(&d, place, rows * sizeof *place),
                           .scalar = device_put(&d, scalar, rows * sizeof *scalar), .n = (int)n, .d_model = (int)h,
                           .rows = poisoned(EXF_RESIDUAL_ROWS * h * sizeof(float)), .product = poisoned(h * h * sizeof(float)),
                           .gram = poisoned(h * h * sizeof(double))};
    void *sums = poisoned(h * sizeof(double));
    if (s->at[PARTS] == 0) c.target = (exf_matrix){device_put(&d, target, elements * size), number};
    if (s->at[WANTS_SUM]) c.sum = sums;
    d.b->gpu->residual_moments(d.q, &c);
    double *gram = device_get(&d, c.gram, h * h * sizeof *gram), *sum = device_get(&d, sums, h * sizeof *sum);
    compare_moments(gram, c.sum ? sum : NULL, place, s);
    free_guarded(c.rows, EXF_RESIDUAL_ROWS * h * sizeof(float), "rows");
    free_guarded(c.product, h * h * sizeof(float), "product");
    free_guarded(c.gram, h * h * sizeof(double), "gram");
    free_guarded(sums, c.sum ? h * sizeof(double) : 0, "sum");
    const void *there[] = {c.source.p, c.target.p, c.place, c.scalar};
    void *here[] = {place, scalar, source, target, gram, sum};
    for (int i = 0; i < COUNT(there); i++) d.b->free((void *)(uintptr_t)there[i]);
    for (int i = 0; i < COUNT(here); i++) exf_mem_free(here[i]);
}
END_TEST

/* ---- subspace iteration --------------------------------------------------------------------------- */

enum { WIDTH, COLUMNS, ABOUT_MEAN, SPACE_DIMENSIONS };
static const dimension space_dimensions[] = {{"hidden", 1, 7168}, {"columns", 1, 272}, {"about the mean", 0, 1}};

static const boundary space_boundaries[] = {
    {"statistics/subspace_cuda.cu", "THREADS", WIDTH, 1024},
    {"statistics/subspace_cuda.cu", "(cells, 256)", WIDTH, 16},
    {"statistics/subspace_cuda.cu", "c->d_model", WIDTH, 7168 + 1},
    {"statistics/subspace_cuda.cu", "WARPS", COLUMNS, 32},
    {"statistics/subspace_cuda.cu", "j < 64", COLUMNS, 64},
    {"statistics/subspace_cuda.cu", "EACH", COLUMNS, 3 * 32},
    {"statistics/subspace_cuda.cu", "IN_REGISTERS", COLUMNS, 96},
    {"statistics/subspace_cuda.cu", "c->columns", COLUMNS, 272 + 1}, /* of 256 directions, and 16 more */
};

/* The largest matrix, 411 MB, with few numbers of columns. */
static int space_is_valid(const shape *s)
{
    return s->at[COLUMNS] <= s->at[WIDTH] && (s->at[WIDTH] < 7168 || s->at[COLUMNS] >= 97);
}

static pairwise space_cases;

/* The eigenvalues: 1 up to 2 of k directions, which are axes, all over the matrix; 2^-10 of the others. */
static int is_leading(size_t i, size_t h, size_t k)
{
    return i * 7919 % h < k; /* a prime above all widths */
}

static double eigenvalue(size_t i, size_t h, size_t k)
{
    return is_leading(i, h, k) ? 1 + (double)(i % 64) / 64 : 0x1p-10;
}

enum { ROWS_OF_MEAN = 4 };

static double column_sum(size_t i)
{
    return (double)(i % 5) - 2;
}

/* Diagonal, plus the moments of a mean. */
static double *moments(size_t h, size_t k, int about_mean)
{
    double *gram = test_memory(h * h, sizeof *gram);
    for (size_t i = 0; i < h; i++) {
        for (size_t j = 0; about_mean && j < h; j++) gram[i * h + j] = column_sum(i) * (column_sum(j) / ROWS_OF_MEAN);
        gram[i * h + i] += eigenvalue(i, h, k);
    }
    return gram;
}

/* Checks that gram is diagonal now, with `ridge` added, which is 1e-12 of the mean that its diagonal had. */
static void check_gram(const double *gram, double ridge, const double *before, size_t h, size_t k, const char *name)
{
    double trace = 0;
    for (size_t i = 0; i < h; i++) trace += before[i * h + i];
    ck_assert_msg(fabs(ridge - 1e-12 * trace / (double)h) <= 1e-9 * ridge, "%s: ridge %g", name, ridge);
    for (size_t i = 0; gram && i < h; i++)
        for (size_t j = 0; j < h; j++) {
            double want = i == j ? eigenvalue(i, h, k) + ridge : 0;
            if (gram[i * h + j] != want)
                ck_abort_msg("%s: gram[%zu, %zu]: %.17g, expected %.17g", name, i, j, gram[i * h + j], want);
        }
}

/* Checks the columns q [h, k], and `small` [k, k], which is q' gram q. */
static void check_columns(const double *q, const double *small, size_t h, size_t k, const char *name)
{
    double *image = test_memory(h * k, sizeof *image), *product = test_memory(k * k, sizeof *product);
    double outside = 0, trace = 0, want = 0;
    exf_linalg_xtw(product, (int)k, q, (int)k, q, (int)k, (int)k, (int)k, (int)h, 1, 0);
    for (size_t i = 0; i < k * k; i++)
        ck_assert_msg(fabs(product[i] - (i / k == i % k)) <= 1e-11, "%s: columns %zu and %zu: %g", name, i / k, i % k, product[i]);
    for (size_t i = 0; i < h; i++)
        for (size_t c = 0; c < k; c++) {
            image[i * k + c] = q[i * k + c] * eigenvalue(i, h, k);
            if (!is_leading(i, h, k)) outside += q[i * k + c] * q[i * k + c];
        }
    ck_assert_msg(outside <= 1e-12, "%s: columns have %g outside of the leading directions", name, outside);
    exf_linalg_xtw(product, (int)k, q, (int)k, image, (int)k, (int)k, (int)k, (int)h, 1, 0);
    for (size_t i = 0; i < k * k; i++)
        ck_assert_msg(fabs(product[i] - small[i]) <= 1e-10, "%s: small[%zu]: %.17g, expected %.17g", name, i, small[i], product[i]);
    for (size_t i = 0; i < k; i++) trace += small[i * k + i];
    for (size_t i = 0; i < h; i++) want += is_leading(i, h, k) ? eigenvalue(i, h, k) : 0;
    ck_assert_msg(fabs(trace - want) <= 1e-9 * want, "%s: eigenvalues of %.17g, expected %.17g", name, trace, want);
    exf_mem_free(image);
    exf_mem_free(product);
}

/* Takes every second column, by a rotation of 0 and 1. */
static void check_rotation(const exf_subspace_call *c, const double *q, const char *name)
{
    size_t h = (size_t)c->d_model, k = (size_t)c->columns, r = (k + 1) / 2;
    double *rotation = test_memory(k * r, sizeof *rotation);
    for (size_t j = 0; j < r; j++) rotation[2 * j * r + j] = 1;
    double *on_device = device_put(&d, rotation, k * r * sizeof *rotation);
    d.b->gpu->subspace_rotate(d.q, c, on_device, (int)r);
    double *image = device_get(&d, c->image, h * r * sizeof *image);
    for (size_t i = 0; i < h * r; i++)
        ck_assert_msg(image[i] == q[i / r * k + i % r * 2], "%s: rotated, row %zu, column %zu", name, i / r, i % r);
    d.b->free(on_device);
    exf_mem_free(rotation);
    exf_mem_free(image);
}

START_TEST(subspaces_are_the_leading_ones)
{
    enum { ITERATIONS = 6 };
    const shape *s = &space_cases.shapes[_i];
    const char *name = pairwise_name(space_dimensions, SPACE_DIMENSIONS, s);
    size_t h = (size_t)s->at[WIDTH], k = (size_t)s->at[COLUMNS], bytes = h * k * sizeof(double);
    double *gram = moments(h, k, s->at[ABOUT_MEAN]), *sum = test_memory(h, sizeof *sum);
    double *start = test_memory(h * k, sizeof *start);
    for (size_t i = 0; i < h; i++) sum[i] = column_sum(i);
    for (size_t i = 0; i < h * k; i++) start[i] = (double)real_at(91, i, 1);
    exf_subspace_call c = {.d_model = (int)h, .columns = (int)k, .n = ROWS_OF_MEAN,
                           .gram = device_put(&d, gram, h * h * sizeof *gram), .sum = device_put(&d, sum, h * sizeof *sum),
                           .start = device_put(&d, start, bytes), .subspace = poisoned(bytes), .image = poisoned(bytes),
                           .small = poisoned(k * k * sizeof(double)), .factor = poisoned(k * k * sizeof(double)),
                           .ridge = poisoned(sizeof(double))};
    const void *there[] = {c.gram, c.sum, c.start};
    if (!s->at[ABOUT_MEAN]) c.sum = NULL;
    d.b->gpu->subspace_iterate(d.q, &c, ITERATIONS);
    double *q = device_get(&d, c.subspace, bytes), *small = device_get(&d, c.small, k * k * sizeof *small);
    double *ridge = device_get(&d, c.ridge, sizeof *ridge);
    double *after = h < 7168 ? device_get(&d, c.gram, h * h * sizeof *after) : NULL;
    check_gram(after, *ridge, gram, h, k, name);
    check_columns(q, small, h, k, name);
    check_rotation(&c, q, name);
    free_guarded(c.subspace, bytes, "subspace");
    free_guarded(c.image, bytes, "image");
    free_guarded(c.small, k * k * sizeof(double), "small");
    free_guarded(c.factor, k * k * sizeof(double), "factor");
    free_guarded(c.ridge, sizeof(double), "ridge");
    void *here[] = {gram, sum, start, q, small, ridge, after};
    for (int i = 0; i < COUNT(there); i++) d.b->free((void *)(uintptr_t)there[i]);
    for (int i = 0; i < COUNT(here); i++) exf_mem_free(here[i]);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "second moments", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&space_cases, "subspaces", space_boundaries, COUNT(space_boundaries), space_dimensions, SPACE_DIMENSIONS,
                    space_is_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, moments_are_the_plain_ones, 0, cases.n_shapes);
    tcase_add_loop_test(t, subspaces_are_the_leading_ones, 0, space_cases.n_shapes);
}
