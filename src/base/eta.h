/* eta.h - exf_eta estimates how long work still takes whose parts cost different amounts.
 *
 * Work has kinds (reading, attention, experts, the head), and a kind has a number of units: bytes,
 * tokens, operations.  A kind's seconds per unit are measured while its units are done.  Of a
 * kind that has hardly begun the prior counts, scaled by what the measured kinds took in relation
 * to their own priors; so priors need to be right in relation to each other only.
 *
 * No clock is read here: callers pass the time, in seconds of any monotonic clock. */
#ifndef EXF_BASE_ETA_H
#define EXF_BASE_ETA_H

enum { EXF_ETA_KINDS = 16 };

typedef struct {
    double planned, done; /* units of the whole work, and those that are done */
    double prior;         /* seconds per unit before any was measured */
    double spent;         /* seconds that the done units took */
} exf_eta_kind;

typedef struct {
    exf_eta_kind kind[EXF_ETA_KINDS]; /* kinds that the work lacks are zero */
    int now;      /* the kind that is worked on */
    double since; /* up to this time all seconds are in some kind's `spent` */
} exf_eta;

/* Starts the clock with `kind`. */
void exf_eta_start(exf_eta *e, int kind, double clock);
/* Gives the seconds since the last call to the present kind, and goes on with `kind`. */
void exf_eta_turn(exf_eta *e, int kind, double clock);
/* Says that units of the present kind were done, and gives the seconds since the last call to it. */
void exf_eta_add(exf_eta *e, double units, double clock);
/* Says that units of a kind were done beside the present one, as on a device, and took `seconds` by
 * another clock; so many are not the present kind's, to which go the seconds since the last call. */
void exf_eta_credit(exf_eta *e, int kind, double units, double seconds, double clock);
/* Returns the seconds that are left; -1 as long as nothing was measured. */
double exf_eta_left(const exf_eta *e, double clock);
/* Returns the seconds of all planned units at the measured rates; -1 as long as nothing was measured. */
double exf_eta_whole(const exf_eta *e);
/* Returns the seconds per unit of a kind, measured or expected. */
double exf_eta_rate(const exf_eta *e, int kind);
/* Returns the share of the seconds that is over, in [0, 1]. */
double exf_eta_share(const exf_eta *e, double clock);
#endif
