/* check_safetensors_write.c - writing .safetensors: what is written is read, the
 * bytes are the reference writer's and repeatable, failures leave nothing. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static exf_st_file *opened(const char *path)
{
    exf_err e;
    exf_st_file *f;
    ck_ok(exf_st_open(&f, path, &e), e);
    return f;
}

/* How many temporaries lie in the scratch directory; uses one slot of
 * exf_scratch for good, not one per call. */
static int partials(void)
{
    static char dir[600];
    int n = 0;
    if (!*dir) snprintf(dir, sizeof dir, "%s", exf_scratch("."));
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *x; (x = readdir(d));) n += exf_ends_with(x->d_name, ".partial");
    closedir(d);
    return n;
}

static void same_bytes(const char *a, const char *b)
{
    exf_err e;
    char hex_a[EXF_SHA256_HEX], hex_b[EXF_SHA256_HEX];
    ck_ok(exf_hash_file(a, hex_a, &e), e);
    ck_ok(exf_hash_file(b, hex_b, &e), e);
    ck_assert_str_eq(hex_a, hex_b);
}

static const double f64s[2] = {1.5, -2};
static const float f32s[6] = {1, 2, 3, 4, 5, 6};
static const uint16_t bf16s[4] = {0x3f80, 0x4000, 0x4040, 0x4080};
static const uint8_t bytes3[3] = {7, 8, 9};
static const int64_t scalar = -5;

static const exf_tensor mixed[] = {
    {"bytes", EXF_DT_U8, 1, {3}, bytes3},          {"half \"q\" \xc3\xa9/", EXF_DT_BF16, 2, {2, 2}, bf16s},
    {"w.b", EXF_DT_F32, 2, {2, 3}, f32s},          {"w.a", EXF_DT_F32, 3, {1, 3, 2}, f32s},
    {"double", EXF_DT_F64, 1, {2}, f64s},          {"step", EXF_DT_I64, 0, {0}, &scalar},
    {"empty", EXF_DT_F16, 2, {0, 4}, NULL},        {"bool", EXF_DT_BOOL, 1, {1}, bytes3},
};
enum { N_MIXED = sizeof mixed / sizeof *mixed };
static const exf_st_meta meta[] = {{"format", "pt"}, {"a", "line\nand \"quote\""}, {"z", ""}};

START_TEST(what_is_written_is_read)
{
    exf_err e;
    const char *path = exf_scratch("mixed.safetensors");
    ck_ok(exf_st_write(path, 0, mixed, N_MIXED, meta, 3, NULL, &e), e);
    exf_st_file *f = opened(path);
    ck_assert_uint_eq(f->n_tensors, N_MIXED);
    for (int i = 0; i < N_MIXED; i++) {
        char buf[64];
        const exf_st_tensor *t = exf_st_find(f, mixed[i].name);
        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq(t->view.dtype, mixed[i].dtype);
        ck_assert_int_eq(t->view.rank, mixed[i].rank);
        for (int d = 0; d < mixed[i].rank; d++) ck_assert_int_eq(t->view.shape[d], mixed[i].shape[d]);
        ck_assert_uint_eq(t->nbytes, exf_tensor_bytes(&mixed[i]));
        ck_ok(exf_st_read(f, t, 0, buf, (size_t)t->nbytes, &e), e);
        if (t->nbytes) ck_assert_mem_eq(buf, mixed[i].data, t->nbytes);
        ck_assert_uint_eq(t->offset * 8 % exf_dtype_bits(t->view.dtype), 0); /* aligned */
    }
    for (int i = 0; i < 3; i++) ck_assert_str_eq(exf_st_metadata(f, meta[i].key), meta[i].value);
    exf_st_close(f);
    ck_assert_int_eq(partials(), 0);
}
END_TEST

