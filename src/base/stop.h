/* stop.h - a flag that signal handlers set and long loops check.  src/tool installs
 * the handlers; the forward pass checks between units of work, so that an interrupted
 * run cleans up like any other failed one. */
#ifndef EXF_BASE_STOP_H
#define EXF_BASE_STOP_H
#include "base/err.h"

/* Async-signal-safe. */
void exf_stop_request(int signal_number);
/* EXF_OK, or EXF_SIGINT / EXF_SIGTERM once a stop was requested. */
exf_code exf_stop_check(exf_err *err) EXF_CHECKED;
#endif
