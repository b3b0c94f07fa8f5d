/* path.h - joins, splits and looks up paths. */
#ifndef EXF_BASE_PATH_H
#define EXF_BASE_PATH_H
#include "base/err.h"

/* base/rel, or rel itself when it is absolute.  Caller frees. */
exf_code exf_path_join(char **out, const char *base, const char *rel, exf_err *err) EXF_CHECKED;
/* The directory part of path, "." if there is none.  Caller frees. */
exf_code exf_path_dir(char **out, const char *path, exf_err *err) EXF_CHECKED;
/* path itself when it is absolute, else the working directory with it.  Caller frees. */
exf_code exf_path_absolute(char **out, const char *path, exf_err *err) EXF_CHECKED;
/* 1 if a file, directory or link of that name exists. */
int exf_path_exists(const char *path);
#endif
