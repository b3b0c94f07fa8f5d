/* mutants.c - runs a command on damaged copies of a file, and says which statuses, how much memory and how long it took.
 * usage: mutants flips|edits N FILE COMMAND ...
 *
 * FILE is each mutant in turn, and at the end what it was.
 *   flips  one bit in each of N bytes at equal distances.  Each must be refused as below or, where the bit means
 *          nothing, leave status and standard output of COMMAND as they are for the whole file.
 *   edits  N mutants by a fixed seed: bits, bytes, numbers, cuts, doubled and moved parts.  Each must end with a status
 *          of src/base/err.h that is no internal error, below 2 GiB of memory and within 60 seconds.
 * A mutant that does not is kept as FILE.mutant-<number>; the exit status is then 1. */
#define _DEFAULT_SOURCE /* wait4 */
#include "base/err.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 60, MEBIBYTES = 2048, OUTPUT_MAX = 1 << 20, STATUSES = 256 };

typedef struct {
    unsigned char *bytes;
    size_t n;
} contents;

typedef struct {
    int status; /* of the exit, or 256 + the signal's number */
    long mebibytes;
    double seconds;
    size_t n;
    char output[OUTPUT_MAX];
} outcome;

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static contents read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    contents c = {NULL, 0};
    if (!f || fseek(f, 0, SEEK_END) != 0) fail(path);
    long n = ftell(f);
    rewind(f);
    c.n = (size_t)n;
    c.bytes = malloc(2 * c.n + 64);
    if (!c.bytes || fread(c.bytes, 1, c.n, f) != c.n) fail(path);
    fclose(f);
    return c;
}

static void write_all(const char *path, const contents *c)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(c->bytes, 1, c->n, f) != c->n || fclose(f) != 0) fail(path);
}

/* ---- one run --------------------------------------------------------------------- */

static void become(char **command, int out)
{
    struct rlimit seconds = {SECONDS, SECONDS};
    int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, 0);
    dup2(out, 1);
    if (!getenv("EXF_MUTANTS_SHOW")) dup2(nothing, 2);
    setrlimit(RLIMIT_CPU, &seconds);
    alarm(SECONDS); /* survives exec: a program that waits for ever is ended too */
    execvp(command[0], command);
    _exit(127);
}

static void run(char **command, outcome *o)
{
    int status, pipe_of[2];
    struct rusage use;
    struct timespec from, to;
    if (pipe(pipe_of) != 0) fail("pipe");
    clock_gettime(CLOCK_MONOTONIC, &from);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) become(command, pipe_of[1]);
    close(pipe_of[1]);
    o->n = 0;
    for (ssize_t got; o->n < OUTPUT_MAX && (got = read(pipe_of[0], o->output + o->n, OUTPUT_MAX - o->n)) > 0;) o->n += (size_t)got;
    close(pipe_of[0]);
    if (wait4(child, &status, 0, &use) != child) fail("wait4");
    clock_gettime(CLOCK_MONOTONIC, &to);
    o->status = WIFSIGNALED(status) ? STATUSES + WTERMSIG(status) : WEXITSTATUS(status);
    o->mebibytes = use.ru_maxrss / 1024;
    o->seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* ---- mutants ------------------------------------------------------------------------ */

static uint64_t state;

static size_t below(size_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return n ? (size_t)(state % n) : 0;
}

/* Replaces bytes [at, at + old) by n others. */
static void put_in_place(contents *c, size_t at, size_t old, const void *bytes, size_t n)
{
    memmove(c->bytes + at + n, c->bytes + at + old, c->n - at - old);
    if (n) memmove(c->bytes + at, bytes, n);
    c->n += n - old;
}

/* Puts a number in place of a decimal one that follows a random place. */
static void change_number(contents *c)
{
    static const char *const numbers[] = {"-1", "0", "4294967296", "9223372036854775807", "1e999", "18446744073709551616",
                                          "3", "\"\"", "null"};
    size_t at = below(c->n), end;
    while (at < c->n && (c->bytes[at] < '0' || c->bytes[at] > '9')) at++;
    for (end = at; end < c->n && c->bytes[end] >= '0' && c->bytes[end] <= '9';) end++;
    const char *with = numbers[below(sizeof numbers / sizeof *numbers)];
    put_in_place(c, at, end - at, with, strlen(with));
}

