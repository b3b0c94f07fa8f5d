/* fixtures.h - what every test file shares: the suite's entry, assertions on
 * exf_code with its message, scratch files.
 *
 * Tests run from the project's root, so fixture paths are "tests/golden/...". */
#ifndef EXF_TESTS_FIXTURES_H
#define EXF_TESTS_FIXTURES_H
#include "base/err.h"

#include <check.h>
#include <stddef.h>

/* Adds a file's tests to its suite. Defined by each check_*.c; the build renames it to exf_suite_check_<name>, so that a room's
 * suites are one program. */
void exf_suite(Suite *s);
TCase *exf_case(Suite *s, const char *name); /* a new case of the suite: tests of one fixture and one limit of time */

/* Check notes the place of every assertion that holds, with a system call, to say where a test crashed.
 * Tests with millions of assertions would spend most of their time on that: after the first thousand,
 * every 64th is noted.  An assertion that fails is reported with its place as before. */
static inline void exf_note_place(const char *file, int line)
{
    static _Thread_local unsigned n; /* threads of the code under test assert too */
    if (n < 1000 || n % 64 == 0) _mark_point(file, line);
    n++;
}
#undef ck_assert_msg
#define ck_assert_msg(expr, ...)                 \
    ((expr) ? exf_note_place(__FILE__, __LINE__) \
            : _ck_assert_failed(__FILE__, __LINE__, "Assertion '" #expr "' failed", __VA_ARGS__))

/* Elements of an array, for loop tests. */
#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

/* Returns 1 if all bytes are 0xff, with which tests fill what must stay unwritten. */
static inline int is_poison(const void *x, size_t bytes)
{
    const unsigned char *b = x;
    for (size_t i = 0; i < bytes; i++)
        if (b[i] != 0xff) return 0;
    return 1;
}

/* The call succeeds; its message is printed if it does not. */
#define ck_ok(expr, err) ck_assert_msg((expr) == EXF_OK, "%s: %s", exf_code_name((err).code), (err).msg)
/* The call fails with this code, and its message names what `named` names: the objects and values in it, which are its
 * words that are not plain lower-case English, in their order.  How the message says it is pinned in one place for all:
 * tests/golden/messages.txt (scripts/run-checks.sh). */
#define ck_fails(expr, want, err, named)                                                                            \
    do {                                                                                                            \
        exf_code got_ = (expr);                                                                                     \
        ck_assert_msg(got_ == (want), "code %s, expected %s (%s)", exf_code_name(got_), exf_code_name(want), (err).msg); \
        ck_assert_msg(exf_message_names((err).msg, (named)), "message \"%s\" does not name what \"%s\" does", (err).msg, \
                      (named));                                                                                     \
        exf_record_message((err).msg);                                                                             \
    } while (0)
int exf_message_names(const char *msg, const char *named);
/* Appends the message to the file $EXF_TEST_MESSAGES, if that is set; the scratch directory is written "SCRATCH". */
void exf_record_message(const char *msg);

/* A fresh directory under $TMPDIR or /tmp, made on first use, one per test
 * program, removed at its end; the path of `name` inside it, in a static
 * buffer that the fourth call after this one reuses. */
const char *exf_scratch(const char *name);
/* n elements of `size` bytes, all 0, for exf_mem_free. */
void *test_memory(size_t n, size_t size);
/* 1 if something of that name exists. */
int exf_path_exists(const char *path);
/* Writes a file, aborting the test on failure. */
void exf_write_file(const char *path, const void *bytes, size_t n);
#endif
