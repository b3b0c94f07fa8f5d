/* tables_budgets.h - writes, reads and checks the group /budgets of tables (tables_budgets.c). */
#ifndef EXF_ARTIFACT_TABLES_BUDGETS_H
#define EXF_ARTIFACT_TABLES_BUDGETS_H
#include "artifact/tables.h"

/* Writes the budgets; nothing for tables without any. */
exf_code exf_budgets_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the budgets of a file that has the group into t->budget, in their order (tables.h). */
exf_code exf_budgets_read(exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Checks budgets in memory: EXF_FORMAT naming path and dataset. */
exf_code exf_budgets_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Adds a budget with room for its scale at its place; *out stays valid until the next is added. */
exf_code exf_budgets_add(exf_tables *t, double budget, const char *rule, exf_budget **out, exf_err *err) EXF_CHECKED;
#endif
