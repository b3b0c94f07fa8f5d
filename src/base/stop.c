/* stop.c - see stop.h. */
#include "base/stop.h"

#include <signal.h>
#include <stdatomic.h>

static atomic_int asked_for; /* lock-free, so that a signal handler may set it while threads read it */

void exf_stop_request(int signal_number)
{
    asked_for = signal_number;
}

exf_code exf_stop_check(exf_err *err)
{
    int signal_number = asked_for;
    if (signal_number == 0) return EXF_OK;
    return exf_fail(err, signal_number == SIGTERM ? EXF_SIGTERM : EXF_SIGINT, "stopped by signal %d; no output was written",
                    signal_number);
}
