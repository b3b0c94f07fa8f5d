/* check_recorded.c - include/exfold/accumulate.h: rows in any order and of any cut give the sums of a pass. */
#include "tests/support/scratch_fixtures.h"
#include "tests/support/sequence_fixtures.h"

#include "base/file.h"
#include "exfold/accumulate.h"

#include <glob.h>
#include <stdio.h>
#include <unistd.h>

enum { LAYERS = 2, OTHER = 7 }; /* layer numbers SEQ_LAYER and OTHER have the same rows */

static exf_err e; /* of the last call */
static char message[1024];
static int32_t ids[SEQ_T], sequence_of[SEQ_T], position_of[SEQ_T];
static double energy[SEQ_T];
static const int32_t numbers[LAYERS] = {SEQ_LAYER, OTHER};

static exf_code said(int code)
{
    if (code) exf_fail(&e, (exf_code)code, "%s", message);
    return (exf_code)code;
}

static void fill(void)
{
    for (int i = 0, row = 0; i < SEQ_N; i++)
        for (int t = 0; t < seq_length[i]; t++, row++) {
            ids[row] = 5 * i + t;
            sequence_of[row] = i;
            position_of[row] = t;
            energy[row] = 1 + (double)draw(3, row, 1 << 20) / (1 << 18);
        }
}

/* The sums of a pass over the same sequences. */
static void pass(const char *name)
{
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 90};
    exf_run_shape shape = {SEQ_E, SEQ_K, SEQ_H, SEQ_N, SEQ_T};
    exf_accumulator *a = NULL;
    exf_provenance p = {0};
    exf_sequence_list list = {.n = 0};
    exf_facts_part part = {.path = "tokens", .provenance = &p, .sequences = &list};
    exf_accumulator_plan plan = {.target = exf_scratch(name), .force = 1, .shape = &shape, .layer_number = numbers, .n_layers = 1,
                                 .parts = &part, .n_parts = 1, .options = &o};
    routed r = seq_tokens();
    ck_ok(exf_sequence_list_new(&list, SEQ_N, &e), e);
    for (int i = 0, row = 0; i < SEQ_N; row += seq_length[i++]) {
        list.length[i] = seq_length[i];
        ck_ok(exf_sequence_sha256(list.sha256[i], ids + row, seq_length[i], &e), e);
    }
    ck_ok(exf_provenance_add(&p, &e, "data.tokens_digest", "t"), e);
    ck_ok(exf_accumulator_new(&a, &plan, &e), e);
    ck_ok(seq_show(exf_accumulator_observer(a), &r, 1, 0, &e), e);
    ck_ok(exf_accumulator_commit(a, NULL, &e), e);
    exf_accumulator_free(a);
    exf_provenance_free(&p);
    exf_sequence_list_free(&list);
}

static exf_code open_recording(exf_record **r, const char *path, const char *engine, exf_err *err)
{
    const exf_record_fact facts[] = {{"model.family", "made_up"}, {"model.layers", "8"}, {"model.config_sha256", "c"},
                                     {"capture.engine", engine}, {"data.tokens_digest", "t"}};
    exf_record_options o = {.size = sizeof o, .path = path, .replace = 1, .n_layers = LAYERS, .layers = numbers,
                            .n_experts = SEQ_E, .top_k = SEQ_K, .d_model = SEQ_H, .route_sample = 90,
                            .n_facts = COUNT(facts), .facts = facts};
    int code = exf_record_open(r, &o, message, sizeof message);
    return code ? exf_fail(err, (exf_code)code, "%s", message) : EXF_OK;
}

static exf_record *opened(const char *path, const char *engine)
{
    exf_record *r;
    ck_ok(open_recording(&r, path, engine, &e), e);
    return r;
}

static int begin(exf_record *r, int first, int n)
{
    int there, row = 0;
    for (int i = 0; i < first; i++) row += seq_length[i];
    ck_ok(said(exf_record_begin(r, (size_t)n, seq_length + first, ids + row, NULL, NULL, &there, message,
                                sizeof message)), e);
    return there;
}

