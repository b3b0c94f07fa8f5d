/* ranks_one.c - what needs no MPI: how many ranks were started, what a process of its own does where ranks would share or
 * exchange, and all of ranks.h in a program that was built without MPI, where the only handle is NULL. */
#include "ranks/ranks_internal.h"

#include "base/mem.h"
#include "base/parallel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- how many were started ------------------------------------------------------------------- */

static int number(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long n = text ? strtol(text, &end, 10) : 0;
    return text && end != text && *end == 0 && n > 0 && n < 1 << 24 ? (int)n : 0;
}

/* A batch script under Slurm is one process, though SLURM_NTASKS counts the job's: only srun sets SLURM_STEP_NUM_TASKS. */
int exf_ranks_started(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (number(names[i])) return number(names[i]);
    return getenv("SLURM_PROCID") ? number("SLURM_STEP_NUM_TASKS") : 0;
}

/* ---- a process of its own -------------------------------------------------------------------- */

exf_place exf_one_place(void)
{
    exf_place p = {.rank = 0, .size = 1, .local_size = 1, .n_nodes = 1, .pid = (long)getpid(),
                   .processors = exf_processor_set()};
    if (gethostname(p.host, sizeof p.host - 1) != 0) strcpy(p.host, "?");
    return p;
}

exf_code exf_one_gather(const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err)
{
    exf_code rc;
    *out = (exf_ranks_gathered){.size = 1};
    EXF_TRY(exf_mem_new(&out->offset, 2, sizeof *out->offset, "gathered bytes", err));
    EXF_TRY(exf_mem_new(&out->data, n, 1, "gathered bytes", err));
    if (n) memcpy(out->data, bytes, n);
    out->offset[1] = n;
out:
    if (rc != EXF_OK) exf_ranks_gathered_free(out);
    return rc;
}

void exf_ranks_gathered_free(exf_ranks_gathered *g)
{
    exf_mem_free(g->data);
    exf_mem_free(g->offset);
    *g = (exf_ranks_gathered){.data = NULL};
}

/* ---- what differs ---------------------------------------------------------------------------- */

enum { SHOWN = 300, BEFORE = 40 }; /* bytes of a line; bytes that both have, where a word is too long */

/* Returns the last place up to `at` at which no UTF-8 letter is cut. */
static size_t letter_at(const char *s, size_t at)
{
    while (at && ((unsigned char)s[at] & 0xc0) == 0x80) at--;
    return at;
}

static void excerpt(char out[EXF_ONE_EXCERPT], const char *line, size_t len, size_t from)
{
    size_t n = len - from > SHOWN ? letter_at(line + from, SHOWN) : len - from;
    snprintf(out, EXF_ONE_EXCERPT, "%s%.*s", !from ? "" : line[from - 1] == ' ' ? "... " : "...", (int)n, line + from);
}

void exf_one_difference(const char *a, const char *b, char line_a[EXF_ONE_EXCERPT], char line_b[EXF_ONE_EXCERPT])
{
    size_t n_a, n_b, same = 0, from;
    for (;; a += n_a + 1, b += n_b + 1) {
        n_a = strcspn(a, "\n");
        n_b = strcspn(b, "\n");
        if (n_a != n_b || memcmp(a, b, n_a) != 0 || !a[n_a] || !b[n_b]) break;
    }
    if (n_a == n_b && memcmp(a, b, n_a) == 0 && a[n_a] != b[n_b]) { /* one of them ends here */
        a += n_a + (a[n_a] != 0);
        b += n_b + (b[n_b] != 0);
        n_a = strcspn(a, "\n");
        n_b = strcspn(b, "\n");
    }
    while (same < n_a && same < n_b && a[same] == b[same]) same++;
    for (from = same; from && a[from - 1] != ' ';) from--;
    if (same - from > SHOWN / 2) from = letter_at(a, same - BEFORE);
    if (n_a <= SHOWN && n_b <= SHOWN) from = 0;
    excerpt(line_a, a, n_a, from);
    excerpt(line_b, b, n_b, from);
}

/* ---- memory ------------------------------------------------------------------------------------ */

