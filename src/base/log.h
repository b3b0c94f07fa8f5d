/* log.h - functions that write messages to stderr, where only they and progress.h write; what this build is, the clock
 * and memory of the process.
 *
 * With --progress=json every line is a JSON object, messages too:
 *   {"event":"message","level":"warning","text":"..."}     level: error, warning, info or debug
 * An error also has "code", the exit status.
 *
 * Results belong on stdout and are printed by src/recipe, plan, run and cli alone.  Libraries do not
 * log failures (they return them); they may log facts a user should know.
 * Colour only on a terminal and never when NO_COLOR is set.  Thread-safe. */
#ifndef EXF_BASE_LOG_H
#define EXF_BASE_LOG_H
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { EXF_LOG_QUIET, EXF_LOG_WARN, EXF_LOG_INFO, EXF_LOG_DEBUG } exf_log_level;
typedef enum {
    EXF_PROGRESS_AUTO,  /* a bar on a terminal, lines elsewhere */
    EXF_PROGRESS_LINES, /* one line per layer, and one every ten seconds */
    EXF_PROGRESS_JSON,  /* JSON Lines: {"event":"layer",...} */
    EXF_PROGRESS_NONE
} exf_progress_mode;

void exf_log_setup(const char *program, exf_log_level level, exf_progress_mode progress);
void exf_log_warn(const char *fmt, ...) EXF_PRINTF(1, 2);
void exf_log_info(const char *fmt, ...) EXF_PRINTF(1, 2);
int exf_log_verbose(void); /* 1: debug lines are shown, as --verbose asks */
void exf_log_debug(const char *fmt, ...) EXF_PRINTF(1, 2);
/* Writes one line unchanged, whatever the level: a JSON object of --progress=json. */
void exf_log_event(const char *fmt, ...) EXF_PRINTF(1, 2);
/* Writes "exfold-x: error: sentence", whatever the level; main calls it last. */
void exf_log_error(const exf_err *err);
/* Logs the error and ends the process with its code at once: for a failure at which a library would end the process itself. */
__attribute__((noreturn)) void exf_log_error_and_exit(const exf_err *err);

/* Return what was set up: the program's name, seconds since the first setup, and how progress is told (NONE if the
 * program is quiet). */
const char *exf_log_program(void);
double exf_log_elapsed(void);
exf_progress_mode exf_log_progress(void);

/* Seconds of a monotonic clock. */
double exf_clock(void);
/* Largest resident set so far, bytes; 0 if the system does not say. */
uint64_t exf_peak_rss(void);

const char *exf_release(void); /* "0.1.1" */
const char *exf_commit(void);  /* first 12 digits of the source's commit, "unknown" outside git */
int exf_built_with_cuda(void);

/* The lines of messages and of progress; callers of every function but the first hold the lock. */

void exf_log_lock(void);
void exf_log_unlock(void);
/* Writes a whole line, after the end of the bar. */
void exf_log_line(const char *text);
/* Draws the bar anew. */
void exf_log_bar(const char *text);
/* Ends the bar's line, if one is drawn. */
void exf_log_close_bar(void);
/* Returns the columns of the terminal on stderr: as it says, or as COLUMNS says, or 80. */
int exf_log_columns(void);
#endif