/* Adds rows order[0 .. n) of all sequences to a layer; first: the part's first sequence. */
static int add(exf_record *r, int layer, const int *order, int n, int first)
{
    enum { MOST = 64 };
    static float outputs[MOST][SEQ_K][SEQ_H], weights[MOST][SEQ_K];
    static int32_t chosen[MOST][SEQ_K], sequence[MOST], position[MOST];
    static double squares[MOST];
    routed all = seq_tokens();
    for (int i = 0; i < n; i++) {
        size_t slot = (size_t)order[i] * SEQ_K;
        memcpy(outputs[i], all.outputs + slot * SEQ_H, sizeof outputs[i]);
        memcpy(weights[i], all.weights + slot, sizeof weights[i]);
        memcpy(chosen[i], all.ids + slot, sizeof chosen[i]);
        sequence[i] = sequence_of[order[i]] - first;
        position[i] = position_of[order[i]];
        squares[i] = energy[order[i]];
    }
    exf_record_block b = {.size = sizeof b, .layer = numbers[layer], .n = n, .sequence = sequence, .position = position,
                          .ids = chosen[0], .weights = weights[0], .outputs = outputs, .stream_sq = squares};
    return exf_record_add(r, &b, message, sizeof message);
}

typedef enum { IN_ORDER, BACKWARD, MIXED } order_of_rows;

/* Records sequences [first, first + n) in blocks of at most `most` rows, both layers in turn. */
static void record(exf_record *r, int first, int n, order_of_rows how, int most)
{
    int order[SEQ_T], rows = 0;
    size_t shuffled[SEQ_T];
    for (int i = 0; i < SEQ_T; i++)
        if (sequence_of[i] >= first && sequence_of[i] < first + n) order[rows++] = i;
    exf_rng_choose(shuffled, (size_t)rows, (size_t)rows, 9, 1);
    for (int i = 0; how == BACKWARD && i < rows / 2; i++) {
        int x = order[i];
        order[i] = order[rows - 1 - i];
        order[rows - 1 - i] = x;
    }
    for (int i = rows - 1; how == MIXED && i > 0; i--) {
        int k = draw(11, i, i + 1), x = order[i];
        order[i] = order[k];
        order[k] = x;
    }
    for (int at = 0; at < rows; at += most)
        for (int layer = 0; layer < LAYERS; layer++)
            ck_ok(said(add(r, layer, order + at, rows - at < most ? rows - at : most, first)), e);
    ck_ok(said(exf_record_end(r, message, sizeof message)), e);
}

static void close_recording(exf_record *r, char digest[EXF_SHA256_HEX])
{
    ck_ok(said(exf_record_close(r, digest, message, sizeof message)), e);
    exf_record_free(r);
}

static void same_sums(const char *pass_name, const char *recorded)
{
    exf_statistics_reader f[2];
    exf_layer_statistics s[2];
    const char *const name[] = {pass_name, recorded};
    for (int i = 0; i < 2; i++) {
        ck_ok(exf_statistics_open(&f[i], exf_scratch(name[i]), &e), e);
        ck_ok(exf_layer_statistics_new(&s[i], SEQ_E, &e), e);
        ck_ok(exf_statistics_get(&f[i], 0, &s[i], &e), e);
    }
    for (int k = 0; k < EXF_N_LAYER_ARRAYS; k++) {
        const exf_layer_array *a = &exf_layer_arrays[k];
        size_t each = a->element == EXF_ELEMENT_EXACT ? sizeof(exf_exact) : sizeof(uint64_t);
        if (a->part == EXF_PART_STREAM) continue; /* the pass shows none */
        ck_assert_msg(!memcmp(exf_layer_array_at(a, &s[0]), exf_layer_array_at(a, &s[1]), each * exf_layer_array_count(a, SEQ_E)),
                      "%s differs", a->name);
    }
    ck_assert_uint_eq(s[0].routes.n, s[1].routes.n);
    ck_assert_mem_eq(s[0].routes.key, s[1].routes.key, s[0].routes.n * sizeof *s[0].routes.key);
    ck_assert_mem_eq(s[0].routes.ids, s[1].routes.ids, s[0].routes.n * SEQ_K * sizeof *s[0].routes.ids);
    ck_assert_uint_eq(*s[1].stream_count, SEQ_T);
    ck_assert_uint_eq(*s[1].stream_first_count, SEQ_N);
    for (int i = 0; i < 2; i++) {
        exf_layer_statistics_free(&s[i]);
        exf_statistics_close(&f[i]);
    }
}

