/* verify_internal.h - between verify*.c only. */
#ifndef EXF_INSPECT_VERIFY_INTERNAL_H
#define EXF_INSPECT_VERIFY_INTERNAL_H
#include "artifact/statistics.h"
#include "base/hash.h"
#include "inspect/inspection.h"
#include "inspect/verify.h"

/* A file under scrutiny. */
typedef struct {
    const char *path;
    char digest[EXF_SHA256_HEX];
    exf_inspection inspection;
    exf_verify_callback held;
    void *self;
} exf_verify_file;

/* Says that a check held. */
exf_code exf_verify_passed(const exf_verify_file *x, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4) EXF_CHECKED;

/* What no reader needs to check, but what must hold. */
exf_code exf_verify_tables(const exf_verify_file *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_statistics(const exf_verify_file *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_counts(const exf_verify_file *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_facts(const exf_verify_file *x, exf_err *err) EXF_CHECKED;
/* Of two files, the earlier first in the chain; fine where they are not of one chain. */
exf_code exf_verify_chain(const exf_verify_file *earlier, const exf_verify_file *later, exf_err *err) EXF_CHECKED;
#endif
