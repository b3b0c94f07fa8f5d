/* main.c - the main function of every program: the build compiles it once for each
 * src/tool/exfold*.c, with EXF_PROGRAM naming the exf_program that is defined there. */
#include "tool/program.h"

extern const exf_program EXF_PROGRAM;

int main(int argc, char **argv)
{
    return exf_program_main(&EXF_PROGRAM, argc, argv);
}
