/* exfold - lists the programs and runs one: `exfold calibrate ...` is exfold-calibrate. */
#include "cli/program.h"

const exf_program exf_program_exfold = {
    .name = "exfold",
    .arguments = "PROGRAM ARGUMENT ... | help PROGRAM",
    .group = "",
    .brief = "lists the programs of ExFold and runs one of them",
    .about = "Folding tables for mixture-of-experts models.  Runs the program exfold-PROGRAM\n"
             "that lies beside it, or else on PATH, with the arguments.",
    .examples = "exfold calibrate recipes/demo.yaml --output out/demo\n"
                "exfold inspect out/demo/tables.h5",
    .runs_others = 1,
};
