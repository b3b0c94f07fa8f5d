/* log.h - functions that write messages and progress to stderr; nothing else writes there.
 *
 * Results belong on stdout and are printed by src/tool alone.  Libraries do not
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
    EXF_PROGRESS_LINES, /* one line per layer */
    EXF_PROGRESS_JSON,  /* JSON Lines: {"event":"layer",...} */
    EXF_PROGRESS_NONE
} exf_progress_mode;

void exf_log_setup(const char *program, exf_log_level level, exf_progress_mode progress);
void exf_log_warn(const char *fmt, ...) EXF_PRINTF(1, 2);
void exf_log_info(const char *fmt, ...) EXF_PRINTF(1, 2);
void exf_log_debug(const char *fmt, ...) EXF_PRINTF(1, 2);
/* Writes one line unchanged, whatever the level: the JSON of --progress=json. */
void exf_log_event(const char *fmt, ...) EXF_PRINTF(1, 2);
/* Writes "exfold-x: error: sentence", whatever the level; main calls it last. */
void exf_log_error(const exf_err *err);

/* ---- progress: layers done out of a known total ---------------------- */
typedef struct {
    int layer, n_layers;    /* model's layer number just finished; how many there are */
    uint64_t tokens;        /* tokens that went through this layer */
    uint64_t weight_bytes;  /* bytes read for this layer */
    double seconds;         /* for this layer, reading included */
    int cold, n_experts;    /* experts never routed; n_experts 0: not an MoE layer */
    int done;               /* layers finished so far */
} exf_progress;

void exf_progress_layer(const exf_progress *p);
/* Ends a bar, if one is drawn. */
void exf_progress_end(void);

/* Seconds of a monotonic clock. */
double exf_clock(void);
/* Largest resident set so far, bytes; 0 if the system does not say. */
uint64_t exf_peak_rss(void);
#endif
