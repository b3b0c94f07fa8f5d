/* stop.c - see stop.h. */
#include "base/stop.h"

#include <signal.h>

static volatile sig_atomic_t asked_for;

void exf_stop_request(int signal_number)
{
    asked_for = signal_number;
}

exf_code exf_stop_check(exf_err *err)
{
    if (asked_for == 0) return EXF_OK;
    return exf_fail(err, asked_for == SIGTERM ? EXF_SIGTERM : EXF_SIGINT, "stopped by signal %d; no output was written", (int)asked_for);
}
