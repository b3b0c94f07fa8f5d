/* verify_internal.h - what verify.c calls of verify_contents.c. */
#ifndef EXF_INSPECT_VERIFY_INTERNAL_H
#define EXF_INSPECT_VERIFY_INTERNAL_H
#include "accumulate/statistics.h"
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
/* Reads the file into x->inspection and checks it by itself. */
exf_code exf_verify_file_alone(exf_verify_file *x, exf_err *err) EXF_CHECKED;
#endif
