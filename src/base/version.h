/* version.h - version and commit of this build, for --version and for provenance. */
#ifndef EXF_BASE_VERSION_H
#define EXF_BASE_VERSION_H
const char *exf_release(void); /* "0.1.0" */
const char *exf_commit(void);  /* first 12 digits of the source's commit, "unknown" outside git */
int exf_built_with_cuda(void);
#endif
