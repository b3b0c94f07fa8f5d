/* checkpoint.c - finds the tensors of a checkpoint in its files, one or many with an index; see checkpoint.h. */
#include "model/checkpoint.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/json.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(exf_stored_name(a), exf_stored_name(b));
}

void exf_checkpoint_close(exf_checkpoint *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_files; i++) exf_st_close(c->file[i]);
    exf_mem_free(c->file);
    exf_mem_free(c->stored);
    exf_mem_free(c);
}

exf_code exf_checkpoint_use(exf_checkpoint *c, exf_io io, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < c->n_files; i++) rc = exf_file_use(c->file[i]->file, io, err);
    return rc;
}

const exf_stored_tensor *exf_checkpoint_find(const exf_checkpoint *c, const char *name)
{
    exf_st_tensor wanted = {.view = {.name = name}};
    exf_stored_tensor key = {.tensor = &wanted};
    return c->n_stored ? bsearch(&key, c->stored, c->n_stored, sizeof key, by_name) : NULL;
}

static exf_code add_file(exf_checkpoint *c, const char *dir, const char *name, exf_err *err)
{
    char *path = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_grow(&c->file, &c->cap_files, c->n_files + 1, sizeof *c->file, "shard list", err));
    EXF_TRY(exf_path_join(&path, dir, name, err));
    EXF_TRY(exf_st_open(&c->file[c->n_files], path, err));
    c->n_files++;
out:
    exf_mem_free(path);
    return rc;
}

static int is_named(const exf_st_file *f, const char *name)
{
    return strcmp(exf_path_name(exf_st_path(f)), name) == 0;
}

/* Gathers all tensors of all files, sorted; a name in two files is an error. */
static exf_code collect_tensors(exf_checkpoint *c, exf_err *err)
{
    size_t total = 0, n = 0;
    for (size_t i = 0; i < c->n_files; i++) total += c->file[i]->n_tensors;
    exf_code rc = exf_mem_new(&c->stored, total, sizeof *c->stored, "tensor list", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < c->n_files; i++)
        for (size_t j = 0; j < c->file[i]->n_tensors; j++)
            c->stored[n++] = (exf_stored_tensor){c->file[i], &c->file[i]->tensor[j]};
    qsort(c->stored, n, sizeof *c->stored, by_name);
    c->n_stored = n;
    for (size_t i = 1; i < n; i++)
        if (by_name(&c->stored[i - 1], &c->stored[i]) == 0)
            return exf_fail(err, EXF_FORMAT, "tensor \"%s\" is in both %s and %s", exf_stored_name(&c->stored[i]),
                            exf_st_path(c->stored[i - 1].file), exf_st_path(c->stored[i].file));
    return EXF_OK;
}

/* Every name of the index lies in the shard it says, and no shard holds more. */
static exf_code check_index(const exf_checkpoint *c, const exf_json *map, const char *index_path, exf_err *err)
{
    for (void *it = exf_json_first(map); it; it = exf_json_next(map, it)) {
        const exf_stored_tensor *s = exf_checkpoint_find(c, exf_json_key(it));
        const char *shard = exf_json_string(exf_json_value(it), NULL);
        if (!s) return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\" is not in shard %s", index_path, exf_json_key(it), shard);
        if (!is_named(s->file, shard))
            return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\" is in %s, the index says %s", index_path, exf_json_key(it),
                            exf_st_path(s->file), shard);
    }
    for (size_t i = 0; i < c->n_stored; i++)
        if (!exf_json_get(map, exf_stored_name(&c->stored[i])))
            return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\" of %s is not in the index", index_path,
                            exf_stored_name(&c->stored[i]), exf_st_path(c->stored[i].file));
    return EXF_OK;
}

/* Refuses a download that lacks a shard: counts the shards of the index, and those of them that are there. */
static exf_code refuse_missing_shard(const char *dir, const exf_json *map, const char *index_path, const char *tensor,
                                     const char *missing, exf_err *err)
{
    const char **seen = NULL;
    size_t n = 0, cap = 0, there = 0;
    exf_code rc = EXF_OK;
    for (void *it = exf_json_first(map); it; it = exf_json_next(map, it)) {
        const char *shard = exf_json_string(exf_json_value(it), NULL);
        char *path = NULL;
        size_t k = 0;
        int found;
        while (k < n && shard && strcmp(seen[k], shard) != 0) k++;
        if (!shard || k < n) continue;
        EXF_TRY(exf_mem_grow(&seen, &cap, n + 1, sizeof *seen, "shard list", err));
        seen[n++] = shard;
        EXF_TRY(exf_path_join(&path, dir, shard, err));
        rc = exf_path_look(path, &found, err);
        exf_mem_free(path);
        if (rc != EXF_OK) goto out;
        there += found != 0;
    }
    rc = exf_fail(err, EXF_IO,
                  "%s: names shard %s of tensor \"%s\", which is not in %s: %zu of %zu shards are there; download the rest, with "
                  "`hf download MODEL --local-dir %s`", index_path, missing, tensor, dir, there, n, dir);
out:
    exf_mem_free(seen);
    return rc;
}

