/* derived_files.h - knows which files of a directory are made from the tables there, and keeps those
 * of other tables from being taken for them. */
#ifndef EXF_RUN_DERIVED_FILES_H
#define EXF_RUN_DERIVED_FILES_H
#include "artifact/made_from.h"
#include "base/opt.h"

/* A file that ExFold makes from the tables of its directory. */
typedef struct {
    const char *name;   /* of the file or folder */
    const char *marked; /* the file that holds the digest of the tables (made_from.h): name itself, or one in the folder */
    int kept;           /* 1: people may have changed it or added to it, so it is never removed */
    const char *target; /* the export target that writes it; NULL: none does */
} exf_derived_file;

/* Visits every derived file that the directory holds: results of exfold-validate, exports, reports,
 * the resolved recipe. */
typedef exf_code (*exf_derived_visit)(void *self, const exf_derived_file *f, exf_err *err);
exf_code exf_derived_each(const char *directory, exf_derived_visit visit, void *self, exf_err *err) EXF_CHECKED;

/* Removes, with a line on stdout, what was made from the tables of digest `old`, which those of digest
 * `now` have replaced; warns of what stays and was not made from `now`.  rewritten: export targets that
 * this run writes next, which are removed without a line; NULL: none.  old "": there were no tables. */
exf_code exf_derived_drop(const char *directory, const char *old, const char *now, const exf_text_list *rewritten,
                          exf_err *err) EXF_CHECKED;

/* EXF_MODEL if validation.json or validation.md beside the tables at path are of other tables: names
 * both digests and the command that validates again. */
exf_code exf_derived_check_validation(const char *tables, const char *digest, exf_err *err) EXF_CHECKED;
#endif
