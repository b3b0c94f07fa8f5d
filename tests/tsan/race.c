/* race.c - shows what the thread sanitizer sees of a parallel loop: nothing where each item has a place of its own,
 * a race where all add to one number.
 * usage: race [racy] */
#include "base/parallel.h"

#include <stdio.h>

enum { ITEMS = 100000 };

static int own[ITEMS], shared;

int main(int argc, char **argv)
{
    exf_loop loop = EXF_LOOP;
    long sum = 0;
    (void)argv;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(ITEMS, 4))
    for (size_t i = 0; i < ITEMS; i++) {
        if (!exf_loop_takes(&loop, i)) continue;
        own[i] = (int)i;
        if (argc > 1) shared++;
    }
    for (size_t i = 0; i < ITEMS; i++) sum += own[i];
    printf("%ld %d\n", sum, shared);
    return loop.failed != SIZE_MAX;
}
