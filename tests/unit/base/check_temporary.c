/* check_temporary.c - src/base/temporary: names that nobody else has, and leftovers of killed processes. */
#include "tests/support/scratch_fixtures.h"

#include "base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static exf_err e; /* of the last call */

static void end_and_close(exf_temporary *t, int fd)
{
    exf_temporary_end(t);
    close(fd);
}

START_TEST(every_temporary_has_its_own_name)
{
    exf_temporary a, b;
    int fa, fb;
    ck_ok(exf_temporary_make(&a, exf_scratch("out.h5"), 0, &fa, &e), e);
    ck_ok(exf_temporary_make(&b, exf_scratch("out.h5"), 0, &fb, &e), e);
    ck_assert_str_ne(a.path, b.path);
    ck_assert(strstr(a.path, "/.out.h5.") != NULL);
    ck_assert(strcmp(a.path + strlen(a.path) - 8, ".partial") == 0);
    ck_assert_int_eq(files_left(), 4); /* two claims */
    end_and_close(&a, fa);
    end_and_close(&b, fb);
    ck_assert_int_eq(files_left(), 2);
}
END_TEST

/* Writes an output, before which a writer looks for what killed processes left. */
static void write_out(const char *name)
{
    exf_output_file *f;
    ck_ok(exf_output_file_begin(&f, exf_scratch(name), 1, &e), e);
    ck_ok(exf_output_file_commit(f, &e), e);
}

/* A file, or a folder of two files, of a process that is killed before it made the third. */
static void make(exf_temporary *t, int *fd, const char *name, int is_folder)
{
    ck_ok(exf_temporary_make(t, exf_scratch(name), is_folder, fd, &e), e);
    for (int i = 0; is_folder && i < 3; i++) {
        static const char *const files[] = {"a.npy", "b.npy", "c.npy"};
        exf_temporary_claim(t, files[i]);
        if (i < 2) close(openat(*fd, files[i], O_WRONLY | O_CREAT | O_EXCL, 0666));
    }
}

/* What a killed process leaves: its lock ends with it.  The caller frees the path. */
static char *leave(exf_temporary *t, int fd)
{
    char *path = strdup(t->path);
    exf_temporary_leave(t);
    close(fd);
    return path;
}

START_TEST(what_killed_processes_left_is_removed)
{
    exf_temporary t[3];
    char *path[3];
    int fd[3];
    make(&t[0], &fd[0], "out.h5", 0);
    make(&t[1], &fd[1], "other.h5", 0);
    make(&t[2], &fd[2], "out", 1);
    for (int i = 0; i < 3; i++) path[i] = leave(&t[i], fd[i]);
    for (int i = 0; i < 3; i++) ck_assert(exf_path_exists(path[i]));
    write_out("out.h5");
    ck_assert_int_eq(files_left(), 1);
    for (int i = 0; i < 3; i++) free(path[i]);
}
END_TEST

START_TEST(what_is_not_claimed_stays)
{
    static const char *const files[] = {".out.h5.0123456789ab.partial", ".out.h5.1.partial", ".other.h5.1.partial",
                                        "out.h5.1.partial", ".out.h5.1.old", ".out.h5.partial", ".exfold-0123456789ab",
                                        ".exfold-tmp"};
    for (int i = 0; i < COUNT(files); i++) exf_write_file(exf_scratch(files[i]), "mine", 4);
    ck_assert_int_eq(mkdir(exf_scratch(".out.h5.00000000004d.partial"), 0777), 0);
    exf_write_file(exf_scratch(".out.h5.00000000004d.partial/a.npy"), "mine", 4);
    ck_assert_int_eq(mkdir(exf_scratch(".out.h5.00000000004e.partial"), 0777), 0);
    write_out("out.h5");
    for (int i = 0; i < COUNT(files); i++) ck_assert_msg(exf_path_exists(exf_scratch(files[i])), "%s", files[i]);
    ck_assert(exf_path_exists(exf_scratch(".out.h5.00000000004d.partial/a.npy")));
    ck_assert(exf_path_exists(exf_scratch(".out.h5.00000000004e.partial")));
}
END_TEST

/* Links that look like claims: of another directory, of other names, of what lies elsewhere. */
START_TEST(a_claim_counts_where_it_was_made)
{
    static const char *const text[] = {
        "exfold-temporary/1:%llu:.out.h5.00000000000%d.partial", /* of another directory */
        "exfold-temporary/1:%.0llu:.out.h5.00000000000%d.partial", "exfold-temporary/2:%llu:.out.h5.00000000000%d.partial"};
    static const char *const never[] = {"exfold-temporary/1:%llu:mine", "exfold-temporary/1:%llu:.out.h5.999999999999.partial",
                                        "exfold-temporary/1:%llu:../sub/.x.000000000009.partial",
                                        "exfold-temporary/1:%llu:/.x.000000000009.partial", "%llu", "mine"};
    char name[64], link[200];
    struct stat st;
    exf_write_file(exf_scratch("mine"), "mine", 4);
    ck_assert_int_eq(stat(exf_scratch("."), &st), 0);
    for (int i = 0; i < COUNT(text); i++) {
        snprintf(name, sizeof name, ".out.h5.00000000000%d.partial", i);
        exf_write_file(exf_scratch(name), "mine", 4);
        snprintf(name, sizeof name, ".exfold-00000000000%d", i);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(link, sizeof link, text[i], i == 1 ? 0 : (unsigned long long)st.st_ino + (i == 0), i);
        ck_assert_int_eq(symlink(link, exf_scratch(name)), 0);
    }
    exf_write_file(exf_scratch(".out.h5.999999999999.partial"), "mine", 4);
    for (int i = 0; i < COUNT(never); i++) {
        snprintf(name, sizeof name, ".exfold-00000000009%d", i);
        snprintf(link, sizeof link, never[i], (unsigned long long)st.st_ino);
#pragma GCC diagnostic pop
        ck_assert_int_eq(symlink(link, exf_scratch(name)), 0);
    }
    int before = files_left();
    write_out("out.h5");
    ck_assert_int_eq(files_left(), before + 1);
}
END_TEST