START_TEST(rows_in_any_order_give_the_sums_of_a_pass)
{
    static const struct { order_of_rows how; int most; } runs[] = {
        {IN_ORDER, 64}, {IN_ORDER, 1}, {BACKWARD, 10}, {MIXED, 7}, {MIXED, 64}};
    char digest[COUNT(runs)][EXF_SHA256_HEX];
    fill();
    pass("pass.h5");
    for (int i = 0; i < COUNT(runs); i++) {
        exf_record *r = opened(exf_scratch("recorded.h5"), "an engine");
        ck_assert_int_eq(begin(r, 0, SEQ_N), 0);
        record(r, 0, SEQ_N, runs[i].how, runs[i].most);
        close_recording(r, digest[i]);
        same_sums("pass.h5", "recorded.h5");
        ck_assert_str_eq(digest[i], digest[0]);
    }
}
END_TEST

static int is_file(const char *path)
{
    int found;
    ck_ok(exf_path_look(path, &found, &e), e);
    return found;
}

/* A run that was stopped goes on with the parts that it ended, and the parts give the sums of one. */
START_TEST(a_stopped_recording_goes_on)
{
    char whole[EXF_SHA256_HEX], parts[EXF_SHA256_HEX];
    fill();
    exf_record *r = opened(exf_scratch("s.h5"), "an engine");
    ck_assert_int_eq(begin(r, 0, SEQ_N), 0);
    record(r, 0, SEQ_N, IN_ORDER, 64);
    close_recording(r, whole);
    r = opened(exf_scratch("s.h5"), "an engine");
    ck_assert_int_eq(begin(r, 0, 2), 0);
    record(r, 0, 2, MIXED, 5);
    ck_assert_int_eq(begin(r, 2, 2), 0);
    ck_ok(said(add(r, 0, (int[]){40, 39}, 2, 2)), e);
    exf_record_free(r); /* killed */
    r = opened(exf_scratch("s.h5"), "an engine");
    ck_assert_int_eq(begin(r, 0, 2), 1);
    ck_assert_int_eq(begin(r, 2, 2), 0);
    record(r, 2, 2, BACKWARD, 64);
    close_recording(r, parts);
    ck_assert_str_eq(whole, parts);
}
END_TEST

/* Finds the only part's file of recordings at `path`. */
static void find_part_file(char found[512], const char *path)
{
    char pattern[512];
    glob_t all;
    snprintf(pattern, sizeof pattern, "%s.part-*", path);
    ck_assert_int_eq(glob(pattern, 0, NULL, &all), 0);
    ck_assert_uint_eq(all.gl_pathc, 1);
    snprintf(found, 512, "%s", all.gl_pathv[0]);
    globfree(&all);
}

/* Statistics of other sequences that lie where a part would be are no part: they are not merged, and not removed. */
START_TEST(a_file_of_other_sequences_is_no_part)
{
    char first[512], second[512];
    int there;
    fill();
    exf_record *r = opened(exf_scratch("first.h5"), "an engine");
    begin(r, 0, 2);
    record(r, 0, 2, IN_ORDER, 64);
    exf_record_free(r);
    r = opened(exf_scratch("second.h5"), "an engine");
    begin(r, 2, 2);
    record(r, 2, 2, IN_ORDER, 64);
    exf_record_free(r);
    find_part_file(first, exf_scratch("first.h5"));
    find_part_file(second, exf_scratch("second.h5"));
    ck_assert_int_eq(rename(first, second), 0);
    r = opened(exf_scratch("second.h5"), "an engine");
    ck_fails(said(exf_record_begin(r, 2, seq_length + 2, ids + seq_length[0] + seq_length[1], NULL, NULL, &there,
                                   message, sizeof message)),
             EXF_MODEL, e,
             "other sequences");
    exf_record_free(r);
    ck_assert(is_file(second));
}
END_TEST

