/* text_inputs.c - see text_inputs.h. */
#include "recipe/text_inputs.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/yaml.h"
#include "capture/corpus.h"
#include "recipe/announce.h"

#include <string.h>

/* ---- the manifest ----------------------------------------------------------------- */

static exf_code add_key(exf_text *out, const char *key, const char *value, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "    %s: ", key));
    EXF_TRY(exf_yaml_add_scalar(out, value, err));
    rc = exf_text_add(out, "\n", 1, err);
out:
    return rc;
}

static int has_control(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f) return 1;
    return 0;
}

/* Returns where the last name of a path begins, and in *n its length without its last ending. */
static const char *stem_of(const char *path, size_t *n)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    *n = dot && dot > name ? (size_t)(dot - name) : strlen(name);
    return name;
}

/* The file's name without its last ending, under which its sequences are reported; a manifest
 * refuses control characters there and then has "source-1". */
static exf_code add_domain(exf_text *out, const char *path, exf_err *err)
{
    char *stem = NULL;
    size_t n;
    const char *name = stem_of(path, &n);
    if (has_control(name)) return EXF_OK;
    exf_code rc = exf_mem_dup(&stem, name, n, "name of a domain", err);
    if (rc == EXF_OK) rc = add_key(out, "domain", stem, err);
    exf_mem_free(stem);
    return rc;
}

static exf_code add_source(exf_text *out, const char *path, const exf_recognised *is, exf_err *err)
{
    char digest[EXF_SHA256_HEX], *absolute = NULL;
    exf_code rc;
    EXF_TRY(exf_path_absolute(&absolute, path, err));
    EXF_TRY(exf_hash_file(path, digest, err));
    EXF_TRY(exf_text_addf(out, err, "  - path: "));
    EXF_TRY(exf_yaml_add_scalar(out, absolute, err));
    EXF_TRY(exf_text_addf(out, err, "\n    format: %s\n", exf_source_format_name(is->format)));
    if (is->field.len) EXF_TRY(add_key(out, is->format == EXF_SOURCE_TOKENS ? "tensor" : "field", is->field.s, err));
    EXF_TRY(add_domain(out, path, err));
    EXF_TRY(add_key(out, "sha256", digest, err));
out:
    exf_mem_free(absolute);
    return rc;
}

/* ---- the files ---------------------------------------------------------------------- */

/* Number i of the files of --text, then of the arguments after them; NULL past the last. */
static const char *file_at(const exf_recipe *r, size_t i)
{
    if (i < r->texts.n) return r->texts.item[i];
    return i - r->texts.n < r->n_inputs ? r->inputs[i - r->texts.n] : NULL;
}

static exf_code refuse_twice(const exf_recipe *r, size_t i, exf_err *err)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(file_at(r, k), file_at(r, i)) == 0)
            return exf_fail(err, EXF_USAGE, "--text: %s is given twice; its tokens would count double", file_at(r, i));
    return EXF_OK;
}

/* Files of one stem are one domain, which their user may not have meant. */
static void tell_shared_domain(const exf_recipe *r, size_t i)
{
    size_t n, k_n;
    const char *name = stem_of(file_at(r, i), &n);
    for (size_t k = 0; k < i; k++) {
        const char *other = stem_of(file_at(r, k), &k_n);
        if (n != k_n || strncmp(name, other, n) != 0) continue;
        exf_log_warn("--text: %s and %s are reported together, as domain %.*s", file_at(r, k), file_at(r, i), (int)n, name);
        return;
    }
}

static exf_code add_file(exf_text_inputs *t, const exf_recipe *r, const char *path, int *fields, exf_err *err)
{
    exf_recognised is = {.format = EXF_SOURCE_TEXT};
    exf_code rc;
    if (exf_utf8_valid(path, strlen(path)) < strlen(path))
        return exf_fail(err, EXF_USAGE, "--text: the name %s is not valid UTF-8, which a manifest cannot hold", path);
    EXF_TRY(exf_recognise(&is, path, r->text_field, err));
    exf_log_info("%s: %s", path, is.about.s);
    *fields += is.field.len > 0;
    EXF_TRY(add_source(&t->manifest, path, &is, err));
out:
    exf_recognised_free(&is);
    return rc;
}

exf_code exf_text_inputs_make(exf_text_inputs *t, const exf_recipe *r, const char *path, exf_err *err)
{
    exf_code rc;
    int fields = 0;
    memset(t, 0, sizeof *t);
    if (r->texts.n == 0) return EXF_OK;
    EXF_TRY(exf_path_absolute(&t->path, path, err));
    EXF_TRY(exf_text_addf(&t->manifest, err, "# The files of --text.\nschema: exfold-manifest/1\nsources:\n"));
    for (size_t i = 0; file_at(r, i); i++) {
        EXF_TRY(refuse_twice(r, i, err));
        EXF_TRY(add_file(t, r, file_at(r, i), &fields, err));
        tell_shared_domain(r, i);
    }
    if (r->text_field && !fields)
        rc = exf_fail(err, EXF_USAGE, "--text-field %s: plain text has no members or tensors to choose from", r->text_field);
out:
    return rc;
}

exf_code exf_text_inputs_use(const exf_text_inputs *t, exf_recipe *r, const char *key, exf_err *err)
{
    if (!t->path) return EXF_OK;
    r->manifest_text = t->manifest.s;
    return exf_opts_set(r->opts, EXF_OPT_BY_ARGV, key, t->path, "--text", err);
}

exf_code exf_text_inputs_write(const exf_text_inputs *t, const char *target, int force, exf_err *err)
{
    exf_output_file *f = NULL;
    exf_code rc;
    if (!t->path) return EXF_OK;
    EXF_TRY(exf_output_file_begin(&f, target, force, err));
    EXF_TRY(exf_output_file_write(f, t->manifest.s, t->manifest.len, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_announce(target, err);
out:
    exf_output_file_abort(f);
    return rc;
}

void exf_text_inputs_free(exf_text_inputs *t)
{
    exf_text_free(&t->manifest);
    exf_mem_free(t->path);
    memset(t, 0, sizeof *t);
}
