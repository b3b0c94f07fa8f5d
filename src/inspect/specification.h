/* specification.h - the file formats, in words: the comments on top of
 * src/artifact/artifact_<kind>.c, and as "artifact" and "provenance" of artifact.h and
 * provenance.h, which all kinds share; as they were when the program was built. */
#ifndef EXF_INSPECT_SPECIFICATION_H
#define EXF_INSPECT_SPECIFICATION_H
#include <stddef.h>

/* Line i of a kind's, without its newline; NULL past the last, or for no name of ours. */
const char *exf_specification_line(const char *name, size_t i);
/* The names there are, "artifact" and "provenance" first; NULL past the last. */
const char *exf_specification_name(size_t i);
#endif
