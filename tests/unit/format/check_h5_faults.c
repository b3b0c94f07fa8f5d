/* check_h5_faults.c - HDF5 files: failing writes leave nothing, foreign and
 * broken files are refused in words, nothing is printed. */
#include "tests/support/fixtures_h5.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) != -1;
    return n;
}

/* What is printed between start_listening() and heard_nothing() goes to a file;
 * speak() undoes it also where a check failed in between. */
static int saved[2] = {-1, -1};

static void start_listening(void)
{
    fflush(NULL);
    int fd = open(exf_scratch("printed"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 2; i++) {
        saved[i] = dup(i + 1);
        dup2(fd, i + 1);
    }
    close(fd);
}

static void speak(void)
{
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        if (saved[i] < 0) continue;
        dup2(saved[i], i + 1);
        close(saved[i]);
        saved[i] = -1;
    }
}

static void heard_nothing(void)
{
    char *bytes;
    size_t len;
    exf_err e;
    speak();
    ck_ok(exf_file_slurp(exf_scratch("printed"), 1 << 20, &bytes, &len, &e), e);
    ck_assert_msg(len == 0, "printed: %s", bytes);
    exf_mem_free(bytes);
    unlink(exf_scratch("printed"));
}

/* ---- failing writes --------------------------------------------------------------- */

/* What libhdf5 itself loses of a damaged or unwritable file (tests/cli/lsan.supp) is not ours: 0 without the leak sanitizer. */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

START_TEST(giving_up_leaves_nothing)
{
    exf_err e;
    exf_h5 *h;
    float v[6] = {1};
    int fds = open_descriptors();
    h = create("gone.h5");
    put_floats(h, "/a", 2, 3, v);
    exf_h5_close(h);
    exf_h5_close(NULL);
    nothing_left(0);
    h = create("kept.h5");
    ck_ok(exf_h5_commit(h, &e), e);
    ck_fails(exf_h5_create(&h, exf_scratch("kept.h5"), 0, NULL, &e), EXF_IO, e, "");
    ck_assert_ptr_null(h);
    ck_fails(exf_h5_create(&h, exf_scratch("no/dir.h5"), 0, NULL, &e), EXF_IO, e, "no/dir.h5");
    ck_assert_ptr_null(h);
    ck_assert_int_eq(open_descriptors(), fds);
    nothing_left(1);
}
END_TEST

/* Everything that touches the file, stopping at the first refusal. */
static exf_code write_much(const char *path, exf_err *err)
{
    enum { N = 200000 };
    static double v[N];
    exf_h5 *h = NULL;
    exf_code rc;
    for (int i = 0; i < N; i++) v[i] = (double)(i * 2654435761u);
    EXF_TRY(exf_h5_create(&h, path, 1, NULL, err));
    exf_tensor big = tensor("/a/big", EXF_DT_F64, 1, N, 0, 0, v), rows = tensor("/b/rows", EXF_DT_F64, 2, 100, N / 100, 0, NULL);
    EXF_TRY(exf_h5_put_text(h, "/", "k", "value", err));
    EXF_TRY(exf_h5_write(h, &big, err));
    EXF_TRY(exf_h5_define(h, &rows, err));
    for (int r = 0; r < 100; r += 10) EXF_TRY(exf_h5_write_rows(h, "/b/rows", r, 10, v, err));
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        EXF_TRY(exf_h5_put_text(h, "/a/big", name, "value", err));
    }
    rc = exf_h5_commit(h, err);
    h = NULL;
out:
    exf_h5_close(h);
    return rc;
}

