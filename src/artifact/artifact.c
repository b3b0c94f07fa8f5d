/* artifact.c - the table of kinds, and functions that all kinds share. */
#include "artifact/artifact.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/registry.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

const exf_artifact exf_artifact_capture = {.kind = "capture", .version = 4, .min_reader = 1};
const exf_artifact exf_artifact_statistics = {.kind = "statistics", .version = 6, .min_reader = 1};
const exf_artifact exf_artifact_tables = {.kind = "tables", .version = 6, .min_reader = 6};

EXF_REGISTRY_BEGIN
    &exf_artifact_capture, &exf_artifact_statistics, &exf_artifact_tables,
EXF_REGISTRY_END(artifact)
EXF_REGISTRY_FIND(artifact)

enum { CONTAINER = 2 }; /* 1, which had no attribute: chunks, compressed, with checksums by rows */

exf_code exf_artifact_create(exf_h5 **out, const char *target, int force, const char *temporary, const exf_artifact *a,
                             const exf_provenance *p, exf_err *err)
{
    exf_h5 *h = NULL;
    exf_code rc;
    EXF_TRY(exf_h5_create(&h, target, force, temporary, err));
    EXF_TRY(exf_h5_put_text(h, "/", "exfold_kind", a->kind, err));
    EXF_TRY(exf_h5_put_i64(h, "/", "exfold_version", a->version, err));
    EXF_TRY(exf_h5_put_i64(h, "/", "exfold_min_reader", a->min_reader, err));
    EXF_TRY(exf_h5_put_i64(h, "/", EXF_H5_CONTAINER, CONTAINER, err));
    EXF_TRY(exf_h5_group(h, "/provenance", err));
    EXF_TRY(exf_facts_append(p, "/provenance", h, err));
out:
    if (rc != EXF_OK) exf_h5_close(h);
    *out = rc == EXF_OK ? h : NULL;
    return rc;
}

static exf_code check_container(exf_h5 *h, const exf_artifact *a, exf_err *err)
{
    int has;
    int64_t container = 1;
    exf_code rc;
    EXF_TRY(exf_h5_has_attr(h, "/", EXF_H5_CONTAINER, &has, err));
    if (has) EXF_TRY(exf_h5_get_i64(h, "/", EXF_H5_CONTAINER, &container, err));
    if (container > CONTAINER)
        rc = exf_fail(err, EXF_VERSION, "%s: is kept in container version %lld, this program reads version %d", exf_h5_path(h),
                      (long long)container, CONTAINER);
    else if (container != CONTAINER)
        rc = exf_fail(err, EXF_VERSION,
                      "%s: is kept in container version 1 (compressed chunks), which this version does not read; make it again "
                      "with exfold-%s",
                      exf_h5_path(h), a == &exf_artifact_capture ? "capture" : "calibrate");
out:
    return rc;
}

/* Appends how a file of the expected kind is come by: the one in that directory, by the name that the programs give it, or the
 * program that makes one of what was given. */
static exf_code append_hint(exf_text *out, const char *directory, const char *given, const exf_artifact *expected, exf_err *err)
{
    static const char *const made[][3] = {{"statistics", "tables", "exfold-solve makes tables of statistics"},
                                          {"capture", "statistics", "exfold-accumulate makes statistics of captures"}};
    char name[32], *path = NULL;
    exf_path_kind is;
    exf_code rc;
    snprintf(name, sizeof name, "%s.h5", expected->kind);
    EXF_TRY(exf_path_join(&path, directory, name, err));
    EXF_TRY(exf_path_look_at_target(path, &is, err));
    if (is == EXF_PATH_FILE) exf_text_appendf(out, "; did you mean %s?", path);
    for (size_t i = 0; is != EXF_PATH_FILE && given && i < sizeof made / sizeof *made; i++)
        if (strcmp(given, made[i][0]) == 0 && strcmp(expected->kind, made[i][1]) == 0) exf_text_appendf(out, "; %s", made[i][2]);
    rc = exf_text_end(out, err);
out:
    exf_mem_free(path);
    return rc;
}

/* Refuses a file of a kind that was not asked for. */
static exf_code refuse_kind(const char *path, const char *kind, const exf_artifact *expected, exf_err *err)
{
    char *directory = NULL;
    exf_text hint = {0};
    exf_code rc;
    EXF_TRY(exf_path_dir(&directory, path, err));
    EXF_TRY(append_hint(&hint, directory, kind, expected, err));
    rc = exf_fail(err, EXF_USAGE, "%s: holds %s, expected %s%s", path, kind, expected->kind, hint.s ? hint.s : "");
out:
    exf_mem_free(directory);
    exf_text_free(&hint);
    return rc;
}

