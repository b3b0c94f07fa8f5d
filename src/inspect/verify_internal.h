/* verify_internal.h - types and functions shared by verify*.c only. */
#ifndef EXF_INSPECT_VERIFY_INTERNAL_H
#define EXF_INSPECT_VERIFY_INTERNAL_H
#include "artifact/statistics.h"
#include "base/hash.h"
#include "inspect/inspection.h"
#include "inspect/verify.h"

/* A file that is being verified. */
typedef struct {
    const char *path;
    char digest[EXF_SHA256_HEX];
    exf_inspection inspection;
    exf_verify_callback held;
    void *self;
} exf_verify_file;

/* Reports that a check passed. */
exf_code exf_verify_passed(const exf_verify_file *x, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4) EXF_CHECKED;

/* Checks of rules that no reader checks but every file must obey. */
exf_code exf_verify_tables(const exf_verify_file *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_statistics(const exf_verify_file *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_facts(const exf_verify_file *x, exf_err *err) EXF_CHECKED;
/* Checks two files, the earlier of the chain first; EXF_OK if they are not of one chain. */
exf_code exf_verify_chain(const exf_verify_file *earlier, const exf_verify_file *later, exf_err *err) EXF_CHECKED;
/* Solves the statistics again with the settings of the tables and compares every number. */
exf_code exf_verify_solved(const exf_verify_file *statistics, const exf_verify_file *tables, exf_err *err) EXF_CHECKED;
#endif
