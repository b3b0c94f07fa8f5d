/* check_replay.c - recorded hidden states through routers and experts alone. */
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include "accumulate/accumulate.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "capture/capture.h"
#include "pass/forward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char golden_dir[] = "tests/golden/qwen3_moe", golden_file[] = "tests/golden/qwen3_moe/golden.safetensors";
enum { ROWS = 48, H = 64, K = 4, LAYERS = 3, MAX_PARTS = 24 }; /* of that golden */

static exf_model *open_experts(const char *dir)
{
    exf_err e;
    exf_model *m;
    ck_ok(exf_model_open_part(&m, dir, EXF_MODEL_EXPERTS, &e), e);
    return m;
}

/* ---- files to replay, made of the golden's tensors ------------------------------- */

typedef struct {
    exf_tensor tensor[MAX_PARTS];
    void *data[MAX_PARTS]; /* what forget() frees */
    size_t n;
} recording;

static exf_tensor *add(recording *r, const char *name, exf_dtype dtype, int rank, int64_t rows, int64_t cols, const void *data)
{
    static char names[64][48]; /* outlive every copy of a recording */
    static size_t next;
    ck_assert_uint_lt(r->n, MAX_PARTS);
    char *kept = names[next++ & 63];
    snprintf(kept, sizeof names[0], "%s", name);
    r->tensor[r->n] = (exf_tensor){kept, dtype, rank, {rows, cols}, data};
    return &r->tensor[r->n++];
}

/* moe_input of every layer, with the golden's routes if asked for. */
static recording record(int with_routes)
{
    exf_err e;
    exf_st_file *f;
    recording r = {.n = 0};
    ck_ok(exf_st_open(&f, golden_file, &e), e);
    for (int l = 0; l < LAYERS; l++) {
        static const struct { const char *name; exf_dtype dtype; int64_t cols; } part[] = {
            {"moe_input", EXF_DT_F32, H}, {"topk_ids", EXF_DT_I32, K}, {"topk_weights", EXF_DT_F32, K}};
        for (int i = 0; i < (with_routes ? 3 : 1); i++) {
            char name[48];
            size_t n;
            snprintf(name, sizeof name, "layers.%d.%s", l, part[i].name);
            void *data = golden_tensor(f, name, &n);
            r.data[r.n] = data;
            add(&r, name, part[i].dtype, 2, ROWS, part[i].cols, data);
        }
    }
    exf_st_close(f);
    return r;
}

static void forget(recording *r)
{
    for (size_t i = 0; i < MAX_PARTS; i++) exf_mem_free(r->data[i]);
}

static const char *write_recording(const recording *r, const char *name)
{
    exf_err e;
    const char *path = exf_scratch(name);
    ck_ok(exf_st_write(path, 1, r->tensor, r->n, NULL, 0, NULL, &e), e);
    return path;
}

static exf_moe_inputs *open_inputs(const char *path, const exf_model *m, const char *layers, exf_layer_choice *c)
{
    exf_err e;
    exf_moe_inputs *x;
    ck_ok(exf_moe_inputs_open(&x, path, m, layers, c, &e), e);
    return x;
}

static const exf_forward_options *on_cpu(int threads)
{
    static exf_forward_options o;
    o = (exf_forward_options){.backend = &exf_backend_cpu, .threads = threads};
    return &o;
}

static void replay(golden_seen *seen, const exf_model *m, const char *path, int threads)
{
    exf_err e = {.code = EXF_OK};
    exf_layer_choice c;
    exf_forward_report report;
    exf_moe_inputs *x = open_inputs(path, m, "all", &c);
    exf_observer o = golden_observer(seen, m, exf_moe_inputs_batch(x)->n_tokens);
    ck_ok(exf_replay(m, exf_moe_inputs_batch(x), exf_moe_inputs_recorded(x), &o, on_cpu(threads), &report, &e), e);
    exf_moe_inputs_free(x);
}

static void near_golden(const golden_seen *s)
{
    exf_err e;
    exf_st_file *f;
    ck_ok(exf_st_open(&f, golden_file, &e), e);
    for (int l = 0; l < LAYERS; l++) {
        const struct { const char *part; const float *seen; } parts[] = {
            {"topk_weights", s->weights[l]}, {"expert_outputs", s->expert_outputs[l]}, {"routed_output", s->routed[l]},
            {"block_output", s->block[l]}};
        for (size_t i = 0; i < 4; i++) {
            char name[64];
            size_t n;
            snprintf(name, sizeof name, "layers.%d.%s", l, parts[i].part);
            float *want = golden_tensor(f, name, &n);
            double d = golden_distance(parts[i].seen, want, n);
            ck_assert_msg(d <= 1e-5, "%s is %.1e off", name, d);
            exf_mem_free(want);
        }
    }
    exf_st_close(f);
}

