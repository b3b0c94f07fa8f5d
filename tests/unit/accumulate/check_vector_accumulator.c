/* check_vector_accumulator.c - sums over sequences, vector sums and what is solved from
 * them, against sums and solutions made plainly from the tokens. */
#include "tests/support/sequence_fixtures.h"

#include "kernels/linear/linear.h"
#include "solve/solve.h"

enum { E = SEQ_E, K = SEQ_K, H = SEQ_H, R = 12 };

static exf_err e; /* of the last call */

/* ---- the plain way -------------------------------------------------------------------- */

typedef struct {
    double w;
    const float *u, *v;
    int sequence;
} term;

/* The terms of a pair, in order of tokens; returns how many. */
static int terms_of(term *out, const routed *r, int source, int target)
{
    int n = 0, sequence = 0, left = seq_length[0];
    for (int t = 0; t < SEQ_T; t++, left--) {
        if (left == 0) left = seq_length[++sequence];
        for (int a = 0; a < K; a++)
            for (int b = 0; b < K; b++) {
                if (r->ids[t * K + a] != source || r->ids[t * K + b] != target || a == b) continue;
                const float *u = r->outputs + (t * K + a) * H;
                double sq = 0;
                for (int i = 0; i < H; i++) sq += (double)u[i] * (double)u[i];
                out[n++] = (term){sqrt(sq), u, r->outputs + (t * K + b) * H, sequence};
            }
    }
    return n;
}

static double product(const float *a, const float *b)
{
    double x = 0;
    for (int i = 0; i < H; i++) x += (double)a[i] * (double)b[i];
    return x;
}

static void ck_near(double got, double want, double scale, const char *what)
{
    ck_assert_msg(fabs(got - want) <= 1e-9 * scale, "%s: %.17g, expected %.17g", what, got, want);
}

typedef struct {
    exf_statistics_reader file;
    exf_layer_statistics s;
    exf_vector_sums v;
    routed tokens;
} opened;

static opened open_sums(const char *name)
{
    opened o;
    ck_ok(exf_statistics_open(&o.file, exf_scratch(name), &e), e);
    ck_ok(exf_layer_statistics_new(&o.s, E, &e), e);
    ck_ok(exf_statistics_get(&o.file, 0, &o.s, &e), e);
    ck_ok(exf_statistics_get_vectors(&o.file, 0, &o.v, &e), e);
    o.tokens = seq_tokens();
    return o;
}

static void close_sums(opened *o)
{
    exf_statistics_close(&o->file);
    exf_layer_statistics_free(&o->s);
    exf_vector_sums_free(&o->v);
}

/* ---- order ------------------------------------------------------------------------------ */

START_TEST(workers_and_order_do_not_matter)
{
    ck_ok(seq_accumulate("one.h5", &seq_options, 1, 0, &e), e);
    ck_ok(seq_accumulate("three.h5", &seq_options, 3, 0, &e), e);
    ck_ok(seq_accumulate("back.h5", &seq_options, 2, 1, &e), e);
    ck_ok(same_digest(exf_scratch("back.h5"), seq_digest, &e), e);
    ck_assert(same_files("one.h5", "three.h5"));
    ck_assert(same_files("one.h5", "back.h5"));
    exf_accumulate_options helped = seq_options;
    helped.helpers = 3;
    ck_ok(seq_accumulate("helped.h5", &helped, 1, 0, &e), e);
    ck_assert(same_files("one.h5", "helped.h5"));
    exf_accumulate_options other = seq_options;
    other.seed = 2;
    ck_ok(seq_accumulate("other.h5", &other, 1, 0, &e), e);
    opened a = open_sums("one.h5"), b = open_sums("other.h5");
    ck_assert(memcmp(a.v.basis, b.v.basis, H * R * sizeof(double)) != 0);
    ck_assert(memcmp(a.v.vu, b.v.vu, 8 * H * sizeof *a.v.vu) == 0);
    close_sums(&a);
    close_sums(&b);
}
END_TEST

