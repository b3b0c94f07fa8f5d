/* recipe_texts.c - makes the corpus of --text: files, directories of files, standard input; see recipe.h. */
#include "recipe/recipe_texts_internal.h"

#include "base/err.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "capture/corpus.h"
#include "format/unpack.h"
#include "format/yaml.h"
#include "recipe/run_directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_input(const char *path)
{
    return strcmp(path, EXF_STANDARD_INPUT) == 0;
}

/* ---- the files that are meant ------------------------------------------------------------------ */

static exf_code add_item(exf_texts *t, const char *path, const char *domain, size_t domain_len, int found, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_grow(&t->item, &t->cap, t->n + 1, sizeof *t->item, "list of texts", err));
    exf_text_item *i = &t->item[t->n];
    *i = (exf_text_item){.argument = t->argument, .found = found};
    t->n++;
    for (size_t k = 0; k < domain_len; k++) /* a manifest refuses control characters; without a domain it is "source-1" */
        if ((unsigned char)domain[k] < ' ' || domain[k] == 0x7f) domain_len = 0;
    EXF_TRY(exf_mem_strdup(&i->path, path, "path of a text", err));
    rc = exf_mem_dup(&i->domain, domain, domain_len, "name of a domain", err);
out:
    return rc;
}

typedef struct {
    exf_texts *t;
    const char *path;
    int depth;
} directory;

static exf_code list_directory(exf_texts *t, const char *path, int depth, exf_err *err);

/* Adds a file of a directory, or those of a folder in it.  A link to a file is that file, as in a hub's cache; one to a folder is
 * not followed: it may lead anywhere, or back. */
static exf_code visit(void *self, const char *name, exf_err *err)
{
    const directory *d = self;
    exf_texts *t = d->t;
    char *path = NULL;
    exf_path_kind kind = EXF_PATH_NOTHING, target = EXF_PATH_NOTHING;
    exf_code rc;
    EXF_TRY(exf_path_join(&path, d->path, name, err));
    if (*name == '.') {
        rc = exf_texts_pass_over(t, path, "hidden", NULL, 0, err);
        goto out;
    }
    EXF_TRY(exf_path_look_at(path, &kind, err));
    EXF_TRY(exf_path_look_at_target(path, &target, err));
    const char *domain = t->folder ? t->folder : t->top;
    if (target == EXF_PATH_FILE) {
        EXF_TRY(add_item(t, path, domain, strlen(domain), 1, err));
    } else if (kind == EXF_PATH_DIRECTORY) {
        if (d->depth == 0) t->folder = name;
        EXF_TRY(list_directory(t, path, d->depth + 1, err));
        if (d->depth == 0) t->folder = NULL;
    } else {
        const char *is = target == EXF_PATH_DIRECTORY ? "a link to a folder"
                         : target == EXF_PATH_NOTHING ? "a link to nothing"
                                                      : "no regular file";
        rc = exf_texts_pass_over(t, path, is, NULL, 0, err);
    }
out:
    exf_mem_free(path);
    return rc;
}

static exf_code list_directory(exf_texts *t, const char *path, int depth, exf_err *err)
{
    enum { DEEPEST = 64 };
    directory d = {t, path, depth};
    if (depth > DEEPEST) return exf_fail(err, EXF_USAGE, "--text: %s: more than %d folders deep", path, DEEPEST);
    return exf_each_file(path, visit, &d, err);
}

static exf_code add_directory(exf_texts *t, const char *path, exf_err *err)
{
    char *real = NULL;
    exf_text passed = {0};
    size_t before = t->n;
    exf_code rc;
    EXF_TRY(exf_path_real(&real, path, err));
    t->top = strrchr(real, '/') ? strrchr(real, '/') + 1 : real;
    t->n_directories++;
    EXF_TRY(list_directory(t, path, 0, err));
    if (t->n > before) goto out;
    exf_texts_append_passed(t, t->argument, &passed);
    EXF_TRY(exf_text_end(&passed, err));
    rc = exf_fail(err, EXF_MODEL, "--text: %s: the directory has no file to read%s%s", path, passed.len ? ", only " : "",
                  passed.len ? passed.s : "");
out:
    exf_text_free(&passed);
    exf_mem_free(real);
    return rc;
}

/* Adds what an argument names; the domain of a file is its name without the last ending, and without that of a compressed file
 * after it. */
static exf_code add_argument(exf_texts *t, const char *path, exf_err *err)
{
    const char *name = exf_path_name(path);
    size_t len = exf_unpacked_name(name), n = len;
    int is_directory = 0;
    if (is_input(path)) return add_item(t, path, "stdin", strlen("stdin"), 0, err);
    exf_code rc = exf_path_is_directory(path, &is_directory, err);
    if (rc != EXF_OK || is_directory) return rc == EXF_OK ? add_directory(t, path, err) : rc;
    while (n > 0 && name[n - 1] != '.') n--;
    return add_item(t, path, name, n > 1 ? n - 1 : len, 0, err);
}