/* A part that has other facts, and rows and parts that cannot be. */
START_TEST(what_cannot_be_is_refused)
{
    exf_record *r;
    int there, order[2] = {0, 0};
    const exf_record_fact facts[] = {{"model.weights_digest", "d"}};
    exf_record_options o = {.size = sizeof o, .path = exf_scratch("x.h5"), .n_layers = LAYERS, .layers = numbers,
                            .n_experts = SEQ_E, .top_k = SEQ_K, .d_model = SEQ_H, .n_facts = 1, .facts = facts};
    fill();
    ck_fails(said(exf_record_open(&r, &o, message, sizeof message)), EXF_USAGE, e, "model.weights_digest");
    o.n_facts = 0;
    ck_fails(said(exf_record_open(&r, &o, message, sizeof message)), EXF_USAGE, e, "model.family");
    o.size--;
    ck_fails(said(exf_record_open(&r, &o, message, sizeof message)), EXF_USAGE, e, "exf_record_options");
    r = opened(exf_scratch("x.h5"), "an engine");
    ck_fails(said(add(r, 0, order, 1, 0)), EXF_USAGE, e, "layer 3");
    ck_fails(said(exf_record_close(r, NULL, message, sizeof message)), EXF_USAGE, e, "x.h5");
    ck_assert_int_eq(begin(r, 0, 1), 0);
    ck_fails(said(add(r, 0, order, 2, 0)), EXF_USAGE, e, "0 of 0");
    ck_ok(said(add(r, 0, order, 1, 0)), e); /* of the refused block nothing was noted */
    ck_fails(said(exf_record_end(r, message, sizeof message)), EXF_USAGE, e, "29 of 30");
    ck_fails(said(exf_record_close(r, NULL, message, sizeof message)), EXF_USAGE, e, "x.h5");
    ck_assert_int_eq(begin(r, 0, 1), 0);
    record(r, 0, 1, IN_ORDER, 64);
    ck_fails(said(exf_record_begin(r, 2, seq_length, ids, NULL, NULL, &there, message, sizeof message)), EXF_USAGE, e, "0 30");
    exf_record_free(r);
    r = opened(exf_scratch("x.h5"), "another engine");
    ck_fails(said(exf_record_begin(r, 1, seq_length, ids, NULL, NULL, &there, message, sizeof message)), EXF_MODEL, e,
             "capture.engine");
    exf_record_free(r);
    ck_assert_int_eq(is_file(exf_scratch("x.h5")), 0);
}
END_TEST

/* A weight or an expert that cannot be names its token; an output that is not finite ends the part. */
START_TEST(bad_rows_name_their_token)
{
    exf_record *r = opened(exf_scratch("b.h5"), "an engine");
    int32_t sequence = 0, position = 4, chosen[SEQ_K] = {0, 1, SEQ_E};
    float weights[SEQ_K] = {1, 1, 1}, outputs[SEQ_K][SEQ_H] = {{1}, {1}, {1}};
    exf_record_block b = {.size = sizeof b, .layer = SEQ_LAYER, .n = 1, .sequence = &sequence, .position = &position, .ids = chosen,
                          .weights = weights, .outputs = outputs};
    fill();
    ck_assert_int_eq(begin(r, 0, 1), 0);
    ck_fails(said(exf_record_add(r, &b, message, sizeof message)), EXF_USAGE, e, "layer 3: token 4 of sequence 0: expert 5");
    chosen[2] = 1;
    ck_fails(said(exf_record_add(r, &b, message, sizeof message)), EXF_USAGE, e, "layer 3: token 4 of sequence 0: expert 1");
    chosen[2] = 2;
    weights[1] = NAN;
    ck_fails(said(exf_record_add(r, &b, message, sizeof message)), EXF_NUMERIC, e, "layer 3: token 4 of sequence 0");
    weights[1] = 1;
    position = 30;
    ck_fails(said(exf_record_add(r, &b, message, sizeof message)), EXF_USAGE, e, "layer 3 30 0 30");
    position = 4;
    outputs[1][0] = INFINITY;
    ck_fails(said(exf_record_add(r, &b, message, sizeof message)), EXF_NUMERIC, e, "layer 3 sequence 0 4");
    ck_fails(said(exf_record_end(r, message, sizeof message)), EXF_NUMERIC, e, "sequence 0 4");
    exf_record_free(r);
}
END_TEST

