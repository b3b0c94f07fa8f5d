/* eta.c - see eta.h. */
#include "base/eta.h"

/* The part of a kind's units as which its prior counts beside what was measured. */
static const double prior_weight = 0.01;

void exf_eta_start(exf_eta *e, int kind, double clock)
{
    e->now = kind;
    e->since = clock;
}

static void spend(exf_eta *e, double clock)
{
    e->kind[e->now].spent += clock - e->since;
    e->since = clock;
}

void exf_eta_turn(exf_eta *e, int kind, double clock)
{
    spend(e, clock);
    e->now = kind;
}

void exf_eta_add(exf_eta *e, double units, double clock)
{
    spend(e, clock);
    e->kind[e->now].done += units;
}

void exf_eta_credit(exf_eta *e, int kind, double units, double seconds, double clock)
{
    spend(e, clock);
    e->kind[e->now].spent -= seconds;
    e->kind[kind].done += units;
    e->kind[kind].spent += seconds;
}

/* Returns the seconds that were spent over those that the priors say; 0 if nothing was measured. */
static double scale_of(const exf_eta *e)
{
    double spent = 0, expected = 0;
    for (int k = 0; k < EXF_ETA_KINDS; k++) {
        if (e->kind[k].done <= 0) continue;
        spent += e->kind[k].spent;
        expected += e->kind[k].done * e->kind[k].prior;
    }
    return expected > 0 ? spent / expected : 0;
}

static double rate_of(const exf_eta_kind *k, double scale)
{
    double weight = k->planned * prior_weight, spent = k->spent > 0 ? k->spent : 0;
    return k->done + weight > 0 ? (spent + scale * k->prior * weight) / (k->done + weight) : 0;
}

double exf_eta_rate(const exf_eta *e, int kind)
{
    return rate_of(&e->kind[kind], scale_of(e));
}

static double spent_of(const exf_eta *e)
{
    double spent = 0;
    for (int k = 0; k < EXF_ETA_KINDS; k++) spent += e->kind[k].spent;
    return spent;
}

double exf_eta_left(const exf_eta *e, double clock)
{
    double scale = scale_of(e), left = 0;
    if (scale <= 0) return -1;
    for (int k = 0; k < EXF_ETA_KINDS; k++) {
        double units = e->kind[k].planned - e->kind[k].done;
        if (units > 0) left += units * rate_of(&e->kind[k], scale);
    }
    left -= clock - e->since; /* a part of it has begun */
    return left > 0 ? left : 0;
}

double exf_eta_whole(const exf_eta *e)
{
    double scale = scale_of(e), whole = 0;
    for (int k = 0; k < EXF_ETA_KINDS; k++) {
        const exf_eta_kind *kind = &e->kind[k];
        whole += kind->planned * (kind->done > 0 ? kind->spent / kind->done : scale * kind->prior);
    }
    return scale > 0 ? whole : -1;
}

double exf_eta_share(const exf_eta *e, double clock)
{
    double left = exf_eta_left(e, clock), spent = spent_of(e) + (clock - e->since);
    return left < 0 ? 0 : spent + left > 0 ? spent / (spent + left) : 1;
}
