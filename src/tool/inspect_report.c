/* inspect_report.c - exfold-inspect report: one page with everything. */
#include "base/file.h"
#include "base/mem.h"
#include "inspect/report.h"
#include "tool/derived_files.h"
#include "tool/inspect.h"
#include "tool/run_directory.h"

#include <string.h>

exf_code exf_inspect_report(exf_recipe *r, exf_err *err)
{
    exf_inspection s = {0};
    exf_jw w = {0};
    exf_run_directory dir = {0};
    char *beside = NULL, digest[EXF_SHA256_HEX];
    const char *name = strrchr(r->inputs[0], '/') ? strrchr(r->inputs[0], '/') + 1 : r->inputs[0];
    exf_code rc;
    if (!r->output_file || !exf_ends_with(r->output_file, ".html"))
        return exf_fail(err, EXF_USAGE, "--output is %s, expected a name that ends in .html",
                        r->output_file ? r->output_file : "missing");
    EXF_TRY(exf_run_directory_of_file(&dir, r->output_file, err));
    EXF_TRY(exf_output_check(r->output_file, r->force, err));
    EXF_TRY(exf_inspection_read(&s, r->inputs[0], r->n_inputs > 1 ? r->inputs[1] : NULL, err));
    if (!s.coeff) {
        rc = exf_fail(err, EXF_MODEL, "%s: holds %s, a report is made of tables", r->inputs[0], s.kind->kind);
        goto out;
    }
    EXF_TRY(exf_artifact_digest(r->inputs[0], &exf_artifact_tables, digest, err));
    EXF_TRY(exf_derived_check_validation(r->inputs[0], digest, err));
    EXF_TRY(exf_provenance_add(&s.provenance, err, EXF_MADE_FROM, "%s", digest));
    EXF_TRY(exf_path_dir(&beside, r->inputs[0], err));
    EXF_TRY(exf_report_write(&s, name, beside, r->output_file, r->force, err));
    exf_jw_open(&w, NULL, '{');
    exf_jw_open(&w, "files", '[');
    EXF_TRY(exf_tell_output(r->json ? &w : NULL, r->output_file, err));
    exf_jw_close(&w);
    exf_jw_close(&w);
    if (r->json) rc = exf_print_json(&w, err);
out:
    exf_jw_free(&w);
    exf_mem_free(beside);
    exf_inspection_free(&s);
    exf_run_directory_close(&dir, 0);
    return rc;
}