/* A pass that shows blocks in another way would give wrong sums over sequences. */
START_TEST(scattered_sequences_are_refused)
{
    static const int32_t number = SEQ_LAYER;
    exf_run_shape shape = {E, K, H, SEQ_N, SEQ_T};
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_NONE};
    exf_provenance p = {0};
    exf_sequence_list list = seq_list(0, SEQ_N);
    exf_facts_part part = {.path = "tokens", .provenance = &p, .sequences = &list};
    exf_accumulator_plan plan = {.target = exf_scratch("s.h5"), .shape = &shape, .layer_number = &number, .n_layers = 1,
                                 .parts = &part, .n_parts = 1,
                                 .options = &o};
    exf_accumulator *a;
    routed r = seq_tokens();
    ck_ok(exf_accumulator_new(&a, &plan, &e), e);
    const exf_observer *x = exf_accumulator_observer(a);
    ck_ok(x->begin(x->self, 1, NULL, &e), e);
    ck_ok(exf_observer_tell(x, &(exf_moment){.at = EXF_AT_LAYER_BEGIN, .layer = SEQ_LAYER}, &e), e);
    exf_moe_block b = seq_block(&r, 2, 37, 0, 20, 0, 0), later = seq_block(&r, 2, 67, 30, 20, 0, 0),
                  inside = seq_block(&r, 1, 32, 2, 3, 0, 0);
    ck_ok(x->block(x->self, &b, &e), e);
    ck_fails(x->block(x->self, &later, &e), EXF_INTERNAL, e, "2 30 20");
    ck_fails(x->block(x->self, &inside, &e), EXF_INTERNAL, e, "1 2 0");
    exf_accumulator_free(a);
}
END_TEST

/* ---- sums over sequences and the jackknife ------------------------------------------------ */

typedef struct {
    double a[SEQ_N], b[SEQ_N];
    int n, saw[SEQ_N];
} units;

static units units_of(const routed *r, int source, int target)
{
    term *t = NULL;
    units x = {.n = 0};
    ck_ok(exf_mem_new(&t, SEQ_T, sizeof *t, "terms", &e), e);
    int n = terms_of(t, r, source, target);
    for (int i = 0; i < n; i++) {
        x.a[t[i].sequence] += t[i].w * product(t[i].u, t[i].v);
        x.b[t[i].sequence] += t[i].w * product(t[i].v, t[i].v);
        x.saw[t[i].sequence] = 1;
    }
    for (int i = 0; i < SEQ_N; i++) x.n += x.saw[i];
    exf_mem_free(t);
    return x;
}

START_TEST(standard_errors_are_those_of_a_jackknife)
{
    static const char *const none[] = {"pair"};
    exf_solve_options o = {.rule = {.ridge = 0.5}, .projectors = none, .n_projectors = 1};
    exf_tables t;
    ck_ok(seq_accumulate("s.h5", &seq_options, 2, 0, &e), e);
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    opened x = open_sums("s.h5");
    for (int i = 0; i < E * E; i++) {
        if (i / E == i % E) {
            ck_assert_float_eq(t.std_error[i], 0);
            continue;
        }
        units q = units_of(&x.tokens, i / E, i % E);
        double aa = 0, ab = 0, bb = 0, all_a = 0, all_b = 0, first = 0, brute = 0, mean = 0, leave[SEQ_N] = {0};
        for (int k = 0; k < SEQ_N; k++) {
            aa += q.a[k] * q.a[k], ab += q.a[k] * q.b[k], bb += q.b[k] * q.b[k];
            all_a += q.a[k], all_b += q.b[k];
        }
        ck_near(exf_exact_value(&x.s.seq_aa[i]) * 0x1p48, aa, aa, "sum of a^2");
        ck_near(exf_exact_value(&x.s.seq_ab[i]) * 0x1p48, ab, sqrt(aa * bb), "sum of a b");
        ck_near(exf_exact_value(&x.s.seq_bb[i]) * 0x1p48, bb, bb, "sum of b^2");
        ck_assert_uint_eq(x.s.sequences[i], (uint64_t)q.n);
        ck_assert_int_gt(q.n, 2);
        double s = all_a / (all_b + 0.5), u[SEQ_N] = {0};
        for (int k = 0; k < SEQ_N; k++)
            if (q.saw[k]) u[k] = (q.a[k] - s * q.b[k]) / (all_b + 0.5), mean += u[k] / q.n;
        for (int k = 0; k < SEQ_N; k++)
            if (q.saw[k]) first += (u[k] - mean) * (u[k] - mean);
        first = sqrt(first * q.n / (q.n - 1));
        ck_assert_msg(fabs((double)t.std_error[i] - first) <= 1e-6 * first, "pair %d: %g, expected %g", i, (double)t.std_error[i],
                      first);
        mean = 0; /* one sequence left out at a time: the same to first order in its share, which the long one has too much of */
        for (int k = 0; k < SEQ_N; k++)
            if (q.saw[k]) leave[k] = (all_a - q.a[k]) / (all_b - q.b[k] + 0.5), mean += leave[k] / q.n;
        for (int k = 0; k < SEQ_N; k++)
            if (q.saw[k]) brute += (leave[k] - mean) * (leave[k] - mean) * (q.n - 1) / q.n;
        ck_assert_msg(sqrt(brute) >= first / 3, "pair %d: delete-one gives %g, the sums %g", i, sqrt(brute), first);
    }
    exf_tables_free(&t);
    close_sums(&x);
}
END_TEST

