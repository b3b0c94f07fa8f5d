/* check_tables_safetensors.c - tables that others made: what is read of them, and all that is refused. */
#include "tests/support/artifact_fixtures.h"

#include "base/file.h"
#include "base/hash.h"
#include "format/safetensors.h"

#include <math.h>
#include <unistd.h>

enum { L = 2, E = 3, CELLS = L * E * E };

static float coeff[CELLS], loss[CELLS], norms[L * E], frobenius[CELLS];
static exf_tensor tensor[5];
static exf_st_meta fact[5];
static size_t n_tensors, n_facts;
static exf_err e; /* of the last call */

/* Expert 1 of layer 4 was never seen; DeepSeek-V4's, with frobenius. */
static void start_sample(void)
{
    for (int i = 0; i < CELLS; i++) {
        int s = i / E % E, t = i % E, seen = s != t && (i < E * E || (s != 1 && t != 1));
        coeff[i] = s == t ? 1 : seen ? (float)(i - 5) / 4 : 0;
        loss[i] = frobenius[i] = seen ? (float)i / 16 : EXF_LOSS_NEVER;
    }
    for (int i = 0; i < L * E; i++) norms[i] = (float)(i + 1);
    const exf_tensor all[] = {{"coeff", EXF_DT_F32, 3, {L, E, E}, coeff},
                              {"loss", EXF_DT_F32, 3, {L, E, E}, loss},
                              {"expert_norms", EXF_DT_F32, 2, {L, E}, norms},
                              {"frobenius", EXF_DT_F32, 3, {L, E, E}, frobenius},
                              {"coeff2", EXF_DT_F32, 1, {1}, coeff}};
    const exf_st_meta facts[] = {{"exfold_format", "plugin-tables/1"},
                                 {"layer_numbers", "[3, 4]"},
                                 {"read_from", "a test"},
                                 {"plugin.ridge", "0.5"},
                                 {"solve.ridge", "0.5"}};
    memcpy(tensor, all, sizeof tensor);
    memcpy(fact, facts, sizeof fact);
    n_tensors = n_facts = 4;
}

static exf_code read_sample(exf_err *err)
{
    exf_tables t;
    exf_code rc = exf_tables_read(&t, exf_scratch("t.safetensors"), err);
    exf_tables_free(&t);
    return rc;
}

static void write_sample(void)
{
    ck_ok(exf_st_write(exf_scratch("t.safetensors"), 1, tensor, n_tensors, fact, n_facts, NULL, &e), e);
}

/* The sample as it was changed is refused with this code and this object named; the sample is then as it was. */
static void ck_refused_as(exf_code code, const char *object)
{
    write_sample();
    ck_assert_int_eq(read_sample(&e), code);
    ck_assert_msg(strstr(e.msg, "t.safetensors: ") && strstr(e.msg, object), "no %s: %s", object, e.msg);
    start_sample();
}

START_TEST(what_the_script_writes_is_read)
{
    char hex[EXF_SHA256_HEX], of_bytes[EXF_SHA256_HEX];
    exf_tables t;
    write_sample();
    ck_assert(exf_st_is_one(exf_scratch("t.safetensors")));
    ck_ok(exf_tables_read(&t, exf_scratch("t.safetensors"), &e), e);
    ck_assert(t.n_layers == L && t.layer_number[0] == 3 && t.layer_number[1] == 4);
    ck_assert(t.shape.n_experts == E && t.shape.top_k == 0 && t.shape.d_model == 0);
    ck_assert(!memcmp(t.coeff, coeff, sizeof coeff) && !memcmp(t.loss, loss, sizeof loss));
    ck_assert(!memcmp(t.expert_norms, norms, sizeof norms) && !memcmp(t.frobenius, frobenius, sizeof frobenius));
    for (int i = 0; i < CELLS; i++) ck_assert_uint_eq(t.count[i], loss[i] < EXF_LOSS_NEVER);
    for (int i = 0; i < L * E; i++) ck_assert_uint_eq(t.expert_count[i], i != E + 1);
    ck_assert(!t.cosine && !t.rms && !t.std_error && t.n_pools == 0 && t.provenance.n == 2);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "plugin.ridge"), "0.5");
    exf_tables_free(&t);
    ck_ok(exf_artifact_digest(exf_scratch("t.safetensors"), &exf_artifact_tables, hex, &e), e);
    ck_ok(exf_hash_file(exf_scratch("t.safetensors"), of_bytes, &e), e);
    ck_assert_str_eq(hex, of_bytes);
    n_tensors = 3; /* Qwen3's */
    write_sample();
    ck_ok(exf_tables_read(&t, exf_scratch("t.safetensors"), &e), e);
    ck_assert_ptr_null(t.frobenius);
    exf_tables_free(&t);
}
END_TEST