/* ---- numbers ---------------------------------------------------------------------- */

START_TEST(recorded_states_give_the_golden)
{
    exf_model *m = open_experts(golden_dir);
    golden_seen s;
    recording bare = record(0);
    replay(&s, m, golden_file, 2); /* with its routes; all else in it is ignored */
    near_golden(&s);
    golden_free(&s);
    replay(&s, m, write_recording(&bare, "bare.safetensors"), 2); /* the router runs */
    near_golden(&s);
    golden_free(&s);
    forget(&bare);
    exf_model_close(m);
}
END_TEST

/* The golden's checkpoint without a single tensor that is no router or expert. */
START_TEST(routers_and_experts_are_enough)
{
    exf_err e;
    exf_model *whole = open_experts(golden_dir), *m;
    static exf_tensor t[512];
    static void *data[512];
    size_t n = 0;
    for (size_t i = 0; i < exf_checkpoint_count(whole->checkpoint); i++) {
        const exf_stored_tensor *s = exf_checkpoint_at(whole->checkpoint, i);
        if (!strstr(s->tensor->view.name, ".mlp.")) continue;
        ck_ok(exf_mem_new(&data[n], (size_t)s->tensor->nbytes, 1, "tensor", &e), e);
        ck_ok(exf_st_read(s->file, s->tensor, 0, data[n], (size_t)s->tensor->nbytes, &e), e);
        t[n] = s->tensor->view;
        t[n].data = data[n];
        n++;
    }
    char *config;
    size_t len;
    ck_ok(exf_file_slurp(whole->config_path, 1 << 20, &config, &len, &e), e);
    exf_write_file(exf_scratch("config.json"), config, len);
    exf_mem_free(config);
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, t, n, NULL, 0, NULL, &e), e);
    ck_fails(exf_model_open(&m, exf_scratch("."), &e), EXF_MODEL, e, "/config.json \"model.embed_tokens.weight\"");
    m = open_experts(exf_scratch("."));
    ck_assert_int_eq(exf_model_copies(m, EXF_W_Q, 0), 0);
    ck_assert_uint_eq(exf_model_layer_bytes(m, -1), 0);
    golden_seen s;
    replay(&s, m, golden_file, 1);
    near_golden(&s);
    golden_free(&s);
    exf_model_close(m);
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, t + 1, n - 1, NULL, 0, NULL, &e), e); /* an expert's matrix short */
    ck_fails(exf_model_open_part(&m, exf_scratch("."), EXF_MODEL_EXPERTS, &e), EXF_MODEL, e, t[0].name);
    for (size_t i = 0; i < n; i++) exf_mem_free(data[i]);
    exf_model_close(whole);
}
END_TEST

/* Routes from elsewhere are run as they are; a layer that was not recorded is not. */
START_TEST(only_what_was_recorded)
{
    exf_model *m = open_experts(golden_dir);
    recording r = record(1);
    golden_seen s, all;
    exf_layer_choice c;
    int32_t *ids = r.data[1];
    ids[0] = ids[0] == 0 || ids[1] == 0 || ids[2] == 0 || ids[3] == 0 ? ids[0] : 0; /* another expert, unless it is there */
    replay(&all, m, write_recording(&r, "routed.safetensors"), 1);
    ck_assert(memcmp(all.ids[0], ids, ROWS * K * sizeof *ids) == 0);
    memmove(r.tensor, r.tensor + 3, 3 * sizeof *r.tensor); /* layer 1 alone */
    r.n = 3;
    const char *one = write_recording(&r, "one.safetensors");
    exf_moe_inputs *x = open_inputs(one, m, "all", &c);
    ck_assert(c.n == 1 && c.number[0] == 1 && c.last == 1);
    exf_moe_inputs_free(x);
    replay(&s, m, one, 1);
    ck_assert(!s.expert_outputs[0] && !s.expert_outputs[2]);
    ck_assert(memcmp(s.expert_outputs[1], all.expert_outputs[1], ROWS * K * H * sizeof(float)) == 0);
    exf_err e;
    ck_fails(exf_moe_inputs_open(&x, one, m, "0-1", &c, &e), EXF_USAGE, e, "0");
    golden_free(&s);
    golden_free(&all);
    forget(&r);
    exf_model_close(m);
}
END_TEST

