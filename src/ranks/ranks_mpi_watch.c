/* ranks_mpi_watch.c - notes between ranks, failures, and the thread that hears of them; see ranks_internal.h. */
#include "ranks/ranks_internal.h"

#if EXF_HAVE_MPI
#include "base/err.h"
#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void exf_mpi_pause(long nanoseconds)
{
    struct timespec t = {0, nanoseconds};
    nanosleep(&t, NULL);
}

/* ---- failures --------------------------------------------------------------------------------- */

exf_code exf_mpi_failure(const exf_ranks *r, const exf_note *note, exf_err *err)
{
    char layer[32] = "";
    exf_code code = (exf_code)note->code;
    if (code == EXF_OK) return EXF_OK;
    if (note->rank == 0 && note->layer < 0) return exf_fail(err, code, "%s", note->msg);
    if (code == EXF_STOPPED || code == EXF_SIGINT || code == EXF_SIGTERM) return exf_fail(err, code, "%s", note->msg);
    if (note->layer >= 0) snprintf(layer, sizeof layer, ", layer %d", note->layer);
    return exf_fail(err, code, "rank %d on %s%s: %s", note->rank, r->all[note->rank].host, layer, note->msg);
}

exf_code exf_mpi_follow(exf_ranks *r, exf_err *err)
{
    r->followed |= r->failure.code && r->failure.rank != r->place.rank;
    return exf_mpi_failure(r, &r->failure, err);
}

/* Remembers the first failure that is known, and stops this rank's work if it is another's; the caller has the lock. */
static void remember(exf_ranks *r, const exf_note *note)
{
    if (r->failure.code) return;
    r->failure = *note;
    if (note->rank == r->place.rank) return;
    if (r->failure.layer < 0 && note->died) r->failure.layer = r->done[note->rank] + 1;
    exf_stop_request(SIGTERM);
    exf_stop_request(SIGTERM); /* the second request ends what the first lets finish */
}

int exf_mpi_speaker(const exf_ranks *r)
{
    return r->failure.died && r->failure.rank == 0;
}