/* The bytes that the reference writer (safetensors 0.8.0, Python) writes for the same tensors. */
START_TEST(the_layout_is_the_reference_writers)
{
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"step\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"w.a\":{\"dtype\":\"F32\",\"shape\":[1,3,2],\"data_offsets\":[8,32]},"
        "\"w.b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[32,56]},"
        "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[56,56]},"
        "\"bytes\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[56,59]}}";
    const exf_tensor t[] = {mixed[6], mixed[0], mixed[2], mixed[5], mixed[3]};
    exf_err e;
    char *bytes;
    size_t len, n = (sizeof json - 1 + 7) / 8 * 8;
    const char *path = exf_scratch("layout.safetensors");
    ck_ok(exf_st_write(path, 0, t, 5, meta, 1, NULL, &e), e);
    ck_ok(exf_file_slurp(path, 4096, &bytes, &len, &e), e);
    ck_assert_uint_eq(len, 8 + n + 59);
    ck_assert_uint_eq((unsigned char)bytes[0] + 256u * (unsigned char)bytes[1], n);
    ck_assert_mem_eq(bytes + 8, json, sizeof json - 1);
    for (size_t i = sizeof json - 1; i < n; i++) ck_assert_int_eq(bytes[8 + i], ' ');
    ck_assert_mem_eq(bytes + 8 + n, &scalar, 8);
    ck_assert_mem_eq(bytes + 8 + n + 8, f32s, 24);
    ck_assert_mem_eq(bytes + 8 + n + 56, bytes3, 3);
    exf_mem_free(bytes);
    ck_ok(exf_st_write(path, 1, NULL, 0, NULL, 0, NULL, &e), e);
    ck_ok(exf_file_slurp(path, 4096, &bytes, &len, &e), e);
    ck_assert_uint_eq(len, 16);
    ck_assert_mem_eq(bytes, "\10\0\0\0\0\0\0\0{}      ", 16);
    exf_mem_free(bytes);
}
END_TEST

START_TEST(equal_inputs_give_equal_bytes)
{
    exf_err e;
    exf_tensor back[N_MIXED];
    const exf_st_meta meta_back[] = {meta[2], meta[0], meta[1]};
    const char *a = exf_scratch("a.safetensors"), *b = exf_scratch("b.safetensors");
    for (int i = 0; i < N_MIXED; i++) back[i] = mixed[N_MIXED - 1 - i];
    ck_ok(exf_st_write(a, 0, mixed, N_MIXED, meta, 3, NULL, &e), e);
    ck_ok(exf_st_write(b, 0, back, N_MIXED, meta_back, 3, NULL, &e), e);
    same_bytes(a, b);
}
END_TEST

START_TEST(bytes_may_come_in_any_order)
{
    exf_err e;
    exf_st_writer *w;
    const char *a = exf_scratch("ordered.safetensors"), *b = exf_scratch("unordered.safetensors");
    ck_ok(exf_st_write(a, 0, mixed, N_MIXED, meta, 3, NULL, &e), e);
    ck_ok(exf_st_writer_begin(&w, b, 0, mixed, N_MIXED, meta, 3, &e), e);
    ck_assert(!exf_path_exists(b));
    for (int i = N_MIXED - 1; i >= 0; i--) {
        size_t n = exf_tensor_bytes(&mixed[i]);
        const char *p = mixed[i].data;
        if (n == 0) continue; /* nothing has to come for it */
        ck_ok(exf_st_writer_put(w, (size_t)i, n - 1, p + n - 1, 1, &e), e);
        ck_ok(exf_st_writer_put(w, (size_t)i, 0, p, n - 1, &e), e);
    }
    ck_ok(exf_st_writer_commit(w, &e), e);
    same_bytes(a, b);
}
END_TEST

enum { N_THREADS = 4, N_ROWS = 1000 };
typedef struct { exf_st_writer *w; int id; exf_code rc; } share;

static void *put_share(void *arg)
{
    share *s = arg;
    for (uint32_t row = (uint32_t)s->id; row < N_ROWS && s->rc == EXF_OK; row += N_THREADS)
        s->rc = exf_st_writer_put(s->w, row & 1, row / 2 * sizeof row, &row, sizeof row, NULL);
    return NULL;
}

