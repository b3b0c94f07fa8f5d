/* check_artifact.c - what all artifacts share: kinds, versions, shapes, layer
 * numbers, provenance. */
#include "artifact/provenance.h"
#include "tests/support/artifact_fixtures.h"

static const exf_provenance none;
static exf_err e; /* of the last call */

/* ---- kinds and versions ------------------------------------------------------------ */

START_TEST(kinds_are_found_by_name_and_in_order)
{
    static const char *const names[] = {"capture", "statistics", "tables"};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_str_eq(exf_artifact_at(i)->kind, names[i]);
        ck_assert_ptr_eq(exf_artifact_find(names[i]), exf_artifact_at(i));
        ck_assert_int_le(exf_artifact_at(i)->min_reader, exf_artifact_at(i)->version);
    }
    ck_assert_ptr_null(exf_artifact_at(3));
    ck_assert_ptr_null(exf_artifact_find("table"));
}
END_TEST

static void write_empty(const char *name, const exf_artifact *a, const exf_provenance *p)
{
    exf_h5 *h = NULL;
    ck_ok(exf_artifact_create(&h, exf_scratch(name), 1, NULL, a, p, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
}

START_TEST(an_artifact_says_what_it_is)
{
    exf_provenance p = sample_facts("t1"), back = {0};
    const exf_artifact *found = NULL;
    exf_h5 *h = NULL;
    write_empty("a", &exf_artifact_tables, &p);
    ck_ok(exf_artifact_open(&h, exf_scratch("a"), NULL, &found, &back, &e), e);
    ck_assert_ptr_eq(found, &exf_artifact_tables);
    ck_assert_uint_eq(back.n, p.n);
    for (size_t i = 0; i < p.n; i++) {
        ck_assert_str_eq(back.key[i], p.key[i]);
        ck_assert_str_eq(back.value[i], p.value[i]);
    }
    exf_h5_close(h);
    ck_ok(exf_artifact_open(&h, exf_scratch("a"), &exf_artifact_tables, NULL, NULL, &e), e);
    exf_h5_close(h);
    write_empty("b", &exf_artifact_tables, &p);
    ck_assert(same_files("a", "b"));
    ck_fails(exf_artifact_create(&h, exf_scratch("a"), 0, NULL, &exf_artifact_tables, &p, &e), EXF_IO, e, "--force");
    ck_assert_ptr_null(h);
    exf_provenance_free(&p);
    exf_provenance_free(&back);
}
END_TEST

/* Sets an integer attribute of the root, or deletes it (-1). */
static void set_root(const char *name, const char *attribute, int64_t value)
{
    hid_t f = H5Fopen(exf_scratch(name), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t a = value < 0 ? H5I_INVALID_HID : H5Aopen(f, attribute, H5P_DEFAULT);
    ck_assert_int_ge(value < 0 ? H5Adelete(f, attribute) : H5Awrite(a, H5T_NATIVE_INT64, &value), 0);
    if (a >= 0) H5Aclose(a);
    ck_assert_int_ge(H5Fclose(f), 0);
}

static void cannot_open(const char *name, const exf_artifact *expected, exf_code want, const char *part)
{
    exf_provenance p = {0};
    exf_h5 *h = (exf_h5 *)1;
    ck_fails(exf_artifact_open(&h, exf_scratch(name), expected, NULL, &p, &e), want, e, part);
    ck_assert_ptr_null(h);
    ck_assert_msg(strstr(e.msg, name) != NULL, "no file in \"%s\"", e.msg);
    exf_provenance_free(&p);
}

/* Files of the container before this one are refused with what makes them again; files of a later one, too. */
START_TEST(the_container_is_ours)
{
    exf_provenance p = sample_facts("t1");
    write_empty("a", &exf_artifact_tables, &p);
    set_root("a", EXF_H5_CONTAINER, 3);
    cannot_open("a", NULL, EXF_VERSION, "container version 3, this program reads version 2");
    set_root("a", EXF_H5_CONTAINER, -1);
    cannot_open("a", NULL, EXF_VERSION, "exfold-calibrate");
    write_empty("c", &exf_artifact_capture, &p);
    set_root("c", EXF_H5_CONTAINER, -1);
    cannot_open("c", NULL, EXF_VERSION, "exfold-capture");
    exf_provenance_free(&p);
}
END_TEST

START_TEST(a_dataset_without_checksum_is_refused)
{
    exf_provenance p = sample_facts("t1");
    const int32_t numbers[] = {1, 5};
    int32_t *back;
    int n = 0;
    exf_h5 *h = NULL;
    ck_ok(exf_artifact_create(&h, exf_scratch("a"), 1, NULL, &exf_artifact_tables, &p, &e), e);
    ck_ok(exf_layer_numbers_write(numbers, 2, h, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    hid_t f = H5Fopen(exf_scratch("a"), H5F_ACC_RDWR, H5P_DEFAULT);
    ck_assert_int_ge(H5Adelete_by_name(f, "/layer_numbers", EXF_H5_CHECKSUM, H5P_DEFAULT), 0);
    ck_assert_int_ge(H5Fclose(f), 0);
    ck_ok(exf_artifact_open(&h, exf_scratch("a"), &exf_artifact_tables, NULL, NULL, &e), e);
    ck_fails(exf_layer_numbers_read(&back, &n, &none, h, &e), EXF_FORMAT, e, "/layer_numbers crc32");
    exf_h5_close(h);
    exf_provenance_free(&p);
}
END_TEST

START_TEST(an_older_reader_opens_what_it_may)
{
    exf_provenance p = sample_facts("t1");
    exf_artifact future = exf_artifact_statistics;
    exf_h5 *h = NULL;
    future.version++;
    write_empty("compatible.h5", &future, &p);
    ck_ok(exf_artifact_open(&h, exf_scratch("compatible.h5"), &exf_artifact_statistics, NULL, NULL, &e), e);
    exf_h5_close(h);
    future.min_reader = future.version;
    write_empty("future.h5", &future, &p);
    cannot_open("future.h5", &exf_artifact_statistics, EXF_VERSION,
                "needs a reader of statistics version 7, this program reads version 6");
    cannot_open("future.h5", NULL, EXF_VERSION, "version 6");
    future.kind = "modes";
    write_empty("modes.h5", &future, &p);
    cannot_open("modes.h5", NULL, EXF_VERSION, "\"modes\"");
    cannot_open("modes.h5", &exf_artifact_tables, EXF_VERSION, "\"modes\"");
    future = exf_artifact_statistics;
    future.min_reader = 0;
    write_empty("ancient.h5", &future, &p);
    cannot_open("ancient.h5", NULL, EXF_FORMAT, "exfold_min_reader is 0");
    exf_provenance_free(&p);
}
END_TEST

START_TEST(what_is_no_artifact_is_refused)
{
    exf_provenance p = sample_facts("t1");
    exf_h5 *h = NULL;
    write_empty("tables.h5", &exf_artifact_tables, &p);
    cannot_open("tables.h5", &exf_artifact_statistics, EXF_USAGE, "holds tables, expected statistics");
    cannot_open("absent.h5", NULL, EXF_IO, "absent.h5");
    exf_write_file(exf_scratch("text.h5"), "hello", 5);
    cannot_open("text.h5", NULL, EXF_FORMAT, "text.h5");
    ck_ok(exf_h5_create(&h, exf_scratch("foreign.h5"), 0, NULL, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    cannot_open("foreign.h5", NULL, EXF_FORMAT, "exfold_kind");
    ck_ok(exf_h5_create(&h, exf_scratch("bare.h5"), 0, NULL, &e), e);
    ck_ok(exf_h5_put_text(h, "/", "exfold_kind", "tables", &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    cannot_open("bare.h5", NULL, EXF_FORMAT, "exfold_min_reader");
    ck_ok(exf_h5_create(&h, exf_scratch("nowhere.h5"), 0, NULL, &e), e);
    ck_ok(exf_h5_put_text(h, "/", "exfold_kind", "tables", &e), e);
    ck_ok(exf_h5_put_i64(h, "/", "exfold_min_reader", 1, &e), e);
    ck_ok(exf_h5_put_i64(h, "/", EXF_H5_CONTAINER, 2, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    cannot_open("nowhere.h5", NULL, EXF_FORMAT, "/provenance");
    exf_provenance_free(&p);
}
END_TEST

/* ---- shapes and layer numbers -------------------------------------------------------- */

static void write_shape(const exf_run_shape *s)
{
    exf_h5 *h = NULL;
    ck_ok(exf_h5_create(&h, exf_scratch("shape.h5"), 1, NULL, &e), e);
    if (s) ck_ok(exf_run_shape_write(s, h, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
}

static void shape_refused(const exf_run_shape *s, const char *part)
{
    exf_run_shape back;
    exf_h5 *h = NULL;
    write_shape(s);
    ck_ok(exf_h5_open(&h, exf_scratch("shape.h5"), &e), e);
    ck_fails(exf_run_shape_read(&back, h, &e), EXF_FORMAT, e, part);
    exf_h5_close(h);
}

START_TEST(run_shapes_are_possible_ones)
{
    exf_run_shape good = {16, 4, 128, 48, 24576}, back, s;
    exf_h5 *h = NULL;
    write_shape(&good);
    ck_ok(exf_h5_open(&h, exf_scratch("shape.h5"), &e), e);
    ck_ok(exf_run_shape_read(&back, h, &e), e);
    exf_h5_close(h);
    ck_assert_mem_eq(&back, &good, sizeof good);
    shape_refused(NULL, "n_experts");
    shape_refused((s = good, s.n_experts = 0, &s), "0 experts");
    shape_refused((s = good, s.n_experts = 4097, &s), "4097 experts");
    shape_refused((s = good, s.top_k = 17, &s), "16 experts with 17 per token");
    shape_refused((s = good, s.top_k = 0, &s), "with 0 per token");
    shape_refused((s = good, s.d_model = -1, &s), "d_model is -1");
    shape_refused((s = good, s.n_sequences = -2, &s), "n_sequences is -2");
    shape_refused((s = good, s.n_tokens = -3, &s), "n_tokens is -3");
    s = good;
    s.n_tokens = EXF_MOST_COUNTED / good.top_k;
    s.n_sequences = EXF_MOST_COUNTED;
    write_shape(&s);
    ck_ok(exf_h5_open(&h, exf_scratch("shape.h5"), &e), e);
    ck_ok(exf_run_shape_read(&back, h, &e), e);
    exf_h5_close(h);
    shape_refused((s.n_tokens++, &s), "n_tokens is 2251799813685249 and top_k 4: expected at most 9007199254740992 routes");
    shape_refused((s.n_tokens = EXF_MOST_COUNTED + 1, &s), "n_tokens is 9007199254740993, expected at most 9007199254740992");
    shape_refused((s.n_tokens = 1, s.n_sequences++, &s), "n_sequences is 9007199254740993");
}
END_TEST

static void write_numbers(exf_tensor t)
{
    exf_h5 *h = NULL;
    t.name = "/layer_numbers";
    ck_ok(exf_h5_create(&h, exf_scratch("layers.h5"), 1, NULL, &e), e);
    if (t.data) ck_ok(exf_h5_write(h, &t, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
}

static exf_code read_numbers(int32_t **numbers, int *n, const exf_provenance *p)
{
    exf_h5 *h = NULL;
    ck_ok(exf_h5_open(&h, exf_scratch("layers.h5"), &e), e);
    exf_code rc = exf_layer_numbers_read(numbers, n, p, h, &e);
    exf_h5_close(h);
    return rc;
}

static void numbers_refused(exf_tensor t, const char *part)
{
    int32_t *numbers = (int32_t *)1;
    int n;
    write_numbers(t);
    ck_fails(read_numbers(&numbers, &n, &none), EXF_FORMAT, e, part);
    ck_assert_ptr_null(numbers);
}

START_TEST(layer_numbers_ascend)
{
    static const int32_t good[] = {0, 3, 7}, twice[] = {1, 1}, back[] = {4, 2}, below[] = {-1, 0};
    static const int64_t wide[] = {0, 1};
    int32_t *numbers = NULL;
    int n = 0;
    exf_h5 *h = NULL;
    ck_ok(exf_h5_create(&h, exf_scratch("layers.h5"), 1, NULL, &e), e);
    ck_ok(exf_layer_numbers_write(good, 3, h, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(read_numbers(&numbers, &n, &none), e);
    ck_assert_int_eq(n, 3);
    ck_assert_mem_eq(numbers, good, sizeof good);
    exf_mem_free(numbers);
    numbers_refused((exf_tensor){.dtype = EXF_DT_I32, .rank = 1, .shape = {2}, .data = twice}, "[1] is 1");
    numbers_refused((exf_tensor){.dtype = EXF_DT_I32, .rank = 1, .shape = {2}, .data = back}, "[1] is 2");
    numbers_refused((exf_tensor){.dtype = EXF_DT_I32, .rank = 1, .shape = {2}, .data = below}, "[0] is -1");
    numbers_refused((exf_tensor){.dtype = EXF_DT_I32, .rank = 1, .shape = {0}, .data = good}, "expected [L]");
    numbers_refused((exf_tensor){.dtype = EXF_DT_I32, .rank = 2, .shape = {1, 3}, .data = good}, "[1, 3]");
    numbers_refused((exf_tensor){.dtype = EXF_DT_I64, .rank = 1, .shape = {2}, .data = wide}, "I64");
    numbers_refused((exf_tensor){.data = NULL}, "missing");
}
END_TEST

START_TEST(layer_numbers_are_those_of_the_model)
{
    static const int32_t good[] = {0, 7}, beyond[] = {0, 1024}, far[] = {0, INT32_MAX};
    exf_provenance p = {0}, no_number = {0};
    int32_t *numbers = NULL;
    int n = 0;
    numbers_refused((exf_tensor){.dtype = EXF_DT_I32, .rank = 1, .shape = {2}, .data = beyond}, "[1] is 1024");
    numbers_refused((exf_tensor){.dtype = EXF_DT_I32, .rank = 1, .shape = {2}, .data = far}, "[1] is 2147483647");
    add_fact(&p, "model.layers", "7");
    add_fact(&no_number, "model.layers", "many");
    write_numbers((exf_tensor){.dtype = EXF_DT_I32, .rank = 1, .shape = {2}, .data = good});
    ck_fails(read_numbers(&numbers, &n, &p), EXF_FORMAT, e, "/layer_numbers[1] 7 1");
    ck_fails(read_numbers(&numbers, &n, &no_number), EXF_FORMAT, e, "model.layers");
    exf_provenance_free(&p);
    add_fact(&p, "model.layers", "8");
    ck_ok(read_numbers(&numbers, &n, &p), e);
    exf_mem_free(numbers);
    exf_provenance_free(&p);
    exf_provenance_free(&no_number);
}
END_TEST

/* ---- provenance ------------------------------------------------------------------------ */

START_TEST(facts_stand_in_order_of_key)
{
    exf_provenance p = {0}, copy = {0};
    char long_value[5000];
    add_fact(&p, "b", "2");
    add_fact(&p, "a.b", "1");
    add_fact(&p, "c", "3");
    add_fact(&p, "a", "0");
    add_fact(&p, "b", "2"); /* said twice is said once */
    ck_assert_uint_eq(p.n, 4);
    for (size_t i = 1; i < p.n; i++) ck_assert_int_lt(strcmp(p.key[i - 1], p.key[i]), 0);
    ck_assert_str_eq(exf_provenance_get(&p, "a.b"), "1");
    ck_assert_ptr_null(exf_provenance_get(&p, "a.c"));
    ck_assert_ptr_null(exf_provenance_get(&copy, "a"));
    ck_fails(exf_provenance_add(&p, &e, "b", "%d", 7), EXF_INTERNAL, e, "\"b\" \"2\" \"7\"");
    ck_assert_str_eq(exf_provenance_get(&p, "b"), "2");
    memset(long_value, 'x', sizeof long_value);
    long_value[sizeof long_value - 1] = 0;
    ck_ok(exf_provenance_add(&p, &e, "long", "%s", long_value), e);
    ck_assert_str_eq(exf_provenance_get(&p, "long"), long_value);
    add_fact(&copy, "z", "9");
    add_fact(&copy, "c", "3");
    ck_ok(exf_provenance_copy(&copy, &p, &e), e);
    ck_assert_uint_eq(copy.n, p.n + 1);
    ck_assert_str_eq(exf_provenance_get(&copy, "a.b"), "1");
    ck_assert_ptr_ne(exf_provenance_get(&copy, "a"), exf_provenance_get(&p, "a"));
    exf_provenance_free(&copy);
    add_fact(&copy, "c", "4");
    ck_fails(exf_provenance_copy(&copy, &p, &e), EXF_INTERNAL, e, "\"c\"");
    exf_provenance_free(&copy);
    exf_provenance_free(&p);
    exf_provenance_free(&p);
}
END_TEST

static void ck_same_facts(const exf_provenance *a, const exf_provenance *b)
{
    ck_assert_uint_eq(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        ck_assert_str_eq(a->key[i], b->key[i]);
        ck_assert_str_eq(a->value[i], b->value[i]);
    }
}

/* Files of earlier programs call digests sha256; sha256 is sha256sum's of a file now. */
START_TEST(digests_are_read_under_their_names_of_today)
{
    exf_provenance old = {0}, read = {0};
    exf_h5 *h;
    add_fact(&old, "data.0.tokens_sha256", "t");
    add_fact(&old, "model.config_sha256", "c");
    add_fact(&old, "model.weights_sha256", "w");
    add_fact(&old, "solve.statistics_sha256", "s");
    add_fact(&old, "tokenizer.sha256", "k");
    ck_ok(exf_artifact_create(&h, exf_scratch("old.h5"), 0, NULL, &exf_artifact_tables, &old, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(exf_artifact_open(&h, exf_scratch("old.h5"), NULL, NULL, &read, &e), e);
    exf_h5_close(h);
    ck_assert_uint_eq(read.n, old.n);
    ck_assert_str_eq(exf_provenance_get(&read, "data.0.tokens_digest"), "t");
    ck_assert_str_eq(exf_provenance_get(&read, "model.config_sha256"), "c");
    ck_assert_str_eq(exf_provenance_get(&read, "model.weights_digest"), "w");
    ck_assert_str_eq(exf_provenance_get(&read, "solve.statistics_digest"), "s");
    ck_assert_str_eq(exf_provenance_get(&read, "tokenizer.sha256"), "k");
    exf_provenance_free(&old);
    exf_provenance_free(&read);
}
END_TEST

START_TEST(parts_join_in_any_order)
{
    static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}, {1, 0, 2}};
    static const char *const paths[] = {"one.h5", "two.h5", "three.h5"};
    exf_provenance part[3] = {sample_facts("m"), sample_facts("z"), sample_facts("b")}, first = {0};
    add_fact(&part[1], "data.domains", "prose");
    for (int i = 0; i < 6; i++) {
        exf_provenance out = {0};
        const exf_provenance *order[3];
        for (int k = 0; k < 3; k++) order[k] = &part[orders[i][k]];
        ck_ok(exf_provenance_join(&out, order, paths, 3, &e), e);
        if (i) ck_same_facts(&out, &first);
        if (i) exf_provenance_free(&out);
        else first = out;
    }
    ck_assert_str_eq(exf_provenance_get(&first, "data.parts"), "3");
    ck_assert_str_eq(exf_provenance_get(&first, "data.sequences"), "6");
    ck_assert_str_eq(exf_provenance_get(&first, "data.tokens"), "120");
    ck_assert_str_eq(exf_provenance_get(&first, "data.0.tokens_digest"), "b");
    ck_assert_str_eq(exf_provenance_get(&first, "data.1.tokens_digest"), "m");
    ck_assert_str_eq(exf_provenance_get(&first, "data.2.tokens_digest"), "z");
    ck_assert_str_eq(exf_provenance_get(&first, "data.2.domains"), "prose");
    ck_assert_ptr_null(exf_provenance_get(&first, "data.tokens_digest"));
    ck_assert_str_eq(exf_provenance_get(&first, "model.family"), "qwen3_moe");
    exf_provenance_free(&first);
    for (int k = 0; k < 3; k++) exf_provenance_free(&part[k]);
}
END_TEST

START_TEST(one_part_joins_to_itself)
{
    static const char *const path[] = {"one.h5"};
    exf_provenance part = sample_facts("m"), out = {0};
    const exf_provenance *list[] = {&part};
    ck_ok(exf_provenance_join(&out, list, path, 1, &e), e);
    ck_same_facts(&out, &part);
    exf_provenance_free(&out);
    exf_provenance_free(&part);
}
END_TEST

static void join_refused(const exf_provenance *a, const exf_provenance *b, const char *const *parts)
{
    static const char *const path[] = {"one.h5", "two.h5"};
    const exf_provenance *list[] = {a, b};
    exf_provenance out = {0};
    ck_fails(exf_provenance_join(&out, list, path, 2, &e), EXF_MODEL, e, "one.h5");
    ck_assert_msg(strstr(e.msg, "two.h5") != NULL, "no second file in \"%s\"", e.msg);
    for (; *parts; parts++) ck_assert_msg(strstr(e.msg, *parts) != NULL, "\"%s\" lacks \"%s\"", e.msg, *parts);
    exf_provenance_free(&out);
}

START_TEST(parts_that_do_not_belong_together_are_refused)
{
    exf_provenance a = sample_facts("m"), b = sample_facts("n"), same = sample_facts("m"), other = {0};
    add_fact(&other, "model.family", "qwen3_moe");
    add_fact(&other, "model.weights_digest", "bbbb");
    add_fact(&other, "data.tokens_digest", "n");
    add_fact(&other, "capture.layers", "all");
    join_refused(&a, &other, (const char *const[]){"model.weights_digest", "aaaa", "bbbb", NULL});
    join_refused(&a, &same, (const char *const[]){"same tokens", NULL});
    add_fact(&b, "capture.compute", "f32"); /* what only one of them says differs as well */
    join_refused(&a, &b, (const char *const[]){"capture.compute", "f32", "missing", NULL});
    join_refused(&b, &a, (const char *const[]){"capture.compute", "f32", "missing", NULL});
    exf_provenance_free(&a);
    exf_provenance_free(&b);
    exf_provenance_free(&same);
    exf_provenance_free(&other);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, kinds_are_found_by_name_and_in_order);
    tcase_add_test(t, an_artifact_says_what_it_is);
    tcase_add_test(t, the_container_is_ours);
    tcase_add_test(t, a_dataset_without_checksum_is_refused);
    tcase_add_test(t, an_older_reader_opens_what_it_may);
    tcase_add_test(t, what_is_no_artifact_is_refused);
    tcase_add_test(t, run_shapes_are_possible_ones);
    tcase_add_test(t, layer_numbers_ascend);
    tcase_add_test(t, layer_numbers_are_those_of_the_model);
    tcase_add_test(t, facts_stand_in_order_of_key);
    tcase_add_test(t, digests_are_read_under_their_names_of_today);
    tcase_add_test(t, parts_join_in_any_order);
    tcase_add_test(t, one_part_joins_to_itself);
    tcase_add_test(t, parts_that_do_not_belong_together_are_refused);
}