/* Refuses a directory in the place of a file. */
static exf_code refuse_directory(const char *path, const exf_artifact *expected, exf_err *err)
{
    exf_text hint = {0};
    exf_path_kind is;
    exf_code rc;
    EXF_TRY(exf_path_look_at_target(path, &is, err));
    if (is != EXF_PATH_DIRECTORY) return EXF_OK;
    if (expected) EXF_TRY(append_hint(&hint, path, NULL, expected, err));
    rc = exf_fail(err, EXF_USAGE, "%s: is a directory, expected a file of %s%s", path, expected ? expected->kind : "these programs",
                  hint.s ? hint.s : "");
out:
    exf_text_free(&hint);
    return rc;
}

static exf_code check_kind(exf_h5 *h, const exf_artifact *expected, const exf_artifact **found, exf_err *err)
{
    char *kind = NULL;
    int has;
    int64_t min_reader;
    exf_code rc;
    const exf_artifact *a = NULL;
    EXF_TRY(exf_h5_has_attr(h, "/", "exfold_kind", &has, err));
    if (!has)
        EXF_TRY(exf_fail(err, EXF_FORMAT, "%s: is an HDF5 file, but has no attribute exfold_kind: not one of ours",
                         exf_h5_path(h)));
    EXF_TRY(exf_h5_get_text(h, "/", "exfold_kind", &kind, err));
    EXF_TRY(exf_h5_get_i64(h, "/", "exfold_min_reader", &min_reader, err));
    a = exf_artifact_find(kind);
    if (!a)
        rc = exf_fail(err, EXF_VERSION, "%s: holds \"%s\", a kind that this version does not know", exf_h5_path(h), kind);
    else if (expected && a != expected)
        rc = refuse_kind(exf_h5_path(h), kind, expected, err);
    else if (min_reader > a->version)
        rc = exf_fail(err, EXF_VERSION, "%s: needs a reader of %s version %lld, this program reads version %d", exf_h5_path(h),
                      kind, (long long)min_reader, a->version);
    else if (min_reader < 1)
        rc = exf_fail(err, EXF_FORMAT, "%s: exfold_min_reader is %lld, expected at least 1", exf_h5_path(h), (long long)min_reader);
out:
    exf_mem_free(kind);
    *found = a;
    return rc;
}

exf_code exf_artifact_refuse_export(const exf_st_file *f, exf_err *err)
{
    const char *layout = exf_st_metadata(f, "exfold_format");
    char *directory = NULL, *tables = NULL;
    int found;
    exf_code rc;
    if (!layout || !exf_starts_with(layout, "tables/")) return EXF_OK;
    EXF_TRY(exf_path_dir(&directory, exf_st_path(f), err));
    EXF_TRY(exf_path_join(&tables, directory, "tables.h5", err));
    EXF_TRY(exf_path_look(tables, &found, err));
    rc = exf_fail(err, EXF_USAGE, "%s: is an export of tables, which other programs load; these programs read the tables.h5 %s%s",
                  exf_st_path(f), found ? "beside it: " : "that it was made from", found ? tables : "");
out:
    exf_mem_free(directory);
    exf_mem_free(tables);
    return rc;
}

/* Refuses a .safetensors file. */
static exf_code refuse_safetensors(const char *path, exf_err *err)
{
    exf_st_file *f = NULL;
    exf_code rc;
    if (!exf_st_is_one(path)) return EXF_OK;
    EXF_TRY(exf_st_open(&f, path, err));
    EXF_TRY(exf_artifact_refuse_export(f, err));
    rc = exf_fail(err, EXF_USAGE, "%s: is a .safetensors file, expected an .h5 file of these programs", path);
out:
    exf_st_close(f);
    return rc;
}

exf_code exf_artifact_open(exf_h5 **out, const char *path, const exf_artifact *expected, const exf_artifact **found,
                           exf_provenance *p, exf_err *err)
{
    exf_h5 *h = NULL;
    const exf_artifact *kind;
    unsigned char b[4];
    exf_code rc;
    EXF_TRY(refuse_directory(path, expected, err));
    /* what torch.save() writes, a zip archive or, before PyTorch 1.6, a pickle */
    if (exf_file_begins(path, b, sizeof b) && (memcmp(b, "PK\3\4", 4) == 0 || memcmp(b, "\x80\2", 2) == 0))
        EXF_TRY(exf_fail(err, EXF_USAGE,
                         "%s: is a .pt file, which is not read here; for a public plugin's tables, run: python3 "
                         "scripts/pt_to_safetensors.py %s FILE.safetensors, and give that file", path, path));
    EXF_TRY(refuse_safetensors(path, err));
    EXF_TRY(exf_h5_open(&h, path, err));
    EXF_TRY(check_kind(h, expected, &kind, err));
    EXF_TRY(check_container(h, kind, err));
    if (found) *found = kind;
    if (p) EXF_TRY(exf_provenance_read(p, h, err));
out:
    if (rc != EXF_OK) exf_h5_close(h);
    *out = rc == EXF_OK ? h : NULL;
    return rc;
}