/* Returns argument i of --text, counting on through the arguments after it; NULL past the last. */
static const char *argument_at(const exf_recipe *r, size_t i)
{
    if (i < r->texts.n) return r->texts.item[i];
    return i - r->texts.n < r->n_inputs ? r->inputs[i - r->texts.n] : NULL;
}

static int by_path(const void *a, const void *b)
{
    const exf_text_item *x = *(const exf_text_item *const *)a, *y = *(const exf_text_item *const *)b;
    int order = strcmp(x->path, y->path);
    return order ? order : x < y ? -1 : 1;
}

static int by_domain(const void *a, const void *b)
{
    const exf_text_item *x = *(const exf_text_item *const *)a, *y = *(const exf_text_item *const *)b;
    int order = strcmp(x->domain, y->domain);
    return order ? order : x < y ? -1 : 1;
}

/* Refuses a file that is there twice, and warns of arguments that share a domain: their user may not have meant that. */
static exf_code compare_items(const exf_texts *t, exf_err *err)
{
    exf_text_item **sorted = NULL;
    const exf_text_item **shared = NULL, *first = NULL;
    size_t warned = 0; /* up to this argument */
    exf_code rc;
    EXF_TRY(exf_mem_new(&sorted, t->n, sizeof *sorted, "list of texts", err));
    EXF_TRY(exf_mem_new(&shared, t->n, sizeof *shared, "list of texts", err));
    for (size_t i = 0; i < t->n; i++) sorted[i] = &t->item[i];
    qsort(sorted, t->n, sizeof *sorted, by_path);
    for (size_t i = 1; i < t->n; i++)
        if (strcmp(sorted[i]->path, sorted[i - 1]->path) == 0) {
            rc = exf_fail(err, EXF_USAGE, "--text: %s is given twice; its tokens would count double", sorted[i]->path);
            goto out;
        }
    qsort(sorted, t->n, sizeof *sorted, by_domain);
    for (size_t i = 0; i < t->n; i++) { /* the first item of the domain, where another argument has named that */
        if (!first || strcmp(first->domain, sorted[i]->domain) != 0) first = sorted[i];
        shared[sorted[i] - t->item] = *first->domain && first->argument != sorted[i]->argument ? first : NULL;
    }
    for (size_t i = 0; i < t->n; i++) {
        const exf_text_item *a = shared[i], *b = &t->item[i];
        if (!a || b->argument <= warned) continue;
        warned = b->argument;
        exf_log_warn("--text: %s and %s are reported together, as domain %s", a->path, b->path, b->domain);
    }
out:
    exf_mem_free(sorted);
    exf_mem_free(shared);
    return rc;
}

/* ---- the manifest -------------------------------------------------------------------------------- */

static exf_code add_key(exf_text *out, const char *key, const char *value, exf_err *err)
{
    exf_text_appendf(out, "    %s: ", key);
    exf_code rc = exf_yaml_add_scalar(out, value, err);
    exf_text_append(out, "\n", 1);
    return rc;
}

static exf_code add_source(exf_texts *t, const exf_text_item *i, const exf_recognised *is, exf_err *err)
{
    exf_text *out = &t->out->manifest;
    char digest[EXF_SHA256_HEX], *absolute = NULL;
    exf_code rc;
    int input = is_input(i->path);
    if (!input) EXF_TRY(exf_path_absolute(&absolute, i->path, err));
    EXF_TRY(exf_source_hash(i->path, digest, err));
    exf_text_appendf(out, "  - path: ");
    EXF_TRY(exf_yaml_add_scalar(out, input ? i->path : absolute, err));
    exf_text_appendf(out, "\n    format: %s\n", exf_source_format_name(is->format));
    if (is->field.len) EXF_TRY(add_key(out, is->format == EXF_SOURCE_TOKENS ? "tensor" : "field", is->field.s, err));
    if (*i->domain) EXF_TRY(add_key(out, "domain", i->domain, err));
    EXF_TRY(add_key(out, "sha256", digest, err));
    if (out->len > EXF_YAML_MOST_BYTES)
        rc = exf_fail(err, EXF_USAGE,
                      "--text: a manifest has at most %d bytes, which hold %zu of these %zu files; put their texts into JSON "
                      "lines, {\"text\": ...} each",
                      EXF_YAML_MOST_BYTES, t->read, t->n);
out:
    exf_mem_free(absolute);
    return rc;
}

