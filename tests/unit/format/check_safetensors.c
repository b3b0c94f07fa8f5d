/* check_safetensors.c - reading .safetensors: every refusal with its message, the
 * edges of the format, lookups.  check_safetensors_write.c covers writing. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- making files ------------------------------------------------------- */

/* u64 n | header | `data` bytes 0, 1, 2, ...; returns its path. */
static const char *raw_file(uint64_t n, const char *header, size_t len, size_t data)
{
    exf_text t = {0};
    const char *path = exf_scratch("made.safetensors");
    for (int i = 0; i < 8; i++) exf_text_append(&t, &(char){(char)(n >> (8 * i) & 0xff)}, 1);
    exf_text_append(&t, header, len);
    for (size_t i = 0; i < data; i++) exf_text_append(&t, &(char){(char)(i & 0xff)}, 1);
    exf_write_file(path, t.s, t.len);
    exf_text_free(&t);
    return path;
}

static const char *file_of(const char *json, size_t data)
{
    return raw_file(strlen(json), json, strlen(json), data);
}

static void refused(const char *path, const char *sentence)
{
    exf_err e;
    exf_st_file *f;
    ck_fails(exf_st_open(&f, path, &e), EXF_FORMAT, e, sentence);
    ck_assert_ptr_null(f);
    ck_assert_msg(exf_starts_with(e.msg, path), "message \"%s\" lacks the file", e.msg);
}

static exf_st_file *opened(const char *path)
{
    exf_err e;
    exf_st_file *f;
    ck_ok(exf_st_open(&f, path, &e), e);
    ck_assert_str_eq(exf_st_path(f), path);
    return f;
}

/* ---- reading: refusals ---------------------------------------------------- */

START_TEST(a_header_of_a_wrong_length)
{
    refused(raw_file(UINT64_C(1) << 63, "{}", 2, 0), "header of 9223372036854775808 bytes, at most 100000000");
    refused(raw_file(UINT64_MAX, "{}", 2, 0), "header of 18446744073709551615 bytes");
    refused(raw_file(UINT64_MAX - 7, "{}", 2, 0), "header of 18446744073709551608 bytes");
    refused(raw_file(100000001, "{}", 2, 0), "header of 100000001 bytes, at most 100000000");
    refused(raw_file(100000000, "{}", 2, 0), "truncated: header of 100000000 bytes at byte 8, the file ends at byte 10");
    refused(raw_file(3, "{}", 2, 0), "truncated: header of 3 bytes at byte 8, the file ends at byte 10");
    refused(raw_file(10, "{}", 2, 0), "truncated: header of 10 bytes at byte 8, the file ends at byte 10");
    refused(raw_file(0, "", 0, 0), "header of 0 bytes, expected a JSON object");
    refused(raw_file(0, "", 0, 4), "header of 0 bytes, expected a JSON object");
    exf_st_close(opened(raw_file(2, "{}", 2, 0))); /* ends exactly at the file's end */
}
END_TEST

