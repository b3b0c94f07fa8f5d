/* ptfile_internal.h - shared by the two files of the .pt writer: the pickle
 * (ptfile_pickle.c) names the storages that the zip file (ptfile.c) contains. */
#ifndef EXF_FORMAT_PTFILE_INTERNAL_H
#define EXF_FORMAT_PTFILE_INTERNAL_H
#include "base/text.h"
#include "format/ptfile.h"

/* Storages in order of appearance; zero-initialise, release with exf_mem_free(at). */
typedef struct {
    const exf_tensor **at;
    size_t n, cap;
} exf_pt_storages;

/* Appends the pickle of root to out and its tensors to storages; where names the file in messages. */
exf_code exf_pt_pickle(exf_text *out, const exf_pt *root, exf_pt_storages *storages, const char *where, exf_err *err) EXF_CHECKED;
#endif
