/* specification.h - the specifications of the file formats, embedded by the build: the
 * comments on top of src/artifact/artifact_<kind>.c, and those of artifact.h and
 * provenance.h, which all kinds share, as "artifact" and "provenance". */
#ifndef EXF_INSPECT_SPECIFICATION_H
#define EXF_INSPECT_SPECIFICATION_H
#include <stddef.h>

/* Line i of the named specification, without its newline; NULL past the last, or for an unknown name. */
const char *exf_specification_line(const char *name, size_t i);
/* Name i of the list, "artifact" and "provenance" first; NULL past the last. */
const char *exf_specification_name(size_t i);
#endif
