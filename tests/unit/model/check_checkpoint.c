/* check_checkpoint.c - src/model/checkpoint: files and shards, the index's
 * rules, the fingerprint, reading as float32. */
#include "model/weight_identity.h"
#include "tests/support/model_fixtures.h"

#include "base/text.h"

static exf_err e; /* of the last call */

static exf_code open_checkpoint(exf_checkpoint **c, exf_err *err)
{
    return exf_checkpoint_open(c, exf_scratch(""), err);
}

static void refused(exf_code want, const char *part)
{
    exf_checkpoint *c = (exf_checkpoint *)1;
    ck_fails(open_checkpoint(&c, &e), want, e, part);
    ck_assert_ptr_null(c);
}

/* ---- shards ------------------------------------------------------------------------ */

/* Files of one-element tensors: ("a.safetensors", "x y") holds x and y. */
static void put_shard(const char *file, const char *names)
{
    small_model s = {.n = 0};
    for (; *names; names += *names == ' ') {
        char name[16];
        size_t n = strcspn(names, " ");
        memcpy(name, names, n);
        name[n] = 0;
        small_add(&s, name, 1, 0);
        names += n;
    }
    small_write_part(&s, file, 0, s.n);
    small_free(&s);
}

/* The members of weight_map, as JSON text. */
static void put_index(const char *map)
{
    exf_text t = {0};
    exf_text_appendf(&t, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {%s}}", map);
    put_text("model.safetensors.index.json", t.s);
    exf_text_free(&t);
}

#define GOOD "\"x\": \"a.safetensors\", \"y\": \"b.safetensors\", \"w\": \"a.safetensors\""

START_TEST(shards_are_one_checkpoint)
{
    static const char *const names[] = {"w", "x", "y"};
    exf_checkpoint *c = NULL;
    put_shard("a.safetensors", "x w");
    put_shard("b.safetensors", "y");
    put_index(GOOD);
    ck_ok(open_checkpoint(&c, &e), e);
    ck_assert_uint_eq(c->n_stored, 3);
    ck_assert_uint_eq(c->n_files, 2);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_str_eq(c->stored[i].tensor->view.name, names[i]);
        ck_assert_ptr_eq(exf_checkpoint_find(c, names[i]), &c->stored[i]);
    }
    ck_assert_ptr_null(exf_checkpoint_find(c, "z"));
    ck_assert_msg(exf_ends_with(exf_st_path(exf_checkpoint_find(c, "y")->file), "/b.safetensors"), "y is elsewhere");
    exf_checkpoint_close(c);
    exf_checkpoint_close(NULL);
}
END_TEST

START_TEST(links_to_shards_are_followed)
{
    exf_checkpoint *c = NULL;
    put_shard("blob", "x w");
    put_shard("b.safetensors", "y");
    ck_assert_int_eq(symlink("blob", exf_scratch("a.safetensors")), 0);
    put_index(GOOD);
    ck_ok(open_checkpoint(&c, &e), e);
    ck_assert_uint_eq(c->n_stored, 3);
    exf_checkpoint_close(c);
}
END_TEST

START_TEST(a_missing_shard_is_named)
{
    put_shard("a.safetensors", "x w");
    put_index(GOOD);
    refused(EXF_IO, "b.safetensors: cannot open");
}
END_TEST

START_TEST(shards_lie_in_the_directory)
{
    static const char *const names[] = {"/etc/passwd", "../a.safetensors",    "sub/a.safetensors", "..", ".", "",
                                        "sub\\\\a",    "a.safetensors\\u0000"};
    put_shard("a.safetensors", "x");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        exf_text t = {0};
        exf_text_appendf(&t, "\"x\": \"%s\"", names[i]);
        put_index(t.s);
        exf_text_free(&t);
        refused(EXF_FORMAT, "is no plain file name in the checkpoint's directory");
        ck_assert_msg(strstr(e.msg, "model.safetensors.index.json") != NULL, "no index in \"%s\"", e.msg);
    }
}
END_TEST

