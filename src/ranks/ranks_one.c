/* ranks_one.c - see ranks_one.h. */
#include "ranks/ranks_one.h"

#include "base/mem.h"
#include "base/thread_pool.h"

#include <errno.h>
#include <fcntl.h>
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
