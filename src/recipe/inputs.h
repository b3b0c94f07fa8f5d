/* inputs.h - the files that a run reads: a corpus of the files of --text, and the list of --list-inputs.
 *
 * The files of --text become a manifest in memory, which is read as any manifest is and is written beside the outputs, so that
 * the run can be repeated from files. */
#ifndef EXF_RECIPE_INPUTS_H
#define EXF_RECIPE_INPUTS_H
#include "recipe/recipe.h"

typedef struct {
    exf_text manifest; /* its bytes; empty where no --text was given */
    char *path;        /* of the file that it will be, absolute; NULL where no --text was given */
} exf_text_inputs;

/* Recognises the files of --text and the arguments after them, reports each on stderr, and makes
 * their manifest, in which paths are absolute and every file is pinned.  Does nothing without --text. */
exf_code exf_text_inputs_make(exf_text_inputs *t, const exf_recipe *r, const char *path, exf_err *err) EXF_CHECKED;
/* Makes that manifest the value of the recipe's key, "data.manifest" or "validate.manifest".  r borrows from t. */
exf_code exf_text_inputs_use(const exf_text_inputs *t, exf_recipe *r, const char *key, exf_err *err) EXF_CHECKED;
/* Writes the manifest to target, the path that it was made for, and announces it; does nothing without --text. */
exf_code exf_text_inputs_write(const exf_text_inputs *t, const char *target, int force, exf_err *err) EXF_CHECKED;
void exf_text_inputs_free(exf_text_inputs *t);

/* Appends "ROLE SHA256 PATH\n" for the recipe and every file that its calibration and its
 * validation read, once in each role: recipe, manifest, source, config, weights, tokenizer,
 * validation-manifest, validation-source.  The tokenizer where a source is text.  Reads every
 * byte of the model; its index is left out, since it only repeats the contents of the shards.
 * A missing file is EXF_IO. */
exf_code exf_inputs_text(const exf_recipe *r, exf_text *out, exf_err *err) EXF_CHECKED;
/* Prints the same on stdout. */
exf_code exf_list_inputs(const exf_recipe *r, exf_err *err) EXF_CHECKED;
#endif
