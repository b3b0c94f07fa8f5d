/* ranks.h - the ranks of a job: processes that share one run, each on its part of the sequences.
 *
 * mpirun (Open MPI, MPICH) or srun starts them.  A handle of NULL is a process of its own, for which
 * every function below does at once what it would do as the only rank; such a process never touches MPI.
 *
 * What is summed are integers: a result does not depend on the number of ranks.  Collective functions
 * must be called by all ranks in the same order, each family (sums, sums beside, votes, node, all else)
 * on its own, so that threads may use different families side by side.
 *
 * Failure: a rank that fails says so (exf_ranks_fail), or is seen to have died.  Then every call that
 * waits for others returns that failure, prefixed by rank, host and layer, and the ranks' stop flag
 * (base/err.h) is set, so that all end.  A collective is never waited for in vain. */
#ifndef EXF_RANKS_RANKS_H
#define EXF_RANKS_RANKS_H
#include "base/err.h"
#include "base/exact.h"

#include <stddef.h>
#include <stdint.h>

typedef struct exf_ranks exf_ranks;

/* The place of a rank in the job and on its node. */
typedef struct {
    int rank, size;             /* in the job */
    int local_rank, local_size; /* among the ranks of its node, which share memory */
    int node, n_nodes;          /* nodes are numbered by their lowest rank */
    long pid;
    uint64_t processors;        /* exf_processor_set() */
    char host[64];
} exf_place;

/* Returns 1 if the program was built with MPI. */
int exf_ranks_built(void);

/* Joins the job if mpirun or srun started this process; else *out is NULL.  EXF_USAGE, naming the ranks, if a
 * program that was built without MPI was started as several. */
exf_code exf_ranks_open(exf_ranks **out, exf_err *err) EXF_CHECKED;
/* Returns how many ranks mpirun or srun says that it started; 0 for a plain start.  Touches no MPI. */
int exf_ranks_started(void);
/* Has `say` called, once, on a thread of its own, as soon as another process is seen to have died: mpirun leaves the
 * living a second.  It is called on the lowest living rank. */
void exf_ranks_on_death(exf_ranks *r, void (*say)(const exf_err *err));
/* Ends the job with this rank's result: waits for all ranks that live.  Returns, on every rank, EXF_OK or a failure; on
 * the lowest living rank *speaks is 1 if it should tell err, the failure of the lowest rank that failed.  Frees r.
 * After a failure the caller ends with exf_ranks_abort(). */
exf_code exf_ranks_close(exf_ranks *r, exf_code rc, int *speaks, exf_err *err) EXF_CHECKED;
/* Ends every process of the job with that exit status, which other ranks await here.  Does nothing for a process of its
 * own, and after a job that ended well. */
void exf_ranks_abort(exf_code rc);

/* Return this rank's place, and another's. */
exf_place exf_ranks_place(const exf_ranks *r);
exf_place exf_ranks_place_of(const exf_ranks *r, int rank);
/* Returns 1 for rank 0, which writes and speaks. */
static inline int exf_ranks_first(const exf_ranks *r)
{
    return !r || exf_ranks_place(r).rank == 0;
}

/* ---- failure ----------------------------------------------------------------------------- */

/* Tells all ranks that this one failed, and returns rc.  Nothing happens if another's failure was known before. */
exf_code exf_ranks_fail(exf_ranks *r, exf_code rc, const exf_err *err);
/* Returns the failure of another rank, if one is known; for loops that wait for shared memory. */
exf_code exf_ranks_check(exf_ranks *r, exf_err *err) EXF_CHECKED;
/* Waits for all ranks; if some failed, returns the failure of the lowest of them on every rank.  Unlike
 * exf_ranks_fail() it ends nothing: for checks before any work. */
exf_code exf_ranks_agree(exf_ranks *r, exf_code rc, exf_err *err) EXF_CHECKED;

/* Tells rank 0 that this rank has finished a layer (counted from 0; -1: a pass begins), and its seconds without
 * those spent waiting for others. */
