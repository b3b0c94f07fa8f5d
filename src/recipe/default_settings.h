/* default_settings.h - chooses the settings of a run that has no recipe, which are those that --init
 * writes into one.
 *
 * A released model (released_models.h) gets the settings of its recipe, without its paths.  Any other gets
 * the defaults of the option table, static pools of a half and a quarter of its experts, the exports that can
 * serve it beside safetensors, and variants at half of its routes and experts to validate. */
#ifndef EXF_RECIPE_DEFAULT_SETTINGS_H
#define EXF_RECIPE_DEFAULT_SETTINGS_H
#include "recipe/recipe.h"
#include "recipe/released_models.h"

/* Sets them at recipe rank, so that flags and --set beat them.  Reads config.json alone.
 * *released: the model that was recognised, or NULL. */
exf_code exf_default_settings_set(exf_recipe *r, const exf_released_model **released, exf_err *err) EXF_CHECKED;

/* The settings of which a run reports. */
typedef enum { EXF_SETTINGS_OF_CALIBRATION, EXF_SETTINGS_OF_VALIDATION } exf_settings_of;

/* For a run: does nothing where a recipe is given.  Else sets them, with all sequences of --text rather than
 * a recipe's number, and reports on stderr every setting that was not given on the command line. */
exf_code exf_default_settings(exf_recipe *r, exf_settings_of what, exf_err *err) EXF_CHECKED;
#endif