/* ---- vector sums ------------------------------------------------------------------------- */

/* Returns the index of the pair, or -1. */
static int64_t index_of_pair(const exf_vector_sums *v, int source, int target)
{
    for (int64_t i = 0; i < v->n_pairs; i++)
        if (v->pair[2 * i] == source && v->pair[2 * i + 1] == target) return i;
    return -1;
}

START_TEST(the_pairs_of_largest_energy_carry_vectors)
{
    ck_ok(seq_accumulate("s.h5", &seq_options, 2, 0, &e), e);
    opened x = open_sums("s.h5");
    ck_assert_int_eq(x.v.n_pairs, 8);
    double least = INFINITY;
    for (int p = 0; p < 8; p++) {
        int i = x.v.pair[2 * p] * E + x.v.pair[2 * p + 1];
        ck_assert(p == 0 || i > x.v.pair[2 * p - 2] * E + x.v.pair[2 * p - 1]);
        least = fmin(least, exf_exact_value(&x.s.source_sq[i]));
    }
    for (int i = 0; i < E * E; i++)
        if (index_of_pair(&x.v, i / E, i % E) < 0) ck_assert(exf_exact_value(&x.s.source_sq[i]) <= least);
    close_sums(&x);
}
END_TEST

START_TEST(vector_sums_are_those_of_the_tokens)
{
    term *t = NULL;
    ck_ok(exf_mem_new(&t, SEQ_T, sizeof *t, "terms", &e), e);
    ck_ok(seq_accumulate("s.h5", &seq_options, 3, 1, &e), e);
    opened x = open_sums("s.h5");
    ck_assert_int_eq(x.v.rank, R); /* the model is narrower than 32 */
    for (int p = 0; p < 8; p++) {
        int n = terms_of(t, &x.tokens, x.v.pair[2 * p], x.v.pair[2 * p + 1]);
        double vu[H] = {0}, vv[H] = {0}, zz[R * R] = {0}, zu[R * H] = {0}, zv[R * H] = {0}, got[R * H], target = 0, source = 0;
        for (int i = 0; i < n; i++) {
            double z[R] = {0};
            for (int r = 0; r < R; r++)
                for (int h = 0; h < H; h++) z[r] += (double)t[i].v[h] * x.v.basis[h * R + r];
            for (int h = 0; h < H; h++) {
                double u = (double)t[i].u[h], v = (double)t[i].v[h], w = t[i].w;
                vu[h] += w * v * u, vv[h] += w * v * v;
                for (int r = 0; r < R; r++) zu[r * H + h] += w * z[r] * u, zv[r * H + h] += w * z[r] * v;
            }
            for (int r = 0; r < R * R; r++) zz[r] += t[i].w * z[r / R] * z[r % R];
            target += t[i].w * product(t[i].v, t[i].v), source += t[i].w * product(t[i].u, t[i].u);
        }
        const int32_t *grid = x.v.grid + EXF_N_GRIDS * p;
        for (int h = 0; h < H; h++) {
            ck_near(exf_exact_value(&x.v.vu[p * H + h]), vu[h], sqrt(target * source), "vu");
            ck_near(exf_exact_value(&x.v.vv[p * H + h]), vv[h], target, "vv");
        }
        exf_grid_value(got, x.v.zz + p * R * R, R * R, grid[EXF_GRID_ZV]);
        for (int r = 0; r < R * R; r++) ck_near(got[r], zz[r], target, "zz");
        exf_grid_value(got, x.v.zu + p * R * H, R * H, grid[EXF_GRID_ZU]);
        for (int r = 0; r < R * H; r++) ck_near(got[r], zu[r], sqrt(target * source), "zu");
        exf_grid_value(got, x.v.zv + p * R * H, R * H, grid[EXF_GRID_ZV]);
        for (int r = 0; r < R * H; r++) ck_near(got[r], zv[r], target, "zv");
    }
    close_sums(&x);
    exf_mem_free(t);
}
END_TEST

