/* check_ptfile.c - src/format/ptfile: the pickle byte for byte, the zip around it. */
#include "tests/support/zip_fixtures.h"

#include "format/ptfile.h"

#include <math.h>

static exf_err e; /* of the last call */

static const float floats[6] = {1, 2, 3, 4, 5, 6};
static const int32_t ints[2] = {7, -8};
static const int64_t longs[1] = {1234567890123};

static exf_pt tensor(const char *key, exf_dtype dtype, int rank, int64_t a, int64_t b, const void *data)
{
    return (exf_pt){
        .key = key, .kind = EXF_PT_TENSOR, .tensor = {.name = key, .dtype = dtype, .rank = rank, .shape = {a, b}, .data = data}};
}

static exf_pt dict(const exf_pt *item, size_t n)
{
    return (exf_pt){.kind = EXF_PT_DICT, .item = item, .n = n};
}

static exf_code write_one(exf_pt item, const char *name, exf_err *err)
{
    exf_pt root = dict(&item, 1);
    return exf_pt_write(exf_scratch(name), 1, &root, NULL, 0, err);
}

/* ---- the pickle ------------------------------------------------------------------ */

/* data.pkl of {"k": value} is "\x80\2}(X\1\0\0\0k" value "u." */
static void ck_value(exf_pt value, const char *bytes, size_t n)
{
    static const char before[] = "\x80\2}(X\1\0\0\0k";
    value.key = "k";
    ck_ok(write_one(value, "v.pt", &e), e);
    zip_file z = zip_open("v.pt");
    zip_record r = zip_find(&z, "archive/data.pkl");
    ck_assert_uint_eq(r.n, sizeof before - 1 + n + 2);
    ck_assert_int_eq(memcmp(r.data, before, sizeof before - 1), 0);
    ck_assert_int_eq(memcmp(r.data + sizeof before - 1, bytes, n), 0);
    ck_assert_int_eq(memcmp(r.data + r.n - 2, "u.", 2), 0);
    exf_mem_free(z.bytes);
}

#define CK_INT(v, bytes) ck_value((exf_pt){.kind = EXF_PT_INT, .integer = (v)}, bytes, sizeof bytes - 1)
#define CK_REAL(v, bytes) ck_value((exf_pt){.kind = EXF_PT_REAL, .real = (v)}, bytes, sizeof bytes - 1)

START_TEST(numbers_are_pickled_as_python_does)
{
    CK_INT(0, "K\0");
    CK_INT(255, "K\xff");
    CK_INT(256, "M\0\1");
    CK_INT(65535, "M\xff\xff");
    CK_INT(65536, "J\0\0\1\0");
    CK_INT(-1, "J\xff\xff\xff\xff");
    CK_INT(INT32_MAX, "J\xff\xff\xff\x7f");
    CK_INT(INT32_MIN, "J\0\0\0\x80");
    CK_INT((int64_t)INT32_MAX + 1, "\x8a\x08\0\0\0\x80\0\0\0\0");
    CK_INT(INT64_MIN, "\x8a\x08\0\0\0\0\0\0\0\x80");
    CK_REAL(0.001, "G\x3f\x50\x62\x4d\xd2\xf1\xa9\xfc");
    CK_REAL(-4, "G\xc0\x10\0\0\0\0\0\0");
}
END_TEST

/* ---- the zip ---------------------------------------------------------------------- */

static exf_code write_sample(const char *name, int force, exf_err *err)
{
    const exf_pt item[] = {
        {.key = "version", .kind = EXF_PT_INT, .integer = 1},
        tensor("matrix", EXF_DT_F32, 2, 2, 3, floats),
        tensor("vector", EXF_DT_I32, 1, 2, 0, ints),
        tensor("again", EXF_DT_F32, 2, 2, 3, floats),
    };
    const exf_pt_record extra[] = {{"extra/note.txt", "hello", 5}};
    exf_pt root = dict(item, 4);
    return exf_pt_write(exf_scratch(name), force, &root, extra, 1, err);
}

START_TEST(records_stand_in_torchs_order)
{
    static const char *const names[] = {
        "archive/data.pkl", "archive/byteorder",      "archive/data/0",  "archive/data/1",
        "archive/data/2",   "archive/extra/note.txt", "archive/version", "archive/.data/serialization_id"};
    ck_ok(write_sample("s.pt", 0, &e), e);
    zip_file z = zip_open("s.pt");
    ck_assert_uint_eq(z.n_records, 8);
    ck_assert_int_eq(z.wide, 0);
    for (size_t i = 0; i < z.n_records; i++) {
        zip_record r = zip_at(&z, i); /* checks alignment, CRC and that both headers agree */
        ck_assert_str_eq(r.name, names[i]);
        ck_assert_int_eq(r.wide, 0);
    }
    ck_assert_int_eq(memcmp(zip_find(&z, "archive/byteorder").data, "little", 6), 0);
    ck_assert_int_eq(memcmp(zip_find(&z, "archive/version").data, "3\n", 2), 0);
    ck_assert_int_eq(memcmp(zip_find(&z, "archive/data/0").data, floats, sizeof floats), 0);
    ck_assert_int_eq(memcmp(zip_find(&z, "archive/data/1").data, ints, sizeof ints), 0);
    ck_assert_int_eq(memcmp(zip_find(&z, "archive/data/2").data, floats, sizeof floats), 0); /* a storage of its own */
    ck_assert_int_eq(memcmp(zip_find(&z, "archive/extra/note.txt").data, "hello", 5), 0);
    zip_record id = zip_find(&z, "archive/.data/serialization_id");
    ck_assert_uint_eq(id.n, 40);
    for (size_t i = 0; i < id.n; i++) ck_assert(id.data[i] >= '0' && id.data[i] <= '9');
    exf_mem_free(z.bytes);
}
END_TEST

