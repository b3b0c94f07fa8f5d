/* ranks_internal.h - inside src/ranks: what needs no MPI, and the state of a rank under MPI.
 *
 * All calls of MPI are made under one lock (MPI_THREAD_SERIALIZED), and none of them waits: who waits tests, gives
 * the lock away and tests again.  A thread of its own, the watch, tests while the run computes, so that sums that
 * were started go on; it receives notes of failures, and looks whether the processes of its node live. */
#ifndef EXF_RANKS_RANKS_INTERNAL_H
#define EXF_RANKS_RANKS_INTERNAL_H
#include "ranks/ranks.h"

/* ---- a process of its own (ranks_one.c) ------------------------------------------------ */

exf_place exf_one_place(void);
exf_code exf_one_gather(const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err) EXF_CHECKED;
/* Gives, of two texts that differ, the first line in which they do, from where it can be seen: a line that is too long to
 * be shown begins at the word that differs, or a little before its first byte that does. */
enum { EXF_ONE_EXCERPT = 320 };
void exf_one_difference(const char *a, const char *b, char line_a[EXF_ONE_EXCERPT], char line_b[EXF_ONE_EXCERPT]);
/* A window of pages of its own, from mmap(). */
exf_code exf_one_window(exf_ranks_window *w, size_t bytes, exf_err *err) EXF_CHECKED;
void exf_one_window_free(exf_ranks_window *w);

/* ---- under MPI ------------------------------------------------------------------------- */

#if EXF_HAVE_MPI
#include <mpi.h>
#include <pthread.h>

/* Kinds of notes, which ranks send each other beside collectives, always as one exf_note. */
enum { EXF_NOTE_FAILED = 1, EXF_NOTE_LAYER, EXF_NOTE_END };

typedef struct {
    int32_t rank;  /* whom it is about */
    int32_t layer; /* that this rank is in, or has finished; -1: none */
    int32_t code;  /* exf_code */
    int32_t died;  /* 1: its process is gone */
    double seconds;
    char msg[1024];
} exf_note;

typedef struct exf_note_sent {
    struct exf_note_sent *next;
    exf_note note;
    MPI_Request request;
} exf_note_sent;

struct exf_ranks {
    exf_place place;
    exf_place *all;  /* [size] */
    unsigned char *watched; /* [size] 1: a process of this node that this one can see */
    MPI_Comm world, sums, beside, votes, notes, node;
    pthread_mutex_t lock;
    pthread_t watch;
    int watching, end_watch, closing;
    int vote[2]; /* given, largest */
    MPI_Request voting;
    int layer;       /* that this rank is in; -1: none yet */
    double waited;   /* seconds spent waiting for others in it */
    int *done;       /* [size] on rank 0: last layer that each rank finished; -1: none */
    double *seconds; /* [size] of that layer */
    exf_note_sent *sent;
    exf_note own;     /* of this rank; code 0: none */
    exf_note failure; /* code 0: none known; its rank is the one that failed */
    int followed;     /* 1: a call of this rank returned another's failure */
    int told;         /* 1: `say` has told it */
    void (*say)(const exf_err *err);
    unsigned char *ended; /* [size] on the rank that speaks: its EXF_NOTE_END came */
    exf_note lowest;  /* there: of the lowest rank that ended with a failure of its own; code 0: none did */
};

/* Fails if an MPI call did. */
exf_code exf_mpi_ok(int status, const char *what, exf_err *err) EXF_CHECKED;
/* Waits for all ranks of comm. */
exf_code exf_mpi_barrier(exf_ranks *r, MPI_Comm comm, const char *what, exf_err *err) EXF_CHECKED;
/* Returns a note as a failure: "rank 2 on HOST, layer 3: MESSAGE". */
exf_code exf_mpi_failure(const exf_ranks *r, const exf_note *note, exf_err *err) EXF_CHECKED;
/* Returns the failure that is known, if there is one; the caller has the lock. */
exf_code exf_mpi_follow(exf_ranks *r, exf_err *err) EXF_CHECKED;
/* Returns the lowest rank that is not known to have died, which speaks for the job. */
int exf_mpi_speaker(const exf_ranks *r);

/* Sends a note; the caller has the lock. */
void exf_mpi_note(exf_ranks *r, int to, int kind, const exf_note *note);
/* Takes the notes that came; the caller has the lock. */
void exf_mpi_listen(exf_ranks *r);
/* Starts and ends the watch. */
exf_code exf_mpi_watch(exf_ranks *r, exf_err *err) EXF_CHECKED;
void exf_mpi_unwatch(exf_ranks *r);
/* Sleeps for so long, less than a second, since other threads and ranks compute. */
void exf_mpi_pause(long nanoseconds);
#endif
#endif
