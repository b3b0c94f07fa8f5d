/* arguments.c - see arguments.h. */
#include "tool/arguments.h"

#include "base/file.h"
#include "format/yaml.h"

#include <string.h>
#include <sys/stat.h>

/* An HDF5 file begins with a byte that no YAML file has. */
static int holds_map(const char *path)
{
    struct stat st;
    exf_yaml *root = NULL;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return 0;
    int is_map = exf_yaml_load(&root, path, NULL) == EXF_OK && root->kind == EXF_YAML_MAP;
    exf_yaml_free(root);
    return is_map;
}

static int is_recipe(const exf_program *p, const exf_recipe *r, const char *path)
{
    if (!p->keys) return 0;
    if (r->texts.n) return exf_ends_with(path, ".yaml") || exf_ends_with(path, ".yml"); /* others are texts too */
    if (p->max_inputs == 0 && !r->recipe_file) return 1;
    return exf_ends_with(path, ".yaml") || exf_ends_with(path, ".yml") || holds_map(path);
}

exf_code exf_arguments_sort(const exf_program *p, exf_recipe *r, const char **positional, size_t n, exf_err *err)
{
    r->inputs = positional;
    for (size_t i = 0; i < n; i++) {
        if (!is_recipe(p, r, positional[i])) {
            r->inputs[r->n_inputs++] = positional[i];
            continue;
        }
        if (r->recipe_file) return exf_fail(err, EXF_USAGE, "%s: a second recipe beside %s", positional[i], r->recipe_file);
        r->recipe_file = positional[i];
    }
    if (p->needs_recipe && !r->recipe_file && !r->texts.n && !r->init_path)
        return exf_fail(err, EXF_USAGE, "no recipe (a YAML file) was named; usage: %s %s", p->name, p->arguments);
    if (r->n_inputs > p->max_inputs && !r->texts.n)
        return exf_fail(err, EXF_USAGE, "%s: unexpected argument; usage: %s %s", r->inputs[p->max_inputs], p->name, p->arguments);
    if (r->n_inputs < p->min_inputs) return exf_fail(err, EXF_USAGE, "an argument is missing; usage: %s %s", p->name, p->arguments);
    return EXF_OK;
}
