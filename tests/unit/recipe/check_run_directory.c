/* check_run_directory.c - who has the lock of a directory, and how long. */
#include "tests/support/scratch_fixtures.h"

#include "recipe/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

static exf_err e; /* of the last call */
static char directory[512], file[600];

static void setup(void)
{
    start_empty();
    snprintf(directory, sizeof directory, "%s", exf_scratch("d"));
    snprintf(file, sizeof file, "%s/out.h5", directory);
    ck_assert_int_eq(mkdir(directory, 0777), 0);
}

/* Takes the lock as another program does; returns its descriptor, or -1 if it is held. */
static int take(void)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    close(fd);
    return -1;
}

static int is_free(void)
{
    int fd = take();
    if (fd >= 0) close(fd);
    return fd >= 0;
}

START_TEST(a_second_program_is_refused)
{
    exf_run_directory d = {0};
    int fd = take();
    ck_fails(exf_run_directory_of_file(&d, file, &e), EXF_IO, e, "");
    exf_run_directory_close(&d, 0);
    ck_fails(exf_run_directory_open(&d, directory, &e), EXF_IO, e, "");
    exf_run_directory_close(&d, 1);
    ck_assert(exf_path_exists(directory));
    close(fd);
    ck_ok(exf_run_directory_of_file(&d, file, &e), e);
    ck_assert(!is_free());
    exf_run_directory_close(&d, 0);
    ck_assert(is_free());
}
END_TEST

/* In whatever order they are closed, the lock lasts as long as one of them. */
START_TEST(one_program_may_lock_a_directory_more_than_once)
{
    static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}};
    char link[512];
    snprintf(link, sizeof link, "%s", exf_scratch("link"));
    ck_assert_int_eq(symlink(directory, link), 0);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        exf_run_directory d[3] = {{0}};
        ck_ok(exf_run_directory_open(&d[0], directory, &e), e);
        ck_ok(exf_run_directory_make(&d[0], &e), e);
        ck_ok(exf_run_directory_of_file(&d[1], file, &e), e);
        ck_ok(exf_run_directory_open(&d[2], link, &e), e);
        for (int k = 0; k < 3; k++) {
            ck_assert(!is_free());
            exf_run_directory_close(&d[orders[i][k]], 0);
        }
        ck_assert(is_free());
    }
}
END_TEST

START_TEST(what_is_no_file_needs_no_lock)
{
    exf_run_directory d = {0};
    int fd = take();
    ck_assert_int_eq(mkfifo(file, 0666), 0);
    ck_ok(exf_run_directory_of_file(&d, file, &e), e);
    exf_run_directory_close(&d, 0);
    ck_ok(exf_run_directory_of_file(&d, "/dev/null", &e), e);
    exf_run_directory_close(&d, 0);
    ck_ok(exf_run_directory_of_file(&d, exf_scratch("nowhere/out.h5"), &e), e); /* which the writer tells */
    exf_run_directory_close(&d, 0);
    ck_assert(!exf_path_exists(exf_scratch("nowhere")));
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(symlink("elsewhere", file), 0); /* is replaced by an output */
    ck_fails(exf_run_directory_of_file(&d, file, &e), EXF_IO, e, "");
    exf_run_directory_close(&d, 0);
    close(fd);
    ck_assert_int_eq(unlink(file), 0);
}
END_TEST

START_TEST(a_whole_file_is_written_or_none)
{
    char *bytes;
    size_t n;
    ck_ok(exf_output_file_whole(file, 0, "words\n", 6, &e), e);
    ck_fails(exf_output_file_whole(file, 0, "other", 5, &e), EXF_IO, e, "--force");
    ck_ok(exf_file_slurp(file, 100, &bytes, &n, &e), e);
    ck_assert_str_eq(bytes, "words\n");
    exf_mem_free(bytes);
    ck_ok(exf_output_file_whole(file, 1, "", 0, &e), e);
    ck_ok(exf_file_slurp(file, 100, &bytes, &n, &e), e);
    ck_assert_uint_eq(n, 0);
    exf_mem_free(bytes);
    ck_assert_int_eq(unlink(file), 0);
    ck_fails(exf_output_file_whole(exf_scratch("nowhere/x"), 0, "", 0, &e), EXF_IO, e, "nowhere/x");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "run_directory");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, a_second_program_is_refused);
    tcase_add_test(c, one_program_may_lock_a_directory_more_than_once);
    tcase_add_test(c, what_is_no_file_needs_no_lock);
    tcase_add_test(c, a_whole_file_is_written_or_none);
}