/* Puts an integer of 1, 2, 4 or 8 bytes at a random place. */
static void change_word(contents *c)
{
    static const uint64_t values[] = {0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x10000, 0x7fffffff, 0xffffffff, 0x100000000,
                                      INT64_MAX, UINT64_MAX};
    size_t width = (size_t)1 << below(4), at = c->n > width ? below(c->n - width) : 0;
    uint64_t value = values[below(sizeof values / sizeof *values)];
    if (c->n >= width) memcpy(c->bytes + at, &value, width);
}

/* Doubles a part, drops one, or moves it. */
static void change_parts(contents *c, int what)
{
    unsigned char part[256];
    size_t at = below(c->n), n = 1 + below(sizeof part - 1);
    if (n > c->n - at) n = c->n - at;
    memcpy(part, c->bytes + at, n);
    if (what > 0) put_in_place(c, at, n, NULL, 0);
    if (what < 2) put_in_place(c, below(c->n), 0, part, n);
}

static void edit(contents *c, size_t i)
{
    state = 0x9e3779b97f4a7c15 * (i + 1);
    for (size_t k = 0; k < 1 + i % 4 && c->n; k++) switch (below(8)) {
        case 0: c->bytes[below(c->n)] ^= (unsigned char)(1 << below(8)); break;
        case 1: c->bytes[below(c->n)] = (unsigned char)below(256); break;
        case 2: change_number(c); break;
        case 3: change_word(c); break;
        case 4: c->n = below(c->n); break;
        default: change_parts(c, (int)below(3)); break;
        }
}

static void mutate(contents *c, const contents *whole, int flips, size_t i, size_t n)
{
    c->n = whole->n;
    memcpy(c->bytes, whole->bytes, whole->n);
    if (flips)
        c->bytes[n > 1 ? (size_t)((double)i * (double)(c->n - 1) / (double)(n - 1)) : 0] ^= (unsigned char)(1 << i * 5 % 8);
    else
        edit(c, i);
}

/* ---- judging ------------------------------------------------------------------------- */

static int documented(int status)
{
#define X(name, value, text) if (status == (value)) return (value) != EXF_INTERNAL;
    EXF_CODES(X)
#undef X
    return 0;
}

static int holds(const outcome *o, const outcome *whole, int flips)
{
    if (!documented(o->status) || o->seconds > SECONDS || o->mebibytes > MEBIBYTES) return 0;
    if (!flips || o->status != EXF_OK) return 1;
    return o->status == whole->status && o->n == whole->n && memcmp(o->output, whole->output, o->n) == 0;
}

static int keep(const char *path, size_t i, const contents *c, const outcome *o)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.mutant-%zu", path, i);
    write_all(name, c);
    printf("%s: status %d, %ld MiB, %.1f s\n", name, o->status, o->mebibytes, o->seconds);
    return 1;
}

int main(int argc, char **argv)
{
    static outcome whole, o;
    static size_t statuses[2 * STATUSES];
    double longest = 0;
    long most = 0;
    int bad = 0;
    if (argc < 5 || atol(argv[2]) < 1) return fputs("usage: mutants flips|edits N FILE COMMAND ...\n", stderr), 2;
    int flips = strcmp(argv[1], "flips") == 0;
    size_t n = (size_t)atol(argv[2]);
    contents c = read_all(argv[3]), all = read_all(argv[3]);
    signal(SIGPIPE, SIG_IGN);
    run(argv + 4, &whole);
    if (whole.status != 0) return printf("%s: status %d before any damage\n", argv[3], whole.status), 2;
    for (size_t i = 0; i < n; i++) {
        mutate(&c, &all, flips, i, n);
        write_all(argv[3], &c);
        run(argv + 4, &o);
        statuses[o.status]++;
        if (o.mebibytes > most) most = o.mebibytes;
        if (o.seconds > longest) longest = o.seconds;
        if (!holds(&o, &whole, flips)) bad = keep(argv[3], i, &c, &o);
    }
    write_all(argv[3], &all);
    printf("%s: %zu %s; status:", argv[3], n, flips ? "flipped bits" : "mutants");
    for (int s = 0; s < 2 * STATUSES; s++)
        if (statuses[s]) printf(" %d x %zu", s, statuses[s]);
    printf("; at most %ld MiB, %.2f s\n", most, longest);
    free(c.bytes);
    free(all.bytes);
    return bad;
}
