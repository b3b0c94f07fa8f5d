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
/* The absolute path without links that a path has or, where nothing is there yet, would have.  Caller frees. */
exf_code exf_path_real(char **out, const char *path, exf_err *err) EXF_CHECKED;
typedef enum { EXF_PATH_NOTHING, EXF_PATH_FILE, EXF_PATH_DIRECTORY, EXF_PATH_OTHER } exf_path_kind;
/* Looks what has that name, links not followed (OTHER). */
exf_code exf_path_look_at(const char *path, exf_path_kind *kind, exf_err *err) EXF_CHECKED;
/* *found = 1 if a file, directory or link of that name exists, 0 if none does; an error where the system cannot say
 * (a disk that fails, a directory that may not be searched): that is not absence. */
exf_code exf_path_look(const char *path, int *found, exf_err *err) EXF_CHECKED;
/* *is = 1 if there is a directory of that name, links followed, 0 if there is none. */
exf_code exf_path_is_directory(const char *path, int *is, exf_err *err) EXF_CHECKED;
#endif
