/* init_recipe.h - writes a commented recipe, and the manifests that it names, for --init. */
#ifndef EXF_CLI_INIT_RECIPE_H
#define EXF_CLI_INIT_RECIPE_H
#include "recipe/recipe.h"

/* Writes r->init_path with every recipe key, its comment from the option table: keys that
 * exf_default_settings_set() or the command line set stand as they are, all others commented out with
 * their defaults.  Beside it NAME-manifest.yaml: the files of --text; without --text those of a released
 * model, and its held-out text in NAME-validation-manifest.yaml.  Reads of the model config.json alone.
 * EXF_USAGE without --text for a model that is not released, EXF_IO for a file that exists, unless --force. */
exf_code exf_init_recipe(exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