/* ---- solutions ------------------------------------------------------------------------------ */

/* x of a x = b by elimination with pivots: nothing that the solvers use. */
static void eliminate(double *a, double *b, int n, int m)
{
    for (int c = 0; c < n; c++) {
        int best = c;
        for (int i = c + 1; i < n; i++)
            if (fabs(a[i * n + c]) > fabs(a[best * n + c])) best = i;
        for (int k = 0; k < n; k++) { double x = a[c * n + k]; a[c * n + k] = a[best * n + k]; a[best * n + k] = x; }
        for (int k = 0; k < m; k++) { double x = b[c * m + k]; b[c * m + k] = b[best * m + k]; b[best * m + k] = x; }
        for (int i = 0; i < n; i++) {
            if (i == c) continue;
            double f = a[i * n + c] / a[c * n + c];
            for (int k = 0; k < n; k++) a[i * n + k] -= f * a[c * n + k];
            for (int k = 0; k < m; k++) b[i * m + k] -= f * b[c * m + k];
        }
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++) b[i * m + k] /= a[i * n + i];
}

/* The weighted ridge problem of a pair, min |W^1/2 (U - S V - V Q C)|^2 + lambda |C|^2, from its tokens. */
static void dense_ridge(double *c, const term *t, int n, const double *basis, int rank, double scalar, double ridge)
{
    double a[R * R] = {0};
    memset(c, 0, (size_t)(rank * H) * sizeof *c);
    for (int i = 0; i < n; i++) {
        double z[R] = {0};
        for (int r = 0; r < rank; r++)
            for (int h = 0; h < H; h++) z[r] += (double)t[i].v[h] * basis[h * R + r];
        for (int r = 0; r < rank; r++) {
            for (int k = 0; k < rank; k++) a[r * rank + k] += t[i].w * z[r] * z[k];
            for (int h = 0; h < H; h++) c[r * H + h] += t[i].w * z[r] * ((double)t[i].u[h] - scalar * (double)t[i].v[h]);
        }
    }
    for (int r = 0; r < rank; r++) a[r * rank + r] += ridge;
    eliminate(a, c, rank, H);
}

/* The solver's own double solution, before it is stored in float32. */
static void from_sums(double *c, const opened *x, int p, int rank, double scalar, double ridge)
{
    double zz[R * R], a[R * R], zu[R * H], zv[R * H];
    exf_grid_value(zz, x->v.zz + p * R * R, R * R, x->v.grid[EXF_N_GRIDS * p + EXF_GRID_ZV]);
    exf_grid_value(zu, x->v.zu + p * R * H, R * H, x->v.grid[EXF_N_GRIDS * p + EXF_GRID_ZU]);
    exf_grid_value(zv, x->v.zv + p * R * H, R * H, x->v.grid[EXF_N_GRIDS * p + EXF_GRID_ZV]);
    for (int r = 0; r < rank; r++)
        for (int k = 0; k < rank; k++) a[r * rank + k] = zz[r * R + k] + (r == k ? ridge : 0);
    for (int i = 0; i < rank * H; i++) c[i] = zu[i] - scalar * zv[i];
    ck_ok(exf_linalg_solve(a, c, rank, H, &e), e);
}