START_TEST(a_full_disk_is_reported_and_leaves_nothing)
{
    exf_err e = {0};
    struct rlimit old, low;
    char target[600];
    snprintf(target, sizeof target, "%s", exf_scratch("full.h5"));
    int refused = 0;
    signal(SIGXFSZ, SIG_IGN);
    if (__lsan_disable) __lsan_disable(); /* libhdf5 loses the file that it cannot write, in memory that it has from the start */
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    ck_ok(write_much(target, &e), e);
    exf_file *f;
    ck_ok(exf_file_open(&f, target, &e), e);
    rlim_t size = exf_file_size(f), at = 0;
    exf_file_close(f);
    unlink(target);
    while (at < size) {
        start_listening();
        low = old;
        low.rlim_cur = at;
        setrlimit(RLIMIT_FSIZE, &low);
        exf_code rc = write_much(target, &e);
        setrlimit(RLIMIT_FSIZE, &old);
        heard_nothing();
        ck_assert_msg(rc == EXF_NOSPACE && strstr(e.msg, "File too large"), "limit %ld: %s %s", (long)at, exf_code_name(rc), e.msg);
        no_temporary_left(0); /* libhdf5's handle is given up, see h5_internal.h */
        refused++;
        at += at < 8192 ? 257 : size - at < 8192 ? 257 : (size - at) / 3;
    }
    if (__lsan_enable) __lsan_enable();
    ck_assert_int_gt(refused, 50);
}
END_TEST