exf_code exf_ranks_fail(exf_ranks *r, exf_code rc, const exf_err *err)
{
    exf_note note = {.code = (int32_t)rc};
    if (!r || rc == EXF_OK) return rc;
    int stops = rc == EXF_SIGTERM || rc == EXF_SIGINT || rc == EXF_STOPPED; /* as a rank that was told to stop reports */
    pthread_mutex_lock(&r->lock);
    if (!r->own.code && (!r->failure.code || (!r->followed && !stops))) {
        note.rank = r->place.rank;
        note.layer = r->layer;
        snprintf(note.msg, sizeof note.msg, "%s", err ? err->msg : exf_code_text(rc));
        r->own = note;
        remember(r, &note);
        for (int i = 0; i < r->place.size; i++)
            if (i != r->place.rank) exf_mpi_note(r, i, EXF_NOTE_FAILED, &note);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

exf_code exf_ranks_check(exf_ranks *r, exf_err *err)
{
    exf_code rc;
    if (!r) return EXF_OK;
    pthread_mutex_lock(&r->lock);
    exf_mpi_listen(r);
    rc = exf_mpi_follow(r, err);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

/* ---- notes ------------------------------------------------------------------------------------- */

void exf_mpi_note(exf_ranks *r, int to, int kind, const exf_note *note)
{
    exf_note_sent *s;
    if (exf_mem_new(&s, 1, sizeof *s, "notes", NULL) != EXF_OK) return; /* a failure will still be seen as a death */
    s->note = *note;
    s->next = r->sent;
    r->sent = s;
    MPI_Isend(&s->note, (int)sizeof s->note, MPI_BYTE, to, kind, r->notes, &s->request);
}

static void take_note(exf_ranks *r, int from, int kind, const exf_note *note)
{
    if (kind == EXF_NOTE_FAILED) remember(r, note);
    if (kind == EXF_NOTE_LAYER) {
        r->done[from] = note->layer;
        r->seconds[from] = note->seconds;
    }
    if (kind == EXF_NOTE_END) {
        r->ended[from] = 1;
        if (note->code && (!r->lowest.code || note->rank < r->lowest.rank)) r->lowest = *note;
    }
}

/* Frees the notes that have been sent. */
static void drop_sent(exf_ranks *r)
{
    for (exf_note_sent **at = &r->sent; *at;) {
        exf_note_sent *s = *at;
        int done = 0;
        MPI_Test(&s->request, &done, MPI_STATUS_IGNORE);
        if (!done) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        exf_mem_free(s);
    }
}

void exf_mpi_listen(exf_ranks *r)
{
    for (;;) {
        MPI_Status from;
        exf_note note;
        int there = 0;
        if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, r->notes, &there, &from) != MPI_SUCCESS || !there) break;
        if (MPI_Recv(&note, (int)sizeof note, MPI_BYTE, from.MPI_SOURCE, from.MPI_TAG, r->notes, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            break;
        take_note(r, from.MPI_SOURCE, from.MPI_TAG, &note);
    }
    drop_sent(r);
}

/* ---- layers -------------------------------------------------------------------------------------- */

void exf_ranks_waited(exf_ranks *r, double seconds)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->waited += seconds;
    pthread_mutex_unlock(&r->lock);
}

void exf_ranks_layer(exf_ranks *r, int layer, double seconds)
{
    exf_note note = {.layer = layer};
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    note.rank = r->place.rank;
    note.seconds = seconds - r->waited;
    r->waited = 0;
    r->layer = layer + 1;
    if (note.rank)
        exf_mpi_note(r, 0, EXF_NOTE_LAYER, &note);
    else
        take_note(r, 0, EXF_NOTE_LAYER, &note);
    pthread_mutex_unlock(&r->lock);
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *x, int n)
{
    double *sorted, m;
    if (exf_mem_dup((char **)&sorted, x, (size_t)n * sizeof *x, "seconds of ranks", NULL) != EXF_OK) return 0;
    qsort(sorted, (size_t)n, sizeof *sorted, rising);
    m = sorted[(n - 1) / 2];
    exf_mem_free(sorted);
    return m;
}

/* A rank stands out if its last layer took a quarter longer than the median, and a tenth of a second.  Which rank is a layer
 * late says nothing: sums that are under way let no rank be more than a layer ahead. */
void exf_ranks_straggler(exf_ranks *r, char text[EXF_STRAGGLER_TEXT])
{
    int slow = 0;
    text[0] = 0;
    if (!r || r->place.size < 2) return;
    pthread_mutex_lock(&r->lock);
    exf_mpi_listen(r);
    for (int i = 1; i < r->place.size; i++)
        if (r->seconds[i] > r->seconds[slow]) slow = i;
    for (int i = 0; i < r->place.size; i++)
        if (r->seconds[i] <= 0) slow = i; /* one that has finished no layer yet: there is nothing to compare */
    double usual = median(r->seconds, r->place.size);
    if (r->seconds[slow] > 1.25 * usual && r->seconds[slow] > usual + 0.1)
        snprintf(text, EXF_STRAGGLER_TEXT, "rank %d on %s, %.1f s for layer %d", slow, r->all[slow].host, r->seconds[slow],
                 r->done[slow]);
    pthread_mutex_unlock(&r->lock);
}

/* ---- the watch ----------------------------------------------------------------------------------- */

void exf_ranks_on_death(exf_ranks *r, void (*say)(const exf_err *err))
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->say = say;
    pthread_mutex_unlock(&r->lock);
}

/* Notes the first process of this node that is gone, and tells the other nodes. */
static void look_for_dead(exf_ranks *r)
{
    for (int i = 0; !r->closing && !r->failure.code && i < r->place.size; i++) {
        if (!r->watched[i] || r->ended[i] || kill((pid_t)r->all[i].pid, 0) == 0 || errno != ESRCH) continue;
        exf_note note = {.rank = i, .layer = -1, .code = EXF_IO, .died = 1};
        snprintf(note.msg, sizeof note.msg, "process %ld died: killed, out of memory, or crashed; the job ends, and the same "
                 "command goes on from its last resume point", r->all[i].pid);
        remember(r, &note);
        for (int j = 0; j < r->place.size; j++)
            if (r->all[j].node != r->place.node) exf_mpi_note(r, j, EXF_NOTE_FAILED, &note);
    }
}

/* Listens every millisecond, and looks for the dead every sixteenth time. */
static void *watch(void *self)
{
    exf_ranks *r = self;
    for (int end = 0, turn = 0; !end; turn++) {
        pthread_mutex_lock(&r->lock);
        exf_mpi_listen(r);
        if (turn % 16 == 0) look_for_dead(r);
        if (r->failure.died && !r->told && r->say && exf_mpi_speaker(r) == r->place.rank) {
            exf_err err;
            r->told = 1;
            if (exf_mpi_failure(r, &r->failure, &err) != EXF_OK) r->say(&err);
        }
        end = r->end_watch;
        pthread_mutex_unlock(&r->lock);
        exf_mpi_pause(1000000);
    }
    return NULL;
}

exf_code exf_mpi_watch(exf_ranks *r, exf_err *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    int why = pthread_create(&r->watch, NULL, watch, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why) return exf_fail_errno(err, why, "cannot create the thread that watches the ranks");
    r->watching = 1;
    return EXF_OK;
}

void exf_mpi_unwatch(exf_ranks *r)
{
    pthread_mutex_lock(&r->lock);
    r->end_watch = 1;
    pthread_mutex_unlock(&r->lock);
    if (r->watching) pthread_join(r->watch, NULL);
    r->watching = 0;
}
#endif
