/* recipe_binary.h - says of a file that was given as a recipe and is none what it is, and what takes it. */
#ifndef EXF_TOOL_RECIPE_BINARY_H
#define EXF_TOOL_RECIPE_BINARY_H
#include "base/err.h"

/* Returns rc, the failure of reading path as YAML; where the file is an artifact, another HDF5 file or a .safetensors
 * file, err says so instead. */
exf_code exf_recipe_not_binary(const char *path, exf_code rc, exf_err *err) EXF_CHECKED;
#endif
