/* check_temporary.c - src/base/temporary: names that nobody else has, and leftovers of killed processes. */
#include "tests/support/scratch_fixtures.h"

#include "base/temporary.h"

#include <fcntl.h>
#include <sys/stat.h>

static exf_err e; /* of the last call */

START_TEST(every_temporary_has_its_own_name)
{
    char *a, *b;
    ck_ok(exf_temporary_name(&a, exf_scratch("out.h5"), &e), e);
    ck_ok(exf_temporary_name(&b, exf_scratch("out.h5"), &e), e);
    ck_assert_str_ne(a, b);
    ck_assert(strstr(a, "/.out.h5.") != NULL);
    ck_assert(strcmp(a + strlen(a) - 8, ".partial") == 0);
    exf_mem_free(a);
    exf_mem_free(b);
}
END_TEST

START_TEST(leftovers_of_the_same_output_are_removed)
{
    static const char *gone[] = {".out.h5.0123456789ab.partial", ".out.h5.1.partial"},
                      *kept[] = {".other.h5.1.partial",
                                 "out.h5.1.partial", ".out.h5.xyz.partial", ".out.h5.1.old", ".out.h5.partial"};
    exf_output_file *f;
    for (int i = 0; i < COUNT(gone); i++) exf_write_file(exf_scratch(gone[i]), "left", 4);
    for (int i = 0; i < COUNT(kept); i++) exf_write_file(exf_scratch(kept[i]), "mine", 4);
    ck_assert_int_eq(mkdir(exf_scratch(".out.h5.77.partial"), 0777), 0);
    exf_write_file(exf_scratch(".out.h5.77.partial/a.npy"), "left", 4);
    ck_ok(exf_output_file_begin(&f, exf_scratch("out.h5"), 0, &e), e);
    ck_ok(exf_output_file_commit(f, &e), e);
    for (int i = 0; i < COUNT(gone); i++) ck_assert_msg(!exf_path_exists(exf_scratch(gone[i])), "%s", gone[i]);
    for (int i = 0; i < COUNT(kept); i++) ck_assert_msg(exf_path_exists(exf_scratch(kept[i])), "%s", kept[i]);
    ck_assert(!exf_path_exists(exf_scratch(".out.h5.77.partial")));
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

Suite *exf_suite(void)
{
    Suite *s = suite_create("temporary");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, every_temporary_has_its_own_name);
    tcase_add_test(t, leftovers_of_the_same_output_are_removed);
    tcase_add_test(t, the_temporary_of_a_writer_at_work_stays);
    suite_add_tcase(s, t);
    return s;
}