START_TEST(index_and_shards_hold_the_same_names)
{
    put_shard("a.safetensors", "x w");
    put_shard("b.safetensors", "y");
    put_index(GOOD ", \"z\": \"b.safetensors\"");
    refused(EXF_FORMAT, "tensor \"z\" is not in shard b.safetensors");
    put_index("\"x\": \"a.safetensors\", \"y\": \"b.safetensors\"");
    refused(EXF_FORMAT, "tensor \"w\" of ");
    ck_assert_msg(strstr(e.msg, "is not in the index") != NULL, "%s", e.msg);
    put_index("\"x\": \"b.safetensors\", \"y\": \"b.safetensors\", \"w\": \"a.safetensors\"");
    refused(EXF_FORMAT, "tensor \"x\" is in ");
    ck_assert_msg(strstr(e.msg, "a.safetensors, the index says b.safetensors") != NULL, "%s", e.msg);
    put_shard("b.safetensors", "y x");
    put_index(GOOD);
    refused(EXF_FORMAT, "tensor \"x\" is in both ");
    ck_assert_msg(strstr(e.msg, "a.safetensors") && strstr(e.msg, "b.safetensors"), "%s", e.msg);
}
END_TEST

/* One shard's name may end like another's. */
START_TEST(a_shard_is_known_by_its_whole_name)
{
    put_shard("1.safetensors", "x");
    put_shard("11.safetensors", "y");
    put_index("\"x\": \"1.safetensors\", \"y\": \"11.safetensors\"");
    exf_checkpoint *c = NULL;
    ck_ok(open_checkpoint(&c, &e), e);
    exf_checkpoint_close(c);
    put_shard("11.safetensors", "y z");
    put_index("\"x\": \"1.safetensors\", \"y\": \"11.safetensors\", \"z\": \"1.safetensors\"");
    refused(EXF_FORMAT, "11.safetensors, the index says 1.safetensors");
}
END_TEST

START_TEST(an_index_is_a_map_of_names)
{
    static const char *const path = "model.safetensors.index.json";
    put_shard("a.safetensors", "x");
    put_text(path, "{}");
    refused(EXF_FORMAT, "\"weight_map\" is ");
    put_text(path, "[1]");
    refused(EXF_FORMAT, "\"weight_map\" is ");
    put_text(path, "{\"weight_map\": [\"x\"]}");
    refused(EXF_FORMAT, "\"weight_map\" is an array, expected an object");
    put_text(path, "{\"weight_map\": {}}");
    refused(EXF_FORMAT, "weight_map is empty");
    put_text(path, "{\"weight_map\": {\"x\": 1}}");
    refused(EXF_FORMAT, "weight_map[\"x\"] is no string");
    put_text(path, "{\"weight_map\": ");
    refused(EXF_FORMAT, path);
    put_text(path, "{\"weight_map\": {\"x\": \"a.safetensors\", \"x\": \"a.safetensors\"}}");
    refused(EXF_FORMAT, path);
}
END_TEST

/* ---- reading -------------------------------------------------------------------------------- */

START_TEST(long_tensors_are_read_whole)
{
    enum { N = (1 << 20) + 12345 }; /* more than is decoded at a time */
    uint16_t *v = NULL;
    float *read = NULL;
    exf_checkpoint *c = NULL;
    ck_ok(exf_mem_new(&v, N, sizeof *v, "test data", &e), e);
    ck_ok(exf_mem_new(&read, N, sizeof *read, "test data", &e), e);
    for (int i = 0; i < N; i++) v[i] = (uint16_t)(i % 0x3f00);
    exf_tensor t = {.name = "x", .dtype = EXF_DT_BF16, .rank = 1, .shape = {N}, .data = v};
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, &t, 1, NULL, 0, NULL, &e), e);
    ck_ok(open_checkpoint(&c, &e), e);
    ck_ok(exf_stored_read(exf_checkpoint_find(c, "x"), 0, N, read, NULL, &e), e);
    for (int i = 0; i < N; i++)
        if (read[i] != exf_bf16_to_f32(v[i])) ck_abort_msg("element %d", i);
    exf_checkpoint_close(c);
    v[N - 1] = 0x7fc0;
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, &t, 1, NULL, 0, NULL, &e), e);
    ck_ok(open_checkpoint(&c, &e), e);
    ck_fails(exf_stored_read(exf_checkpoint_find(c, "x"), 5, N - 5, read, NULL, &e), EXF_NUMERIC, e,
             "\"x\" 1060920");
    exf_checkpoint_close(c);
    exf_mem_free(v);
    exf_mem_free(read);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "shards"), *r = exf_case(s, "reading");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, shards_are_one_checkpoint);
    tcase_add_test(t, links_to_shards_are_followed);
    tcase_add_test(t, a_missing_shard_is_named);
    tcase_add_test(t, shards_lie_in_the_directory);
    tcase_add_test(t, index_and_shards_hold_the_same_names);
    tcase_add_test(t, a_shard_is_known_by_its_whole_name);
    tcase_add_test(t, an_index_is_a_map_of_names);
    tcase_add_checked_fixture(r, start_empty, NULL);
    tcase_add_test(r, long_tensors_are_read_whole);
}
