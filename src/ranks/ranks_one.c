/* ranks_one.c - see ranks_one.h. */
#include "ranks/ranks_one.h"

#include "base/mem.h"
#include "base/thread_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