/* Bytes that torch.load(weights_only=True) of torch 1.13 and 2.6 gave {"a": tensor([7, -8], dtype=torch.int32)} for. */
START_TEST(a_small_file_is_this_byte_for_byte)
{
    exf_err e2;
    char *got, *want;
    size_t n, m;
    ck_ok(write_one(tensor("a", EXF_DT_I32, 1, 2, 0, ints), "g.pt", &e), e);
    ck_ok(exf_file_slurp(exf_scratch("g.pt"), 1 << 20, &got, &n, &e2), e2);
    ck_ok(exf_file_slurp("tests/golden/ptfile/int32.pt", 1 << 20, &want, &m, &e2), e2);
    ck_assert_uint_eq(n, m);
    ck_assert_int_eq(memcmp(got, want, n), 0);
    exf_mem_free(got);
    exf_mem_free(want);
}
END_TEST

/* From 64 bytes on everything counts as large: offsets, sizes and the directory. */
START_TEST(large_files_have_wide_fields)
{
    static float many[1000];
    exf_pt_zip64_from(64);
    exf_code rc = write_one(tensor("a", EXF_DT_F32, 2, 10, 100, many), "w.pt", &e);
    exf_pt_zip64_from(0);
    ck_ok(rc, e);
    zip_file z = zip_open("w.pt");
    ck_assert_int_eq(z.wide, 1);
    for (size_t i = 0; i < z.n_records; i++) ck_assert_int_eq(zip_at(&z, i).wide, i > 0 || zip_at(&z, i).n >= 64);
    zip_record r = zip_find(&z, "archive/data/0");
    const unsigned char *local = z.bytes + r.offset;
    ck_assert_uint_eq(r.n, sizeof many);
    ck_assert_uint_eq(le(local + 4, 2), 45);
    ck_assert_uint_eq(le(local + 18, 4), UINT32_MAX);
    ck_assert_uint_eq(le(local + 30 + strlen(r.name) + 4, 8), sizeof many);
    exf_mem_free(z.bytes);
}
END_TEST

/* ---- refusals ----------------------------------------------------------------------- */

START_TEST(what_no_loader_would_take_is_refused)
{
    const exf_pt twice[] = {{.key = "a", .kind = EXF_PT_NONE}, {.key = "a", .kind = EXF_PT_NONE}};
    exf_pt deep[20] = {{.kind = EXF_PT_NONE}}, root = dict(twice, 2);
    ck_fails(exf_pt_write(exf_scratch("x"), 0, &root, NULL, 0, &e), EXF_FORMAT, e, "\"a\"");
    ck_fails(write_one(tensor("u", EXF_DT_U64, 1, 2, 0, longs), "x", &e), EXF_FORMAT, e, "\"u\" U64 F32 I32 I64");
    ck_fails(write_one(tensor("n", EXF_DT_F32, 1, -1, 0, floats), "x", &e), EXF_FORMAT, e, "\"n\" -1");
    ck_fails(write_one(tensor("o", EXF_DT_F32, 2, INT64_MAX / 4, 4, floats), "x", &e), EXF_FORMAT, e, "\"o\" 4");
    ck_fails(write_one(tensor("r", EXF_DT_F32, 9, 1, 1, floats), "x", &e), EXF_FORMAT, e, "\"r\" 9");
    ck_fails(write_one(tensor("d", EXF_DT_F32, 1, 2, 0, NULL), "x", &e), EXF_INTERNAL, e, "8");
    ck_fails(write_one((exf_pt){.key = "\xff", .kind = EXF_PT_NONE}, "x", &e), EXF_FORMAT, e, "UTF-8");
    ck_fails(write_one((exf_pt){.key = "t", .kind = EXF_PT_TEXT, .text = "\xc0\x80"}, "x", &e), EXF_FORMAT, e, "UTF-8");
    for (int i = 1; i < 20; i++) deep[i] = (exf_pt){.kind = EXF_PT_LIST, .item = &deep[i - 1], .n = 1};
    ck_fails(exf_pt_write(exf_scratch("x"), 0, &deep[19], NULL, 0, &e), EXF_FORMAT, e, "16");
    ck_ok(exf_pt_write(exf_scratch("x"), 0, &deep[16], NULL, 0, &e), e);
    ck_assert_int_eq(files_left(), 1);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, numbers_are_pickled_as_python_does);
    tcase_add_test(t, records_stand_in_torchs_order);
    tcase_add_test(t, a_small_file_is_this_byte_for_byte);
    tcase_add_test(t, large_files_have_wide_fields);
    tcase_add_test(t, what_no_loader_would_take_is_refused);
}