START_TEST(names_out_of_bounds)
{
    exf_text t = {0};
    exf_text_appendf(&t, "{\"%0513d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 0);
    refused(file_of(t.s, 1), "tensor \"0000000000000000000000000000000000000000...\": name of 513 bytes, at most 512 are accepted");
    t.len = 0;
    exf_text_appendf(&t, "{\"%0512d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 0);
    exf_st_close(opened(file_of(t.s, 1)));
    exf_text_free(&t);
#define NAMED(s) "{\"" s "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}"
    refused(file_of(NAMED("a\\u0000b"), 1), "not valid JSON: NUL byte in object key");
    refused(file_of(NAMED("a\\nb"), 1), "tensor \"a?b\": control character in its name");
    refused(file_of(NAMED("a\\u007f"), 1), "control character in its name");
    refused(file_of(NAMED("a\\u009b31m"), 1), "control character in its name");
    refused(file_of(NAMED("a\nb"), 1), "not valid JSON");
    exf_st_close(opened(file_of(NAMED("\\u00a0\xc3\xa9 \\\" \\/"), 1)));
    exf_st_close(opened(file_of(NAMED(""), 1)));
}
END_TEST

#define ENTRY(rest) "{\"a\":{\"dtype\":\"U8\"," rest "}}"

START_TEST(shapes_and_spans_that_disagree)
{
    refused(file_of("{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[4,8],\"data_offsets\":[0,96]}}", 96),
            ": tensor \"a.weight\": 96 bytes at [0, 96), BF16 [4, 8] needs 64");
    refused(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,8]}}", 8), "8 bytes at [0, 8), F32 [] needs 4");
    refused(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,4]}}", 4),
            "4 bytes at [0, 4), F32 [3, 0] needs 0");
    refused(file_of(ENTRY("\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"), 1),
            "tensor \"a\": rank 9, at most 8 is supported");
    refused(file_of(ENTRY("\"shape\":[4,-1],\"data_offsets\":[0,4]"), 4), "tensor \"a\": shape [4, -1] has a negative dimension");
    refused(file_of(ENTRY("\"shape\":[-2,-2],\"data_offsets\":[0,4]"), 4), "shape [-2, -2] has a negative dimension");
    refused(file_of(ENTRY("\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0),
            "tensor \"a\": shape [4294967296, 4294967296] overflows 64 bits");
    refused(file_of(ENTRY("\"shape\":[9223372036854775807],\"data_offsets\":[0,8]"), 8), "shape [9223372036854775807] overflows");
    refused(file_of(ENTRY("\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]"), 0), "overflows 64 bits");
    refused(file_of(ENTRY("\"shape\":[9223372036854775808],\"data_offsets\":[0,8]"), 8),
            "tensor \"a\": a dimension of its shape is a real number");
    refused(file_of("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2),
            "F4 [3] is 12 bits, no whole number of bytes");
    refused(file_of(ENTRY("\"shape\":[1],\"data_offsets\":[1,0]"), 1), "tensor \"a\": data_offsets [1, 0] are no span");
    refused(file_of(ENTRY("\"shape\":[1],\"data_offsets\":[-1,0]"), 1), "tensor \"a\": data_offsets [-1, 0] are no span");
    refused(file_of(ENTRY("\"shape\":[1],\"data_offsets\":[-9223372036854775808,9223372036854775807]"), 1), "are no span");
}
END_TEST

#define TWO(b0, e0, b1, e1)                                                                                  \
    "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #b0 "," #e0 "]},\"a\":{\"dtype\":\"U8\",\"shape\":[4]," \
    "\"data_offsets\":[" #b1 "," #e1 "]}}"

START_TEST(data_that_is_not_tiled)
{
    exf_st_close(opened(file_of(TWO(4, 8, 0, 4), 8)));
    refused(file_of(TWO(5, 9, 0, 4), 9), "tensor \"b\": begins at byte 5 of the data, what lies before ends at 4: hole");
    refused(file_of(TWO(3, 7, 0, 4), 7), "tensor \"b\": begins at byte 3 of the data, what lies before ends at 4: overlap");
    refused(file_of(TWO(0, 4, 0, 4), 4), "tensor \"b\": begins at byte 0 of the data, what lies before ends at 4: overlap");
    refused(file_of(TWO(5, 9, 1, 5), 9), "tensor \"a\": begins at byte 1 of the data, what lies before ends at 0: hole");
    refused(file_of(TWO(4, 8, 0, 4), 7), "tensor \"b\": ends at byte 121, the file at byte 120: truncated");
    refused(file_of(TWO(4, 8, 0, 4), 0), "tensor \"b\": ends at byte 121, the file at byte 113: truncated");
    refused(file_of(TWO(4, 8, 0, 4), 9), "tensor \"b\": ends at byte 121, the file at byte 122: no tensor has this data");
    refused(file_of("{}", 1), "header ends at byte 10, the file at byte 11: no tensor has this data");
    refused(file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[1152921504606846975],\"data_offsets\":[0,1152921504606846975]}}", 8),
            "tensor \"a\": ends at byte 1152921504606847072, the file at byte 105: truncated");
    refused(file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9223372036854775806,9223372036854775807]}}", 1),
            "tensor \"a\": begins at byte 9223372036854775806 of the data, what lies before ends at 0: hole");
    /* An empty tensor inside another's span. */
    refused(file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],"
                    "\"data_offsets\":[2,2]}}",
                    4),
            "tensor \"z\": begins at byte 2 of the data, what lies before ends at 4: overlap");
}
END_TEST

