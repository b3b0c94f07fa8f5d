/* stop.h - a flag that signal handlers set and long loops check.  src/cli installs
 * the handlers; the forward pass checks between units of work, so that an interrupted
 * run cleans up like any other failed one. */
#ifndef EXF_BASE_STOP_H
#define EXF_BASE_STOP_H
#include "base/err.h"

/* Async-signal-safe. */
void exf_stop_request(int signal_number);
/* EXF_OK, or EXF_SIGINT / EXF_SIGTERM once a stop was requested.  While stops are deferred, only the
 * second request counts. */
exf_code exf_stop_check(exf_err *err) EXF_CHECKED;
/* Defers stops, or no longer: the caller asks exf_stop_requested() where its work can be saved. */
void exf_stop_defer(int on);
/* Returns the number of the last signal that requested a stop; 0: none did. */
int exf_stop_requested(void);
#endif
