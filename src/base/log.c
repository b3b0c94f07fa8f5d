/* log.c - see log.h. */
#include "base/log.h"

#include "base/text.h"
#include "gen/version.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 2048 };

static struct {
    const char *program;
    exf_log_level level;
    exf_progress_mode progress;
    int colour;
    double started; /* exf_clock() at the first setup */
} settings = {"exfold", EXF_LOG_INFO, EXF_PROGRESS_LINES, 0, 0};

int exf_log_verbose(void)
{
    return settings.level == EXF_LOG_DEBUG;
}

void exf_log_setup(const char *program, exf_log_level level, exf_progress_mode progress)
{
    int terminal = isatty(STDERR_FILENO);
    const char *no_color = getenv("NO_COLOR");
    exf_log_lock();
    if (settings.started <= 0) settings.started = exf_clock();
    settings.program = program;
    settings.level = level;
    settings.progress = progress != EXF_PROGRESS_AUTO || terminal ? progress : EXF_PROGRESS_LINES;
    settings.colour = terminal && !(no_color && *no_color);
    exf_log_unlock();
}

/* ---- settings --------------------------------------------------------------------------- */

const char *exf_log_program(void) { return settings.program; }
double exf_log_elapsed(void) { return exf_clock() - settings.started; }

exf_progress_mode exf_log_progress(void)
{
    return settings.level >= EXF_LOG_INFO ? settings.progress : EXF_PROGRESS_NONE;
}

/* ---- messages --------------------------------------------------------------------------- */

/* Writes a message as a line, or as an object; text may hold names from foreign files, of which characters are replaced.
 * code: of an error, else 0. */
static void say(const char *level, const char *tone, int code, char text[MESSAGE_BYTES])
{
    char line[3 * MESSAGE_BYTES], quoted[2 * MESSAGE_BYTES], front[48] = "";
    size_t n = 0;
    exf_make_printable(text);
    exf_log_lock();
    if (settings.progress == EXF_PROGRESS_JSON) {
        for (const char *s = text; *s; s++) {
            if (*s == '"' || *s == '\\') quoted[n++] = '\\';
            quoted[n++] = *s;
        }
        quoted[exf_utf8_valid(quoted, n)] = 0; /* the last character may be cut */
        if (code) snprintf(front, sizeof front, "\"code\":%d,", code);
        snprintf(line, sizeof line, "{\"event\":\"message\",\"level\":\"%s\",%s\"text\":\"%s\"}", level, front, quoted);
    } else {
        if (strcmp(level, "info") != 0)
            snprintf(front, sizeof front, "%s%s%s: ", settings.colour ? tone : "", level, settings.colour ? "\033[0m" : "");
        snprintf(line, sizeof line, "%s: %s%s", settings.program, front, text);
    }
    exf_log_line(line);
    exf_log_unlock();
}

#define SAY(at_least, name, tone)                   \
    do {                                            \
        char text[MESSAGE_BYTES];                   \
        va_list va;                                 \
        if (settings.level < (at_least)) return;    \
        va_start(va, fmt);                          \
        vsnprintf(text, sizeof text, fmt, va);      \
        va_end(va);                                 \
        say(name, tone, 0, text);                   \
    } while (0)

void exf_log_warn(const char *fmt, ...) { SAY(EXF_LOG_WARN, "warning", "\033[33m"); }
void exf_log_info(const char *fmt, ...) { SAY(EXF_LOG_INFO, "info", ""); }
void exf_log_debug(const char *fmt, ...) { SAY(EXF_LOG_DEBUG, "debug", "\033[2m"); }

void exf_log_event(const char *fmt, ...)
{
    char text[MESSAGE_BYTES];
    va_list va;
    va_start(va, fmt);
    vsnprintf(text, sizeof text, fmt, va);
    va_end(va);
    exf_log_lock();
    exf_log_line(text);
    exf_log_unlock();
}

void exf_log_error(const exf_err *err)
{
    char text[MESSAGE_BYTES];
    snprintf(text, sizeof text, "%s", err->msg[0] ? err->msg : exf_code_text(err->code));
    say("error", "\033[31m", (int)err->code, text);
}

void exf_log_error_and_exit(const exf_err *err)
{
    exf_log_error(err);
    _exit((int)err->code);
}

/* ---- the machine ------------------------------------------------------------------------ */

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

/* ---- the build --------------------------------------------------------------------------------- */

const char *exf_release(void)
{
    return EXF_RELEASE;
}

const char *exf_commit(void)
{
    return EXF_COMMIT;
}

int exf_built_with_cuda(void)
{
    return EXF_HAVE_CUDA;
}

/* ---- lines ------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int bar_open;

void exf_log_lock(void) { pthread_mutex_lock(&lock); }
void exf_log_unlock(void) { pthread_mutex_unlock(&lock); }

void exf_log_close_bar(void)
{
    if (bar_open) fputc('\n', stderr);
    bar_open = 0;
}

void exf_log_line(const char *text)
{
    exf_log_close_bar();
    fprintf(stderr, "%s\n", text);
}

void exf_log_bar(const char *text)
{
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    bar_open = 1;
}

int exf_log_columns(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    long n;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    n = columns ? strtol(columns, NULL, 10) : 0;
    return n > 0 && n < 10000 ? (int)n : 80;
}