/* ---- reading: what is legal ------------------------------------------------ */

START_TEST(scalars_and_empty_tensors)
{
    exf_err e;
    char buf[16];
    exf_st_file *f = opened(file_of("{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                                    "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[4,4]},"
                                    "\"e2\":{\"dtype\":\"I64\",\"shape\":[2,0,9223],\"data_offsets\":[0,0]},"
                                    "\"x\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[4,6]}}   \n", 6));
    ck_assert_uint_eq(f->n_tensors, 4);
    const exf_st_tensor *s = exf_st_find(f, "s"), *x = exf_st_find(f, "x");
    ck_assert_int_eq(s->view.rank, 0);
    ck_assert_uint_eq(s->nbytes, 4);
    ck_assert_ptr_null(s->view.data);
    ck_assert_int_eq(exf_tensor_count(&s->view), 1);
    ck_assert_uint_eq(exf_st_find(f, "e")->nbytes, 0);
    ck_ok(exf_st_read(f, exf_st_find(f, "e"), 0, buf, 0, &e), e);
    ck_ok(exf_st_read(f, x, 1, buf, 1, &e), e);
    ck_assert_int_eq(buf[0], 5);
    ck_ok(exf_st_read(f, x, 2, buf, 0, &e), e);
    ck_fails(exf_st_read(f, x, 1, buf, 2, &e), EXF_INTERNAL, e, "\"x\" 2 1 2");
    ck_fails(exf_st_read(f, x, UINT64_MAX, buf, 2, &e), EXF_INTERNAL, e, "18446744073709551615 2");
    exf_st_close(f);
    exf_st_close(NULL);
}
END_TEST

START_TEST(lookups_are_by_name_in_order)
{
    exf_st_file *f = opened(file_of("{\"__metadata__\":{\"z\":\"26\",\"format\":\"pt\\n\",\"\":\"\"},"
                                    "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                    "\"a\":{\"dtype\":\"I8\",\"shape\":[1,2],\"data_offsets\":[1,3]}}", 3));
    ck_assert_str_eq(f->tensor[0].view.name, "a");
    ck_assert_str_eq(f->tensor[1].view.name, "b");
    ck_assert_ptr_eq(exf_st_find(f, "b"), &f->tensor[1]);
    ck_assert_ptr_null(exf_st_find(f, "c"));
    ck_assert_ptr_null(exf_st_find(f, "__metadata__"));
    ck_assert_int_eq(f->tensor[0].view.dtype, EXF_DT_I8);
    ck_assert_str_eq(exf_st_metadata(f, "format"), "pt\n");
    ck_assert_ptr_null(exf_st_metadata(f, "forma"));
    ck_assert_uint_eq(f->n_meta, 3);
    ck_assert(!*f->meta[0].key && !*f->meta[0].value);
    ck_assert(*f->meta[2].key == 'z' && strcmp(f->meta[2].value, "26") == 0);
    exf_st_close(f);
    f = opened(file_of("{}", 0));
    ck_assert_uint_eq(f->n_tensors, 0);
    ck_assert_ptr_null(exf_st_find(f, "a"));
    ck_assert_ptr_null(exf_st_metadata(f, "a"));
    ck_assert_uint_eq(f->n_meta, 0);
    exf_st_close(f);
}
END_TEST

