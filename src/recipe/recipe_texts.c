/* recipe_texts.c - makes the corpus of --text: files, directories of files, standard input; see recipe.h. */
#include "recipe/recipe.h"

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
#include <string.h>

/* A text that was named, or found in a directory that was. */
typedef struct {
    char *path, *domain; /* domain "": the manifest's own name for it */
    size_t argument;     /* which of the user's */
    int found;
} item;

/* What --text comes to. */
typedef struct {
    const exf_recipe *recipe;
    exf_text_inputs *out;
    item *item;
    size_t n, cap, argument;
    size_t of_format[EXF_SOURCE_FORMATS], read; /* files that are read */
    size_t with_field;   /* of which a member or tensor is read */
    exf_text passed;     /* names of files that are passed over, with what they are */
    size_t n_passed, n_directories;
    char *top;           /* of the directory that is being listed: its name */
    const char *folder;  /* the folder of it that is being listed; NULL: itself */
} texts;

static int is_input(const char *path)
{
    return strcmp(path, EXF_STANDARD_INPUT) == 0;
}

/* ---- domains -------------------------------------------------------------------------------- */

/* Returns where the last name of a path begins, and in *n its length without its last ending, and without that of a compressed
 * file after it. */
static const char *stem_of(const char *path, size_t *n)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t len = exf_unpacked_name(name);
    for (*n = len; *n > 0 && name[*n - 1] != '.';) --*n;
    *n = *n > 1 ? *n - 1 : len;
    return name;
}

/* A manifest refuses control characters in a domain; without one it is "source-1". */
static int has_control(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' || s[i] == 0x7f) return 1;
    return 0;
}

/* ---- the files that are meant ------------------------------------------------------------------ */

static exf_code add_item(texts *t, const char *path, const char *domain, size_t domain_len, int found, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_grow(&t->item, &t->cap, t->n + 1, sizeof *t->item, "list of texts", err));
    item *i = &t->item[t->n];
    *i = (item){.argument = t->argument, .found = found};
    t->n++;
    EXF_TRY(exf_mem_strdup(&i->path, path, "path of a text", err));
    rc = exf_mem_dup(&i->domain, domain, has_control(domain, domain_len) ? 0 : domain_len, "name of a domain", err);
out:
    return rc;
}

/* Notes a file that is not read; the first ones are named. */
static void pass_over(texts *t, const char *path, const char *is)
{
    enum { NAMED = 4 };
    const char *slash = strrchr(path, '/');
    if (t->n_passed < NAMED) exf_text_appendf(&t->passed, "%s%s (%s)", t->n_passed ? ", " : "", slash ? slash + 1 : path, is);
    if (t->n_passed == NAMED) exf_text_appendf(&t->passed, ", ...");
    t->n_passed++;
}

typedef struct {
    texts *t;
    const char *path;
    int depth;
} directory;

static exf_code list_directory(texts *t, const char *path, int depth, exf_err *err);

/* Adds a file of a directory, or those of a folder in it.  Links are not followed: they may lead anywhere, or back. */
static exf_code visit(void *self, const char *name, exf_err *err)
{
    const directory *d = self;
    texts *t = d->t;
    char *path = NULL;
    exf_path_kind kind = EXF_PATH_NOTHING;
    exf_code rc;
    EXF_TRY(exf_path_join(&path, d->path, name, err));
    if (*name == '.') {
        pass_over(t, path, "hidden");
        goto out;
    }
    EXF_TRY(exf_path_look_at(path, &kind, err));
    const char *domain = t->folder ? t->folder : t->top;
    if (kind == EXF_PATH_FILE) {
        EXF_TRY(add_item(t, path, domain, strlen(domain), 1, err));
    } else if (kind == EXF_PATH_DIRECTORY) {
        if (d->depth == 0) t->folder = name;
        EXF_TRY(list_directory(t, path, d->depth + 1, err));
        if (d->depth == 0) t->folder = NULL;
    } else {
        pass_over(t, path, "a link or no regular file");
    }
out:
    exf_mem_free(path);
    return rc;
}

static exf_code list_directory(texts *t, const char *path, int depth, exf_err *err)
{
    enum { DEEPEST = 64 };
    directory d = {t, path, depth};
    if (depth > DEEPEST) return exf_fail(err, EXF_USAGE, "--text: %s: more than %d folders deep", path, DEEPEST);
    return exf_each_file(path, visit, &d, err);
}

static exf_code add_directory(texts *t, const char *path, exf_err *err)
{
    char *real = NULL;
    size_t before = t->n;
    exf_code rc;
    EXF_TRY(exf_path_real(&real, path, err));
    t->top = strrchr(real, '/') ? strrchr(real, '/') + 1 : real;
    t->n_directories++;
    EXF_TRY(list_directory(t, path, 0, err));
    if (t->n == before)
        rc = exf_fail(err, EXF_MODEL, "--text: %s: the directory has no file to read%s%s", path, t->n_passed ? ", only " : "",
                      t->passed.s ? t->passed.s : "");
out:
    exf_mem_free(real);
    return rc;
}

static exf_code add_argument(texts *t, const char *path, exf_err *err)
{
    int is_directory = 0;
    size_t n;
    if (is_input(path)) return add_item(t, path, "stdin", strlen("stdin"), 0, err);
    exf_code rc = exf_path_is_directory(path, &is_directory, err);
    const char *stem = stem_of(path, &n);
    if (rc == EXF_OK) rc = is_directory ? add_directory(t, path, err) : add_item(t, path, stem, n, 0, err);
    return rc;
}

