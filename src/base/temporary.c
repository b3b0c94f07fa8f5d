/* temporary.c - see temporary.h. */
#include "base/temporary.h"

#include "base/mem.h"
#include "base/path.h"
#include "base/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *base_of(const char *target)
{
    const char *slash = strrchr(target, '/');
    return slash ? slash + 1 : target;
}

/* Returns bits that no other process and no earlier call has: from the system's random source, or from clock and counter. */
static uint64_t random_bits(void)
{
    static atomic_uint calls;
    uint64_t bits = 0;
    struct timespec now = {0};
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, &bits, sizeof bits) : 0;
    if (fd >= 0) close(fd);
    if (n == (ssize_t)sizeof bits) return bits;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)getpid() << 40) ^ ((uint64_t)now.tv_sec << 30) ^ (uint64_t)now.tv_nsec ^ ((uint64_t)calls++ << 56);
}

exf_code exf_temporary_name(char **out, const char *target, exf_err *err)
{
    char *dir = NULL;
    exf_text name = {0};
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_path_dir(&dir, target, err));
    unsigned long long bits = random_bits() & 0xffffffffffff;
    EXF_TRY(exf_text_addf(&name, err, ".%s.%012llx.partial", base_of(target), bits));
    EXF_TRY(exf_path_join(out, dir, name.s, err));
out:
    exf_text_free(&name);
    exf_mem_free(dir);
    return rc;
}

void exf_temporary_lock(int fd)
{
    (void)flock(fd, LOCK_EX | LOCK_NB);
}

/* ---- stale ones ---------------------------------------------------------------------------- */

/* Returns 1 for names ".<base>.<hexadecimal or decimal digits>.partial". */
static int is_temporary_of(const char *name, const char *base)
{
    size_t n = strlen(base);
    if (name[0] != '.' || strncmp(name + 1, base, n) != 0 || name[1 + n] != '.') return 0;
    const char *digits = name + 2 + n;
    size_t d = strspn(digits, "0123456789abcdef");
    return d > 0 && strcmp(digits + d, ".partial") == 0;
}

/* Removes the files of a folder; folders in it stay. */
static void empty_folder(int fd)
{
    int copy = dup(fd);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (!d && copy >= 0) close(copy);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) (void)unlinkat(fd, e->d_name, 0);
    if (d) closedir(d);
}

static void remove_if_stale(int dir, const char *name)
{
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0) {
        if (S_ISDIR(st.st_mode)) {
            empty_folder(fd);
            (void)unlinkat(dir, name, AT_REMOVEDIR);
        } else {
            (void)unlinkat(dir, name, 0);
        }
    }
    close(fd);
}

exf_code exf_temporary_remove_stale(const char *target, exf_err *err)
{
    char *path = NULL;
    exf_code rc = exf_path_dir(&path, target, err);
    if (rc != EXF_OK) return rc;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (is_temporary_of(e->d_name, base_of(target))) remove_if_stale(dirfd(d), e->d_name);
    if (d) closedir(d);
    exf_mem_free(path);
    return EXF_OK;
}
