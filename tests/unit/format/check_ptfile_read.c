/* check_ptfile_read.c - the reader of .pt files: what ours writes, what torch writes, and what must be refused. */
#include "tests/support/fixtures.h"
#include "tests/support/pt_fixtures.h"
#include "tests/support/scratch_fixtures.h"

#include "format/ptfile_read.h"

static exf_err e; /* of the last call */

static const float floats[6] = {1, 2, 3, 4, 5, 6};
static const int64_t longs[2] = {1LL << 40, -7};

/* Every kind of value that is written. */
static exf_code write_sample(const char *path, exf_err *err)
{
    const exf_pt list[] = {{.kind = EXF_PT_INT, .integer = 255}, {.kind = EXF_PT_INT, .integer = 65536}, {.kind = EXF_PT_NONE}};
    const exf_pt item[] = {
        {.key = "f", .kind = EXF_PT_TENSOR, .tensor = {"f", EXF_DT_F32, 2, {2, 3}, floats}},
        {.key = "l", .kind = EXF_PT_TENSOR, .tensor = {"l", EXF_DT_I64, 1, {2}, longs}},
        {.key = "none", .kind = EXF_PT_TENSOR, .tensor = {"none", EXF_DT_I32, 1, {0}, NULL}},
        {.key = "list", .kind = EXF_PT_LIST, .item = list, .n = 3},
        {.key = "big", .kind = EXF_PT_INT, .integer = -(1LL << 40)},
        {.key = "real", .kind = EXF_PT_REAL, .real = -0.125},
        {.key = "yes", .kind = EXF_PT_BOOL, .integer = 1},
        {.key = "text", .kind = EXF_PT_TEXT, .text = "\xe2\x82\xac"},
    };
    return exf_pt_write(path, 1, &(exf_pt){.kind = EXF_PT_DICT, .item = item, .n = sizeof item / sizeof *item}, NULL, 0, err);
}

static void ck_sample(const char *path)
{
    exf_pt_file *f;
    float got[6];
    int64_t numbers[2];
    ck_ok(exf_pt_open(&f, path, &e), e);
    const exf_pt *root = exf_pt_root(f), *list = exf_pt_get(root, "list");
    ck_assert_uint_eq(root->n, 8);
    ck_assert_int_eq(exf_pt_get(root, "f")->tensor.shape[1], 3);
    ck_ok(exf_pt_read(f, exf_pt_get(root, "f"), got, &e), e);
    ck_assert(memcmp(got, floats, sizeof got) == 0);
    ck_ok(exf_pt_read(f, exf_pt_get(root, "l"), numbers, &e), e);
    ck_assert(memcmp(numbers, longs, sizeof numbers) == 0);
    ck_ok(exf_pt_read(f, exf_pt_get(root, "none"), numbers, &e), e);
    ck_assert(list->n == 3 && list->item[0].integer == 255 && list->item[1].integer == 65536 && list->item[2].kind == EXF_PT_NONE);
    ck_assert_int_eq(exf_pt_get(root, "big")->integer, -(1LL << 40));
    ck_assert_double_eq(exf_pt_get(root, "real")->real, -0.125);
    ck_assert_int_eq(exf_pt_get(root, "yes")->integer, 1);
    ck_assert_str_eq(exf_pt_get(root, "text")->text, "\xe2\x82\xac");
    ck_assert_ptr_null(exf_pt_get(root, "no"));
    exf_pt_close(f);
}

START_TEST(what_is_written_is_read)
{
    ck_ok(write_sample(exf_scratch("a.pt"), &e), e);
    ck_sample(exf_scratch("a.pt"));
    exf_pt_zip64_from(1); /* every size and offset in Zip64 fields */
    ck_ok(write_sample(exf_scratch("b.pt"), &e), e);
    exf_pt_zip64_from(0);
    ck_sample(exf_scratch("b.pt"));
}
END_TEST

/* Some bytes changed, some lengths: the file is refused, or says the same or other numbers. */
START_TEST(damage_is_refused)
{
    char *bytes;
    size_t n, refused = 0;
    exf_pt_file *f;
    ck_ok(write_sample(exf_scratch("a.pt"), &e), e);
    ck_ok(exf_file_slurp(exf_scratch("a.pt"), 1 << 20, &bytes, &n, &e), e);
    for (size_t i = 0; i < 2 * n; i += 5) {
        if (i < n) bytes[i] ^= 0x20;
        exf_write_file(exf_scratch("b.pt"), bytes, i < n ? n : i - n);
        exf_code rc = exf_pt_open(&f, exf_scratch("b.pt"), &e);
        ck_assert_msg(rc == EXF_OK || rc == EXF_FORMAT, "byte %zu: %s", i, e.msg);
        refused += rc != EXF_OK;
        ck_assert(i < n || rc == EXF_FORMAT);
        exf_pt_close(f);
        if (i < n) bytes[i] ^= 0x20;
    }
    ck_assert_uint_gt(refused, (n + n / 4) / 5);
    exf_mem_free(bytes);
}
END_TEST

START_TEST(a_storage_with_another_checksum_is_refused)
{
    char *bytes;
    size_t n;
    exf_pt_file *f;
    float got[6];
    ck_ok(write_sample(exf_scratch("a.pt"), &e), e);
    ck_ok(exf_file_slurp(exf_scratch("a.pt"), 1 << 20, &bytes, &n, &e), e);
    for (size_t i = 0; i + sizeof floats <= n; i++)
        if (memcmp(bytes + i, floats, sizeof floats) == 0) bytes[i + 3] ^= 1;
    exf_write_file(exf_scratch("b.pt"), bytes, n);
    ck_ok(exf_pt_open(&f, exf_scratch("b.pt"), &e), e);
    ck_fails(exf_pt_read(f, exf_pt_get(exf_pt_root(f), "f"), got, &e), EXF_FORMAT, e, "record archive/data/0 has CRC-32");
    exf_pt_close(f);
    exf_mem_free(bytes);
}
END_TEST

