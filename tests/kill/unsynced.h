/* unsynced.h - remembers what was written to files and not synced, and tears it as a power cut may.
 *
 * unsynced_write() is called after every write, unsynced_sync() after every fsync, unsynced_tear() before
 * the program dies: it overwrites with zeros all bytes that were written since their file's last fsync.
 * A file is kept open by a second descriptor, so that it is found under whatever name it has by then. */
#ifndef EXF_TESTS_KILL_UNSYNCED_H
#define EXF_TESTS_KILL_UNSYNCED_H
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { UNSYNCED_MOST = 65536, UNSYNCED_FIRST_FD = 600 };

typedef struct {
    dev_t device;
    ino_t inode;
    int fd; /* the library's own; -1: synced */
    off_t at;
    size_t n;
} unsynced_range;

static unsynced_range unsynced[UNSYNCED_MOST];
static size_t n_unsynced;
static pthread_mutex_t unsynced_lock = PTHREAD_MUTEX_INITIALIZER;

/* 1: fd is a file of the disk that was not opened for messages. */
static int is_regular(int fd, struct stat *st)
{
    return fd > 2 && fstat(fd, st) == 0 && S_ISREG(st->st_mode);
}

static int own_descriptor(const struct stat *st, int fd)
{
    for (size_t i = 0; i < n_unsynced; i++)
        if (unsynced[i].fd >= 0 && unsynced[i].inode == st->st_ino && unsynced[i].device == st->st_dev) return unsynced[i].fd;
    return fcntl(fd, F_DUPFD_CLOEXEC, UNSYNCED_FIRST_FD);
}

/* n bytes were written at `at`; -1: up to where the descriptor stands now. */
static void unsynced_write(int fd, off_t at, ssize_t n)
{
    struct stat st;
    if (n <= 0 || !is_regular(fd, &st)) return;
    if (at < 0) at = lseek(fd, 0, SEEK_CUR) - n;
    pthread_mutex_lock(&unsynced_lock);
    if (n_unsynced == UNSYNCED_MOST) abort(); /* a test that forgets says nothing */
    unsynced[n_unsynced] = (unsynced_range){st.st_dev, st.st_ino, own_descriptor(&st, fd), at, (size_t)n};
    n_unsynced++;
    pthread_mutex_unlock(&unsynced_lock);
}

static void unsynced_sync(int fd)
{
    struct stat st;
    int own = -1;
    size_t kept = 0;
    if (!is_regular(fd, &st)) return;
    pthread_mutex_lock(&unsynced_lock);
    for (size_t i = 0; i < n_unsynced; i++) {
        if (unsynced[i].inode == st.st_ino && unsynced[i].device == st.st_dev) own = unsynced[i].fd;
        else unsynced[kept++] = unsynced[i];
    }
    n_unsynced = kept;
    if (own >= 0) close(own);
    pthread_mutex_unlock(&unsynced_lock);
}

static void unsynced_tear(void)
{
    static const char zeros[4096];
    for (size_t i = 0; i < n_unsynced; i++)
        for (size_t done = 0; done < unsynced[i].n; done += sizeof zeros) {
            size_t left = unsynced[i].n - done;
            syscall(SYS_pwrite64, unsynced[i].fd, zeros, left < sizeof zeros ? left : sizeof zeros, unsynced[i].at + (off_t)done);
        }
}
#endif
