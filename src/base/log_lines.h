/* log_lines.h - writes the lines of messages and of progress to stderr; nothing else writes there.
 * Callers of every function but the first hold the lock. */
#ifndef EXF_BASE_LOG_LINES_H
#define EXF_BASE_LOG_LINES_H

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
