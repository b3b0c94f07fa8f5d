/* check_queue.c - src/accumulate/accumulate_queue.c: finished layers that wait while the next ones add up, as on a GPU.
 *
 * The sums are put into the accumulator's set by hand, and the queue is as deep as if the pass ran on a device. */
#include "accumulate/accumulate_internal.h"
#include "tests/support/digest_fixtures.h"
#include "tests/support/fixtures.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { E = 4, K = 2, H = 8, N = 3, TOKENS = 42, LAYERS = 12, NONE = -1 };

static exf_err e; /* of the last call */

/* A consumer of layers. */
typedef struct {
    pthread_mutex_t gate; /* each layer waits for it */
    int layer[LAYERS], n; /* those that came */
    int fails;            /* the layer that fails; NONE: none */
} taker;

static exf_code take(void *self, int i, const exf_layer_statistics *s, exf_err *err)
{
    taker *t = self;
    pthread_mutex_lock(&t->gate);
    pthread_mutex_unlock(&t->gate);
    ck_assert(exf_exact_value(&s->norm_sum[0]) == 1.5 * i); /* its own sums */
    t->layer[t->n++] = i;
    return i == t->fails ? exf_fail(err, EXF_NUMERIC, "expert %d cannot be solved", E) : EXF_OK;
}

static exf_resume *resume; /* of the next accumulator; NULL: none */

static exf_accumulator *new_accumulator(const char *name, taker *t, const exf_accumulate_options *o, int device)
{
    int32_t numbers[LAYERS];
    exf_accumulator *a;
    exf_provenance p = {0};
    exf_sequence_list sequences;
    exf_run_shape shape = {E, K, H, N, TOKENS};
    exf_facts_part part = {.path = "run", .provenance = &p, .sequences = &sequences};
    exf_accumulator_plan plan = {.target = exf_scratch(name), .force = 1, .shape = &shape, .layer_number = numbers,
                                 .n_layers = LAYERS, .parts = &part, .n_parts = 1, .options = o, .resume = resume,
                                 .consumer = {t, take}};
    for (int i = 0; i < LAYERS; i++) numbers[i] = i;
    ck_ok(exf_sequence_list_new(&sequences, N, &e), e);
    for (int i = 0; i < N; i++) {
        sequences.length[i] = i < N - 1 ? 10 : TOKENS - 10 * (N - 1);
        ck_ok(exf_sequence_sha256(sequences.sha256[i], (int32_t[]){i, 5}, 2, &e), e);
    }
    ck_ok(exf_provenance_add(&p, &e, "data.sequences", "%d", N), e);
    ck_ok(exf_provenance_add(&p, &e, "data.tokens", "%d", TOKENS), e);
    ck_ok(exf_accumulator_new(&a, &plan, &e), e);
    ck_ok(a->observer.begin(a, 1, NULL, &e), e);
    if (device) ck_ok(exf_accumulator_open_queue(a, 1, &e), e);
    exf_sequence_list_free(&sequences);
    exf_provenance_free(&p);
    return a;
}

/* Ends a layer with sums that no other has; returns what the queue says. */
static exf_code end_layer(exf_accumulator *a, int layer)
{
    exf_layer_statistics *s = &a->sums[0];
    ck_ok(exf_observer_tell(&a->observer, &(exf_moment){.at = EXF_AT_LAYER_BEGIN, .layer = layer, .moe_index = layer}, &e), e);
    for (int i = 0; i < E; i++) {
        ck_assert_uint_eq(s->norm_count[i], 0); /* a set that waited comes back as zeros */
        exf_exact_add(&s->norm_sum[i], 1.5 * layer + i);
        s->norm_count[i] = TOKENS * K / E;
    }
    for (int i = 0; i < E * E; i++) {
        exf_exact_add(&s->dot[i], layer - 0.25 * i);
        exf_exact_add(&s->half_dot[i], layer - 0.5 * i);
        if (i % (E + 1) == 0) continue; /* an expert with itself */
        s->count[i] = TOKENS * K / E / (E - 1);
        s->half_count[i] = 1;
        s->sequences[i] = 2;
    }
    s->routes.n = s->routes.cap;
    for (size_t i = 0; i < s->routes.n; i++) {
        s->routes.key[i] = 10 * i + (size_t)layer;
        for (int k = 0; k < K; k++) {
            s->routes.ids[i * K + (size_t)k] = (layer + k) % E;
            s->routes.weights[i * K + (size_t)k] = 0.5f;
        }
    }
    s->stream_count[0] = TOKENS;
    exf_exact_add(s->stream_sq, layer + 1);
    return exf_accumulator_put(a, layer, &e);
}

