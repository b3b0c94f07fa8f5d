/* export.h - tables for others to load.
 *
 * A drawer: one file src/export/writer_<target>.c per target format. */
#ifndef EXF_EXPORT_EXPORT_H
#define EXF_EXPORT_EXPORT_H
#include "artifact/tables.h"

typedef struct {
    const char *name; /* as in the recipe's output.targets */
    const char *file; /* name of the file it writes */
    const char *about;
    exf_code (*write)(const exf_tables *t, const char *path, int force, exf_err *err);
} exf_writer;

const exf_writer *exf_writer_find(const char *name); /* NULL: unknown */
const exf_writer *exf_writer_at(size_t i);           /* in order of name; NULL: past the end */
/* EXF_USAGE naming the unknown target and the known ones. */
exf_code exf_writer_require(const char *name, const exf_writer **out, exf_err *err) EXF_CHECKED;
#endif
