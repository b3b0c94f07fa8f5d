/* progress.h - tells on stderr how far long work is, and how long it still takes.
 *
 * One piece of work is under way at a time.  Threads say what they have done; a thread of this
 * module draws a bar twice a second on a terminal, or writes a line every ten seconds elsewhere,
 * so that work inside a layer is seen too.  A line is written at the end of each layer.
 *
 * Lines of --progress=json while work is under way:
 *   {"event":"progress","what":"layer","layer":3,"layers":48,"share":0.07,"elapsed_seconds":41.2,"eta_seconds":540.1}
 * elapsed_seconds counts from the start of the program, eta_seconds to the end of the work; it is
 * null as long as nothing is measured. */
#ifndef EXF_BASE_PROGRESS_H
#define EXF_BASE_PROGRESS_H
#include "base/log.h"

/* exf_eta estimates how long work still takes whose parts cost different amounts.
 *
 * Work has kinds (reading, attention, experts, the head), and a kind has a number of units: bytes,
 * tokens, operations.  A kind's seconds per unit are measured while its units are done.  Of a
 * kind that has hardly begun the prior counts, scaled by what the measured kinds took in relation
 * to their own priors; so priors need to be right in relation to each other only.
 *
 * No clock is read here: callers pass the time, in seconds of any monotonic clock. */

enum { EXF_ETA_KINDS = 16 };

typedef struct {
    double planned, done; /* units of the whole work, and those that are done */
    double after;         /* units of work that follows this, which is not begun before it ends: what is left counts them */
    double prior;         /* seconds per unit before any was measured */
    double spent;         /* seconds that the done units took */
} exf_eta_kind;

typedef struct {
    exf_eta_kind kind[EXF_ETA_KINDS]; /* kinds that the work lacks are zero */
    int now;      /* the kind that is worked on */
    double since; /* up to this time all seconds are in some kind's `spent` */
    double before; /* the share of the seconds of all that earlier runs did: the kinds have the rest; 0: there were none */
} exf_eta;

/* Starts the clock with `kind`. */
void exf_eta_start(exf_eta *e, int kind, double clock);
/* Starts again, of work that earlier runs began: the kinds have what is left, `before` is the share of the whole that is done. What
 * was measured until now, which is reading their states back, tells nothing of it. */
void exf_eta_resume(exf_eta *e, double before, double clock);
/* Returns the seconds that the priors say of all planned units. */
double exf_eta_expected(const exf_eta *e);
/* Gives the seconds since the last call to the present kind, and goes on with `kind`. */
void exf_eta_turn(exf_eta *e, int kind, double clock);
/* Says that units of the present kind were done, and gives the seconds since the last call to it. */
void exf_eta_add(exf_eta *e, double units, double clock);
/* Says that units of a kind were done beside the present one, as on a device, and took `seconds` by
 * another clock; so many are not the present kind's, to which go the seconds since the last call. */
void exf_eta_credit(exf_eta *e, int kind, double units, double seconds, double clock);
/* Returns the seconds that are left, of the work that follows too; -1 as long as nothing was measured. */
double exf_eta_left(const exf_eta *e, double clock);
/* Returns the seconds of all planned units at the measured rates; -1 as long as nothing was measured. */
double exf_eta_whole(const exf_eta *e);
/* Returns units of the whole run for each second that it takes from start to end, as it is estimated now; 0 before that is. */
double exf_eta_rate(const exf_eta *e, double units, double clock);
/* Returns the share of the seconds that is over, those of earlier runs and of the work that follows included, in [0, 1]. */
double exf_eta_share(const exf_eta *e, double clock);

/* A layer that was finished. */
typedef struct {
    int layer, n_layers;    /* model's layer number just finished; how many there are */
    uint64_t tokens;        /* tokens that went through this layer */
    uint64_t weight_bytes;  /* bytes read for this layer */
    double seconds;         /* for this layer, reading included */
    int cold, n_experts;    /* experts never routed; n_experts 0: not an MoE layer */
    int done;               /* layers finished so far */
    char straggler[128];    /* which of several ranks holds the others up; "": none does */
} exf_progress;

/* Begins work that starts with a kind.  what: "layer" with n_layers, or the work's name ("tokenizing"), a
 * literal, with n_layers 0; "" measures and tells nothing.  eta: its kinds and their units, borrowed until
 * exf_progress_end(), which leaves in it what was measured. */
void exf_progress_begin(const char *what, int n_layers, exf_eta *eta, int kind);
/* Says that earlier runs had done so many layers, the share `before` of the work, whose states are read back by now. */
void exf_progress_resume(int done, double before);
/* Goes on with another kind; called where no thread works on the former one any more. */
void exf_progress_turn(int kind);
/* Says that units of the present kind were done; any thread. */
void exf_progress_add(double units);
/* Says that units of a kind took so many seconds of a device's clock, and none of the host's. */
void exf_progress_credit(int kind, double units, double seconds);
/* Calls poll about twice a second while the work is under way, on a thread of its own, until exf_progress_end(). */
void exf_progress_poll(void (*poll)(void *self), void *self);
void exf_progress_layer(const exf_progress *p);
/* Ends the work and its bar; allowed if none was begun. */
void exf_progress_end(void);
#endif