static exf_code read_item(exf_texts *t, const exf_text_item *i, exf_err *err)
{
    exf_recognised is = {.format = EXF_SOURCE_TEXT};
    const char *field = t->recipe->text_field;
    exf_code rc;
    if (exf_utf8_valid(i->path, strlen(i->path)) < strlen(i->path))
        return exf_fail(err, EXF_USAGE, "--text: the name %s is not valid UTF-8, which a manifest cannot hold", i->path);
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_recognise(&is, i->path, field, t->recipe->model_path, i->found, err));
    if (is.no_text) {
        rc = exf_texts_pass_over(t, i->path, is.no_text, is.script, is.bytes, err);
        goto out;
    }
    if (t->n == 1 && !i->found) exf_log_info("%s: %s", is_input(i->path) ? "standard input" : i->path, is.about.s);
    t->with_field += is.field.len > 0;
    t->of_format[is.format]++;
    t->bytes[is.format] += is.bytes;
    t->found_of_format[is.format] += i->found != 0;
    t->found_bytes[is.format] += i->found ? is.bytes : 0;
    EXF_TRY(add_source(t, i, &is, err));
    t->read++;
out:
    exf_recognised_free(&is);
    return rc;
}

/* Refuses a URL and what looks like the name of a data set, since texts are files: a name without a suffix that is not there. */
static exf_code refuse_elsewhere(const char *path, exf_err *err)
{
    const char *slash = strrchr(path, '/');
    int found;
    exf_code rc = exf_path_look(path, &found, err);
    if (rc != EXF_OK || found) return rc;
    if (strstr(path, "://"))
        return exf_fail(err, EXF_USAGE, "--text: %s: is a URL, and texts are read from files; download it (curl -LO "
                        "%s) and name the file", path, path);
    if (strchr(slash ? slash + 1 : path, '.')) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "--text: %s: no such file or directory; texts are read from files. A data set of a hub comes "
                    "with: hf download --repo-type dataset %s --local-dir %s, then --text %s", path, path, path, path);
}

/* Reads the items of one argument. */
static exf_code read_argument(exf_texts *t, size_t argument, size_t *i, exf_err *err)
{
    exf_code rc = EXF_OK;
    const char *path = argument_at(t->recipe, argument);
    t->argument = argument;
    memset(t->found_of_format, 0, sizeof t->found_of_format);
    memset(t->found_bytes, 0, sizeof t->found_bytes);
    if (!is_input(path)) EXF_TRY(refuse_elsewhere(path, err));
    for (; *i < t->n && t->item[*i].argument == argument; ++*i) EXF_TRY(read_item(t, &t->item[*i], err));
    rc = exf_texts_check_directory(t, path, err);
out:
    return rc;
}

exf_code exf_text_inputs_make(exf_text_inputs *t, const exf_recipe *r, const char *path, exf_err *err)
{
    exf_texts all = {.recipe = r, .out = t};
    exf_text passed = {0};
    exf_code rc;
    memset(t, 0, sizeof *t);
    if (r->texts.n == 0) return EXF_OK;
    EXF_TRY(exf_path_absolute(&t->path, path, err));
    exf_text_appendf(&t->manifest, "# The files of --text.\nschema: " EXF_MANIFEST_SCHEMA "\nsources:\n");
    for (const char *one; (one = argument_at(r, all.argument)); all.argument++) EXF_TRY(add_argument(&all, one, err));
    EXF_TRY(compare_items(&all, err));
    for (size_t i = 0, argument = 0; i < all.n; argument++) EXF_TRY(read_argument(&all, argument, &i, err));
    if (!all.read) {
        exf_texts_append_passed(&all, EXF_ALL_ARGUMENTS, &passed);
        EXF_TRY(exf_text_end(&passed, err));
        rc = exf_fail(err, EXF_MODEL, "--text: %s: holds no text, only %s", argument_at(r, 0), passed.s);
        goto out;
    }
    EXF_TRY(exf_texts_report(&all, err));
    EXF_TRY(exf_text_end(&t->manifest, err));
    if (r->text_field && !all.with_field)
        rc = exf_fail(err, EXF_USAGE, "--text-field %s: plain text has no members or tensors to choose from", r->text_field);
out:
    exf_text_free(&passed);
    for (size_t i = 0; i < all.n; i++) {
        exf_mem_free(all.item[i].path);
        exf_mem_free(all.item[i].domain);
    }
    for (size_t k = 0; k < all.n_kinds; k++) exf_mem_free(all.passed[k].name);
    exf_mem_free(all.item);
    exf_mem_free(all.passed);
    return rc;
}

int exf_text_inputs_piped(const exf_recipe *r)
{
    const char *argument;
    for (size_t i = 0; r->texts.n && (argument = argument_at(r, i)); i++)
        if (is_input(argument)) return 1;
    return 0;
}

exf_code exf_text_inputs_use(const exf_text_inputs *t, exf_recipe *r, const char *key, exf_err *err)
{
    if (!t->path) return EXF_OK;
    r->manifest_text = t->manifest.s;
    return exf_opts_set(r->opts, EXF_OPT_BY_ARGV, key, t->path, "--text", err);
}

void exf_text_inputs_free(exf_text_inputs *t)
{
    exf_text_free(&t->manifest);
    exf_mem_free(t->path);
    memset(t, 0, sizeof *t);
}