/* Several sequences of any lengths on any number of threads: the same bits; also
 * from float32 and back through half precision where the values are the same. */
START_TEST(bits_depend_on_no_threads)
{
    static const int32_t lengths[] = {1, 2, 24, 21};
    static const int64_t lengths64[] = {1, 2, 24, 21};
    exf_model *m = open_experts(golden_dir);
    recording r = record(0);
    golden_seen one, four;
    exf_layer_choice c;
    add(&r, "sequence_lengths", EXF_DT_I32, 1, 4, 0, lengths);
    const char *path = write_recording(&r, "lengths.safetensors");
    replay(&one, m, path, 1);
    r.tensor[r.n - 1].dtype = EXF_DT_I64;
    r.tensor[r.n - 1].data = lengths64;
    exf_moe_inputs *x = open_inputs(write_recording(&r, "lengths.safetensors"), m, "all", &c);
    ck_assert_uint_eq(exf_moe_inputs_batch(x)->n_sequences, 4);
    ck_assert_int_eq(exf_moe_inputs_batch(x)->max_tokens, 24);
    ck_assert_int_eq(exf_replay_workers(&exf_backend_cpu, exf_moe_inputs_batch(x), 9), 4);
    exf_moe_inputs_free(x);
    replay(&four, m, path, 4);
    for (int l = 0; l < LAYERS; l++)
        ck_assert(memcmp(one.expert_outputs[l], four.expert_outputs[l], ROWS * K * H * sizeof(float)) == 0);
    golden_free(&one);
    golden_free(&four);
    forget(&r);
    exf_model_close(m);
}
END_TEST

START_TEST(half_precision_inputs)
{
    exf_model *m = open_experts(golden_dir);
    recording r = record(0);
    golden_seen wide, half;
    static uint16_t bf16[ROWS * H];
    float *v = r.data[0];
    for (int i = 0; i < ROWS * H; i++) { /* cut to what bf16 holds */
        uint32_t u;
        memcpy(&u, v + i, sizeof u);
        bf16[i] = (uint16_t)(u >> 16);
        v[i] = exf_bf16_to_f32(bf16[i]);
    }
    r.n = 1;
    replay(&wide, m, write_recording(&r, "wide.safetensors"), 1);
    r.tensor[0].dtype = EXF_DT_BF16;
    r.tensor[0].data = bf16;
    replay(&half, m, write_recording(&r, "half.safetensors"), 1);
    ck_assert(memcmp(wide.block[0], half.block[0], ROWS * H * sizeof(float)) == 0);
    golden_free(&wide);
    golden_free(&half);
    forget(&r);
    exf_model_close(m);
}
END_TEST

/* ---- into artifacts ----------------------------------------------------------------- */

static void capture(const exf_model *m, const char *from, const char *to)
{
    exf_err e = {.code = EXF_OK};
    exf_layer_choice c;
    exf_provenance p = {0};
    exf_recorder *rec;
    exf_sequence_list sequences;
    exf_forward_report report;
    exf_moe_inputs *x = open_inputs(from, m, "all", &c);
    const exf_batch *b = exf_moe_inputs_batch(x);
    exf_run_shape shape = {m->arch.n_experts, m->arch.top_k, m->arch.d_model, (int64_t)b->n_sequences, (int64_t)b->n_tokens};
    ck_ok(exf_moe_inputs_provenance(&p, x, &exf_backend_cpu, EXF_COMPUTE_F32, "all", &e), e);
    ck_ok(exf_sequences_of_batch(&sequences, b, NULL, exf_provenance_get(&p, "data.moe_inputs_sha256"), &e), e);
    ck_ok(exf_recorder_new(&rec, to, 1, &shape, &c, &sequences, 0, &p, NULL, &e), e);
    ck_ok(exf_replay(m, b, exf_moe_inputs_recorded(x), exf_recorder_observer(rec), on_cpu(2), &report, &e), e);
    ck_ok(exf_recorder_commit(rec, NULL, &e), e);
    exf_recorder_free(rec);
    exf_sequence_list_free(&sequences);
    exf_provenance_free(&p);
    exf_moe_inputs_free(x);
}