/* Opens a shard that the index names for a tensor. */
static exf_code open_shard(exf_checkpoint *c, const char *dir, const exf_json *map, const char *index_path, const char *tensor,
                           const char *shard, exf_err *err)
{
    char *path = NULL;
    int found;
    exf_code rc;
    EXF_TRY(exf_path_join(&path, dir, shard, err));
    EXF_TRY(exf_path_look(path, &found, err));
    rc = found ? add_file(c, dir, shard, err) : refuse_missing_shard(dir, map, index_path, tensor, shard, err);
out:
    exf_mem_free(path);
    return rc;
}

static exf_code open_shards(exf_checkpoint *c, const char *dir, const exf_json *map, const char *index_path, exf_err *err)
{
    exf_code rc;
    for (void *it = exf_json_first(map); it; it = exf_json_next(map, it)) {
        size_t len;
        const char *shard = exf_json_string(exf_json_value(it), &len);
        size_t i = 0;
        if (!shard) return exf_fail(err, EXF_FORMAT, "%s: weight_map[\"%s\"] is no string", index_path, exf_json_key(it));
        /* The index is a file of foreign origin: it may only name files that lie in the checkpoint's own directory. */
        if (strlen(shard) != len || len == 0 || strchr(shard, '/') || strchr(shard, '\\') || strcmp(shard, "..") == 0 ||
            strcmp(shard, ".") == 0)
            return exf_fail(err, EXF_FORMAT, "%s: shard \"%s\" is no plain file name in the checkpoint's directory", index_path,
                            shard);
        while (i < c->n_files && !is_named(c->file[i], shard)) i++;
        if (i < c->n_files) continue;
        rc = open_shard(c, dir, map, index_path, exf_json_key(it), shard, err);
        if (rc != EXF_OK) return rc;
    }
    return c->n_files ? EXF_OK : exf_fail(err, EXF_FORMAT, "%s: weight_map is empty", index_path);
}

static exf_code open_indexed(exf_checkpoint *c, const char *dir, const char *index_path, exf_err *err)
{
    enum { INDEX_LIMIT = 256 << 20 };
    exf_json *doc = NULL;
    exf_code rc;
    EXF_TRY(exf_json_load(&doc, index_path, INDEX_LIMIT, err));
    const exf_json *map = exf_json_type(doc) == EXF_JSON_OBJECT ? exf_json_get(doc, "weight_map") : NULL;
    if (exf_json_type(map) != EXF_JSON_OBJECT) {
        rc = exf_fail(err, EXF_FORMAT, "%s: \"weight_map\" is %s, expected an object", index_path, exf_json_type_name(map));
        goto out;
    }
    EXF_TRY(open_shards(c, dir, map, index_path, err));
    EXF_TRY(collect_tensors(c, err));
    EXF_TRY(check_index(c, map, index_path, err));
out:
    exf_json_free(doc);
    return rc;
}

exf_code exf_checkpoint_open(exf_checkpoint **out, const char *dir, exf_err *err)
{
    exf_code rc;
    exf_checkpoint *c = NULL;
    char *index_path = NULL, *single = NULL;
    *out = NULL;
    EXF_TRY(exf_mem_new(&c, 1, sizeof *c, "checkpoint", err));
    if (!dir) goto out;
    EXF_TRY(exf_path_join(&index_path, dir, "model.safetensors.index.json", err));
    EXF_TRY(exf_path_join(&single, dir, "model.safetensors", err));
    int has_index, has_single;
    EXF_TRY(exf_path_look(index_path, &has_index, err));
    EXF_TRY(exf_path_look(single, &has_single, err));
    if (has_index) {
        EXF_TRY(open_indexed(c, dir, index_path, err));
    } else if (has_single) {
        EXF_TRY(add_file(c, dir, "model.safetensors", err));
        EXF_TRY(collect_tensors(c, err));
    } else if (exf_checkpoint_present(dir)) {
        rc = exf_fail(err, EXF_IO, "%s: holds neither model.safetensors nor model.safetensors.index.json", dir);
    } else {
        rc = exf_fail(err, EXF_MODEL, "%s: has no weights, neither model.safetensors nor model.safetensors.index.json; download "
                      "them too (hf download MODEL --local-dir %s), or give --dry-run, which reads config.json alone", dir, dir);
    }
out:
    exf_mem_free(index_path);
    exf_mem_free(single);
    if (rc != EXF_OK)
        exf_checkpoint_close(c);
    else
        *out = c;
    return rc;
}

int exf_checkpoint_present(const char *dir)
{
    int found = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        found |= (exf_ends_with(e->d_name, ".safetensors") && !exf_starts_with(e->d_name, "adapter_")) ||
                 strcmp(e->d_name, "model.safetensors.index.json") == 0;
    if (d) closedir(d);
    return found;
}

exf_code exf_checkpoint_unchanged(const exf_checkpoint *c, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < c->n_files; i++) rc = exf_file_unchanged(c->file[i]->file, err);
    return rc;
}
