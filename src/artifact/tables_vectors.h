/* tables_vectors.h - writes, reads and checks the group /vectors of tables (artifact_tables.c). */
#ifndef EXF_ARTIFACT_TABLES_VECTORS_H
#define EXF_ARTIFACT_TABLES_VECTORS_H
#include "artifact/tables.h"

/* Nothing for tables that carry none. */
exf_code exf_vectors_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* The file's vectors into t->vectors, which exf_tables_read leaves empty. */
exf_code exf_tables_read_vectors(exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* What reading refuses, of vectors in memory: EXF_FORMAT naming path, dataset and element. */
exf_code exf_vectors_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
#endif
