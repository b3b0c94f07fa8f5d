/* inspect.h - the commands of exfold-inspect.  Each prints text or, with r->json, one JSON
 * object on stdout; r->inputs are its arguments. */
#ifndef EXF_CLI_INSPECT_H
#define EXF_CLI_INSPECT_H
#include "format/json.h"
#include "recipe/recipe.h"

exf_code exf_inspect_summary(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_heatmap(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_report(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_diff(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_verify(exf_recipe *r, exf_err *err) EXF_CHECKED;

/* Ends w and prints its JSON text. */
exf_code exf_print_json(exf_jw *w, exf_err *err) EXF_CHECKED;
/* Prints "wrote PATH ..." or, with a writer, adds {"path", "bytes", "sha256"} to an open array. */
exf_code exf_tell_output(exf_jw *w, const char *path, exf_err *err) EXF_CHECKED;
#endif
