/* inspect.h - the commands of exfold-inspect.  Each prints text or, with r->json, one JSON
 * object on stdout; r->inputs are its arguments. */
#ifndef EXF_CLI_INSPECT_H
#define EXF_CLI_INSPECT_H
#include "format/json_write.h"
#include "inspect/summary.h"
#include "recipe/recipe.h"

exf_code exf_inspect_summary(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_heatmap(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_report(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_diff(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_verify(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_digest(exf_recipe *r, exf_err *err) EXF_CHECKED;
exf_code exf_inspect_spec(exf_recipe *r, exf_err *err) EXF_CHECKED;
/* One JSON string per line on stdin, one JSON array of ids per line out. */
exf_code exf_inspect_tokenize(exf_recipe *r, exf_err *err) EXF_CHECKED;

/* Ends w and prints its JSON text. */
exf_code exf_print_json(exf_jw *w, exf_err *err) EXF_CHECKED;
void exf_json_facts(exf_jw *w, const exf_provenance *p);
/* Prints "wrote PATH ..." or, with a writer, adds {"path", "bytes", "sha256"} to an open array. */
exf_code exf_tell_output(exf_jw *w, const char *path, exf_err *err) EXF_CHECKED;
/* Returns " by energy" for a static pool's criterion, and nothing for the paper's, norm. */
const char *exf_pool_words(const char *by);
#endif
