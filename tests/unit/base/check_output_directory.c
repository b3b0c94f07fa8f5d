/* check_output_directory.c - src/base/output_directory: all files or none, and nobody else's deleted. */
#include "tests/support/scratch_fixtures.h"

#include "base/file.h"
#include "base/text.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static exf_err e; /* of the last call */

/* Two files, the second of two writes. */
static exf_code write_folder(const char *name, int force, const char *text, exf_err *err)
{
    exf_output_directory *f = NULL;
    exf_code rc;
    EXF_TRY(exf_output_directory_begin(&f, exf_scratch(name), force, err));
    EXF_TRY(exf_output_directory_file(f, "a.txt", err));
    EXF_TRY(exf_output_directory_write(f, text, strlen(text), err));
    EXF_TRY(exf_output_directory_file(f, "b.bin", err));
    EXF_TRY(exf_output_directory_write(f, text, strlen(text), err));
    EXF_TRY(exf_output_directory_write(f, text, strlen(text), err));
    rc = exf_output_directory_commit(f, err);
    f = NULL;
out:
    exf_output_directory_abort(f);
    return rc;
}

static void ck_file(const char *name, const char *text)
{
    char *got = NULL;
    size_t n;
    ck_ok(exf_file_slurp(exf_scratch(name), 1 << 20, &got, &n, &e), e);
    ck_assert_str_eq(got, text);
    exf_mem_free(got);
}

static exf_code count_name(void *self, const char *name, exf_err *err)
{
    exf_text *all = self;
    exf_text_appendf(all, "%s ", name);
    return exf_text_end(all, err);
}

static void ck_names(const char *directory, const char *names)
{
    exf_text all = {0};
    ck_ok(exf_each_file(exf_scratch(directory), count_name, &all, &e), e);
    ck_assert_str_eq(all.s ? all.s : "", names);
    exf_text_free(&all);
}

START_TEST(a_folder_appears_with_all_its_files)
{
    ck_ok(write_folder("out", 0, "new", &e), e);
    ck_names("out", "a.txt b.bin exfold-files.sha256 ");
    ck_file("out/a.txt", "new");
    ck_file("out/b.bin", "newnew");
    ck_assert_int_eq(files_left(), 1);
}
END_TEST

START_TEST(an_existing_folder_is_replaced_only_by_force)
{
    ck_ok(write_folder("out", 0, "old", &e), e);
    ck_fails(write_folder("out", 0, "new", &e), EXF_IO, e, "--force");
    ck_file("out/a.txt", "old");
    ck_ok(write_folder("out", 1, "new", &e), e);
    ck_names("out", "a.txt b.bin exfold-files.sha256 ");
    ck_file("out/a.txt", "new");
    ck_assert_int_eq(files_left(), 1);
}
END_TEST

START_TEST(what_is_no_earlier_output_is_never_removed)
{
    ck_ok(write_folder("out", 0, "old", &e), e);
    static const char *const notes[] = {"out/notes.md", "out/a2.txt"}; /* an ending of ours is no proof */
    for (int i = 0; i < COUNT(notes); i++) {
        exf_write_file(exf_scratch(notes[i]), "mine", 4);
        ck_fails(write_folder("out", 1, "new", &e), EXF_IO, e, notes[i] + 4);
        ck_file("out/a.txt", "old");
        ck_file(notes[i], "mine");
        unlink(exf_scratch(notes[i]));
    }
    ck_assert_int_eq(symlink("/etc/passwd", exf_scratch("out/link.txt")), 0);
    ck_fails(write_folder("out", 1, "new", &e), EXF_IO, e, "link.txt");
    unlink(exf_scratch("out/link.txt"));
    ck_assert_int_eq(mkdir(exf_scratch("out/deeper.txt"), 0777), 0);
    ck_fails(write_folder("out", 1, "new", &e), EXF_IO, e, "deeper.txt");
    rmdir(exf_scratch("out/deeper.txt"));
    /* of the names that were written, another's contents, a link, a folder */
    exf_write_file(exf_scratch("out/a.txt"), "oLd", 3);
    ck_fails(write_folder("out", 1, "new", &e), EXF_IO, e, "out/a.txt sha256");
    unlink(exf_scratch("out/a.txt"));
    exf_write_file(exf_scratch("elsewhere"), "old", 3);
    ck_assert_int_eq(symlink("../elsewhere", exf_scratch("out/a.txt")), 0);
    ck_fails(write_folder("out", 1, "new", &e), EXF_IO, e, "out/a.txt");
    unlink(exf_scratch("out/a.txt"));
    unlink(exf_scratch("elsewhere"));
    ck_ok(write_folder("out", 1, "new", &e), e);
    /* without the list, and with a list of somebody else */
    exf_write_file(exf_scratch("out/exfold-files.sha256"), "# sums\n", 7);
    ck_fails(write_folder("out", 1, "newer", &e), EXF_IO, e, "exfold-files.sha256");
    unlink(exf_scratch("out/exfold-files.sha256"));
    ck_fails(write_folder("out", 1, "newer", &e), EXF_IO, e, "exfold-files.sha256");
    ck_file("out/a.txt", "new");
    exf_write_file(exf_scratch("file"), "x", 1);
    ck_fails(write_folder("file", 1, "new", &e), EXF_IO, e, "");
    ck_assert_int_eq(files_left(), 2);
}
END_TEST

START_TEST(a_full_disk_leaves_nothing)
{
    static char big[100000];
    struct rlimit old, small;
    memset(big, 'x', sizeof big - 1);
    ck_ok(write_folder("out", 0, "old", &e), e);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    exf_code fresh = write_folder("other", 0, big, &e), replaced = write_folder("out", 1, big, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_eq(fresh, EXF_NOSPACE);
    ck_fails(replaced, EXF_NOSPACE, e, "out/a.txt");
    ck_file("out/a.txt", "old");
    ck_assert_int_eq(files_left(), 1);
}
END_TEST

START_TEST(mistakes_are_told)
{
    exf_output_directory *f = NULL;
    ck_fails(exf_output_directory_begin(&f, exf_scratch("no/out"), 0, &e), EXF_IO, e, "no/out No");
    ck_assert_ptr_null(f);
    ck_ok(exf_output_directory_begin(&f, exf_scratch("out"), 0, &e), e);
    ck_fails(exf_output_directory_write(f, "x", 1, &e), EXF_INTERNAL, e, "1");
    ck_ok(exf_output_directory_file(f, "a", &e), e);
    ck_fails(exf_output_directory_file(f, "a", &e), EXF_IO, e, "out/a");
    /* someone else was faster */
    ck_assert_int_eq(mkdir(exf_scratch("out"), 0777), 0);
    ck_fails(exf_output_directory_commit(f, &e), EXF_IO, e, "--force");
    ck_names("out", "");
    ck_assert_int_eq(files_left(), 1);
    exf_output_directory_abort(NULL);
    ck_fails(exf_each_file(exf_scratch("none"), count_name, NULL, &e), EXF_IO, e, "No");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, a_folder_appears_with_all_its_files);
    tcase_add_test(t, an_existing_folder_is_replaced_only_by_force);
    tcase_add_test(t, what_is_no_earlier_output_is_never_removed);
    tcase_add_test(t, a_full_disk_leaves_nothing);
    tcase_add_test(t, mistakes_are_told);
}