/* Without CUDA a block in CUDA memory is refused, and its rows may come again. */
START_TEST(cuda_memory_needs_a_build_with_cuda)
{
    int32_t sequence = 0, position = 0, chosen[SEQ_K] = {0, 1, 2};
    float weights[SEQ_K] = {1, 1, 1}, outputs[SEQ_K][SEQ_H] = {{1}, {1}, {1}};
    exf_record_block b = {.size = sizeof b, .layer = SEQ_LAYER, .n = 1, .sequence = &sequence, .position = &position, .ids = chosen,
                          .weights = weights, .outputs = outputs, .is_cuda = 1};
    if (exf_record_reads_cuda()) return; /* tests/cuda has the others */
    exf_record *r = opened(exf_scratch("c.h5"), "an engine");
    fill();
    ck_assert_int_eq(begin(r, 0, 1), 0);
    ck_fails(said(exf_record_add(r, &b, message, sizeof message)), EXF_DEVICE, e, "layer 3 CUDA nvcc");
    b.is_cuda = 0;
    ck_ok(said(exf_record_add(r, &b, message, sizeof message)), e);
    exf_record_free(r);
}
END_TEST

/* bfloat16 outputs are the float32 ones that have their bits. */
START_TEST(bfloat16_is_widened)
{
    char digest[2][EXF_SHA256_HEX];
    static uint16_t narrow[30 * SEQ_K * SEQ_H];
    static float wide[30 * SEQ_K * SEQ_H];
    routed all = seq_tokens();
    fill();
    for (int i = 0; i < 30 * SEQ_K * SEQ_H; i++) {
        uint32_t bits;
        memcpy(&bits, &all.outputs[i], sizeof bits);
        narrow[i] = (uint16_t)(bits >> 16);
        bits &= 0xffff0000u;
        memcpy(&wide[i], &bits, sizeof bits);
    }
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        exf_record *r = opened(exf_scratch("w.h5"), "an engine");
        ck_assert_int_eq(begin(r, 0, 1), 0);
        for (int layer = 0; layer < LAYERS; layer++) {
            exf_record_block b = {.size = sizeof b, .layer = numbers[layer], .n = 30, .is_bf16 = is_bf16, .sequence = sequence_of,
                                  .position = position_of, .ids = all.ids, .weights = all.weights,
                                  .outputs = is_bf16 ? (const void *)narrow : wide};
            ck_ok(said(exf_record_add(r, &b, message, sizeof message)), e);
        }
        ck_ok(said(exf_record_end(r, message, sizeof message)), e);
        close_recording(r, digest[is_bf16]);
    }
    ck_assert_str_eq(digest[0], digest[1]);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "recorded");
    tcase_add_test(c, rows_in_any_order_give_the_sums_of_a_pass);
    tcase_add_test(c, a_stopped_recording_goes_on);
    tcase_add_test(c, a_file_of_other_sequences_is_no_part);
    tcase_add_test(c, what_cannot_be_is_refused);
    tcase_add_test(c, bad_rows_name_their_token);
    tcase_add_test(c, cuda_memory_needs_a_build_with_cuda);
    tcase_add_test(c, bfloat16_is_widened);
}