static void ck_refused(const char *object)
{
    ck_refused_as(EXF_FORMAT, object);
}

START_TEST(facts_are_those_of_the_layout)
{
    static const char *const numbers[] = {"[4, 3]", "[3, 3]", "[-1, 3]", "[3]", "[3, 4, 5]", "[]", "[3, 4.5]", "[3, 4294967299]",
                                          "{}", "3", "[3, 4", ""};
    for (int i = 0; i < COUNT(numbers); i++) {
        fact[1].value = numbers[i];
        ck_refused("");
    }
    n_facts = 5;
    ck_refused("solve.ridge");
    fact[0].value = "tables/1"; /* of an export of ours */
    ck_refused_as(EXF_USAGE, "tables.h5");
    fact[0].key = "format";
    ck_refused("exfold_format");
    fact[1].key = "plugin.numbers";
    ck_refused("layer_numbers");
}
END_TEST

START_TEST(tensors_are_those_of_the_layout)
{
    static const char *const names[] = {"coeff", "loss", "expert_norms"};
    n_tensors = 5;
    ck_refused("coeff2");
    for (int i = 0; i < COUNT(names); i++) {
        tensor[i].name = "another";
        ck_refused(names[i]);
        tensor[i].dtype = EXF_DT_I32;
        ck_refused(names[i]);
        tensor[i].rank = 1;
        ck_refused(names[i]);
        tensor[i].shape[1] = 2;
        ck_refused("expected F32");
        tensor[i].shape[0] = 1;
        ck_refused(names[i]);
    }
    tensor[3].shape[2] = 1;
    ck_refused("frobenius");
    tensor[0].shape[0] = 0;
    ck_refused("coeff");
}
END_TEST

START_TEST(numbers_are_checked_as_ours)
{
    loss[1] = NAN;
    ck_refused("/loss[0, 0, 1]");
    loss[1] = -1;
    ck_refused("/loss[0, 0, 1]");
    loss[0] = 0;
    ck_refused("/loss[0, 0, 0]");
    coeff[0] = 2;
    ck_refused("/coeff[0, 0, 0]");
    coeff[1] = INFINITY;
    ck_refused("/coeff[0, 0, 1]");
    norms[4] = 0; /* of the expert that was never seen */
    ck_refused("/expert_norms[1, 1]");
    frobenius[1] = -1;
    ck_refused("/frobenius[0, 0, 1]");
}
END_TEST

/* Whatever is expected, and under whatever name: the archive of today, and the pickle of old. */
START_TEST(files_of_torch_name_the_script)
{
    static const char zip[] = "PK\3\4 and so on", pickle[] = "\x80\2\x8a\nl\xfc";
    for (int i = 0; i < 2; i++) {
        exf_output_file *f;
        exf_h5 *h;
        exf_tables t;
        ck_ok(exf_output_file_begin(&f, exf_scratch("t.safetensors"), 1, &e), e);
        ck_ok(exf_output_file_write(f, i ? pickle : zip, i ? sizeof pickle : sizeof zip, &e), e);
        ck_ok(exf_output_file_commit(f, &e), e);
        ck_fails(exf_tables_read(&t, exf_scratch("t.safetensors"), &e), EXF_USAGE, e, "scripts/pt_to_safetensors.py");
        ck_fails(exf_artifact_open(&h, exf_scratch("t.safetensors"), NULL, NULL, NULL, &e), EXF_USAGE, e,
                 "scripts/pt_to_safetensors.py");
    }
    ck_assert_int_eq(truncate(exf_scratch("t.safetensors"), 1), 0);
    ck_assert(!exf_st_is_one(exf_scratch("t.safetensors")) && !exf_st_is_one(exf_scratch("none")));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_sample, NULL);
    tcase_add_test(t, what_the_script_writes_is_read);
    tcase_add_test(t, facts_are_those_of_the_layout);
    tcase_add_test(t, tensors_are_those_of_the_layout);
    tcase_add_test(t, numbers_are_checked_as_ours);
    tcase_add_test(t, files_of_torch_name_the_script);
}
