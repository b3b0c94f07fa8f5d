/* inputs.h - lists the files that a recipe's run reads, with their checksums. */
#ifndef EXF_RUN_INPUTS_H
#define EXF_RUN_INPUTS_H
#include "recipe/recipe.h"

/* Appends "ROLE SHA256 PATH\n" for the recipe and every file that its calibration and its
 * validation read, once in each role: recipe, manifest, source, config, weights, tokenizer,
 * validation-manifest, validation-source.  The tokenizer where a source is text.  Reads every
 * byte of the model; its index is left out, since it only repeats the contents of the shards.
 * A missing file is EXF_IO. */
exf_code exf_inputs_text(const exf_recipe *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* The same on standard output. */
exf_code exf_list_inputs(const exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