exf_code exf_artifact_digest(const char *path, const exf_artifact *expected, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_h5 *h = NULL;
    exf_code rc;
    if (expected == &exf_artifact_tables && exf_st_is_one(path)) return exf_hash_file(path, hex, err);
    EXF_TRY(exf_artifact_open(&h, path, expected, NULL, NULL, err));
    rc = exf_h5_digest(h, hex, err);
out:
    exf_h5_close(h);
    return rc;
}

#define SHAPE_FIELDS(X) X(n_experts) X(top_k) X(d_model) X(n_sequences) X(n_tokens)

exf_code exf_run_shape_write(const exf_run_shape *s, exf_h5 *h, exf_err *err)
{
    exf_code rc;
#define X(field) EXF_TRY(exf_h5_put_i64(h, "/", #field, s->field, err));
    SHAPE_FIELDS(X)
#undef X
out:
    return rc;
}

exf_code exf_run_shape_read(exf_run_shape *s, exf_h5 *h, exf_err *err)
{
    enum { EXPERTS_LIMIT = 4096 };
    exf_code rc;
#define X(field)                                                                                                                   \
    EXF_TRY(exf_h5_get_i64(h, "/", #field, &s->field, err));                                                                       \
    if (s->field < 0) {                                                                                                            \
        rc =                                                                                                                       \
            exf_fail(err, EXF_FORMAT, "%s: %s is %lld, expected no negative number", exf_h5_path(h), #field, (long long)s->field); \
        goto out;                                                                                                                  \
    }
    SHAPE_FIELDS(X)
#undef X
#define X(field)                                                                                                                   \
    if (s->field > EXF_MOST_COUNTED) {                                                                                             \
        rc = exf_fail(err, EXF_FORMAT, "%s: %s is %lld, expected at most %lld", exf_h5_path(h), #field, (long long)s->field,       \
                      (long long)EXF_MOST_COUNTED);                                                                                \
        goto out;                                                                                                                  \
    }
    X(n_sequences) X(n_tokens)
#undef X
    if (s->n_experts < 1 || s->n_experts > EXPERTS_LIMIT || s->top_k < 1 || s->top_k > s->n_experts)
        rc = exf_fail(err, EXF_FORMAT, "%s: %lld experts with %lld per token cannot be", exf_h5_path(h), (long long)s->n_experts,
                      (long long)s->top_k);
    else if (s->n_tokens > EXF_MOST_COUNTED / s->top_k)
        rc = exf_fail(err, EXF_FORMAT, "%s: n_tokens is %lld and top_k %lld: expected at most %lld routes", exf_h5_path(h),
                      (long long)s->n_tokens, (long long)s->top_k, (long long)EXF_MOST_COUNTED);
out:
    return rc;
}

exf_code exf_layer_numbers_write(const int32_t *numbers, int n, exf_h5 *h, exf_err *err)
{
    exf_tensor t = {.name = "/layer_numbers", .dtype = EXF_DT_I32, .rank = 1, .shape = {n}, .data = numbers};
    return exf_h5_write(h, &t, err);
}

exf_code exf_layer_numbers_read(int32_t **numbers, int *n, const exf_provenance *p, exf_h5 *h, exf_err *err)
{
    exf_code rc;
    exf_tensor t;
    const char *text = exf_provenance_get(p, "model.layers");
    int64_t layers = EXF_LAYERS_LIMIT; /* that the model has, or may have */
    *numbers = NULL;
    if (text && !(exf_parse_i64(text, &layers) && layers >= 1 && layers <= EXF_LAYERS_LIMIT))
        return exf_fail(err, EXF_FORMAT, "%s: provenance says model.layers is %s, expected 1 to %d", exf_h5_path(h), text,
                        EXF_LAYERS_LIMIT);
    EXF_TRY(exf_h5_describe(h, "/layer_numbers", &t, err));
    if (t.rank != 1 || t.shape[0] < 1 || t.shape[0] > layers) {
        char shape[64];
        rc = exf_fail(err, EXF_FORMAT, "%s: /layer_numbers is %s, expected [L] with L from 1 to %lld", exf_h5_path(h),
                      exf_shape_text(shape, sizeof shape, t.shape, t.rank), (long long)layers);
        goto out;
    }
    EXF_TRY(exf_mem_new(numbers, (size_t)t.shape[0], sizeof **numbers, "layer numbers", err));
    EXF_TRY(exf_h5_read_rows(h, "/layer_numbers", EXF_DT_I32, 0, t.shape[0], *numbers, err));
    for (int64_t i = 0; rc == EXF_OK && i < t.shape[0]; i++) {
        int64_t least = i ? (int64_t)(*numbers)[i - 1] + 1 : 0, number = (*numbers)[i];
        if (number < least || number >= layers)
            rc = exf_fail(err, EXF_FORMAT, "%s: /layer_numbers[%lld] is %lld, expected ascending layer numbers, here %lld to %lld",
                          exf_h5_path(h), (long long)i, (long long)number, (long long)least, (long long)layers - 1);
    }
    *n = (int)t.shape[0];
out:
    if (rc != EXF_OK) {
        exf_mem_free(*numbers);
        *numbers = NULL;
    }
    return rc;
}
