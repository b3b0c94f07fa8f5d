/* solve_command.h - tells which exfold-solve command adds to tables what variants ask for. */
#ifndef EXF_RUN_SOLVE_COMMAND_H
#define EXF_RUN_SOLVE_COMMAND_H
#include "artifact/tables.h"
#include "fold/variant.h"

/* EXF_USAGE if a variant asks for a static pool or a shared scalar that the tables at path lack:
 * names the first such variant and, where the statistics of the tables lie beside them, the
 * command that solves all that is missing with the other settings as they were. */
exf_code exf_solve_command_check(const exf_tables *t, const char *path, const exf_variant *variants, size_t n, exf_err *err)
    EXF_CHECKED;
#endif
