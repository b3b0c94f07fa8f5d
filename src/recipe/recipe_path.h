/* recipe_path.h - spells a path so that it stays true in a recipe file of a given directory. */
#ifndef EXF_RECIPE_RECIPE_PATH_H
#define EXF_RECIPE_RECIPE_PATH_H
#include "base/err.h"

/* path is relative to the working directory or absolute.  What lies in the directory or below is spelled
 * relative to it ("." the directory itself), so that the directory may move; all else is absolute.
 * Links in front of the last name are followed, the last name is kept, since the sources of a manifest are
 * relative to the name by which it was opened.  A path at which nothing stands is joined to the working
 * directory.  The caller frees. */
exf_code exf_recipe_path(char **out, const char *path, const char *directory, exf_err *err) EXF_CHECKED;
#endif
