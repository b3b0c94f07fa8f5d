/* ranks_started.c - reads from the environment how many ranks mpirun or srun started (ranks.h). */
#include "ranks/ranks.h"

#include <stdlib.h>

static int number(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long n = text ? strtol(text, &end, 10) : 0;
    return text && end != text && *end == 0 && n > 0 && n < 1 << 24 ? (int)n : 0;
}

/* A batch script under Slurm is one process, though SLURM_NTASKS counts the job's: only srun sets SLURM_STEP_NUM_TASKS. */
int exf_ranks_started(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (number(names[i])) return number(names[i]);
    return getenv("SLURM_PROCID") ? number("SLURM_STEP_NUM_TASKS") : 0;
}
