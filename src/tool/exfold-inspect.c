/* exfold-inspect - shows what a file is and holds. */
#include "tool/inspect.h"
#include "tool/program.h"

#include <string.h>

static exf_code run(exf_recipe *r, exf_err *err)
{
    if (r->n_inputs == 1) return exf_inspect_file(r->inputs[0], err);
    if (strcmp(r->inputs[0], "digest") == 0) return exf_inspect_digest(r->inputs[1], err);
    if (strcmp(r->inputs[0], "tokenize") == 0) return exf_inspect_tokenize(r->inputs[1], err);
    return exf_fail(err, EXF_USAGE, "\"%s\" is no command; known: digest, tokenize", r->inputs[0]);
}

int main(int argc, char **argv)
{
    static const exf_program program = {
        .name = "exfold-inspect",
        .arguments = "FILE.h5 | digest FILE.h5 | tokenize MODEL_DIR",
        .about = "FILE.h5             what the file is: kind, version, coverage, losses, norms, provenance\n"
                 "digest FILE.h5      the SHA-256 of its payload, alone\n"
                 "tokenize MODEL_DIR  token ids of the JSON strings on standard input, a line each",
        .min_inputs = 1, .max_inputs = 2,
        .run = run,
    };
    return exf_program_main(&program, argc, argv);
}