START_TEST(offsets_beyond_four_gigabytes)
{
    exf_err e;
    char buf[4] = "";
    const char *path = file_of("{\"big\":{\"dtype\":\"U8\",\"shape\":[6442450944],\"data_offsets\":[0,6442450944]},"
                               "\"end\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[6442450944,6442450948]}}", 0);
    exf_file *h;
    ck_ok(exf_file_open(&h, path, &e), e);
    off_t size = (off_t)exf_file_size(h) + 6442450948;
    exf_file_close(h);
    if (truncate(path, size) != 0) return; /* no sparse files here */
    exf_st_file *f = opened(path);
    ck_assert_uint_eq(exf_st_find(f, "end")->offset, (uint64_t)size - 4);
    ck_ok(exf_st_read(f, exf_st_find(f, "big"), 6442450940, buf, 4, &e), e);
    ck_ok(exf_st_read(f, exf_st_find(f, "end"), 0, buf, 4, &e), e);
    ck_assert_mem_eq(buf, "\0\0\0\0", 4);
    exf_st_close(f);
    unlink(path);
}
END_TEST

START_TEST(a_file_that_shrinks_is_an_error)
{
    exf_err e;
    char buf[4];
    const char *path = file_of(TWO(0, 4, 4, 8), 8);
    exf_st_file *f = opened(path);
    ck_assert_int_eq(truncate(path, 118), 0);
    ck_ok(exf_st_read(f, exf_st_find(f, "b"), 0, buf, 4, &e), e);
    ck_fails(exf_st_read(f, exf_st_find(f, "a"), 0, buf, 4, &e), EXF_FORMAT, e, "made.safetensors 118");
    exf_st_close(f);
}
END_TEST

/* Seeds and what fuzzing found: ok-* opens, bad-* is refused. */
START_TEST(the_fuzzing_corpus)
{
    static const char dir[] = "tests/fuzz/corpus/safetensors";
    int seen = 0;
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *x; (x = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        if (exf_starts_with(x->d_name, "ok-")) exf_st_close(opened(path));
        if (exf_starts_with(x->d_name, "bad-")) refused(path, "");
        seen += x->d_name[0] != '.';
    }
    closedir(d);
    ck_assert_int_ge(seen, 12);
}
END_TEST

/* ---- memory and time ---------------------------------------- */

enum { MANY = 100000, NAME = 64 };

/* CPU seconds to open a file of n tensors and to find each of them. */
static double seconds_to_find(const exf_tensor *t, size_t n)
{
    exf_err e;
    const char *path = exf_scratch("many.safetensors");
    ck_ok(exf_st_write(path, 1, t, n, NULL, 0, NULL, &e), e);
    clock_t begin = clock();
    exf_st_file *f = opened(path);
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += exf_st_find(f, t[i].name) != NULL;
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ck_assert_uint_eq(found, n);
    exf_st_close(f);
    unlink(path);
    return seconds;
}

/* A released checkpoint's worth of names: ten times the tensors take about ten
 * times as long, on any machine and under any checker; a scan would take 100. */
START_TEST(a_hundred_thousand_tensors)
{
    exf_err e;
    exf_tensor *t;
    char *names;
    ck_ok(exf_mem_new(&t, MANY, sizeof *t, "tensors", &e), e);
    ck_ok(exf_mem_new(&names, MANY, NAME, "names", &e), e);
    for (int i = 0; i < MANY; i++) {
        snprintf(names + i * NAME, NAME, "model.layers.%d.mlp.experts.%d.down_proj.weight", i / 1000, i % 1000);
        t[i] = (exf_tensor){names + i * NAME, EXF_DT_U8, 1, {1}, names};
    }
    double few = seconds_to_find(t, MANY / 10), many = seconds_to_find(t, MANY);
    exf_mem_free(names);
    exf_mem_free(t);
    ck_assert_msg(many < 40 * few, "%.3f s for %d tensors, %.3f s for %d", many, MANY, few, MANY / 10);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_header_of_a_wrong_length);
    tcase_add_test(t, names_out_of_bounds);
    tcase_add_test(t, shapes_and_spans_that_disagree);
    tcase_add_test(t, data_that_is_not_tiled);
    tcase_add_test(t, scalars_and_empty_tensors);
    tcase_add_test(t, lookups_are_by_name_in_order);
    tcase_add_test(t, offsets_beyond_four_gigabytes);
    tcase_add_test(t, a_file_that_shrinks_is_an_error);
    tcase_add_test(t, the_fuzzing_corpus);
    tcase_add_test(t, a_hundred_thousand_tensors);
}