START_TEST(after_a_refusal_every_call_repeats_it)
{
    exf_err e = {0};
    struct rlimit old, low;
    static double v[100000];
    exf_tensor t = tensor("/a", EXF_DT_F64, 1, 100000, 0, 0, v);
    exf_h5 *h = create("broken.h5");
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = 100000;
    setrlimit(RLIMIT_FSIZE, &low);
    exf_code rc = exf_h5_write(h, &t, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_eq(rc, EXF_NOSPACE);
    ck_fails(exf_h5_put_i64(h, "/", "n", 1, &e), EXF_NOSPACE, e, "File");
    ck_fails(exf_h5_commit(h, &e), EXF_NOSPACE, e, "broken.h5 File");
    no_temporary_left(0);
}
END_TEST

/* ---- what is no file of ours --------------------------------------------------------- */

START_TEST(garbage_is_refused)
{
    exf_err e;
    exf_h5 *h;
    char *bytes, junk[5000], path[600];
    size_t len;
    snprintf(path, sizeof path, "%s", exf_scratch("bad.h5"));
    start_listening();
    ck_fails(exf_h5_open(&h, exf_scratch("none.h5"), &e), EXF_IO, e, "none.h5 No");
    ck_assert_ptr_null(h);
    ck_fails(exf_h5_open(&h, "/tmp", &e), EXF_IO, e, "/tmp");
    exf_write_file(path, "", 0);
    ck_fails(exf_h5_open(&h, path, &e), EXF_FORMAT, e, "bad.h5 HDF5");
    for (size_t i = 0; i < sizeof junk; i++) junk[i] = (char)(i * i * 31 >> 3);
    exf_write_file(path, junk, sizeof junk);
    ck_fails(exf_h5_open(&h, path, &e), EXF_FORMAT, e, "bad.h5 HDF5");
    memcpy(junk, "\x89HDF\r\n\x1a\n", 8);
    exf_write_file(path, junk, sizeof junk);
    ck_fails(exf_h5_open(&h, path, &e), EXF_FORMAT, e, "bad.h5 HDF5");
    write_sample("whole.h5", 0);
    ck_ok(exf_file_slurp(exf_scratch("whole.h5"), 1 << 26, &bytes, &len, &e), e);
    for (size_t cut = 0; cut < len; cut += cut < 100 ? 1 : 997) {
        exf_write_file(path, bytes, cut);
        ck_fails(exf_h5_open(&h, path, &e), EXF_FORMAT, e, "bad.h5 HDF5");
        ck_assert_ptr_null(h);
    }
    exf_mem_free(bytes);
    heard_nothing();
    nothing_left(2);
}
END_TEST

static hid_t foreign_data(hid_t f, const char *name, hid_t type, int rank, hsize_t n, hid_t dcpl)
{
    hsize_t dims[H5S_MAX_RANK];
    for (int i = 0; i < rank; i++) dims[i] = n;
    hid_t space = H5Screate_simple(rank, dims, NULL);
    hid_t d = H5Dcreate2(f, name, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    H5Sclose(space);
    ck_assert(d >= 0);
    H5Dclose(d);
    return d;
}

static void foreign_attr(hid_t f, const char *name, hid_t type, hid_t space)
{
    hid_t a = H5Acreate2(f, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    ck_assert(a >= 0);
    H5Aclose(a);
    H5Sclose(space);
}

static void write_foreign(const char *path)
{
    hsize_t two = 2, one = 1, most = H5S_UNLIMITED, wide = 1 << 28;
    hid_t compact = H5Pcreate(H5P_FILE_CREATE), indexed = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_link_phase_change(compact, 100, 0); /* members stay in the header, as ours do */
    H5Pset_link_phase_change(indexed, 0, 0);
    hid_t newest = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(newest, H5F_LIBVER_V110, H5F_LIBVER_V110);
    hid_t f = H5Fcreate(path, H5F_ACC_TRUNC, compact, newest);
    hid_t words = H5Tcopy(H5T_C_S1), pair = H5Tcreate(H5T_COMPOUND, 8);
    H5Tset_size(words, H5T_VARIABLE);
    H5Tinsert(pair, "x", 0, H5T_NATIVE_FLOAT);
    H5Tinsert(pair, "y", 4, H5T_NATIVE_FLOAT);
    foreign_data(f, "big_endian", H5T_IEEE_F32BE, 1, 3, H5P_DEFAULT);
    foreign_data(f, "compound", pair, 1, 3, H5P_DEFAULT);
    foreign_data(f, "words", words, 1, 3, H5P_DEFAULT);
    foreign_data(f, "rank9", H5T_IEEE_F32LE, 9, 1, H5P_DEFAULT);
    foreign_data(f, "huge", H5T_IEEE_F32LE, 2, (hsize_t)1 << 30, H5P_DEFAULT);
    hid_t early = H5Pcreate(H5P_DATASET_CREATE), small = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_alloc_time(early, H5D_ALLOC_TIME_EARLY);
    H5Pset_layout(small, H5D_COMPACT);
    foreign_data(f, "times", H5T_IEEE_F32LE, 1, 3, early);
    foreign_data(f, "late", H5T_STD_U8LE, 1, (hsize_t)1 << 33, H5P_DEFAULT);
    foreign_data(f, "small", H5T_IEEE_F32LE, 1, 3, small);
    H5Pclose(early);
    H5Pclose(small);
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(dcpl, "/etc/passwd", 0, 12);
    foreign_data(f, "elsewhere", H5T_IEEE_F32LE, 1, 3, dcpl);
    H5Pclose(dcpl);
    dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(dcpl, 1, &wide);
    H5Pset_deflate(dcpl, 1);
    hid_t space = H5Screate_simple(1, &one, &most);
    H5Dclose(H5Dcreate2(f, "chunky", H5T_IEEE_F32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT));
    H5Pclose(dcpl);
    H5Sclose(space);
    space = H5Screate(H5S_NULL);
    H5Dclose(H5Dcreate2(f, "null", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
    foreign_attr(f, "words", words, H5Screate(H5S_SCALAR));
    foreign_attr(f, "array", H5T_STD_I64LE, H5Screate_simple(1, &two, NULL));
    foreign_attr(f, "u64", H5T_STD_U64LE, H5Screate(H5S_SCALAR));
    foreign_attr(f, "i32", H5T_STD_I32LE, H5Screate(H5S_SCALAR));
    H5Lcreate_soft("/big_endian", f, "soft", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external("other.h5", "/x", f, "external", H5P_DEFAULT, H5P_DEFAULT);
    H5Tcommit2(f, "type", pair, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "loop", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Lcreate_hard(f, "/", f, "loop/again", H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "index", H5P_DEFAULT, indexed, H5P_DEFAULT));
    H5Gclose(H5Gcreate2(f, "index/x", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Pclose(newest);
    H5Pclose(compact);
    H5Pclose(indexed);
    H5Tclose(words);
    H5Tclose(pair);
    H5Fclose(f);
}

START_TEST(foreign_files_are_refused_in_words)
{
    static const struct {
        const char *path, *part;
    } bad[] = {{"/big_endian", "/big_endian has elements that are none of"},
               {"/compound", "/compound has elements that are none of"},
               {"/words", "/words has elements that are none of"},
               {"/rank9", "more than 8 axes"},
               {"/huge", "/huge has no shape"},
               {"/late", "/late states 8589934592 bytes of elements, the file of "},
               {"/chunky", "/chunky is chunked"},
               {"/small", "/small is chunked, compact"},
               {"/null", "/null has no shape"},
               {"/elsewhere", "/elsewhere has its elements in another file"},
               {"/soft", "/soft is a soft or external link"},
               {"/external", "/external is a soft or external link"},
               {"/external/x", "/external is a soft or external link"},
               {"/type", "expected a dataset"},
               {"/index/x", "/index keeps its members in an index"},
               {"/loop", "/loop is a group, expected a dataset"}};
    exf_err e;
    exf_h5 *h;
    exf_tensor t;
    char *text, hex[EXF_SHA256_HEX];
    int64_t i = 5;
    H5dont_atexit();
    write_foreign(exf_scratch("foreign.h5"));
    start_listening();
    ck_ok(exf_h5_open(&h, exf_scratch("foreign.h5"), &e), e);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        ck_fails(exf_h5_describe(h, bad[k].path, &t, &e), EXF_FORMAT, e, bad[k].part);
    ck_ok(exf_h5_describe(h, "/times", &t, &e), e);
    ck_ok(exf_h5_describe(h, "/loop/again/times", &t, &e), e);
    int found;
    ck_fails(exf_h5_exists(h, "/soft", &found, &e), EXF_FORMAT, e, "/soft");
    ck_fails(exf_h5_exists(h, "/external", &found, &e), EXF_FORMAT, e, "/external");
    ck_fails(exf_h5_get_text(h, "/", "words", &text, &e), EXF_FORMAT, e, "/");
    ck_fails(exf_h5_get_i64(h, "/", "array", &i, &e), EXF_FORMAT, e, "/ I64");
    ck_fails(exf_h5_get_i64(h, "/", "i32", &i, &e), EXF_FORMAT, e, "i32 / I64");
    ck_fails(exf_h5_get_i64(h, "/", "u64", &i, &e), EXF_FORMAT, e, "u64 / I64");
    ck_assert_int_eq(i, 5);
    ck_fails(exf_h5_digest(h, hex, &e), EXF_FORMAT, e, "/ 2 1");
    exf_h5_close(h);
    heard_nothing();
    nothing_left(1);
}
END_TEST

/* libhdf5 prints its errors unless each thread says otherwise; a capture is written by another thread. */
static void *fail_in_a_thread(void *h)
{
    exf_err e;
    exf_tensor t;
    char bytes[8] = "";
    ck_fails(exf_h5_describe(h, "/sums/no", &t, &e), EXF_FORMAT, e, "/sums/no");
    ck_fails(exf_h5_write_rows(h, "/sums", 0, 1, bytes, &e), EXF_INTERNAL, e, "s.h5");
    ck_fails(exf_h5_digest(h, (char[EXF_SHA256_HEX]){0}, &e), EXF_FORMAT, e, "s.h5 /layers/1/dot");
    return NULL;
}

START_TEST(other_threads_print_nothing_either)
{
    exf_err e;
    exf_h5 *h;
    char *bytes;
    size_t n;
    pthread_t thread;
    write_sample("s.h5", 0);
    ck_ok(exf_file_slurp(exf_scratch("s.h5"), 1 << 26, &bytes, &n, &e), e);
    memset(bytes + n / 2, 0x5a, n / 4);
    exf_write_file(exf_scratch("s.h5"), bytes, n);
    exf_mem_free(bytes);
    ck_ok(exf_h5_open(&h, exf_scratch("s.h5"), &e), e);
    start_listening();
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_in_a_thread, h), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    heard_nothing();
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

START_TEST(a_temporary_is_not_opened_again_by_its_name)
{
    exf_err e;
    const float v[4] = {1, 2, 3, 4};
    exf_h5 *h = create("x.h5");
    char *dir, name[256] = "";
    ck_ok(exf_path_dir(&dir, exf_scratch("x"), &e), e);
    DIR *d = opendir(dir);
    for (struct dirent *f; (f = readdir(d));) /* somebody puts another file there */
        if (strstr(f->d_name, ".partial")) {
            snprintf(name, sizeof name, "%s", f->d_name);
            unlink(exf_scratch(name));
            exf_write_file(exf_scratch(name), "another", 7);
        }
    closedir(d);
    exf_mem_free(dir);
    for (int i = 0; i < 200; i++) {
        char dataset[16];
        snprintf(dataset, sizeof dataset, "/a/b%d", i);
        put_floats(h, dataset, 2, 2, v);
    }
    ck_fails(exf_h5_commit(h, &e), EXF_IO, e, "x.h5");
    ck_assert(!exf_path_exists(exf_scratch("x.h5")));
    ck_ok(exf_file_slurp(exf_scratch(name), 64, &dir, &(size_t){0}, &e), e);
    ck_assert_str_eq(dir, "another"); /* untouched: neither read back, nor cut to the size of ours, nor published, nor removed */
    exf_mem_free(dir);
    unlink(exf_scratch(name));
    nothing_left(0);
}
END_TEST

/* A group whose header cannot be read is not a group without members. */
START_TEST(a_failed_look_up_is_not_absence)
{
    exf_err e;
    const float v[4] = {1, 2, 3, 4};
    int64_t i;
    size_t n;
    char *bytes;
    int found, has;
    if (__lsan_disable) __lsan_disable(); /* from the start: libhdf5 uses again what it had before */
    exf_h5 *h = create("g.h5");
    put_floats(h, "/g/x", 2, 2, v);
    ck_ok(exf_h5_put_i64(h, "/g", "n", 5, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("g.h5"), 1 << 20, &bytes, &n, &e), e);
    size_t at = n; /* of the second header, which is the group's */
    for (int k = 0; k < 2; k++)
        for (at = k ? at + 1 : 0; memcmp(bytes + at, "OHDR", 4) != 0;) ck_assert_uint_lt(++at, n - 4);
    bytes[at + 10] ^= 1;
    exf_write_file(exf_scratch("g.h5"), bytes, n);
    exf_mem_free(bytes);
    ck_ok(exf_h5_open(&h, exf_scratch("g.h5"), &e), e);
    ck_fails(exf_h5_exists(h, "/g/x", &found, &e), EXF_FORMAT, e, "/g");
    exf_tensor t;
    ck_fails(exf_h5_describe(h, "/g/x", &t, &e), EXF_FORMAT, e, "/g");
    ck_fails(exf_h5_has_attr(h, "/g", "n", &has, &e), EXF_FORMAT, e, "/g");
    ck_fails(exf_h5_get_i64(h, "/g", "n", &i, &e), EXF_FORMAT, e, "/g");
    exf_h5_close(h);
    if (__lsan_enable) __lsan_enable();
    nothing_left(1);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "failing");
    tcase_add_checked_fixture(t, NULL, speak);
    tcase_add_test(t, giving_up_leaves_nothing);
    tcase_add_test(t, a_full_disk_is_reported_and_leaves_nothing);
    tcase_add_test(t, after_a_refusal_every_call_repeats_it);
    tcase_add_test(t, garbage_is_refused);
    tcase_add_test(t, foreign_files_are_refused_in_words);
    tcase_add_test(t, a_failed_look_up_is_not_absence);
    tcase_add_test(t, other_threads_print_nothing_either);
    tcase_add_test(t, a_temporary_is_not_opened_again_by_its_name);
}