static void write_file(const char *name, int device, char digest[EXF_SHA256_HEX])
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 8};
    taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE};
    exf_accumulator *a = new_accumulator(name, &t, &o, device);
    for (int l = 0; l < LAYERS; l++) ck_ok(end_layer(a, l), e);
    ck_ok(exf_accumulator_commit(a, digest, &e), e);
    exf_accumulator_free(a);
    ck_assert_int_eq(t.n, LAYERS);
    for (int l = 0; l < LAYERS; l++) ck_assert_int_eq(t.layer[l], l);
    ck_ok(same_digest(exf_scratch(name), digest, &e), e);
}

START_TEST(layers_that_wait_give_the_same_file)
{
    char digest[2][EXF_SHA256_HEX], *bytes[2];
    size_t n[2];
    write_file("now.h5", 0, digest[0]);
    write_file("later.h5", 1, digest[1]);
    ck_assert_str_eq(digest[0], digest[1]);
    ck_ok(exf_file_slurp(exf_scratch("now.h5"), 1 << 26, &bytes[0], &n[0], &e), e);
    ck_ok(exf_file_slurp(exf_scratch("later.h5"), 1 << 26, &bytes[1], &n[1], &e), e);
    ck_assert(n[0] == n[1] && memcmp(bytes[0], bytes[1], n[0]) == 0);
    for (int i = 0; i < 2; i++) exf_mem_free(bytes[i]);
}
END_TEST

/* While a layer's consumer stands still, the pass goes on for two layers: with one set of sums this would stand still too. */
START_TEST(the_pass_is_two_layers_ahead)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE};
    exf_accumulator *a = new_accumulator("ahead.h5", &t, &o, 1);
    pthread_mutex_lock(&t.gate);
    for (int l = 0; l < 2; l++) ck_ok(end_layer(a, l), e);
    ck_assert_int_eq(t.n, 0);
    pthread_mutex_unlock(&t.gate);
    for (int l = 2; l < LAYERS; l++) ck_ok(end_layer(a, l), e);
    ck_ok(exf_accumulator_commit(a, NULL, &e), e);
    ck_assert_int_eq(t.n, LAYERS);
    exf_accumulator_free(a);
}
END_TEST

/* Vector sums, which may be a gigabyte, have one set, all else two; the plan counts what there is. */
START_TEST(sets_are_counted)
{
    exf_accumulate_options scalars = {.weighting = EXF_WEIGHT_SOURCE_NORM},
                           vectors = {.weighting = EXF_WEIGHT_SOURCE_NORM, .diagonal = 1, .vector_pairs = 3};
    exf_run_shape shape = {E, K, H, N, TOKENS};
    taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE};
    exf_accumulator *a = new_accumulator("sets.h5", &t, &scalars, 1);
    uint64_t set = exf_layer_statistics_bytes(E);
    ck_assert_int_eq(a->depth, 2);
    ck_assert(a->waiting[0].sums.dot && a->waiting[1].sums.dot);
    exf_accumulator_free(a);
    a = new_accumulator("sets.h5", &t, &vectors, 1);
    ck_assert_int_eq(a->depth, 1);
    ck_assert(a->waiting[0].sums.dot && !a->waiting[1].sums.dot);
    exf_accumulator_free(a);
    uint64_t once = exf_accumulate_memory(&shape, &scalars, 1, 0, 0);
    uint64_t with_vectors = exf_accumulate_memory(&shape, &vectors, 1, 0, 0);
    ck_assert_uint_eq(exf_accumulate_memory(&shape, &scalars, 1, 1, 0) - once, 2 * set);
    ck_assert_uint_eq(exf_accumulate_memory(&shape, &vectors, 1, 1, 0) - with_vectors, set);
    ck_assert_uint_eq(exf_accumulate_memory(&shape, &scalars, 1, 1, 1) - once, 2 * set);
    ck_assert_uint_eq(exf_accumulate_memory(&shape, &vectors, 1, 0, 1) - with_vectors, 2 * set);
    ck_assert_uint_eq(exf_accumulate_memory(&shape, &vectors, 1, 1, 1) - with_vectors, 2 * set + 3 * 2 * H * sizeof(exf_exact));
}
END_TEST

