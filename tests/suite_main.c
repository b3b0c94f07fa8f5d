/* suite_main.c - main of every tests/check_*.c: each defines exf_suite(). */
#include "tests/fixtures.h"

#include <stdlib.h>

int main(void)
{
    SRunner *runner = srunner_create(exf_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
