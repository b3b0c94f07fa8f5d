/* tables_internal.h - inside src/artifact: what the parts of the format `tables` share. */
#ifndef EXF_ARTIFACT_TABLES_INTERNAL_H
#define EXF_ARTIFACT_TABLES_INTERNAL_H
#include "artifact/tables.h"

/* [L, E, E] losses of anything but the pair's own scalar: finite, from 0, never where the pair's is. */
exf_code exf_losses_check(const exf_tables *t, const float *loss, const char *name, const char *path, exf_err *err) EXF_CHECKED;

/* The group /vectors; nothing for tables that carry none. */
exf_code exf_vectors_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
#endif