START_TEST(statistics_of_a_replay)
{
    exf_err e;
    exf_model *m = open_experts(golden_dir);
    recording bare = record(0);
    exf_statistics_reader r;
    exf_layer_statistics s;
    char a[700], b[700];
    snprintf(a, sizeof a, "%s", exf_scratch("a.h5"));
    snprintf(b, sizeof b, "%s", exf_scratch("b.h5"));
    capture(m, golden_file, a);
    const char *one[] = {a}, *both[] = {a, b}, *twice[] = {a, a};
    ck_ok(
        exf_accumulate_captures(one, 1, exf_scratch("s.h5"), 1, &(exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM},
                                NULL, &e),
        e);
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_assert_int_eq(r.n_layers, LAYERS);
    ck_assert_int_eq(r.shape.n_tokens, ROWS);
    const char *sha = exf_provenance_get(&r.origin, "part.0.moe_inputs_sha256");
    ck_assert(sha && strlen(sha) == 64 && !exf_provenance_get(&r.origin, "part.0.tokens_digest"));
    ck_ok(exf_layer_statistics_new(&s, 16, &e), e);
    ck_ok(exf_statistics_get(&r, 1, &s, &e), e);
    uint64_t slots = 0;
    for (int i = 0; i < 16; i++) slots += s.norm_count[i];
    ck_assert_uint_eq(slots, ROWS * K);
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
    ck_fails(exf_accumulate_captures(twice, 2, exf_scratch("s.h5"), 1,
                                     &(exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM}, NULL, &e),
             EXF_MODEL, e, "a.h5 48");
    capture(m, write_recording(&bare, "bare.safetensors"), b); /* shards add up */
    ck_ok(exf_accumulate_captures(both, 2, exf_scratch("s.h5"), 1, &(exf_accumulate_options){.weighting = EXF_WEIGHT_SOURCE_NORM},
                                  NULL, &e),
          e);
    forget(&bare);
    exf_model_close(m);
}
END_TEST

