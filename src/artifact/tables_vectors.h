/* tables_vectors.h - writes, reads and checks the group /vectors of tables (artifact_tables.c). */
#ifndef EXF_ARTIFACT_TABLES_VECTORS_H
#define EXF_ARTIFACT_TABLES_VECTORS_H
#include "artifact/tables.h"

/* Writes the vectors; nothing for tables without any. */
exf_code exf_vectors_write(const exf_tables *t, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Reads the file's vectors into t->vectors, which exf_tables_read() leaves empty. */
exf_code exf_tables_read_vectors(exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
/* Checks vectors in memory by the rules of reading: EXF_FORMAT naming path, dataset and element. */
exf_code exf_vectors_check(const exf_tables *t, const char *path, exf_err *err) EXF_CHECKED;
#endif