/* What has the name of a claim when a temporary ends is removed if it is that claim. */
START_TEST(what_stands_in_a_claim_s_place_stays)
{
    for (int way = 0; way < 3; way++) {
        char name[64], file[80], link[200];
        struct stat st;
        exf_temporary t;
        int fd;
        make(&t, &fd, "out", 1);
        snprintf(name, sizeof name, ".exfold-%012llx", t.random);
        ck_assert_int_eq(lstat(exf_scratch(name), &st), 0);
        ck_assert_int_eq(unlink(exf_scratch(name)), 0);
        snprintf(file, sizeof file, "%s-2", name);
        ck_assert_int_eq(unlink(exf_scratch(file)), 0);
        ck_assert_int_eq(stat(exf_scratch("."), &st), 0);
        snprintf(link, sizeof link, "exfold-temporary/1:%llu:.%s.%012llx.partial", (unsigned long long)st.st_ino + (way == 1),
                 way == 1 ? "out" : "mine", t.random);
        if (way == 0)
            exf_write_file(exf_scratch(name), "mine", 4);
        else
            ck_assert_int_eq(symlink(link, exf_scratch(name)), 0);
        exf_write_file(exf_scratch(file), "mine", 4);
        end_and_close(&t, fd);
        ck_assert_int_eq(lstat(exf_scratch(name), &st), 0);
        ck_assert_int_eq(lstat(exf_scratch(file), &st), 0);
        snprintf(file, sizeof file, "%s-1", name);
        ck_assert_int_ne(lstat(exf_scratch(file), &st), 0);
    }
}
END_TEST

START_TEST(a_folder_with_a_file_of_others_stays)
{
    exf_temporary t;
    int fd;
    make(&t, &fd, "out", 1);
    char *folder = leave(&t, fd), path[4096];
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    exf_write_file(path, "mine", 4);
    write_out("out.h5");
    ck_assert(exf_path_exists(path));
    ck_assert_int_eq(unlink(path), 0);
    write_out("out.h5");
    ck_assert(!exf_path_exists(folder));
    ck_assert_int_eq(files_left(), 1);
    free(folder);
}
END_TEST

/* What took the temporary's name meanwhile is neither published nor removed. */
START_TEST(a_temporary_that_was_exchanged_is_not_used)
{
    for (int commits = 0; commits < 2; commits++) {
        exf_output_file *f;
        ck_ok(exf_output_file_begin(&f, exf_scratch("out"), 1, &e), e);
        char *path = strdup(exf_output_file_path(f));
        ck_assert_int_eq(unlink(path), 0);
        exf_write_file(path, "mine", 4);
        if (commits)
            ck_fails(exf_output_file_commit(f, &e), EXF_IO, e, "");
        else
            exf_output_file_abort(f);
        ck_assert(exf_path_exists(path) && !exf_path_exists(exf_scratch("out")));
        ck_assert_int_eq(unlink(path), 0);
        ck_assert_int_eq(files_left(), 0);
        free(path);
    }
}
END_TEST

START_TEST(the_temporary_of_a_writer_at_work_stays)
{
    exf_output_file *first, *second;
    ck_ok(exf_output_file_begin(&first, exf_scratch("out"), 1, &e), e);
    ck_ok(exf_output_file_write(first, "one", 3, &e), e);
    ck_ok(exf_output_file_begin(&second, exf_scratch("out"), 1, &e), e);
    ck_assert(exf_path_exists(exf_output_file_path(first)));
    ck_ok(exf_output_file_commit(second, &e), e);
    ck_ok(exf_output_file_commit(first, &e), e);
    ck_assert_int_eq(files_left(), 1);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, every_temporary_has_its_own_name);
    tcase_add_test(t, what_killed_processes_left_is_removed);
    tcase_add_test(t, what_is_not_claimed_stays);
    tcase_add_test(t, a_claim_counts_where_it_was_made);
    tcase_add_test(t, what_stands_in_a_claim_s_place_stays);
    tcase_add_test(t, a_folder_with_a_file_of_others_stays);
    tcase_add_test(t, a_temporary_that_was_exchanged_is_not_used);
    tcase_add_test(t, the_temporary_of_a_writer_at_work_stays);
}
