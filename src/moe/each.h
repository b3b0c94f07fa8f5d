/* each.h - independent pieces of work on the pass's workers. */
#ifndef EXF_MOE_EACH_H
#define EXF_MOE_EACH_H
#include "base/err.h"

#include <stddef.h>

/* Does piece i as worker `worker`, in [0, n_workers). */
typedef exf_code (*exf_each_fn)(void *self, size_t i, int worker, exf_err *err);

/* Runs fn for i in [0, n), each i on one worker.  Of several failures the one of
 * the lowest i is reported, so that messages do not depend on which worker was
 * faster; a stop that was asked for ends it between two pieces. */
exf_code exf_each(size_t n, int n_workers, exf_each_fn fn, void *self, exf_err *err) EXF_CHECKED;
#endif
