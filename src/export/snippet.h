/* snippet.h - lines of Python that load a file of tables, for a model card.
 * The tests compare them with tests/interop/load_*.py, which are run. */
#ifndef EXF_EXPORT_SNIPPET_H
#define EXF_EXPORT_SNIPPET_H

typedef struct {
    const char *target; /* the export target, "hdf5" for tables.h5 */
    const char *name;   /* tests/interop/load_<name>.py */
    const char *title;
    const char *code;
} exf_snippet;

const exf_snippet *exf_snippet_find(const char *target); /* NULL: none */
#endif