START_TEST(corrections_solve_the_dense_ridge_problem)
{
    static const char *const names[] = {"lowrank", "diagonal"};
    static const int64_t ranks[] = {7, 2};
    exf_solve_options o = {.rule = {1e-3, 1, -4, 4}, .projectors = names, .n_projectors = 2, .ranks = ranks, .n_ranks = 2};
    exf_tables t;
    term *terms = NULL;
    ck_ok(exf_mem_new(&terms, SEQ_T, sizeof *terms, "terms", &e), e);
    ck_ok(seq_accumulate("s.h5", &seq_options, 1, 0, &e), e);
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    opened x = open_sums("s.h5");
    ck_assert_int_eq(t.vectors.n_pairs, 8);
    ck_assert_int_eq(t.vectors.n_arrays, 5); /* with the diagonal, its losses and the basis */
    for (int k = 0; k < 2; k++) {
        const exf_vector_array *a = &t.vectors.array[3 + k];
        int rank = a->rank;
        ck_assert_str_eq(a->stored->name, "lowrank");
        ck_assert_int_eq(rank, k ? 7 : 2);
        for (int p = 0; p < 8; p++) {
            double want[R * H], sums[R * H], size = 0;
            int n = terms_of(terms, &x.tokens, x.v.pair[2 * p], x.v.pair[2 * p + 1]), i = x.v.pair[2 * p] * E + x.v.pair[2 * p + 1];
            double scalar = exf_pair_scalar(&o.rule, exf_exact_value(&x.s.dot[i]), exf_exact_value(&x.s.target_sq[i]));
            dense_ridge(want, terms, n, x.v.basis, rank, scalar, 1e-3);
            from_sums(sums, &x, p, rank, scalar, 1e-3);
            for (int j = 0; j < rank * H; j++) size = fmax(size, fabs(want[j]));
            for (int j = 0; j < rank * H; j++) {
                ck_near(sums[j], want[j], size, "C");
                ck_assert_float_eq(a->data[p * rank * H + j], (float)sums[j]);
            }
        }
    }
    exf_tables_free(&t);
    close_sums(&x);
    exf_mem_free(terms);
}
END_TEST

START_TEST(diagonals_and_their_losses)
{
    static const char *const names[] = {"diagonal"};
    exf_solve_options o = {.rule = {1e-3, 1, -4, 4}, .projectors = names, .n_projectors = 1};
    exf_tables t;
    term *terms = NULL;
    int carried = 0;
    ck_ok(exf_mem_new(&terms, SEQ_T, sizeof *terms, "terms", &e), e);
    ck_ok(seq_accumulate("s.h5", &seq_options, 1, 0, &e), e);
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    opened x = open_sums("s.h5");
    const float *diagonal = exf_vectors_data(&t.vectors, "diagonal", 0), *loss = exf_vectors_data(&t.vectors, "diagonal_loss", 0);
    for (int i = 0; i < E * E; i++) {
        int64_t p = index_of_pair(&x.v, i / E, i % E);
        if (p < 0) {
            ck_assert_float_eq(loss[i], t.loss[i]);
            continue;
        }
        int n = terms_of(terms, &x.tokens, i / E, i % E);
        double residual = 0, energy = 0;
        for (int h = 0; h < H; h++) {
            double vu = 0, vv = 0;
            for (int k = 0; k < n; k++) {
                vu += terms[k].w * (double)terms[k].v[h] * (double)terms[k].u[h];
                vv += terms[k].w * (double)terms[k].v[h] * (double)terms[k].v[h];
            }
            ck_assert_msg(fabs((double)diagonal[p * H + h] - vu / (vv + 1e-3)) <= 1e-6, "d[%d]", h);
        }
        for (int k = 0; k < n; k++) /* the residual itself, not its expansion */
            for (int h = 0; h < H; h++) {
                double d = (double)terms[k].u[h] - (double)diagonal[p * H + h] * (double)terms[k].v[h];
                residual += terms[k].w * d * d;
                energy += terms[k].w * (double)terms[k].u[h] * (double)terms[k].u[h];
            }
        ck_assert_msg(fabs((double)loss[i] - residual / energy) <= 1e-6, "loss %g, expected %g", (double)loss[i],
                      residual / energy);
        ck_assert(loss[i] <= t.loss[i] + 1e-6f); /* more coefficients, no larger loss */
        carried++;
    }
    ck_assert_int_eq(carried, 8);
    exf_tables_free(&t);
    close_sums(&x);
    exf_mem_free(terms);
}
END_TEST

/* ---- capture files -------------------------------------------------------------------------- */