static void ck_refused(const char *pickle, size_t n, const char *what)
{
    exf_pt_file *f;
    pt_bytes file = pt_wrap(pickle, n);
    exf_write_file(exf_scratch("c.pt"), file.b, file.n);
    free(file.b);
    ck_fails(exf_pt_open(&f, exf_scratch("c.pt"), &e), EXF_FORMAT, e, what);
    ck_assert(strstr(e.msg, "c.pt") != NULL && !f);
}
#define REFUSED(pickle, what) ck_refused(pickle, sizeof pickle - 1, what)

START_TEST(what_would_run_is_refused)
{
    REFUSED("\x80\x02" "cos\nsystem\nX\x02\0\0\0ls\x85R.", "byte 2, opcode 0x63: it names os.system");
    REFUSED("\x80\x02" "cbuiltins\neval\n.", "it names builtins.eval");
    REFUSED("\x80\x02" "ctorch._utils _rebuild_tensor_v2\nx\n.", "it names torch._utils _rebuild_tensor_v2.x");
    REFUSED("\x80\x02}}b.", "opcode 0x62: it is none of those");
    REFUSED("\x80\x02" "ccollections\nOrderedDict\nN\x85R.", "with 1 arguments is not read");
    REFUSED("\x80\x04N.", "protocol 4");
    REFUSED("\x80\x02ios\nsystem\n.", "opcode 0x69");
}
END_TEST

START_TEST(hostile_sizes_are_refused)
{
    static char many[EXF_PT_MAX_OBJECTS + 8];
    memset(many, 'N', sizeof many);
    ck_refused(many, sizeof many, "more than 262144 objects");
    REFUSED("\x80\x02Nr\xff\xff\xff\xff.", "place 4294967295 of the memo");
    REFUSED("\x80\x02X\xff\xff\xff\xff" "ab.", "the pickle ends within it");
    REFUSED("\x80\x02]q\0(h\0h\0e.", "nested deeper than 16");
    REFUSED("\x80\x02N", "ends without its last opcode");
    REFUSED("\x80\x02(.", "of another kind");
    REFUSED("\x80\x02}(NNNu.", "nothing that takes its items");
    REFUSED("\x80\x02}NNs.", "a key that is neither text nor an integer");
}
END_TEST

/* A tensor of data/0, four floats. */
#define STORAGE "(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" "0X\x03\0\0\0cpuK"
#define TENSOR(elements, offset, shape, strides)                                                                     \
    "\x80\x02" "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE elements                                               \
    "tQK" offset "(" shape "t(" strides "t\x89" "ccollections\nOrderedDict\n)RtR."

START_TEST(tensors_stay_within_their_storage)
{
    static const char part[] = TENSOR("\4", "\1", "K\1", "K\1");
    exf_pt_file *f;
    float got;
    pt_bytes file = pt_wrap(part, sizeof part - 1);
    exf_write_file(exf_scratch("c.pt"), file.b, file.n);
    free(file.b);
    ck_ok(exf_pt_open(&f, exf_scratch("c.pt"), &e), e);
    ck_ok(exf_pt_read(f, exf_pt_root(f), &got, &e), e);
    ck_assert_float_eq(got, 2);
    exf_pt_close(f);
    REFUSED(TENSOR("\5", "\0", "K\4", "K\1"), "record data/0 has 16 bytes, the pickle says 5 elements of 4");
    REFUSED(TENSOR("\4", "\1", "K\4", "K\1"), "reaches beyond its storage of 4");
    REFUSED(TENSOR("\4", "\0", "K\2K\2", "K\1K\2"), "not dense and row-major");
    REFUSED(TENSOR("\4", "\0", "K\2K\2", "K\1"), "not tuples of the same length");
    REFUSED(TENSOR("\4", "\0", "J\0\0\0\x80", "K\1"), "not integers from 0");
    REFUSED(TENSOR("\4", "\0", "J\xff\xff\xff\x7fJ\xff\xff\xff\x7f", "J\xff\xff\xff\x7fK\1"), "overflows 64 bits");
}
END_TEST

static int nothing_left(void)
{
    return 0;
}

static exf_code open_and_close(exf_err *err)
{
    exf_pt_file *f;
    exf_code rc = exf_pt_open(&f, exf_scratch("a.pt"), err);
    exf_pt_close(f);
    return rc;
}

START_TEST(memory_that_is_not_there_is_said)
{
    ck_ok(write_sample(exf_scratch("a.pt"), &e), e);
    fail_each_allocation(open_and_close, nothing_left, 0);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("ptfile_read");
    TCase *t = tcase_create("all");
    tcase_add_test(t, what_is_written_is_read);
    tcase_add_test(t, damage_is_refused);
    tcase_add_test(t, a_storage_with_another_checksum_is_refused);
    tcase_add_test(t, what_would_run_is_refused);
    tcase_add_test(t, hostile_sizes_are_refused);
    tcase_add_test(t, tensors_stay_within_their_storage);
    tcase_add_test(t, memory_that_is_not_there_is_said);
    suite_add_tcase(s, t);
    return s;
}
