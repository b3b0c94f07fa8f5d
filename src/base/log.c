/* log.c - see log.h. */
#include "base/log.h"

#include "base/text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *program_name = "exfold";
static exf_log_level level_now = EXF_LOG_INFO;
static exf_progress_mode progress_now = EXF_PROGRESS_LINES;
static int colour, bar_open;
static double started;

void exf_log_setup(const char *program, exf_log_level level, exf_progress_mode progress)
{
    int terminal = isatty(STDERR_FILENO);
    const char *no_color = getenv("NO_COLOR");
    pthread_mutex_lock(&lock);
    program_name = program;
    level_now = level;
    colour = terminal && !(no_color && *no_color);
    progress_now = progress != EXF_PROGRESS_AUTO ? progress : terminal ? EXF_PROGRESS_AUTO : EXF_PROGRESS_LINES;
    started = exf_clock();
    pthread_mutex_unlock(&lock);
}

static void close_bar(void)
{
    if (bar_open) fputc('\n', stderr);
    bar_open = 0;
}

/* Names from foreign files may stand in a message: what a terminal or a reader of
 * logs would obey does not pass. */
static void say(const char *tone, const char *label, const char *fmt, va_list va)
{
    char text[2048];
    pthread_mutex_lock(&lock);
    close_bar();
    fprintf(stderr, "%s: ", program_name);
    if (*label) fprintf(stderr, "%s%s%s: ", colour ? tone : "", label, colour ? "\033[0m" : "");
    vsnprintf(text, sizeof text, fmt, va);
    for (char *c = text; *c; c++) fputc((unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c, stderr);
    fputc('\n', stderr);
    pthread_mutex_unlock(&lock);
}

#define SAY(at_least, tone, label)           \
    do {                                     \
        if (level_now < (at_least)) return;  \
        va_list va;                          \
        va_start(va, fmt);                   \
        say(tone, label, fmt, va);           \
        va_end(va);                          \
    } while (0)

void exf_log_warn(const char *fmt, ...) { SAY(EXF_LOG_WARN, "\033[33m", "warning"); }
void exf_log_info(const char *fmt, ...) { SAY(EXF_LOG_INFO, "", ""); }
void exf_log_debug(const char *fmt, ...) { SAY(EXF_LOG_DEBUG, "\033[2m", "debug"); }

void exf_log_event(const char *fmt, ...)
{
    va_list va;
    va_start(va, fmt);
    pthread_mutex_lock(&lock);
    close_bar();
    vfprintf(stderr, fmt, va);
    fputc('\n', stderr);
    pthread_mutex_unlock(&lock);
    va_end(va);
}

static void say_error(const char *fmt, ...)
{
    va_list va;
    va_start(va, fmt);
    say("\033[31m", "error", fmt, va);
    va_end(va);
}

void exf_log_error(const exf_err *err)
{
    say_error("%s", err->msg[0] ? err->msg : exf_code_text(err->code));
}

double exf_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t exf_peak_rss(void)
{
    struct rusage r;
    return getrusage(RUSAGE_SELF, &r) == 0 ? (uint64_t)r.ru_maxrss * 1024 : 0;
}

static void progress_json(const exf_progress *p, double eta)
{
    fprintf(stderr,
            "{\"event\":\"layer\",\"layer\":%d,\"done\":%d,\"layers\":%d,\"tokens\":%" PRIu64 ",\"seconds\":%.3f,"
            "\"weight_bytes\":%" PRIu64 ",\"rss_bytes\":%" PRIu64 ",\"cold_experts\":%d,\"experts\":%d,\"eta_seconds\":%.1f}\n",
            p->layer, p->done, p->n_layers, p->tokens, p->seconds, p->weight_bytes, exf_peak_rss(), p->cold, p->n_experts, eta);
}

static void progress_text(const exf_progress *p, double eta, int bar)
{
    char read[16], rss[16], left[16], cold[40] = "";
    double rate = p->seconds > 0 ? (double)p->tokens / p->seconds : 0;
    if (p->n_experts) snprintf(cold, sizeof cold, " cold %d/%d", p->cold, p->n_experts);
    if (bar) {
        enum { WIDTH = 24 };
        int full = p->n_layers ? WIDTH * p->done / p->n_layers : WIDTH;
        fprintf(stderr, "\r\033[K[%.*s%.*s] ", full, "########################", WIDTH - full, "........................");
    } else {
        fprintf(stderr, "%s: ", program_name);
    }
    fprintf(stderr, "layer %d/%d tok %" PRIu64 " %.1fk tok/s read %s rss %s%s ETA %s", p->done, p->n_layers, p->tokens, rate / 1000,
            exf_human_bytes(read, sizeof read, (double)p->weight_bytes), exf_human_bytes(rss, sizeof rss, (double)exf_peak_rss()),
            cold, exf_human_seconds(left, sizeof left, eta));
    if (!bar) fputc('\n', stderr);
    fflush(stderr);
    bar_open = bar;
}

void exf_progress_layer(const exf_progress *p)
{
    if (progress_now == EXF_PROGRESS_NONE || level_now < EXF_LOG_INFO) return;
    pthread_mutex_lock(&lock);
    double eta = p->done ? (exf_clock() - started) / p->done * (p->n_layers - p->done) : 0;
    if (progress_now == EXF_PROGRESS_JSON)
        progress_json(p, eta);
    else
        progress_text(p, eta, progress_now == EXF_PROGRESS_AUTO);
    pthread_mutex_unlock(&lock);
}

void exf_progress_end(void)
{
    pthread_mutex_lock(&lock);
    close_bar();
    pthread_mutex_unlock(&lock);
}
