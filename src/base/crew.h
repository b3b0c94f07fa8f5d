/* crew.h - independent pieces of work on a few plain threads that live for one call.
 *
 * For work beside something that has its own threads: nobody spins while waiting, as
 * OpenMP's teams do, and a call from any thread is fine. */
#ifndef EXF_BASE_CREW_H
#define EXF_BASE_CREW_H
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*exf_crew_fn)(void *self, size_t i);

/* fn(self, i) for i in [0, n), each once, on at most 8 threads, the caller's among them;
 * on fewer where threads are not to be had. */
void exf_crew_run(size_t n, exf_crew_fn fn, void *self);
#ifdef __cplusplus
}
#endif
#endif
