/* scratch.h - for fuzz targets whose library reads files: a scratch directory that goes
 * when the process ends, one file in it rewritten by every run. */
#ifndef EXF_TESTS_FUZZ_SCRATCH_H
#define EXF_TESTS_FUZZ_SCRATCH_H
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <unistd.h>

static char scratch_dir[512], scratch_path[640];
static pid_t scratch_owner;

/* A child of the process that made the directory leaves it alone. */
static void remove_scratch(void)
{
    if (getpid() != scratch_owner) return;
    unlink(scratch_path);
    rmdir(scratch_dir);
}

static void put_file(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0);
}

/* The path of the file `name`, which then holds these bytes. */
static const char *put_input(const char *name, const uint8_t *bytes, size_t size)
{
    if (!scratch_owner) {
        const char *tmp = getenv("TMPDIR");
        snprintf(scratch_dir, sizeof scratch_dir, "%s/fuzz-XXXXXX", tmp ? tmp : "/tmp");
        must(mkdtemp(scratch_dir) != NULL && atexit(remove_scratch) == 0);
        scratch_owner = getpid();
        snprintf(scratch_path, sizeof scratch_path, "%s/%s", scratch_dir, name);
    }
    put_file(scratch_path, bytes, size);
    return scratch_path;
}
#endif
