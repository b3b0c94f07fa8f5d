/* verify_internal.h - a file that is being verified; shared by verify.c and verify_file.c. */
#ifndef EXF_INSPECT_VERIFY_INTERNAL_H
#define EXF_INSPECT_VERIFY_INTERNAL_H
#include "base/text.h"
#include "inspect/inspection.h"
#include "inspect/verify.h"

typedef struct {
    const char *path;
    char digest[EXF_SHA256_HEX];
    exf_inspection inspection;
    exf_verify_callback held;
    void *self;
} exf_verified_file;

/* ---- verify_file.c ------------------------------------------------------------------------------- */

/* Reads the file into x->inspection and checks it by itself. */
exf_code exf_verify_file(exf_verified_file *x, exf_err *err) EXF_CHECKED;
/* Reports that a check of the file passed. */
exf_code exf_verify_passed(const exf_verified_file *x, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4) EXF_CHECKED;
#endif