START_TEST(an_export_can_be_replayed)
{
    exf_err e = {.code = EXF_OK};
    exf_model *m = open_experts(golden_dir);
    exf_layer_choice c;
    exf_provenance p = {0};
    exf_exporter *out;
    exf_forward_report report;
    char path[700];
    golden_seen s;
    snprintf(path, sizeof path, "%s", exf_scratch("export.safetensors"));
    exf_moe_inputs *x = open_inputs(golden_file, m, "all", &c);
    ck_ok(exf_exporter_new(&out, path, 1, m, exf_moe_inputs_batch(x), &c, 0, &p, &e), e);
    ck_ok(exf_replay(m, exf_moe_inputs_batch(x), exf_moe_inputs_recorded(x), exf_exporter_observer(out), on_cpu(1), &report, &e),
          e);
    ck_ok(exf_exporter_commit(out, &e), e);
    exf_exporter_free(out);
    exf_moe_inputs_free(x);
    replay(&s, m, path, 1);
    near_golden(&s);
    golden_free(&s);
    exf_model_close(m);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------- */

static void refused(const recording *r, const exf_model *m, const char *part)
{
    exf_err e = {.msg = ""};
    exf_moe_inputs *x;
    exf_layer_choice c;
    exf_code rc = exf_moe_inputs_open(&x, write_recording(r, "bad.safetensors"), m, "all", &c, &e);
    ck_fails(rc, EXF_MODEL, e, part);
    ck_assert_msg(strstr(e.msg, "bad.safetensors") != NULL, "%s", e.msg);
}

START_TEST(refuses_recordings_that_do_not_fit)
{
    static const int32_t lengths[] = {40, 0, 7, 1}, tokens[ROWS] = {511, 512};
    static const float spare[ROWS * H];
    exf_model *m = open_experts(golden_dir);
    recording whole = record(1), r = whole;
    r.tensor[0].shape[1] = H - 1;
    refused(&r, m, "\"layers.0.moe_input\" is [48, 63], expected [48, 64]");
    r = whole;
    r.tensor[3].shape[0] = ROWS - 1;
    refused(&r, m, "\"layers.1.moe_input\" is [47, 64], expected [48, 64]");
    r = whole;
    r.tensor[0].dtype = EXF_DT_I32;
    refused(&r, m, "\"layers.0.moe_input\" is I32, expected F32, F16 or BF16");
    r = whole;
    r.tensor[1].dtype = EXF_DT_F32;
    refused(&r, m, "\"layers.0.topk_ids\" is F32, expected I32 or I64");
    r = whole;
    r.tensor[2].shape[1] = K - 1;
    refused(&r, m, "\"layers.0.topk_weights\" is [48, 3], expected [48, 4]");
    r = whole;
    r.tensor[2] = r.tensor[--r.n];
    refused(&r, m, "layer 0 has topk_ids but no topk_weights");
    r = (recording){.n = 0};
    add(&r, "layers.3.moe_input", EXF_DT_F32, 2, ROWS, H, spare);
    refused(&r, m, "\"layers.3.moe_input\", but tests/golden/qwen3_moe/config.json has 3 layers");
    r = (recording){.n = 0};
    add(&r, "moe_input", EXF_DT_F32, 2, ROWS, H, spare);
    refused(&r, m, "holds no tensor \"layers.<l>.moe_input\"");
    r = whole;
    r.tensor[9] = (exf_tensor){"sequence_lengths", EXF_DT_I32, 1, {1}, lengths};
    r.n = 10;
    refused(&r, m, "adds up to 40 tokens, 48 rows");
    r.tensor[9].shape[0] = 4;
    refused(&r, m, "element 1 is 0");
    r.tensor[9] = (exf_tensor){"token_ids", EXF_DT_I32, 1, {ROWS}, tokens};
    refused(&r, m, "\"token_ids\": element 1 is 512, expected 0 to 511");
    forget(&whole);
    exf_model_close(m);
}
END_TEST

START_TEST(refuses_dense_layers)
{
    static const float spare[ROWS * H];
    exf_model *m = open_experts("tests/golden/glm4_moe");
    recording r = {.n = 0};
    add(&r, "layers.0.moe_input", EXF_DT_F32, 2, ROWS, H, spare);
    refused(&r, m, "layer 0 of tests/golden/glm4_moe/config.json is dense");
    exf_model_close(m);
}
END_TEST

static void stumbles(const recording *r, const exf_model *m, exf_code code, const char *part)
{
    exf_err e = {.code = EXF_OK};
    exf_layer_choice c;
    exf_forward_report report;
    golden_seen s;
    exf_moe_inputs *x = open_inputs(write_recording(r, "bad.safetensors"), m, "all", &c);
    exf_observer o = golden_observer(&s, m, ROWS);
    ck_fails(exf_replay(m, exf_moe_inputs_batch(x), exf_moe_inputs_recorded(x), &o, on_cpu(2), &report, &e), code, e, part);
    golden_free(&s);
    exf_moe_inputs_free(x);
}

START_TEST(refuses_numbers_when_it_meets_them)
{
    exf_model *m = open_experts(golden_dir);
    recording r = record(1);
    float *input = r.data[0];
    int32_t *ids = r.data[1];
    input[3 * H + 5] = NAN;
    stumbles(&r, m, EXF_NUMERIC, "\"layers.0.moe_input\": element 197 is not a number");
    input[3 * H + 5] = 3e38f;
    stumbles(&r, m, EXF_NUMERIC, "layer 0: the output of sequence 0 at position 3 is not finite");
    input[3 * H + 5] = 0;
    ids[7 * K + 2] = 16;
    stumbles(&r, m, EXF_MODEL, "\"layers.0.topk_ids\": element 30 is 16, expected -1 to 15");
    ids[7 * K + 2] = ids[7 * K + 1];
    stumbles(&r, m, EXF_MODEL, "\"layers.0.topk_ids\": row 7 names expert");
    ids[7 * K + 2] = -1; /* an empty slot */
    stumbles(&r, m, EXF_MODEL, "\"layers.0.topk_weights\": row 7: slot 2 has no expert and weight ");
    for (int i = 0; i < K; i++) {
        ids[7 * K + i] = -1;
        ((float *)r.data[2])[7 * K + i] = 0;
    }
    stumbles(&r, m, EXF_MODEL, "\"layers.0.topk_ids\": row 7 has no expert, expected 1 to ");
    forget(&r);
    exf_model_close(m);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("replay");
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, recorded_states_give_the_golden);
    tcase_add_test(t, routers_and_experts_are_enough);
    tcase_add_test(t, only_what_was_recorded);
    tcase_add_test(t, bits_depend_on_no_threads);
    tcase_add_test(t, half_precision_inputs);
    tcase_add_test(t, statistics_of_a_replay);
    tcase_add_test(t, an_export_can_be_replayed);
    tcase_add_test(t, refuses_recordings_that_do_not_fit);
    tcase_add_test(t, refuses_dense_layers);
    tcase_add_test(t, refuses_numbers_when_it_meets_them);
    suite_add_tcase(s, t);
    return s;
}
