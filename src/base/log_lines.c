/* log_lines.c - see log_lines.h. */
#include "base/log_lines.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

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