/* Ends layers until one is refused; returns its number. */
static int end_until_refused(exf_accumulator *a, int first)
{
    int l = first;
    while (l < LAYERS && end_layer(a, l) == EXF_OK) l++;
    return l;
}

/* A failure beside the pass ends it at the layer after next at the latest; later layers reach neither consumer nor file. */
START_TEST(a_failure_of_a_layer_that_waits_is_reported)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    for (int fails = 0; fails < LAYERS; fails++) {
        taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = fails};
        exf_accumulator *a = new_accumulator("fails.h5", &t, &o, 1);
        int refused = end_until_refused(a, 0);
        ck_assert_int_gt(refused, fails);
        ck_assert_int_le(refused, fails + 3);
        ck_fails(exf_accumulator_commit(a, NULL, &e), EXF_NUMERIC, e, "4");
        ck_assert_int_eq(t.n, fails + 1);
        exf_accumulator_free(a);
        ck_assert(access(exf_scratch("fails.h5"), F_OK) != 0);
    }
}
END_TEST

/* A layer that cannot be written, here because the file has it, is reported before what its consumer says. */
START_TEST(a_layer_that_cannot_be_written_is_reported)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE};
    exf_accumulator *a = new_accumulator("twice.h5", &t, &o, 1);
    ck_ok(end_layer(a, 0), e);
    ck_ok(end_layer(a, 1), e);
    ck_ok(exf_accumulator_wait(a, 0, &e), e);
    t.fails = 1;
    ck_ok(end_layer(a, 1), e);
    ck_fails(exf_accumulator_wait(a, 0, &e), EXF_INTERNAL, e, "twice.h5 /layers/1");
    ck_fails(exf_accumulator_commit(a, NULL, &e), EXF_INTERNAL, e, "twice.h5 /layers/1");
    exf_accumulator_free(a);
    ck_assert(access(exf_scratch("twice.h5"), F_OK) != 0);
}
END_TEST

/* What waits when a run is given up is left out. */
START_TEST(layers_that_wait_are_dropped_with_the_run)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    for (int n = 1; n <= 3; n++) {
        taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE};
        exf_accumulator *a = new_accumulator("dropped.h5", &t, &o, 1);
        for (int l = 0; l < n; l++) ck_ok(end_layer(a, l), e);
        exf_accumulator_free(a);
        ck_assert(access(exf_scratch("dropped.h5"), F_OK) != 0);
    }
}
END_TEST

/* ---- records ----------------------------------------------------------------------------------------- */

/* Begins a run whose point is in that directory. */
static exf_accumulator *begin_with_point(const char *point, const exf_accumulate_options *o, taker *t, int device)
{
    exf_provenance facts = {0};
    char file[64];
    exf_resume_options options = {.directory = exf_scratch(point), .facts = &facts, .every_seconds = 1e6};
    ck_ok(exf_resume_open(&resume, &options, &e), e);
    snprintf(file, sizeof file, "%s.h5", point);
    return new_accumulator(file, t, o, device);
}

static void end_with_point(exf_accumulator *a)
{
    exf_accumulator_free(a);
    ck_ok(exf_resume_remove(resume, &e), e);
    exf_resume_free(resume);
    resume = NULL;
}

/* Returns a record, which the caller frees; NULL: there is none. */
static char *record_of(const char *point, int layer, size_t *n)
{
    char file[64], *bytes;
    snprintf(file, sizeof file, "%s/sums-%d.safetensors", point, layer);
    if (access(exf_scratch(file), F_OK) != 0) return NULL;
    ck_ok(exf_file_slurp(exf_scratch(file), 1 << 26, &bytes, n, &e), e);
    return bytes;
}

