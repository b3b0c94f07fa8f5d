/* progress.c - see progress.h. */
#include "base/progress.h"

#include "base/text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- how long it still takes ------------------------------------------------------------------- */

/* The part of a kind's units as which its prior counts beside what was measured. */
static const double prior_weight = 0.01;

void exf_eta_start(exf_eta *e, int kind, double clock)
{
    e->now = kind;
    e->since = clock;
}

void exf_eta_resume(exf_eta *e, double before, double clock)
{
    for (int k = 0; k < EXF_ETA_KINDS; k++) e->kind[k].done = e->kind[k].spent = 0;
    e->before = before;
    e->since = clock;
}

double exf_eta_expected(const exf_eta *e)
{
    double all = 0;
    for (int k = 0; k < EXF_ETA_KINDS; k++) all += e->kind[k].planned * e->kind[k].prior;
    return all;
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

/* The same as exf_eta_left(), without the work that follows. */
static double left_of_this(const exf_eta *e, double clock)
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

double exf_eta_left(const exf_eta *e, double clock)
{
    double scale = scale_of(e), left = left_of_this(e, clock);
    for (int k = 0; left >= 0 && k < EXF_ETA_KINDS; k++) left += e->kind[k].after * rate_of(&e->kind[k], scale);
    return left;
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

/* Returns the seconds since the start, or since the run went on. */
static double spent_until(const exf_eta *e, double clock)
{
    double spent = clock - e->since;
    for (int k = 0; k < EXF_ETA_KINDS; k++) spent += e->kind[k].spent;
    return spent;
}

double exf_eta_rate(const exf_eta *e, double units, double clock)
{
    double left = left_of_this(e, clock), all = spent_until(e, clock) + left;
    return left >= 0 && all > 0 ? units * (1 - e->before) / all : 0;
}

double exf_eta_share(const exf_eta *e, double clock)
{
    double left = exf_eta_left(e, clock), spent = spent_until(e, clock);
    double share = left < 0 ? 0 : spent + left > 0 ? spent / (spent + left) : 1;
    return e->before + (1 - e->before) * share;
}

/* ---- the work under way ------------------------------------------------------------------------ */

enum { LINE_BYTES = 512, LEAST_BAR = 10, MOST_BAR = 40 };

/* The work under way; the log's lock guards it. */
static struct {
    const char *what; /* NULL: none */
    exf_eta *eta;
    exf_progress last; /* the layer that was finished last; done 0: none */
    int n_layers;
    double drawn;      /* when it was last told */
    void (*poll)(void *self);
    void *poll_self;
    pthread_t ticker;
    int ticking, stop;
} work;
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t ticks = PTHREAD_MUTEX_INITIALIZER; /* guards work.stop */

/* ---- lines ------------------------------------------------------------------------------- */

/* Appends a part if the line then has at most `room` columns, else leaves it out. */
static void append_if_fits(char *line, size_t room, const char *part)
{
    size_t n = strlen(line), more = strlen(part);
    if (n + more <= room) memcpy(line + n, part, more + 1);
}

/* "layer 3/48 7 %" or "tokenizing 7 %". */
static void describe(char *out, size_t size, int within)
{
    int share = (int)(100 * exf_eta_share(work.eta, exf_clock()));
    if (work.n_layers)
        snprintf(out, size, "%s %d/%d", work.what, within && work.last.done < work.n_layers ? work.last.done + 1 : work.last.done,
                 work.n_layers);
    else
        snprintf(out, size, "%s", work.what);
    if (within) snprintf(out + strlen(out), size - strlen(out), " %d %%", share);
}

static void describe_eta(char *out, size_t size)
{
    char left[16];
    double eta = exf_eta_left(work.eta, exf_clock());
    snprintf(out, size, " ETA %s", eta < 0 ? "--:--:--" : exf_human_seconds(left, sizeof left, eta));
}

/* Appends the last layer's numbers, as many as fit, the most telling ones first. */
static void append_numbers(char *line, size_t room)
{
    char part[64], bytes[16];
    const exf_progress *p = &work.last;
    if (p->tokens) {
        double rate = exf_eta_rate(work.eta, (double)p->tokens, exf_clock());
        snprintf(part, sizeof part, rate < 1000 ? " tok %" PRIu64 " %.0f tok/s" : " tok %" PRIu64 " %.1fk tok/s", p->tokens,
                 rate < 1000 ? rate : rate / 1000);
        append_if_fits(line, room, part);
        snprintf(part, sizeof part, " read %s", exf_human_bytes(bytes, sizeof bytes, (double)p->weight_bytes));
        append_if_fits(line, room, part);
    }
    snprintf(part, sizeof part, " rss %s", exf_human_bytes(bytes, sizeof bytes, (double)exf_peak_rss()));
    append_if_fits(line, room, part);
    if (p->done && p->n_experts) {
        snprintf(part, sizeof part, " cold %d/%d", p->cold, p->n_experts);
        append_if_fits(line, room, part);
    }
    if (p->done && p->straggler[0]) {
        append_if_fits(line, room, " straggler: ");
        append_if_fits(line, room, p->straggler);
    }
}

/* The bar takes a third of the terminal, but leaves its numbers the room they need; the last column stays
 * free, since some terminals go on to the next line after it. */
static void draw_bar(void)
{
    char line[LINE_BYTES] = "", text[64], eta[32];
    int columns = exf_log_columns() - 1, width = columns / 3 - 3;
    size_t room = columns < LINE_BYTES ? (size_t)(columns > 0 ? columns : 0) : LINE_BYTES - 1;
    describe(text, sizeof text, 1);
    describe_eta(eta, sizeof eta);
    if (width > MOST_BAR) width = MOST_BAR;
    if (width >= LEAST_BAR && strlen(text) + strlen(eta) + (size_t)width + 3 <= room) {
        int full = (int)(width * exf_eta_share(work.eta, exf_clock()));
        line[0] = '[';
        memset(line + 1, '#', (size_t)full);
        memset(line + 1 + full, '.', (size_t)(width - full));
        memcpy(line + 1 + width, "] ", 3);
    }
    append_if_fits(line, room, text);
    append_if_fits(line, room, eta);
    append_numbers(line, room);
    exf_log_bar(line);
}

static void write_line(int within)
{
    char line[LINE_BYTES] = "", text[64];
    describe(text, sizeof text, within);
    snprintf(line, sizeof line, "%s: %s", exf_log_program(), text);
    append_numbers(line, sizeof line - 1);
    describe_eta(text, sizeof text);
    append_if_fits(line, sizeof line - 1, text);
    exf_log_line(line);
}

/* ---- JSON -------------------------------------------------------------------------------- */

/* Writes the members that every event has. */
static void describe_times(char *out, size_t size)
{
    double now = exf_clock(), left = exf_eta_left(work.eta, now);
    char eta[32] = "null";
    if (left >= 0) snprintf(eta, sizeof eta, "%.3f", left);
    snprintf(out, size, "\"share\":%.4f,\"elapsed_seconds\":%.3f,\"eta_seconds\":%s}", exf_eta_share(work.eta, now),
             exf_log_elapsed(), eta);
}

static void write_event(void)
{
    char line[LINE_BYTES], times[160];
    describe_times(times, sizeof times);
    snprintf(line, sizeof line, "{\"event\":\"progress\",\"what\":\"%s\",\"layer\":%d,\"layers\":%d,%s", work.what,
             work.n_layers && work.last.done < work.n_layers ? work.last.done + 1 : work.last.done, work.n_layers, times);
    exf_log_line(line);
}

static void write_layer_event(void)
{
    char line[LINE_BYTES], times[160], straggler[160] = "";
    const exf_progress *p = &work.last;
    describe_times(times, sizeof times);
    if (p->straggler[0]) snprintf(straggler, sizeof straggler, "\"straggler\":\"%s\",", p->straggler);
    snprintf(line, sizeof line,
             "{\"event\":\"layer\",\"layer\":%d,\"done\":%d,\"layers\":%d,\"tokens\":%" PRIu64 ",\"seconds\":%.3f,"
             "\"weight_bytes\":%" PRIu64 ",\"rss_bytes\":%" PRIu64 ",\"cold_experts\":%d,\"experts\":%d,%s%s",
             p->layer, p->done, p->n_layers, p->tokens, p->seconds, p->weight_bytes, exf_peak_rss(), p->cold, p->n_experts,
             straggler, times);
    exf_log_line(line);
}

/* ---- the ticker -------------------------------------------------------------------------- */

/* Polls, and shows how far the work is, if enough time has passed since it was last shown. */
static void tick(void)
{
    static const double every[] = {[EXF_PROGRESS_AUTO] = 0.4, [EXF_PROGRESS_LINES] = 10, [EXF_PROGRESS_JSON] = 0.9};
    exf_log_lock();
    void (*poll)(void *) = work.poll, *self = work.poll_self;
    exf_log_unlock();
    if (poll) poll(self);
    exf_log_lock();
    exf_progress_mode mode = exf_log_progress();
    double clock = exf_clock();
    if (clock - work.drawn >= every[mode]) {
        work.drawn = clock;
        if (mode == EXF_PROGRESS_AUTO) draw_bar();
        if (mode == EXF_PROGRESS_LINES) write_line(1);
        if (mode == EXF_PROGRESS_JSON) write_event();
    }
    exf_log_unlock();
}

/* Waits half a second, or until the work ends; returns 1 for the latter. */
static int wait_tick(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 500000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&ticks);
    if (!work.stop) pthread_cond_timedwait(&stopped, &ticks, &until);
    int stop = work.stop;
    pthread_mutex_unlock(&ticks);
    return stop;
}

static void *run_ticker(void *unused)
{
    while (!wait_tick()) tick();
    return unused;
}

/* ---- the work ------------------------------------------------------------------------------ */

void exf_progress_begin(const char *what, int n_layers, exf_eta *eta, int kind)
{
    exf_log_lock();
    work.what = what;
    work.eta = eta;
    work.n_layers = n_layers;
    work.last = (exf_progress){.n_layers = n_layers};
    work.drawn = exf_clock();
    work.poll = NULL;
    work.stop = 0;
    exf_eta_start(eta, kind, exf_clock());
    int shown = what[0] && exf_log_progress() != EXF_PROGRESS_NONE;
    exf_log_unlock();
    work.ticking = shown && pthread_create(&work.ticker, NULL, run_ticker, NULL) == 0;
}

void exf_progress_resume(int done, double before)
{
    exf_log_lock();
    if (work.what) {
        exf_eta_resume(work.eta, before, exf_clock());
        work.last.done = done;
    }
    exf_log_unlock();
}

void exf_progress_turn(int kind)
{
    exf_log_lock();
    if (work.what) exf_eta_turn(work.eta, kind, exf_clock());
    exf_log_unlock();
}

void exf_progress_add(double units)
{
    exf_log_lock();
    if (work.what) exf_eta_add(work.eta, units, exf_clock());
    exf_log_unlock();
}

void exf_progress_credit(int kind, double units, double seconds)
{
    exf_log_lock();
    if (work.what) exf_eta_credit(work.eta, kind, units, seconds, exf_clock());
    exf_log_unlock();
}

void exf_progress_poll(void (*poll)(void *self), void *self)
{
    exf_log_lock();
    work.poll = poll;
    work.poll_self = self;
    exf_log_unlock();
}

void exf_progress_layer(const exf_progress *p)
{
    exf_log_lock();
    work.last = *p;
    work.drawn = exf_clock();
    exf_progress_mode mode = exf_log_progress();
    if (work.what && work.what[0]) {
        if (mode == EXF_PROGRESS_AUTO) draw_bar();
        if (mode == EXF_PROGRESS_LINES) write_line(0);
        if (mode == EXF_PROGRESS_JSON) write_layer_event();
    }
    exf_log_unlock();
}

void exf_progress_end(void)
{
    if (work.ticking) {
        pthread_mutex_lock(&ticks);
        work.stop = 1;
        pthread_cond_signal(&stopped);
        pthread_mutex_unlock(&ticks);
        pthread_join(work.ticker, NULL);
    }
    work.ticking = 0;
    exf_log_lock();
    if (work.what) exf_eta_turn(work.eta, work.eta->now, exf_clock());
    work.what = NULL;
    exf_log_close_bar();
    exf_log_unlock();
}
