/* snippet.h - lines of Python that load a file of tables, for a model card.
 * The tests compare them with tests/interop/load_*.py, which are run. */
#ifndef EXF_EXPORT_SNIPPET_H
#define EXF_EXPORT_SNIPPET_H
#include "export/writer.h"

/* Of an export target, or "hdf5" for tables.h5; NULL: there is none. */
const exf_snippet *exf_snippet_find(const char *target);
#endif