static exf_code write_capture(const char *name, int first, int n, exf_err *err)
{
    static int32_t number[] = {SEQ_LAYER};
    exf_capture_file f = {.h = NULL};
    exf_sequence_list list = seq_list(first, n);
    exf_run_shape shape = {E, K, H, n, 0};
    exf_provenance p = {0};
    routed r = seq_tokens();
    size_t row = 0;
    exf_code rc;
    for (int i = 0; i < first; i++) row += (size_t)seq_length[i];
    for (int i = 0; i < n; i++) shape.n_tokens += seq_length[first + i];
    EXF_TRY(exf_provenance_add(&p, err, "data.tokens_digest", "t%s", n == SEQ_N ? "" : first ? "1" : "2"));
    EXF_TRY(exf_provenance_add(&p, err, "data.domains", "c: %d sequences, %d tokens", n, (int)shape.n_tokens));
    EXF_TRY(exf_capture_create(&f,
            &(exf_capture_plan){.target = exf_scratch(name), .force = 1, .shape = shape,
                                .layer_number = number, .n_layers = 1, .sequences = &list, .provenance = &p}, err));
    EXF_TRY(exf_capture_put(&f, SEQ_LAYER, 0, shape.n_tokens, r.ids + row * K, r.weights + row * K, r.outputs + row * K * H, NULL,
                            err));
    rc = exf_capture_commit(&f, err);
out:
    exf_capture_abort(&f);
    exf_provenance_free(&p);
    return rc;
}

static char digest[EXF_SHA256_HEX]; /* that the last accumulation of captures gave */

static exf_code from_captures(const char *a, const char *b, const char *target, exf_err *err)
{
    char first[600], second[600];
    const char *paths[] = {first, second};
    snprintf(first, sizeof first, "%s", exf_scratch(a));
    if (b) snprintf(second, sizeof second, "%s", exf_scratch(b));
    return exf_accumulate_captures(paths, b ? 2 : 1, exf_scratch(target), 1, &seq_options, digest, err);
}

START_TEST(captures_give_the_bits_of_the_pass)
{
    char whole[EXF_SHA256_HEX], parts[EXF_SHA256_HEX];
    exf_h5 *h;
    ck_ok(write_capture("all.h5", 0, SEQ_N, &e), e);
    ck_ok(write_capture("a.h5", 0, 2, &e), e);
    ck_ok(write_capture("b.h5", 2, 2, &e), e);
    ck_ok(seq_accumulate("pass.h5", &seq_options, 2, 0, &e), e);
    ck_ok(from_captures("all.h5", NULL, "captured.h5", &e), e);
    ck_ok(same_digest(exf_scratch("captured.h5"), digest, &e), e);
    ck_assert(same_files("pass.h5", "captured.h5"));
    ck_ok(from_captures("a.h5", "b.h5", "ab.h5", &e), e);
    ck_ok(from_captures("b.h5", "a.h5", "ba.h5", &e), e);
    ck_assert(same_files("ab.h5", "ba.h5"));
    ck_ok(exf_h5_open(&h, exf_scratch("ab.h5"), &e), e);
    ck_ok(exf_h5_digest(h, parts, &e), e);
    exf_h5_close(h);
    ck_ok(exf_h5_open(&h, exf_scratch("pass.h5"), &e), e);
    ck_ok(exf_h5_digest(h, whole, &e), e);
    exf_h5_close(h);
    ck_assert_str_eq(whole, parts);
    ck_fails(from_captures("a.h5", "all.h5", "no.h5", &e), EXF_MODEL, e, "all.h5 30");
}
END_TEST

START_TEST(common_input_is_no_capture)
{
    exf_accumulate_options o = {.common_input_tokens = 4};
    char path[600];
    const char *paths[] = {path};
    snprintf(path, sizeof path, "%s", exf_scratch("all.h5"));
    ck_ok(write_capture("all.h5", 0, SEQ_N, &e), e);
    ck_fails(exf_accumulate_captures(paths, 1, exf_scratch("s.h5"), 1, &o, NULL, &e), EXF_USAGE, e,
             "calibrate.pairs common_input");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_set_timeout(t, 300);
    tcase_add_test(t, workers_and_order_do_not_matter);
    tcase_add_test(t, scattered_sequences_are_refused);
    tcase_add_test(t, standard_errors_are_those_of_a_jackknife);
    tcase_add_test(t, the_pairs_of_largest_energy_carry_vectors);
    tcase_add_test(t, vector_sums_are_those_of_the_tokens);
    tcase_add_test(t, corrections_solve_the_dense_ridge_problem);
    tcase_add_test(t, diagonals_and_their_losses);
    tcase_add_test(t, captures_give_the_bits_of_the_pass);
    tcase_add_test(t, common_input_is_no_capture);
}
