/* suite_main.c - main of every tests/check_*.c: each defines exf_suite(). */
#include "kernels/backend.h"
#include "tests/support/fixtures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Suites of check_cuda_*.c need a device: without one they say so and pass. */
static int skipped_without_device(const char *program)
{
    exf_err err;
    if (!strstr(program, "check_cuda_") || exf_backend_cuda(&err)) return 0;
    printf("SKIPPED %s: %s\n", strrchr(program, '/') ? strrchr(program, '/') + 1 : program, err.msg);
    return 1;
}

int main(int argc, char **argv)
{
    (void)argc;
    if (skipped_without_device(argv[0])) return EXIT_SUCCESS;
    SRunner *runner = srunner_create(exf_suite());
    if (strstr(argv[0], "check_cuda_")) srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
