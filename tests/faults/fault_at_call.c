/* fault_at_call.c - a library for LD_PRELOAD that lets a call of the program, or of a library that it
 * uses, fail: EXF_FAULT=CALL:N:WHAT, the N-th call of a kind, or EXF_FAULT=CALL:N:WHAT:on, that and all
 * after it.  EXF_FAULT_COUNT=FILE: writes "CALL NUMBER" lines to FILE when the program ends.
 * EXF_SERIAL_BLAS=1: OpenBLAS says that it was built without threads.  EXF_FREE_BYTES=N: every file system says that N bytes
 * are free.
 *
 * CALL: malloc (calloc, realloc and aligned memory too), library (the same, called by libhdf5, libcrypto, OpenBLAS or libgomp
 * themselves, which do not outlive all of them: exf_mem_reserve(), exf_team()), mmap, read, write (ftruncate too), fsync, rename
 * (link too), remove (unlink, rmdir), mkdir, open, stat, thread; limit: no call, but from main() on the process gets no more than
 * N pages of addresses from the system, and all memory after them fails, whoever asks; in programs that are linked with the
 * shared runtime of CUDA, cuda-memory, cuda-copy, cuda-make (streams and events), cuda-wait and cuda-launch.
 * WHAT: the number of an error (12 ENOMEM, 5 EIO, 28 ENOSPC, 11 EAGAIN; of CUDA its own, 2 or 719), or SIG and the number of a
 * signal that the program gets, after which the call goes on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MALLOC, LIBRARY, LIMIT, MMAP, READ, WRITE, FSYNC, RENAME, REMOVE, MKDIR, OPEN, STAT, THREAD, CUDA_MEMORY, CUDA_COPY,
       CUDA_MAKE, CUDA_WAIT, CUDA_LAUNCH, CALLS };

static const char *const call_name[CALLS] = {"malloc", "library", "limit", "mmap", "read", "write",
                                             "fsync", "rename", "remove", "mkdir", "open", "stat", "thread", "cuda-memory",
                                             "cuda-copy", "cuda-make", "cuda-wait", "cuda-launch"};
static atomic_long calls[CALLS];
static int faulty = -1, from_then_on, error_number, signal_number; /* faulty: a call, or -1 */
static long fault_at;

/* Nothing here allocates: the program's first malloc may be a library's constructor. */
static void read_fault(void)
{
    static atomic_int is_read;
    const char *text, *at;
    if (atomic_exchange(&is_read, 1) || !(text = getenv("EXF_FAULT"))) return;
    for (int i = 0; i < CALLS; i++) {
        size_t n = strlen(call_name[i]);
        if (strncmp(text, call_name[i], n) != 0 || text[n] != ':') continue;
        fault_at = atol(text + n + 1);
        at = strchr(text + n + 1, ':');
        if (!at) return;
        if (strncmp(at + 1, "SIG", 3) == 0) signal_number = atoi(at + 4);
        else error_number = atoi(at + 1);
        from_then_on = strstr(at + 1, ":on") != NULL;
        faulty = i;
    }
}

static int has_begun; /* main(): before it, constructors of libraries run, whose crashes no program can prevent */
static int (*real_main)(int, char **, char **);

/* Returns a number of a file of /proc after a word; system calls, so that none of them is counted. */
static long number_in(const char *path, const char *word)
{
    static char text[4096];
    const char *at = NULL;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && syscall(SYS_read, fd, text, sizeof text - 1) > 0) at = strstr(text, word);
    if (!at) abort();
    syscall(SYS_close, fd);
    return strtol(at + strlen(word), NULL, 10);
}

enum { PAGE_KIB = 4 };
static long pages_at_begin;

static void limit_memory(void)
{
    rlim_t most = (rlim_t)(pages_at_begin + fault_at) * PAGE_KIB * 1024;
    struct rlimit limit = {most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) abort();
}

/* Takes as many addresses as were given back before main(), by a library's constructor: what the process has at its peak is then
 * what the program took. */
