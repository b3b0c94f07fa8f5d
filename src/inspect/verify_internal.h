/* verify_internal.h - between verify*.c only. */
#ifndef EXF_INSPECT_VERIFY_INTERNAL_H
#define EXF_INSPECT_VERIFY_INTERNAL_H
#include "artifact/statistics.h"
#include "base/hash.h"
#include "inspect/study.h"
#include "inspect/verify.h"

/* A file under scrutiny. */
typedef struct {
    const char *path;
    char digest[EXF_SHA256_HEX];
    exf_study study;
    exf_verified held;
    void *self;
} exf_suspect;

/* Says that a check held. */
exf_code exf_suspect_held(const exf_suspect *x, exf_err *err, const char *fmt, ...) EXF_PRINTF(3, 4) EXF_CHECKED;

/* What no reader needs to check, but what must hold. */
exf_code exf_verify_tables(const exf_suspect *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_statistics(const exf_suspect *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_counts(const exf_suspect *x, exf_err *err) EXF_CHECKED;
exf_code exf_verify_facts(const exf_suspect *x, exf_err *err) EXF_CHECKED;
/* Of two files, the earlier first in the chain; fine where they are not of one chain. */
exf_code exf_verify_chain(const exf_suspect *earlier, const exf_suspect *later, exf_err *err) EXF_CHECKED;
#endif
