/* stop.c - see stop.h. */
#include "base/stop.h"

#include <signal.h>
#include <stdatomic.h>

static atomic_int requested; /* lock-free, so that a signal handler may set it while threads read it */
static atomic_int requests, deferred;

void exf_stop_request(int signal_number)
{
    requested = signal_number;
    requests++;
}

int exf_stop_requested(void)
{
    return requested;
}

void exf_stop_defer(int on)
{
    deferred = on;
}

exf_code exf_stop_check(exf_err *err)
{
    int signal_number = requested;
    if (signal_number == 0 || (deferred && requests < 2)) return EXF_OK;
    return exf_fail(err, signal_number == SIGINT ? EXF_SIGINT : EXF_SIGTERM, "stopped by signal %d; no output was written",
                    signal_number);
}