/* Until the first point no layer has a record; then each has one, the same as if it had been written at once. */
START_TEST(records_are_written_from_the_first_point_on)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 8};
    for (int device = 0; device < 2; device++) {
        taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE}, u = t;
        exf_accumulator *a = begin_with_point("late", &o, &t, device);
        exf_resume *of_a = resume;
        a->record_ratio = HUGE_VAL;
        for (int l = 0; l < 6; l++) ck_ok(end_layer(a, l), e);
        for (int l = 0; l < 6; l++) ck_assert(!record_of("late", l, &(size_t){0}));
        ck_ok(a->observer.settle(a, 6, &e), e);
        ck_ok(end_layer(a, 6), e);
        ck_ok(exf_accumulator_wait(a, 0, &e), e);
        exf_accumulator *b = begin_with_point("early", &o, &u, device);
        ck_ok(b->observer.settle(b, 0, &e), e);
        for (int l = 0; l <= 6; l++) ck_ok(end_layer(b, l), e);
        ck_ok(exf_accumulator_wait(b, 0, &e), e);
        for (int l = 0; l <= 6; l++) {
            size_t n[2];
            char *bytes[2] = {record_of("late", l, &n[0]), record_of("early", l, &n[1])};
            ck_assert(bytes[0] && bytes[1] && n[0] == n[1] && memcmp(bytes[0], bytes[1], n[0]) == 0);
            for (int i = 0; i < 2; i++) exf_mem_free(bytes[i]);
        }
        ck_ok(end_layer(b, 7), e); /* sets are zeros again, and a sample has its size */
        ck_ok(end_layer(b, 8), e);
        end_with_point(b);
        resume = of_a;
        ck_ok(end_layer(a, 7), e);
        ck_ok(end_layer(a, 8), e);
        end_with_point(a);
    }
}
END_TEST

/* Where layers take long beside their writing, those from the third on are recorded with it; the first point adds the others. */
START_TEST(slow_layers_are_recorded_as_they_are_written)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 8};
    taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE};
    size_t n;
    exf_accumulator *a = begin_with_point("slow", &o, &t, 1);
    a->record_ratio = 0;
    for (int l = 0; l < 5; l++) ck_ok(end_layer(a, l), e);
    ck_ok(exf_accumulator_wait(a, 0, &e), e);
    for (int l = 0; l < 5; l++) {
        char *bytes = record_of("slow", l, &n);
        ck_assert_int_eq(bytes != NULL, l >= 2);
        exf_mem_free(bytes);
    }
    ck_ok(a->observer.settle(a, 5, &e), e);
    for (int l = 0; l < 5; l++) {
        char *bytes = record_of("slow", l, &n);
        ck_assert_ptr_nonnull(bytes);
        exf_mem_free(bytes);
    }
    end_with_point(a);
}
END_TEST

/* Sums that the file does not have, or of which there is too much to read it back, are written at once. */
START_TEST(other_records_are_written_at_once)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .common_input_tokens = 2};
    taker t = {.gate = PTHREAD_MUTEX_INITIALIZER, .fails = NONE};
    size_t n;
    exf_accumulator *a = begin_with_point("once", &o, &t, 1);
    ck_ok(end_layer(a, 0), e);
    ck_ok(exf_accumulator_wait(a, 0, &e), e);
    char *bytes = record_of("once", 0, &n);
    ck_assert(bytes != NULL);
    exf_mem_free(bytes);
    end_with_point(a);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "layers that wait");
    tcase_add_test(t, layers_that_wait_give_the_same_file);
    tcase_add_test(t, the_pass_is_two_layers_ahead);
    tcase_add_test(t, sets_are_counted);
    tcase_add_test(t, a_failure_of_a_layer_that_waits_is_reported);
    tcase_add_test(t, a_layer_that_cannot_be_written_is_reported);
    tcase_add_test(t, layers_that_wait_are_dropped_with_the_run);
    t = exf_case(s, "records");
    tcase_add_test(t, records_are_written_from_the_first_point_on);
    tcase_add_test(t, slow_layers_are_recorded_as_they_are_written);
    tcase_add_test(t, other_records_are_written_at_once);
}