START_TEST(threads_may_put)
{
    exf_err e;
    exf_st_writer *w;
    const exf_tensor t[] = {{"even", EXF_DT_U32, 1, {N_ROWS / 2}, NULL}, {"odd", EXF_DT_U32, 1, {N_ROWS / 2}, NULL}};
    const char *path = exf_scratch("threads.safetensors");
    pthread_t thread[N_THREADS];
    share s[N_THREADS];
    ck_ok(exf_st_writer_begin(&w, path, 0, t, 2, NULL, 0, &e), e);
    for (int i = 0; i < N_THREADS; i++) {
        s[i] = (share){w, i, EXF_OK};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, put_share, &s[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_int_eq(s[i].rc, EXF_OK);
    }
    ck_ok(exf_st_writer_commit(w, &e), e);
    exf_st_file *f = opened(path);
    for (uint32_t row = 0; row < N_ROWS; row++) {
        uint32_t v;
        ck_ok(exf_st_read(f, &f->tensor[row & 1], row / 2 * sizeof v, &v, sizeof v, &e), e);
        ck_assert_uint_eq(v, row);
    }
    exf_st_close(f);
}
END_TEST

START_TEST(commit_counts_the_bytes)
{
    exf_err e;
    exf_st_writer *w;
    const char *path = exf_scratch("counted.safetensors");
    ck_ok(exf_st_writer_begin(&w, path, 0, mixed, 1, NULL, 0, &e), e);
    ck_ok(exf_st_writer_put(w, 0, 0, bytes3, 2, &e), e);
    ck_fails(exf_st_writer_commit(w, &e), EXF_INTERNAL, e, "counted.safetensors \"bytes\" 2 3");
    ck_ok(exf_st_writer_begin(&w, path, 0, mixed, 1, NULL, 0, &e), e);
    ck_ok(exf_st_writer_put(w, 0, 0, bytes3, 3, &e), e);
    ck_ok(exf_st_writer_put(w, 0, 1, bytes3, 1, &e), e);
    ck_fails(exf_st_writer_commit(w, &e), EXF_INTERNAL, e, "4 3");
    ck_ok(exf_st_writer_begin(&w, path, 0, mixed, 1, NULL, 0, &e), e);
    ck_fails(exf_st_writer_put(w, 0, 1, bytes3, 3, &e), EXF_INTERNAL, e, "\"bytes\" 3 1 3");
    ck_fails(exf_st_writer_put(w, 0, UINT64_MAX, bytes3, 1, &e), EXF_INTERNAL, e, "18446744073709551615 3");
    ck_fails(exf_st_writer_put(w, 1, 0, bytes3, 1, &e), EXF_INTERNAL, e,
             "counted.safetensors 1 1");
    ck_fails(exf_st_writer_put(w, 0, 0, NULL, 3, &e), EXF_INTERNAL, e, "\"bytes\" 3");
    exf_st_writer_abort(w);
    exf_st_writer_abort(NULL);
    exf_tensor bare = mixed[2];
    bare.data = NULL;
    ck_fails(exf_st_write(path, 0, &bare, 1, NULL, 0, NULL, &e), EXF_INTERNAL, e, "\"w.b\" 24");
    ck_assert(!exf_path_exists(path));
    ck_assert_int_eq(partials(), 0);
}
END_TEST

START_TEST(large_tensors_are_hashed_beside_their_pieces)
{
    enum { N = (9 << 20) + 5 };
    exf_err e;
    char sha256[EXF_SHA256_HEX], of_file[EXF_SHA256_HEX], *large, *back;
    const char *path = exf_scratch("large.safetensors");
    exf_st_file *f;
    ck_ok(exf_mem_raw(&large, N, 1, "test", &e), e);
    ck_ok(exf_mem_raw(&back, N, 1, "test", &e), e);
    for (size_t i = 0; i < N; i++) large[i] = (char)(i * 2654435761u >> 13);
    exf_tensor t[] = {{.name = "large", .dtype = EXF_DT_U8, .rank = 1, .shape = {N}, .data = large}, mixed[2]};
    ck_ok(exf_st_write(path, 0, t, 2, NULL, 0, sha256, &e), e);
    ck_ok(exf_hash_file(path, of_file, &e), e);
    ck_assert_str_eq(sha256, of_file);
    ck_ok(exf_st_open(&f, path, &e), e);
    ck_ok(exf_st_read(f, exf_st_find(f, "large"), 0, back, N, &e), e);
    ck_assert_int_eq(memcmp(large, back, N), 0);
    exf_st_close(f);
    exf_mem_free(large);
    exf_mem_free(back);
}
END_TEST

static void not_written(const exf_tensor *t, size_t n, const exf_st_meta *m, size_t n_meta, const char *sentence)
{
    exf_err e;
    exf_st_writer *w;
    const char *path = exf_scratch("never.safetensors");
    ck_fails(exf_st_writer_begin(&w, path, 0, t, n, m, n_meta, &e), EXF_FORMAT, e, sentence);
    ck_assert_ptr_null(w);
    ck_assert(exf_starts_with(e.msg, path));
    ck_assert(!exf_path_exists(path));
    ck_assert_int_eq(partials(), 0);
}

START_TEST(what_the_reader_refuses_is_not_written)
{
    char longer[EXF_ST_MAX_NAME + 2];
    memset(longer, 'n', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    const exf_tensor bad[] = {
        {longer, EXF_DT_U8, 0, {0}, NULL},         {"a\tb", EXF_DT_U8, 0, {0}, NULL},
        {"a\xff", EXF_DT_U8, 0, {0}, NULL},        {"__metadata__", EXF_DT_U8, 0, {0}, NULL},
        {"r", EXF_DT_U8, 9, {0}, NULL},            {"m", EXF_DT_U8, 1, {-3}, NULL},
        {"o", EXF_DT_F32, 2, {INT64_MAX, 2}, NULL}, {"f", EXF_DT_F6_E2M3, 1, {3}, NULL},
    };
    static const char *const sentence[] = {
        "name of 513 bytes, at most 512",      "tensor \"a?b\": control character in its name",
        "a tensor's name is not UTF-8",        "tensor \"__metadata__\": this name is reserved",
        "tensor \"r\": rank 9, at most 8",     "tensor \"m\": shape [-3] has a negative dimension",
        "shape [9223372036854775807, 2] overflows 64 bits", "F6_E2M3 [3] is 18 bits, no whole number of bytes",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) not_written(&bad[i], 1, NULL, 0, sentence[i]);
    const exf_tensor twice[] = {{"a", EXF_DT_U8, 0, {0}, NULL}, {"b", EXF_DT_U8, 0, {0}, NULL}, {"a", EXF_DT_F64, 0, {0}, NULL}};
    not_written(twice, 3, NULL, 0, "tensor \"a\": announced twice");
    exf_tensor huge[9];
    char name[9][2] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    for (int i = 0; i < 9; i++) huge[i] = (exf_tensor){name[i], EXF_DT_U8, 1, {INT64_MAX / 8}, NULL};
    not_written(huge, 9, NULL, 0, "tensor \"h\": 1152921504606846975 bytes after 8070450532247928825 overflow 64 bits");
    const exf_st_meta same[] = {{"k", "1"}, {"l", "2"}, {"k", "3"}}, bad_key = {"k\xff", "v"}, bad_value = {"k", "v\xff"};
    not_written(NULL, 0, same, 3, "metadata \"k\": given twice");
    not_written(NULL, 0, &bad_key, 1, "a metadata key is not UTF-8");
    not_written(NULL, 0, &bad_value, 1, "metadata \"k\": its value is not UTF-8");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, what_is_written_is_read);
    tcase_add_test(t, the_layout_is_the_reference_writers);
    tcase_add_test(t, equal_inputs_give_equal_bytes);
    tcase_add_test(t, bytes_may_come_in_any_order);
    tcase_add_test(t, threads_may_put);
    tcase_add_test(t, commit_counts_the_bytes);
    tcase_add_test(t, large_tensors_are_hashed_beside_their_pieces);
    tcase_add_test(t, what_the_reader_refuses_is_not_written);
}
