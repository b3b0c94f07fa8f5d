/* replay.c - main for a fuzz target without a fuzzer: each file named, and each
 * file in a directory named, goes once through LLVMFuzzerTestOneInput in a process
 * of its own, so that one failure neither hides nor spoils another. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { SECONDS_PER_INPUT = 120, EXIT_UNREADABLE = 98 };

static int n_passed, n_failed;

static uint8_t *read_whole(const char *path, size_t *size)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) return NULL;
    uint8_t *bytes = malloc(st.st_size ? (size_t)st.st_size : 1);
    *size = bytes ? fread(bytes, 1, (size_t)st.st_size, f) : 0;
    if (bytes && *size != (size_t)st.st_size) {
        free(bytes);
        bytes = NULL;
    }
    fclose(f);
    return bytes;
}

/* In the child.  An exact heap block: one byte too far is seen. */
static int run_input(const char *path)
{
    size_t size;
    uint8_t *bytes = read_whole(path, &size);
    if (!bytes) return EXIT_UNREADABLE;
    alarm(SECONDS_PER_INPUT);
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    return 0;
}

static void replay_file(const char *path)
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) exit(run_input(path));
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        n_passed++;
        return;
    }
    n_failed++;
    if (child > 0 && WIFSIGNALED(status))
        printf("FAILED %s: signal %d\n", path, WTERMSIG(status));
    else
        printf("FAILED %s: %s\n", path,
               child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_UNREADABLE ? "cannot be read" : "see above");
}

static int is_visible(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static int replay_directory(const char *directory)
{
    struct dirent **entry;
    int n = scandir(directory, &entry, is_visible, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", directory, entry[i]->d_name);
        replay_file(path);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    return n;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (stat(argv[i], &st) != 0 || (S_ISDIR(st.st_mode) && replay_directory(argv[i]) <= 0)) {
            printf("FAILED %s: no inputs\n", argv[i]);
            n_failed++;
        } else if (!S_ISDIR(st.st_mode)) {
            replay_file(argv[i]);
        }
    }
    printf("%s: %d passed, %d failed\n", slash ? slash + 1 : argv[0], n_passed, n_failed);
    return n_failed || !n_passed ? EXIT_FAILURE : EXIT_SUCCESS;
}
