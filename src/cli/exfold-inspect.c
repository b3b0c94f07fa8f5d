/* exfold-inspect - shows what files are and hold, draws, compares and verifies them. */
#include "cli/inspect.h"
#include "cli/program.h"

#include <stddef.h>

#define AT(field) offsetof(exf_recipe, field)

static const exf_opt rows[] = {
    {NULL, "json", 0, EXF_OPT_FLAG, AT(json), "false", NULL, "Results", "one JSON object on standard output"},
    {NULL, "output", 'o', EXF_OPT_TEXT, AT(output_file), NULL, "FILE", "Results",
     "heatmap: the picture, .png, .svg or .pdf; report: the page, .html"},
    {NULL, "force", 'f', EXF_OPT_FLAG, AT(force), "false", NULL, "Results", "replace outputs that exist"},
    {NULL, "what", 0, EXF_OPT_TEXT_LIST, AT(what), "all", "NAMES", "heatmap",
     "of norms, similarity, aligned, scalar, loss; several or all: FILE-<name>.png"},
    {NULL, "range", 0, EXF_OPT_TEXT_LIST, AT(range), "[]", "MIN,MAX", "heatmap",
     "ends of the colours, or auto; auto: around the values, without it 0 and 1, or the values where all lie together"},
    {NULL, "layers", 0, EXF_OPT_TEXT, AT(layers), "all", "LIST", "heatmap", "layers such as 0,3,8-11"},
    {NULL, "data", 0, EXF_OPT_FLAG, AT(data), "false", NULL, "heatmap", "write the numbers beside each picture; as .csv and .npy"},
    {NULL, "fail-above", 0, EXF_OPT_TEXT_LIST, AT(fail_above), "[]", "NAME=X", "diff",
     "end with status 10 if a change is larger; flips=0.05 (share of traffic), scalar, loss (largest change), "
     "norm (relative), coverage (share of pairs)"},
};

static const exf_command commands[] = {
    {"summary", "FILE.h5 [STATISTICS.h5]",
     "what it is and holds, layer by layer; coverage, sample sizes, losses, norms, cold experts,\n"
     "and similarity where statistics stand beside tables; FILE.h5 without a command is summed up",
     1, 2, "json", exf_inspect_summary},
    {"heatmap", "FILE.h5 [STATISTICS.h5] -o OUT.pdf",
     "every layer's norms, similarity, scalars and losses; in one picture each,\nas .png, .svg or .pdf", 1, 2,
     "json output force what range layers data", exf_inspect_heatmap},
    {"report", "TABLES.h5 [STATISTICS.h5] -o OUT.html",
     "one page with everything, for any browser; takes validation.json or\nvalidation.md from beside the tables", 1, 2,
     "json output force", exf_inspect_report},
    {"diff", "A.h5 B.h5", "what changed from one table to another; facts, coverage, scalars, targets, pools", 2, 2,
     "json fail-above", exf_inspect_diff},
    {"verify", "PATH ...",
     "checks each file, and that files belong together; statistics beside their\n"
     "tables are solved again, which finds a single changed number; a directory\n"
     "stands for all that a run wrote into it",
     1, 16, "json", exf_inspect_verify},
    {"digest", "FILE.h5", "its digest, alone: SHA-256 of what it holds, not of the file's bytes", 1, 1, "json", exf_inspect_digest},
    {"tokenize", "MODEL_DIR", "token ids of the JSON strings on standard input, a line each", 1, 1, "json", exf_inspect_tokenize},
    {"spec", "[KIND]", "the specification of a file format, or of all; without KIND the list of them",
     0, 1, "json", exf_inspect_spec},
};

const exf_program exf_program_inspect = {
    .name = "exfold-inspect",
    .arguments = "COMMAND ARGUMENT ... | FILE.h5",
    .group = "look",
    .brief = "shows, draws, compares and verifies files",
    .about = "Shows what files are and hold, draws, compares and verifies them.",
    .examples = "exfold-inspect out/tables.h5    # what it is and holds\n"
                "exfold-inspect verify out\n"
                "exfold-inspect diff last/tables.h5 out/tables.h5 --fail-above flips=0.05\n"
                "exfold-inspect report out/tables.h5 -o report.html",
    .rows = rows, .n_rows = sizeof rows / sizeof *rows,
    .min_inputs = 1, .max_inputs = 17,
    .commands = commands, .n_commands = sizeof commands / sizeof *commands,
};
