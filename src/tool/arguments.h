/* arguments.h - sorts a program's positional arguments into the recipe and the inputs. */
#ifndef EXF_TOOL_ARGUMENTS_H
#define EXF_TOOL_ARGUMENTS_H
#include "tool/command.h"

/* Fills r->recipe_file and r->inputs from n arguments; r->inputs is the caller's array.  Where p has
 * no inputs beside the recipe, an argument is the recipe whatever it is called; elsewhere a name
 * that ends in .yaml or .yml, or a file that holds a YAML map.  EXF_USAGE: too few, too many. */
exf_code exf_arguments_sort(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err) EXF_CHECKED;
#endif