/* Private pages of /dev/zero: POSIX has no anonymous mapping. */
exf_code exf_one_window(exf_ranks_window *w, size_t bytes, exf_err *err)
{
    void *at = MAP_FAILED;
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC), why = errno;
    *w = (exf_ranks_window){.at = NULL};
    if (fd >= 0) {
        at = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        why = errno;
        close(fd);
    }
    if (at == MAP_FAILED) return exf_fail_errno(err, why, "cannot map %zu bytes of memory for this node", bytes);
    w->at = at;
    w->bytes = bytes;
    return EXF_OK;
}

void exf_one_window_free(exf_ranks_window *w)
{
    if (w->at) munmap(w->at, w->bytes ? w->bytes : 1);
    *w = (exf_ranks_window){.at = NULL};
}

/* ---- without MPI ------------------------------------------------------------------------------ */

#if !EXF_HAVE_MPI

int exf_ranks_built(void)
{
    return 0;
}

exf_code exf_ranks_open(exf_ranks **out, exf_err *err)
{
    int n = exf_ranks_started();
    *out = NULL;
    if (n < 2) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "started as %d ranks, but this program was built without MPI: each would do the whole run; "
                    "start one process, or build with MPI=1", n);
}

void exf_ranks_on_death(exf_ranks *r, void (*say)(const exf_err *err))
{
    (void)r, (void)say;
}

exf_code exf_ranks_close(exf_ranks *r, exf_code rc, int *speaks, exf_err *err)
{
    (void)r, (void)err;
    *speaks = 1;
    return rc;
}

void exf_ranks_abort(exf_code rc)
{
    (void)rc;
}

exf_place exf_ranks_place(const exf_ranks *r)
{
    (void)r;
    return exf_one_place();
}

exf_place exf_ranks_place_of(const exf_ranks *r, int rank)
{
    (void)rank;
    return exf_ranks_place(r);
}

exf_code exf_ranks_fail(exf_ranks *r, exf_code rc, const exf_err *err)
{
    (void)r, (void)err;
    return rc;
}

exf_code exf_ranks_check(exf_ranks *r, exf_err *err)
{
    (void)r, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_agree(exf_ranks *r, exf_code rc, exf_err *err)
{
    (void)r, (void)err;
    return rc;
}

void exf_ranks_layer(exf_ranks *r, int layer, double seconds)
{
    (void)r, (void)layer, (void)seconds;
}

void exf_ranks_waited(exf_ranks *r, double seconds)
{
    (void)r, (void)seconds;
}

void exf_ranks_straggler(exf_ranks *r, char text[EXF_STRAGGLER_TEXT])
{
    (void)r;
    text[0] = 0;
}

exf_code exf_ranks_sum(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    (void)r, (void)arrays, (void)n, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_sum_beside(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    return exf_ranks_sum(r, arrays, n, err);
}

static int vote;

exf_code exf_ranks_vote_start(exf_ranks *r, int value, exf_err *err)
{
    (void)r, (void)err;
    vote = value;
    return EXF_OK;
}

exf_code exf_ranks_vote_finish(exf_ranks *r, int *largest, exf_err *err)
{
    (void)r, (void)err;
    *largest = vote;
    return EXF_OK;
}

exf_code exf_ranks_barrier(exf_ranks *r, exf_err *err)
{
    (void)r, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_broadcast(exf_ranks *r, void *bytes, size_t n, exf_err *err)
{
    (void)r, (void)bytes, (void)n, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_gather(exf_ranks *r, const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err)
{
    (void)r;
    return exf_one_gather(bytes, n, out, err);
}

exf_code exf_ranks_gather_parts(exf_ranks *r, const void *own, size_t n, size_t offset, void *all, exf_err *err)
{
    (void)r, (void)err;
    if (n && (const char *)own != (char *)all + offset) memcpy((char *)all + offset, own, n);
    return EXF_OK;
}

exf_code exf_ranks_same(exf_ranks *r, const char *text, exf_err *err)
{
    (void)r, (void)text, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_window_new(exf_ranks_window *w, exf_ranks *r, size_t bytes, exf_err *err)
{
    (void)r;
    return exf_one_window(w, bytes, err);
}

void exf_ranks_window_free(exf_ranks_window *w, exf_ranks *r)
{
    (void)r;
    exf_one_window_free(w);
}

exf_code exf_ranks_node_barrier(exf_ranks *r, exf_err *err)
{
    (void)r, (void)err;
    return EXF_OK;
}
#endif
