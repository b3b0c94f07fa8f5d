/* crew.c - see crew.h. */
#include "base/crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MOST = 8 };

typedef struct {
    exf_crew_fn fn;
    void *self;
    size_t n;
    atomic_size_t next;
} crew;

static void *work(void *arg)
{
    crew *c = arg;
    for (size_t i; (i = atomic_fetch_add(&c->next, 1)) < c->n;) c->fn(c->self, i);
    return NULL;
}

void exf_crew_run(size_t n, exf_crew_fn fn, void *self)
{
    crew c = {.fn = fn, .self = self, .n = n};
    pthread_t thread[MOST];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t most = cores < 1 ? 1 : cores > MOST ? MOST : (size_t)cores, wanted = n < most ? n : most, started = 0;
    atomic_init(&c.next, 0);
    while (started + 1 < wanted && pthread_create(&thread[started], NULL, work, &c) == 0) started++;
    work(&c);
    while (started > 0) pthread_join(thread[--started], NULL);
}