void exf_ranks_layer(exf_ranks *r, int layer, double seconds);
/* Adds seconds for which this rank's work stood still, waiting for others, to those that exf_ranks_layer() subtracts. */
void exf_ranks_waited(exf_ranks *r, double seconds);
/* Describes, on rank 0, the rank that took longest for its last layer, if it stands out: "rank 3 on HOST, 4.1 s for
 * layer 7"; else the text is empty. */
enum { EXF_STRAGGLER_TEXT = 128 };
void exf_ranks_straggler(exf_ranks *r, char text[EXF_STRAGGLER_TEXT]);

/* ---- sums ---------------------------------------------------------------------------------- */

typedef enum {
    EXF_RANKS_EXACT, /* exf_exact */
    EXF_RANKS_U64,   /* uint64_t, or int64_t in two's complement */
    EXF_RANKS_BITS   /* bytes, combined by OR: of arrays of which each rank fills a part and zeroes the rest */
} exf_ranks_kind;

typedef struct {
    void *data;
    size_t n; /* elements */
    exf_ranks_kind kind;
} exf_ranks_array;

/* Adds all ranks' arrays up into rank 0's; the others' keep what they have. */
exf_code exf_ranks_sum(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err) EXF_CHECKED;
/* The same on a thread that runs while the rank computes.  Its waiting does not count as the rank's; where the rank itself stands
 * still until the sum is done, exf_ranks_waited() counts that.  A family of its own. */
exf_code exf_ranks_sum_beside(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err) EXF_CHECKED;

/* ---- votes --------------------------------------------------------------------------------- */

/* Starts a vote, and returns, on every rank, the largest value of all (>= 0).  One vote is under way at a time. */
exf_code exf_ranks_vote_start(exf_ranks *r, int value, exf_err *err) EXF_CHECKED;
exf_code exf_ranks_vote_finish(exf_ranks *r, int *largest, exf_err *err) EXF_CHECKED;

/* ---- bytes --------------------------------------------------------------------------------- */

exf_code exf_ranks_barrier(exf_ranks *r, exf_err *err) EXF_CHECKED;
/* Copies rank 0's bytes to all. */
exf_code exf_ranks_broadcast(exf_ranks *r, void *bytes, size_t n, exf_err *err) EXF_CHECKED;

/* The bytes that the ranks gave: rank i's are data[offset[i]] up to offset[i + 1]. */
typedef struct {
    char *data;
    size_t *offset; /* [size + 1] */
    int size;
} exf_ranks_gathered;
/* Gathers each rank's bytes, of any number, on rank 0; on the others *out is empty.  The caller frees. */
exf_code exf_ranks_gather(exf_ranks *r, const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err) EXF_CHECKED;
void exf_ranks_gathered_free(exf_ranks_gathered *g);
/* Gathers an array of which each rank has a part: puts its n bytes at `offset` of rank 0's `all`; on the others `all` is not used.
 * Rank 0's own may lie there already.  All ranks send at once.  After a failure own and all must stay until the process ends: MPI
 * may still read and write them. */
exf_code exf_ranks_gather_parts(exf_ranks *r, const void *own, size_t n, size_t offset, void *all, exf_err *err) EXF_CHECKED;
/* EXF_MODEL on every rank if one's text, of several lines, is not that of rank 0; names both ranks and hosts and
 * what each has in the first line that differs: of a long line, the part that does. */
exf_code exf_ranks_same(exf_ranks *r, const char *text, exf_err *err) EXF_CHECKED;

/* ---- memory of a node ---------------------------------------------------------------------- */

/* Zeroed memory that all ranks of a node have, though not at one address; page-aligned. */
typedef struct {
    void *at;
    size_t bytes;
    void *handle; /* private */
} exf_ranks_window;
/* Allocate and free the window; collective over the node.  After a failure of any rank free waits for nobody. */
exf_code exf_ranks_window_new(exf_ranks_window *w, exf_ranks *r, size_t bytes, exf_err *err) EXF_CHECKED;
void exf_ranks_window_free(exf_ranks_window *w, exf_ranks *r);
/* Waits for the ranks of the node. */
exf_code exf_ranks_node_barrier(exf_ranks *r, exf_err *err) EXF_CHECKED;
#endif