static void raise_to_peak(void)
{
    long pages = number_in("/proc/self/status", "VmPeak:") / PAGE_KIB - pages_at_begin;
    if (pages <= 0) return;
    (void)syscall(SYS_mmap, NULL, (size_t)pages * PAGE_KIB * 1024, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
    pages_at_begin = number_in("/proc/self/status", "VmSize:") / PAGE_KIB;
}

static int begin(int argc, char **argv, char **env)
{
    read_fault();
    pages_at_begin = number_in("/proc/self/status", "VmSize:") / PAGE_KIB;
    if (getenv("EXF_FAULT_COUNT")) raise_to_peak();
    if (faulty == LIMIT) limit_memory();
    has_begun = 1;
    return real_main(argc, argv, env);
}

int __libc_start_main(int (*program)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*loader)(void), void *stack)
{
    int (*next)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = program;
    return next(begin, argc, argv, init, fini, loader, stack);
}

/* Counts a call; 1 and errno: it fails. */
static int fails(int call)
{
    if (!has_begun) return 0;
    read_fault();
    long n = ++calls[call];
    if (call != faulty || (from_then_on ? n < fault_at : n != fault_at)) return 0;
    if (signal_number) raise(signal_number);
    errno = error_number;
    return error_number != 0;
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("EXF_FAULT_COUNT");
    char line[64];
    faulty = -1;
    if (path) calls[LIMIT] = number_in("/proc/self/status", "VmPeak:") / PAGE_KIB - pages_at_begin;
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    for (int i = 0; fd >= 0 && i < CALLS; i++) {
        int n = snprintf(line, sizeof line, "%s %ld\n", call_name[i], (long)calls[i]);
        if (write(fd, line, (size_t)n) != n) break;
    }
    if (fd >= 0) close(fd);
}

/* ---- memory: glibc's own names, since looking a symbol up allocates ------------------------------ */
#ifndef EXF_SANITIZED /* a sanitizer has an allocator of its own, which must not be replaced */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

enum { LIBRARIES = 4 };
static const char *const library_name[LIBRARIES] = {"libhdf5", "libcrypto", "libopenblas", "libgomp"};
static uintptr_t library_begin[LIBRARIES], library_end[LIBRARIES]; /* where their code lies */

static int note_library(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    for (int k = 0; k < LIBRARIES; k++) {
        if (!strstr(info->dlpi_name, library_name[k]) || strstr(info->dlpi_name, "_hl")) continue;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) *p = &info->dlpi_phdr[i];
            if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
            library_begin[k] = info->dlpi_addr + p->p_vaddr;
            library_end[k] = library_begin[k] + p->p_memsz;
        }
    }
    return 0;
}

static _Thread_local const void *behalf; /* who called a function of the C library that allocates; NULL: nobody */

static int memory_fails(const void *caller)
{
    static atomic_int is_known;
    uintptr_t at = (uintptr_t)(behalf ? behalf : caller);
    int call = MALLOC;
    if (!atomic_exchange(&is_known, 1)) dl_iterate_phdr(note_library, NULL);
    for (int k = 0; k < LIBRARIES; k++)
        if (at >= library_begin[k] && at < library_end[k]) call = LIBRARY;
    return fails(call);
}

#define MEMORY_FAILS() memory_fails(__builtin_return_address(0))

void *malloc(size_t n)
{
    return MEMORY_FAILS() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return MEMORY_FAILS() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return n && MEMORY_FAILS() ? NULL : __libc_realloc(p, n);
}

void *memalign(size_t alignment, size_t n)
{
    return MEMORY_FAILS() ? NULL : __libc_memalign(alignment, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return MEMORY_FAILS() ? NULL : __libc_memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    void *p = MEMORY_FAILS() ? NULL : __libc_memalign(alignment, n);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

/* These call malloc() on behalf of their caller. */
char *strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *p = MEMORY_FAILS() ? NULL : __libc_malloc(n);
    return p ? memcpy(p, text, n) : NULL;
}

int vasprintf(char **out, const char *format, va_list va)
{
    static int (*next)(char **, const char *, va_list);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "vasprintf");
    behalf = __builtin_return_address(0);
    int n = next(out, format, va);
    behalf = NULL;
    return n;
}

