/* fixtures.h - what every test file shares: the suite's entry, assertions on
 * exf_code with its message, scratch files.
 *
 * Tests run from the project's root, so fixture paths are "tests/golden/...". */
#ifndef EXF_TESTS_FIXTURES_H
#define EXF_TESTS_FIXTURES_H
#include "base/err.h"

#include <check.h>
#include <stddef.h>

/* Defined by each tests/check_*.c. */
Suite *exf_suite(void);

/* Elements of an array, for loop tests. */
#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

/* The call succeeds; its message is printed if it does not. */
#define ck_ok(expr, err) ck_assert_msg((expr) == EXF_OK, "%s: %s", exf_code_name((err).code), (err).msg)
/* The call fails with this code and a message that contains `part`. */
#define ck_fails(expr, want, err, part)                                                                             \
    do {                                                                                                            \
        exf_code got_ = (expr);                                                                                     \
        ck_assert_msg(got_ == (want), "code %s, expected %s (%s)", exf_code_name(got_), exf_code_name(want), (err).msg); \
        ck_assert_msg(strstr((err).msg, (part)) != NULL, "message \"%s\" lacks \"%s\"", (err).msg, (part));         \
    } while (0)

/* A fresh directory under $TMPDIR or /tmp, made on first use, one per test
 * program, removed at its end; the path of `name` inside it, in a static
 * buffer that the fourth call after this one reuses. */
const char *exf_scratch(const char *name);
/* Writes a file, aborting the test on failure. */
void exf_write_file(const char *path, const void *bytes, size_t n);
#endif