/* Returns argument i of --text, counting on through the arguments after it; NULL past the last. */
static const char *argument_at(const exf_recipe *r, size_t i)
{
    if (i < r->texts.n) return r->texts.item[i];
    return i - r->texts.n < r->n_inputs ? r->inputs[i - r->texts.n] : NULL;
}

/* Refuses a file that is there twice, and warns of arguments that share a domain: their user may not have meant that. */
static exf_code compare_items(const texts *t, exf_err *err)
{
    size_t warned = 0; /* up to this argument */
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < i; k++) {
            const item *a = &t->item[k], *b = &t->item[i];
            if (strcmp(a->path, b->path) == 0)
                return exf_fail(err, EXF_USAGE, "--text: %s is given twice; its tokens would count double", b->path);
            if (a->argument == b->argument || b->argument <= warned || !*a->domain || strcmp(a->domain, b->domain) != 0) continue;
            warned = b->argument;
            exf_log_warn("--text: %s and %s are reported together, as domain %s", a->path, b->path, b->domain);
        }
    return EXF_OK;
}

/* ---- the manifest -------------------------------------------------------------------------------- */

static exf_code add_key(exf_text *out, const char *key, const char *value, exf_err *err)
{
    exf_text_appendf(out, "    %s: ", key);
    exf_code rc = exf_yaml_add_scalar(out, value, err);
    exf_text_append(out, "\n", 1);
    return rc;
}

static exf_code add_source(texts *t, const item *i, const exf_recognised *is, exf_err *err)
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

static exf_code read_item(texts *t, const item *i, exf_err *err)
{
    exf_recognised is = {.format = EXF_SOURCE_TEXT};
    const char *field = t->recipe->text_field;
    exf_code rc;
    if (exf_utf8_valid(i->path, strlen(i->path)) < strlen(i->path))
        return exf_fail(err, EXF_USAGE, "--text: the name %s is not valid UTF-8, which a manifest cannot hold", i->path);
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(i->found ? exf_recognise_found(&is, i->path, field, err) : exf_recognise(&is, i->path, field, err));
    if (is.no_text) {
        pass_over(t, i->path, is.no_text);
        goto out;
    }
    if (t->n == 1 && !i->found) exf_log_info("%s: %s", is_input(i->path) ? "standard input" : i->path, is.about.s);
    t->with_field += is.field.len > 0;
    t->of_format[is.format]++;
    EXF_TRY(add_source(t, i, &is, err));
    t->read++;
out:
    exf_recognised_free(&is);
    return rc;
}

/* Says in one line what several files are, and which are passed over. */
static exf_code report(const texts *t, exf_err *err)
{
    static const char *const names[] = {"JSON lines", "plain text", "token ids", "conversations"}; /* by exf_source_format */
    exf_text line = {0};
    if (t->n == 1 && !t->n_directories) return EXF_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (t->of_format[i]) exf_text_appendf(&line, "%s%zu of %s", line.len ? ", " : "", t->of_format[i], names[i]);
    if (t->n_passed) exf_text_appendf(&line, "; passed over %zu: %s", t->n_passed, t->passed.s);
    exf_code rc = exf_text_end(&line, err);
    if (rc == EXF_OK) exf_log_info("--text: %zu file%s: %s", t->read, t->read == 1 ? "" : "s", line.s);
    exf_text_free(&line);
    return rc;
}

static void free_texts(texts *t)
{
    for (size_t i = 0; i < t->n; i++) {
        exf_mem_free(t->item[i].path);
        exf_mem_free(t->item[i].domain);
    }
    exf_mem_free(t->item);
    exf_text_free(&t->passed);
}

exf_code exf_text_inputs_make(exf_text_inputs *t, const exf_recipe *r, const char *path, exf_err *err)
{
    texts all = {.recipe = r, .out = t};
    exf_code rc;
    memset(t, 0, sizeof *t);
    if (r->texts.n == 0) return EXF_OK;
    EXF_TRY(exf_path_absolute(&t->path, path, err));
    exf_text_appendf(&t->manifest, "# The files of --text.\nschema: " EXF_MANIFEST_SCHEMA "\nsources:\n");
    for (const char *one; (one = argument_at(r, all.argument)); all.argument++) EXF_TRY(add_argument(&all, one, err));
    EXF_TRY(compare_items(&all, err));
    for (size_t i = 0; i < all.n; i++) EXF_TRY(read_item(&all, &all.item[i], err));
    EXF_TRY(exf_text_end(&all.passed, err));
    if (!all.read) {
        rc = exf_fail(err, EXF_MODEL, "--text: %s: holds no text, only %s", argument_at(r, 0), all.passed.s);
        goto out;
    }
    EXF_TRY(report(&all, err));
    EXF_TRY(exf_text_end(&t->manifest, err));
    if (r->text_field && !all.with_field)
        rc = exf_fail(err, EXF_USAGE, "--text-field %s: plain text has no members or tensors to choose from", r->text_field);
out:
    free_texts(&all);
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

exf_code exf_text_inputs_write(const exf_text_inputs *t, const char *target, int force, exf_err *err)
{
    return t->path ? exf_write_announced(target, force, t->manifest.s, t->manifest.len, err) : EXF_OK;
}

void exf_text_inputs_free(exf_text_inputs *t)
{
    exf_text_free(&t->manifest);
    exf_mem_free(t->path);
    memset(t, 0, sizeof *t);
}
