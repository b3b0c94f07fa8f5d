/* suite_main.c - main of a test program, which holds the suites of one directory: EXF_SUITES
 * names the generated list of them, one X(check_name) for each check_name.c.
 *
 * usage: PROGRAM [--list | SUITE ...]      all suites when none is named
 * A suite alone runs in this process; of several, each runs in a process of its own. */
#include "kernels/backend.h"
#include "tests/support/fixtures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define X(name) void exf_suite_##name(Suite *s);
#include EXF_SUITES
#undef X

static const struct {
    const char *name;
    void (*add_tests)(Suite *s);
} suites[] = {
#define X(name) {#name, exf_suite_##name},
#include EXF_SUITES
#undef X
};

enum { N_SUITES = sizeof suites / sizeof *suites, EXIT_USAGE = 2 };

TCase *exf_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);
    suite_add_tcase(s, t);
    return t;
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int find_suite(const char *name)
{
    for (int i = 0; i < N_SUITES; i++)
        if (strcmp(suites[i].name, name) == 0) return i;
    return -1;
}

/* Suites of check_cuda_*.c need a device: without one they say so and pass. */
static int skipped_without_device(const char *suite)
{
    exf_err err;
    if (strncmp(suite, "check_cuda_", 11) != 0 || exf_backend_cuda(&err)) return 0;
    printf("SKIPPED %s: %s\n", suite, err.msg);
    return 1;
}

/* CUDA does not survive a fork: its suites run their tests in one process. */
static int run_suite(int i, const char *room)
{
    double began = now_seconds();
    if (skipped_without_device(suites[i].name)) return EXIT_SUCCESS;
    Suite *suite = suite_create(suites[i].name + strlen("check_"));
    suites[i].add_tests(suite);
    SRunner *runner = srunner_create(suite);
    if (strncmp(suites[i].name, "check_cuda_", 11) == 0) srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    printf("%s/%s: %.1f s\n", room, suites[i].name, now_seconds() - began);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run_in_process_of_its_own(const char *program, const char *suite)
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, suite, (char *)NULL);
        perror(program);
        _exit(EXIT_FAILURE);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0) return EXIT_SUCCESS;
    if (child < 0 || WIFSIGNALED(status)) printf("%s: did not end by itself\n", suite);
    return EXIT_FAILURE;
}

static int list_suites(void)
{
    for (int i = 0; i < N_SUITES; i++) puts(suites[i].name);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *room = slash ? slash + 1 : argv[0];
    int n = argc > 1 ? argc - 1 : N_SUITES, failed = EXIT_SUCCESS;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) return list_suites();
    setenv("CK_DEFAULT_TIMEOUT", "120", 0); /* seconds of a test: a slow machine is no failure */
    for (int a = 1; a < argc; a++) {
        if (find_suite(argv[a]) >= 0) continue;
        fprintf(stderr, "%s: no suite \"%s\"; --list lists them\n", room, argv[a]);
        return EXIT_USAGE;
    }
    if (n == 1) return run_suite(argc > 1 ? find_suite(argv[1]) : 0, room);
    for (int i = 0; i < n; i++)
        if (run_in_process_of_its_own(argv[0], argc > 1 ? argv[i + 1] : suites[i].name) != EXIT_SUCCESS) failed = EXIT_FAILURE;
    return failed;
}
