/* main.c - the main function of every program: the build compiles it once for each
 * src/cli/exfold*.c, with EXF_PROGRAM naming the exf_program that is defined there. */
#include "cli/program.h"

#include "kernels/linear/linear.h"

extern const exf_program EXF_PROGRAM;

/* OpenBLAS calls a function of this name for OMP_NUM_THREADS while it is loaded, before main, and then maps a buffer.  Where a
 * limit forbids that, it would try again for ever.  The program's own definition is called in place of the library's. */
int openblas_omp_num_threads_env(void);
int openblas_omp_num_threads_env(void)
{
    exf_err err = {.code = EXF_OK, .msg = ""};
    if (exf_blas_check_load_cpu(&err) != EXF_OK) exf_program_end_early(&EXF_PROGRAM, &err);
    return 1;
}

int main(int argc, char **argv)
{
    return exf_program_main(&EXF_PROGRAM, argc, argv);
}
