/* tables_internal.h - functions that the files of the format `tables` share. */
#ifndef EXF_ARTIFACT_TABLES_INTERNAL_H
#define EXF_ARTIFACT_TABLES_INTERNAL_H
#include "artifact/tables.h"

/* Checks [L, E, E] losses other than those of the pair's own scalar: finite, at least 0, never where
 * the pair's own loss is never. */
exf_code exf_losses_check(const exf_tables *t, const float *loss, const char *name, const char *path, exf_err *err) EXF_CHECKED;

/* Write and read the group /vectors; tables without vectors write none. */
exf_code exf_vectors_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
#endif