/* Only libhdf5 compresses by this; where it fails, libhdf5 stores a chunk as it is. */
int compress2(unsigned char *to, unsigned long *n_to, const unsigned char *from, unsigned long n, int level)
{
    static int (*next)(unsigned char *, unsigned long *, const unsigned char *, unsigned long, int);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "compress2");
    behalf = __builtin_return_address(0);
    int rc = next(to, n_to, from, n, level);
    behalf = NULL;
    return rc;
}

#endif

/* ---- files ------------------------------------------------------------------------------------------- */

#define WRAP(call, type, failure, name, parameters, arguments)    \
    type name parameters                                          \
    {                                                             \
        static type(*next) parameters;                            \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);     \
        return fails(call) ? failure : next arguments;            \
    }

WRAP(READ, ssize_t, -1, read, (int fd, void *bytes, size_t n), (fd, bytes, n))
WRAP(READ, ssize_t, -1, pread, (int fd, void *bytes, size_t n, off_t at), (fd, bytes, n, at))
WRAP(READ, ssize_t, -1, pread64, (int fd, void *bytes, size_t n, off64_t at), (fd, bytes, n, at))
WRAP(WRITE, ssize_t, -1, write, (int fd, const void *bytes, size_t n), (fd, bytes, n))
WRAP(WRITE, ssize_t, -1, pwrite, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at))
WRAP(WRITE, ssize_t, -1, pwrite64, (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at))
WRAP(WRITE, int, -1, ftruncate, (int fd, off_t n), (fd, n))
WRAP(WRITE, int, -1, ftruncate64, (int fd, off64_t n), (fd, n))
WRAP(FSYNC, int, -1, fsync, (int fd), (fd))
WRAP(RENAME, int, -1, rename, (const char *from, const char *to), (from, to))
WRAP(RENAME, int, -1, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(RENAME, int, -1, link, (const char *from, const char *to), (from, to))
WRAP(RENAME, int, -1, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(RENAME, int, -1, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
WRAP(REMOVE, int, -1, unlink, (const char *path), (path))
WRAP(REMOVE, int, -1, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
WRAP(REMOVE, int, -1, rmdir, (const char *path), (path))
WRAP(MKDIR, int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(MKDIR, int, -1, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
WRAP(STAT, int, -1, stat, (const char *path, struct stat *st), (path, st))
WRAP(STAT, int, -1, lstat, (const char *path, struct stat *st), (path, st))
WRAP(STAT, int, -1, fstat, (int fd, struct stat *st), (fd, st))
WRAP(STAT, int, -1, fstatat, (int dir, const char *path, struct stat *st, int flags), (dir, path, st, flags))
WRAP(STAT, int, -1, access, (const char *path, int mode), (path, mode))
WRAP(STAT, int, -1, faccessat, (int dir, const char *path, int mode, int flags), (dir, path, mode, flags))
WRAP(MMAP, void *, MAP_FAILED, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at), (p, n, prot, flags, fd, at))
WRAP(MMAP, void *, MAP_FAILED, mmap64, (void *p, size_t n, int prot, int flags, int fd, off64_t at), (p, n, prot, flags, fd, at))

int statvfs(const char *path, struct statvfs *fs)
{
    static int (*next)(const char *, struct statvfs *);
    const char *bytes = getenv("EXF_FREE_BYTES");
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "statvfs");
    int rc = next(path, fs);
    if (rc != 0 || !bytes) return rc;
    fs->f_frsize = 1;
    fs->f_bavail = (fsblkcnt_t)strtoull(bytes, NULL, 10);
    return 0;
}

/* OpenMP's runtime ends the process where it gets no thread, so that programs try for threads first (exf_team()): those calls
 * fail, and the runtime's own, of which there are none after them, do not. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *self)
{
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    Dl_info caller;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    int runtime = dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "omp.so");
    return !runtime && fails(THREAD) ? error_number : next(thread, attributes, fn, self);
}

#define WRAP_OPEN(name, parameters, arguments)                    \
    int name parameters                                           \
    {                                                             \
        static int (*next) parameters;                            \
        mode_t mode = 0;                                          \
        va_list va;                                               \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);     \
        va_start(va, flags);                                      \
        if (flags & O_CREAT) mode = va_arg(va, mode_t);           \
        va_end(va);                                               \
        return fails(OPEN) ? -1 : next arguments;                 \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))
WRAP_OPEN(openat64, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))

/* ---- the runtime of CUDA: called only where a program is linked with its shared library --------------------------------- */

typedef struct { unsigned x, y, z; } dim3; /* as that of CUDA; its streams, events and kernels are pointers, its errors ints */
static _Thread_local int pending; /* what cudaGetLastError() has to say of a call that failed here */

int cudaGetLastError(void)
{
    static int (*next)(void);
    int e = pending;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "cudaGetLastError");
    pending = 0;
    return e ? e : next();
}

#define WRAP_CUDA(call, name, parameters, arguments)              \
    int name parameters;                                          \
    int name parameters                                           \
    {                                                             \
        static int(*next) parameters;                             \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);     \
        return fails(call) ? (pending = error_number) : next arguments; \
    }

WRAP_CUDA(CUDA_MEMORY, cudaMalloc, (void **out, size_t n), (out, n))
WRAP_CUDA(CUDA_MEMORY, cudaMallocAsync, (void **out, size_t n, void *stream), (out, n, stream))
WRAP_CUDA(CUDA_MEMORY, cudaMallocHost, (void **out, size_t n), (out, n))
WRAP_CUDA(CUDA_MEMORY, cudaHostAlloc, (void **out, size_t n, unsigned flags), (out, n, flags))
WRAP_CUDA(CUDA_MEMORY, cudaHostRegister, (void *p, size_t n, unsigned flags), (p, n, flags))
WRAP_CUDA(CUDA_COPY, cudaMemcpyAsync, (void *to, const void *from, size_t n, int kind, void *s), (to, from, n, kind, s))
WRAP_CUDA(CUDA_COPY, cudaMemsetAsync, (void *to, int byte, size_t n, void *stream), (to, byte, n, stream))
WRAP_CUDA(CUDA_COPY, cudaMemset, (void *to, int byte, size_t n), (to, byte, n))
WRAP_CUDA(CUDA_MAKE, cudaStreamCreateWithFlags, (void **out, unsigned flags), (out, flags))
WRAP_CUDA(CUDA_MAKE, cudaEventCreateWithFlags, (void **out, unsigned flags), (out, flags))
WRAP_CUDA(CUDA_WAIT, cudaStreamSynchronize, (void *stream), (stream))
WRAP_CUDA(CUDA_WAIT, cudaDeviceSynchronize, (void), ())
WRAP_CUDA(CUDA_WAIT, cudaEventRecord, (void *event, void *stream), (event, stream))
WRAP_CUDA(CUDA_WAIT, cudaStreamWaitEvent, (void *stream, void *event, unsigned flags), (stream, event, flags))
WRAP_CUDA(CUDA_LAUNCH, cudaLaunchKernel, (const void *kernel, dim3 grid, dim3 block, void **values, size_t shared, void *stream),
          (kernel, grid, block, values, shared, stream))
WRAP_CUDA(CUDA_LAUNCH, __cudaLaunchKernel, (void *kernel, dim3 grid, dim3 block, const void *values, size_t shared, void *stream),
          (kernel, grid, block, values, shared, stream)) /* what nvcc makes of <<< >>> from CUDA 13 on */
WRAP_CUDA(CUDA_LAUNCH, cudaLaunchKernelExC, (const void *config, const void *kernel, void **values), (config, kernel, values))

/* ---- OpenBLAS ------------------------------------------------------------------------------------------- */

int openblas_get_parallel(void);
int openblas_get_parallel(void)
{
    int (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "openblas_get_parallel");
    return getenv("EXF_SERIAL_BLAS") || !next ? 0 : next();
}
