/* check_tables_weights.c - exf_validate_check_tables(): tables beside the weights of the model that is validated. */
#include "tests/support/model_fixtures.h"

#include "artifact/provenance.h"
#include "base/log.h"
#include "validate/validation.h"

#include <fcntl.h>
#include <unistd.h>

static exf_err e;

static exf_tables tables_of(const char *parts, const char *samples)
{
    exf_tables t = {.shape = {T_E, 2, T_H, 1, 1}};
    if (parts) ck_ok(exf_weights_facts_add(&t.provenance, parts, NULL, &e), e);
    if (samples) ck_ok(exf_provenance_add(&t.provenance, &e, "model.weights_digest", "%s", samples), e);
    return t;
}

static int accept; /* other weights */

/* What a validation of these tables says when it has read the router of layer 1. */
static exf_code read_beside(exf_tables *t, exf_text *list)
{
    exf_model *m = NULL;
    float v[64];
    exf_code rc;
    EXF_TRY(open_scratch(&m, &e));
    EXF_TRY(exf_validate_check_tables(t, "t.h5", m, accept, &e));
    EXF_TRY(exf_model_read(m, EXF_W_ROUTER, 1, 0, v, &e));
    EXF_TRY(exf_model_layer_done(m, 1, &e));
    if (list) EXF_TRY(exf_weight_identity_list(m->identity, 0, list, &e));
out:
    exf_model_close(m);
    exf_provenance_free(&t->provenance);
    return rc;
}

static void write_model(float weight)
{
    small_model s = small_new(1);
    s.value[small_find(&s, "model.layers.1.mlp.gate.weight")][5] = weight;
    small_write(&s, 0);
    small_free(&s);
}

START_TEST(tables_of_other_weights_are_refused)
{
    exf_text list = {0};
    write_model(1);
    exf_tables none = tables_of(NULL, NULL);
    ck_ok(read_beside(&none, &list), e);
    exf_tables same = tables_of(list.s, NULL);
    ck_ok(read_beside(&same, NULL), e);
    write_model(-1);
    exf_tables other = tables_of(list.s, NULL);
    ck_fails(read_beside(&other, NULL), EXF_MODEL, e, "t.h5 1.experts");
    exf_text_free(&list);
}
END_TEST

/* Its router is stored as float32, of the same values. */
START_TEST(weights_stored_in_another_type_are_asked_for_by_name)
{
    exf_text list = {0}, read = {0};
    write_model(1);
    exf_tables none = tables_of(NULL, NULL), bf16, again;
    ck_ok(read_beside(&none, &list), e);
    bf16 = tables_of(list.s, NULL);
    again = tables_of(list.s, NULL);
    small_model s = small_new(1);
    int router = small_find(&s, "model.layers.1.mlp.gate.weight");
    s.value[router][5] = 1;
    s.dtype[router] = EXF_DT_F32;
    small_write(&s, 0);
    small_free(&s);
    ck_fails(read_beside(&bf16, NULL), EXF_MODEL, e, "t.h5 1.experts --accept other-weights");
    accept = 1;
    ck_ok(read_beside(&again, &read), e);
    accept = 0;
    ck_assert_str_ne(list.s, read.s);
    exf_text_free(&list);
    exf_text_free(&read);
}
END_TEST

/* Earlier programs named the weights in other ways: there is nothing to compare, and a warning says so. */
START_TEST(tables_of_an_earlier_program_are_taken_with_a_warning)
{
    char *said = NULL;
    size_t len;
    int kept = dup(2), to = open(exf_scratch("said"), O_CREAT | O_WRONLY, 0600);
    write_model(1);
    exf_tables old = tables_of(NULL, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    exf_log_setup("check", EXF_LOG_WARN, EXF_PROGRESS_NONE);
    ck_assert(kept >= 0 && to >= 0 && dup2(to, 2) == 2);
    exf_code rc = read_beside(&old, NULL);
    ck_assert(dup2(kept, 2) == 2);
    ck_ok(rc, e);
    ck_ok(exf_file_slurp(exf_scratch("said"), 1 << 20, &said, &len, &e), e);
    ck_assert_msg(strstr(said, "t.h5: names its weights as earlier programs did") != NULL, "it says \"%s\"", said);
    exf_mem_free(said);
    close(kept);
    close(to);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, tables_of_other_weights_are_refused);
    tcase_add_test(t, weights_stored_in_another_type_are_asked_for_by_name);
    tcase_add_test(t, tables_of_an_earlier_program_are_taken_with_a_warning);
}
